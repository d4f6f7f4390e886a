"""Images and patches that are not squares: through the loop, methods, jigsaw, positions and counting."""

import random

import pytest
import torch
from tiny_runs import DECODER, PRETRAINING, build_trainer, fit, publish, tiny_run
from torch.nn import functional as F

from pipeline.core.config import Layers, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.files import write_text
from pipeline.engine.loop import build_method
from pipeline.engine.run import parse_run, resolved_yaml
from pipeline.engine.train import export
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.models.patches import Grid, grid_of, to_patches
from pipeline.models.weights import load_encoder
from pipeline.plan.operations import step_cost
from pipeline.results import RunFolder
from pipeline.results import load_encoder as load_exported

SHORT = {"optim": {"epochs": 1, "warmup_epochs": 0}}
METHODS = {
    "supervised": {},
    "mjp": {"method": {"name": "mjp", "shuffle_ratio": 0.5, "warmup_ratio": 0.0, "shuffle_prob": 1.0}},
    **PRETRAINING,
}
# A wide image of 4x6 patches; a spectrogram of 40 bands, each moment a patch.
WIDE = {"data": {"image_size": [28, 42]}, "model": {"patch_size": 7}}
BANDS = {"data": {"image_size": [40, 98]}, "model": {"patch_size": [40, 1]}}
SIZES = {"4x6": WIDE, "1x98": BANDS}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_train__rectangle__every_method_moves_every_parameter(images, results, method, size):
    run = tiny_run(METHODS[method], SIZES[size], SHORT)
    before = build_method(run)
    trainer = fit(run, results, images)
    assert "{}x{}".format(*grid_of(before.encoder)) == size
    assert trainer.last_validation.count == run.data.num_val
    after = dict(trainer.method.named_parameters())
    still = [name for name, p in before.named_parameters() if p.requires_grad and torch.equal(p, after[name])]
    assert still == []


@pytest.mark.parametrize("crop", ["resized", "padded", "none"])
def test_views__rectangle__have_height_and_width_in_this_order(images, results, crop):
    trainer = build_trainer(tiny_run(WIDE, {"data": {"augment": {"crop": crop}}}), results, images)
    both = trainer.batches.from_step(0), trainer.batches.validation
    shapes = {tuple(next(iter(batches))[0].shape[1:]) for batches in both}
    assert shapes == {(1, 28, 42)}


def test_droppos__rectangle_with_the_released_map__is_refused():
    run = tiny_run({"method": {"name": "droppos", "fidelity": "released", **DECODER}, "model": {"pos_embed": "sincos"}})
    build_method(run)
    with pytest.raises(ConfigError, match="for square images and grids, found 28x42 pixels and 4x6 patches"):
        build_method(tiny_run(run.model_dump(mode="json"), WIDE))


# Configs


def test_size__square_as_a_pair__is_the_same_run():
    square = tiny_run({"data": {"image_size": [28, 28]}, "model": {"patch_size": [7, 7]}})
    assert (square.data.image_size, square.model.patch_size, square.name) == (28, 7, tiny_run().name)


def test_size__height_and_width_exchanged__is_another_run():
    assert tiny_run(WIDE).name != tiny_run({**WIDE, "data": {"image_size": [42, 28]}}).name


def test_size__in_the_resolved_config__is_read_back(tmp_path):
    run = tiny_run(BANDS)
    write_text(tmp_path / "config.yaml", resolved_yaml(run))
    assert parse_run(Layers(("it", read_yaml(tmp_path / "config.yaml")))).name == run.name


@pytest.mark.parametrize("wrong", [0, -4, 3.5, [28, 0], [1, 2, 3], "28", True])
def test_size__not_one_or_two_whole_numbers__is_refused(wrong):
    with pytest.raises(ConfigError) as caught:
        tiny_run({"data": {"image_size": wrong}})
    expected = (
        f"test: data.image_size: found {wrong!r}; expected a whole number from 1 to 65536, or two: [height, width]"
    )
    assert str(caught.value) == expected


def test_patches__that_do_not_divide_one_side__are_refused():
    with pytest.raises(ConfigError, match=r"model\.patch_size 7x4 does not divide data\.image_size 28x42"):
        tiny_run(WIDE, {"model": {"patch_size": [7, 4]}})


# Jigsaw


@pytest.mark.parametrize("grid", [Grid(4, 6), Grid(1, 98), Grid(98, 1)])
def test_jigsaw__rectangle__moves_whole_patches_among_the_chosen(grid):
    rng = random.Random(0)
    chosen = block_mask(grid, 0.4, rng)
    assert 0 < int(chosen.sum()) <= int(0.4 * grid.size)
    images = torch.randn(1, 3, grid.rows * 2, grid.cols * 3)
    moved = shuffle_patches(images, jigsaw_order(chosen, rng)[None], grid)
    before, after = (to_patches(each, grid)[0] for each in (images, moved))
    same = (before == after).flatten(1).all(dim=1)
    assert same[~chosen].all() and not same[chosen].all()
    assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)


def test_blocks__on_one_row__are_stretches_of_it():
    chosen = block_mask(Grid(1, 98), 0.5, random.Random(1)).nonzero().flatten()
    assert 40 <= len(chosen) <= 49
    assert 1 <= int((chosen.diff() > 1).sum()) <= 5  # gaps between them


