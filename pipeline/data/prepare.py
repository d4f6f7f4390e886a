"""Verify a data set once: every sample is decoded, every count compared, every problem reported at once.

The manifest is written last and only for a set without problems: where it exists, the set was good.
It holds no times, so the same data gives the same bytes; fingerprints do not depend on the folder.
"""

import hashlib
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.config import shown
from pipeline.data.kind import BaseDataConfig, DataKind, Sources, kind_of, made_from, made_with
from pipeline.data.manifest import MANIFEST, Manifest, SplitSummary, read_manifest, write_manifest
from pipeline.data.opening import data_error
from pipeline.data.samples import Split, SplitName
from pipeline.errors import DataError
from pipeline.files import write_atomic


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
    """
    kind, before = kind_of(cfg), _taken_away(out / MANIFEST)
    if made_from(cfg) and sources is not None and not kind.is_there(folder):
        kind.make(folder, sources, workers, progress)
    if not folder.is_dir():
        raise data_error(cfg, folder, [f"folder {folder} not found"])
    splits = {split: kind.read(folder, split) for split in cfg.splits}
    problems = _layout_problems(kind, splits)
    looks = kind.inspect(splits, workers, progress)
    for name, found in looks.items():
        problems += kind.sample_problems(splits[name].samples, found)
    if problems:
        raise data_error(cfg, folder, problems)
    summaries = {name: kind.summary(split.samples, looks[name]) for name, split in splits.items()}
    manifest = _manifest(cfg, folder, summaries, kind.class_names(splits), made_of(cfg, sources))
    # The same data elsewhere: unchanged bytes, and so nothing that depends on them is out of date.
    if before and _content(before) == _content(manifest):
        manifest = before
    for file, content in kind.lists(splits).items():
        write_atomic(out / file, content.encode() if isinstance(content, str) else content)
    if cache:
        for view, (name, split) in product(seen or [cfg], splits.items()):
            if kept := kind_of(view).cache(cache, name, manifest):
                kept.write(split.samples, [look.size for look in looks[name]], workers, progress)
    write_manifest(out / MANIFEST, manifest)
    return manifest


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
    made_of: dict[str, str] | None,
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
        made_of=made_of,
    )


def counts_of(cfg: BaseDataConfig) -> dict[str, Any]:
    """What the config says of a set and `prepare` compares with it."""
    return json.loads(json.dumps({key: getattr(cfg, key) for key in cfg.counted}))


def made_of(cfg: BaseDataConfig, sources: Sources | None) -> dict[str, str] | None:
    """The samples and the weights that a set is made from, as they are now; None for one that is not made."""
    source, run = made_from(cfg), made_with(cfg)
    if source is None or sources is None:
        return None
    return {source: sources.fingerprint(source), **({run: sources.weights(run)} if run else {})}


def _content(manifest: Manifest) -> dict:
    """Everything but where the samples were verified first."""
    return manifest.model_dump(mode="json", exclude={"folder"})
