"""Whether permuted columns give the same outputs in a ViT of timm: decided by what its modules compute.

Names of parameters do not tell: rotary positions, for example, mix the columns of a head and have no parameters. A
module counts as known by its `forward`, so a subclass that does not change it is known, too.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from pipeline.core.dynamo import dynamo_deferred


def reason_not_exact(model: Any) -> str:
    """Why a key cannot lock such a ViT without changing what it computes; empty if it can."""
    with dynamo_deferred():
        from timm.models.deit import VisionTransformerDistilled
        from timm.models.vision_transformer import VisionTransformer
        from timm.models.vision_transformer_relpos import VisionTransformerRelPos

    name = type(model).__name__
    if getattr(model, "rope", None) is not None:
        return f"{name} has rotary positions, which mix the columns inside each head"
    # Models of our own (the backbone of `counterexamples`) are their blocks, and nothing around them.
    is_of_timm = type(model).__module__.startswith("timm.")
    if is_of_timm and type(model) not in (VisionTransformer, VisionTransformerDistilled, VisionTransformerRelPos):
        return f"{name} is not a ViT whose computation is known (timm's VisionTransformer)"
    known = _known_modules()
    others = {
        type(part).__name__ for block in model.blocks for part in _parts(block) if type(part).forward not in known
    }
    if others:
        return f"its blocks have {', '.join(sorted(others))}, for which no exact permutation is known"
    return ""


def _parts(block: nn.Module) -> Iterator[nn.Module]:
    """Its modules, without activations: those act on columns inside an MLP, which stay in place."""
    return (part for part in block.modules() if any(True for _ in part.children()) or part.state_dict())


def _known_modules() -> set[Any]:
    """The `forward` of each module for whose parameters `rules.py` has the right permutation."""
    from timm.layers import Attention, GluMlp, LayerNorm, LayerNormFp32, Mlp, RmsNorm, RmsNormFp32, SwiGLU
    from timm.models.vision_transformer import Block, LayerScale, ResPostBlock
    from timm.models.vision_transformer_relpos import RelPosAttention, RelPosBias, RelPosBlock, ResPostRelPosBlock

    from pipeline.models.relative import RelativeAttention

    blocks = [Block, ResPostBlock, RelPosBlock, ResPostRelPosBlock, LayerScale]
    attention = [Attention, RelPosAttention, RelPosBias, RelativeAttention]
    norms = [nn.LayerNorm, LayerNorm, LayerNormFp32, RmsNorm, RmsNormFp32]
    return {each.forward for each in [*blocks, *attention, *norms, nn.Linear, Mlp, GluMlp, SwiGLU]}
