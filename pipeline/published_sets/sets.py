"""Public data sets: where each is obtained, what it costs in bytes, its terms, and how its folder is recognised.

All facts are in configs/published_sets.yaml. Messages about missing data quote them.
"""

import functools
from pathlib import Path, PurePosixPath

from pydantic import Field, field_validator

from pipeline.core.config import CONFIGS, Layers, Strict, nearest, parse, read_yaml, shown
from pipeline.core.errors import ConfigError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


class RemoteFile(Strict):
    """An archive of a public set, or a single file of it."""

    name: str = Field(description="of the archive; of a single file, its place in the set's folder")
    size: int = Field(gt=0, description="bytes of the download")
    is_exact: bool = Field(True, description="false: the size is approximate")
    address: str | None = Field(None, pattern=r"^https?://", description="null: obtained by hand")
    digest: str | None = Field(
        None, pattern=r"^(md5|sha1|sha256):[0-9a-f]+$", description="checksum of the file; null: none is known"
    )
    top: str = Field("", description="folder in the archive whose content is the set; empty: the whole archive")

    @field_validator("name", "top")
    @classmethod
    def _is_inside(cls, name: str) -> str:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError("expected a path inside the set's folder")
        return name

    @property
    def is_archive(self) -> bool:
        return self.name.endswith(ARCHIVES)

    def address_on(self, mirror: str | None) -> str:
        """The published address, or that of the file of this name on a mirror."""
        assert self.address
        return f"{mirror.rstrip('/')}/{self.name}" if mirror else self.address


class SetEntry(Strict):
    """The facts of one set."""

    title: str
    page: str = Field(description="the official page")
    licence: str
    source: str | None = Field(None, description="`source` in configs; null: the name of the set")
    folder: str = Field(description="name of its folder below a data root")
    names: tuple[str, ...] = Field((), description="other names of this folder; case and punctuation do not count")
    holds: tuple[str, ...] = Field(
        (), description="files by which it is recognised, ` | ` between alternatives; none: it is never looked for"
    )
    lacks: tuple[str, ...] = Field((), description="files and folders that only similar sets have")
    is_distinct: bool = Field(True, description="no other set has these files, so that the folder may have any name")
    not_read: dict[str, str] = Field(default_factory=dict, description="forms of the set that are not read -> why")
    unpacked: int | None = Field(None, gt=0, description="approximate bytes of the folder; null: not known")
    by_hand: str = Field("", description="why it cannot be downloaded for the user; empty: it can")
    files: tuple[RemoteFile, ...] = Field(min_length=1)

    @property
    def download_size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def markers(self) -> list[list[str]]:
        """The content of `holds`, alternatives apart."""
        return [each.split(" | ") for each in self.holds]

    def sizes(self) -> str:
        """What it costs, in words."""
        is_exact = all(file.is_exact for file in self.files)
        unpacked = f", about {in_units(self.unpacked)} unpacked" if self.unpacked else ""
        return f"{'' if is_exact else 'about '}{self.download_size:,} bytes{unpacked}"


class _Catalogue(Strict):
    sets: dict[str, SetEntry]


def catalogue() -> dict[str, SetEntry]:
    """The facts of all sets, by the names of their configs."""
    return _read(CONFIGS / "published_sets.yaml")


@functools.cache
def _read(path: Path) -> dict[str, SetEntry]:
    sets = parse(_Catalogue, Layers((shown(path), {"sets": read_yaml(path)}))).sets
    wrong = [
        f"{shown(path)}: {name}: expected an address of every file, or `by_hand` with the reason"
        for name, entry in sets.items()
        if not entry.by_hand and not all(file.address for file in entry.files)
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))
    return sets


def entry_of(name: str) -> SetEntry:
    """The facts of a set, by the name of its config."""
    known = catalogue()
    if name not in known:
        hint = nearest(name, known, listed_by="python -m pipeline download")
        raise ConfigError(f"no public data set {name!r} in configs/published_sets.yaml; {hint}")
    return known[name]


def how_to_get(name: str, source: str | None, otherwise: str) -> str:
    """Where a set comes from: the facts of this set, or of the published one that it is read like, or `otherwise`."""
    known = catalogue()
    if name in known:
        return f"{_obtained(name, known[name])}{f'; or {otherwise}' if otherwise else ''}"
    published = next((key for key, entry in known.items() if source and source == (entry.source or key)), None)
    if published is None:
        return otherwise
    return f"as the public data set {published}: {_obtained(published, known[published])}; or it is a set of your own"


def _obtained(name: str, entry: SetEntry) -> str:
    if entry.by_hand:
        files = ", ".join(f"{file.name} ({file.size:,} bytes)" for file in entry.files)
        return f"{entry.page}: {files}; {entry.by_hand}; in all {entry.sizes()}; licence: {entry.licence}"
    addresses = ", ".join(str(file.address) for file in entry.files)
    costs = f"{entry.sizes()}; licence: {entry.licence}"
    return f"`python -m pipeline download {name}`: {costs}; page: {entry.page}; by hand: {addresses}"


def in_units(num_bytes: float) -> str:
    """A size as people say it: 237 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"
