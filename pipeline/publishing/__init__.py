"""Publishes our own results in git, and draws their tables and verdicts again from the metrics."""
