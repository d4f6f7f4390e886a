"""The report page and the drawn tables: what they show, and how the page behaves in a real browser."""

import copy
import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_content import cell, make_claims, make_runs, make_tables, provenance, run_name, write_metrics

from pipeline.errors import DataError
from pipeline.report import curves
from pipeline.report.collect import Content
from pipeline.report.draw import duration, to_csv, to_html, to_markdown
from pipeline.report.page import write_report
from pipeline.report.records import FilledTable, JudgedStudy, RunSummary


def content(tables, claims, runs) -> Content:
    """The given JSON as records."""
    parts = (FilledTable, tables), (JudgedStudy, claims), (RunSummary, runs)
    return Content(*([kind(**part) for part in given] for kind, given in parts))


def logged(runs) -> list[curves.Logged]:
    return [curves.Logged(run["name"], run["label"], Path(run["metrics_file"])) for run in runs]


EVIL = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture(scope="session")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(
        content(make_tables(), make_claims(), make_runs(folder)),
        folder / "report.html",
        "Patchwork at demo scale",
        "demo",
    )


@pytest.fixture
def render(tmp_path):
    """The text of a report; without runs, so that no curve has to be drawn."""

    def write(tables=None, claims=None, runs=()):
        tables = make_tables() if tables is None else tables
        claims = make_claims() if claims is None else claims
        return write_report(content(tables, claims, runs), tmp_path / "report.html", "Title", "demo").read_text("utf-8")

    return write


