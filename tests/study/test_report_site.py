"""The report as a site: its pages, their links, its files, what the search finds. In a browser: test_page.py."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from report_content import (
    content,
    make_claims,
    make_evaluations,
    make_figures,
    make_runs,
    make_tables,
    read_picture,
    reader,
    run_name,
    whole_content,
    write_site,
)
from result_files import write_training

from pipeline.cli import main
from pipeline.commands import report
from pipeline.report.collect import collect
from pipeline.report.figures.shrink import LARGE, embed_small
from pipeline.report.records import FilledTable, RunSummary
from pipeline.report.site.configs import config_lines, nearest_runs
from pipeline.report.site.overview import scatter
from pipeline.report.site.page import write_report
from pipeline.report.tables.view import _has_word, view
from pipeline.results.records import DrawingRecord, read_record
from pipeline.study.resolve.graph import load_graph

pytestmark = pytest.mark.slow


MOST_BYTES = 1_000_000  # of a page, before its pictures


class Links(HTMLParser):
    """Addresses and ids of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.addresses += [found[key] for key in ("href", "src") if found.get(key)]
        self.ids += [found["id"]] if found.get("id") else []


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    return write_site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def write(tmp_path):
    """A site without runs, so that no curve has to be drawn; its first page."""

    def write_pages(tables=None, claims=None, runs=(), evaluations=()):
        made = content(
            make_tables() if tables is None else tables, make_claims() if claims is None else claims, runs, evaluations
        )
        return write_report(made, tmp_path / "headline.html", "Title", "demo", read_picture)[0]

    return write_pages


def pages_of(first: Path) -> list[Path]:
    return [first, *sorted(first.with_suffix("").glob("*.html"))]


def words_of(page: Path) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.read_text())).split())


def test_site__every_link_of_every_page__leads_to_something_inside_its_folder(site):
    ids = {page: Links(page).ids for page in pages_of(site)}
    lost = []
    for page in ids:
        for address in Links(page).addresses:
            parts = urlsplit(address)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            inside = target == site or target.is_relative_to(site.with_suffix(""))
            known = not parts.fragment or unquote(parts.fragment) in ids.get(target, [])
            if not (parts.scheme == "data" or (not parts.scheme and inside and target.is_file() and known)):
                lost.append((page.name, address))
    assert lost == []
    assert len(ids) == 1 + 2 + 2 + 11 + 1  # first; claims, runs; studies; each run; evaluations of no run


def test_site__ids_of_a_page__are_unique(site):
    for page in pages_of(site):
        ids = Links(page).ids
        assert len(ids) == len(set(ids)), page.name


def test_site__pages__are_below_a_megabyte_and_hold_no_picture(site):
    for page in pages_of(site):
        assert page.stat().st_size < MOST_BYTES
        assert "data:image" not in page.read_text() and "data:audio" not in page.read_text()


def test_site__pictures__are_lazy_files_of_which_equal_ones_are_one(site):
    page = (site.with_suffix("") / "study-droppos.html").read_text()
    images = re.findall(r"<img [^>]*>", page)
    shown = [re.search(r'src="(files/\w+\.png)"', image) for image in images if "alt=" in image and "src=" in image]
    assert shown and all(shown)
    assert all('loading="lazy"' in image for image in images if "src=" in image)
    kept = {path.name for path in (site.with_suffix("") / "files").iterdir()}
    assert {match[1].removeprefix("files/") for match in shown} < kept  # and the sounds


def test_site__written_again_with_less__leaves_no_page_or_picture_behind(tmp_path):
    figures = [figure for figure in make_figures() if figure["figure"]["kind"] == "pictures"]
    first = write_report(content(figures, [], []), tmp_path / "report.html", "Title", "demo", read_picture)[0]
    assert (tmp_path / "report/files").exists()
    beside = tmp_path / "all.html"
    beside.write_text("another report")
    write_report(content([], [], []), first, "Title", "demo", read_picture)
    left = {path.name for path in (tmp_path / "report").rglob("*") if path.is_file()}
    assert left == {"claims.html", "runs.html", "colours.css", "page.css", "page.js", "search.js"}
    assert beside.exists()


def test_site__same_input_twice__same_bytes_and_no_path_of_the_machine(tmp_path, site):
    again = write_site(tmp_path)
    files = sorted(path.relative_to(tmp_path) for path in [again, *(tmp_path / "report").rglob("*")] if path.is_file())
    for file in files:
        assert (tmp_path / file).read_bytes() == (site.parent / file).read_bytes()
        assert str(tmp_path).encode() not in (tmp_path / file).read_bytes()


# The first page


