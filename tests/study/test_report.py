"""What the report says, in which order, and what it folds away: the page to send by mail, which has all of it.

The same parts as a site: test_report_site.py. How that behaves in a browser: test_page.py.
"""

import copy
import re
from html.parser import HTMLParser
from itertools import pairwise
from urllib.parse import unquote

import pytest
from report_content import (
    content,
    make_claims,
    make_figures,
    make_runs,
    make_tables,
    part_of,
    reader,
    run_name,
    same_columns_table,
    words_of,
    write_single_page,
)

from pipeline.core.errors import DataError
from pipeline.report.site.page import write_single

EVIL = "<script>alert('x')</script> & \"quoted\" $1"


@pytest.fixture(scope="session")
def page_file(tmp_path_factory):
    return write_single_page(tmp_path_factory.mktemp("report"))


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


@pytest.mark.slow
def test_report__any_number_of_the_input_changes__page_changes(render, monkeypatch):
    monkeypatch.setattr("pipeline.report.site.sections.draw_figure", lambda *_: "")  # every number is in words, too
    tables, claims = make_tables()[::2], make_claims()
    tables[0]["rows"][0]["cells"]["top1"] |= {"values": [70.0, 71.5], "n": 2, "spread": 1.06}
    silent = [path for table in tables for path in silent_numbers(render, table)]
    before = render([], claims)
    silent += [path for path, value in leaves(claims) if render([], replace_leaf(claims, path, value + 3)) == before]
    assert silent == []


def silent_numbers(render, table):
    """Those of a table that change nothing on a page with this table alone."""
    before = render([table], [])
    found = dict(leaves(table))
    # One seed has its number as its only value, and 0 seeds are those of a cell without a number.
    tied = [path for path in found if path[-2] == "values" and (*path[:-1], 1) not in found]
    shown = [path for path, value in found.items() if path not in tied and (path[-1] != "n" or value > 1)]
    return [path for path in shown if render([replace_leaf(table, path, 5 + 2 * len(path))], []) == before]


# What was found comes first


@pytest.mark.slow
def test_report__opening__counts_runs_and_claims_in_words(render, tmp_path):
    page = render(runs=make_runs(tmp_path)[:2])
    assert words_of(part_of(page, '<p class="lead">', "</p>")) == (
        "2 training runs at scale demo, from 2 studies. Of 7 claims that these runs can decide, 4 hold, 2 do not "
        "hold and 1 is within noise; 2 more need rows that were not run."
    )


@pytest.mark.slow
def test_report__opening__without_a_decidable_claim_says_so(render):
    claims = make_claims()
    claims = [study | {"claims": [c for c in study["claims"] if c["verdict"] == "not run yet"]} for study in claims]
    assert "None of 2 claims can be decided by these runs." in render(claims=claims)


@pytest.mark.slow
def test_report__opening__leaves_out_what_there_is_none_of(render):
    claims = make_claims()
    claims = [study | {"claims": [c for c in study["claims"] if c["verdict"] == "within noise"]} for study in claims]
    assert "The one claim that these runs can decide is within noise." in render(claims=claims)


@pytest.mark.slow
def test_report__command_in_a_reason__is_code_and_nothing_else_is(render):
    tables = make_tables()
    tables[0]["rows"][6]["cells"]["top1"]["reason"] = "`snakemake <b>` runs it"
    assert "<code>snakemake &lt;b&gt;</code> runs it" in render(tables)


@pytest.mark.slow
def test_report__comparable_scale__counts_the_matches(render):
    tables = [table | {"comparable": True} for table in make_tables()]
    page = render(tables)
    assert "Of 2 numbers that can be compared with the papers', 1 match." in page.replace("&#39;", "'")
    assert "not comparable with the papers" not in page.replace("&#39;", "'")


@pytest.mark.slow
def test_report__order__is_overview_studies_runs(page_file):
    page = page_file.read_text("utf-8")
    marks = ['class="lead"', 'id="marks"', 'id="scatter"', 'id="surprises"', 'id="study-mjp"', 'id="claims-mjp"']
    places = [page.index(mark) for mark in [*marks, 'id="study-droppos"', 'id="runs"', 'id="evaluations"']]
    assert places == sorted(places)


@pytest.mark.slow
def test_report__study__shows_its_figures_its_pictures_and_its_key_numbers(page_file):
    page = page_file.read_text("utf-8")
    mjp = part_of(page, 'id="study-mjp"', "</section>")
    droppos = part_of(page, 'id="study-droppos"', "</section>")
    assert all(f'<figure class="figure" id="mjp.f{key}"' in mjp for key in (3, 4, 6))
    assert 'id="droppos.f2"' in droppos and droppos.count("<img") == 8
    best = "DropPos, no attentive reconstruction; 72.0 \u00b1 1.2 for DropPos, sigma 0."
    assert f"Top-1 (%) in Table 5: 72.4 \u00b1 1.2 for {best}" in words_of(droppos)
    assert all(f'aria-label="Table {label}' in text for label, text in (("1", mjp), ("5", droppos)))


