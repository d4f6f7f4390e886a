"""Measures what permuted tokens and weights change: equivariance, locked models, split learning."""
