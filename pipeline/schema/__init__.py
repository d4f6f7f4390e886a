"""Writes the JSON Schemas with which an editor completes and explains config keys."""
