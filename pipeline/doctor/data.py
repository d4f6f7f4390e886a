"""What the runs of the scale read: data sets, and weights from elsewhere."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.core.config import shown
from pipeline.core.errors import CheckpointError, DataError
from pipeline.data.kind import BaseDataConfig, kind_of, source_set
from pipeline.data.store.opening import find_samples
from pipeline.doctor.finding import Finding, Subject, failed, not_applicable, ok
from pipeline.freshness.outputs import data_file
from pipeline.published_sets.find import find_sets, looked_for
from pipeline.results import prepare_command
from pipeline.site import Site, data_folder, site_file
from pipeline.study.resolve.graph_configs import data_of


def data_root(subject: Subject) -> Iterator[Finding]:
    """Which public data sets the site's data root has, of all that there are."""
    root, site = subject.site.data_root, subject.site
    if root is None:
        return
    if not root.is_dir():
        yield failed(
            "data root", f"folder {root} not found", f"make it, or correct `data_root:` in {subject.site_file}"
        )
        return
    found = find_sets(root)
    lines = [f"{name} in {folder}{_overruled(site, name, folder)}" for name, folder in found.items()]
    yield ok("data root", f"public sets in {root}: {len(found)}" + "".join(f"\n{'':>23}{line}" for line in lines))


def _overruled(site: Site, name: str, folder: Path) -> str:
    return "" if site.data.get(name) == folder else f", not used: the site file names {site.data.get(name)}"


def data_sets(subject: Subject) -> Iterator[Finding]:
    """Each in the folder that the site names, and either verified or of the right layout."""
    for name in subject.graph.data:
        if data_file(name) in subject.needed:
            yield _data_set(subject, data_of(subject.graph, name))


def _data_set(subject: Subject, data: BaseDataConfig) -> Finding:
    what, kind = f"data {data.name}", kind_of(data)
    try:
        folder = data_folder(subject.site, data)
    except DataError:
        looked = looked_for(subject.site.data_root, data.folder_name)
        found = f"no folder on this site; {looked}" if looked else "no folder on this site"
        remedy = f"add `data: {{{data.folder_name}: /path}}` to {subject.site_file}"
        return failed(what, found, f"{remedy}; to get it: {kind.origin()}" if kind.origin() else remedy)
    if source_set(data) and not kind.is_there(folder):
        return ok(what, f"is made from {source_set(data)} in {folder}")
    obtained = f"expected {kind.layout}; to get it: {kind.origin()}; the folder is in {subject.site_file}"
    if not folder.is_dir():
        return failed(what, f"folder {folder} not found", obtained)
    manifest = subject.graph.results.manifest(data.name)
    if manifest.exists():
        return _verified(what, data, folder, manifest)
    # Only the smaller split: the first job decodes every sample of both anyway.
    split = kind.read(folder, "val")
    problems = split.problems + kind.count_problems("val", split)
    if problems:
        return failed(what, f"{folder}: {problems[0]}", obtained)
    found = f"{folder} has its {len(split.samples)} validation {kind.unit}"
    return ok(what, f"{found}; the first job verifies all and writes the manifest")


def _verified(what: str, data: BaseDataConfig, folder: Path, manifest: Path) -> Finding:
    """Whether the folder still holds what was verified."""
    try:
        counts = [len(find_samples(data, folder, split, manifest.parent)) for split in data.splits]
    except DataError as error:
        text, _, remedy = str(error).partition("\nwhat to do: ")
        return failed(what, text, remedy or f"run `{prepare_command(manifest)}`")
    return ok(what, f"{' + '.join(map(str, counts))} {kind_of(data).unit}, verified: {shown(manifest)}")


def weights(subject: Subject) -> Iterator[Finding]:
    """The files that runs start from, or that are evaluated as they are."""
    paths = sorted({path for file in subject.needed for path in subject.freshness.weight_files(file)})
    missing = [str(path) for path in paths if not path.is_file()]
    if not paths:
        yield not_applicable("weights", f"no run of scale {subject.graph.scale} starts from a file")
    elif missing:
        yield failed(
            "weights", f"no {', '.join(missing)}", f"put them there, or name their folder in {subject.site_file}"
        )
    else:
        yield ok("weights", f"{len(paths)} files that runs start from")


def lpips(subject: Subject) -> Iterator[Finding]:
    """Whether the metric LPIPS can be computed; without it, its cells are n/a and nothing else is missing."""
    from pipeline.privacy.lpips import LPIPS, MIN_SIDE, lpips_reason  # needs torch

    reason, file = lpips_reason(subject.site, MIN_SIDE), site_file(subject.site, "lpips")
    if reason or file is None:
        yield not_applicable("lpips", reason)
        return
    try:
        LPIPS(file)
    except CheckpointError as error:
        yield failed("lpips", str(error), f"without the key `lpips` in {subject.site_file} its cells are n/a")
    else:
        yield ok("lpips", f"can be computed, with {file}")