@pytest.mark.slow
def test_report__study_with_many_rows__shows_the_first_as_bars_and_spans_them_all(render):
    table = make_tables()[2]
    line = table["rows"][0]
    tops = [{"top1": line["cells"]["top1"] | {"ours": 60.0 + place}} for place in range(13)]
    table["rows"] = [
        line | {"id": f"droppos.t5.{place}", "label": f"Row {place}", "cells": cells}
        for place, cells in enumerate(tops)
    ]
    droppos = words_of(part_of(render([table], []), 'id="study-droppos"', "</section>"))
    assert "Top-1 (%) in Table 5: 72.0 \u00b1 1.2 for Row 12, 60.0 \u00b1 1.2 for Row 0." in droppos
    figures = droppos.partition(" Tables ")[0]
    assert "Row 9 69.0" in figures and "Row 10 70.0" not in figures and "3 more in the table." in figures


@pytest.mark.slow
def test_report__study__lists_its_main_claim_then_the_decided_ones_best_first(page_file):
    mjp = part_of(page_file.read_text("utf-8"), 'id="study-mjp"', "</section>")
    found = re.findall(r'<li class="claim ([\w -]+)"( id)?', mjp)
    assert found[0] == ("true main", "")  # its place in the list keeps the anchor
    assert [verdict for verdict, _ in found[1:]] == ["true"] * 3 + ["false", "within-noise"] + ["not-run-yet"] * 2
    assert mjp.index('<details class="not-run-yet">') < mjp.index('id="claim-mjp.c04"')
    assert mjp.index('id="claim-mjp.c06"') < mjp.index('<details class="not-run-yet">')


@pytest.mark.slow
def test_report__note_of_the_scale__stands_once_folded_after_the_findings(render):
    assert len(make_tables()) > 1
    page = render()
    assert page.count("What the scale is.") == 1
    assert page.index('class="lead"') < page.index('<details class="caveat">') < page.index("What the scale is.")


@pytest.mark.slow
def test_report__numbers_that_cannot_be_compared__says_so_once(render):
    page = render().replace("&#39;", "'")
    assert page.count("not comparable with the papers'") == 1
    cells = re.findall(r'<a class="cell".*?</a>', page, flags=re.DOTALL)
    assert cells and not any("not comparable" in text for text in cells)


# Claims


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["true", "false", "within noise", "not run yet"])
def test_report__remark_of_a_claim__is_shown_with_its_verdict(render, verdict):
    claims = make_claims()
    claims[0]["claims"][1] |= {"verdict": verdict, "remark": "the `seed` was unlucky"}
    label = {"true": "Remark:", "not run yet": None}.get(verdict, "May come from:")
    shown = re.findall(r"<strong>([^<]*)</strong> the <code>seed</code> was unlucky", render(claims=claims))
    assert {*shown} == {label} - {None}


def test_report__claims__have_their_verdicts_numbers_and_reason(render):
    page = render()
    claims = part_of(page, 'id="claims-mjp"', "</section>")
    assert re.findall(r'data-verdict="\w[^"]*" aria-pressed="false">(.*?)<', claims) == [
        "holds 3",
        "does not hold 1",
        "within noise 1",
        "not run yet 2",
    ]
    helps = words_of(part_of(claims, 'id="claim-mjp.c02"', "</li>"))
    assert "Top-1 (%): 74.6 \u00b1 1.2 for DeiT-S + MJP, 74.1 \u00b1 1.2 for DeiT-S decided by 1,000 images" in helps
    formula = part_of(part_of(claims, 'id="claim-mjp.c02"', "</details>"), "<details>", "</details>")
    assert "mjp.t1.4:top1 &gt; mjp.t1.0:top1" in formula


@pytest.mark.slow
def test_report__claim_with_a_difference__says_once_what_its_interval_is(render):
    claims = make_claims()
    assert "95 % interval" not in render(claims=claims)
    claims[0]["claims"][1]["reason"] = "74.6 against 74.1: 0.5 +/- 1.9, one run each"
    page = render(claims=claims)
    told = "Behind a difference, \u00b1 is half the width of its 95 % interval."
    assert f'<p class="reason" title="{told}">74.6 against 74.1: 0.5 \u00b1 1.9' in page
    assert words_of(part_of(page, 'id="claims-mjp"', "</details>")).count(told) == 1
    assert 'id="claims-droppos"' in page and page.count("<summary>" + told) == 1


@pytest.mark.slow
def test_report__claim_not_run_yet__names_the_rows_and_the_command(render):
    claims = part_of(render(), 'id="claims-mjp"', "</section>")
    shown = words_of(part_of(claims, 'id="claim-mjp.c04"', "</li>"))
    assert "Not run: Table 1: Swin-T + MJP, Swin-T. snakemake mjp_table1" in shown
    assert claims.index('<details class="not-run-yet">') < claims.index('id="claim-mjp.c04"')


