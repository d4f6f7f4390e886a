"""Every evaluation of the registry on a small set: what it returns, and what must not change it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from evaluation_contract import check_outcome, compare_closely, compare_outcomes
from readable_failures import refuse
from small_set import SUITED, build, config_of, subjects_of
from threaded_server import server_in_a_thread

from pipeline.engine.batches import Sizes
from pipeline.evals import base
from pipeline.evals.base import EVALS, Evaluation
from pipeline.evals.permutation import split_wire
from pipeline.evals.privacy.leakage import LeakageEvaluation
from pipeline.method_checks.declared import check_config

pytestmark = pytest.mark.slow

OF_SOUNDS = {"mp3_sounds"}  # test_sound_evals.py has them
ON_IMAGES = [name for name in EVALS.names() if name not in OF_SOUNDS]
OF_SUBJECTS = [name for name in ON_IMAGES if EVALS.get(name).roles()]
MEASURES_TIME = {"cost", "permutation_cost"}
OF_TEXTS = {"perplexity"}
OF_SCENES = {name for name, kind in SUITED.items() if kind in ("upernet", "mask_rcnn")}
WITHOUT_IMAGES = {"counterexamples", *MEASURES_TIME, *OF_TEXTS, *OF_SCENES}
EXACT = {"consistency", "equivariance", "segmentation_equivariance", "perplexity"}  # in float32 whatever the site says
STATE_PRECISION = {"training_equivariance", "split_wire", *EXACT}
FOR_ANY_ENCODER = {
    "knn",
    "linear_probe",
    "position_probe",
    "attention_maps",
    "local_heads",
    "cls_attention",
    "correlation_maps",
}
OF_GRADIENTS = {name for name in EVALS.names() if issubclass(EVALS.get(name), LeakageEvaluation)}  # state a precision
OF_TABLES = {"position_embeddings", "embedding_pictures"}  # of absolute positions; they run no model


PIECE = 48  # images; the small set has three such batches and a smaller one
# Their images are few, or their batch is what they are about.
IN_ONE_BATCH = {name for name in EVALS.names() if name.endswith("_pictures")}
IN_ONE_BATCH |= {"split_learning", "split_wire", "training_equivariance"}
# Few of the shares that they measure; test_evals.py compares others with a computation of its own.
FEWER = {"mp3_positions": {"etas": (0, 75)}, "droppos_positions": {"gammas": (0, 75), "position_gammas": (25, 75)}}
FEWER["shuffle_curve"] = {"ratios": (10, 27)}
# Batches that an evaluation states itself.
OTHER_BATCHES = {"april": {"batch": 5}, "april_scale": {"batch": 3}, "gradient_matching": {"at_once": 1}}


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch):
    monkeypatch.setattr(split_wire, "server_process", server_in_a_thread)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(base, "BATCH", PIECE)
    monkeypatch.setattr(Evaluation.batches, "__defaults__", ("val", None, PIECE))


@pytest.fixture
def other_batches(monkeypatch):
    """Three pieces at once, as a GPU has them, or half a piece where a task takes no more than its own."""

    def sizes(task, device, piece):
        return Sizes(piece, 3) if task.takes_deferred else Sizes(-(-piece // 2))

    def begin():
        monkeypatch.setattr(base, "sizes_for", sizes)
        monkeypatch.setattr(Evaluation.batches, "__defaults__", ("val", None, 110))

    return begin


def evaluate(world, name, *methods, **options):
    return world.evaluate(name, *methods, **FEWER.get(name, {}), **options)


@pytest.fixture(scope="module")
def seen_in(world):
    """What an evaluation finds, and the precisions in which it runs the first block of a model, by name and site."""

    @cache
    def found(name, **site):
        methods, dtypes = subjects_of(name), set()
        for method in methods:
            if hasattr(method.encoder, "blocks"):
                method.encoder.blocks[0].mlp.fc1.register_forward_hook(lambda *given: dtypes.add(given[-1].dtype))
        return evaluate(world.with_site(**site), name, *methods), dtypes

    return found


@pytest.fixture(scope="module")
def plain(seen_in):
    """What an evaluation finds where nothing is special, computed once."""
    return lambda name: seen_in(name)[0]


@pytest.fixture(scope="module")
def cropped(world):
    """What it finds of the same images seen through another crop, computed once."""
    site = world.with_site(views="host")
    return cache(lambda name: evaluate(site, name, *subjects_of(name), crop=0.6))


@pytest.mark.parametrize("name", ON_IMAGES)
def test_compute__every_evaluation__returns_what_its_config_names_with_errors_and_nothing_else(plain, name):
    refuse(check_outcome(EVALS.get(name), config_of(name, **FEWER.get(name, {})), plain(name)))


@pytest.mark.parametrize("name", EVALS.names())
def test_class__of_every_evaluation__states_its_name_and_the_range_of_every_number(name):
    refuse(check_config(name, EVALS.get(name)))


FED = ("classify", "consistency", "knn", "linear_probe", "position_probe", "corruptions", "outliers", "calibration")


@pytest.mark.parametrize("name", [*FED, "droppos_positions", "mp3_positions", "training_equivariance"])
def test_compute__views_completed_on_the_device__finds_the_same_to_the_last_bit(world, cropped, name):
    one, other = cropped(name), evaluate(world.with_site(views="device"), name, *subjects_of(name), crop=0.6)
    assert one.metrics == other.metrics
    assert all((other.per_image[key] == values).all() for key, values in one.per_image.items())


@pytest.mark.parametrize("name", ON_IMAGES)
def test_compute__twice__finds_the_same_to_the_last_bit_and_leaves_the_subjects_as_they_were(world, plain, name):
    methods = [method.train() for method in subjects_of(name)]  # with dropout, of which nothing must be seen
    before = [state_of(method) for method in methods]
    one, other = plain(name), evaluate(world, name, *methods)
    if name not in MEASURES_TIME:
        refuse(compare_outcomes(EVALS.get(name), one, other, "when it was computed a second time"))
    roles = zip(EVALS.get(name).roles(), methods, before, strict=True)
    changed = [role for role, method, state in roles if state_of(method) != state]
    assert changed == [], f"compute changed weights, modes or requires_grad of {changed}; copy them or put them back"


def state_of(method):
    weights = {name: value.numpy().tobytes() for name, value in method.state_dict().items()}
    modes = [module.training for module in method.modules()]
    return weights, modes, [parameter.requires_grad for parameter in method.parameters()]


@pytest.mark.parametrize("name", ["adversarial", "calibration", "detection", "outliers"])
def test_compute__another_seed__draws_the_errors_of_whole_sets_again_and_no_metric(world, plain, name):
    one, other = plain(name), evaluate(world, name, *subjects_of(name), seed=1)
    assert other.metrics == one.metrics and other.errors != one.errors


@pytest.mark.parametrize("name", [name for name in OF_SUBJECTS if name not in OF_TABLES | IN_ONE_BATCH])
def test_compute__in_other_batches__finds_the_same(world, plain, other_batches, name):
    one = plain(name)
    other_batches()  # only now: what is plain is computed by the test that asks first
    other = evaluate(world, name, *subjects_of(name), **OTHER_BATCHES.get(name, {}))
    refuse(compare_closely(EVALS.get(name), exactly(one), exactly(other), "in batches of another size"))
    assert without_rounding(other.errors) == pytest.approx(without_rounding(one.errors), rel=1e-4, abs=1e-6)
    for key, values in without_rounding(one.per_image).items():
        np.testing.assert_allclose(other.per_image[key], values, rtol=1e-4, atol=1e-4)
    assert other.count == one.count


def exactly(outcome):
    return replace(outcome, metrics=without_rounding(outcome.metrics), files=without_rounding(outcome.files))


def without_rounding(found):
    """Without differences between two computations of the same thing, and without curves, drawn finer than rounding."""
    return {name: value for name, value in found.items() if not name.endswith("_apart") and name != "loss.png"}


@pytest.mark.parametrize(
    "name", [name for name in OF_SUBJECTS if name not in OF_TABLES | OF_GRADIENTS | STATE_PRECISION]
)
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_compute__site_in_bf16__runs_the_model_in_it_and_is_close(seen_in, name, monkeypatch):
    exact, in_fp32 = seen_in(name)
    # On a CPU without bf16, torch turns oneDNN off at the first product, and every later number has other last digits.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    found, in_bf16 = seen_in(name, precision="bf16")
    assert (in_fp32, in_bf16) == ({torch.float32}, {torch.bfloat16}), (
        f"{name} ran a model in {in_fp32} at a site in fp32 and in {in_bf16} at one in bf16; run it inside "
        "`with self.precision():`, or through self.over_images; an evaluation that runs no model belongs into OF_TABLES"
    )
    exact, found = exact.metrics, found.metrics
    # There are few objects of each size, so that one of them changes these metrics by much.
    others = ("loss", "norm", "_small", "_medium")
    percents = [metric for metric in exact if not any(word in metric for word in others)]
    assert {key: found[key] for key in percents} == pytest.approx({key: exact[key] for key in percents}, abs=10)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_compute__exact_evaluation_of_a_site_in_bf16__finds_the_same_as_in_fp32_without_tf32(world, plain, name):
    methods, seen = subjects_of(name), set()
    rounding = (torch.is_autocast_cpu_enabled, lambda: torch.backends.cudnn.allow_tf32)
    for method in methods:
        norm = next(part for part in method.encoder.modules() if isinstance(part, torch.nn.LayerNorm))
        norm.register_forward_hook(lambda *_: seen.add(tuple(is_rounded() for is_rounded in rounding)))
    found = evaluate(world.with_site(precision="bf16"), name, *methods)
    assert seen == {(False, False)}
    assert found.metrics == plain(name).metrics


@pytest.mark.parametrize("name", [name for name in ON_IMAGES if name not in WITHOUT_IMAGES])
def test_compute__data_with_another_crop__sees_it_and_consistency_sees_whole_images(plain, cropped, name):
    whole, other = plain(name), cropped(name)
    is_same = (whole.metrics, whole.files) == (other.metrics, other.files)
    # Outliers and inliers are the same images here, so they cannot be told apart through any crop.
    assert is_same is (name in ("consistency", "outliers") or name in OF_TABLES), (
        f"{name} found {'the same' if is_same else 'something else'} through another crop; it must see "
        "images as in validation, from self.batches or self.over_images; one that sees none belongs into WITHOUT_IMAGES"
    )


@pytest.mark.parametrize("name", OF_SUBJECTS)
@pytest.mark.parametrize("kind", ["mjp", "mp3", "droppos", "upernet"])
def test_reason_against__every_evaluation__is_for_classifiers_or_its_own_method_or_any_encoder(world, name, kind):
    runs = dict.fromkeys(EVALS.get(name).roles(), world.run_of(build(kind)))
    applies = EVALS.get(name).reason_against(config_of(name), runs) == ""
    if name in OF_TABLES:
        assert applies is (kind != "mp3")
    else:
        sees_images = kind != "upernet"  # but whole scenes
        expected = (name in FOR_ANY_ENCODER and sees_images) or kind == SUITED.get(name, "mjp")
        assert applies is expected, (
            f"{name} {'applies' if applies else 'does not apply'} to a run of {kind}: by default an evaluation is for "
            "what classifies; others have a reason_against and a line in FOR_ANY_ENCODER or SUITED (small_set.py)"
        )
