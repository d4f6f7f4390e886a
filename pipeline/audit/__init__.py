"""Answers questions about what is there: what is finished, where a number comes from, whether files are intact."""
