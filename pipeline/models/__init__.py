"""Builds encoders of images and texts, and loads weights into them; all code for position embeddings is here."""
