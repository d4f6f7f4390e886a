"""Measures what models know of positions: shuffled patches, predicted places, position embeddings."""
