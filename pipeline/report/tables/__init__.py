"""Fills the tables with our numbers beside the paper's, and writes them as files."""
