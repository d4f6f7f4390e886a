"""Attacks gradients and features to recover images, and measures how similar the result is."""
