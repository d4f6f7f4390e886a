"""Results that DVC brought from elsewhere become Snakemake's own.

Snakemake trusts a file by what it noted about it in `.snakemake`: parameters, inputs, their checksums, when it was
written. DVC does not carry that, so a pulled result would be made again. `keep_origins` writes the notes and hashes to
`results/<scale>/origins.json`, which is versioned with the results; `adopt_restored` gives them back. Only a file that
is bit for bit the one described is adopted, and with the parameters it was made with, not those of today: whatever
was edited since, before or after the pull, is noticed.
"""

import argparse
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake.persistence import MetadataRecord
from snakemake.persistence.file import FilePersistence

from pipeline.files import digest, is_held, write_json
from pipeline.records import EvalJobRecord, EvalResult, TrainRecord, read_record
from pipeline.results import ROOT, results_of

OUTPUTS = ("data", "runs", "evals", "tables", "figures", "report")

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
    folders = [results_of(scale).folder / name for name in OUTPUTS]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)  # DVC wants every one of them, also where no study has a figure
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in paths:
        file = str(path.relative_to(ROOT))
        if note := notes.read(file):
            origins[file] = {"sha256": {file: digest(path), **_made_with(path)}, "note": note}
    write_json(results_of(scale).origins, origins)
    return len(origins)


def _made_with(path: Path) -> dict[str, str]:
    """What belongs to an output and is none itself: weights and curves of a run, results of an evaluation job."""
    made: dict[Path, str] = {}
    if path.name == "train.json":
        made = {path.with_name(name): known for name, known in read_record(path, TrainRecord).files.items()}
    elif path.parent.name == "evals":
        for name, known in read_record(path, EvalJobRecord).results.items():
            result = path.parent / name / "result.json"
            made[result] = known
            made |= {result.with_name(file): sha for file, sha in read_record(result, EvalResult).files.items()}
    return {str(file.relative_to(ROOT)): known for file, known in made.items()}


def adopt_restored(scale: str) -> None:
    """Give Snakemake its notes on files that DVC restored; where there are none, this costs next to nothing."""
    if is_held(results_of(scale).workflow_lock):
        return  # files that another Snakemake has just written have no note yet, and are no strangers
    notes = Notes()
    unknown = {file: origin for file, origin in _origins(scale).items() if not notes.read(file)}
    adopted = {file: origin["note"] for file, origin in unknown.items() if _is_intact(origin["sha256"])}
    for file, note in adopted.items():
        # Inputs older than outputs, as they were; not allowed in a cache of somebody else, where checksums must do.
        with suppress(PermissionError):
            os.utime(ROOT / file, (note["endtime"], note["endtime"]))
    # Links to one file in the cache share its time, so this comes after all of them.
    for file, note in adopted.items():
        notes.write(file, note)
    for file in unknown.keys() - adopted.keys():
        logger.warning("%s or what belongs to it is not as recorded; `dvc checkout` restores it", file)


def _origins(scale: str) -> dict[str, dict[str, Any]]:
    """What is recorded of the files that are there."""
    path = results_of(scale).origins
    try:
        origins = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        logger.warning("%s is damaged and left aside; `dvc checkout` restores it", path)
        return {}
    return {file: origin for file, origin in origins.items() if (ROOT / file).is_file()}


def _is_intact(hashes: dict[str, str]) -> bool:
    return all(digest(ROOT / file) == known for file, known in hashes.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workflow.restore", description="Write down how each result was made, for `dvc pull` elsewhere."
    )
    parser.add_argument("--scale", required=True, help="a file of configs/scale")
    count = keep_origins(parser.parse_args().scale)
    print(f"{count} files can be restored elsewhere with what Snakemake knows of them")  # noqa: T201


if __name__ == "__main__":
    main()
