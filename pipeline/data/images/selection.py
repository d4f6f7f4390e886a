"""A set with some of its classes alone, or without some: the others are left out and labels count what is left.

Classes keep the order that the source gives them.
"""

import difflib
from collections.abc import Sequence

from pipeline.data.samples import Split, shortened


def with_classes(found: Split, only: Sequence[str] | None, without: Sequence[str] | None) -> Split:
    """The split with the images of the chosen classes; a name that the set does not have is a problem."""
    named = only if only is not None else without
    if named is None or not found.classes:  # a split that could not be read has reported that already
        return found
    key = "only_classes" if only is not None else "without_classes"
    unknown = [_unknown(key, name, found.classes) for name in named if name not in found.classes]
    kept = [] if unknown else [name for name in found.classes if (name in named) == (only is not None)]
    new_label = {found.classes.index(name): label for label, name in enumerate(kept)}
    indices = [index for index, label in enumerate(found.samples.labels) if label in new_label]
    labels = [new_label[found.samples.labels[index]] for index in indices]
    return Split(found.samples.subset(indices, labels), kept, [*found.problems, *unknown])


def _unknown(key: str, name: str, classes: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, classes, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{key}: found no class {name!r} in this set; {hint}its {len(classes)} classes: {shortened(classes, 20)}"
