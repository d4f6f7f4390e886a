"""Finds samples and labels in folders: one file for each layout of a public set, and one for plain folders."""
