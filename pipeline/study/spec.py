"""What study and scale files say: one paper as data, and the size at which it is run."""

import re
from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from pipeline.core.config import CONFIGS, FILE, Strict, nearest, parse_file
from pipeline.study.claims.formula import matching_names

Direction = Literal["up", "down", "none"]
TRAIN = "train"  # the "evaluation" whose metrics training itself writes
MEAN = "mean_"  # before the name of a metric of validation: its mean over the epochs, from the recorded curve
TRAIN_METRICS = (  # a task or a method of a study's runs may add its own
    "params_m",
    "val_top1",
    "best_val_top1",
    "mean_val_top1",
    "val_position_top1",
    "best_val_position_top1",
    "val_loss",
)


class RunSpec(Strict):
    """A run as a study writes it: names of fragments, and what differs from them."""

    short_forms: ClassVar[tuple[str, ...]] = ("like", "over", "along")

    label: str
    """Name of the run in logs and reports."""
    method: str
    """A file of configs/method."""
    model: str
    """A file of configs/model."""
    data: str
    """A file of configs/data."""
    recipe: list[str] = Field(
        default_factory=list, description="recipes of this study or of configs/recipe, in this order"
    )
    budget: float = Field(1.0, gt=0, description="share of the recipe's epochs, however many that is at a scale")
    init: str | None = Field(
        None, description="key of the run of this study whose encoder it starts from, or file:<path>"
    )
    stand_in: str | None = Field(
        None, description="key of the run that replaces the file in `init` at scales without weight files"
    )
    set: dict[str, Any] = Field(default_factory=dict, description="keys of the run config; overrides everything else")
    train: bool = True
    """Whether the run is trained; false: the weight file in `init` is evaluated as it is."""
    seeds: int | None = Field(None, ge=1, le=1000, description="number of seeds; overrides the study's and the scale's")

    @model_validator(mode="after")
    def _has_weights(self) -> "RunSpec":
        if not self.train and not (self.init or "").startswith(FILE):
            raise ValueError(
                f"init is {self.init!r}, and train: false evaluates a weight file; write init: {FILE}<path>"
            )
        if self.stand_in and not (self.init or "").startswith(FILE):
            raise ValueError(f"stand_in replaces a weight file, but init is {self.init!r}; leave out stand_in")
        if not self.train and (self.seeds or 1) > 1:
            raise ValueError(f"seeds is {self.seeds}, and a weight file has one; leave out seeds, or write 1")
        return self


class EvalSpec(Strict):
    """An evaluation of a study: a file of configs/eval, with other values for some of its keys."""

    short_forms: ClassVar[tuple[str, ...]] = ("like",)

    eval: str
    """A file of configs/eval."""
    set: dict[str, Any] = Field(
        default_factory=dict,
        description="keys of the evaluation's config; overrides the file and the scale's keys for it",
    )
    at: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="scale -> keys of the config at this scale; overrides `set`"
    )


class Column(Strict):
    """Where a column's cells come from: an evaluation (or `train`), or a difference to one row or to another column.

    Of an evaluation a cell shows the `metric`, or the picture or sound in a `file`; where both are left out, each row
    names its own metric in `metrics`.
    """

    short_forms: ClassVar[tuple[str, ...]] = RunSpec.short_forms

    label: str
    """Head of the column."""
    eval: str | None = None
    """A file of configs/eval, a name in the study's `evals`, or `train` for the metrics of training itself."""
    set: dict[str, Any] = Field(
        default_factory=dict, description="keys of the config of `eval`, for this column; overrides everything else"
    )
    metric: str | None = None
    """Metric of the evaluation that the cells show."""
    file: str | None = Field(None, description="picture or sound that the evaluation writes, such as rebuilt.png")
    run: str | dict[str, str] | None = Field(
        None, description="role of the row's run; for several subjects: role in the evaluation -> role of the row's run"
    )
    delta: str | None = Field(
        None, description="column whose difference to the row `against`, or to the column `minus`, is shown"
    )
    against: str | None = None
    """Row to which a `delta` is shown."""
    minus: str | None = None
    """Column that is subtracted from `delta`."""
    x: float | None = Field(None, description="place on the axis of a figure")
    scales: list[str] = Field(default_factory=list)
    """Scales at which the cells are computed; at others they give the reason. Empty: every scale."""
    direction: Direction = "none"
    """Whether more (up) or less (down) is better; none: neither."""
    decimals: int = Field(1, ge=0, le=6)
    """Digits after the point."""
    tolerance: float | None = Field(None, ge=0, description="largest difference to the paper that still matches")

    @property
    def roles(self) -> dict[str, str]:
        """Role in the evaluation -> role of the row's run; one subject needs no role in the evaluation."""
        return self.run if isinstance(self.run, dict) else {"": self.run or ""}

    @model_validator(mode="after")
    def _has_one_source(self) -> "Column":
        if self.delta and self.run:
            raise ValueError("a difference uses the run of its column; leave out run")
        if self.set and self.eval in (None, TRAIN):
            raise ValueError(f"set changes keys of an evaluation, found eval: {self.eval or 'null'}; leave out set")
        given = [key for key in ("eval", "metric", "file", "delta", "against", "minus") if getattr(self, key)]
        if given not in (["eval", "metric"], ["eval", "file"], ["eval"], ["delta", "against"], ["delta", "minus"]):
            found = ", ".join(given) or "none of them"
            raise ValueError(
                f"found {found}; give eval and metric, eval and file, delta and against, or delta and minus"
            )
        return self


