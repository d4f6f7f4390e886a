"""k-nearest-neighbour accuracy of every layer of a frozen encoder (MP3 App. C, Fig. 9).

The paper names neither k, nor the distance, nor the vote. Chosen here, as is usual: averaged patches, cosine, k 20, and
votes that weigh exp(cosine / 0.07) (`weighting: softmax`) or the same (`uniform`). The bank is the train split, seen as
in validation. With `untrained` it is the paper's random model. `knn_best` is the best of the layers asked for, and
`knn_middle` the best of those between the first, 0, and the last; chosen on the images on which they are measured.

The features of the validation images stay on the device; the bank passes by in blocks, and only its nearest images of
every validation image are kept: memory does not grow with the bank.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from pipeline.evals.base import BATCH, EVALS, Outcome, Subject
from pipeline.evals.parts import Arrays
from pipeline.evals.probes.features import Probe, ProbeConfig, pooled_layers
from pipeline.methods.base import Batch, Method
from pipeline.tasks.metrics import standard_error

Layer = Annotated[int, Field(ge=0)]
OF_ALL = ("knn_best", "knn_middle", "knn_last")  # whatever the number of layers
BANK_BLOCK, QUERY_BLOCK = 32 * BATCH, 8192  # cosines that are in memory at a time: 134 MB in float32


@EVALS.register("knn")
class NearestNeighbours(Probe):
    class Config(ProbeConfig):
        name: Literal["knn"] = "knn"
        layers: tuple[Layer, ...] = Field(tuple(range(13)), min_length=1)
        """Layers whose features are used; 0 is what enters the first block."""
        k: int = Field(20, ge=1)
        """Number of neighbours that vote."""
        weighting: Literal["softmax", "uniform"] = "softmax"
        """Whether near neighbours have more weight, or all have the same."""
        temperature: float = Field(0.07, gt=0)
        """Temperature of the weights of votes, for `weighting: softmax`."""
        bank_limit: int | None = Field(None, ge=1, description="so many train images, spread evenly; null: all")

        @property
        def metrics(self) -> tuple[str, ...]:
            return (*map(layer_name, sorted({*self.layers})), *OF_ALL)

    needs_labels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        run = model.run
        data: Any = run.data
        found: dict[int, Neighbours] = {}
        with self.frozen(model) as method, torch.no_grad():
            val = self.batches(data, batch=self.full_batch(data))
            queries = functools.cache(lambda: next(self._features(method, val, None)))
            search = functools.partial(self._search, method, queries)
            for arrays in self.over_train(run, "bank", self.cfg.bank_limit, search):
                part = from_arrays(arrays, self.world.device)
                found = {layer: near.merged(found.get(layer), self.cfg.k) for layer, near in part.items()}
        labels = torch.as_tensor(np.asarray(self.open(data).labels))
        right = {layer: self._right(near, labels, data.num_classes) for layer, near in found.items()}
        return self._outcome(right, self.manifest(data).splits["val"].fingerprint)

    def _features(
        self, method: Method, batches: Iterator[Batch], block: int | None
    ) -> Iterator[tuple[dict[int, Tensor], Tensor]]:
        """Blocks of normed features (n, D) by layer, and labels (n,); without a block size, everything at once."""
        kept: list[tuple[dict[int, Tensor], Tensor]] = []
        for batch in batches:
            with self.precision():
                layers = pooled_layers(method, batch.images)
            wanted = {layer for layer in self.cfg.layers if layer < len(layers)} | {len(layers) - 1}
            kept.append(({layer: F.normalize(layers[layer], dim=1) for layer in sorted(wanted)}, batch.targets))
            if block and sum(len(labels) for _, labels in kept) >= block:
                yield _join(kept)
                kept = []
        if kept:
            yield _join(kept)

    def _search(
        self,
        method: Method,
        queries: Callable[[], tuple[dict[int, Tensor], Tensor]],
        batches: Iterator[Batch],
    ) -> Arrays:
        """The nearest of these images of the bank to every validation image, in every layer."""
        found: dict[int, Neighbours] = {}
        of_val, _ = queries()
        for bank, labels in self._features(method, batches, BANK_BLOCK):
            for layer, features in bank.items():
                near = nearest(of_val[layer], features, labels, self.cfg.k)
                found[layer] = near.merged(found.get(layer), self.cfg.k)
        return to_arrays(found)

    def _right(self, near: "Neighbours", labels: Tensor, num_classes: int) -> np.ndarray:
        """(Q,) in per cent: is the class with the most votes the right one?"""
        cfg = self.cfg
        votes = cast_votes(near, num_classes, cfg.temperature if cfg.weighting == "softmax" else None)
        return 100 * (votes.argmax(dim=1) == labels.to(votes.device)).float().cpu().numpy()

    def _outcome(self, right: dict[int, np.ndarray], images: str) -> Outcome:
        last = max(right)
        asked = {layer: values for layer, values in right.items() if layer in self.cfg.layers} or right
        middle = [values for layer, values in asked.items() if 0 < layer < last]
        too_far = [layer for layer in self.cfg.layers if layer > last]
        reasons = {layer_name(layer): f"the encoder has layers 0 to {last}" for layer in too_far}
        per_image = {layer_name(layer): right[layer] for layer in sorted(right) if layer in self.cfg.layers}
        per_image |= {"knn_best": _best([*asked.values()]), "knn_last": right[last]}
        if middle:
            per_image["knn_middle"] = _best(middle)
        else:
            reasons["knn_middle"] = f"none of the layers asked for lies between 0 and {last}"
        return Outcome(
            metrics={name: float(values.mean(dtype=np.float64)) for name, values in per_image.items()},
            errors={name: standard_error(values) for name, values in per_image.items()},
            count=len(right[last]),
            per_image=per_image,
            images=images,
            reasons=reasons,
        )


def _best(layers: list[np.ndarray]) -> np.ndarray:
    """The values per image of the layer with the highest mean; the first of equal ones."""
    return max(layers, key=lambda values: values.mean(dtype=np.float64))


class Neighbours(NamedTuple):
    """The nearest images of a bank to each query, the nearest first: cosines (Q, k) and labels (Q, k)."""

    cosines: Tensor
    labels: Tensor

    def merged(self, other: "Neighbours | None", k: int) -> "Neighbours":
        """The k nearest of both; at the same distance, those of the other."""
        if other is None:
            return self
        cosines, labels = (torch.cat([old, new], dim=1) for old, new in zip(other, self, strict=True))
        top = cosines.topk(min(k, cosines.shape[1]), dim=1)
        return Neighbours(top.values, labels.gather(1, top.indices))


def nearest(queries: Tensor, bank: Tensor, labels: Tensor, k: int) -> Neighbours:
    """Queries (Q, D) and bank (M, D) of norm 1, labels (M,)."""
    tops = [(block @ bank.T).topk(min(k, len(bank)), dim=1) for block in queries.split(QUERY_BLOCK)]
    return Neighbours(torch.cat([top.values for top in tops]), labels[torch.cat([top.indices for top in tops])])


def cast_votes(near: Neighbours, num_classes: int, temperature: float | None) -> Tensor:
    """(Q, classes): the sum of each class's votes, which weigh exp(cosine / temperature), or 1 without one."""
    # As a softmax, which changes no order and cannot overflow.
    weights = (near.cosines / temperature).softmax(dim=1) if temperature else torch.ones_like(near.cosines)
    return torch.zeros(len(weights), num_classes, device=weights.device).scatter_add_(1, near.labels.long(), weights)


def layer_name(layer: int) -> str:
    return f"knn_layer_{layer:02d}"


def to_arrays(found: dict[int, Neighbours]) -> Arrays:
    return {
        f"{layer}/{name}": values.cpu().numpy()
        for layer, near in found.items()
        for name, values in near._asdict().items()
    }


def from_arrays(arrays: Arrays, device: torch.device) -> dict[int, Neighbours]:
    """On the device: of 20,000 queries, a CPU core takes 31 ms to merge one layer of one part."""
    layers = sorted({int(name.split("/")[0]) for name in arrays})
    return {
        layer: Neighbours(*(torch.as_tensor(arrays[f"{layer}/{name}"]).to(device) for name in Neighbours._fields))
        for layer in layers
    }


def _join(kept: list[tuple[dict[int, Tensor], Tensor]]) -> tuple[dict[int, Tensor], Tensor]:
    layers = {layer: torch.cat([features[layer] for features, _ in kept]) for layer in kept[0][0]}
    return layers, torch.cat([labels for _, labels in kept])
