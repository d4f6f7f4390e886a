"""Pretraining on images or sounds: an encoder without a head. Labels come along and no method looks at them."""

from typing import Any, ClassVar

from pipeline.methods.base import Primary
from pipeline.tasks.base import TASKS
from pipeline.tasks.classify import Classify


@TASKS.register("pretrain")
class Pretrain(Classify):
    primary: ClassVar[Primary | None] = None  # each method has a metric of its own, or the loss alone
    needs_labels: ClassVar[bool] = False

    @classmethod
    def num_outputs(cls, data: Any) -> int:
        return 0
