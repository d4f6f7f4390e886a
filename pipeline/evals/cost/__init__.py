"""Counts parameters and times steps: what a model or a permutation costs."""
