"""What training and evaluations leave behind, as records: written as JSON by one step, read by the next."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.core.config import Record, Strict, shown
from pipeline.core.errors import DataError
from pipeline.core.files import read_sealed, write_sealed

Kind = TypeVar("Kind", bound=BaseModel)


class Started(Record):
    """Which run this is, through every interruption."""

    identity: str
    commit: str
    steps: int


def short_digest(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "none"


class Inputs(Strict):
    """What a run is trained from, beside its config. Whatever is kept of a training says which inputs it is for."""

    data: str  # fingerprint of the data set, from its manifest
    init: str | None  # SHA-256 of the weights that it starts from

    def change_since(self, other: "Inputs | None") -> str:
        """In words, what is different from what was there before."""
        if other is None:
            return "its inputs were not recorded"
        names = {"data": "the data", "init": "the weights it starts from"}
        changes = [
            f"{names[key]} changed from {short_digest(before)} to {short_digest(now)}"
            for (key, before), (_, now) in zip(other, self, strict=True)
            if before != now
        ]
        return " and ".join(changes)


class Measured(Record):
    """What training or an evaluation found: numbers, why some are missing, and where they come from."""

    model_config = ConfigDict(extra="ignore")  # a table asks no more of train.json

    metrics: dict[str, float | None]
    reasons: dict[str, str] = Field(default_factory=dict, description="of metrics and errors that are null")
    errors: dict[str, float | None] = Field(
        default_factory=dict, description="standard error of metrics that are means over images; 0 of exact ones"
    )
    count: int | None = Field(None, description="images that the means are over")
    provenance: dict[str, Any]

    def count_of(self, metric: str) -> int | None:
        """Images that this metric is over."""
        return self.count


def written_errors(errors: Mapping[str, float]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Standard errors as a record has them, and the reasons of those that are null because they are not finite."""
    odd = [name for name, value in errors.items() if not math.isfinite(value)]
    reasons = {f"error of {name}": f"the standard error is {errors[name]}" for name in odd}
    return {**errors, **dict.fromkeys(odd)}, reasons


# In the provenance of a run that `optim.patience` stopped: after which step, and why.
STOP_FACTS = ("stopped_early", "stopped_because")


class TrainRecord(Measured):
    """What `train.json` says of a finished run."""

    run: str
    files: dict[str, str] = Field(description="SHA-256 of what training wrote next to it")
    inputs: Inputs


class FilesElsewhere(Record):
    """Files of a finished run that are not here: its weights, or whatever was not published."""

    place: str = Field(description="where they are, in the user's words")
    files: dict[str, str] = Field(description="SHA-256 by name")


class EvalInputs(Strict):
    """What an evaluation was computed from, beside its config."""

    weights: dict[str, str]  # SHA-256 of the encoder of each subject, by role
    data: dict[str, str]  # fingerprint of each data set, by its name
    site_files: dict[str, str] = Field(default_factory=dict)  # SHA-256 of files that the site names, by key

    def change_since(self, other: "EvalInputs") -> str:
        """In words, what is different from what was there before; what is not here now is no difference."""
        for words, before, now in (
            ("weights", other.weights, self.weights),
            ("data", other.data, self.data),
            ("site file", other.site_files, self.site_files),
        ):
            for name, found in now.items():
                if found != (known := before.get(name)):
                    return f"{words} {short_digest(known)} of {name}, which is {short_digest(found)} now"
        return ""


class ImageSet(Record):
    """Images that a metric is the mean over: how many, and a text that names them and their order."""

    count: int
    images: str


class EvalResult(Measured):
    """What `result.json` says of a finished evaluation."""

    evaluation: str = Field(description="the file of configs/eval, or the name in the study's `evals`")
    subjects: dict[str, str] = Field(description="runs by role")
    data: dict[str, str] = Field(description="data sets by role")
    without_error: dict[str, str] = Field(
        default_factory=dict, description="metrics that have no standard error, and why"
    )
    images: str = Field("", description="which images, in which order, the per-image values are of")
    per_image: list[str] = Field(
        default_factory=list, description="metrics that are the mean of one value per image, which are kept next to it"
    )
    other_images: dict[str, ImageSet] = Field(
        default_factory=dict, description="metrics that are over other images than `count` and `images` say"
    )
    files: dict[str, str] = Field(description="SHA-256 of what the evaluation wrote next to it")
    inputs: EvalInputs

    def count_of(self, metric: str) -> int | None:
        other = self.other_images.get(metric)
        return other.count if other else self.count

    def images_of(self, metric: str) -> str:
        """The images of this metric's values, in their order; empty where that is not known."""
        other = self.other_images.get(metric)
        return other.images if other else self.images


class EvalJobRecord(Record):
    """Evaluations that were computed by one process: SHA-256 of each result.json, by its name."""

    results: dict[str, str]


class DrawingRecord(Record):
    """What a drawing was drawn from, and which files it consists of: SHA-256 by name below results/<scale>."""

    spec: str = Field(description="fingerprint of what the configs say of it, and of the code that draws")
    inputs: dict[str, str]
    files: dict[str, str]


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file of the results."""
    try:
        return kind.model_validate_json(read_sealed(path))
    except FileNotFoundError:
        raise DataError(f"{path} not found; run the workflow, which writes it first") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        what = f"{where + ': ' if where else ''}{problem['msg']}"
        raise DataError(f"{shown(path)} is damaged ({what}); run the workflow to compute it again") from None


def read_intact(path: Path, kind: type[Kind]) -> Kind | None:
    """A record; None where it is missing or damaged, which `verify` reports in its own place."""
    try:
        return read_record(path, kind)
    except DataError:
        return None


def write_record(path: Path, record: BaseModel) -> None:
    write_sealed(path, record.model_dump(mode="json"))
