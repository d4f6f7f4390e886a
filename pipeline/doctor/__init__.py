"""Checks whether a machine or a cluster can run a scale, and says how to fix what is missing."""
