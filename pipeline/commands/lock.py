"""`python -m pipeline lock`."""

import argparse
from pathlib import Path

SUMMARY = "permute the weights of a model so that it works only with its key"
DETAILS = (
    "`lock vit.safetensors --key vit.key --out locked.safetensors` reads and writes safetensors, tensor by tensor. For "
    "a model in several files, give its *.safetensors.index.json; the locked model is written into a folder. The "
    "command prints how many keys are possible and what a lock does not protect against."
)


def add_options(
    parser: argparse.ArgumentParser, model: str = "safetensors of the model that the key was made for"
) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help=model)
    parser.add_argument("--key", required=True, type=Path, help="a file that `key new` wrote")
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="FILE",
        help="a new file, or a new folder; existing ones are never overwritten",
    )


def run(options: argparse.Namespace) -> None:
    from pipeline.permutation import authorise
    from pipeline.permutation.keys import read_key

    key = read_key(options.key)
    authorise.lock(options.model, key, options.out)
    print(f"locked {options.model} as {options.out}")
    print(authorise.described(key))
    for line in authorise.LIMITS:
        print(line)
