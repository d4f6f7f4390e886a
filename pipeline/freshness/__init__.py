"""Decides what must be made again after an edit, and why."""
