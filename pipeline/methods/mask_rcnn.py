"""Mask R-CNN on a ViT with a simple feature pyramid (ViTDet), or on a Swin with FPN: boxes, classes and masks.

Built from torchvision's parts, and trained as detectron2 trains ViTDet. Where the two differ:

| what                        | torchvision               | here, as detectron2                                     |
|-----------------------------|---------------------------|---------------------------------------------------------|
| RoIAlign                    | from corners of pixels    | aligned: from their centres, half a pixel less          |
| samples of a RoIAlign       | 2 x 2 for each place      | as many as the region has places of the map             |
| anchors                     | rounded to whole pixels   | not rounded                                             |
| loss of boxes, RPN and head | smooth L1, beta 1/9       | L1                                                      |
| divisor of the RPN's losses | anchors that were sampled | rpn_samples for each image, found or not                |
| proposals in training       | 2000                      | 1000                                                    |
| box outputs                 | also for background       | a box and a mask for each class of objects, no other    |
| targets of masks            | shares of pixels          | 0 or 1: polygons drawn inside the region, or bitmaps    |
|                             |                           | from a half (`data.outlines`)                           |
| masks put into the image    | box rounded, then resized | bilinear between the centres of pixels                  |
| heads                       | two linear layers         | RPN 2 convolutions; boxes 4, 1 linear; masks 4; LayerNorm |
| first weights of the heads  | torch's, mostly           | detectron2's                                            |

Different from both: an object that no anchor touches gets none (they give it every anchor of IoU 0). Box coders weigh
(1, 1, 1, 1) in the RPN and (10, 10, 5, 5) in the heads, proposals are cut off at the border of the image and not of its
padding, and objects' own boxes are among the proposals, in all three. Images without an object are background.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.core.sizes import Size, pair, shown_size
from pipeline.dense.boxes import anchors_of
from pipeline.dense.detections import Detections, keep_best
from pipeline.dense.proposals import (
    AnchorPredictions,
    ProposalNetwork,
    Targets,
    num_proposals,
    proposal_losses,
    propose,
)
from pipeline.dense.pyramid import build_pyramid, coarsest_stride
from pipeline.dense.regions import BoxHead, MaskHead, box_losses, cut_out, mask_loss, of_label, sample_regions
from pipeline.methods.base import METHODS, Batch, Method, MethodConfig, Output
from pipeline.models.dense import freeze_unused
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder, send


@METHODS.register("mask_rcnn")
class MaskRCNN(Method):
    class Config(MethodConfig):
        task: ClassVar[str] = "detect"

        name: Literal["mask_rcnn"] = "mask_rcnn"
        width: int = Field(256, ge=4, description="channels of the pyramid and of the heads")
        fc_width: int = Field(1024, ge=1)
        """Width of the fully connected layers of the box head."""
        rpn_convs: int = Field(2, ge=1, le=1000)
        """Convolutions of the region proposal network (RPN)."""
        box_convs: int = Field(4, ge=0, le=1000)
        """Convolutions of the box head."""
        box_fcs: int = Field(1, ge=1)
        """Fully connected layers of the box head."""
        mask_convs: int = Field(4, ge=1, le=1000)
        """Convolutions of the mask head."""
        head_norm: bool = True
        """Whether a LayerNorm follows each convolution of the heads."""
        anchor_sizes: tuple[float, ...] | None = Field(
            None, description="sides of the anchors of the five maps; null: 8 strides, that is 32 to 512 at stride 4"
        )
        anchor_ratios: tuple[float, ...] = Field((0.5, 1.0, 2.0), min_length=1)
        """Heights of the anchors over their widths."""
        rpn_samples: int = Field(256, ge=2, description="anchors of an image that the RPN learns from in a step")
        rpn_positive: float = Field(0.5, gt=0, le=1)
        """At most this share of the sampled anchors holds an object."""
        rpn_overlap: tuple[float, float] = Field((0.3, 0.7))
        """IoU below which an anchor is background, and IoU from which it holds an object."""
        rpn_nms: float = Field(0.7, gt=0, le=1)
        """IoU from which one of two proposals is dropped."""
        before_nms: tuple[int, int] = Field((2000, 1000))
        """Proposals of a feature map that enter the non-maximum suppression, in training and in evaluation."""
        after_nms: tuple[int, int] = Field((1000, 1000))
        """Proposals of an image that are left, in training and in evaluation."""
        roi_samples: int = Field(512, ge=2, description="proposals of an image that the heads learn from in a step")
        roi_positive: float = Field(0.25, gt=0, le=1)
        """At most this share of the sampled proposals holds an object."""
        roi_overlap: float = Field(0.5, gt=0, le=1)
        """IoU from which a proposal holds an object."""
        box_side: int = Field(7, ge=1, description="a region for the box head has this many places along a side")
        mask_side: int = Field(14, ge=1, description="a region for the mask head; masks have twice as many")
        min_score: float = Field(0.05, ge=0, lt=1)
        """Lowest score of a detection."""
        nms: float = Field(0.5, gt=0, le=1)
        """IoU from which one of two detections of a class is dropped."""
        max_detections: int = Field(100, ge=1)
        """Most detections of an image."""

        def check(self, model: ModelConfig, image_size: Size) -> None:
            if model.family not in ("vit", "swin"):
                raise ValueError(f"method {self.name} works on a ViT or a Swin, found model.arch {model.arch}")
            stride = coarsest_stride(model)
            if any(side % stride for side in pair(image_size)):
                size = shown_size(image_size)
                raise ValueError(f"data.image_size {size} is not a multiple of the largest stride, {stride}")
            if self.anchor_sizes and len(self.anchor_sizes) != 5:
                found = len(self.anchor_sizes)
                raise ValueError(f"method.anchor_sizes has {found} sides, expected one for each of 5 maps")

    cfg: Config
    compiled: ClassVar[tuple[str, ...] | None] = ("pyramid", "rpn", "box_head", "mask_head")
    anchors: Tensor

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        self.pyramid = build_pyramid(encoder, cfg.width)
        self.strides = self.pyramid.strides
        grids = self.pyramid.grids(encoder)
        sides = cfg.anchor_sizes or [8.0 * stride for stride in self.strides]
        anchors = anchors_of(grids, self.strides, sides, cfg.anchor_ratios)
        self.level_sizes = [len(level) for level in anchors]
        self.register_buffer("anchors", torch.cat(anchors), persistent=False)
        self.rpn = ProposalNetwork(cfg.width, len(cfg.anchor_ratios), cfg.rpn_convs)
        fcs, num_classes = [cfg.fc_width] * cfg.box_fcs, encoder.num_labels
        self.box_head = BoxHead(cfg.width, cfg.box_side, num_classes, cfg.box_convs, fcs, cfg.head_norm)
        self.mask_head = MaskHead(cfg.width, num_classes, cfg.mask_convs, cfg.head_norm)
        freeze_unused(encoder)

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """anchors (B, A) and regions (B, n): among equals, those with the smallest numbers are learnt from."""
        most = max(len(target["boxes"]) for target in batch.targets)
        lengths = {"anchors": len(self.anchors), "regions": self._num_proposals() + most}
        count, device = len(batch.images), batch.images.device
        return {
            name: send(torch.rand(count, length, generator=batch.generator), device) for name, length in lengths.items()
        }

    def draw_to_count(self, batch: Batch) -> dict[str, Tensor]:
        """With the proposals that are kept, which otherwise depend on values."""
        kept = torch.arange(self._num_proposals()).expand(len(batch.images), -1)
        return {**self.draw(batch, 0.5), "kept": kept}

    def loss(self, images: Tensor, targets: Targets, draw: Mapping[str, Tensor]) -> Output:
        cfg, maps = self.cfg, self.pyramid(self.encoder, images)
        judged = self.rpn(maps)
        sampling = cfg.rpn_samples, cfg.rpn_positive, cfg.rpn_overlap
        of_object, of_anchor = proposal_losses(judged, self.anchors, targets, draw["anchors"], *sampling)
        proposals, usable = self._propose(judged, targets, draw.get("kept"))
        regions = sample_regions(
            proposals, usable, targets, draw["regions"], cfg.roi_samples, cfg.roi_positive, cfg.roi_overlap
        )
        logits, deltas = self.box_head(cut_out(maps, regions.boxes, self.strides, cfg.box_side))
        of_class, of_box = box_losses(logits, deltas, regions, targets)
        front = regions.objects_first(cfg.roi_positive)
        masks = self.mask_head(cut_out(maps, front.boxes, self.strides, cfg.mask_side))
        terms = {
            "rpn_class": of_object,
            "rpn_box": of_anchor,
            "class": of_class,
            "box": of_box,
            "mask": mask_loss(masks, front, targets),
        }
        scalars = {f"{name}_loss": term.detach() for name, term in terms.items()}
        return Output(torch.stack([*terms.values()]).sum(), scalars)

    def detect(self, images: Tensor, targets: Targets) -> list[Detections]:
        """Return the objects found in each image, in pixels of the input; targets have the `size` of each image."""
        cfg, maps = self.cfg, self.pyramid(self.encoder, images)
        proposals, usable = self._propose(self.rpn(maps), targets)
        logits, deltas = self.box_head(cut_out(maps, proposals, self.strides, cfg.box_side))
        limits = cfg.min_score, cfg.nms, cfg.max_detections
        found = keep_best(logits, deltas, proposals, usable, sizes_of(targets), *limits)
        masks = self.mask_head(cut_out(maps, found.boxes, self.strides, cfg.mask_side))
        masks = of_label(masks, found.labels.flatten()).sigmoid().unflatten(0, found.labels.shape)
        return found.with_masks(masks)

    def measure(self, batch: Batch) -> Any:
        """Each image's detections, and what is known of it."""
        return list(zip(self.detect(batch.images, batch.targets), batch.targets, strict=True))

    def _propose(
        self, judged: AnchorPredictions, targets: Targets, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        limits = self._limits()
        levels = self.anchors.split(self.level_sizes)
        return propose(judged, levels, sizes_of(targets), *limits, self.cfg.rpn_nms, kept)

    def _limits(self) -> tuple[int, int]:
        """Proposals of a map before boxes that overlap are dropped, and of an image after it."""
        place = 0 if self.training else 1
        return self.cfg.before_nms[place], self.cfg.after_nms[place]

    def _num_proposals(self) -> int:
        return num_proposals(self.level_sizes, *self._limits())


def sizes_of(targets: Targets) -> Tensor:
    """(B, 2): height and width of what is image, and not padding."""
    return torch.stack([target["size"] for target in targets])
