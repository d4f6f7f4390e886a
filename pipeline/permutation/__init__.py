"""Locks models with a key: permutes tokens and weights, and runs locked models (ST)."""
