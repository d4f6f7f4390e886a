"""Results that DVC brought from elsewhere become Snakemake's own.

Snakemake trusts a file by what it noted about it in `.snakemake`: parameters, inputs, their checksums, when it was
written. DVC does not carry that, so a pulled result would be made again. `keep_origins` writes the notes, with the hash
of each file, to `results/<scale>/origins.json`, which is versioned with the results; `adopt_restored` gives them back.
Only a file that is bit for bit the one described, below an output that is as dvc.lock says, is adopted, and with the
parameters it was made with, not those of today: whatever was edited since, before or after the pull, is noticed.
"""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from snakemake.persistence import MetadataRecord
from snakemake.persistence.file import FilePersistence

from pipeline.engine.folders import digest
from pipeline.files import is_held, write_json
from pipeline.study.graph import RESULTS, ROOT

ORIGINS = "origins.json"
OUTPUTS = ("data", "runs", "tables", "report")

logger = logging.getLogger(__name__)


class Notes:
    """What Snakemake knows about files, which are named as in the rules: from the root of the project."""

    def __init__(self) -> None:
        self.kept = FilePersistence(path=ROOT / ".snakemake")

    def read(self, file: str) -> dict[str, Any] | None:
        """The note on this file as it is now, if there is one."""
        record = self.kept._read_record(file)
        is_current = record and record.endtime == (ROOT / file).stat().st_mtime
        return dict(record.items()) if is_current else None

    def write(self, file: str, note: dict[str, Any]) -> None:
        written = {**note, "endtime": (ROOT / file).stat().st_mtime}
        self.kept._write_record(file, MetadataRecord.model_validate(written))
        self.kept._unmark_incomplete(file)


def keep_origins(scale: str) -> int:
    """Write down how the results of a scale were made; returns how many files that tells of."""
    notes, origins = Notes(), {}
    paths = [path for name in OUTPUTS for path in sorted((RESULTS / scale / name).rglob("*")) if path.is_file()]
    for path in paths:
        file = str(path.relative_to(ROOT))
        if note := notes.read(file):
            origins[file] = {"sha256": digest(path), "note": note}
    write_json(RESULTS / scale / ORIGINS, origins)
    return len(origins)


def adopt_restored(scale: str) -> None:
    """Give Snakemake its notes on files that DVC restored; where there are none, this costs next to nothing."""
    if is_held(RESULTS / scale / "workflow.lock"):
        return  # files that another Snakemake has just written have no note yet, and are no strangers
    notes = Notes()
    unknown = {file: origin for file, origin in _origins(scale).items() if not notes.read(file)}
    same = {file: origin["note"] for file, origin in unknown.items() if digest(ROOT / file) == origin["sha256"]}
    outs = _outs_as_locked() if same else []
    adopted = {file: note for file, note in same.items() if any(Path(file).is_relative_to(out) for out in outs)}
    for file, note in adopted.items():
        # Inputs older than outputs, as they were; not allowed in a cache of somebody else, where checksums must do.
        with suppress(PermissionError):
            os.utime(ROOT / file, (note["endtime"], note["endtime"]))
    for file, note in adopted.items():
        notes.write(file, note)
    if same:
        logger.info("%d of %d restored files are as DVC keeps them and taken over", len(adopted), len(same))


def _origins(scale: str) -> dict[str, dict[str, Any]]:
    """What is known of the files that are there."""
    path = RESULTS / scale / ORIGINS
    try:
        origins = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        logger.warning("%s is damaged and left aside; `dvc checkout` restores it", path)
        return {}
    return {file: origin for file, origin in origins.items() if (ROOT / file).is_file()}


def _outs_as_locked() -> list[str]:
    """The outputs that are in the workspace as dvc.lock has them; none if DVC cannot tell."""
    command = [sys.executable, "-m", "dvc", "data", "status", "--json", "--unchanged"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        logger.warning("restored results are not taken over: dvc said %s", result.stderr.strip())
        return []
    status = json.loads(result.stdout)
    # Unchanged since the last commit, or recorded since; either way dvc.lock has them.
    known = chain(status.get("unchanged", []), *status.get("committed", {}).values())
    changed = list(chain(*status.get("uncommitted", {}).values()))
    return [out for out in known if out not in changed]
