"""What the runs of the scale read: data sets, and weights from elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pipeline.config import FILE, Layers, parse, shown
from pipeline.data.images import SplitName
from pipeline.data.sources import SOURCES, DataConfig, count_problems, find_images, read_split
from pipeline.doctor.finding import Finding, Subject, failed, not_applicable, ok
from pipeline.errors import DataError
from pipeline.results import prepare_command
from pipeline.site import data_folder, weights_path


def data_sets(subject: Subject) -> Iterator[Finding]:
    """Each in the folder that the site names, and either verified or of the right layout."""
    for name in subject.graph.data_sets():
        content = subject.graph.run_with_data(name).config["data"]
        yield _data_set(subject, parse(DataConfig, Layers((name, content))))


def _data_set(subject: Subject, data: DataConfig) -> Finding:
    what, source = f"data {data.name}", SOURCES[data.source]
    try:
        folder = data_folder(subject.site, data)
    except DataError:
        return failed(what, "no folder on this site", f"add `data: {{{data.name}: /path}}` to {subject.site_file}")
    obtained = f"expected {source.layout}; to get it: {source.obtained}; the folder is in {subject.site_file}"
    if not folder.is_dir():
        return failed(what, f"folder {folder} not found", obtained)
    manifest = subject.graph.results.manifest(data.name)
    if manifest.exists():
        return _verified(what, data, folder, manifest)
    # Only the smaller split: the first job decodes every image of both anyway.
    split = read_split(data, folder, "val")
    problems = split.problems + count_problems(data, "val", split)
    if problems:
        return failed(what, f"{folder}: {problems[0]}", obtained)
    return ok(
        what, f"{folder} has its {data.num_val} validation images; the first job verifies all and writes the manifest"
    )


def _verified(what: str, data: DataConfig, folder: Path, manifest: Path) -> Finding:
    """Whether the folder still holds what was verified."""
    try:
        train, val = (len(find_images(data, folder, split, manifest.parent)) for split in get_args(SplitName))
    except DataError as error:
        text, _, remedy = str(error).partition("\nwhat to do: ")
        return failed(what, text, remedy or f"run `{prepare_command(manifest)}`")
    return ok(what, f"{train} + {val} images, verified: {shown(manifest)}")


def weights(subject: Subject) -> Iterator[Finding]:
    """The files that runs start from."""
    inits = {run.config["init"] or "" for run in subject.graph.runs.values()}
    paths = sorted({weights_path(subject.site, init) for init in inits if init.startswith(FILE)})
    missing = [str(path) for path in paths if not path.is_file()]
    if not paths:
        yield not_applicable("weights", f"no run of scale {subject.graph.scale} starts from a file")
    elif missing:
        yield failed(
            "weights", f"no {', '.join(missing)}", f"put them there, or name their folder in {subject.site_file}"
        )
    else:
        yield ok("weights", f"{len(paths)} files that runs start from")
