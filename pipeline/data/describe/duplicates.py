"""Images that occur more than once in a set: the same pixels, in whatever files.

In train and in val they make validation too good; in two classes their labels contradict each other.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.data.samples import Split, SplitName, one_line, shortened
from pipeline.data.store.inspection import ImageInspection

SHOWN = 3


class Copy(NamedTuple):
    """One of several files with the same pixels."""

    split: SplitName
    name: str
    label: int


def duplicate_notes(
    splits: Mapping[SplitName, Split], looks: Mapping[SplitName, Sequence[ImageInspection]]
) -> list[str]:
    """What to tell about duplicates, one line for each kind of harm; empty without any."""
    groups = find_duplicates(splits, looks)
    if not groups:
        return []
    count, files = len(groups), sum(map(len, groups))
    lines = [f"duplicates: found {count} image{'s' * (count > 1)} more than once, in {files} files: {_shown(groups)}"]
    leaked = [group for group in groups if len({copy.split for copy in group}) > 1]
    if leaked:
        lines.append(
            f"duplicates: {len(leaked)} of {count} in train and in val: {_shown(leaked, with_split=True)}; validation "
            "will be too good; delete one of each and describe the folder again"
        )
    contradicting = [group for group in groups if len({copy.label for copy in group}) > 1]
    if contradicting:
        lines.append(
            f"duplicates: {len(contradicting)} of {count} in several classes: {_shown(contradicting)}; the labels "
            "contradict each other; delete the wrong ones and describe the folder again"
        )
    return lines


def find_duplicates(
    splits: Mapping[SplitName, Split], looks: Mapping[SplitName, Sequence[ImageInspection]]
) -> list[list[Copy]]:
    """Files with equal pixels, in the order of the set."""
    found: dict[str, list[Copy]] = {}
    for split, inspections in looks.items():
        samples = splits[split].samples
        labels = getattr(samples, "labels", None)  # images with objects have none of their own
        for index, look in enumerate(inspections):
            found.setdefault(look.pixels, []).append(Copy(split, samples.name(index), labels[index] if labels else 0))
    return [copies for pixels, copies in found.items() if pixels and len(copies) > 1]


def _shown(groups: Sequence[Sequence[Copy]], with_split: bool = False) -> str:
    named = [[f"{copy.name} ({copy.split})" if with_split else copy.name for copy in group] for group in groups]
    return one_line(shortened([" = ".join(group) for group in named], SHOWN))
