"""Opening the splits of a data set of any kind: the samples are those that were verified, or there is an error.

`prepare` verifies a set once; opening a split afterwards does not walk a million files again.
"""

import logging
import platform
from pathlib import Path
from typing import Any

from pipeline.core.config import shown
from pipeline.core.errors import DataError
from pipeline.data.kind import BaseDataConfig, DataKind, kind_of
from pipeline.data.samples import Samples, SplitName
from pipeline.data.store.cache import CacheRecord, ShrunkImages
from pipeline.data.store.manifest import MANIFEST, ImageSummary, Manifest, read_manifest
from pipeline.data.store.stamp import content_differences, differences, is_read_whole, state_of
from pipeline.results import prepare_command

log = logging.getLogger(__name__)

MAX_PROBLEMS = 20


def open_split(cfg: BaseDataConfig, folder: Path, split: SplitName, index: Path | None = None) -> Any:
    """The samples of a split, ready to be decoded; `index` is the folder that `prepare` wrote to, None looks for files.

    With an index the samples are those that were verified, or there is an error.
    """
    samples = find_samples(cfg, folder, split, index)
    samples.preload()
    return samples


def side_for_training(cfg: BaseDataConfig, index: Path) -> int | None:
    """The shorter side that larger train images have in a cache; none if there are no larger ones, or no cache."""
    record = _shrinking(cfg, "train", read_manifest(index / MANIFEST))
    return record.side if record else None


def open_for_training(
    cfg: BaseDataConfig, folder: Path, split: SplitName, index: Path, cache: Path | None, side: int | None
) -> Any:
    """The verified samples of a split. `side`: train images are seen as a cache has them; None: as their files are.

    They come from the cache of this machine, or from files in a way that gives the same pixels.
    """
    samples: Any = find_samples(cfg, folder, split, index)
    manifest = read_manifest(index / MANIFEST)
    shrinking = _shrinking(cfg, split, manifest) if split == "train" else None  # validation resizes to the same side
    is_wanted = cache and (side or not shrinking)
    kept = kind_of(cfg).cache(cache, split, manifest) if cache and is_wanted else None
    problem = kept.problem() if kept else ""
    if kept and not problem:
        return kept.open(samples)
    if kept:
        log.warning(
            "%s: %s on %s, so %s images are decoded from their files: the same pixels, more slowly; "
            "`%s --cache-only` there writes it",
            *(kept.pixels, problem, platform.node(), split, prepare_command(index / MANIFEST)),
        )
    samples.preload()
    return ShrunkImages(samples, shrinking) if shrinking and side else samples


def open_for_evaluation(
    cfg: BaseDataConfig, folder: Path, split: SplitName, index: Path, cache: Path | None, preload: bool
) -> Any:
    """The verified samples of a split to be seen as in validation: from the cache only where that shows the same.

    The cache of a train split may hold smaller images than validation would cut from. `preload`: read a small set
    before it is used, which pays where no loader worker reads ahead.
    """
    samples: Any = find_samples(cfg, folder, split, index)
    manifest = read_manifest(index / MANIFEST)
    kept = kind_of(cfg).cache(cache, split, manifest) if cache else None
    if kept and not kept.problem() and (split == "val" or not _shrinking(cfg, split, manifest)):
        return kept.open(samples)
    if preload:
        samples.preload()
    return samples


def _shrinking(cfg: BaseDataConfig, split: SplitName, manifest: Manifest) -> CacheRecord | None:
    """How a cache changes the images of a split; none if it leaves them as they are, or if such a set has no cache."""
    record, summary = kind_of(cfg).cache_record(split, manifest), manifest.splits[split]
    return record if record and isinstance(summary, ImageSummary) and record.shrinks(summary.max_size) else None


def find_samples(cfg: BaseDataConfig, folder: Path, split: SplitName, index: Path | None = None) -> Samples:
    """The samples of a split, none of them read yet."""
    kind = kind_of(cfg)
    if split not in cfg.splits:
        raise DataError(f"data set {cfg.name!r} has no {split} split (num_train is 0): it is only for evaluations")
    if not folder.is_dir():
        raise data_error(cfg, folder, [f"folder {folder} not found"])
    manifest = read_manifest(index / MANIFEST) if index else None
    found = kind.find(folder, split, index) if index else kind.read(folder, split)
    problems = found.problems + kind.count_problems(split, found)
    if problems:
        raise data_error(cfg, folder, problems)
    if index and manifest:
        _check_stamp(kind, found.samples, manifest, split, folder, index / MANIFEST)
    return found.samples


def compare_folder(cfg: BaseDataConfig, folder: Path, index: Path, known_state: str = "") -> str:
    """Refuse a folder that no longer holds what was verified; returns the state of its files, to be known next time.

    Names and labels are compared as the folder has them now, and the lists that `prepare` wrote. Contents of all files
    are compared unless the state is known already; of sets with too many files the stamp has to do.
    """
    kind, manifest, states, whole = kind_of(cfg), read_manifest(index / MANIFEST), [], []
    for split in cfg.splits:
        samples = find_samples(cfg, folder, split, index)
        if samples.has_files:  # else they were just read from the folder
            _check_stamp(kind, find_samples(cfg, folder, split), manifest, split, folder, index / MANIFEST)
        if is_read_whole(samples):
            states.append(state_of(samples))
            whole.append((split, samples))
    state = " ".join(states)
    for split, samples in whole if state != known_state else ():
        found = content_differences(samples, manifest.splits[split].stamp)
        _refuse(found, kind, manifest, split, folder, index / MANIFEST)
    return state


def _check_stamp(
    kind: DataKind, samples: Samples, manifest: Manifest, split: SplitName, folder: Path, path: Path
) -> None:
    """Refuse samples that are not those of the manifest."""
    known = manifest.splits.get(split)
    found = differences(samples, known.stamp) if known else ["the split was not verified"]
    _refuse(found, kind, manifest, split, folder, path)


def _refuse(found: list[str], kind: DataKind, manifest: Manifest, split: SplitName, folder: Path, path: Path) -> None:
    """An error that says how the samples of a folder differ from those that were verified, if they do."""
    if not found:
        return
    raise DataError(
        f"data set {manifest.name!r}: the folder does not hold the {split} {kind.unit} that were verified\n"
        + "\n".join(f"  - {split}: {line}" for line in listed(found))
        + f"\nfolder that the site names: {folder}\n"
        f"folder that was verified: {manifest.folder} ({shown(path)})\n"
        f"what to do: if the site names the right folder, run `{prepare_command(path)}`; "
        f"if not, fix `data: {kind.cfg.folder_name}:` in the site file"
    )


def data_error(cfg: BaseDataConfig, folder: Path, problems: list[str]) -> DataError:
    """One error for all problems of a set: what was found, what is expected, where to get it."""
    kind = kind_of(cfg)
    return DataError(
        f"data set {cfg.name!r} in {folder} cannot be used, number of problems: {len(problems)}\n"
        + "".join(f"  - {line}\n" for line in listed(problems))
        + f"expected: {kind.expected()}\n"
        f"in this layout: {kind.layout}\n"
        f"to get it: {kind.origin()}\n"
        f"what to do: fix or download the data set, or set its folder under `data: {cfg.folder_name}:` in the site file"
    )


def listed(problems: list[str]) -> list[str]:
    """The first problems and how many more there are."""
    more = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
    return [*problems[:MAX_PROBLEMS], *more]
