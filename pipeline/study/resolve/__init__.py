"""Turns studies into the graph of jobs: which runs and evaluations stand behind each cell."""
