"""`python -m pipeline export`."""

import argparse
from pathlib import Path

from pipeline.commands.options import add_site

SUMMARY = "write the encoder of a run in the layout of timm and of the Hub, with a model card"
DETAILS = (
    "`export RUN --out mine` writes config.json, model.safetensors and README.md, after timm has loaded them and given "
    "the outputs of the run: timm.create_model('local-dir:mine', pretrained=True). The model card tells what the run "
    "was trained on, and its numbers with their noise. With --onnx, it adds model.onnx, compared with torch."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a finished run, or an unambiguous part of its name; `status` lists them"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder; none is overwritten")
    parser.add_argument("--onnx", action="store_true", help="also model.onnx, for batches of any size")
    parser.add_argument("--scale", help="a file of configs/scale (default: that of the run)")
    add_site(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.export.layout import export_run
    from pipeline.site import load_site

    for title, text in export_run(options.run, options.out, options.scale, load_site(), options.onnx):
        print(f"{title:10} {text}")
