"""What the report shows of each study: its story, figures, tables and claims."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report.collect import Content
from pipeline.report.figures.figures import draw_figure
from pipeline.report.figures.lines import read_curves
from pipeline.report.figures.pictures import Place
from pipeline.report.records import FilledTable, Read, RunSummary
from pipeline.report.site import findings
from pipeline.report.site.findings import ClaimInWords, KeyNumbers
from pipeline.report.tables.draw import Drawn, drawn
from pipeline.report.tables.view import TableView, view
from pipeline.report.words import counted
from pipeline.study.spec import Drawing

MOST_BARS = 10


@dataclass(frozen=True)
class Bars:
    """The numbers that say most of a study, as bars."""

    keys: KeyNumbers
    svg: str

    @property
    def more(self) -> int:
        """Rows that only the table has."""
        return max(0, len(self.keys.rows) - MOST_BARS)


@dataclass(frozen=True)
class StudySection:
    """What the report shows of one study."""

    name: str
    title: str
    about: str
    sentences: list[str]
    main_claim: ClaimInWords | None
    bars: Bars | None
    figures: list[Drawn]
    tables: list[TableView]
    waiting: list[FilledTable]  # tables and figures of which nothing ran
    claims: list[ClaimInWords]
    runs: list[RunSummary]

    @property
    def counts(self) -> list[str]:
        """Such as "2 tables"; nothing of what there is none of."""
        found: dict[str, Sequence[object]] = {"table": self.tables, "figure": self.figures, "run": self.runs}
        return [counted(len(each), word) for word, each in found.items() if each]

    @property
    def has_paper(self) -> bool:
        return any(shown.table.has_paper for shown in self.tables)


def by_study(content: Content, scale: str, read: Read, place: Place) -> list[StudySection]:
    """Each study with its tables and claims; those without a paper first, which compare what the papers do not."""
    names = dict.fromkeys([*(table.study for table in content.tables), *(study.study for study in content.claims)])
    of_papers = {table.study for table in content.tables if table.has_paper}
    return [_section(content, name, scale, read, place) for name in sorted(names, key=lambda name: name in of_papers)]


def _section(content: Content, name: str, scale: str, read: Read, place: Place) -> StudySection:
    own = [table for table in content.tables if table.study == name]
    judged = [claim for study in content.claims if study.study == name for claim in study.claims]
    filled = [table for table in own if has_results(table, read)]
    keys = findings.key_numbers(filled, judged)
    story = content.stories.get(name)
    title = next((table.study_title for table in own), story.title if story else name)
    figures = [figure for table in filled if (figure := drawn(table, read, place))]
    claims = findings.in_words(judged, content.tables, scale)
    return StudySection(
        name=name,
        title=title,
        about=story.about if story else "",
        sentences=[*(findings.key_sentences(keys, title) if keys else []), *findings.claim_sentence(judged)],
        main_claim=next((one for one in claims if story and one.claim.id == story.main_claim), None),
        bars=Bars(keys, _bars(keys, name)) if keys else None,
        figures=sorted(figures, key=lambda figure: not figure.svg),  # in the order of the page
        tables=[view(table) for table in filled if table.figure is None],
        waiting=[table for table in own if table not in filled],
        claims=claims,
        runs=[run for run in content.runs if name in run.studies],
    )


def has_results(table: FilledTable, read: Read) -> bool:
    """Whether there is anything to show of a table or a figure."""
    if table.figure is not None and table.figure.kind == "curves":
        return bool(read_curves(table, table.figure.curve, read))
    return bool(view(table).rows)


def _bars(keys: KeyNumbers, name: str) -> str:
    """The key numbers as a figure of bars."""
    rows = [row.first.model_copy(update={"here": row.label, "same_as": ""}) for row in keys.rows[:MOST_BARS]]
    column = keys.column.first.model_copy(update={"here": keys.column.label})
    changes = {"rows": rows, "columns": [column], "figure": Drawing(kind="bars", x_from="rows")}
    return draw_figure(keys.table.model_copy(update=changes), _read_nothing, f"bars-{name}")


def _read_nothing(name: str) -> bytes:
    raise FileNotFoundError(name)
