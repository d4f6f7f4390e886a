"""Trains: the loop, its steps, the optimiser, checkpoints, validation and metrics."""
