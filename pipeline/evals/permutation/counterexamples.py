"""Where permutation equivariance ends, and where the paper says it does and is wrong (ST Sec. 4.1, 4.2); no run needed.

Random blocks, tokens and heads in float64. Each number is the largest difference over the largest value:
- literal: Eq. 6 with one arbitrary P_C for all of a block. With several heads it is no equivalence, with one it is
  (`literal_one_head`), and a key that permutes heads as a whole is one for any number of them (`independent`).
- convolution: an operator on sliding windows, the paper's own exception: T(PZ) against P T(Z).
- pma: pooling by attention. Sec. 4.2 says that an invariant head has the same gradient at PZ as at Z
  (`pma_invariant`), so that nothing behind it could be learned from permuted tokens. By the chain rule the gradient at
  PZ is the permuted one (`pma_equivariant`), and Lemma 4.8 holds for such a head, too.
"""

from random import Random
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.seeds import generator_for
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome
from pipeline.evals.permutation.relative_difference import relative_difference
from pipeline.permutation.forward import permuted, shape_of
from pipeline.permutation.keys import Key, Shape, new_key
from pipeline.permutation.rules import permute_state

CASES = ("literal", "literal_one_head", "independent", "convolution", "pma_equivariant", "pma_invariant")
WINDOW, NUM_SEEDS, STD = 3, 4, 0.3  # the seeds of PMA; the deviation makes attention look at some tokens, not at all


class Backbone(nn.Module):
    """The blocks T of a ViT, all of whose parameters are random."""

    def __init__(self, width: int, depth: int, num_heads: int, generator: torch.Generator) -> None:
        super().__init__()
        with dynamo_deferred():
            from timm.models.vision_transformer import Block
        self.blocks = nn.Sequential(*[Block(width, num_heads, qkv_bias=True) for _ in range(depth)]).double().eval()
        for name, parameter in self.blocks.named_parameters():
            mean = float("norm" in name and name.endswith("weight"))
            nn.init.normal_(parameter, mean, STD, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.blocks(tokens)


@EVALS.register("counterexamples")
class Counterexamples(Evaluation):
    class Config(EvalConfig):
        name: Literal["counterexamples"] = "counterexamples"
        width: int = Field(48, ge=2)
        """Width of the random blocks."""
        depth: int = Field(2, ge=1)
        """Number of random blocks."""
        num_heads: int = Field(4, ge=2)
        """Attention heads of a block."""
        tokens: int = Field(50, ge=WINDOW)
        """Tokens of an input."""

        metrics: ClassVar[tuple[str, ...]] = tuple(f"{case}_apart" for case in CASES)

    without_error = MappingProxyType({"*_apart": "the largest difference of two computations on one input"})
    cfg: Config

    def precision_name(self) -> str:
        return "float64"

    @torch.no_grad()
    def compute(self) -> Outcome:
        found = {
            "literal": self._locked(self.cfg.num_heads, is_literal=True),
            "literal_one_head": self._locked(1, is_literal=True),
            "independent": self._locked(self.cfg.num_heads, is_literal=False),
            "convolution": self._convolution(),
        }
        at_tokens, at_permuted, order = self._pooled()
        found["pma_equivariant"] = relative_difference([at_permuted], [at_tokens[order]])
        found["pma_invariant"] = relative_difference([at_permuted], [at_tokens])
        return Outcome({f"{case}_apart": found[case] for case in CASES})

    def _locked(self, num_heads: int, is_literal: bool) -> float:
        """T_(C)(Z P_C), its columns put back, against T(Z)."""
        generator, (width, depth) = self._generator("blocks"), (self.cfg.width, self.cfg.depth)
        model = Backbone(width, depth, num_heads, generator).to(self.world.device)
        tokens = self._normal(generator, self.cfg.tokens, width)[None]
        expected = model(tokens)
        key = self._literal_key(model) if is_literal else new_key(shape_of(model), source=Random(self.cfg.seed))
        model.load_state_dict(permute_state(model.state_dict(), key))
        with permuted(model, key):
            return relative_difference([model(tokens)], [expected])

    def _literal_key(self, model: Backbone) -> Key:
        """One permutation for everything; for a single head, that is what a released key is."""
        shape = Shape("vit", self.cfg.width, self.cfg.depth, 1, self.cfg.width)
        return new_key(shape, "released", Random(self.cfg.seed))

    def _convolution(self) -> float:
        """Over the rows, with a window for each column."""
        generator, width = self._generator("convolution"), self.cfg.width
        tokens, windows = (self._normal(generator, width, size)[:, None] for size in (self.cfg.tokens, WINDOW))
        order = torch.randperm(self.cfg.tokens, generator=generator).to(self.world.device)

        def convolved(rows: Tensor) -> Tensor:
            return torch.conv1d(rows.transpose(0, 1), windows, padding=WINDOW // 2, groups=width)

        return relative_difference([convolved(tokens[..., order])], [convolved(tokens)[..., order]])

    def _pooled(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients (N, D) of a loss behind PMA, at Z and at PZ, and the order of PZ."""
        generator, width = self._generator("pma"), self.cfg.width
        tokens = self._normal(generator, self.cfg.tokens, width)
        seeds = self._normal(generator, NUM_SEEDS, width)
        keys, values = (self._normal(generator, width, width) / width**0.5 for _ in range(2))
        order = torch.randperm(self.cfg.tokens, generator=generator).to(self.world.device)

        @torch.enable_grad()
        def gradient(rows: Tensor) -> Tensor:
            rows = rows.clone().requires_grad_()
            scores = seeds @ (rows @ keys).T / width**0.5
            pooled = scores.softmax(dim=1) @ (rows @ values)
            return torch.autograd.grad(pooled.tanh().square().sum(), rows)[0]

        return gradient(tokens), gradient(tokens[order]), order

    def _generator(self, purpose: str) -> torch.Generator:
        return generator_for("counterexamples", purpose, self.cfg.seed)

    def _normal(self, generator: torch.Generator, *size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(self.world.device)
