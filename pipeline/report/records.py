"""What a drawn table, a judged study and a finished run hold: written as JSON by one step, read by the next."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from pipeline.core.config import Record
from pipeline.study.claims.decide import JudgedClaim
from pipeline.study.spec import Direction, Drawing

Verdict = Literal["match", "differs", "not comparable", "no paper value", "not run"]

Read = Callable[[str], bytes]  # the content of a file below results/<scale>


class Cell(Record):
    """One number of a table, or one picture of a figure, beside the paper's; or the reason why there is none."""

    ours: float | None = Field(None, description="mean over the seeds")
    values: list[float] = Field([], description="one per seed")
    seeds: list[int] = Field([], exclude=True, description="which of the planned ones `values` are of; not written")
    spread: float | None = Field(None, description="standard deviation over seeds; None for one seed")
    error: float | None = Field(
        None, description="standard error of `ours`, of few seeds from all runs of the scale; None: unknown, 0: exact"
    )
    image_error: float | None = Field(None, description="standard error over images, which all seeds share")
    n: int = Field(0, description="seeds")
    planned: int = Field(0, description="seeds that the study asks for; `n` of them are finished")
    count: int | None = Field(None, description="images that a mean is over")
    metric: str = ""
    per_image: list[str] = Field([], description="files below results/<scale>, one per seed; empty: none")
    images: str = Field("", description="fingerprint of the images and their order; equal ones may be paired")
    picture: str = Field("", description="file below results/<scale>")
    run: str | None = Field(None, description="what was trained: its run with the first planned seed")
    paper: float | None = None
    difference: float | None = None
    tolerance: float | None = None
    verdict: Verdict = "not run"
    reason: str = ""
    is_final: bool = Field(False, description="it has no number and cannot get one at this scale, whatever is run")
    stale: str = Field("", description="why its results must be made again; empty where they are current")
    provenance: dict[str, Any] | None = Field(None, description="file, metric and run, then the facts of the result")


class Labelled(Record):
    """A row or a column."""

    id: str
    label: str
    here: str = Field("", description="what ran, where `label` names something of the paper that did not")

    @property
    def name(self) -> str:
        return self.here or self.label


class FilledColumn(Labelled):
    direction: Direction = "none"
    decimals: int = 1
    x: float | None = None  # place on a figure's axis
    same_as: str = ""  # label of the earlier column of this table that has the same sources in every row


class FilledRow(Labelled):
    runs: dict[str, list[str]]  # by role, one per seed
    fidelity: str
    cells: dict[str, Cell]  # by column
    x: float | None = None  # place on a figure's axis
    selected: bool = True  # the selection runs it
    has_curve: bool = False  # in a figure of curves, which has no cells: one of its runs is trained
    same_as: str = ""  # label of the earlier row of this table that has the same sources in every column


class FilledTable(Record):
    id: str
    study: str
    study_title: str
    label: str
    title: str
    here: str = Field("", description="the title with what ran, where that is not what `title` says")
    scale: str
    comparable: bool
    scale_note: str
    note: str
    terms: dict[str, str] = Field({}, description="words of labels of its study -> what they mean")
    columns: list[FilledColumn]
    rows: list[FilledRow]
    figure: Drawing | None = None  # None: a table

    @property
    def name(self) -> str:
        return self.here or self.title

    @property
    def has_paper(self) -> bool:
        """Whether the paper has any number of this table; without one, nothing is said of a paper."""
        return any(cell.paper is not None for row in self.rows for cell in row.cells.values())

    def cells(self) -> list[tuple[FilledRow, FilledColumn, Cell]]:
        """Every (row, column, cell) that the table has; a row need not fill every column."""
        return [
            (row, column, row.cells[column.id])
            for row in self.rows
            for column in self.columns
            if column.id in row.cells
        ]


class JudgedStudy(Record):
    """The claims of one study at one scale."""

    study: str
    scale: str
    claims: list[JudgedClaim]


class RunSummary(Record):
    """A finished run, as the page shows it."""

    name: str
    label: str
    here: str = Field("", description="what it is, where `label` is the paper's name for something else")
    studies: list[str]
    metrics_file: str | None
    summary: dict[str, Any]
    provenance: dict[str, Any]
    config: str
    init: str | None = Field(None, description="name of the run that it starts from")
    files: dict[str, str] = Field({}, description="SHA-256 of what training wrote, by path")

    @property
    def title(self) -> str:
        return self.here or self.label


class EvaluationSummary(Record):
    """A finished evaluation, as the report shows it."""

    name: str
    file: str = Field(description="its result.json, from the project's folder")
    label: str = Field(description="the file of configs/eval, or the name in the study's `evals`")
    subjects: dict[str, str]
    config: dict[str, Any]
    metrics: dict[str, float | None]
    errors: dict[str, float | None]
    reasons: dict[str, str]
    files: dict[str, str]
    provenance: dict[str, Any]
