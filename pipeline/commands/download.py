"""`python -m pipeline download`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.published_sets.sets import SetEntry
    from pipeline.site import Site

SUMMARY = "download a public data set, or list them all"
DETAILS = (
    "Files are verified and unpacked, and an interrupted download continues. Without NAME it lists every set with its "
    "size, its licence and its folder on this machine."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a set from the list, such as tiny_imagenet")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FOLDER",
        help="the set is put into a subfolder of this folder (default: the set's folder in the site file, else a "
        "subfolder of its data_root)",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help="download from this address, which serves files with the same names, instead of the published one",
    )
    parser.add_argument(
        "--site",
        help="also add the folder to this site file, named as in configs/site or by a path (default: read the site "
        "file that $PATCHWORK_SITE names, else local, and do not change it)",
    )


def run(options: argparse.Namespace) -> None:
    from pipeline.published_sets.sets import entry_of
    from pipeline.site import load_site

    site = load_site()
    if options.name:
        _download(options, entry_of(options.name), site)
        return
    for line in _listing(site):
        print(line)


def _download(options: argparse.Namespace, entry: "SetEntry", site: "Site") -> None:
    from pipeline.core.config import shown
    from pipeline.data.describe.site_entry import add_data_folder
    from pipeline.download.obtain import obtain, refuse_by_hand, shipped_config, summary
    from pipeline.site import load_site, site_path

    refuse_by_hand(options.name, entry)
    cfg, target = shipped_config(options.name), _target(options, entry, site)
    print(f"{summary(entry)}\nto: {target}", flush=True)
    is_new = obtain(cfg, entry, target, options.mirror)
    print(f"{'downloaded and unpacked' if is_new else 'already there'}: it has the expected layout and counts")
    if load_site().data.get(options.name) == target:  # loaded again: it may be found below the data root now
        return
    if options.site:
        add_data_folder(site_path(), options.name, target, force=False)
        print(f"site: wrote data.{options.name} in {shown(site_path())}")
    else:
        print(f"next: name the folder in the site file (`data: {{{options.name}: {target}}}`)")


def _target(options: argparse.Namespace, entry: "SetEntry", site: "Site") -> Path:
    """The folder of the set: below --to, or where the site names it, or below its data root."""
    if options.to:
        return options.to.expanduser().absolute() / entry.folder
    if named := site.data.get(options.name):
        return named
    if site.data_root:
        return site.data_root / entry.folder
    raise ConfigError(
        f"no folder for {options.name}; expected --to FOLDER, or `data_root: FOLDER` in the site file: the set then "
        f"lies in FOLDER/{entry.folder}"
    )


def _listing(site: "Site") -> list[str]:
    """A line for each set: name, bytes, where it is, and its licence."""
    from pipeline.published_sets.sets import catalogue, in_units

    rows = [("name", "bytes", "unpacked", "on this site", "licence")]
    for name, entry in catalogue().items():
        folder = site.data.get(name)
        here = "-" if folder is None else str(folder) if folder.is_dir() else f"{folder} (not found)"
        size = f"{'' if all(file.is_exact for file in entry.files) else '~'}{entry.download_size:,}"
        by_hand = f"by hand: {entry.page}; " if entry.by_hand else ""
        rows.append((name, size, in_units(entry.unpacked) if entry.unpacked else "-", here, by_hand + entry.licence))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"{name:<{widths[0]}}  {size:>{widths[1]}}  {unpacked:>{widths[2]}}  {here:<{widths[3]}}  {licence}"
        for name, size, unpacked, here, licence in rows
    ]
