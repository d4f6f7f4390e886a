"""Patchwork: position information in transformers, from configs to tables."""
