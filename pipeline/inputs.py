"""What a run would be trained from now: the data as they were prepared last, and the weights that it starts from."""

import json
from pathlib import Path
from typing import Any

from pipeline.config import FILE
from pipeline.errors import CheckpointError, DataError
from pipeline.files import digest
from pipeline.results import Inputs, RunFolder
from pipeline.site import Site, weights_path


def find_inputs(paths: RunFolder, site: Site, data: str, init: str | None) -> Inputs:
    """A weight file from elsewhere is read for this: ask once."""
    return Inputs(data=read_manifest(paths, data)["fingerprint"], init=_init_digest(paths, site, init))


def read_manifest(paths: RunFolder, data: str) -> dict[str, Any]:
    path: Path = paths.manifest(data)
    if not path.exists():
        raise DataError(f"{path} not found; run `python -m pipeline prepare --data {data}` first")
    return json.loads(path.read_text())


def _init_digest(paths: RunFolder, site: Site, init: str | None) -> str | None:
    if init is None:
        return None
    if not init.startswith(FILE):
        start = paths.sibling(init)
        return start.trained().files[start.encoder.name]
    path = weights_path(site, init)
    found = digest(path)
    if found is None:
        raise CheckpointError(f"{path} not found; expected the weights that init {init} names: fetch or move the file")
    return found
