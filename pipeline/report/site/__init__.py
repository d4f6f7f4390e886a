"""Writes the pages of the report, its search, and its findings in words."""
