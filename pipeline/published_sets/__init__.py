"""Knows the published data sets: where to get them, their terms, and how to recognise their folders."""
