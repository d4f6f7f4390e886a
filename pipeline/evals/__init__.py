"""Measures trained models: one file for each evaluation, and what all of them share."""
