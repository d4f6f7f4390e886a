"""Semantic segmentation with UperNet on a ViT or a Swin: how MAE, BEiT, DropPos and MJP transfer encoders to ADE20K.

The loss is the cross-entropy of logits that are enlarged to the labels' size, plus 0.4 times that of an auxiliary head
on the last map but one. mmsegmentation divides by all pixels of a batch, those without a label too (`average: all`).
What is measured is counted at the size in which the labels were published.

Heads, their start, loss, windows and counting are mmsegmentation's. The differences:
- an image smaller than a window is padded, since positions are of one size; mmsegmentation makes the window smaller
- with patches below 16 pixels no map is finer than a stride of 4, where BEiT's pyramid would go on
- statistics of BatchNorm are of one micro-batch in each process: all 16 images of a batch with 8 processes of 2 images
- whole images are padded to a multiple of the patch, and what is answered for the padding is dropped before enlarging
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.errors import ConfigError
from pipeline.core.sizes import Size
from pipeline.dense.iou import IGNORED, confusion
from pipeline.dense.sliding import slide, whole
from pipeline.dense.upernet import FCNHead, PlainPyramid, StageNorms, UperNetHead, enlarged
from pipeline.methods.base import METHODS, Batch, Measured, Method, MethodConfig, Output
from pipeline.models.dense import feature_maps, freeze_unused, is_swin, strides, widths
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder


@METHODS.register("upernet")
class UperNet(Method):
    class Config(MethodConfig):
        task: ClassVar[str] = "segment"

        name: Literal["upernet"] = "upernet"
        width: int = Field(512, ge=2, description="channels of the head; 768 in the configs of MAE and BEiT")
        aux_width: int = Field(256, ge=1, description="channels of the auxiliary head")
        taps: tuple[int, int, int, int] | None = Field(
            None, description="blocks of a ViT whose maps are seen, from 0; null: 3, 5, 7, 11 of 12, the like of others"
        )
        aux_weight: float = Field(0.4, gt=0)
        """Weight of the loss of the auxiliary head."""
        dropout: float = Field(0.1, ge=0, lt=1)
        """Dropout before the classifiers."""
        average: Literal["all", "valid"] = "all"
        """Whether the loss is a mean over all pixels, or over those with a label."""
        inference: Literal["slide", "whole"] = "slide"
        """slide: overlapping windows of the training size, averaged. whole: the image at once."""
        stride: int | None = Field(None, ge=1)
        """Stride of the sliding windows; null: two thirds of the window, such as 341 of 512."""

        def check(self, model: ModelConfig, image_size: Size) -> None:
            if model.family not in ("vit", "swin"):
                raise ValueError(f"method {self.name} works on a ViT or a Swin, found model.arch {model.arch}")
            if model.family == "swin" and self.taps is not None:
                raise ValueError("method.taps are blocks of a ViT; a Swin gives the maps of its stages: remove them")
            if (model.positions == "relative" or model.add_relative) and self.inference == "whole":
                raise ValueError(
                    "method.inference: whole sees images of any size, and relative positions are of one; set slide"
                )

    cfg: Config

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        self.taps = None if is_swin(encoder) else cfg.taps or spread_taps(len(encoder.blocks))
        seen = widths(encoder) if self.taps is None else [encoder.embed_dim] * len(self.taps)
        self.num_classes: int = encoder.num_labels
        self.pyramid = StageNorms(seen) if self.taps is None else PlainPyramid(encoder.embed_dim, strides(encoder)[0])
        self.head = UperNetHead(seen, cfg.width, self.num_classes, cfg.dropout)
        self.auxiliary = FCNHead(seen[-2], cfg.aux_width, self.num_classes, cfg.dropout)
        freeze_unused(encoder, self.taps and sorted(set(self.taps)))

    def maps(self, images: Tensor) -> list[Tensor]:
        """From fine to coarse, as the heads see them."""
        if self.taps is None:
            return self.pyramid(feature_maps(self.encoder, images))
        taps = sorted(set(self.taps))
        found = dict(zip(taps, feature_maps(self.encoder, images, taps), strict=True))
        return self.pyramid([found[tap] for tap in self.taps])

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """Nothing. One image is refused: the coarsest pooling leaves one value of each channel, without a variance."""
        # With other processes, norms are of another class.
        is_alone = any(type(part) is nn.BatchNorm2d for part in self.head.modules())
        if self.training and is_alone and len(batch.inputs) == 1:
            raise ConfigError(
                "BatchNorm needs micro-batches of two images, found one; set optim.micro_batch to 2 or more"
            )
        return {}

    def loss(self, images: Tensor, labels: Tensor, draw: Mapping[str, Tensor]) -> Output:
        """Images (B, C, H, W), labels (B, H, W) uint8, 255 for pixels without one."""
        maps, labels = self.maps(images), labels.long()
        main = self._cross_entropy(self.head(maps), labels)
        auxiliary = self._cross_entropy(self.auxiliary(maps[-2]), labels)
        weight = None if self.cfg.average == "all" else (labels != IGNORED).sum()
        return Output(main + self.cfg.aux_weight * auxiliary, {"aux_loss": auxiliary.detach()}, weight)

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits = enlarged(logits.float(), labels.shape[1:])
        total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        if self.cfg.average == "all":
            return total / labels.numel()
        return total / (labels != IGNORED).sum().clamp(min=1)

    def answer(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) -> logits (B, classes, H, W)."""
        return enlarged(self.head(self.maps(images)).float(), images.shape[2:])

    def segment(self, image: Tensor) -> Tensor:
        """An image (C, H, W) of any size -> logits (classes, H, W)."""
        embedding = self.encoder.patch_embed
        if self.cfg.inference == "whole":
            return whole(self.answer, image, embedding.patch_size)
        window: tuple[int, int] = embedding.img_size
        return slide(self.answer, image, window, self.cfg.stride or max(1, 2 * min(window) // 3))

    def measure(self, batch: Batch) -> dict[str, Measured]:
        """confusion (B, classes, classes): of each image, pixels by true and by answered class."""
        pairs = zip(batch.inputs, batch.targets, strict=True)
        return {"confusion": torch.stack([self.count(self.segment(image), each["labels"]) for image, each in pairs])}

    def count(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Logits (classes, H, W) of an image, labels (h, w) as published -> its confusion matrix."""
        return confusion(named_classes(logits, labels.shape), labels, self.num_classes)


def named_classes(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Logits (classes, H, W) -> the class of each pixel (h, w) at another size."""
    return enlarged(logits[None], size)[0].max(dim=0).indices  # argmax takes three times as long on a CPU


def spread_taps(depth: int) -> tuple[int, ...]:
    """After a third, a half, two thirds and all of the blocks: 3, 5, 7, 11 of 12, 7, 11, 15, 23 of 24."""
    return tuple(max(1, round(depth * share)) - 1 for share in (1 / 3, 1 / 2, 2 / 3, 1))