class Row(Strict):
    """A row's runs by role; one without a role (`run: a`) serves every column. `why` says why a cell has no run."""

    short_forms: ClassVar[tuple[str, ...]] = RunSpec.short_forms

    label: str
    """Head of the row."""
    run: dict[str, str] = Field(default_factory=dict)
    """Key of the run of the row, or role -> key where columns name roles."""
    why: str = ""
    """Why cells of this row have no run."""
    eval: str | dict[str, str] | None = Field(
        None, description="evaluation that replaces the columns', for all of them or by column"
    )
    metrics: dict[str, str] = Field(default_factory=dict, description="column -> metric; overrides the column's")
    x: float | None = Field(None, description="place on the axis of a figure")
    scales: list[str] = Field(default_factory=list)
    """Scales at which the cells are computed; at others they give the reason. Empty: every scale."""
    paper: bool = Field(True, description="whether the paper has this row, so that configs/expected holds its numbers")

    def eval_of(self, key: str, column: Column) -> str | None:
        """The evaluation behind the cell of a column."""
        own = self.eval.get(key) if isinstance(self.eval, dict) else self.eval
        return own or column.eval

    @field_validator("run", mode="before")
    @classmethod
    def _by_role(cls, run: Any) -> Any:
        return {"": run} if isinstance(run, str) else run


class Table(Strict):
    short_forms: ClassVar[tuple[str, ...]] = ("like", "notes")

    label: str
    """Name in the paper, such as Table 4."""
    title: str
    """What it shows."""
    note: str = ""
    """Text below it."""
    columns: dict[str, Column]
    """Columns by their keys, from left to right."""
    rows: dict[str, Row] = Field(min_length=1)
    """Rows by their keys, from top to bottom."""

    def roles_at(self, scale: str, without: Container[str]) -> set[str]:
        """Roles of runs that some column shows at a scale; `without`: columns that do not count."""
        columns = [column for key, column in self.columns.items() if key not in without]
        shown = [column for column in columns if not column.scales or scale in column.scales]
        return {role for column in shown for role in column.roles.values()}

    @model_validator(mode="after")
    def _has_metrics(self) -> "Table":
        """A column without a metric gets one from each row that it measures."""
        for row_id, row in self.rows.items():
            by_column = {"metrics": row.metrics, "eval": row.eval if isinstance(row.eval, dict) else {}}
            for what, key in [(what, key) for what, named in by_column.items() for key in named]:
                if key not in self.columns:
                    raise ValueError(f"rows.{row_id}.{what}.{key} names no column; {nearest(key, self.columns)}")
            for key, column in self.columns.items():
                if column.eval and not (column.metric or column.file or key in row.metrics or row.why):
                    raise ValueError(
                        f"columns.{key} has no metric, and neither has rows.{row_id}.metrics; give one of them"
                    )
        return self


