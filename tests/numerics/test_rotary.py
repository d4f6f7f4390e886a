"""Rotary positions: timm's own numbers, and in each method the property that makes its positions mean something."""

import copy
from random import Random

import pytest
import timm
import torch
from safetensors.torch import save_file
from tiny_vit import build_tiny, tiny_batch, tiny_encoder, tiny_model
from torch import nn
from torch.nn import functional as F

from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.evals.probes.position_probe import PositionProbe, PositionReader
from pipeline.methods.base import METHODS
from pipeline.models.dense import feature_maps
from pipeline.models.encoder import build_encoder
from pipeline.models.jigsaw import shuffle_patches
from pipeline.models.patches import Grid, take, to_images, to_patches
from pipeline.models.places import NOWHERE, ROTARY, all_places, at_places, hidden_at
from pipeline.models.position import encode
from pipeline.models.weights import load_encoder
from pipeline.permutation.forward import permuted, shape_of
from pipeline.permutation.keys import Shape, new_key
from pipeline.permutation.protections import FeatureProtection
from pipeline.permutation.rules import permute_state
from pipeline.permutation.split import split
from pipeline.privacy.april import Assumptions, attack, reason_against

GRID, N = Grid(7, 7), 49
EVERY_KIND = pytest.mark.parametrize("kind", ROTARY)
UNBOUNDED = pytest.mark.parametrize("kind", ["rope", "rope_mixed"])  # places are counted, not scaled to the image
# What a method says of rotations holds for the other kinds that its patches can carry, too.
EVERY_CARRIED = pytest.mark.parametrize("kind", ["learn", "sincos", *ROTARY])
CARRIED_OR_BOTH = pytest.mark.parametrize(
    ("kind", "beside"),
    [("learn", {}), ("sincos", {}), *((kind, {"add_absolute": both}) for kind in ROTARY for both in (False, True))],
)
SHAPE = {"depth": 2, "embed_dim": 32, "num_heads": 2}
DECODER = {"decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}
TIMM = {
    "vit_small_patch16_rope_224": {"pos_embed": "rope"},
    "vit_small_patch16_rope_mixed_224": {"pos_embed": "rope_mixed"},
    "vit_small_patch16_rope_ape_224": {"pos_embed": "rope", "add_absolute": True},
    "vit_small_patch16_rope_mixed_ape_224": {"pos_embed": "rope_mixed", "add_absolute": True},
}


def strong(module, seed=0):
    """With weights that make attention far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.endswith("freqs"):
                parameter.add_(torch.empty_like(parameter).normal_(std=0.2, generator=generator))
    return module.eval()


def images(count=3):
    return tiny_batch(count).images


def orders(count=3, seed=0):
    return torch.rand(count, N, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)


def method_of(name, fields=None, **model):
    cfg = METHODS.get(name).Config(name=name, **fields or {})
    model = tiny_model(**model)
    cfg.check(model, 28)
    return strong(METHODS.get(name)(cfg, build_tiny(model, 0, 10 if cfg.task == "classify" else 0)))


# timm's models, and others


def timm_file(arch, folder, **changes):
    model = strong(timm.create_model(arch, img_size=(32, 48), num_classes=5, **SHAPE | changes))
    save_file(model.state_dict(), folder / "timm.safetensors", metadata={"grid": "2x3"})
    return model, folder / "timm.safetensors"


@torch.no_grad()
@pytest.mark.parametrize("arch", TIMM)
def test_load__weights_of_a_rotary_model_of_timm__give_its_outputs(arch, tmp_path):
    theirs, path = timm_file(arch, tmp_path)
    cfg = tiny_model(arch="vit_small_patch16_224", patch_size=16, layer_scale=1e-5, **SHAPE, **TIMM[arch])
    ours = build_encoder(cfg, (32, 48), 3, 5).eval()
    assert not load_encoder(ours, path).fresh
    seen = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    assert theirs(seen).abs().max() > 0.1
    torch.testing.assert_close(ours(seen), theirs(seen), atol=1e-5, rtol=0)
    torch.testing.assert_close(encode(ours, seen), theirs.forward_features(seen), atol=1e-5, rtol=0)


def timm_twin(ours, kind, **more):
    """timm's model with the same rotations and weights, for images of 28 px."""
    rotations = {
        "rope": {"rope_type": "cat", "rope_temperature": 100.0, "rope_grid_indexing": "xy"},
        "rope_mixed": {"rope_type": "mixed", "rope_temperature": 10.0, "rope_grid_indexing": "xy"},
        "rope_dinov3": {"rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True},
    }
    theirs = timm.models.eva.Eva(
        **{"img_size": 28, "patch_size": 4, "in_chans": 1, "num_classes": 10, "global_pool": "token"},
        **{"attn_type": "rope", "use_rot_pos_emb": True, "use_abs_pos_emb": False, "norm_layer": nn.LayerNorm},
        **SHAPE | rotations[kind] | more,
    ).eval()
    theirs.load_state_dict(ours.state_dict())
    for norm in (module for module in theirs.modules() if isinstance(module, nn.LayerNorm)):
        norm.eps = 1e-6
    return theirs


@torch.no_grad()
@EVERY_KIND
def test_build_encoder__rotations__computes_what_timm_computes(kind):
    ours = strong(tiny_encoder(pos_embed=kind))
    torch.testing.assert_close(ours(images()), timm_twin(ours, kind)(images()), atol=1e-5, rtol=0)


def test_build_encoder__rope_mixed__starts_from_the_frequencies_of_timm():
    """In random directions; their lengths are the same in every head."""
    theirs = timm.create_model("vit_small_patch16_rope_mixed_224", img_size=32, **SHAPE).rope.freqs
    ours = tiny_encoder(pos_embed="rope_mixed").rope.freqs
    assert ours.requires_grad and ours.shape == theirs.shape
    torch.testing.assert_close(ours.square().sum(dim=0), theirs.square().sum(dim=0))


def test_load__scaled_blocks_without_layer_scale__is_refused_with_the_field(tmp_path):
    _, path = timm_file("vit_small_patch16_rope_224", tmp_path)
    cfg = tiny_model(arch="vit_small_patch16_224", patch_size=16, pos_embed="rope", **SHAPE)
    with pytest.raises(CheckpointError, match=r"model\.layer_scale"):
        load_encoder(build_encoder(cfg, (32, 48), 3, 5), path)


def test_load__registers__are_refused(tmp_path):
    weights = tiny_encoder(pos_embed="rope_dinov3").state_dict()
    save_file(weights | {"reg_token": torch.zeros(1, 4, 32)}, tmp_path / "dino.safetensors")
    with pytest.raises(CheckpointError, match="4 registers"):
        load_encoder(tiny_encoder(pos_embed="rope_dinov3"), tmp_path / "dino.safetensors")


# What a rotation is


@torch.no_grad()
@UNBOUNDED
def test_rotation__all_patches_one_place_further__changes_no_score_between_patches(kind):
    rotary = tiny_encoder(pos_embed=kind).blocks[1].attn.rotary
    query, key = torch.randn(2, N, 16, dtype=torch.float64)
    moved = [place for place in range(N) if place % 7 < 6 and place < 42]  # one row down and one column right exist

    def scores(places):
        turns = rotary.of_block(1).double().view(-1, 1 + N, 8, 2)[0, [1 + place for place in places]]
        cosines, sines = turns.repeat_interleave(2, dim=1).unbind(dim=-1)
        turn = lambda x: x * cosines + torch.stack([-x[:, 1::2], x[:, ::2]], dim=-1).flatten(1) * sines  # noqa: E731
        return turn(query[: len(places)]) @ turn(key[: len(places)]).T

    torch.testing.assert_close(scores([place + 8 for place in moved]), scores(moved), atol=1e-4, rtol=0)
    assert (scores([*moved[1:], 48]) - scores(moved)).abs().max() > 0.1


@torch.no_grad()
@EVERY_KIND
def test_encode__every_patch_at_its_own_place__is_the_plain_pass(kind):
    encoder, seen = strong(tiny_encoder(pos_embed=kind)), images()
    plain, own = encode(encoder, seen), all_places(GRID, seen.device)
    for places in (own, own.expand(3, -1)):
        torch.testing.assert_close(encode(encoder, seen, places=places), plain, atol=0, rtol=0)
    assert (encode(encoder, seen, places=own.flip(1)) - plain).abs().max() > 0.1
    torch.testing.assert_close(encoder.forward_features(seen), plain, atol=1e-5, rtol=0)  # nothing is left behind


@torch.no_grad()
@EVERY_KIND
def test_encode__no_patch_has_a_place__is_the_model_without_positions(kind):
    encoder, bare = (tiny_encoder(pos_embed=name, dropout=0.3).eval() for name in (kind, "none"))
    strong(encoder)
    for block in (*encoder.blocks, *bare.blocks):
        block.attn.q_norm = block.attn.k_norm = nn.LayerNorm(block.attn.head_dim, elementwise_affine=False)
    bare.load_state_dict({name: value for name, value in encoder.state_dict().items() if name != "rope.freqs"})
    nowhere, seen = torch.full((1, N), NOWHERE), images().double()  # sums of another order differ less there
    encoder, bare = encoder.double(), bare.double()
    torch.testing.assert_close(encode(encoder, seen, places=nowhere), encode(bare, seen), atol=1e-12, rtol=0)


@torch.no_grad()
@EVERY_KIND
def test_at_places__another_grid__has_the_rotations_of_that_grid(kind):
    small, large = (strong(build_tiny(tiny_model(pos_embed=kind), image_size=size)) for size in (28, (32, 40)))
    large.load_state_dict(small.state_dict())
    for block in range(2):
        with at_places(small, None, Grid(8, 10)):
            found = small.blocks[block].attn.rotary.of_block(block)
        torch.testing.assert_close(found, large.blocks[block].attn.rotary.of_block(block))


# The kinds differ in how a table is made, and the places in which entries are taken from it; each of both once.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("rope", "own places"),
        ("rope_mixed", "places of each image"),
        ("rope_mixed", "another grid"),
        ("rope_dinov3", "places of each image"),
    ],
)
def test_encode__compiled__is_one_graph_with_the_same_outputs_and_gradients(kind, where):
    encoder = strong(tiny_encoder(pos_embed=kind)).train()
    seen = torch.randn(3, 1, 32, 40) if where == "another grid" else images()
    places = hidden_at(orders(), orders() < 9) if where == "places of each image" else None

    def loss(images):
        if where == "another grid":
            return torch.stack([found.square().mean() for found in feature_maps(encoder, images)]).sum()
        return encode(encoder, images, places=places).square().mean()

    torch._dynamo.reset()
    results = []
    for run in (torch.compile(loss, backend="aot_eager", fullgraph=True), loss):
        encoder.zero_grad()
        found = run(seen)
        found.backward()
        weights = [encoder.blocks[0].attn.qkv.weight, *([encoder.rope.freqs] if kind == "rope_mixed" else [])]
        results.append([found.detach(), *(weight.grad.clone() for weight in weights)])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@EVERY_KIND
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float64])
def test_encode__in_another_precision__has_the_outputs_of_float32(kind, precision):
    encoder, seen = strong(tiny_encoder(pos_embed=kind)), images()
    with torch.no_grad():
        expected = encode(encoder, seen)
        found = encode(copy.deepcopy(encoder).to(precision), seen.to(precision))
        with torch.autocast("cpu", torch.bfloat16):
            in_autocast = encode(encoder, seen)
    assert found.dtype == precision
    close = 0.15 if precision == torch.bfloat16 else 1e-4
    torch.testing.assert_close(found.float(), expected, atol=close, rtol=0)
    torch.testing.assert_close(in_autocast.float(), expected, atol=0.15, rtol=0)


