"""Measures what frozen features hold: linear probes, nearest neighbours, positions."""
