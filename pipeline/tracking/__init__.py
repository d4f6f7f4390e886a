"""Mirrors results into MLflow while jobs run."""
