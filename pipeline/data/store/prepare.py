"""Verify a data set once: every sample is decoded, every count compared, every problem reported at once.

The manifest is written last and only for a set without problems: where it exists, the set was good.
It holds no times, so the same data gives the same bytes; fingerprints do not depend on the folder.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.config import shown, values_before
from pipeline.core.errors import DataError
from pipeline.core.files import held_in_turn, lock_of, remove_drafts, write_atomic
from pipeline.data.kind import BaseDataConfig, DataKind, Sources, kind_of, maker_code, reference_run, source_set
from pipeline.data.samples import Split, SplitName
from pipeline.data.store.manifest import MANIFEST, Manifest, SplitSummary, read_manifest, write_manifest
from pipeline.data.store.opening import data_error, find_samples
from pipeline.results.records import short_digest

if TYPE_CHECKING:
    from pipeline.data.store.cache import SplitCache

log = logging.getLogger(__name__)


def prepare(
    cfg: BaseDataConfig,
    folder: Path,
    out: Path,
    workers: int = 0,
    progress: bool = True,
    sources: Sources | None = None,
    cache: Path | None = None,
    seen: Sequence[BaseDataConfig] = (),
) -> Manifest:
    """Verify the set in `folder`; write manifest.json and the file lists to `out`; return the manifest.

    A set that is made from others is made first, as far as it is not there; `sources` opens those others. With a
    `cache`, the samples are kept there in a form that is faster to read, for each way in which they are `seen`.
    While another process prepares the set, this one waits for it.
    """
    return _Preparation(cfg, folder, out, workers, progress, sources, cache, tuple(seen) or (cfg,)).run()


def fill_cache(
    cfg: BaseDataConfig,
    folder: Path,
    out: Path,
    cache: Path,
    workers: int = 0,
    progress: bool = True,
    seen: Sequence[BaseDataConfig] = (),
) -> Manifest:
    """Write what a cache lacks of a set that is verified, on the disk of another machine, say; return the manifest.

    Runs that use the set may start meanwhile.
    """
    return _Preparation(cfg, folder, out, workers, progress, None, cache, tuple(seen) or (cfg,)).fill()


@dataclass(frozen=True)
class _Preparation:
    """What one call of `prepare` was asked for."""

    cfg: BaseDataConfig
    folder: Path
    out: Path
    workers: int
    progress: bool
    sources: Sources | None
    cache: Path | None
    seen: tuple[BaseDataConfig, ...]

    def run(self) -> Manifest:
        with held_in_turn(lock_of(self.out), f"data set {self.cfg.name}") as has_waited:
            if has_waited and (found := self._done_by_another()):
                log.info("%s is prepared already", self.cfg.name)
                return found
            before = _taken_away(self.out / MANIFEST)
            with self._make():
                return self._verified(before)

    def _done_by_another(self) -> Manifest | None:
        """The manifest of the process that this one has waited for, if it was asked for the same."""
        try:
            manifest = read_manifest(self.out / MANIFEST)
            find_all_samples(self.cfg, self.folder, self.out)
        except DataError:
            return None
        if reason_to_prepare(manifest, self.cfg, self._source_digests() or {}):
            return None
        return None if any(kept.problem() for _, kept in self._caches(manifest)) else manifest

    @cached_property
    def is_made_here(self) -> bool:
        """Whether the files are made from another set: a folder with published ones is read as it is."""
        return source_set(self.cfg) is not None and not kind_of(self.cfg).is_there(self.folder)

    def _source_digests(self) -> dict[str, str] | None:
        return source_digests(self.cfg, self.sources) if self.sources and self.is_made_here else None

    @contextmanager
    def _make(self) -> Iterator[None]:
        """Make a set that is made from another, as far as it is not there; nobody else makes it until it is verified.

        Its folder belongs to no scale. The parts of a set share a folder and are made at the same time.
        """
        kind, name = kind_of(self.cfg), self.cfg.name
        if self.sources is None or not self.is_made_here:
            yield
            return
        with held_in_turn(lock_of(self.folder.with_name(name)), f"the files of {name}"):
            remove_drafts(self.folder)
            kind.make(self.folder, self.sources, self.workers, self.progress)
            yield

    def _verified(self, before: Manifest | None) -> Manifest:
        cfg, kind, folder = self.cfg, kind_of(self.cfg), self.folder
        if not folder.is_dir():
            raise data_error(cfg, folder, [f"folder {folder} not found"])
        splits = {split: kind.read(folder, split) for split in cfg.splits}
        problems = _layout_problems(kind, splits)
        looks = kind.inspect(splits, self.workers, self.progress)
        for name, found in looks.items():
            problems += kind.sample_problems(splits[name].samples, found)
        if problems:
            raise data_error(cfg, folder, problems)
        summaries = {name: kind.summary(split.samples, looks[name]) for name, split in splits.items()}
        manifest = _manifest(cfg, folder, summaries, kind.class_names(splits), self._source_digests())
        # The same data elsewhere: unchanged bytes, and so nothing that depends on them is out of date.
        if before and _content(before) == _content(manifest):
            manifest = before
        for file, content in kind.lists(splits).items():
            write_atomic(self.out / file, content.encode() if isinstance(content, str) else content)
        self._write_caches(manifest, splits, looks)
        write_manifest(self.out / MANIFEST, manifest)
        return manifest

    def fill(self) -> Manifest:
        """Write the caches of a set that is verified."""
        manifest = read_manifest(self.out / MANIFEST)
        missing = dict.fromkeys(name for name, kept in self._caches(manifest) if kept.problem())
        splits = {name: Split(find_samples(self.cfg, self.folder, name, self.out)) for name in missing}
        looks = kind_of(self.cfg).inspect(splits, self.workers, self.progress) if splits else {}
        self._write_caches(manifest, splits, looks)
        return manifest

    def _write_caches(
        self, manifest: Manifest, splits: Mapping[SplitName, Split], looks: Mapping[SplitName, list[Any]]
    ) -> None:
        for name, kept in self._caches(manifest):
            if name in splits:
                kept.write(splits[name].samples, [look.size for look in looks[name]], self.workers, self.progress)

    def _caches(self, manifest: Manifest) -> "Iterator[tuple[SplitName, SplitCache]]":
        """What is kept of each split in the cache folder, for each way in which it is seen."""
        for view, name in product(self.seen, self.cfg.splits):
            if self.cache and (kept := kind_of(view).cache(self.cache, name, manifest)):
                yield name, kept


def _taken_away(path: Path) -> Manifest | None:
    """The old manifest, if it can be read; a `prepare` that is killed or fails must not leave an old proof behind."""
    try:
        return read_manifest(path)
    except DataError:
        return None
    finally:
        path.unlink(missing_ok=True)


def _layout_problems(kind: DataKind, splits: dict[SplitName, Split]) -> list[str]:
    problems = [problem for split in splits.values() for problem in split.problems]
    for name, split in splits.items():
        problems += kind.count_problems(name, split)
    return list(dict.fromkeys(problems + kind.split_problems(splits)))


def _manifest(
    cfg: BaseDataConfig,
    folder: Path,
    summaries: dict[SplitName, SplitSummary],
    classes: list[str],
    source_digests: dict[str, str] | None,
) -> Manifest:
    all_splits = "".join(f"{name} {summaries[name].fingerprint}\n" for name in sorted(summaries))
    return Manifest(
        name=cfg.name,
        source=getattr(cfg, "source", cfg.kind),
        folder=shown(folder),
        fingerprint=hashlib.sha256(all_splits.encode()).hexdigest(),
        splits=summaries,
        classes=classes,
        counted=counts_of(cfg),
        source_digests=source_digests,
    )


def counts_of(cfg: BaseDataConfig) -> dict[str, Any]:
    """What the config says of a set and `prepare` compares with it."""
    return json.loads(json.dumps({key: getattr(cfg, key) for key in cfg.identity_fields}))


def reason_to_prepare(manifest: Manifest, cfg: BaseDataConfig, sources: Mapping[str, str | None]) -> str:
    """Why to prepare a set again: another config, or made with something else than `sources` are now; else empty.

    A source that is not on this machine is no reason. Whether the folder holds the samples: `find_all_samples`.
    """
    before, now, kind = manifest.counted, counts_of(cfg), kind_of(cfg)
    if before is not None:
        # A manifest from before a field was added means what was done without it.
        before = {key: value for key, value in values_before(type(cfg)).items() if key in now} | before
    if before is not None and before != now:
        changes = [f"{key} {before.get(key)}, expected {now[key]}" for key in now if before.get(key) != now[key]]
        return f"prepared as {', '.join(changes)}"
    for split, found in manifest.splits.items():
        if not kind.is_count(split, found.count):
            return f"prepared with {found.count} {split} {kind.unit}, expected {kind.expected()}"
    for source, known in (manifest.source_digests or {}).items():
        if (found_now := sources.get(source)) and found_now != known:
            return f"made with {source} {short_digest(known)}, which is {short_digest(found_now)} now"
    return ""


def find_all_samples(cfg: BaseDataConfig, folder: Path, out: Path) -> None:
    """Raise a DataError unless the folder holds the samples that were verified."""
    for split in cfg.splits:
        find_samples(cfg, folder, split, out)


def source_digests(cfg: BaseDataConfig, sources: Sources) -> dict[str, str]:
    """The samples, the weights and the code that a set is made with, as they are now."""
    source, run = source_set(cfg), reference_run(cfg)
    assert source
    train = {f"{source}/train": sources.fingerprint(source, "train")} if "train" in cfg.splits else {}
    weights = {run: sources.weights(run)} if run else {}
    return {source: sources.fingerprint(source), **train, **weights, kind_of(cfg).maker: maker_code(cfg)}


def _content(manifest: Manifest) -> dict:
    """Everything but where the samples were verified first."""
    return manifest.model_dump(mode="json", exclude={"folder"})
