"""What every method must do. Parametrised over the registry: a new method is tested by existing."""

from copy import deepcopy
from functools import partial

import pytest
import timm
import torch
from method_cases import CASES, HEADLESS, OF_TEXTS, PATHS, batch_for, build, loss_of, of_task, seeded, size_of
from timm.models.vision_transformer_sam import VisionTransformerSAM
from tiny_vit import CHANNELS
from torch import nn

from pipeline.methods.base import METHODS
from pipeline.models.dense import feature_maps
from pipeline.models.position import encode
from pipeline.permutation.rules import unpermute_state
from pipeline.sizes import pair

every_method = pytest.mark.parametrize("case", CASES)


@pytest.mark.slow
@every_method
def test_forward__any_progress__gives_a_finite_scalar_loss_and_scalars_to_log(case):
    method, batch = build(case), batch_for(case)
    for progress in (0.0, 0.5, 1.0):
        out = loss_of(method, batch, progress)
        assert out.loss.shape == () and out.loss.requires_grad
        assert torch.isfinite(out.loss)
        assert all(value.shape == () and torch.isfinite(value) for value in out.scalars.values())
        assert not any(value.requires_grad for value in out.scalars.values())


@pytest.mark.slow
@every_method
def test_backward__over_at_most_32_draws__reaches_every_trainable_parameter(case):
    method, batch = build(case), batch_for(case, 4)
    # A first step, because timm starts a ResNet's branches from 0, which hides what is in them.
    loss_of(method, batch).loss.backward()
    torch.optim.SGD(method.parameters(), lr=0.1).step()
    method.zero_grad()
    trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
    for _ in range(32):
        loss_of(method, batch).loss.backward()
        unreached = [name for name, p in trained.items() if p.grad is None or not p.grad.any()]
        if not unreached:
            break
    assert unreached == []
    assert all(torch.isfinite(p.grad).all() for p in trained.values())


@pytest.mark.slow
@every_method
def test_backward__single_step__leaves_no_parameter_without_gradient(case):
    """DDP waits for every parameter in every step, shuffled or not."""
    method = build(case)
    for progress in (0.0, 0.5):
        method.zero_grad(set_to_none=True)
        loss_of(method, batch_for(case, 4), progress).loss.backward()
        assert [name for name, p in method.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.slow
@every_method
def test_draw__same_seed__gives_the_same_loss_bit_for_bit(case):
    method, batch = build(case), batch_for(case)
    losses = [loss_of(method, seeded(batch, 3)).loss for _ in range(2)]
    assert torch.equal(*losses)


def train(method, batches, lr, progress):
    """Yields after every tenth step."""
    optimizer = torch.optim.AdamW(method.parameters(), lr=lr, weight_decay=0.0)
    for step, batch in enumerate(batches, start=1):
        out = loss_of(method, batch, progress(step))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        if step % 10 == 0:
            yield step


# Row C scrambles every image in half of the steps: that it does not fit is what the paper finds.
@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in PATHS if case in of_task("classify") and case != "mjp row C"])
def test_training__one_batch_for_at_most_80_steps__brings_the_loss_below_a_tenth_of_its_start(case):
    method, batch = build(case), batch_for(case, 8)  # each of another class: no constant answer fits
    first = loss_of(method, batch, 0.0).loss.item()
    # Unshuffled, so that the last draw does not decide.
    after = train(method, [batch] * 80, 6e-3, lambda step: step / 80)
    assert any(loss_of(method, batch, 0.0).loss.item() < 0.1 * first for _ in after)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in PATHS if case in of_task("pretrain") + of_task("language")])
def test_pretraining__one_batch_and_one_draw__is_learnt_by_heart(case):
    """At progress 1, where DropPos no longer smooths its targets and its loss can reach 0.

    To name the mean of a patch gives MAE half of its start; less takes the pixels themselves, and more steps.
    """
    steps, bar = (200, 0.25) if CASES[case].name == "mae" else (80, 0.1)
    method, batch = build(case), batch_for(case, 2)
    first = loss_of(method, seeded(batch, 3), 1.0).loss.item()
    after = train(method, [seeded(batch, 3) for _ in range(steps)], 6e-3, lambda step: 1.0)
    assert any(loss_of(method, seeded(batch, 3), 1.0).loss.item() < bar * first for _ in after)


@pytest.mark.slow
@every_method
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_forward__bf16_autocast__is_finite_and_close_to_fp32(case):
    method, batch = build(case), batch_for(case)
    plain = loss_of(method, seeded(batch, 3)).loss
    with torch.autocast("cpu", torch.bfloat16):
        out = loss_of(method, seeded(batch, 3))
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert out.loss.item() == pytest.approx(plain.item(), rel=0.02)
    assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.requires_grad)


