"""Tables of the report: cells with their errors, rows and columns that are folded or shown once.

The page around them: test_report.py.
"""

import re

import pytest
from report_content import (
    cell,
    make_runs,
    make_tables,
    part_of,
    run_name,
    same_columns_table,
    words_of,
)

EVIL = "<script>alert('x')</script> & \"quoted\" $1"


def one_cell_table(**numbers):
    table = make_tables()[0]
    table["rows"] = table["rows"][:1]
    table["rows"][0]["cells"] = {"top1": cell(0, "top1", 0.0, 0.0) | numbers}
    return table


def number_in_table(page: str) -> str:
    return words_of(re.search(r'<a class="cell".*?</a>', page, flags=re.DOTALL)[0])


def test_report__cell__shows_ours_with_its_error_and_the_papers(render):
    numbers = {"ours": 41.26, "error": 0.72, "paper": 43.5, "difference": -2.24, "tolerance": 0.35}
    assert number_in_table(render([one_cell_table(**numbers)], [])) == "41.3 \u00b1 0.7 paper 43.5 -2.2"


def test_report__comparable_cell__shows_difference_and_verdict_too(render):
    numbers = {"ours": 41.26, "error": 0.004, "paper": 43.5, "difference": -2.24, "tolerance": 0.35}
    page = render([one_cell_table(**numbers, verdict="differs")], [])
    assert number_in_table(page) == "41.3 \u00b1 0.004 paper 43.5 -2.2 differs"
    assert "paper 43.5; difference -2.2; tolerance 0.35" in words_of(page)


@pytest.mark.parametrize("error", [None, 0.0])
def test_report__cell_without_known_error__shows_none(render, error):
    assert number_in_table(render([one_cell_table(ours=41.26, error=error, paper=None, difference=None)], [])) == "41.3"


def test_report__cell_of_several_seeds__lists_them_with_their_spread(render):
    page = render([one_cell_table(ours=41.0, values=[40.5, 41.5], n=2, spread=0.7071, error=0.5)], [])
    assert "seeds 2: 40.5, 41.5 spread over seeds 0.7071" in words_of(page)


@pytest.mark.slow
def test_report__cell_not_run_in_a_row_that_ran__says_why(render):
    tables = make_tables()
    tables[0]["rows"][6]["cells"]["top1"]["reason"] = "the cluster was asleep"
    cells = re.findall(r'<div class="cell">.*?</div>', render(tables), flags=re.DOTALL)
    assert any("n/a" in text and "the cluster was asleep" in text for text in cells)


@pytest.mark.slow
def test_report__row_without_any_number__is_folded_with_its_reason_and_the_papers_numbers(render):
    page = render()
    table = part_of(page, 'id="mjp.t1"', 'id="mjp.t4"')
    shown, folded = table.split('<details class="fold">')
    assert "Swin-T" in words_of(folded) and not re.search(r"Swin-T\s*<", shown)
    assert "1 more row not run here" in words_of(folded)
    assert "Swin-T 81.3 69.3 needs ImageNet-1K, which this scale does not have" in words_of(folded)
    assert page.count("needs ImageNet-1K") == 2 + 1  # two cells of a row that ran, one row that did not


@pytest.mark.slow
def test_report__rows_that_the_selection_leaves_out__are_folded_with_the_command_that_runs_them(render):
    tables = make_tables()
    tables[0]["rows"][5] |= {"selected": False, "runs": {}}
    folded = part_of(render(tables), '<details class="fold">', "</summary>")
    assert words_of(folded) == "1 more row not run here: snakemake mjp_table1"


@pytest.mark.slow
def test_report__rows_that_have_not_run_yet__are_folded_with_the_command_too(render):
    folded = part_of(render(), '<details class="fold">', "</summary>")
    assert words_of(folded) == "1 more row not run here: snakemake mjp_table1"


@pytest.mark.slow
def test_report__rows_that_nothing_can_run__are_folded_without_a_command(render):
    tables = make_tables()
    tables[0]["rows"][5]["runs"] = {}
    assert "snakemake" not in part_of(render(tables), '<details class="fold">', "</summary>")


@pytest.mark.slow
def test_report__table_without_any_number__is_one_folded_line(render):
    tables = make_tables()
    for line in tables[2]["rows"]:
        for place in line["cells"].values():
            place.update(ours=None, difference=None, provenance=None, verdict="not run", reason="later")
    page = render(tables, [])
    folded = part_of(page, '<details class="fold waiting">', "</section>")
    assert words_of(folded).startswith("1 more not run here Table 5, Position smoothing: snakemake droppos_table5")
    assert "82.7" in part_of(page, '<details class="fold waiting">', "</section>")


def test_report__column_that_is_the_same_runs__is_shown_once_with_both_papers_numbers(render):
    page = render([same_columns_table()], [])
    table = part_of(page, 'id="mjp.t1"', "</section>")
    head = words_of(part_of(table, "<thead>", "</thead>"))
    assert head == "Row Top-1, Top-5 (%)&nbsp; &uarr; Consistency (%)&nbsp; &uarr; Diff. norm&nbsp; &darr;"
    assert number_in_table(page) == "74.1 \u00b1 1.2 paper 79.8 / 93.7 -5.7"
    assert "Top-1 (%) and Top-5 (%): the same runs at this scale, shown once." in table


def test_report__row_that_is_the_same_run__is_shown_once(render):
    table = make_tables()[2]
    table["rows"][1]["same_as"] = table["rows"][0]["label"]
    page = render([table], [])
    assert page.count('<a class="cell"') == 3
    assert "DropPos, sigma 0 and DropPos, sigma 1: the same run at this scale, shown once." in page


@pytest.mark.slow
def test_report__row_with_several_runs__links_each_by_its_role_and_seed(render, tmp_path):
    tables, runs = make_tables()[:1], make_runs(tmp_path)[:3]
    roles = {"pretrained": [run_name(1)], "finetuned": [run_name(0), run_name(2)], "other": ["not-finished"]}
    tables[0]["rows"][0]["runs"] = roles

    page = render(tables, [], runs)

    for role, index in (("pretrained", 1), ("finetuned seed 0", 0), ("finetuned seed 1", 2)):
        assert f'<small><a href="#run-{run_name(index)}" title="{run_name(index)}">{role}</a></small>' in page
    assert "<small>other</small>" in page


@pytest.mark.slow
def test_report__row_whose_roles_are_one_run__links_it_by_the_rows_name(render, tmp_path):
    tables, runs = make_tables()[:1], make_runs(tmp_path)[:1]
    tables[0]["rows"][0]["runs"] = {"vitb": [run_name(0)], "vitl": [run_name(0)]}
    assert f'<a href="#run-{run_name(0)}" title="{run_name(0)}">DeiT-S</a>' in render(tables, [], runs)
