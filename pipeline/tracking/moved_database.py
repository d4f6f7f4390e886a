"""A copied or moved SQLite database: its artifacts are next to it, wherever it is now.

MLflow stores absolute paths of artifacts and has no call to change them, so a copied project would write into the
folder of the original. This is the only place that edits MLflow's tables. A server decides itself where artifacts go,
and is never touched.
"""

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlparse

SCHEME = "sqlite:///"
LOCK_S = 60  # how long to wait for another process that writes


def database_of(uri: str) -> Path | None:
    """The file of a SQLite database; None for a server or another database."""
    return Path(uri.removeprefix(SCHEME)).absolute() if uri.startswith(SCHEME) else None


def is_moved(location: str, artifacts: Path) -> bool:
    """Whether the location of an experiment is another folder than this one."""
    place = urlparse(location)
    return place.scheme in ("", "file") and Path(unquote(place.path)).resolve() != artifacts.resolve()


def move_artifacts(database: Path, old: str, artifacts: Path, stale_tags: Collection[str]) -> None:
    """Replace the old location by this folder, in every experiment and run that has it.

    The files may not have been copied along: without these tags, they are attached again.
    """
    new, prefix = artifacts.as_uri(), (len(old) + 1, f"{old}/")
    moved = "select run_uuid from runs where substr(artifact_uri, 1, ?) = ?"
    marks = ", ".join("?" * len(stale_tags))
    with closing(sqlite3.connect(database, timeout=LOCK_S)) as connection, connection:
        connection.execute(f"delete from tags where key in ({marks}) and run_uuid in ({moved})", (*stale_tags, *prefix))
        connection.execute(
            f"update runs set artifact_uri = ? || substr(artifact_uri, ?) where run_uuid in ({moved})",
            (new, len(old) + 1, *prefix),
        )
        connection.execute("update experiments set artifact_location = ? where artifact_location = ?", (new, old))
