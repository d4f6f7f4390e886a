"""What study and scale files say: one paper as data, and the size at which it is run."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config import Strict

Direction = Literal["up", "down", "none"]
TRAIN = "train"  # the "evaluation" whose metrics training itself writes
TRAIN_METRICS = (
    "params_m",
    "val_top1",
    "best_val_top1",
    "val_position_top1",
    "best_val_position_top1",
    "val_loss",
)


class RunSpec(Strict):
    """A run as a study writes it: names of fragments, and what differs from them."""

    label: str
    method: str
    model: str
    data: str
    recipe: list[str] = Field(
        default_factory=list, description="recipes of this study or of configs/recipe, in this order"
    )
    budget: float = Field(1.0, gt=0, description="share of the recipe's epochs, whatever they are at a scale")
    init: str | None = Field(
        None, description="key of the run of this study whose encoder it starts from, or file:<path>"
    )
    set: dict[str, Any] = Field(default_factory=dict, description="keys of the run config; wins over everything")


class Column(Strict):
    """Where a column's numbers come from: a metric of an evaluation (or of `train`), or a difference to one row."""

    label: str
    eval: str | None = None
    metric: str | None = None
    run: str | None = Field(None, description="role of the run that it takes its numbers from")
    partner: str | None = Field(None, description="role of the run that the evaluation is done together with")
    delta: str | None = Field(None, description="column whose difference to the row `against` is shown")
    against: str | None = None
    direction: Direction = "none"
    decimals: int = Field(1, ge=0, le=6)
    tolerance: float | None = Field(None, ge=0, description="largest difference to the paper that still matches")

    @model_validator(mode="after")
    def _has_one_source(self) -> "Column":
        if self.delta and (self.run or self.partner):
            raise ValueError("a difference is of another column, whose run it takes; leave out run and partner")
        given = [key for key in ("eval", "metric", "delta", "against") if getattr(self, key)]
        if given not in (["eval", "metric"], ["delta", "against"]):
            raise ValueError(f"found {', '.join(given) or 'none of them'}; give eval and metric, or delta and against")
        return self


class Row(Strict):
    """A row's runs by role; one without a role (`run: a`) serves every column. What no run is there for, `why` says."""

    label: str
    run: dict[str, str] = Field(default_factory=dict)
    why: str = ""
    headline: bool = Field(True, description="part of `demo`; the other rows are for `all`")
    paper: bool = Field(True, description="whether the paper has this row, so that configs/expected holds its numbers")

    @field_validator("run", mode="before")
    @classmethod
    def _by_role(cls, run: Any) -> Any:
        return {"": run} if isinstance(run, str) else run


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
    """One paper: its runs, its tables, its claims. `common` is in every run, `recipes` in those that name them."""

    title: str
    common: dict[str, Any] = Field(default_factory=dict)
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
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
    pretrain: dict[str, Any] = Field(default_factory=dict, description="like run, for pretraining alone; wins over it")
    method: dict[str, dict[str, Any]] = Field(default_factory=dict, description="method -> its keys at this scale")
    eval: dict[str, dict[str, Any]] = Field(default_factory=dict)
    max_budget: float | None = Field(None, gt=0, description="no run takes more than this share of its recipe's epochs")


class Expected(Strict):
    """The numbers a paper prints: row id -> column -> value."""

    source: str = ""
    rows: dict[str, dict[str, float | None]] = Field(default_factory=dict)

    @field_validator("rows", mode="before")
    @classmethod
    def _without_numbers(cls, rows: Any) -> Any:
        """A row's null stands for no numbers."""
        return {key: {} if row is None else row for key, row in rows.items()} if isinstance(rows, dict) else rows
