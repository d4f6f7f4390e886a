"""Turns studies into the graph of jobs: which runs and evaluations each cell needs."""
