"""Looks at a folder of your own and writes the config of a data set for it."""
