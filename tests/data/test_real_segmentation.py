"""Real pictures of ADE20K through a method: each labelled pixel is counted once, at the published size."""

import numpy as np
import pytest
import torch
from dense_sets import data_config
from PIL import Image
from tiny_vit import tiny_model

from pipeline.data.kind import kind_of
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.engine.parallel.distributed import World
from pipeline.engine.validate import measure_set
from pipeline.methods.upernet import UperNet
from pipeline.tasks.segment import Overlaps, Segment

COUNT = 2  # of 8; each has 150 logits for every published pixel


@pytest.fixture(scope="module")
def prepared(ade_mini, tmp_path_factory):
    data = data_config("ade20k", image_size=64, num_train=12, num_val=8)
    prepare(data, ade_mini, tmp_path_factory.mktemp("index"), progress=False)
    return data, open_split(data, ade_mini, "val")


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["slide", "whole"])
def test_measure__real_pictures__counts_what_the_files_have(prepared, ade_mini, inference):
    data, samples = prepared
    cfg = UperNet.Config(width=8, inference=inference)
    torch.manual_seed(0)
    method = UperNet(cfg, Segment.build_encoder(cfg, tiny_model(patch_size=16), data))
    task, view = Segment(data, torch.device("cpu")), kind_of(data).eval_view()
    batches = [task.collate([view(samples[index])]) for index in range(COUNT)]
    metric = Overlaps()
    found = measure_set(method, batches, task, World(0, 1, torch.device("cpu")), "fp32", UperNet.measure, metric=metric)

    files = sorted((ade_mini / "ADEChallengeData2016" / "annotations" / "validation").iterdir())[:COUNT]
    pixels = [np.bincount(np.array(Image.open(path)).ravel(), minlength=151)[1:] for path in files]
    counted = metric.areas_of().of_images
    assert counted[:, 1].tolist() == [each.tolist() for each in pixels]
    assert counted[:, 2].sum(axis=1).tolist() == [int(each.sum()) for each in pixels]  # each pixel has one answer
    assert found.count == COUNT and 0 <= found.metrics["miou"] <= found.metrics["aacc"] < 60
