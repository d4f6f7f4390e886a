"""Holds the tools that everything else is built on: configs, files, errors, registries, seeds, digests of code."""
