"""The whole input path on real photographs: JPEG files, RandAugment, erasing, mixing, a few steps, and their resume."""

import os
import shutil
import tarfile
from pathlib import Path

import pytest
from tiny_runs import StopAfter, differing, fit, weights_of
from trusted_archives import unpack

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.data.store.prepare import prepare
from pipeline.engine.run import parse_run
from pipeline.results import RunFolder

NUM_CLASSES = 3
SMALL = {
    "data": {"num_classes": NUM_CLASSES, "num_train": 500 * NUM_CLASSES, "num_val": 50 * NUM_CLASSES},
    "model": {"name": "small", "arch": "vit_tiny_patch16_224", "patch_size": 8, "depth": 1},
    "optim": {"epochs": 1, "global_batch": 32, "micro_batch": 16, "warmup_epochs": 0, "log_every": 1},
}


def extract_first_classes(archive: Path, folder: Path) -> Path:
    """The published layout with a few of its classes."""
    with tarfile.open(archive) as tar:
        root = tar.next().name.split("/")[0]

        def lines_of(name: str) -> list[str]:
            return tar.extractfile(f"{root}/{name}").read().decode().splitlines(keepends=True)

        names = lines_of("wnids.txt")[:NUM_CLASSES]
        lines = [line for line in lines_of("val/val_annotations.txt") if f"{line.split()[1]}\n" in names]
        wanted = tuple(f"{root}/train/{name.strip()}/" for name in names)
        wanted += tuple(f"{root}/val/images/{line.split()[0]}" for line in lines)
        members = [member for member in tar if member.name.startswith(wanted)]
        unpack(tar, folder, members)
    (folder / root / "wnids.txt").write_text("".join(names))
    (folder / root / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder / root


@pytest.mark.slow
@pytest.mark.data
def test_tiny_imagenet__recipe_of_the_paper__trains_and_resumes_on_the_same_curve(tmp_path):
    if "PATCHWORK_DATA" not in os.environ:
        pytest.skip("PATCHWORK_DATA is not set: it names the folder of the development data sets")
    archive = Path(os.environ["PATCHWORK_DATA"]) / "tiny-imagenet-25/tiny-imagenet-25.tar"
    folder = extract_first_classes(archive, tmp_path)
    fragments = [read_yaml(CONFIGS / name) for name in ("method/mjp.yaml", "data/tiny_imagenet.yaml")]
    recipe = read_yaml(CONFIGS / "recipe/mjp.yaml")
    run = parse_run(Layers(*[("test", content) for content in (*fragments, recipe, SMALL)]))
    at_once, in_pieces = tmp_path / "at_once", tmp_path / "in_pieces"
    prepare(run.data, folder, RunFolder(at_once, run.name).manifest(run.data.name).parent, 2, progress=False)
    shutil.copytree(at_once, in_pieces)

    whole = fit(run, at_once, folder, StopAfter(3), workers=2)
    fit(run, in_pieces, folder, StopAfter(1), workers=2)
    resumed = fit(run, in_pieces, folder, StopAfter(2), workers=2)

    assert whole.step == resumed.step == 3
    assert differing(weights_of(whole), weights_of(resumed)) == []
    assert resumed.paths.metrics.read_bytes() == whole.paths.metrics.read_bytes()