# MJP: the unknown position is no rotation


@torch.no_grad()
@EVERY_KIND
@pytest.mark.parametrize("beside", [{}, {"add_absolute": True}], ids=["alone", "beside a table"])
def test_mjp__shuffled_patches__keep_their_content_and_have_no_place(kind, beside):
    method = method_of("mjp", {"dal": "none"}, pos_embed=kind, **beside)
    chosen = torch.arange(N)[None] % 3 == 1
    moved = torch.arange(N)
    moved[chosen[0]] = moved[chosen[0]].roll(1)
    seen, shuffled = images(), shuffle_patches(images(), moved[None], GRID)
    plain = method.predict(seen, chosen).logits
    torch.testing.assert_close(method.predict(shuffled, chosen).logits, plain, atol=1e-5, rtol=0)
    # With their new coordinates instead, the same shuffle is noticed.
    assert (method.predict(shuffled).logits - method.predict(seen).logits).abs().max() > 0.05
    assert (plain - method.predict(seen).logits).abs().max() > 0.05


@torch.no_grad()
@EVERY_KIND
def test_mjp__loss_without_the_unknown_position__is_plain_training_on_shuffled_images(kind):
    """A patch takes the coordinates of the slot where it is put, and not those that it had."""
    method, batch, order = method_of("mjp", {"dal": "none", "unknown": False}, pos_embed=kind), tiny_batch(3), orders(1)
    draw = {"order": order, "shuffled": torch.ones(1, N, dtype=torch.bool), "dal_weight": torch.tensor(0.0)}
    found = method(batch.images, batch.targets, draw).loss
    plain, shuffled = (
        F.cross_entropy(method.encoder(seen), batch.targets)
        for seen in (batch.images, shuffle_patches(batch.images, order, GRID))
    )
    torch.testing.assert_close(found, shuffled, atol=1e-5, rtol=0)
    assert (found - plain).abs() > 0.01


