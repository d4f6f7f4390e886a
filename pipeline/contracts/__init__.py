"""Checks that a new method, evaluation or kind of data keeps its promises, for `check --method` and the tests."""
