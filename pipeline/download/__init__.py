"""Downloads published data sets, continues after interruptions, and compares checksums."""
