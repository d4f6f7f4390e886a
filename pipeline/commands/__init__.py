"""One file per verb of `python -m pipeline`: SUMMARY and DETAILS for its help, `add_options`, and `run`.

A file imports what `run` needs inside its functions, so that `--help` and quick verbs never wait for torch.
"""
