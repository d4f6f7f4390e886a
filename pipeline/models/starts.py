"""How weights start, as the released codes have it."""

from torch import nn

from pipeline.models.patches import Encoder

STD = 0.02


def start_as_deit(module: nn.Module) -> None:
    """DeiT's start, which MJP took over: N(0, 0.02) for every linear layer, 0 for biases; a convolution keeps torch's.

    All of them call it truncated, but the cut is at 2, a hundred standard deviations away.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def start_as_mae(module: Encoder) -> None:
    """MAE's start: Xavier for every linear layer and the patch projection, 0 for biases, N(0, 0.02) for CLS."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Conv2d):
            nn.init.xavier_uniform_(part.weight.view(len(part.weight), -1))
    if getattr(module, "cls_token", None) is not None:
        nn.init.normal_(module.cls_token, std=module.cls_std or STD)
