"""Tries values of config keys: writes a study with all combinations and ranks what came out."""
