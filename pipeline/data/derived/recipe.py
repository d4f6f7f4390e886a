"""Generated sets: `made.json` next to the files says what they were made from, with a digest of each file.

This record is called recipe here (training recipes are something else). A set is made again when its recipe, which
includes a digest of the code that makes it, or any of its files has changed.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.core.files import digest, draft_of, explained, remove_folder, write_json

RECIPE = "made.json"


def make_whole(folder: Path, recipe: dict[str, Any], write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, unless it exists, was filled according to this recipe and is unchanged.

    A draft of the folder is filled and moved into place when complete: a kill never leaves half a set, or two mixed.
    """
    if read_recipe(folder) == {**recipe, "files": _digests_below(folder)}:
        return
    draft = draft_of(folder)
    with explained(draft):
        draft.mkdir(parents=True)
    try:
        write(draft)
        write_json(draft / RECIPE, {**recipe, "files": _digests_below(draft)})
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    remove_folder(folder)
    with explained(folder):
        draft.replace(folder)


def read_recipe(folder: Path) -> dict[str, Any] | None:
    """Return what the files of a folder were made from; None if they were not generated, or the recipe is damaged."""
    try:
        found = json.loads((folder / RECIPE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _digests_below(folder: Path) -> dict[str, str | None]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / RECIPE)
    return {path.relative_to(folder).as_posix(): digest(path) for path in paths}
