"""What study and scale files say: one paper as data, and the size at which it is run."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config import Strict

Direction = Literal["up", "down", "none"]


class RunSpec(Strict):
    """A run as a study writes it: names of fragments, and what differs from them."""

    label: str
    method: str
    model: str
    data: str
    init: str | None = Field(None, description="key of the run of this study whose encoder it starts from")
    set: dict[str, Any] = Field(default_factory=dict, description="keys of the run config; wins over everything")


class Column(Strict):
    """Where a column's numbers come from: a metric of an evaluation (or of `train`), or a difference to one row."""

    label: str
    eval: str | None = None
    metric: str | None = None
    delta: str | None = Field(None, description="column whose difference to the row `against` is shown")
    against: str | None = None
    direction: Direction = "none"
    decimals: int = Field(1, ge=0, le=6)
    tolerance: float | None = Field(None, ge=0, description="largest difference to the paper that still matches")

    @model_validator(mode="after")
    def _has_one_source(self) -> "Column":
        given = [key for key in ("eval", "metric", "delta", "against") if getattr(self, key)]
        if given not in (["eval", "metric"], ["delta", "against"]):
            raise ValueError(f"found {', '.join(given) or 'none of them'}; give eval and metric, or delta and against")
        return self


class Row(Strict):
    label: str
    run: str
    headline: bool = Field(True, description="part of `demo`; the other rows are for `all`")


class Table(Strict):
    label: str
    title: str
    note: str = ""
    columns: dict[str, Column]
    rows: dict[str, Row]


class Claim(Strict):
    """A sentence of the paper as comparisons of table cells, written `row:column`; all must hold."""

    statement: str
    type: Literal["exact", "directional", "scale", "cost"]
    holds: list[str] = Field(min_length=1)


class Study(Strict):
    """One paper: its runs, its tables, its claims. `common` is its recipe, below the scale's."""

    title: str
    common: dict[str, Any] = Field(default_factory=dict)
    runs: dict[str, RunSpec]
    # The `t` keeps a table's file apart from the study's other files, such as <study>.claims.json.
    tables: dict[Annotated[str, Field(pattern=r"^t\w*$")], Table]
    claims: dict[str, Claim] = Field(default_factory=dict)


class Scale(Strict):
    """At what size studies are run: other fragments in place of the papers', and another recipe."""

    note: str
    comparable: bool = Field(description="whether the papers' numbers can be expected at this scale")
    replace_model: dict[str, str] = Field(default_factory=dict)
    replace_data: dict[str, str] = Field(default_factory=dict)
    run: dict[str, Any] = Field(default_factory=dict)
    eval: dict[str, dict[str, Any]] = Field(default_factory=dict)


class Expected(Strict):
    """The numbers a paper prints: row id -> column -> value."""

    source: str
    rows: dict[str, dict[str, float | None]]
