"""Initial weights, as the released codes set them."""

from torch import nn

from pipeline.models.patches import Encoder

STD = 0.02


def initialise_as_deit(module: nn.Module) -> None:
    """Initialise as DeiT and MJP do: N(0, 0.02) for linear layers, 0 for their biases; convolutions keep torch's.

    All of them call it truncated, but the cut is at 2, a hundred standard deviations away.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def initialise_as_mae(module: Encoder) -> None:
    """Initialise as MAE does: Xavier for linear layers and the patch projection, 0 for biases, N(0, 0.02) for CLS."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Conv2d):
            nn.init.xavier_uniform_(part.weight.view(len(part.weight), -1))
    if getattr(module, "cls_token", None) is not None:
        nn.init.normal_(module.cls_token, std=module.cls_std or STD)
