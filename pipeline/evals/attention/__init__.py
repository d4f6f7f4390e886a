"""Draws where models look: attention maps and correlations of tokens."""
