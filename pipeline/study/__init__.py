"""Reads studies: a paper's tables, runs and claims as data."""
