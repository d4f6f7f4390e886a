"""Writes a trained encoder as timm and the Hugging Face Hub expect it, with a model card."""
