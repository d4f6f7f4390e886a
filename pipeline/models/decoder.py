"""The narrow transformer that MAE and DropPos put behind the encoder."""

from torch import Tensor, nn

from pipeline.models.patches import Encoder


class Decoder(nn.Module):
    """`embed` changes the width; the rest is blocks, a norm and a linear head."""

    def __init__(self, encoder: Encoder, width: int, depth: int, num_heads: int, out_dim: int) -> None:
        from timm.models.vision_transformer import Block

        super().__init__()
        activation = next(type(m.act) for m in encoder.modules() if hasattr(m, "act") and hasattr(m, "fc1"))
        norm = {"norm_layer": lambda size, **where: nn.LayerNorm(size, eps=1e-6, **where)}
        self.embed = nn.Linear(encoder.num_features, width)
        self.blocks = nn.Sequential(
            *[Block(width, num_heads, qkv_bias=True, act_layer=activation, **norm) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, out_dim)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Embedded tokens (B, n, width) -> (B, n - first, out): what comes before `first` is attended to only."""
        return self.head(self.norm(self.blocks(tokens)[:, first:]))
