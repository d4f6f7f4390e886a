"""Draws tables, figures, claims and the report."""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
