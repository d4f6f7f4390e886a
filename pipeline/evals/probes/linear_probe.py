"""Linear probing: a linear classifier on frozen, pooled features.

The protocol of MAE's linear probing (BatchNorm without weights, LARS, rate 0.1 x batch / 256, 90 epochs of batches of
16,384, 10 of warm-up, no decay), with one difference: features are computed once, from images seen as in validation,
where MAE crops and flips them anew in every epoch. So it takes minutes, and finds a little less than MAE's would.

`pool: run` takes what the model itself classifies by, which is CLS for most; a method's own positions are used.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.seeds import seed_everything
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Outcome, Subject
from pipeline.evals.parts import Arrays
from pipeline.evals.probes.features import Pool, Probe, ProbeConfig, pooled_features
from pipeline.evals.probes.heads import Fitting, LinearHead, fit
from pipeline.methods.base import Batch, Measured, Method, Prediction, accuracy

MOMENTUM, TRUST = 0.9, 0.001  # of LARS
LR_BATCH = 256
EPOCHS_PER_PART = 10  # one of ImageNet-1K takes a second


@EVALS.register("linear_probe")
class LinearProbe(Probe):
    class Config(ProbeConfig):
        name: Literal["linear_probe"] = "linear_probe"
        pool: Pool = "run"
        """What is classified: as the run does it, CLS, or the mean of the patches."""
        epochs: int = Field(90, ge=1)
        """Passes over the features of the train split."""
        batch: int = Field(16384, ge=1)
        """Images of a step, at most all train images."""
        base_lr: float = Field(0.1, gt=0)
        """Learning rate for a batch of 256; it grows in proportion to the batch."""
        warmup_epochs: int = Field(10, ge=0)
        """Epochs in which the rate rises."""
        train_limit: int | None = Field(None, ge=1, description="so many train images, spread evenly; null: all")

        metrics: ClassVar[tuple[str, ...]] = ("top1", "top5", "loss")

    needs_labels = True
    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        others = [run.model.arch for run in subjects.values() if run.model.family != "vit"]
        if isinstance(cfg, LinearProbe.Config) and cfg.pool == "cls" and others:
            return f"{others[0]} has no CLS token"
        return super().reason_against(cfg, subjects)

    def compute(self, model: Subject) -> Outcome:
        run, cfg = model.run, self.cfg
        data: Any = run.data
        with self.frozen(model) as method:
            parts = list(self.over_train(run, "train", cfg.train_limit, partial(self._extract, method)))
            features, labels = (
                torch.as_tensor(np.concatenate([part[name] for part in parts])).to(self.world.device)
                for name in ("features", "labels")
            )
            head = self._fit(features, labels, data.num_classes)

            def measure(method: Method, batch: Batch) -> dict[str, Measured]:
                pooled = pooled_features(method, batch.images, cfg.pool)
                with torch.autocast(pooled.device.type, enabled=False):
                    return accuracy(Prediction(pooled, head(pooled)), batch.targets)

            return self.over_images(method, data, measure)

    @torch.no_grad()
    def _extract(self, method: Method, batches: Iterator[Batch]) -> Arrays:
        """Of one part of the train split, which fits into the memory of the device: it is read from there once."""
        features, labels = [], []
        for batch in batches:
            with self.precision():
                features.append(pooled_features(method, batch.images, self.cfg.pool))
            labels.append(batch.targets)
        return {"features": torch.cat(features).cpu().numpy(), "labels": torch.cat(labels).cpu().numpy()}

    def _fit(self, features: Tensor, labels: Tensor, num_classes: int) -> nn.Module:
        """The trained head, in evaluation mode."""
        cfg, batch = self.cfg, min(self.cfg.batch, len(features))
        steps = len(features) // batch
        seed_everything("linear_probe", cfg.seed)
        head = LinearHead(features.shape[1], num_classes).to(features.device)
        peak = cfg.base_lr * batch / LR_BATCH
        fitting = Fitting(head, lars(head), peak, cfg.epochs * steps, cfg.warmup_epochs * steps)

        def train(epoch: int) -> None:
            generator = torch.Generator().manual_seed(seed_everything("linear_probe", cfg.seed, epoch))
            order = torch.randperm(len(features), generator=generator).to(features.device)
            for chosen in order.split(batch)[:steps]:
                F.cross_entropy(head(features[chosen]), labels[chosen]).backward()
                fitting.descend()

        fit(fitting, cfg.epochs, train, self.parts, EPOCHS_PER_PART)
        return head.eval()


def lars(head: nn.Module) -> Any:
    """Layer-wise adaptive rates for matrices, plain momentum for biases."""
    with dynamo_deferred():
        from timm.optim import Lars

    matrices = [parameter for parameter in head.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in head.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "always_adapt": True}, {"params": vectors}]
    return Lars(groups, lr=0.0, momentum=MOMENTUM, weight_decay=0.0, trust_coeff=TRUST)
