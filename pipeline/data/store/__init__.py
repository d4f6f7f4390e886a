"""Verifies a data set once, records what was found, and opens it later only if it is still the same."""