def test_first_page__claims__are_one_mark_each_that_leads_to_the_claim(site):
    marks = re.findall(r'<a class="mark ([\w-]+)" href="([^"]*)" title="([^"]*)"', site.read_text())
    assert len(marks) == sum(len(study["claims"]) for study in make_claims())
    assert ("false", "report/study-mjp.html#claim-mjp.c05", "MJP hampers attacks.") in marks
    assert [verdict for verdict, address, _ in marks if "mjp" in address] == (
        ["true"] * 3 + ["false", "within-noise"] + ["not-run-yet"] * 2
    )


def test_first_page__scatter__has_every_percentage_once_at_its_place(site):
    found = re.findall(r'<title>([^<]*)</title><circle class="[^"]*" cx="([\d.]+)" cy="([\d.]+)"', site.read_text())
    circles = [(x, y, text) for text, x, y in found]
    both = {
        (cell["paper"], cell["ours"])
        for table in make_tables()
        for line in table["rows"]
        for column in table["columns"]
        if "%" in column["label"]
        for cell in [line["cells"][column["id"]]]
        if None not in (cell["paper"], cell["ours"])
    }
    found = {(float(x), 100 - float(y)) for x, y, _ in circles}
    assert {(round(x, 2), round(y, 2)) for x, y in both} == {(x, round(y, 2)) for x, y in found}
    assert "The mjp study Table 1, DeiT-S, Top-1 (%): 74.1, paper 79.8" in [text for *_, text in circles]


def test_scatter__number_in_two_tables__is_drawn_once():
    table = FilledTable(**make_tables()[0])
    once, twice = (scatter(tables, {"mjp": "MJP"}) for tables in ([table], [table, table]))
    assert twice == once and len(once.points) > 1


def test_scatter__number_in_another_unit__is_counted_and_not_drawn():
    tables = [FilledTable(**table) for table in make_tables()[:2]]
    assert scatter(tables[1:], {"mjp": "MJP"}) is None
    assert scatter(tables, {"mjp": "MJP"}).note == "18 numbers in other units are in the tables."
    assert scatter([], {}) is None


def test_first_page__surprises__are_the_claims_that_do_not_hold_with_their_numbers(site):
    text = words_of(site).partition("Claims to look at first")[2].partition("Studies")[0]
    assert text.index("MJP hampers attacks.") < text.index("Attentive reconstruction helps.")
    assert "MSE: 0.506" in text


def test_first_page__surprises__say_in_two_sentences_what_they_may_come_from(write):
    claims = make_claims()
    refuted = next(claim for study in claims for claim in study["claims"] if claim["verdict"] == "false")
    refuted["remark"] = "The seed was unlucky. It was 13. Nobody chose it."
    text = words_of(write(make_tables(), claims)).partition("Claims to look at first")[2]
    assert "May come from: The seed was unlucky. It was 13." in text.partition("Studies")[0]
    assert "Nobody chose it" not in text.partition("Studies")[0]


def test_first_page__study_without_a_paper__comes_first(write):
    own = make_tables()[2]
    own |= {"study": "own", "id": "own.t5"}
    for line in own["rows"]:
        line["cells"]["top1"] |= {"paper": None, "difference": None, "verdict": "no paper value"}
    contents = re.findall(r'href="headline/study-(\w+)\.html">', write([*make_tables(), own]).read_text())
    assert contents[:3] == ["own", "mjp", "droppos"]


def test_first_page__study__counts_its_tables_and_leaves_out_what_it_has_none_of(write):
    page = write(make_tables()[:1], []).read_text()
    assert '<p class="muted">1 table</p>' in page and "no figures" not in page


def test_first_page__marks__are_counted_in_the_words_of_the_verdicts(site):
    assert "3 hold, 1 does not hold, 1 within noise, 2 not run yet" in words_of(site)


def test_report_without_a_paper__says_nothing_of_one(write):
    tables, claims = [make_tables()[2] | {"note": ""}], make_claims()[1:]
    for line in tables[0]["rows"]:
        line["cells"]["top1"] |= {"paper": None, "difference": None, "verdict": "no paper value"}
    first = write(tables, claims)
    assert len(pages_of(first)) == 5
    assert [page.name for page in pages_of(first) if "paper" in words_of(page)] == []
    assert "scatter" not in first.read_text() and "Every claim is a mark" in words_of(first)


# A study


def test_table__says_which_number_is_furthest_from_the_papers(site):
    page = words_of(site.with_suffix("") / "study-mjp.html")
    assert "Furthest from the paper: Consistency (%), DeiT-S + JP: 88.8 , paper 66.3 (+22.5)." in page


