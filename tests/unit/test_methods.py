"""What every method must do. Parametrised over the registry: a new method is tested by existing."""

from functools import partial

import pytest
import timm
import torch
from method_cases import CASES, HEADLESS, OF_TEXTS, PATHS, batch_for, bench_for, build, of_task, size_of
from readable_failures import refuse
from timm.models.eva import Eva
from timm.models.vision_transformer_sam import VisionTransformerSAM
from tiny_vit import CHANNELS
from torch import nn

from pipeline.core.sizes import pair
from pipeline.method_checks.bench import compute_loss
from pipeline.method_checks.declared import check_method_class
from pipeline.method_checks.devices import check_devices
from pipeline.method_checks.exports import check_state, compare_tensors
from pipeline.method_checks.gradients import check_gradients
from pipeline.method_checks.graphs import check_graph
from pipeline.method_checks.outputs import check_batch_sizes, check_inputs_kept, check_outputs, check_randomness
from pipeline.method_checks.training import check_bf16, check_overfits
from pipeline.methods.base import METHODS
from pipeline.models.dense import feature_maps
from pipeline.models.position import encode
from pipeline.permutation.rules import unpermute_state

every_method = pytest.mark.parametrize("case", CASES)
CLOSE = 1e-5  # features of the same weights


@pytest.mark.slow
@every_method
def test_forward__any_progress__gives_a_finite_scalar_loss_and_scalars_to_log(case):
    refuse(check_outputs(bench_for(case)))


@pytest.mark.slow
@every_method
def test_backward__over_at_most_32_draws__reaches_every_trainable_parameter_and_leaves_none_without_gradient(case):
    refuse(check_gradients(bench_for(case)))


# torch's PCA draws by itself, from the generator that every step seeds.
@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "mjp row H (pca)"])
def test_draw__same_seed__is_the_same_and_nothing_else_is_random(case):
    refuse(check_randomness(bench_for(case)))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS.names())
def test_loss__of_every_method__leaves_its_inputs_as_they_are_and_takes_any_number_of_samples(name):
    refuse([*check_inputs_kept(bench_for(name)), *check_batch_sizes(bench_for(name))])


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS.names())
def test_loss__of_every_method__is_computed_on_the_device_of_the_batch(name):
    refuse(check_devices(bench_for(name)))


@pytest.mark.parametrize("name", METHODS.names())
def test_class__of_every_method__states_its_name_its_task_and_the_range_of_every_number(name):
    refuse(check_method_class(name, METHODS.get(name)))


# Row C scrambles every image in half of the steps: that it does not fit is what the paper finds.
@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in PATHS if case in of_task("classify") and case != "mjp row C"])
def test_training__one_batch_for_at_most_80_steps__brings_the_loss_below_a_tenth_of_its_start(case):
    refuse(check_overfits(bench_for(case), steps=80, bar=0.1, same_draw=False))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in PATHS if case in of_task("pretrain") + of_task("language")])
def test_pretraining__one_batch_and_one_draw__overfits(case):
    longer = {} if CASES[case].name == "mae" else {"steps": 80, "bar": 0.1}
    refuse(check_overfits(bench_for(case), **longer))


@pytest.mark.slow
@every_method
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_forward__bf16_autocast__is_finite_and_close_to_fp32(case):
    refuse(check_bf16(bench_for(case)))


# What is traced of these is a part of what is traced of another: of a detector with windows, of DropPos.
PARTS_OF_OTHERS = ("mask_rcnn", "droppos, no attentive reconstruction", "droppos, learned positions")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in PATHS if case not in PARTS_OF_OTHERS])
def test_compile__several_draws__is_one_graph_compiled_once(case):
    """Or one for each of the parts that compile."""
    refuse(check_graph(bench_for(case, model=shallow(CASES[case].model))))


