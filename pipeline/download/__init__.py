"""Downloads public data sets, continues after interruptions, and compares checksums."""
