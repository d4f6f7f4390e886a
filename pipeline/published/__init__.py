"""Keeps the results of a headline in git, and draws tables and verdicts again from their metrics."""
