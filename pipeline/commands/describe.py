"""`python -m pipeline describe`."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.site import Site

SUMMARY = "write the config of a data set from a folder of your own images"
DETAILS = (
    "It decodes and counts all images, computes their mean and standard deviation, and writes configs/data/NAME.yaml."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="images in class folders (train/<class>/ and val/<class>/, or only <class>/), images at any depth without "
        "labels, or the format of COCO, ADE20K or Speech Commands",
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="name of the data set, and of its config")
    parser.add_argument(
        "--image-size",
        type=int,
        metavar="PIXELS",
        help="side length of the images as a model sees them (default: that of the images, if all are squares of one "
        "size)",
    )
    parser.add_argument("--channels", type=int, metavar="N", help="1: grey, 3: colour (default: as the images are)")
    parser.add_argument(
        "--val-share",
        type=float,
        metavar="X",
        help="share of the images that becomes the validation split, between 0 and 1 (default: 0.1)",
    )
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument(
        "--unlabelled",
        action="store_const",
        const=True,
        help="the images have no labels, regardless of folders (default: decided from the folders)",
    )
    labels.add_argument(
        "--class-folders",
        dest="unlabelled",
        action="store_const",
        const=False,
        help="each folder is a class, regardless of its name (default: decided from the folders)",
    )
    parser.add_argument(
        "--min-side",
        type=int,
        metavar="PIXELS",
        help="without labels: leave out images with a shorter side than this (default: a quarter of --image-size)",
    )
    parser.add_argument("--study", action="store_true", help="also write configs/study/NAME.yaml, ready to run")
    parser.add_argument(
        "--labelled",
        metavar="NAME",
        help="with --study, for images without labels: the labelled data set on which to finetune",
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files of this name")
    parser.add_argument(
        "--site",
        help="also add the folder to this site file, named as in configs/site or by a path; created if it does not "
        "exist",
    )


def run(options: argparse.Namespace) -> None:
    from pipeline.core.config import CONFIGS, Layers, parse, shown
    from pipeline.core.files import write_text
    from pipeline.data.describe.describe import Choices, config_path, describe, write_config
    from pipeline.data.describe.site_entry import add_data_folder, edited_site, is_named
    from pipeline.site import Site, load_site, site_path

    name, folder = options.name, options.folder.expanduser().absolute()
    choices = parse(Choices, Layers(("command line", {key: getattr(options, key) for key in Choices.model_fields})))
    labelled = _labelled(options)
    if options.site:  # a wrong entry fails before anything is decoded
        edited_site(site_path(), name, folder, options.force)
    site = load_site() if site_path().exists() or not options.site else Site()
    described = describe(folder, choices, site.workers)
    study = _study(options, described.config, labelled, site)
    has_changed = write_config(described, options.force)
    print(f"{described.summary}; {'wrote' if has_changed else 'unchanged:'} {shown(config_path(name))}")
    print("".join(f"{note}\n" for note in described.notes), end="")
    if options.site:
        has_changed = add_data_folder(site_path(), name, folder, options.force)
        print(f"site: {'wrote' if has_changed else 'unchanged:'} data.{name} in {shown(site_path())}")
        if site_path() != CONFIGS / "site" / "local.yaml":
            print(f"next: `export PATCHWORK_SITE={options.site}`, so that every command reads it")
    elif not is_named(site_path(), name, folder):
        print(f"next: name the folder in the site file (`data: {{{name}: {folder}}}`), or give it as --site")
    if study:
        write_text(*study)
        print(f"study: wrote {shown(study[0])}")
    _print_next(options, described.config)


def _labelled(options: argparse.Namespace) -> Any:
    """The set to finetune on, if one is named."""
    from pipeline.core.errors import ConfigError
    from pipeline.study.starter import read_labelled

    if options.labelled and not options.study:
        raise ConfigError(f"--labelled {options.labelled} is for the study that --study writes; give both")
    return read_labelled(options.labelled) if options.labelled else None


def _study(options: argparse.Namespace, data: Any, labelled: Any, site: "Site") -> tuple[Path, str] | None:
    from pipeline.launch.gpus import gpus_of
    from pipeline.study.starter import CPU, GPU, new_study

    if not options.study:
        return None
    return new_study(data, labelled, GPU if site.slurm or gpus_of(site) else CPU, options.force)


def _print_next(options: argparse.Namespace, data: Any) -> None:
    """How to run the study of the set, or the command that writes one."""
    from pipeline.data.images.classified import DataConfig
    from pipeline.study.starter import study_name, study_path

    study = study_name(data.name)
    if study_path(study).exists():
        print(f"next: `python -m pipeline plan {study}` estimates the cost, `snakemake {study}` runs it")
    elif isinstance(data, DataConfig):
        labels = "" if data.has_labels else " (with --labelled NAME, finetuned on a set that has labels)"
        print(f"next: `{_command(options)} --study` writes a study that is ready to run{labels}")


def _command(options: argparse.Namespace) -> str:
    """The command that described this folder."""
    keys = ("name", "image_size", "channels", "val_share", "min_side", "site")
    given = [(f"--{key.replace('_', '-')}", getattr(options, key)) for key in keys]
    flag = {None: [], True: ["--unlabelled"], False: ["--class-folders"]}[options.unlabelled]
    words = ["python", "-m", "pipeline", "describe", str(options.folder), *flag]
    words += [word for key, value in given if value is not None for word in (key, str(value))]
    return shlex.join(words)
