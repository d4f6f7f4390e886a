"""What training and evaluations leave behind, as records: written as JSON by one step, read by the next."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from pipeline.config import Record
from pipeline.errors import DataError
from pipeline.files import write_json

Kind = TypeVar("Kind", bound=BaseModel)


class Started(Record):
    """Which run this is, through every interruption."""

    identity: str
    commit: str
    steps: int


class Measured(Record):
    """What training or an evaluation found: numbers, why some are missing, and where they come from."""

    run: str
    metrics: dict[str, float | None]
    reasons: dict[str, str] = Field(default_factory=dict, description="of metrics that are null")
    files: dict[str, str] = Field(default_factory=dict, description="SHA-256 of what training wrote beside it")
    provenance: dict[str, Any]


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file of the results."""
    return _read(path, TypeAdapter(kind))


def read_evaluations(path: Path) -> dict[str, Measured]:
    """A group of evaluations, by key."""
    return _read(path, TypeAdapter(dict[str, Measured]))


def _read(path: Path, adapter: TypeAdapter) -> Any:
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} not found; run the workflow, which writes it first") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise DataError(
            f"{path} is damaged ({where + ': ' if where else ''}{problem['msg']}); delete it and run the workflow again"
        ) from None


def write_record(path: Path, record: BaseModel) -> None:
    write_json(path, record.model_dump(mode="json"))