def shallow(model):
    """With one block of each kind: a second one of a kind takes as long to trace, and adds nothing."""
    if model.family in ("vit", "bert", "gpt2") and not model.is_windowed:
        return model.model_copy(update={"depth": 1})
    if model.family == "swin":  # the second block of a stage shifts its windows
        return model.model_copy(update={"depths": (2,) + (1,) * (len(model.depths) - 1)})
    return model


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_TEXTS])
def test_export__trained_one_step__loads_into_plain_timm_with_the_same_features(case):
    method, batch = build(case), batch_for(case)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    compute_loss(method, batch).loss.backward()
    optimizer.step()
    method.eval()
    height, width = pair(size_seen(method, case))
    images = batch.images[..., :height, :width]
    with torch.no_grad():
        expected = features_of(method, images) if method.cfg.task in HEADLESS else method.predict(images).logits

    encoder = method.export().eval()
    weights = unlocked(encoder.state_dict(), method)
    plain = plain_timm(CASES[case].model, (height, width), encoder.num_classes)
    extra = extra_keys(CASES[case].model)
    assert [key for key in extra if key not in weights] == []
    loaded = {key: value for key, value in weights.items() if key not in extra}
    refuse(compare_tensors(f"{type(method).__name__}.export", loaded, plain.state_dict()))
    plain.load_state_dict(loaded)
    restore(plain, {key: weights[key] for key in extra})
    with torch.no_grad():
        found = plain_features(plain, method, images) if method.cfg.task in HEADLESS else plain(images)
    torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)


def features_of(method, images):
    """What the encoder of a method gives to its heads."""
    return encode(method.encoder, images) if method.cfg.task == "pretrain" else feature_maps(method.encoder, images)[-1]


def plain_features(plain, method, images):
    """The same of timm's."""
    if method.cfg.task == "pretrain":
        return plain.forward_features(images)
    return plain.forward_intermediates(images, intermediates_only=True)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("case", OF_TEXTS)
def test_export__text_model_trained_one_step__loads_into_plain_transformers_with_the_same_tokens(case):
    method, batch = build(case), batch_for(case)
    compute_loss(method, batch).loss.backward()
    torch.optim.SGD(method.parameters(), lr=0.1).step()
    encoder = method.eval().export()
    prefix = "bert." if CASES[case].model.family == "bert" else "transformer."
    weights = {
        name.removeprefix(prefix): value
        for name, value in unlocked(encoder.state_dict(), method).items()
        if name.startswith(prefix)
    }
    plain = plain_transformers(CASES[case].model, has_pooler="pooler.dense.weight" in weights)
    plain.load_state_dict(weights)
    texts = batch.inputs
    types = {"token_type_ids": texts["types"]} if "types" in texts and prefix == "bert." else {}
    with torch.no_grad():
        found = plain(texts["ids"], attention_mask=texts["mask"].long(), **types).last_hidden_state
        expected = encode(method.encoder, texts)
    torch.testing.assert_close(found[texts["mask"]], expected[texts["mask"]], rtol=0, atol=CLOSE)


def plain_transformers(model, has_pooler):
    """transformers alone, without a line of ours."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    if model.family == "gpt2":
        shape = {"n_embd": model.embed_dim, "n_layer": model.depth, "n_head": model.num_heads, "n_positions": 12}
        return GPT2Model(GPT2Config(vocab_size=40, **shape)).eval()
    shape = {"hidden_size": model.embed_dim, "num_hidden_layers": model.depth, "num_attention_heads": model.num_heads}
    shape |= {"intermediate_size": 4 * model.embed_dim, "max_position_embeddings": 12}
    return BertModel(BertConfig(vocab_size=40, **shape), add_pooling_layer=has_pooler).eval()


def unlocked(weights, method):
    """Those of a method with a key are locked; whoever has it unlocks them."""
    return unpermute_state(weights, method.key) if getattr(method, "key", None) else weights


def size_seen(method, case):
    return method.cfg.encoder_size(size_of(case))


def plain_timm(model, image_size, num_classes):
    """timm alone, without a line of ours."""
    shape = {}
    if model.is_windowed:
        return plain_windowed(model, image_size)
    if model.is_rotary:
        return plain_rotary(model, image_size, num_classes)
    if model.family != "cnn":
        keys = ("patch_size", "embed_dim", "depth", "depths", "num_heads", "window_size")
        shape = {"img_size": image_size} | {key: getattr(model, key) for key in keys if getattr(model, key) is not None}
    if model.family == "vit":
        shape["pos_embed"] = "none" if model.positions in ("none", "relative") else "learn"
        shape["global_pool"] = "avg" if model.pool == "avg" else "token"
    return timm.create_model(model.arch, in_chans=CHANNELS, num_classes=num_classes, **shape).eval()


def plain_rotary(model, image_size, num_classes):
    """timm's EVA, as its RoPE-ViT and DINOv3 are built."""
    kind = {"rope": ("cat", "xy", 100.0), "rope_mixed": ("mixed", "xy", 10.0), "rope_dinov3": ("dinov3", "ij", 100.0)}
    names = ("rope_type", "rope_grid_indexing", "rope_temperature")
    shape = {key: getattr(model, key) for key in ("patch_size", "embed_dim", "depth", "num_heads")}
    return Eva(
        img_size=image_size,
        in_chans=CHANNELS,
        num_classes=num_classes,
        global_pool="token",
        attn_type="rope",
        use_rot_pos_emb=True,
        use_abs_pos_emb=model.add_absolute,
        rope_rotate_half=model.pos_embed == "rope_dinov3",
        **shape,
        **dict(zip(names, kind[model.pos_embed], strict=True)),
    ).eval()


