"""`python -m pipeline infer`."""

import argparse
from pathlib import Path

from pipeline.commands.options import add_site

SUMMARY = "run a model, locked or not, on an image or a text"
DETAILS = (
    "With its key, a locked model answers as the original does, and its weights stay locked. Without --key, a "
    "locked model still answers, but is right only by chance; the command warns. A ViT gives the "
    "classes of an image, a BERT the classes of a text or the words for its [MASK], a GPT-2 the next words. BERT and "
    "GPT-2 need transformers' config.json and tokenizer next to the model."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("locked", type=Path, metavar="MODEL", help="a file that `lock` wrote, or any safetensors file")
    parser.add_argument(
        "--key",
        type=Path,
        help="a file that `key new` wrote (default: none; a locked model is then right only by chance)",
    )
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--image", type=Path, metavar="FILE", help="the input of a ViT: PNG, JPEG or similar")
    asked.add_argument("--text", help="the input of a BERT or a GPT-2")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the name of the architecture in timm (default: from the key, else from config.json next to the file)",
    )
    add_site(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.engine.parallel.distributed import device_of
    from pipeline.permutation.infer import classify_image
    from pipeline.permutation.infer_text import answer_text
    from pipeline.permutation.keys import read_key
    from pipeline.site import load_site

    key, device = read_key(options.key) if options.key else None, device_of(load_site().device)
    if options.image:
        answers = classify_image(options.locked, key, options.image, options.model, device)
    else:
        answers = answer_text(options.locked, key, options.text, device)
    if key is None and (warning := answers.without_key(options.locked)):
        print(warning)
    for guess in answers.guesses:
        print(f"{guess.probability:8.2%}  {guess.name}")
