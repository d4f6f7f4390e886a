"""Draws figures as SVG and places the pictures and sounds of evaluations."""
