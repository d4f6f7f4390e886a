"""Measures how often a model is right: on validation images, corrupted ones, outliers, other sizes."""
