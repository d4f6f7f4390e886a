"""What a run would be trained from now: the data as they were prepared last, and the weights that it starts from."""

from pipeline.core.config import FILE
from pipeline.core.errors import CheckpointError
from pipeline.core.files import digest
from pipeline.data.store.manifest import read_manifest
from pipeline.results import RunFolder
from pipeline.results.records import Inputs
from pipeline.site import Site, weights_path


def find_inputs(paths: RunFolder, site: Site, data: str, init: str | None) -> Inputs:
    """A weight file from elsewhere is read for this: ask once."""
    return Inputs(data=read_manifest(paths.manifest(data)).fingerprint, init=_init_digest(paths, site, init))


def _init_digest(paths: RunFolder, site: Site, init: str | None) -> str | None:
    if init is None:
        return None
    if not init.startswith(FILE):
        start = paths.sibling(init)
        return start.trained().files[start.encoder.name]
    path = weights_path(site, init)
    found = digest(path)
    if found is None and (record := paths.record()):  # a finished run does not need the file
        found = record.inputs.init
    if found is None:
        raise CheckpointError(f"{path} not found; expected the weights that init {init} names: fetch or move the file")
    return found
