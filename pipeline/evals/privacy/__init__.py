"""Measures how well images are recovered from gradients and features."""
