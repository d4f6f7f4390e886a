"""Downloads a public data set: its files, their checksums, its folder, and a look at it with the project's own reader.

Everything happens in a folder beside the place of the set, .NAME.download; the set is moved to its place when it is
complete. A kill at any moment leaves no half of a set, and the same command continues.
"""

import gzip
import logging
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.config import CONFIGS, Layers, read_yaml, shown
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.files import explained, held, require_space
from pipeline.data.kind import BaseDataConfig, kind_of, parse_data
from pipeline.data.store.archives import extract, unpacked_size
from pipeline.data.store.opening import listed
from pipeline.download.fetch import Download, check_digest, fetch
from pipeline.published_sets.find import is_set
from pipeline.published_sets.sets import RemoteFile, SetEntry, how_to_get, in_units

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Staging:
    """The folder in which a set comes together."""

    folder: Path

    @property
    def whole(self) -> Path:
        """The set, as far as it is there."""
        return self.folder / "set"

    @property
    def unpacking(self) -> Path:
        return self.folder / "unpacking"

    def archive(self, file: RemoteFile) -> Path:
        """Where a file is downloaded to; one that was brought here by hand is used as well."""
        return self.folder / file.name.replace("/", "-")

    def placed(self, file: RemoteFile) -> Path:
        """Exists as soon as the content of a file is in the set."""
        return self.folder / "placed" / file.name.replace("/", "-")

    def needed(self, entry: SetEntry) -> float:
        """Bytes that the rest of the download and of the unpacked set takes."""
        rest = [file for file in entry.files if not self.placed(file).exists()]
        archives = [self.archive(file) for file in rest]
        parts = [path for each in archives for path in (each, each.with_name(f"{each.name}.part")) if path.exists()]
        size, received = sum(file.size for file in rest), sum(path.stat().st_size for path in parts)
        return max(0, size - received) + (entry.unpacked or 0) * size / entry.download_size


def staging_of(target: Path) -> Staging:
    return Staging(target.with_name(f".{target.name}.download"))


def obtain(
    cfg: BaseDataConfig,
    entry: SetEntry,
    target: Path,
    mirror: str | None = None,
    progress: bool = True,
    pause_s: float = 2.0,
) -> bool:
    """Download a set to `target`, or continue; returns whether there was anything to do.

    A set must have the layout and the counts of its config. One that is there gets single files that it lacks, such as
    a tokenizer.
    """
    staging = staging_of(target)
    if target.is_dir() and any(target.iterdir()):
        if lacking := _single_files_lacking(entry, target):
            with _begun(staging, entry):
                for file in lacking:
                    _download(staging, file, entry, mirror, progress, pause_s)
                    with explained(target):
                        (target / file.name).parent.mkdir(parents=True, exist_ok=True)
                        os.replace(staging.archive(file), target / file.name)
        if problems := problems_of(cfg, target):
            raise DataError(
                f"{target} exists and is not {entry.title}: {problems[0]}; empty it or name another folder with --to"
            )
        shutil.rmtree(staging.folder, ignore_errors=True)  # what a process left that was killed in the end
        return bool(lacking)
    with _begun(staging, entry):
        require_space(staging.folder, staging.needed(entry), f"{entry.title} (download and unpacked)")
        for file in entry.files:
            if not staging.placed(file).exists():
                _download(staging, file, entry, mirror, progress, pause_s)
                _place(staging, file, progress)
        _check(cfg, entry, staging)
        with explained(target):
            os.rename(staging.whole, target)
    shutil.rmtree(staging.folder, ignore_errors=True)
    return True


def _single_files_lacking(entry: SetEntry, folder: Path) -> list[RemoteFile]:
    """Files of a set that are no archives and not there; none where the folder has not the layout of the set."""
    singles = [file for file in entry.files if not file.is_archive] if is_set(folder, entry) else []
    return [file for file in singles if not (folder / file.name).exists()]


@contextmanager
def _begun(staging: Staging, entry: SetEntry) -> Iterator[None]:
    """The staging folder exists, and no other process downloads this set."""
    with explained(staging.folder):
        staging.folder.mkdir(parents=True, exist_ok=True)
    with held(staging.folder / "lock", f"the download of {entry.title}"):
        yield


