"""Finds samples and labels in folders: one file for each published layout, and one for plain folders."""