def plain_windowed(model, image_size):
    """SAM's image encoder without what comes after its blocks; its last block is global."""
    shape = {key: getattr(model, key) for key in ("patch_size", "embed_dim", "depth", "num_heads", "window_size")}
    shape |= {"img_size": image_size, "in_chans": CHANNELS, "norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    shape["use_rel_pos"] = model.add_relative
    plain = VisionTransformerSAM(**shape, global_attn_indexes=(model.depth - 1,), neck_chans=0)
    plain.neck = plain.head = nn.Identity()
    return plain.eval()


def extra_keys(model):
    """What timm has no place for: a Swin's absolute positions, a ViT's relative ones."""
    if model.family == "swin" and model.positions != "none":
        return ["pos_embed"]
    if model.positions == "relative" or (model.add_relative and not model.is_windowed):
        return [f"blocks.{number}.attn.rel_pos.relative_position_bias_table" for number in range(model.depth)]
    return []


def restore(plain, extra):
    """Put extra keys where they belong, from outside."""
    for key, value in extra.items():
        if key == "pos_embed":
            plain.patch_embed.register_forward_hook(lambda _, __, out, value=value: out + value.view(1, *out.shape[1:]))
        else:
            add_relative_bias(plain.blocks[int(key.split(".")[1])].attn, value)


def add_relative_bias(attn, table):
    """Of two patches: the row of their offset. The last three rows: CLS to patch, patch to CLS, CLS to CLS."""
    bias = torch.zeros(1, table.shape[1], 50, 50)
    places = [(index // 7, index % 7) for index in range(49)]
    for query, (row, col) in enumerate(places):
        for key, (other_row, other_col) in enumerate(places):
            bias[0, :, 1 + query, 1 + key] = table[(row - other_row + 6) * 13 + col - other_col + 6]
    bias[0, :, 0, 1:], bias[0, :, 1:, 0], bias[0, :, 0, 0] = table[-3][:, None], table[-2][:, None], table[-1]
    plain_forward = attn.forward
    attn.forward = lambda x, attn_mask=None, is_causal=False: plain_forward(x, attn_mask=bias)


@pytest.mark.slow
@every_method
def test_state_dict__loaded_into_another_start__gives_the_same_loss(case):
    refuse(check_state(bench_for(case)))


# Dropout


# A detector takes the same maps of a ViT as `upernet`, and is slow.
PLAIN_VITS = [case for case in METHODS.names() if CASES[case].model.family == "vit" and case != "mask_rcnn"]


@pytest.mark.slow
@pytest.mark.parametrize("case", PLAIN_VITS)
def test_dropout__in_each_single_place_of_a_vit__is_drawn_in_training(case):
    """Also by methods that take the encoder apart instead of calling timm's forward."""
    method, batch = build(case), batch_for(case, 4)
    draw, drops = method.draw(batch, 0.5), dropouts(method)
    places = {name.split(".")[-1] for name in dropouts(method.encoder)} - {"patch_drop"}
    places -= {"head_drop"} if method.cfg.task in HEADLESS else set()
    assert places >= {"pos_drop", "attn_drop", "proj_drop", "drop1", "drop2"}

    def losses(place):
        for name, drop in drops.items():
            drop.p = 0.5 if name.startswith("encoder.") and name.endswith(f".{place}") else 0.0
        return [seeded_loss(method, batch, draw, seed) for seed in (1, 2)]

    assert torch.equal(*losses("nowhere"))
    assert [place for place in places if torch.equal(*losses(place))] == []


def dropouts(module):
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.modules.dropout._DropoutNd)}


def seeded_loss(method, batch, draw, seed):
    torch.manual_seed(seed)
    return method(batch.inputs, batch.targets, draw).loss
