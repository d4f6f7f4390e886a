"""Position embeddings against a plain SVD and a least-squares fit written here, and the pictures of them."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from small_set import build, config_of
from tiny_vit import build_tiny, tiny_model, tiny_resnet, tiny_swin

from pipeline.evals.base import EVALS, Subject
from pipeline.evals.positions.embedding_pictures import draw_pca, draw_umap, place_colours, principal, projected
from pipeline.evals.positions.position_embeddings import regression_errors
from pipeline.methods.supervised import Supervised
from pipeline.models.patches import Grid


def found_in(encoder, **fields):
    """The evaluation of a model, which needs no data."""
    kind = EVALS.get("position_embeddings")
    evaluation = kind(config_of("position_embeddings", **fields), {}, None, None, None)
    return evaluation.compute(Subject(None, Supervised(Supervised.Config(), encoder)))


def encoder_with(table, image_size=28, **changes):
    """A ViT whose patches have these positions (N, D); CLS keeps its own."""
    encoder = build_tiny(tiny_model(embed_dim=table.shape[1], **changes), image_size=image_size)
    with torch.no_grad():
        encoder.pos_embed[0, 1:] = torch.as_tensor(table)
        encoder.pos_embed[0, 0] = 3.0
    return encoder


TABLE = np.random.default_rng(1).normal(size=(49, 32)) * np.linspace(3, 0.1, 32) + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("with_cls", [True, False])
def test_explained_variance__any_table__is_that_of_a_plain_svd(centred, with_cls):
    found = found_in(encoder_with(TABLE), centred=centred, with_cls=with_cls, dims=(1, 3, 7, 32, 60)).metrics

    rows = np.vstack([np.full((1, 32), 3.0), TABLE.astype(np.float32)]) if with_cls else TABLE.astype(np.float32)
    matrix = rows.astype(float) - (rows.astype(float).mean(axis=0) if centred else 0)
    variances = np.sort(np.linalg.eigvalsh(matrix.T @ matrix))[::-1].clip(min=0)
    for dim in (1, 3, 7, 32, 60):
        assert found[f"ev{dim}"] == pytest.approx(100 * variances[:dim].sum() / variances.sum(), rel=1e-9)
        roots = np.sqrt(variances)
        assert found[f"energy_{dim}"] == pytest.approx(100 * roots[:dim].sum() / roots.sum(), rel=1e-6)
    assert found["ev3"] < found["ev7"] < 99.9 and found["ev60"] == 100


@pytest.mark.parametrize("target", [np.arange(49), Grid(7, 7).coordinates().numpy()])
@pytest.mark.parametrize("width", [8, 60])  # fewer and more dimensions than rows
def test_regression__five_folds__equals_least_squares_of_its_own(target, width):
    table = np.random.default_rng(width).normal(size=(49, width))

    errors = regression_errors(table, target, folds=5, repeats=3, seed=7)

    rng = np.random.default_rng(7)
    for error in errors:
        order, maes = rng.permutation(49), []
        for held in np.array_split(order, 5):
            rest = [index for index in order if index not in held]
            x, y = table[rest], target[rest].astype(float)
            weights = np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0]
            predicted = (table[held] - x.mean(0)) @ weights + y.mean(0)
            maes.append(np.abs(predicted - target[held]).mean())
        assert error == pytest.approx(np.mean(maes), rel=1e-9)
    assert errors.std() > 0


@pytest.mark.slow
def test_regression__spread_and_error__are_those_over_shuffles():
    found = found_in(encoder_with(TABLE), repeats=4, seed=2)
    errors = regression_errors(TABLE.astype(np.float32).astype(float), np.arange(49), 5, 4, 2)
    assert found.metrics["mae_1d"] == pytest.approx(errors.mean())
    assert found.metrics["mae_1d_pm"] == pytest.approx(np.std(errors, ddof=1))
    assert found.errors["mae_1d"] == pytest.approx(np.std(errors, ddof=1) / 2)


@pytest.mark.slow
def test_table_linear_in_the_position__of_a_rectangle__is_regressed_without_error_in_two_dimensions():
    place = Grid(4, 14).coordinates().numpy()
    table = place @ np.random.default_rng(3).normal(size=(2, 32)) + 1.0
    found = found_in(encoder_with(table, image_size=(16, 56))).metrics
    assert found["mae_1d"] == pytest.approx(0, abs=1e-4) and found["mae_2d"] == pytest.approx(0, abs=1e-4)
    assert found["ev2"] == pytest.approx(100) and found["ev1"] < 99


@pytest.mark.slow
def test_equal_embeddings__have_no_variance__and_say_so():
    found = found_in(encoder_with(np.full((49, 32), 0.25)))
    assert "ev3" not in found.metrics and "equal" in found.reasons["ev3"]
    assert {*found.metrics, *found.reasons} == {*config_of("position_embeddings").metrics}


def test_fewer_patches_than_folds__is_a_reason():
    found = found_in(encoder_with(TABLE[:4], patch_size=14))
    assert "4 patches" in found.reasons["mae_2d_pm"] and found.metrics["ev20"] == 100


@pytest.mark.slow
def test_absolute_positions_of_a_swin__are_measured_too():
    assert found_in(build_tiny(tiny_swin(pos_embed="learn")), with_cls=True).metrics["ev3"] > 0


@pytest.mark.parametrize("name", ["position_embeddings", "embedding_pictures"])
def test_reason__models_without_a_table__say_what_they_have(world, name):
    cfg, kind = config_of(name), EVALS.get(name)

    def reason(method, **model):
        run = world.run_of(build(method))
        return kind.reason_against(cfg, {"model": run.model_copy(update=model)})

    assert reason("baseline") == reason("droppos") == reason("mjp") == ""
    assert "no position embeddings" in reason("mp3")
    assert "relative positions" in reason("baseline", model=tiny_model(pos_embed="relative"))
    assert "no position embeddings" in reason("baseline", model=tiny_resnet())


# Pictures


def test_principal__three_dimensions__are_those_of_the_covariance():
    points, others, shares = principal(TABLE, TABLE[:2])
    values, vectors = np.linalg.eigh(np.cov(TABLE.T))
    expected = (TABLE - TABLE.mean(0)) @ vectors[:, ::-1][:, :3]
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-9)
    np.testing.assert_allclose(shares, values[::-1][:3] / values.sum(), rtol=1e-9)
    np.testing.assert_allclose(others, points[:2])


def test_place_colours__corners_and_middle__are_mixtures():
    colours = place_colours(Grid(3, 5)).reshape(3, 5, 3)
    np.testing.assert_allclose(colours[1, 2], colours[[0, 0, 2, 2], [0, 4, 0, 4]].mean(axis=0))
    assert len(np.unique(colours.reshape(-1, 3), axis=0)) == 15


@pytest.mark.slow
def test_umap__of_a_smooth_table__keeps_neighbours_together_and_is_the_same_twice():
    place = Grid(7, 7).coordinates().numpy()
    table = np.random.default_rng(0).normal(size=(49, 16)) * 0.05
    table[:, :2] += place
    one, other = (projected(table, 15, 0.1, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (projected(table, 15, 0.1, seed=4) != one).any()
    distances = np.linalg.norm(one[:, None] - one[None], axis=2)
    steps = np.abs(place[:, None] - place[None]).sum(axis=2)
    assert distances[steps == 1].mean() < 0.4 * distances[steps > 4].mean()


@pytest.mark.slow
def test_umap__of_any_table__leaves_torch_as_many_threads_as_it_had():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        projected(np.random.default_rng(0).normal(size=(49, 16)), 15, 0.1, seed=3)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [Grid(1, 2), Grid(2, 2), Grid(3, 5), Grid(14, 14)])
def test_pictures__of_few_and_many_patches__are_drawn(grid):
    table = np.random.default_rng(0).normal(size=(grid.size, 8))
    pictures = draw_pca(table[:1] + 1, table, grid), draw_umap(projected(table, 15, 0.1, 0), grid)
    for picture in pictures:
        assert len(np.unique(np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).reshape(-1, 3), axis=0)) > 20
