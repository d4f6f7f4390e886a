"""`python -m pipeline unlock`."""

import argparse

from pipeline.commands import lock

SUMMARY = "restore the weights of a locked model"
DETAILS = "With the right key, the result is the original, byte for byte; any other key is rejected."


def add_options(parser: argparse.ArgumentParser) -> None:
    lock.add_options(parser, model="what `lock` wrote")


def run(options: argparse.Namespace) -> None:
    from pipeline.permutation import authorise
    from pipeline.permutation.keys import read_key

    authorise.unlock(options.model, read_key(options.key), options.out)
    print(f"unlocked {options.model} as {options.out}")
