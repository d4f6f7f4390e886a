"""One table or figure as files: CSV, Markdown, HTML, SVG."""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree

import pytest
from report_content import make_figures, make_runs, make_tables, read_picture, reader, run_name

from pipeline.report.records import FilledTable
from pipeline.report.tables.draw import files_of, to_csv, to_html, to_markdown
from pipeline.report.words import duration, error


def test_csv__every_cell_is_one_line__with_full_precision_and_reason():
    table = make_tables()[0]
    lines = list(csv.DictReader(io.StringIO(to_csv(FilledTable(**table)))))
    assert len(lines) == 21
    about = {"row": "mjp.t1.0", "column": "top1", "verdict": "not comparable", "reason": "", "run": run_name(0)}
    noise = {"error": "1.25", "n": "1", "spread": "n/a", "values": "74.1", "picture": ""}
    assert lines[0] == about | noise | {"ours": "74.1", "paper": "79.8", "difference": "-5.7", "tolerance": "n/a"}
    missing = next(line for line in lines if line["row"] == "mjp.t1.5")
    assert missing["ours"] == "n/a"
    assert missing["reason"] == "needs ImageNet-1K, which this scale does not have"


def test_csv__cell_of_several_seeds__has_the_numbers_of_each():
    table = make_tables()[0]
    values = [70.1, 71.30000000000001, 72.0]
    table["rows"][0]["cells"]["top1"] |= {"values": values, "n": 3, "spread": 0.95}
    line = next(csv.DictReader(io.StringIO(to_csv(FilledTable(**table)))))
    assert [float(value) for value in line["values"].split()] == values
    assert (line["n"], line["spread"]) == ("3", "0.95")


def test_markdown__number__has_its_error():
    assert "| DeiT-S | corrected | 74.1 +/- 1.2 | 79.8 | -5.7 | not comparable |" in to_markdown(
        FilledTable(**make_tables()[0])
    )


def test_markdown__missing_number__has_a_numbered_note():
    lines = to_markdown(FilledTable(**make_tables()[0])).splitlines()
    header, rule, *_ = [line for line in lines if line.startswith("|")]
    assert header.count("|") == rule.count("|") == 2 + 1 + 4 * 3
    assert "| Swin-T | corrected | n/a (2) | 81.3 | n/a | not run |" in "\n".join(lines)
    assert "2. needs ImageNet-1K, which this scale does not have" in lines


def test_markdown__model_that_stands_in__is_named_with_that_of_the_paper():
    table = make_tables()[0]
    table["rows"][0]["here"] = "small ViT"
    assert "| small ViT (paper: DeiT-S) | corrected | 74.1" in to_markdown(FilledTable(**table))


def test_markdown__label_with_markup__is_escaped():
    table = make_tables()[2]
    table["rows"][0]["label"] = "a|b <b>*c*"
    assert r"| a\|b \<b\>\*c\* |" in to_markdown(FilledTable(**table))


@pytest.mark.slow
def test_html_of_one_table__has_a_cell_for_each_number_with_its_provenance():
    page = to_html(FilledTable(**make_tables()[2]), read_picture)
    assert len(re.findall(r'<button class="cell"', page)) == len(re.findall(r'class="provenance"', page)) == 4
    assert page.count("What the scale is.") == 1


def test_html_of_one_table__stale_cell__is_marked_with_the_reason_and_no_other():
    table = make_tables()[2]
    assert 'class="stale"' not in to_html(FilledTable(**table), read_picture)
    next(iter(table["rows"][0]["cells"].values()))["stale"] = "its <weights> changed"
    page = to_html(FilledTable(**table), read_picture)
    why = "must be made again: its &lt;weights&gt; changed"
    assert re.findall(r'<abbr class="stale" title="([^"]*)">\*</abbr>', page) == [why]
    assert f"<p>{why}</p>" in page  # where the number comes from


def test_files__of_a_table__are_text_and_a_page():
    assert list(files_of(FilledTable(**make_tables()[0]), read_picture)) == [".csv", ".md", ".html"]


@pytest.mark.slow
@pytest.mark.parametrize("figure", make_figures(), ids=lambda figure: figure["figure"]["kind"])
def test_files__of_a_figure__are_text_and_a_drawing_that_needs_nothing_else(figure, tmp_path):
    make_runs(tmp_path)
    files = files_of(FilledTable(**figure), reader(tmp_path))
    drawing = files.get(".svg") or files[".html"]
    assert (".html" in files) == (figure["figure"]["kind"] == "pictures")
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', drawing)
    if ".svg" in files:
        colours = set(re.findall(r"var\((--[\w-]+)\)", drawing))
        assert colours and all(f"{colour}:" in drawing for colour in colours)
        assert ElementTree.fromstring(drawing).tag == "{http://www.w3.org/2000/svg}svg"


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.26, "+/- 1.3"),
        (0.05, "+/- 0.1"),
        (0.04, "+/- 0.04"),
        (0.004, "+/- 0.004"),
        (4e-6, "+/- 4e-06"),
        (0.0, ""),
        (None, ""),
    ],
)
def test_error__that_would_read_0__gets_the_digits_it_needs(value, text):
    assert error(value, 1, "+/-") == text