class Drawing(Strict):
    """How a figure is drawn: series of points, bars, a heat map, a grid of pictures and sounds, or curves of training.

    One side of it, rows or columns, has the `x` values; the other side are the series. `curves` draws the metric
    `curve`, which validation writes after each epoch, of every row's run; its columns are numbers below the drawing.
    """

    kind: Literal["lines", "bars", "heatmap", "pictures", "curves"]
    """What is drawn."""
    x_label: str = ""
    """Label of the x axis."""
    y_label: str = ""
    """Label of the y axis."""
    log_x: bool = False
    """Whether the x axis is logarithmic."""
    x_from: Literal["rows", "columns"] = "columns"
    """Whether rows or columns have the x values."""
    levels: list[str] = Field(default_factory=list, description="rows drawn as horizontal lines, such as a baseline")
    curve: str = Field("", description="metric of `curves`, such as val_top1")
    shade: Literal["all", "columns", "gain"] = Field(
        "all",
        description="heatmap: the tint of a number among all of them; from worst to best in its column; or by how much "
        "it is better than that of the first column in its line, which is written next to it",
    )


class Figure(Drawing, Table):
    """A table that is drawn."""

    columns: dict[str, Column] = Field(default_factory=dict)

    @property
    def drawing(self) -> Drawing:
        return Drawing(**{key: getattr(self, key) for key in Drawing.model_fields})

    @model_validator(mode="after")
    def _has_what_its_kind_draws(self) -> "Figure":
        if (self.kind == "curves") != bool(self.curve) or not (self.curve or self.columns):
            raise ValueError("kind: curves needs `curve`; every other kind needs columns and no `curve`")
        wrong = [key for key, column in self.columns.items() if bool(column.file) != (self.kind == "pictures")]
        if wrong:
            raise ValueError(f"columns.{wrong[0]}: `file` is for kind: pictures, and each of its columns needs one")
        unknown = [key for key in self.levels if key not in self.rows]
        if unknown:
            raise ValueError(f"levels: no row {unknown[0]!r}; {nearest(unknown[0], self.rows)}")
        if self.kind != "lines" and (self.levels or self.log_x):
            raise ValueError(f"levels and log_x are for kind: lines; found kind: {self.kind}")
        if self.kind != "heatmap" and self.shade != "all":
            raise ValueError(f"shade is for kind: heatmap; found kind: {self.kind}")
        if self.kind == "lines":
            self._check_x()
        return self

    def _check_x(self) -> None:
        """Every point of a line has a place on the axis."""
        points: dict[str, Any] = {key: row for key, row in self.rows.items() if key not in self.levels}
        points = points if self.x_from == "rows" else dict(self.columns)
        missing = [key for key, point in points.items() if point.x is None]
        if missing:
            raise ValueError(f"{self.x_from}.{missing[0]} has no x, which each of x_from: {self.x_from} needs")
        low = [key for key, point in points.items() if self.log_x and point.x <= 0]
        if low:
            found = f"{self.x_from}.{low[0]} has x {points[low[0]].x}"
            raise ValueError(f"{found}, and log_x needs numbers above 0; leave out log_x, or that point")


class Claim(Strict):
    """A sentence of the paper as comparisons of table cells, written `row:column`; all must hold."""

    statement: str
    """The sentence of the paper."""
    type: Literal["exact", "directional", "scale", "cost"]
    """exact: decided by the numbers alone. cost: about counted or timed numbers. directional: expected at every scale.
    scale: may need the paper's size.
    """
    holds: list[str] = Field(min_length=1)
    """Comparisons of cells, such as `mine.t1.a:top1 > mine.t1.b:top1`; all must hold."""
    main: bool = Field(False, description="the claim of the paper that the report shows first")
    remarks: dict[str, str] = Field(
        default_factory=dict,
        description="scale -> what an outcome there may come from that the paper does not expect; the report shows it",
    )
    margin: float | None = Field(
        None,
        gt=0,
        description="used for columns without a tolerance: what >= and <= between cells allow, "
        "and the smallest difference that says anything where noise is not known",
    )


def _begins_with(letter: str, what: str) -> AfterValidator:
    """Keys of tables and figures differ from each other, and from other files of a study: <study>.claims.json."""

    def check(key: str) -> str:
        if not re.fullmatch(rf"{letter}\w+", key):
            raise ValueError(f"the key of a {what} begins with {letter}, such as {letter}3")
        return key

    return AfterValidator(check)


