"""Decides how a step is computed: precision, compilation, CUDA graphs, recomputed activations."""
