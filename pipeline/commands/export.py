"""`python -m pipeline export`."""

import argparse
from pathlib import Path

from pipeline.commands.options import add_scale, add_site

SUMMARY = "write the encoder of a run in the format of timm and the Hugging Face Hub, with a model card"
DETAILS = (
    "`export RUN --out mine` writes config.json, model.safetensors and the model card README.md. It first checks that "
    "timm.create_model('local-dir:mine', pretrained=True) gives the outputs of the run. The model card states what "
    "the run was trained on, and its numbers with their noise. With --onnx, the command adds model.onnx, after "
    "comparing its outputs with torch's."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a finished run, or an unambiguous part of its name; `status` lists them"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FOLDER", help="a new folder; existing ones are never overwritten"
    )
    parser.add_argument("--onnx", action="store_true", help="also write model.onnx, for batches of any size")
    add_scale(parser, None, "that of the run")
    add_site(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.export.layout import export_run
    from pipeline.site import load_site

    for title, text in export_run(options.run, options.out, options.scale, load_site(), options.onnx):
        print(f"{title:10} {text}")
