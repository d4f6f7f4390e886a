"""Names of classes: which label of one set is which label of another, by the names that both give their classes."""

from collections import Counter
from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.data.samples import shortened
from pipeline.data.store.manifest import read_manifest
from pipeline.results import prepare_command


def labels_in(source: Path, target: Path) -> list[int]:
    """For each label of the set with manifest `source`, the label of the class of the same name in `target`."""
    names, known = class_names(source), class_names(target)
    ours, theirs = source.parent.name, target.parent.name
    repeated = [name for name, count in Counter(known).items() if count > 1]
    if repeated:
        raise DataError(f"classes of {ours} and {theirs} cannot be matched: {theirs} has {shortened(repeated)} twice")
    label_of_name = {name: label for label, name in enumerate(known)}
    lacking = [name for name in names if name not in label_of_name]
    if lacking:
        raise DataError(
            f"classes of {ours} and {theirs} do not match: found {len(lacking)} of {len(names)} classes of {ours} that "
            f"{theirs} does not have: {shortened(lacking, 20)}; expected names such as {shortened(known, 3)}; use "
            f"another set, or rename the classes of {ours} and run `{prepare_command(source)}`"
        )
    return [label_of_name[name] for name in names]


def class_names(manifest: Path) -> list[str]:
    """A set's own names of its classes, in the order of labels."""
    found = read_manifest(manifest)
    if found.classes is None:
        raise DataError(
            f"{manifest} has no names of classes: it was written before they were kept; "
            f"run `{prepare_command(manifest)}` again"
        )
    if not found.classes:
        raise DataError(f"data set {found.name!r} (source {found.source}) has no names of classes in its files")
    return found.classes