def test_most_different__columns_of_several_units__is_a_share_of_the_papers_number():
    table = make_tables()[0]
    table["columns"] = table["columns"][1:]
    near, far = table["rows"][0]["cells"], table["rows"][1]["cells"]
    near["consistency"] |= {"paper": 100.0, "difference": -20.0}
    far["diff_norm"] |= {"paper": 3.0, "difference": 2.0}
    shown = view(FilledTable(**table))
    row, column, cell = shown.most_different()
    assert shown.is_relative and (row.label, column.label) == ("DeiT-S, no position embedding", "Diff. norm")
    assert shown.distance(column, cell) == 2 / 3


def test_distance__column_without_a_direction__is_not_ordered_with_the_others():
    table = make_tables()[0]
    table["columns"][0] = table["columns"][0] | {"label": "Parameters", "direction": "none"}
    table["rows"][0]["cells"]["top1"] |= {"paper": 1000.0, "difference": -990.0}
    shown = view(FilledTable(**table))
    assert shown.most_different()[1].label == "Consistency (%)"
    assert shown.distance(shown.columns[0], shown.cell(shown.rows[0], shown.columns[0])) is None


def test_number__leads_to_the_line_on_the_page_of_its_run_that_names_its_file(site):
    page = (site.with_suffix("") / "study-mjp.html").read_text()
    table = page.partition('<div class="table" id="mjp.t1">')[2]
    address = re.search(r'<a class="cell" href="([^"]*)" title="results/demo', table)[1]
    run, _, anchor = unquote(address).partition("#")
    line = (site.with_suffix("") / run).read_text().partition(f'id="{anchor}"')[2].partition("</tr>")[0]
    assert run == f"run-{run_name(0)}.html" and anchor == "cell-mjp.t1.0:top1"
    assert f"results/demo/runs/{run_name(0)}/classify.json" in line and "74.1" in line


def test_number_of_an_unknown_run__is_on_a_page_with_its_provenance(write):
    first = write()
    text = words_of(first.with_suffix("") / "evaluations.html")
    assert "commit 9d1f3a77c0ffee" in text and "mjp.t1.0:top1" in text


def test_stale_number__is_marked_in_the_table_and_on_the_page_of_its_run(write, tmp_path):
    tables = make_tables()[:1]
    tables[0]["rows"][0]["cells"]["top1"]["stale"] = "its weights changed"
    first = write(tables, [], make_runs(tmp_path)[:1])
    mark = '<abbr class="stale" title="must be made again: its weights changed">*</abbr>'
    for page in ("study-mjp", f"run-{run_name(0)}"):
        assert mark in (first.with_suffix("") / f"{page}.html").read_text()


def test_note_of_several_sentences__is_folded_to_its_first(write):
    tables = make_tables()[:1]
    tables[0]["note"] = "One thing. Another (Eq. 6 has it). 5 more."
    page = (write(tables, []).with_suffix("") / "study-mjp.html").read_text()
    assert '<details class="note"><summary>One thing.</summary><p>Another (Eq. 6 has it).</p><p>5 more.</p>' in page


def test_words_of_labels__that_a_study_explains__are_explained_where_they_are_used(write):
    tables = make_tables()[:1]
    tables[0]["terms"] = {"JP": "patches are shuffled", "MJP": "the paper's method", "UNK": "is in no label"}
    page = (write(tables, []).with_suffix("") / "study-mjp.html").read_text()
    assert "<summary>What JP, MJP mean</summary>" in page and "<dt>JP</dt><dd>patches are shuffled</dd>" in page
    assert "is in no label" not in page


def test_words_of_labels__with_signs__are_not_found_inside_of_others():
    assert [
        word for word in ("LP", "LP+", "(a)", "PE") if _has_word("LP+, patches shuffled\n(a) DeiT, no PEs", word)
    ] == [
        "LP+",
        "(a)",
    ]


def test_note_of_pictures__says_what_is_seen_before_them(write):
    shots = make_figures()[-1] | {"note": "Rows are images. Black is hidden."}
    page = (write([shots], []).with_suffix("") / "study-droppos.html").read_text()
    seen = '<details class="note seen" open><summary>Rows are images.</summary><p>Black is hidden.</p></details>'
    assert page.index(seen) < page.index('<div class="strips') and page.count("Black is hidden.") == 1


# A run


def test_config__keys_that_differ_from_the_nearest_run__are_marked(site):
    page = (site.with_suffix("") / f"run-{run_name(2)}.html").read_text()
    assert f'<a href="run-{run_name(0)}.html">DeiT-S</a>, 1 key differs.' in page
    assert '<code>shuffle_ratio</code></th><td><mark>0.2</mark></td><td class="muted">0</td>' in page


