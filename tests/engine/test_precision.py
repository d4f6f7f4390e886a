"""Training, validation and evaluations compute in one precision, which the results name."""

import pytest
import torch
from tiny_runs import classify, tiny_run

from pipeline.engine.compute.precision import in_precision, precision_of
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.results import RunFolder
from pipeline.site import Site


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [
        ("auto", "cpu", "fp32"),
        ("auto", "cuda", "bf16"),
        ("fp32", "cuda", "fp32"),
        ("bf16", "cpu", "bf16"),
    ],
)
def test_precision__of_a_site_on_a_device__is_bf16_on_gpus_unless_it_says_otherwise(wanted, device, expected):
    assert precision_of(Site(precision=wanted), torch.device(device)) == expected


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision__inside__is_that_of_products(precision, dtype):
    with in_precision(precision, torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.fixture
def tf32_backends():
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    yield backends
    for backend, was_allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = was_allowed


@pytest.mark.parametrize("was_allowed", [True, False])
def test_precision__exact__has_no_tf32_inside_and_leaves_what_was_allowed(was_allowed, tf32_backends):
    backends = tf32_backends
    for backend in backends:
        backend.allow_tf32 = was_allowed
    with pytest.raises(KeyError), in_precision("exact_fp32", torch.device("cpu")):
        assert [backend.allow_tf32 for backend in backends] == [False, False]
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        raise KeyError  # what was allowed comes back after an error, too
    assert [backend.allow_tf32 for backend in backends] == [was_allowed] * 2


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_evaluation__in_any_precision__has_the_loss_of_the_last_validation(images, results, precision):
    run = tiny_run({"optim": {"epochs": 2}})
    paths, site = RunFolder(results, run.name), Site(device="cpu", data={"small": images}, precision=precision)
    train_run(run, paths, site, StopRequest())

    evaluated = classify(run, paths, site)

    trained = paths.record()
    assert evaluated.metrics["loss"] == trained.metrics["val_loss"]
    expected = "fp32" if precision == "auto" else "bf16"
    assert trained.provenance["precision"] == evaluated.provenance["precision"] == expected