class Study(Strict):
    """One paper: its runs, tables, figures and claims. `common` is in every run, `recipes` in those that name them.

    `headline` is what `snakemake headline` runs of a study, and `make demo` at scale demo: the rows of each table or
    figure that it names; without it, every row. `headline_at` has other rows for some scales. Of a row, cells may be
    named as in claims: `mp3-none:cifar100_top1`. `set` are keys of every run, which win over everything else.
    `short_forms`, here and above, are keys that expand.py takes out before this is validated.
    """

    short_forms: ClassVar[tuple[str, ...]] = ("axes", "column_sets", "notes")

    title: str
    """Name of the paper or of your study."""
    about: str = Field("", description="what the paper does, in a few short sentences for the report")
    terms: dict[str, str] = Field(
        default_factory=dict, description="words of labels -> what they mean, in plain words; shown below the tables"
    )
    overview: str = Field("", description="one of its tables, such as t1: README shows it where results are published")
    scales: list[str] = Field(
        default_factory=list, min_length=1, description="where it runs, its default first; see pipeline/study/scales.py"
    )
    seeds: int | None = Field(None, ge=1, le=1000, description="number of seeds of every run; overrides the scale's")
    headline: dict[str, list[str]] | None = None
    """Table or figure -> its rows that `make demo` runs, and `snakemake headline` at other scales; null: every row."""
    headline_at: dict[str, dict[str, list[str]]] = Field(
        default_factory=dict, description="scale -> its own `headline`, such as more rows where there is a GPU"
    )
    derived_from: str | None = Field(
        None,
        description="study of which this one is a sweep or a copy with other keys: it is read after all others and "
        "leaves their results as they are",
    )
    common: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run config that every run has."""
    set: dict[str, Any] = Field(default_factory=dict, description="keys of every run; overrides everything else")
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name -> keys of the run config, for runs whose `recipe` lists it."""
    evals: dict[str, EvalSpec] = Field(
        default_factory=dict,
        description="evaluations with other values for some keys; columns and rows use their names like files",
    )
    runs: dict[str, RunSpec] = Field(default_factory=dict)
    """Runs by their keys."""
    tables: dict[Annotated[str, _begins_with("t", "table")], Table] = Field(default_factory=dict)
    """Tables by their keys, which begin with t."""
    figures: dict[Annotated[str, _begins_with("f", "figure")], Figure] = Field(default_factory=dict)
    """Figures by their keys, which begin with f."""
    claims: dict[str, Claim] = Field(default_factory=dict)
    """Claims by their keys."""

    def at(self, scale: "Scale", name: str) -> "Study":
        """This study at the scale of this name: with weight files or without, and with the headline of that scale."""
        study = self.without_stand_ins() if scale.weight_files else self.with_stand_ins()
        return study.model_copy(update={"headline": self.headline_at.get(name, self.headline)})

    def with_stand_ins(self) -> "Study":
        """This study with runs of its own in place of weight files, where it has such runs."""
        runs = {
            key: spec.model_copy(update={"init": spec.stand_in}) if spec.stand_in else spec
            for key, spec in self.runs.items()
        }
        return self.model_copy(update={"runs": runs})

    def without_stand_ins(self) -> "Study":
        """This study with its weight files, and without the runs that only stand in for them."""
        shown = {key for table in self.all_tables.values() for row in table.rows.values() for key in row.run.values()}
        spare = self._with_starts(spec.stand_in for spec in self.runs.values()) - self._with_starts(shown)
        return self.model_copy(update={"runs": {key: spec for key, spec in self.runs.items() if key not in spare}})

    def runs_behind(self, tables: Iterable[str]) -> AbstractSet[str]:
        """Keys of the runs that these tables and figures show, and of those that they start from at any scale."""
        shown = {key for name in tables for row in self.all_tables[name].rows.values() for key in row.run.values()}
        return self._with_starts(shown) | self.with_stand_ins()._with_starts(shown)

    def _with_starts(self, keys: Iterable[str | None]) -> AbstractSet[str]:
        """These runs, those they start from, and so on."""
        found: set[str] = set()
        left = list(keys)
        while left:
            key = left.pop()
            if key in self.runs and key not in found:
                found.add(key)
                left.append(self.runs[key].init)
        return found

    @property
    def all_tables(self) -> dict[str, Table]:
        """Tables and figures, which have no key in common."""
        return {**self.tables, **self.figures}

    def is_headline(self, table: str, row: str) -> bool:
        return self.headline is None or bool(self._headline_patterns(table, row))

    def outside_headline(self, table: str, row: str) -> list[str]:
        """Columns of a headline row that the headline leaves out, because it names cells of the row."""
        patterns = self._headline_patterns(table, row)
        columns = [*self.all_tables[table].columns]
        if not patterns or "" in patterns:
            return []
        kept = {key for pattern in patterns for key in matching_names(pattern, columns, f"no column in {table}:")}
        return [key for key in columns if key not in kept]

    def _headline_patterns(self, table: str, row: str) -> list[str]:
        """What the headline says of the columns of a row; an empty text: all of them."""
        entries = [entry.partition(":") for entry in (self.headline or {}).get(table, [])]
        return [columns for key, _, columns in entries if key == row]

    def headline_runs(self, scale: str) -> AbstractSet[str]:
        """Keys of the runs that headline rows show at a scale, and of those that they start from.

        None where the study does not name its rows: it then has one number of seeds for everything.
        """
        if self.headline is None:
            return set()
        shown = {
            key
            for name, table in self.all_tables.items()
            for row_id, row in table.rows.items()
            if self.is_headline(name, row_id) and (not row.scales or scale in row.scales)
            for role, key in row.run.items()
            if not role or role in table.roles_at(scale, self.outside_headline(name, row_id))
        }
        return self._with_starts(shown)


