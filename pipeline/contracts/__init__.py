"""Checks that a new method, evaluation or kind of data keeps the promises that the rest relies on."""
