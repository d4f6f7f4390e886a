"""The whole input path on real photographs: JPEG files, RandAugment, erasing, mixing, a few steps, and their resume."""

import os
from pathlib import Path

import pytest
from tiny_runs import StopAfter, differing, fit, weights_of

from pipeline.config import CONFIGS, Layers, read_yaml
from pipeline.data.archives import extract
from pipeline.data.prepare import prepare
from pipeline.engine.run import parse_run
from pipeline.results import RunFolder

SMALL = {
    "data": {"num_classes": 25, "num_train": 12500, "num_val": 1250},
    "model": {"name": "small", "arch": "vit_tiny_patch16_224", "patch_size": 8, "depth": 1},
    "optim": {"epochs": 1, "global_batch": 32, "micro_batch": 16, "warmup_epochs": 0, "log_every": 1},
}


@pytest.mark.slow
@pytest.mark.data
def test_tiny_imagenet__recipe_of_the_paper__trains_and_resumes_on_the_same_curve(tmp_path):
    if "PATCHWORK_DATA" not in os.environ:
        pytest.skip("PATCHWORK_DATA is not set: it names the folder of the development data sets")
    extract(Path(os.environ["PATCHWORK_DATA"]) / "tiny-imagenet-25/tiny-imagenet-25.tar", tmp_path)
    folder = tmp_path / "tiny-imagenet-25"
    fragments = [read_yaml(CONFIGS / name) for name in ("method/mjp.yaml", "data/tiny_imagenet.yaml")]
    recipe = read_yaml(CONFIGS / "recipe/mjp.yaml")
    run = parse_run(Layers(*[("test", content) for content in (*fragments, recipe, SMALL)]))
    at_once, in_pieces = tmp_path / "at_once", tmp_path / "in_pieces"
    for results in (at_once, in_pieces):
        prepare(run.data, folder, RunFolder(results, run.name).manifest(run.data.name).parent, 2, progress=False)

    whole = fit(run, at_once, folder, StopAfter(3), workers=2)
    fit(run, in_pieces, folder, StopAfter(1), workers=2)
    resumed = fit(run, in_pieces, folder, StopAfter(2), workers=2)

    assert whole.step == resumed.step == 3
    assert differing(weights_of(whole), weights_of(resumed)) == []
    assert resumed.paths.metrics.read_bytes() == whole.paths.metrics.read_bytes()
