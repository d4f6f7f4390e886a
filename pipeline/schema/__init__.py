"""Writes the JSON Schemas with which editors complete and explain config keys; `core` validates configs."""
