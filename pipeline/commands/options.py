"""Options that several verbs share, and what they open."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.freshness.remake import Freshness
    from pipeline.standalone.named_model import NamedModel

TARGETS = "studies (mjp), tables and figures (mjp_table4, mp3_figure3) or `all`"


OF_STUDY = "that of the study, as for snakemake"


def add_scale(parser: argparse.ArgumentParser, default: str | None = "demo", otherwise: str = OF_STUDY) -> None:
    """`otherwise` says which scale is meant where the command line names none and there is no `default`."""
    shown = default or otherwise
    parser.add_argument("--scale", default=default, help=f"name of a file in configs/scale (default: {shown})")


def add_site(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--site",
        help="name of a file in configs/site, or the path of a site file (default: $PATCHWORK_SITE, else local)",
    )


def add_model_of_timm(parser: argparse.ArgumentParser) -> None:
    """What `pipeline.standalone.named_model.NamedModel` holds, apart from the name and the weights."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="with a timm model: an argument of timm.create_model, such as depth=6; may be repeated. Patch size, image "
        "size, channels, class token and classes are read from the weight file; an argument that contradicts it is an "
        "error",
    )
    parser.add_argument(
        "--resample-positions",
        action="store_true",
        dest="may_resample",
        help="resample the positions of the weight file to the image size of `--set img_size=N`; the result is no "
        "longer the model of the file",
    )
    for name in ("mean", "std"):
        parser.add_argument(
            f"--{name}",
            type=float,
            nargs="+",
            metavar="X",
            help=f"{name} of the pixels, from 0 to 1, with which the model was trained (default: from config.json "
            "next to the weights, else from timm)",
        )


def named_model(options: argparse.Namespace) -> "NamedModel":
    from pipeline.standalone.named_model import NamedModel

    return NamedModel(
        options.model, options.weights, tuple(options.settings), options.may_resample, options.mean, options.std
    )


def add_rows(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--rows",
        choices=["headline", "all"],
        default=default,
        help="headline: the few rows that `snakemake headline` runs; all: every row (default: %(default)s)",
    )


def open_scale(scale: str | None, targets: Iterable[str] = ()) -> "Freshness":
    """Load the graph of a scale, or of that of the targets, with what is known about the state of its results."""
    from pipeline.freshness.remake import open_freshness
    from pipeline.site import load_site
    from pipeline.study.resolve.graph import load_graph
    from pipeline.study.scales import default_scale

    return open_freshness(load_graph(scale or default_scale(targets)), load_site())