class Scale(Strict):
    """At what size studies are run: other fragments in place of the papers', and another recipe."""

    note: str
    """What readers of tables must know about this scale."""
    comparable: bool = Field(description="whether the papers' numbers can be expected at this scale")
    papers: bool = Field(True, description="whether studies of papers run here, and their numbers are shown")
    seeds: int = Field(1, ge=1, le=1000, description="number of seeds of every run; a study and a run may have another")
    headline_seeds: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="number of seeds of the runs of headline rows, in place of `seeds`, of studies that name such rows",
    )
    replace_model: dict[str, str] = Field(default_factory=dict)
    """Model of a study -> model that is trained here."""
    replace_data: dict[str, str] = Field(default_factory=dict)
    """Data set of a study -> data set that is used here."""
    weight_files: bool = True
    """Whether weight files are used; false: a run with a `stand_in` starts from that run, not from its file."""
    recipe: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="file of configs/recipe -> its keys at this scale; later recipes override it"
    )
    run: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run config that every run has at this scale; overrides a study's recipes."""
    task: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="task, such as pretrain -> like run, only for its methods; overrides it"
    )
    kind: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="kind of data, such as images -> like run, only for its runs; overrides both"
    )
    method: dict[str, dict[str, Any]] = Field(default_factory=dict, description="method -> its keys at this scale")
    eval: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """File of configs/eval -> its keys at this scale."""
    words: dict[str, str] = Field(
        default_factory=dict, description="words in labels, titles and notes of tables -> the words for this scale"
    )
    stand_ins: dict[str, str] = Field(
        default_factory=dict,
        description="models and data of the papers -> what runs instead at this scale; the report shows both names",
    )
    max_budget: float | None = Field(None, gt=0, description="no run takes more than this share of its recipe's epochs")

    @property
    def replaces_nothing(self) -> bool:
        """Whether it runs studies as they are written."""
        replaced = (self.replace_model, self.replace_data, self.recipe, self.run, self.task, self.kind, self.method)
        return not any(replaced) and self.weight_files and self.max_budget is None

    def apply_wording(self, text: str) -> str:
        """A text of a study with this scale's words in place of the papers'."""
        for word, other in self.words.items():
            text = text.replace(word, other)
        return text


def read_scale(name: str) -> Scale:
    return parse_file(Scale, CONFIGS / "scale" / f"{name}.yaml")


class SeedValues(Strict):
    """One number of a run, once for each seed."""

    run: str = Field(description="name of the run with the first seed")
    values: list[float] = Field(min_length=2)
    """The number, for each seed."""
    made: str = Field("", description="where the first of them was computed, with which torch, and at which commit")

    @property
    def machine(self) -> str:
        return self.made.split(",")[0]


class Noise(Strict):
    """What seeds were seen to do at one scale: data set, evaluation and metric -> values of runs over seeds."""

    metrics: dict[str, list[SeedValues]]
    """Data set, evaluation and metric -> runs with several seeds."""


class Expected(Strict):
    """The numbers a paper prints: row id -> column -> value."""

    source: str = ""
    """The paper, and where in it the numbers are."""
    rows: dict[str, dict[str, float | None]] = Field(default_factory=dict)
    """Row of a table, such as mjp.t1.deit-s -> column -> number; null: the paper prints none."""

    @field_validator("rows", mode="before")
    @classmethod
    def _without_numbers(cls, rows: Any) -> Any:
        """A row's null stands for no numbers."""
        return {key: {} if row is None else row for key, row in rows.items()} if isinstance(rows, dict) else rows
