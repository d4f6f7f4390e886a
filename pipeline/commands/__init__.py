"""Holds the commands, one file for each verb of `python -m pipeline`.

A file has SUMMARY and DETAILS for its help, `add_options`, and `run`, which imports what it needs inside its
functions, so that `--help` and quick verbs never wait for torch.
"""
