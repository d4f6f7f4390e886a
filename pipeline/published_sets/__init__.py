"""Knows the public data sets: where to get them, their terms, and how to recognise their folders."""
