"""Checks that a new method keeps its promises, for `check --method` and the tests."""