@torch.no_grad()
@EVERY_KIND
def test_mjp__loss_with_the_unknown_position__depends_on_where_patches_stayed_alone(kind):
    method, batch = method_of("mjp", {"dal": "none"}, pos_embed=kind), tiny_batch(3)
    shuffled = torch.arange(N)[None] % 3 == 1
    order = torch.arange(N)[None].clone()
    order[shuffled] = order[shuffled].roll(1)

    def loss(order, shuffled):
        draw = {"order": order, "shuffled": shuffled, "dal_weight": torch.tensor(0.0)}
        return method(batch.images, batch.targets, draw).loss

    plain = torch.arange(N)[None]
    torch.testing.assert_close(loss(order, shuffled), loss(plain, shuffled), atol=1e-5, rtol=0)
    assert (loss(plain, shuffled) - loss(plain, torch.zeros_like(shuffled))).abs() > 0.01


def test_mjp__learned_frequencies__have_a_gradient_from_patches_with_a_place_only():
    method = method_of("mjp", {"dal": "none", "warmup_ratio": 0.0}, pos_embed="rope_mixed").train()
    batch = tiny_batch(4)
    draw = {**method.draw(batch, 0.5), "order": torch.arange(N)[None]}
    for hidden, expected in ((torch.zeros(1, N, dtype=torch.bool), True), (torch.ones(1, N, dtype=torch.bool), False)):
        method.zero_grad()
        method(batch.images, batch.targets, {**draw, "shuffled": hidden}).loss.backward()
        assert bool(method.encoder.rope.freqs.grad.abs().max() > 0) is expected