@pytest.mark.slow
def test_report__claim_on_a_table_that_is_not_on_the_page__gives_its_command(render):
    claims = make_claims()
    predicate = {"text": "mp3.t4.a-0.5:top1 > 3", "verdict": "not run yet", "cells": {"mp3.t4.a-0.5:top1": None}}
    claims[0]["claims"][0] |= {"verdict": "not run yet", "predicates": [predicate]}
    page = render(claims=claims)
    text = words_of(part_of(page, 'id="claim-mjp.c01"', "<details>"))
    assert text.endswith("Not run: snakemake mp3_table4") and "<code>snakemake mp3_table4</code>" in page


def test_report__claim_on_two_columns_that_are_one_run__gives_its_numbers_once(render):
    claims = make_claims()
    cells = {"mjp.t1.0:top1": 74.1, "mjp.t1.0:top1_l": 74.1}
    predicates = [{"text": f"{name} > 3", "verdict": "true", "cells": {name: ours}} for name, ours in cells.items()]
    claims[0]["claims"] = [claims[0]["claims"][0] | {"predicates": predicates}]
    page = render([same_columns_table()], claims[:1])
    assert "Top-1, Top-5 (%): 74.1 \u00b1 1.2 for DeiT-S" in words_of(page)


# The page as a whole


@pytest.mark.slow
def test_report__text_with_markup__is_escaped_everywhere(tmp_path):
    def spoil(value):
        if isinstance(value, dict):
            kept = {"scale", "study", "metrics_file", "verdict", "direction", "figure", "runs", "picture", "id"}
            return {key: part if key in kept else spoil(part) for key, part in value.items()}
        if isinstance(value, list):
            return [spoil(part) for part in value]
        return value + EVIL if isinstance(value, str) else value

    tables, claims, runs = [*make_tables(), *make_figures()], make_claims(), make_runs(tmp_path)[:2]
    for table in tables:
        table["figure"] = table.get("figure") and table["figure"] | {"x_label": EVIL, "y_label": EVIL}
    spoilt = content(spoil(tables), spoil(claims), spoil(runs))
    page = write_single(spoilt, tmp_path / "r.html", EVIL, "demo", reader(tmp_path)).read_text("utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 100
    assert tags_of(page) <= KNOWN_TAGS


def test_report__ids_with_markup__are_escaped(render):
    tables, claims = make_tables()[:1], make_claims()[:1]
    tables[0]["columns"][0]["id"] += EVIL
    for line in tables[0]["rows"]:
        line["id"] += EVIL
        line["cells"]["top1" + EVIL] = line["cells"].pop("top1")
    claims[0]["claims"][0]["id"] += EVIL
    page = render(tables, claims)
    assert "<script" not in page and tags_of(page) <= KNOWN_TAGS


KNOWN_TAGS = set(
    re.split(
        r"\s+",
        """html head meta title link style body header main nav section div p h1 h2 h3 ul li dl dt dd a audio small
        strong span code pre table caption thead tbody tr th td button figure figcaption details summary img
        svg g path defs text tspan use clippath rect circle article ol mark br""",
    )
)


def tags_of(page: str) -> set[str]:
    tags = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.add(tag)

    Reader().feed(page)
    return tags


@pytest.mark.slow
def test_report__same_input_twice__same_bytes(tmp_path, page_file):
    assert write_single_page(tmp_path).read_bytes() == page_file.read_bytes()


@pytest.mark.slow
def test_report__built_elsewhere__does_not_name_the_folder(page_file):
    assert str(page_file.parent) not in page_file.read_text("utf-8")


@pytest.mark.slow
def test_report__ids__are_unique(page_file):
    ids = re.findall(r'\sid="([^"]*)"', page_file.read_text("utf-8"))
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_report__every_link__has_its_place(page_file):
    page = page_file.read_text("utf-8")
    ids = set(re.findall(r'\sid="([^"]*)"', page))
    assert {target for target in re.findall(r'href="#([^"]*)"', page) if unquote(target) not in ids} == set()


@pytest.mark.slow
def test_report__headings__never_skip_a_level(page_file):
    levels = [int(level) for level in re.findall(r"<h(\d)", page_file.read_text("utf-8"))]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_report__table_of_another_scale__is_refused(render):
    tables = make_tables()
    tables[1]["scale"] = "tiny"
    with pytest.raises(DataError, match=r"mjp\.t4 \(tiny\).*one report per scale"):
        render(tables)


def test_report__nothing_finished__is_still_a_page(render):
    assert "No run has finished." in render([], [], [])


@pytest.mark.slow
def test_report__run_that_no_table_names__is_among_the_runs_with_its_curve(render, tmp_path):
    page = render([], [], make_runs(tmp_path)[:1])
    assert "<svg" in part_of(page, f'id="run-{run_name(0)}"', "</section>")


@pytest.mark.slow
def test_report__pretraining_that_no_row_names__is_with_its_study(render, tmp_path):
    runs = make_runs(tmp_path)[:1]
    runs[0] |= {"name": "mjp-encoder", "label": "The encoder", "studies": ["mjp"]}

    page = render(runs=runs)

    assert '<a href="#run-mjp-encoder">The encoder</a>' in part_of(page, 'id="study-mjp"', "</section>")
