"""The published lists of the classes of ImageNet-A and ImageNet-O (Hendrycks et al., CVPR 2021).

An evaluation finds the classes of a set by their WordNet ids; with the list it knows that none is missing or wrong.
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.data.samples import shortened

LISTS = Path(__file__).parent / "class_lists"
NUM_CLASSES = 1000  # of ImageNet-1K, among whose sorted ids the lists count


def published_classes(source: str) -> list[int] | None:
    """Indices of the classes of a published set; None for a set without such a list."""
    path = LISTS / f"{source}.txt"
    if not path.exists():
        return None
    lines = path.read_text(encoding="ascii").splitlines()
    return [int(word) for line in lines if not line.startswith("#") for word in line.split()]


def check_classes(source: str, columns: Sequence[int], names: Sequence[str]) -> None:
    """Refuse classes (columns among `names`, a model's own) that are not those of the published set."""
    listed = published_classes(source)
    if listed is None or len(names) != NUM_CLASSES or sorted(columns) == listed:
        return
    extra, lacking = sorted(set(columns) - set(listed)), sorted(set(listed) - set(columns))
    wrong = [f"{shortened([names[index] for index in extra])} should not be there"] if extra else []
    wrong += [f"{shortened([names[index] for index in lacking])} missing"] if lacking else []
    raise DataError(
        f"the classes of {source} are not the published ones: {'; '.join(wrong)}; expected the {len(listed)} classes "
        f"of {LISTS.name}/{source}.txt: extract the published archive again, and name its folder in the site file"
    )