# Positions on another grid


def exported(run, folder):
    """A file with positions that can be told apart, and those positions."""
    method = build_method(run)
    with torch.no_grad():
        method.encoder.pos_embed.normal_(generator=torch.Generator().manual_seed(0))
    paths = RunFolder(folder, run.name)
    export(method, paths)
    return paths.encoder, method.encoder.pos_embed


SQUARE = {"data": {"image_size": 28}}
TALL = {"data": {"image_size": [42, 28]}}
GRIDS = {"square": (SQUARE, (4, 4)), "wide": (WIDE, (4, 6)), "tall": (TALL, (6, 4))}
# As many patches as the square has.
LONG = {"data": {"image_size": [14, 56]}}
GRIDS["long"] = (LONG, (2, 8))
# Sequences, of one row.
GRIDS["row"] = ({"data": {"image_size": [7, 112]}}, (1, 16))
GRIDS["short row"] = ({"data": {"image_size": [7, 56]}}, (1, 8))


@pytest.mark.slow
@pytest.mark.parametrize("old", GRIDS)
@pytest.mark.parametrize("new", GRIDS)
def test_load_encoder__from_one_grid_to_another__resamples_rows_and_columns(tmp_path, old, new):
    path, table = exported(tiny_run(GRIDS[old][0]), tmp_path)
    encoder = build_method(tiny_run(GRIDS[new][0])).encoder
    report = load_encoder(encoder, path)
    if old == new:
        assert report.resized == [] and torch.equal(encoder.pos_embed, table)
        return
    places = table[:, 1:].transpose(1, 2).unflatten(2, GRIDS[old][1])
    expected = F.interpolate(places, GRIDS[new][1], mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    torch.testing.assert_close(encoder.pos_embed[:, 1:], expected)
    assert torch.equal(encoder.pos_embed[:, 0], table[:, 0])
    assert report.resized == ["pos_embed {}x{} -> {}x{}".format(*GRIDS[old][1], *GRIDS[new][1])]


@pytest.mark.parametrize(("old", "new"), [("square", "long"), ("square", "row"), ("row", "short row")])
def test_load_encoder__fixed_positions_of_another_grid__come_from_the_formula(tmp_path, old, new):
    """Also where it has as many patches."""
    fixed = {"model": {"pos_embed": "sincos"}}
    paths = RunFolder(tmp_path, "x")
    export(build_method(tiny_run(fixed, GRIDS[old][0])), paths)
    encoder = build_method(tiny_run(fixed, GRIDS[new][0])).encoder
    before = encoder.pos_embed.clone()
    assert load_encoder(encoder, paths.encoder).positions == "formula"
    assert torch.equal(encoder.pos_embed, before)


@pytest.mark.parametrize(("old", "new"), [("wide", "square"), ("square", "wide"), ("wide", "tall")])
def test_load_encoder__relative_tables__are_resized_between_rectangles(tmp_path, old, new):
    relative = {"model": {"pos_embed": "relative"}}
    method, paths = build_method(tiny_run(relative, GRIDS[old][0])), RunFolder(tmp_path, "x")
    rows, cols = (2 * side - 1 for side in GRIDS[old][1])
    height = torch.arange(rows)[:, None].expand(rows, cols).flatten() - rows // 2
    with torch.no_grad():
        for block in method.encoder.blocks:
            block.attn.rel_pos.relative_position_bias_table[:-3] = height[:, None].float()
            block.attn.rel_pos.relative_position_bias_table[-3:] = 7.0
    export(method, paths)
    encoder = build_method(tiny_run(relative, GRIDS[new][0])).encoder
    report = load_encoder(encoder, paths.encoder)
    table = encoder.blocks[0].attn.rel_pos.relative_position_bias_table
    places = table[:-3, 0].view(*(2 * side - 1 for side in GRIDS[new][1]))
    # It grows from row to row and is the same in every column, as in the file.
    assert torch.allclose(places, places[:, :1].expand_as(places), atol=1e-5) and (places.diff(dim=0) > 0).all()
    assert (table[-3:] == 7.0).all()
    assert len(report.resized) == 2 and " {}x{} -> {}x{}".format(*GRIDS[old][1], *GRIDS[new][1]) in report.resized[0]


@pytest.mark.slow
def test_exported_encoder__rectangle__is_loaded_in_a_notebook(images, results, monkeypatch):
    trainer = fit(tiny_run(WIDE, SHORT), results / "demo", images)
    write_text(trainer.paths.config, resolved_yaml(trainer.run))
    publish(trainer)
    monkeypatch.setattr("pipeline.results.RESULTS", results)
    encoder = load_exported(trainer.run.name)
    assert encoder(torch.zeros(1, 1, 28, 42)).shape == (1, 10)


# Counting


@pytest.mark.slow
def test_operations__of_a_rectangle__are_those_of_its_patches():
    found = step_cost(tiny_run(WIDE))["gflop_per_image"]
    tokens, width, pixels = 25, 16, 49
    block = tokens * 2 * (3 + 1 + 8) * width**2 + 2 * 2 * tokens**2 * width
    # Backward takes twice as much, except that pixels need no gradient.
    expected = 3 * (2 * block + 2 * width * 10) + 2 * (2 * 24 * pixels * width)
    assert found * 1e9 == pytest.approx(expected)
