"""The manifest of a verified data set: what `prepare` writes, and everyone else reads."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field, SerializeAsAny, ValidationError

from pipeline.core.config import Strict, shown
from pipeline.core.errors import DataError
from pipeline.core.files import read_sealed, write_sealed
from pipeline.data.samples import SplitName
from pipeline.data.store.stamp import Stamp
from pipeline.results import prepare_command

MANIFEST = "manifest.json"


class SplitSummary(Strict):
    """One split as it was verified; a kind of data may say more of it."""

    model_config = ConfigDict(extra="allow")

    count: int
    bytes: int
    # Of every name, label and content: the same data has the same fingerprint in any folder.
    fingerprint: str
    stamp: Stamp


class ImageSummary(SplitSummary):
    """A split of classified images."""

    model_config = ConfigDict(extra="forbid")

    classes: int
    per_class_min: int
    per_class_max: int
    # (width, height), each over all images.
    min_size: tuple[int, int]
    max_size: tuple[int, int]
    modes: dict[str, int]


# Read as the first of them that fits.
Summary = SerializeAsAny[Annotated[ImageSummary | SplitSummary, Field(union_mode="left_to_right")]]


class Manifest(Strict):
    """A verified data set. The same data gives the same bytes: no times, and `folder` stays when the data moves."""

    name: str
    source: str
    # Where these samples were verified first.
    folder: str
    fingerprint: str
    splits: dict[SplitName, Summary]
    # The set's own names of its classes (WordNet ids, folders), in the order of labels; none in a manifest from before
    # they were kept.
    classes: list[str] | None = None
    # What the config counted, and with what a set was made here: digests of samples, weights and code (once `made_of`).
    # None where files were not made here, and in a manifest from before they were kept.
    counted: dict[str, Any] | None = None
    source_digests: dict[str, str] | None = Field(None, validation_alias=AliasChoices("source_digests", "made_of"))


def read_manifest(path: Path) -> Manifest:
    """What `prepare` wrote, or an error that says to run it."""
    try:
        return Manifest.model_validate_json(read_sealed(path))
    except FileNotFoundError:
        raise DataError(f"{shown(path)} not found; run `{prepare_command(path)}` first") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise DataError(
            f"{shown(path)}: found {where}: {problem['msg']}; expected what `prepare` writes today; "
            f"run `{prepare_command(path)}` again"
        ) from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    write_sealed(path, manifest.model_dump(mode="json"))