def test_mjp__localisation_without_a_table__is_refused():
    with pytest.raises(ValueError, match="reads and adds to a table"):
        METHODS.get("mjp").Config().check(tiny_model(pos_embed="rope"), 28)


# MP3: none in pretraining


@torch.no_grad()
def test_mp3__permuted_patches__give_permuted_answers_and_weights_that_a_rotary_model_takes(tmp_path):
    method = method_of("mp3", {"mask_ratio": 0.5}, pos_embed="none")
    order, patches = orders(), to_patches(images(), GRID)
    moved = to_images(take(patches, order), (28, 28), GRID)
    own = torch.arange(N).expand(3, -1)
    there, here = method.position_logits(moved, own, 24), method.position_logits(images(), order, 24)
    torch.testing.assert_close(there, here, atol=1e-5, rtol=0)
    others = torch.cat([torch.arange(24).flip(0), torch.arange(24, N).flip(0)])  # slots in another order, too
    torch.testing.assert_close(
        method.position_logits(images(), order[:, others], 24), here[:, others], atol=1e-5, rtol=0
    )
    save_file(method.encoder.state_dict(), tmp_path / "mp3.safetensors")
    finetuned = tiny_encoder(pos_embed="rope_mixed")
    report = load_encoder(finetuned, tmp_path / "mp3.safetensors")
    assert set(report.fresh) == {"rope.freqs", "head.weight", "head.bias"}
    torch.testing.assert_close(finetuned.blocks[0].attn.qkv.weight, method.encoder.blocks[0].attn.qkv.weight)


