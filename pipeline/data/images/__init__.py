"""Turns images into views for training and validation, and mixes batches of them."""
