"""Locks models with a key: permutes tokens and weights (ST); `evals/permutation` measures locked models."""
