"""Small random models of each family, and what tests of permutations do with them: inputs, loss, gradients, steps."""

from random import Random

import torch
from tiny_vit import CHANNELS, IMAGE_SIZE, tiny_encoder
from torch.nn import functional as F

from pipeline.permutation.keys import Shape, new_key

FAMILIES = ("vit", "vit_layerscale", "vit_qk_norm", "vit_relative", "bert", "gpt2")
DEPTH, HEADS, WIDTH, VOCABULARY, NUM_CLASSES = 2, 4, 32, 50, 5


def build(family, dtype=torch.float64, seed=0):
    """Every parameter is random, also those that start as zeros and ones: a missing rule shows."""
    torch.manual_seed(seed)
    model = MAKERS[family]().to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def vit(**changes):
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": IMAGE_SIZE, "patch_size": 7, "in_chans": CHANNELS, "num_classes": NUM_CLASSES}
    return VisionTransformer(**sizes, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS, mlp_ratio=2, **changes)


def gated_vit():
    """With the parts that few models of timm have."""
    from timm.layers import Attention, SwiGLU

    class GatedAttention(Attention):
        def __init__(self, *sizes, **changes):
            super().__init__(*sizes, gated=True, **changes)

    return vit(attn_layer=GatedAttention, mlp_layer=SwiGLU, scale_mlp_norm=True)


def relative_vit():
    return tiny_encoder(embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS, pos_embed="relative", num_classes=NUM_CLASSES)


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": DEPTH, "intermediate_size": 48}
    config = BertConfig(**sizes, num_attention_heads=HEADS, max_position_embeddings=16, num_labels=NUM_CLASSES)
    return BertForSequenceClassification(config)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


MAKERS = {
    "vit": vit,
    "vit_layerscale": lambda: vit(init_values=0.5, reg_tokens=2),
    "vit_qk_norm": lambda: vit(qk_norm=True, scale_attn_norm=True),
    "vit_relative": relative_vit,
    "vit_gated": gated_vit,
    "bert": bert,
    "gpt2": gpt2,
}


def shape(family, num_heads=HEADS):
    return Shape(family.split("_")[0], WIDTH, DEPTH, num_heads, WIDTH)


def key_for(family, kind="independent", seed=0):
    return new_key(shape(family), "shared" if "qk_norm" in family and kind == "independent" else kind, Random(seed))


def inputs_for(family, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if family.startswith("vit"):
        return (torch.randn(3, CHANNELS, IMAGE_SIZE, IMAGE_SIZE, generator=generator).to(dtype),), {}
    words = torch.randint(VOCABULARY, (3, 8), generator=generator)
    mask = torch.arange(8) < torch.tensor([[8], [6], [5]])
    return (words,), {"attention_mask": mask.long()}


def logits(model, inputs):
    found = model(*inputs[0], **inputs[1])
    return found if isinstance(found, torch.Tensor) else found.logits


def loss_of(model, inputs):
    """Cross-entropy with any classes; of a language model at every token that is not padding."""
    found = logits(model, inputs)
    if found.ndim == 3:
        found = found[inputs[1]["attention_mask"].bool()]
    return F.cross_entropy(found, torch.arange(len(found)) % found.shape[1])


def gradients(model, inputs):
    model.zero_grad()
    loss_of(model, inputs).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def trained(model, inputs, optimizer, steps=5):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, inputs).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def largest_difference(found, expected):
    """Of all tensors of two states: the norm of the difference, relative to the norm of the tensor."""
    assert found.keys() == expected.keys()
    numbers = [name for name in expected if expected[name].is_floating_point()]
    return max(float((found[name] - expected[name]).norm() / expected[name].norm().clamp(min=1e-3)) for name in numbers)


def split_key_biases(state):
    """A state without the biases of keys, and these biases.

    Softmax does not see them: their gradient is nothing but rounding, of which AdamW makes whole steps in float32.
    """
    rest, biases = dict(state), {}
    are_normalised = any("k_norm" in name for name in state)
    for name, value in state.items():
        if name.endswith(("key.bias", "k_norm.bias")):
            biases[name] = rest.pop(name)
        elif name.endswith(("qkv.bias", "c_attn.bias")) and not are_normalised:
            queries, biases[name], values = value.chunk(3)
            rest[name] = torch.cat([queries, values])
    return rest, biases