def refuse_by_hand(name: str, entry: SetEntry) -> None:
    """Say where to get a set that cannot be downloaded for the user."""
    if entry.by_hand:
        raise ConfigError(
            f"{entry.title} cannot be downloaded for you; get it from {how_to_get(name, None, '')}. Then name its "
            f"folder in the site file (`data: {{{name}: /path}}`), or put it below its `data_root` as {entry.folder}"
        )


def shipped_config(name: str) -> BaseDataConfig:
    """The config of a set in configs/data, as it is without a scale."""
    path = CONFIGS / "data" / f"{name}.yaml"
    return parse_data(Layers((shown(path), read_yaml(path))).below("data"), "data.")


def problems_of(cfg: BaseDataConfig, folder: Path) -> list[str]:
    """What the project's own reader finds wrong with a folder; nothing is decoded."""
    kind, problems = kind_of(cfg), []
    for split in cfg.splits:
        found = kind.read(folder, split)
        problems += found.problems + kind.count_problems(split, found)
    return list(dict.fromkeys(problems))


def _advice(staging: Staging, file: RemoteFile, entry: SetEntry) -> str:
    return (
        f"name a mirror with --mirror, or get {file.name} by hand ({entry.page}), save it as {staging.archive(file)} "
        "and run the same command again"
    )


def _download(
    staging: Staging, file: RemoteFile, entry: SetEntry, mirror: str | None, progress: bool, pause_s: float
) -> None:
    archive, advice = staging.archive(file), _advice(staging, file, entry)
    if not archive.exists():
        size = file.size if file.is_exact else None
        fetch(Download(file.address_on(mirror), archive, size, advice), progress, pause_s)
    if file.digest:
        check_digest(archive, file.digest, advice, progress)


def _place(staging: Staging, file: RemoteFile, progress: bool) -> None:
    """Move the content of a file into the set; one that was placed by half before a kill is placed again."""
    archive, marker = staging.archive(file), staging.placed(file)
    with explained(staging.folder):
        staging.whole.mkdir(exist_ok=True)
        marker.parent.mkdir(exist_ok=True)
        if file.is_archive:
            shutil.rmtree(staging.unpacking, ignore_errors=True)
            staging.unpacking.mkdir()
            with _damage_explained(archive):
                require_space(staging.folder, unpacked_size(archive), f"unpacking {archive.name}")
                extract(archive, staging.unpacking, progress)
            _merge(staging.unpacking / file.top, staging.whole, archive)
            shutil.rmtree(staging.unpacking)
        else:
            (staging.whole / file.name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(archive, staging.whole / file.name)
        marker.touch()
        archive.unlink()


@contextmanager
def _damage_explained(archive: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise DataError(
            f"{archive.name}: damaged or unsafe archive ({error}); it was deleted. Run the same command again"
        ) from None


def _merge(source: Path, whole: Path, archive: Path) -> None:
    """Move what an archive held into the set, replacing what a killed process moved before."""
    if not source.is_dir():
        raise DataError(f"{archive.name}: folder {source.name} not found in it: the published archive has changed")
    for path in source.iterdir():
        there = whole / path.name
        shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
        os.rename(path, there)


def _check(cfg: BaseDataConfig, entry: SetEntry, staging: Staging) -> None:
    """Let the reader look at the whole set. A wrong one never gets to its place, and is not downloaded again."""
    log.info("%s: reading its lists and counting", entry.title)
    if problems := problems_of(cfg, staging.whole):
        raise DataError(
            f"{entry.title} was downloaded to {staging.whole} and is not what configs/data/{cfg.name}.yaml expects\n"
            + "\n".join(f"  - {line}" for line in listed(problems))
            + "\nwhat to do: if that config was edited, correct it and run the same command again; if not, the "
            f"published files have changed (see {entry.page}): delete {staging.folder}"
        )


def summary(entry: SetEntry) -> str:
    """What is about to be downloaded."""
    files = ", ".join(f"{file.name} ({in_units(file.size)})" for file in entry.files)
    unchecked = [file.name for file in entry.files if not file.digest]
    note = f"\nwithout a published checksum: {', '.join(unchecked)}" if unchecked else ""
    return f"{entry.title}: {files}\n{entry.sizes()}\nlicence: {entry.licence}\npage: {entry.page}{note}"