def test_nearest_run__is_the_one_with_the_fewest_other_keys():
    texts = {"far": "x: 9\ny: {z: 9}", "a": "x: 1\ny: {z: 1}", "b": "x: 2\ny: {z: 1}", "c": "x: 1\ny: {z: 1}\nw: 3"}
    about = {"studies": [], "metrics_file": None, "summary": {}, "provenance": {}}
    runs = [RunSummary(name=name, label=name, config=text, **about) for name, text in texts.items()]
    found = nearest_runs(runs)
    assert {name: each.run.name for name, each in found.items()} == {"far": "a", "a": "b", "b": "a", "c": "a"}
    assert found["c"].values == {"w": "not set"} and found["b"].values == {"x": "1"}
    assert [line.other for line in config_lines(runs[2], found["b"])] == ["1", None]
    assert nearest_runs(runs[:1]) == {}


def test_run_that_chooses_the_samples_of_a_set__is_among_the_runs(project):
    graph = load_graph("demo")
    name = graph.data["fashion_mnist_a"]["reference"]
    write_training(graph, name, {"top1": 70.0})
    assert not any(name in row.run_names() for key in graph.tables for row in graph.rows(key, "headline").values())
    assert [run.name for run in collect(graph, "headline").runs] == [name]


def test_run__has_its_evaluations_and_links_to_those_that_start_from_it(write, tmp_path):
    runs = make_runs(tmp_path)[:2]
    runs[1] |= {"init": run_name(0)}
    first = write(runs=runs, evaluations=make_evaluations())
    text = words_of(first.with_suffix("") / f"run-{run_name(0)}.html")
    assert "knn_last 61.25 \u00b1 1.5" in text and "results/demo/evals/knn-3fa9c1d2/result.json" in text
    assert "From it start: DeiT-S, no position embedding ." in text
    assert "Starts from DeiT-S ." in words_of(first.with_suffix("") / f"run-{run_name(1)}.html")


# Search


def test_search__finds_tables_claims_runs_and_evaluations_where_they_are(site):
    folder = site.with_suffix("")
    text = (folder / "assets/search.js").read_text()
    entries = json.loads(text.removeprefix("window.SEARCH = ").removesuffix(";\n"))
    found = {(kind, title): address for kind, title, _, address in entries}
    assert found["claim", "MJP hampers attacks."] == "study-mjp.html#claim-mjp.c05"
    assert found["run", "DeiT-S + MJP"] == f"run-{run_name(4)}.html"
    assert found["evaluation", "knn of DeiT-S"].endswith("#eval-knn-3fa9c1d2")
    assert found["main claim", "MJP raises the accuracy of its backbone."] == "study-mjp.html#claim-mjp.c02"
    runs = {address for kind, _, _, address in entries if kind == "run"}
    assert {address for _, _, words, address in entries if "learning curve" in words} == runs != set()
    assert found["table", "Table 5: Position smoothing"] == "study-droppos.html#droppos.t5"


# To send by mail


def test_picture_to_send__large__is_stored_smaller_and_a_small_one_as_it_is():
    import base64
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise((1600, 300), 60).save(buffer, "PNG")
    assert len(buffer.getvalue()) > LARGE
    sent = embed_small(buffer.getvalue(), "image/png")
    kept = base64.b64decode(sent.partition(",")[2])
    assert sent.startswith("data:image/webp") and len(kept) < len(buffer.getvalue())
    assert Image.open(io.BytesIO(kept)).width == 1200
    small = read_picture("evals/a.png")
    assert base64.b64decode(embed_small(small, "image/png").partition(",")[2]) == small


def test_report__every_figure__is_on_the_page_of_its_study(site, tmp_path):
    whole = whole_content(tmp_path)
    assert {table.id for table in whole.tables} >= {figure["id"] for figure in make_figures()}
    for figure in make_figures():
        page = (site.with_suffix("") / f"study-{figure['study']}.html").read_text()
        assert f'id="{figure["id"]}"' in page
    assert reader(tmp_path)  # pictures come from there


# The command


@pytest.fixture
def opened(project, monkeypatch) -> list[str]:
    """Addresses that the browser was asked to open."""
    addresses: list[str] = []
    monkeypatch.setattr(report.webbrowser, "open", lambda address: addresses.append(address) or "single" not in address)
    return addresses


def test_command__writes_the_site_and_opens_it(project, opened, capsys):
    assert main(["report", "--open"]) == 0
    page = project.results / "demo/report/all.html"
    assert opened == [page.as_uri()]
    assert capsys.readouterr().out == f"{page}\n"
    made = read_record(page.with_name("all.made.json"), DrawingRecord)
    assert {"report/all.html", "report/all/study-mjp.html", "report/all/assets/page.js"} < made.files.keys()


def test_command__single__writes_one_page_next_to_the_site(project, opened, capsys):
    assert main(["report", "--open", "--single"]) == 0
    page = project.results / "demo/report/all.single.html"
    assert opened == [page.as_uri()] and not page.with_name("all").exists()
    assert "no browser found on this machine" in capsys.readouterr().out
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]', page.read_text())