@EVERY_KIND
def test_mp3__rotations_in_pretraining__are_refused(kind):
    with pytest.raises(ValueError, match="finetuning may have them"):
        METHODS.get("mp3").Config().check(tiny_model(pos_embed=kind), 28)


@pytest.mark.parametrize("kind", ["learn", "sincos", "sincos_learn", "relative"])
def test_mp3__any_other_positions_in_pretraining__are_refused(kind):
    with pytest.raises(ValueError, match=f"found {kind}"):
        METHODS.get("mp3").Config().check(tiny_model(pos_embed=kind), 28)


# DropPos: dropped patches have none, anchors theirs


@torch.no_grad()
@CARRIED_OR_BOTH
def test_droppos__dropped_patches_in_another_order__are_told_apart_by_content_only(kind, beside):
    method = method_of("droppos", {**DECODER, "mask_ratio": 0.5}, pos_embed=kind, **beside)
    order, visible, anchors = orders(), 24, 8
    found = method.position_logits(images(), order, visible, anchors)
    other = torch.cat([order[:, :anchors], order[:, anchors:visible].flip(1), order[:, visible:]], dim=1)
    flipped = method.position_logits(images(), other, visible, anchors)
    torch.testing.assert_close(flipped.flip(1), found, atol=1e-5, rtol=0)
    assert found.shape == (3, visible - anchors, N)


@torch.no_grad()
@EVERY_CARRIED
def test_droppos__anchors_with_content_of_others__change_the_answers_of_dropped_patches(kind):
    """Which content stands at which anchor is seen; where every position is dropped, nothing of the kind is."""
    method = method_of("droppos", {**DECODER, "mask_ratio": 0.5}, pos_embed=kind)
    order = orders()
    swapped = torch.arange(N).expand(3, -1).clone()
    first, second = order[:, :1], order[:, 1:2]
    swapped.scatter_(1, first, second).scatter_(1, second, first)
    moved = to_images(take(to_patches(images(), GRID), swapped), (28, 28), GRID)
    here, there = (method.position_logits(seen, order, 24, 8) for seen in (images(), moved))
    assert (here - there).abs().max() > 1e-3
    nowhere = [method.position_logits(seen, order, 24, 0)[:, 2:] for seen in (images(), moved)]
    torch.testing.assert_close(*nowhere, atol=1e-5, rtol=0)


# MAE: visible patches have their own


@torch.no_grad()
@EVERY_CARRIED
def test_mae__visible_patches_in_another_order__rebuild_the_same_pixels(kind):
    method = method_of("mae", DECODER, pos_embed=kind)
    order, count = orders(), method.num_visible
    other = torch.cat([order[:, :count].flip(1), order[:, count:]], dim=1)
    found = method.pixel_errors(images(), order)
    torch.testing.assert_close(method.pixel_errors(images(), other), found, atol=1e-5, rtol=0)
    # The encoder itself sees where they are: the same patches at other places leave it as something else.
    encoded = []
    method.decoder.embed.register_forward_pre_hook(lambda _, given: encoded.append(given[0]))
    patches = take(to_patches(images(), GRID), order)[:, :count]
    for places in (order, order.flip(1)):
        method.rebuild(patches, places)
    assert (encoded[0] - encoded[1]).abs().max() > 0.05


