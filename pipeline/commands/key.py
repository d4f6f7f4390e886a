"""`python -m pipeline key`."""

import argparse
from dataclasses import replace
from pathlib import Path

from pipeline.core.errors import CheckpointError, ConfigError

SUMMARY = "make a key for a model, or recover the key of a locked one from its original"
DETAILS = (
    "`key new --like vit.safetensors --model vit_base_patch16_224 --out vit.key` draws a key from the system's "
    "cryptographic generator; only its owner can read its file, and it is never overwritten. `key recover "
    "--like original.safetensors --locked locked.safetensors` shows what a lock is worth against those who have "
    "the original weights."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=["new", "recover"], help="new: make a key; recover: find the key of a locked model"
    )
    parser.add_argument(
        "--like",
        required=True,
        type=Path,
        metavar="MODEL",
        help="the model to lock: safetensors of a ViT from timm, or of a BERT or GPT-2 from transformers, or the index "
        "of several files; with `recover`: the original of the locked model",
    )
    parser.add_argument("--locked", type=Path, metavar="FILE", help="with `recover`: a file that `lock` wrote")
    parser.add_argument("--out", type=Path, metavar="KEY", help="the file for the key, with a name that ends in .key")
    parser.add_argument(
        "--heads",
        type=int,
        help="number of attention heads of a block, needed if no config.json next to the model states it",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="with a ViT: the name of the architecture in timm (default: from config.json next to the model)",
    )
    parser.add_argument(
        "--kind",
        choices=["independent", "shared", "released"],
        help="independent: every permutation is drawn separately (default); shared: one permutation for all heads of "
        "a block (default for models with QK-norm); released: one permutation for everything, as in the ST authors' "
        "code, so there are fewer possible keys",
    )


def run(options: argparse.Namespace) -> None:
    from pipeline.permutation import authorise
    from pipeline.permutation.keys import new_key, write_key

    if options.what == "recover":
        return _recover(options)
    if options.out is None:
        raise ConfigError("key new: --out is missing; name the key to write, such as --out vit.key")
    plan = authorise.plan_key(options.like, options.heads, options.model)
    drawn = new_key(plan.shape, options.kind or ("shared" if plan.are_alike else "independent"))
    made = replace(drawn, architecture=plan.architecture, names=plan.names)
    write_key(made, options.out)
    print(f"{options.out}: {authorise.described(made)}")
    print("keep a copy of the key where nobody else can read it: without it, a locked model cannot be unlocked")


def _recover(options: argparse.Namespace) -> None:
    from pipeline.permutation.authorise import described, plan_key
    from pipeline.permutation.keys import write_key
    from pipeline.permutation.known_weights import recover_key

    if options.locked is None:
        raise ConfigError("key recover: --locked is missing; name the file whose key you want to recover")
    plan = plan_key(options.like, options.heads, options.model)
    found = recover_key(options.locked, options.like, plan.shape)
    if found.is_confirmed is False:
        raise CheckpointError(
            f"the key of {options.locked} was not found: {options.like} and the locked model differ too "
            "much, and no key was written; expected the original, or a model that was trained from it"
        )
    print(f"found in {found.seconds:.1f} s: {described(found.key)}")
    print(
        f"smallest margin, in correlation, between the best and the second-best match of a column: {found.margin:.3f}"
    )
    agreement = "bit for bit" if found.is_exact else "approximately"
    print(f"locking the original with this key gives the locked file, {agreement}")
    if found.is_confirmed:
        print("the locked file names this key, so it is the right one")
    if options.out:
        write_key(replace(found.key, architecture=plan.architecture, names=plan.names), options.out)
        print(f"wrote {options.out}")