# What is traced of these is a part of what is traced of another: of a detector with windows, of DropPos.
PARTS_OF_OTHERS = ("mask_rcnn", "droppos, no attentive reconstruction", "droppos, learned positions")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in PATHS if case not in PARTS_OF_OTHERS])
def test_compile__several_draws__is_one_graph_compiled_once(case):
    """Or one for each of the parts that compile."""
    method, batch = build(case, model=shallow(CASES[case].model)), batch_for(case, 2)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = compiled_twin(method)
    with torch._dynamo.config.patch(error_on_recompile=True):
        # With seed 0 to 5 and both ends of the schedule there are draws that shuffle and draws that do not.
        for seed, progress in enumerate((0.0, 0.5, 0.5, 0.9, 0.9, 1.0)):
            found = loss_of(method, seeded(batch, seed), progress, compiled).loss
            expected = loss_of(method, seeded(batch, seed), progress).loss
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(method.compiled or ("all",))
    assert not torch._dynamo.utils.counters["graph_break"]


def shallow(model):
    """With one block of each kind: a second one of a kind takes as long to trace, and adds nothing."""
    if model.family in ("vit", "bert", "gpt2") and not model.is_windowed:
        return model.model_copy(update={"depth": 1})
    if model.family == "swin":  # the second block of a stage shifts its windows
        return model.model_copy(update={"depths": (2,) + (1,) * (len(model.depths) - 1)})
    return model


def compiled_twin(method):
    if method.compiled is None:
        return torch.compile(method, backend="eager", fullgraph=True)
    twin = deepcopy(method)
    for name in method.compiled:
        twin.get_submodule(name).compile(backend="eager", fullgraph=True)
    return twin


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_TEXTS])
def test_export__trained_one_step__loads_into_plain_timm_with_the_same_features(case):
    method, batch = build(case), batch_for(case)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    loss_of(method, batch).loss.backward()
    optimizer.step()
    method.eval()
    height, width = pair(size_seen(method, case))
    images = batch.images[..., :height, :width]
    with torch.no_grad():
        expected = features_of(method, images) if method.cfg.task in HEADLESS else method.predict(images).logits

    encoder = method.export().eval()
    weights = unlocked(encoder.state_dict(), method)
    plain = plain_timm(CASES[case].model, (height, width), encoder.num_classes)
    missing, unexpected = plain.load_state_dict(weights, strict=False)

    assert missing == []
    assert unexpected == extra_keys(CASES[case].model)
    restore(plain, {key: weights[key] for key in unexpected})
    with torch.no_grad():
        found = plain_features(plain, method, images) if method.cfg.task in HEADLESS else plain(images)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def features_of(method, images):
    """What the encoder of a method gives to its heads."""
    return encode(method.encoder, images) if method.cfg.task == "pretrain" else feature_maps(method.encoder, images)[-1]


def plain_features(plain, method, images):
    """The same of timm's."""
    if method.cfg.task == "pretrain":
        return plain.forward_features(images)
    return plain.forward_intermediates(images, intermediates_only=True)[-1]


@pytest.mark.parametrize("case", OF_TEXTS)
def test_export__text_model_trained_one_step__loads_into_plain_transformers_with_the_same_tokens(case):
    method, batch = build(case), batch_for(case)
    loss_of(method, batch).loss.backward()
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
    torch.testing.assert_close(found[texts["mask"]], expected[texts["mask"]], atol=1e-5, rtol=0)


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
    if model.family != "cnn":
        keys = ("patch_size", "embed_dim", "depth", "depths", "num_heads", "window_size")
        shape = {"img_size": image_size} | {key: getattr(model, key) for key in keys if getattr(model, key) is not None}
    if model.family == "vit":
        shape["pos_embed"] = "none" if model.positions in ("none", "relative") else "learn"
        shape["global_pool"] = "avg" if model.pool == "avg" else "token"
    return timm.create_model(model.arch, in_chans=CHANNELS, num_classes=num_classes, **shape).eval()


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
    first, second, batch = build(case, seed=0), build(case, seed=1), batch_for(case)
    expected = loss_of(first, seeded(batch, 3)).loss
    assert not torch.equal(loss_of(second, seeded(batch, 3)).loss, expected)
    second.load_state_dict(first.state_dict())
    assert torch.equal(loss_of(second, seeded(batch, 3)).loss, expected)


# Dropout


# A detector takes the same maps of a ViT as `upernet`, and is slow.
PLAIN_VITS = [case for case in METHODS.names() if CASES[case].model.family == "vit" and case != "mask_rcnn"]


@pytest.mark.slow
@pytest.mark.parametrize("case", PLAIN_VITS)
def test_dropout__in_each_place_of_a_vit_alone__is_drawn_in_training(case):
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