# ST: rows take their coordinates along, and few keys survive


@torch.no_grad()
@pytest.mark.parametrize("kind", ["none", "learn", "sincos", *ROTARY])
def test_rows__permuted_with_their_coordinates__change_nothing(kind):
    encoder = strong(tiny_encoder(pos_embed=kind))
    plain = encoder(images())
    rows = torch.randperm(1 + N, generator=torch.Generator().manual_seed(0))
    with permuted(encoder, rows=rows, taps=(0,)):
        torch.testing.assert_close(encoder(images()), plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder(images()), plain, atol=0, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "heads", "inner", "is_exact"),
    [
        ("rope", True, False, True),
        ("rope", True, True, False),
        ("rope_dinov3", True, False, True),
        ("rope_mixed", False, False, True),
        ("rope_mixed", True, False, False),
    ],
)
def test_key__columns_of_heads_in_place__is_exact_and_others_are_not(kind, heads, inner, is_exact):
    encoder = strong(tiny_encoder(pos_embed=kind))
    key = new_key(Shape("vit", 32, 2, 2, 32), "shared", Random(1))
    key.heads[:] = torch.tensor([1, 0] if heads else [0, 1])
    if not inner:
        key.inner[:] = torch.arange(16)
    locked = tiny_encoder(pos_embed=kind).eval()
    weights = {name: value for name, value in encoder.state_dict().items() if name != "rope.freqs"}
    locked.load_state_dict({**encoder.state_dict(), **permute_state(weights, key)})
    with permuted(locked, key):
        difference = (locked(images()) - encoder(images())).abs().max()
    assert bool(difference < 1e-4) is is_exact


@EVERY_KIND
def test_key__of_a_rotary_model__is_refused_with_the_reason(kind):
    with pytest.raises(ConfigError, match="mix the columns inside each head"):
        shape_of(tiny_encoder(pos_embed=kind))
    locked = METHODS.get("supervised").Config(permutation={"key": "used"})
    with pytest.raises(ValueError, match="turns pairs of columns"):
        locked.check(tiny_model(pos_embed=kind), 28)


@pytest.mark.parametrize(("kind", "rows"), [("rope", True), ("rope_mixed", False)])
def test_split__rotations_that_rows_or_training_would_leave_behind__are_refused(kind, rows):
    with pytest.raises(ConfigError, match="needs fixed frequencies and rows in order"):
        split(tiny_encoder(pos_embed=kind, add_absolute=True), FeatureProtection(rows=rows))


# The probe of positions


@torch.no_grad()
@EVERY_KIND
def test_position_probe__masked_rotations__are_none_and_the_others_their_own(kind):
    method = method_of("supervised", pos_embed=kind)
    for ratio, expected in ((1.0, NOWHERE), (0.02, None)):
        reader = PositionReader(PositionProbe.Config(position_ratio=ratio), method)
        tokens, masked = reader.tokens(images(), torch.Generator().manual_seed(0))
        places = all_places(GRID, tokens.device).masked_fill(masked, NOWHERE)
        assert expected is None or (places == expected).all()
        torch.testing.assert_close(tokens, encode(method.encoder, images(), places=places)[:, 1:])


# APRIL: rotations come after the projections


@EVERY_KIND
def test_april__gradient_at_every_slot__recovers_the_images(kind):
    method = METHODS.get("supervised")(
        METHODS.get("supervised").Config(), strong(tiny_encoder(embed_dim=64, pos_embed=kind))
    )
    seen = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    found = attack(method, seen, torch.tensor([1, 4])).images
    torch.testing.assert_close(found, seen.double(), atol=1e-3, rtol=0)


@EVERY_KIND
def test_april__parameters_only__have_no_gradient_at_the_slots(kind):
    reason = reason_against(tiny_model(pos_embed=kind), Assumptions(given="parameters"))
    assert "no parameter has the gradient at the slots" in reason
    beside = tiny_model(pos_embed=kind, add_absolute=True)
    assert not reason_against(beside, Assumptions(given="parameters"))
