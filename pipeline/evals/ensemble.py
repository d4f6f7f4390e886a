"""Two finetuned models asked together: the mean of their probabilities (MP3 Sec. 4.2.3).

The paper says that outputs are averaged, not whether before or after the softmax; both are reported, `top1` is after.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from pipeline.config import Layers, read_yaml
from pipeline.engine.run import parse_run
from pipeline.engine.train import load_method
from pipeline.errors import ConfigError
from pipeline.evals.base import EVALS, EvalConfig, Evaluation
from pipeline.methods.base import Batch, Method, Prediction, accuracy


@EVALS.register("ensemble")
class Ensemble(Evaluation):
    class Config(EvalConfig):
        name: Literal["ensemble"] = "ensemble"
        group: str = Field("ensemble", pattern=r"^[a-z0-9_]+$")
        partner: str = Field("", description="name of the other run; a table's column gives it")

        @property
        def metrics(self) -> tuple[str, ...]:
            return ("top1", "top5", "logits_top1")

    cfg: Config

    def compute(self, method: Method) -> dict[str, float]:
        partner = self._partner()

        def measure(method: Method, batch: Batch) -> dict[str, Tensor]:
            ours, theirs = (model.predict(batch.images) for model in (method, partner))
            mean = (ours.logits.float().softmax(dim=1) + theirs.logits.float().softmax(dim=1)) / 2
            found = accuracy(Prediction(ours.features, mean.log()), batch.targets)
            summed = accuracy(Prediction(ours.features, ours.logits.float() + theirs.logits.float()), batch.targets)
            return {"top1": found["top1"], "top5": found["top5"], "logits_top1": summed["top1"]}

        return self.over_validation_set(method, self.run.data.eval_crop, measure)

    def _partner(self) -> Method:
        if not self.cfg.partner:
            raise ConfigError("evaluation ensemble: partner is empty; a column of a table names it (`partner: ROLE`)")
        paths = self.paths.sibling(self.cfg.partner)
        paths.trained()
        run = parse_run(Layers((str(paths.config), read_yaml(paths.config))))
        differing = [key for key, value in run.data if key != "augment" and value != getattr(self.run.data, key)]
        if differing:
            raise ConfigError(f"{run.name} and {self.run.name} see other images: {', '.join(differing)} differ")
        return load_method(run, paths, self.world)