def leaves(value, path=()):
    """(path, value) of every number in nested JSON."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def replace_leaf(value, path, leaf):
    changed = copy.deepcopy(value)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = leaf
    return changed


def test_report__any_number_of_the_input_changes__page_changes(render):
    tables, claims = make_tables()[::2], make_claims()
    before = render(tables, claims)
    silent = [path for path, value in leaves(tables) if render(replace_leaf(tables, path, value + 3), claims) == before]
    silent += [
        path for path, value in leaves(claims) if render(tables, replace_leaf(claims, path, value + 3)) == before
    ]
    assert silent == []


def test_report__cell__shows_ours_paper_difference_tolerance_and_verdict(render):
    numbers = {"ours": 41.26, "paper": 43.5, "difference": -2.24, "tolerance": 0.35, "verdict": "differs"}
    table = make_tables()[0]
    table["rows"] = table["rows"][:1]
    table["rows"][0]["cells"] = {"top1": cell(0, "top1", 0.0, 0.0) | numbers}
    button = re.search(r'<button class="cell".*?</button>', render([table], []), flags=re.DOTALL)[0]
    text = " ".join(re.sub(r"<[^>]+>", " ", button).split())
    assert text == "41.3 paper 43.5 -2.2 (&plusmn;0.35) differs"


def test_report__cell_not_run__says_why(render):
    tables = make_tables()
    tables[0]["rows"][5]["cells"]["top1"]["reason"] = "the cluster was asleep"
    cells = re.findall(r'<div class="cell">.*?</div>', render(tables), flags=re.DOTALL)
    assert any("n/a" in text and "not run" in text and "the cluster was asleep" in text for text in cells)


def test_report__row_without_any_number__says_its_reason_once_beside_its_name(render):
    tables = make_tables()
    row = tables[0]["rows"][0]
    for place in row["cells"].values():
        place.update(ours=None, difference=None, provenance=None, verdict="not run", reason="left out on purpose")

    page = render(tables)

    assert page.count("left out on purpose") == 1
    papers = [place["paper"] for place in row["cells"].values() if place["paper"] is not None]
    assert papers and all(f"<small>paper {paper:g}" in page or f"<small>paper {paper}" in page for paper in papers)


def test_report__note_of_the_scale__stands_once_whatever_the_number_of_tables(render):
    assert len(make_tables()) > 1
    assert render().count("What the scale is.") == 1


def test_report__summary__counts_what_was_given(render):
    text = re.search(r'<section class="summary".*?</section>', render(), flags=re.DOTALL)[0]
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "3 tables 0 runs 38 cells obtained 5 cells missing" in words
    assert "1 match 1 differs 30 not comparable 6 no paper value 5 not run" in words
    assert "4 true 2 false 2 undecided" in words


def test_report__text_with_markup__is_escaped_everywhere(tmp_path):
    def spoil(value):
        if isinstance(value, dict):
            kept = {"scale", "study", "metrics_file", "verdict", "direction"}
            return {key: part if key in kept else spoil(part) for key, part in value.items()}
        if isinstance(value, list):
            return [spoil(part) for part in value]
        return value + EVIL if isinstance(value, str) else value

    tables, claims, runs = make_tables(), make_claims(), make_runs(tmp_path)[:2]
    for row_ in tables[0]["rows"]:
        row_["cells"] = {name + EVIL: part for name, part in row_["cells"].items()}
    spoilt = content(spoil(tables), spoil(claims), spoil(runs))
    page = write_report(spoilt, tmp_path / "r.html", EVIL, "demo").read_text("utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 100
    assert tags_of(page) <= KNOWN_TAGS


KNOWN_TAGS = set(
    re.split(
        r"\s+",
        """html head meta title link style body header main nav section div p h1 h2 h3 h4 ul li dl dt dd a small
        strong span code pre table caption thead tbody tr th td button figure figcaption details summary
        svg g path defs text use clippath rect""",
    )
)


def tags_of(page: str) -> set[str]:
    tags = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.add(tag)

    Reader().feed(page)
    return tags


def test_report__same_input_twice__same_bytes(tmp_path, page_file):
    again = write_report(
        content(make_tables(), make_claims(), make_runs(tmp_path)),
        tmp_path / "r.html",
        "Patchwork at demo scale",
        "demo",
    )
    assert again.read_bytes() == page_file.read_bytes()


def test_report__built_elsewhere__does_not_name_the_folder(page_file):
    assert str(page_file.parent) not in page_file.read_text("utf-8")


def test_report__ids__are_unique(page_file):
    ids = re.findall(r'\sid="([^"]*)"', page_file.read_text("utf-8"))
    assert len(ids) == len(set(ids))


def test_report__table_of_another_scale__is_refused(render):
    tables = make_tables()
    tables[1]["scale"] = "tiny"
    with pytest.raises(DataError, match=r"mjp\.t4 \(tiny\).*one report per scale"):
        render(tables)


def test_report__nothing_finished__is_still_a_page(render):
    assert "No run has finished." in render([], [], [])


def test_report__run_that_no_table_names__is_listed_under_other_runs(render, tmp_path):
    page = render([], [], make_runs(tmp_path)[:1])
    assert "Other runs" in page
    assert "<svg" in page


def test_curves__damaged_line__names_file_and_line(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "epoch": 0.1, "loss": 2.0}\n{"step": 2, "ep\n{"step": 3, "epoch": 0.3, "loss": 1.0}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: .*expected one JSON object"):
        curves.read_series(file)


def test_curves__line_still_being_written__is_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "epoch": 0.1, "loss": 2.0}\n{"step": 2, "ep')
    assert curves.read_series(file)["loss"][1].tolist() == [2.0]


def test_curves__long_run__keeps_its_last_value(tmp_path):
    file = tmp_path / "metrics.jsonl"
    write_metrics(file, 0, steps=5000)
    epochs, values = curves.read_series(file)["loss"]
    last = json.loads(file.read_text().splitlines()[-2])
    assert len(epochs) == curves.MAX_POINTS
    assert (epochs[-1], values[-1]) == (last["epoch"], last["loss"])


def test_curves__long_run__every_point_is_the_mean_of_its_neighbours():
    steps = np.arange(1001.0)
    epochs, values = curves.thin(np.stack([steps / 10, steps % 2], axis=1))  # 0, 1, 0, 1, ...
    assert np.abs(values[:-1] - 0.5).max() < 0.1
    assert np.abs(np.diff(epochs[:-1]) - 100 / 119).max() < 0.1


def test_curves__band__is_the_range_over_the_runs_that_reach_an_epoch():
    short = np.array([0.0, 1.0]), np.array([5.0, 6.0])
    long = np.array([0.0, 2.0]), np.array([1.0, 3.0])
    epochs, lowest, highest = curves.band([short, long])
    both = epochs <= 1
    assert epochs[-1] == 2 and both.any() and not both.all()
    np.testing.assert_allclose(lowest, 1 + epochs)
    np.testing.assert_allclose(highest, np.where(both, 5 + epochs, 1 + epochs))


def test_curves__loss_that_left_the_finite_numbers__is_drawn_with_a_gap(tmp_path):
    runs = make_runs(tmp_path)[:2]
    with open(runs[0]["metrics_file"], "a") as file:
        file.write('{"step": 241, "epoch": 6.1, "loss": NaN}\n')
    drawn = curves.draw(logged(runs), "mjp")
    assert all("<path" in curve.svg for curve in drawn)


def write_pretraining(path, scale=1.0):
    lines = [{"step": e, "epoch": e, "loss": 5.0 * scale / e, "val_position_top1": 9.0 * e} for e in (1, 2, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_curves__pretraining__shows_loss_and_position_accuracy(tmp_path):
    runs = make_runs(tmp_path)[:2]
    write_pretraining(tmp_path / "pretraining.jsonl")
    runs[1]["metrics_file"] = str(tmp_path / "pretraining.jsonl")

    tuned, pretrained = curves.draw(logged(runs), "mjp")

    assert list(tuned.last) == ["loss", "validation top-1"]
    assert pretrained.last == {"loss": pytest.approx(5 / 3), "validation position top-1": 27.0}
    assert "validation position top-1" in pretrained.svg


def test_curves__run_with_three_metrics__shows_two(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "epoch": 1, "loss": 2.0, "val_top1": 50.0, "val_position_top1": 9.0}\n')

    assert list(curves.read_series(file)) == ["loss", "val_top1"]


def test_curves__runs_of_one_kind__share_axes_that_the_other_kind_does_not_change(tmp_path):
    runs = make_runs(tmp_path)[:3]
    write_pretraining(tmp_path / "pretraining.jsonl")
    runs[2]["metrics_file"] = str(tmp_path / "pretraining.jsonl")
    before = [curve.svg for curve in curves.draw(logged(runs), "mjp")]

    write_pretraining(tmp_path / "pretraining.jsonl", scale=50)
    after = [curve.svg for curve in curves.draw(logged(runs), "mjp")]
    write_metrics(tmp_path / "other.jsonl", 40)
    runs[1]["metrics_file"] = str(tmp_path / "other.jsonl")
    last = [curve.svg for curve in curves.draw(logged(runs), "mjp")]

    assert before[:2] == after[:2] and before[2] != after[2]
    assert last[0] != after[0] and last[2] == after[2]


def test_report__pretraining_that_no_row_names__is_with_its_study(render, tmp_path):
    runs = make_runs(tmp_path)[:1]
    runs[0] |= {"name": "mjp-encoder", "label": "The encoder", "studies": ["mjp"]}

    page = render(runs=runs)

    assert "Other runs" not in page
    assert (
        page.index('id="study-mjp"')
        < page.index('<a href="#run-mjp-encoder">The encoder')
        < page.index('id="study-droppos"')
    )


def test_html__row_with_several_runs__links_each_by_its_role(render, tmp_path):
    tables, runs = make_tables()[:1], make_runs(tmp_path)[:2]
    tables[0]["rows"][0]["runs"] = {"pretrained": run_name(1), "finetuned": run_name(0), "other": "not-finished"}

    page = render(tables, [], runs)

    for role, index in (("pretrained", 1), ("finetuned", 0)):
        assert f'<small><a href="#run-{run_name(index)}" title="{run_name(index)}">{role}</a></small>' in page
    assert "<small>other</small>" in page


def test_csv__every_cell_is_one_line__with_full_precision_and_reason():
    table = make_tables()[0]
    lines = list(csv.DictReader(io.StringIO(to_csv(FilledTable(**table)))))
    assert len(lines) == 21
    about = {
        "row": "mjp.t1.0",
        "column": "top1",
        "verdict": "not comparable",
        "reason": "",
        "run": run_name(0),
    }
    assert lines[0] == about | {"ours": "74.1", "paper": "79.8", "difference": "-5.7", "tolerance": "n/a"}
    missing = next(line for line in lines if line["row"] == "mjp.t1.5")
    assert missing["ours"] == "n/a"
    assert missing["reason"] == "needs ImageNet-1K, which this scale does not have"


def test_markdown__missing_number__has_a_numbered_note():
    lines = to_markdown(FilledTable(**make_tables()[0])).splitlines()
    header, rule, *_ = [line for line in lines if line.startswith("|")]
    assert header.count("|") == rule.count("|") == 2 + 1 + 4 * 3
    assert "| Swin-T | corrected | n/a (2) | 81.3 | n/a | not run |" in "\n".join(lines)
    assert "2. needs ImageNet-1K, which this scale does not have" in lines


def test_markdown__label_with_markup__is_escaped():
    table = make_tables()[2]
    table["rows"][0]["label"] = "a|b <b>*c*"
    assert r"| a\|b \<b\>\*c\* |" in to_markdown(FilledTable(**table))


def test_html_of_one_table__has_the_same_cells_as_the_report(render):
    table = make_tables()[2]

    def cells(page):
        return re.findall(r'<button class="cell".*?</button>', page, flags=re.DOTALL)

    assert cells(to_html(FilledTable(**table))) == cells(render([table], []))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.51, "0.5 s"),
        (51.0, "51 s"),
        (119.6, "2 min 0 s"),
        (3723, "62 min 3 s"),
        (9000, "2 h 30 min"),
        (None, "n/a"),
    ],
)
def test_duration__reads_as_a_person_would_say_it(seconds, text):
    assert duration(seconds) == text


@pytest.fixture
def open_page(browser, page_file):
    """Opens the report in a fresh page; requests and console messages are kept on it."""
    contexts = []

    def open_with(width=1280, height=2000, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.requested, page.messages = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("console", lambda message: page.messages.append(message.text))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.goto(page_file.as_uri())
        return page

    yield open_with
    for context in contexts:
        context.close()


@pytest.mark.slow
@pytest.mark.browser
def test_page__opened__requests_only_itself_and_reports_no_error(open_page, page_file):
    page = open_page()
    page.wait_for_load_state("networkidle")
    assert [url for url in page.requested if not url.startswith("data:")] == [page_file.as_uri()]
    assert page.messages == []


@pytest.mark.slow
@pytest.mark.browser
def test_page__on_a_phone__does_not_scroll_sideways(open_page):
    page = open_page(360, 800)
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("[...document.querySelectorAll('.scroll')].some(part => part.scrollWidth > part.clientWidth)")


@pytest.mark.slow
@pytest.mark.browser
def test_page__cell_pressed_with_the_keyboard__shows_provenance_until_escape(open_page):
    page = open_page()
    cell_ = page.locator("button.cell").first
    shown = page.locator(".provenance:popover-open")
    cell_.focus()
    page.keyboard.press("Enter")
    assert shown.count() == 1
    for fact in provenance(0, "top1").values():
        if isinstance(fact, str):
            assert fact in shown.inner_text()
    page.keyboard.press("Escape")
    assert shown.count() == 0
    assert cell_.evaluate("cell => cell === document.activeElement")


@pytest.mark.slow
@pytest.mark.browser
def test_page__cell_clicked__shows_its_commit(open_page):
    page = open_page(360, 800)
    page.locator("button.cell").nth(3).click()
    assert provenance(1, "top1")["commit"] in page.locator(".provenance:popover-open").inner_text()
    page.get_by_role("button", name="Close").click()
    assert page.locator(".provenance:popover-open").count() == 0


@pytest.mark.slow
@pytest.mark.browser
def test_page__printed__has_no_button_chrome_and_no_open_popover(open_page):
    page = open_page(color_scheme="dark")
    page.locator("button.cell").first.click()
    page.emulate_media(media="print", color_scheme="dark")
    style = page.locator("button.cell").first.evaluate(
        "c => ['borderTopWidth', 'backgroundColor', 'boxShadow'].map(name => getComputedStyle(c)[name])"
    )
    assert style == ["0px", "rgba(0, 0, 0, 0)", "none"]
    assert not page.locator(".provenance").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.slow
@pytest.mark.browser
def test_page__light_and_dark__differ_and_every_text_has_contrast(open_page):
    seen = {}
    for scheme in ("light", "dark"):
        pairs = open_page(color_scheme=scheme).evaluate(TEXT_COLOURS)
        weak = [(ink, back, text) for ink, back, text in pairs if contrast(ink, back) < 4.5]
        assert weak == []
        seen[scheme] = {(ink, back) for ink, back, _ in pairs}
    assert seen["light"].isdisjoint(seen["dark"])


# Every element that holds text of its own, with its colour and the nearest background behind it.
TEXT_COLOURS = """() => [...document.querySelectorAll('body *')]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility())
  .map(e => {
    const style = getComputedStyle(e);
    let at = e, back = style.backgroundColor;
    while (back === 'rgba(0, 0, 0, 0)' && at.parentElement) {
      at = at.parentElement;
      back = getComputedStyle(at).backgroundColor;
    }
    const ink = e.namespaceURI.endsWith('svg') ? style.fill : style.color;
    return [ink, back, e.textContent.trim().slice(0, 30)];
  })"""


def contrast(first: str, second: str) -> float:
    """WCAG contrast ratio of two CSS colours such as 'rgb(1, 2, 3)'."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted([luminance(first), luminance(second)], reverse=True)
    return (high + 0.05) / (low + 0.05)
