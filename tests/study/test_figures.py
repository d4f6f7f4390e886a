"""Figures of a study: what is drawn, where, and that it can be told apart without colour."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image
from report_content import figure, make_figures, make_runs, read_picture, reader, row, run_name, tone

from pipeline.core.errors import ConfigError, DataError
from pipeline.report.figures import svg
from pipeline.report.figures.figures import STRONGEST, draw_figure
from pipeline.report.figures.lines import MARKERS, _look, _paper_fits, _read_table, read_curves
from pipeline.report.figures.pictures import embed, open_picture, open_sound
from pipeline.report.records import FilledTable

FIGURES = {made["figure"]["kind"]: made for made in make_figures()}


def drawn(table: dict, read=read_picture) -> str:
    return draw_figure(FilledTable(**table), read, "test")


def texts(drawing: str) -> list[str]:
    return [" ".join("".join(element.itertext()).split()) for element in texts_of(drawing)]


def texts_of(drawing: str):
    return ElementTree.fromstring(drawing).iter("text")


def series_of(table: dict):
    record = FilledTable(**table)
    _, series, levels, _ = _read_table(record, record.figure)
    return series, levels


def test_lines__columns_have_the_places__each_row_is_a_series():
    series, _ = series_of(FIGURES["lines"])
    assert [one.label for one in series] == ["DeiT-S", "DeiT-S + MJP"]
    assert [(point.x, point.ours, point.error) for point in series[0].points] == [
        (0.0, 20.0, 1.25),
        (0.25, 17.75, 1.25),
        (0.5, 15.5, 1.25),
        (0.9, 11.9, 1.25),
    ]


def test_lines__rows_have_the_places__each_column_is_a_series():
    table = figure("mjp.f5", "lines", {"x_from": "rows"}, [0.0, 0.5], (0, 1, 4))
    for place, line in enumerate(table["rows"]):
        line["x"] = 10.0**place
    series, _ = series_of(table)
    assert [(one.label, [point.x for point in one.points]) for one in series] == [
        ("at 0.0", [1, 10, 100]),
        ("at 0.5", [1, 10, 100]),
    ]


def test_lines__level__is_a_line_across_and_no_series():
    series, levels = series_of(FIGURES["lines"])
    assert levels == [("DeiT-S, no position embedding", 23.0, None)]
    assert "DeiT-S, no position embedding" in texts(drawn(FIGURES["lines"]))
    assert levels[0].label not in [one.label for one in series]


def test_lines__level_of_several_series__is_one_line_for_each():
    table = figure("mjp.f5", "lines", {"x_from": "rows", "levels": ["0"]}, [0.0, 0.5], (0, 1, 4))
    _, levels = series_of(table)
    assert [(level.value, level.series) for level in levels] == [(20.0, 0), (15.5, 1)]


def test_lines__row_without_a_number__is_not_in_the_legend():
    table = figure("mjp.f5", "lines", {}, [0.0, 0.5], (0, 1))
    for place in table["rows"][1]["cells"].values():
        place["ours"] = None
    assert "DeiT-S, no position embedding" not in texts(drawn(table))


def test_lines__row_that_is_the_same_run__is_drawn_once_with_both_names():
    table = figure("mjp.f5", "lines", {}, [0.0, 0.5], (7, 8))
    table["rows"][1]["same_as"] = table["rows"][0]["label"]
    assert [one.label for one in series_of(table)[0]] == ["DropPos, sigma 0, DropPos, sigma 1"]


def test_lines__series__differ_in_marker_or_dashes_not_in_colour_only():
    looks = [(look["marker"], str(look["linestyle"])) for look in map(_look, range(2 * len(MARKERS)))]
    assert len(set(looks)) == len(looks)


def test_lines__papers_numbers_near_ours__are_drawn_hollow():
    near = drawn(FIGURES["lines"])
    assert "the paper's numbers" in texts(near)


@pytest.mark.slow
def test_lines__papers_numbers_far_from_ours__do_not_flatten_the_figure():
    table = figure("mjp.f5", "lines", {}, [0.0, 0.5], (0, 1))
    for line in table["rows"]:
        for place in line["cells"].values():
            place["paper"] = 900.0
    assert not _paper_fits(*series_of(table))
    assert "the paper's numbers" not in texts(drawn(table))


def test_lines__log_axis__has_its_ticks_at_the_values():
    table = figure("mjp.f5", "lines", {"x_from": "rows", "log_x": True}, [0.5], (0, 1, 4))
    for line, x in zip(table["rows"], (100, 400, 2000), strict=True):
        line["x"] = x
    assert {"100", "400", "2000"} <= set(texts(drawn(table)))


# A heat map has our numbers alone; the others are in the table below it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "field"),
    [("heatmap", "ours"), *[(kind, field) for kind in ("lines", "bars") for field in ("ours", "error", "paper")]],
)
def test_figure__any_number_changes__drawing_changes(kind, field):
    table = next(made for made in make_figures() if made["figure"]["kind"] == kind)
    before = drawn(table)
    table["rows"][0]["cells"]["at_0"][field] += 0.7
    assert drawn(table) != before


def test_bars__every_bar__has_its_name_and_its_number_next_to_it():
    found = texts(drawn(FIGURES["bars"]))
    assert found == [
        "DeiT-S",
        *["at 0.0", "20.0 \u00b1 1.2", "at 0.25", "17.8 \u00b1 1.2"],
        "DeiT-S, no position embedding",
        *["at 0.0", "23.0 \u00b1 1.2", "at 0.25", "20.8 \u00b1 1.2"],
        "open diamond: the paper's, for its own model and data",
    ]


def test_bars__negative_number__starts_at_zero():
    table = figure("mjp.f5", "bars", {"x_from": "rows"}, [0.0], (0, 1))
    table["rows"][0]["cells"]["at_0"] |= {"ours": -20.0, "paper": None, "error": None}
    table["rows"][1]["cells"]["at_0"] |= {"ours": 20.0, "paper": None, "error": None}
    bars = re.findall(
        r'd="M (\S+) \S+\s+L (\S+) [^"]*" (?:clip-path="[^"]*" )?style="fill: var\(--series-1\)"', drawn(table)
    )
    (left, zero), (again, right) = [sorted(map(float, ends)) for ends in bars]
    assert left < zero == again < right


def test_heatmap__every_number__is_written_in_its_cell():
    table = FIGURES["heatmap"]
    numbers = [f"{place['ours']:.1f}" for line in table["rows"] for place in line["cells"].values()]
    assert [text for text in texts(drawn(table)) if re.fullmatch(r"\d+\.\d", text)] == numbers


@pytest.mark.parametrize(("error", "tints"), [(0.2, {0.45}), (1.2, set())], ids=["apart", "within their errors"])
def test_heatmap__column_whose_numbers_differ_by_less_than_their_noise__has_no_tint(error, tints):
    table = figure("mjp.f5", "heatmap", {"shade": "columns", "x_from": "rows"}, [0.0], (0, 1))
    for line in table["rows"]:
        line["cells"]["at_0"]["error"] = error
    found = re.findall(r"fill: var\(--accent\); opacity: ([\d.]+)", drawn(table))
    assert {float(tint) for tint in found} == tints


def test_heatmap__darkest_cell__leaves_contrast_to_its_number():
    sheet = Path(svg.COLOURS).read_text()
    pairs = re.findall(r"(--[\w-]+): light-dark\((#\w{6}), (#\w{6})\)", sheet)
    for colours in ({name: light for name, light, _ in pairs}, {name: dark for name, _, dark in pairs}):
        page, accent, ink = (channels(colours[name]) for name in ("--page", "--accent", "--ink"))
        mixed = [(1 - STRONGEST) * back + STRONGEST * front for back, front in zip(page, accent, strict=True)]
        high, low = sorted([luminance(mixed), luminance(ink)], reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def channels(colour: str) -> list[float]:
    return [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]


def luminance(parts: list[float]) -> float:
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_curves__rows__are_drawn_by_epoch_under_their_names(tmp_path):
    make_runs(tmp_path)
    found = texts(drawn(FIGURES["curves"], reader(tmp_path)))
    assert {"DeiT-S", "DeiT-S, no position embedding", "DeiT-S + JP", "eta"} <= set(found)


def test_curves__run_without_metrics__is_left_out(tmp_path):
    make_runs(tmp_path)
    table = FIGURES["curves"] | {"rows": [row("mjp.f6", 0, {}), row("mjp.f6", 6, {})]}
    found = read_curves(FilledTable(**table), "val_top1", reader(tmp_path))
    assert list(found) == ["DeiT-S"]


def test_curves__row_that_the_selection_leaves_out__is_left_out_though_it_ran(tmp_path):
    make_runs(tmp_path)
    table = FIGURES["curves"] | {"rows": [row("mjp.f6", 0, {}), row("mjp.f6", 1, {}) | {"selected": False}]}
    assert list(read_curves(FilledTable(**table), "val_top1", reader(tmp_path))) == ["DeiT-S"]


def test_curves__several_seeds__are_one_line_with_a_band(tmp_path):
    make_runs(tmp_path)
    one = row("mjp.f6", 0, {}) | {"runs": {"": [run_name(0), run_name(1)]}}
    table = FIGURES["curves"] | {"rows": [one]}
    assert len(read_curves(FilledTable(**table), "val_top1", reader(tmp_path))["DeiT-S"]) == 2
    assert "opacity: 0.15" in drawn(table, reader(tmp_path))  # the band


@pytest.mark.slow
def test_figure__drawn_twice__same_bytes(tmp_path):
    make_runs(tmp_path)
    for made in make_figures()[:4]:
        assert drawn(made, reader(tmp_path)) == drawn(made, reader(tmp_path))


def test_figure__label_that_reads_like_a_colour_or_an_id__stays_as_it_is():
    table = figure("mjp.f5", "lines", {"y_label": 'a #000001 id="b" url(#c)'}, [0.0, 0.5], (0,))
    assert 'a #000001 id="b" url(#c)' in texts(drawn(table))


def test_figure__of_pictures_asked_for_as_svg__is_refused():
    with pytest.raises(ConfigError, match=r"droppos\.f3 is not drawn as SVG"):
        drawn(FIGURES["pictures"])


def test_picture__that_is_none__names_the_file():
    with pytest.raises(DataError, match=r"evals/a\.png: found no complete picture.*expected PNG, JPEG or WebP"):
        open_picture(b"<svg onload='x'/>", "evals/a.png", embed)


def test_picture__that_was_cut_short__is_one_message_and_not_half_a_picture():
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "PNG")
    with pytest.raises(DataError, match=r"evals/a\.png: found no complete picture"):
        open_picture(buffer.getvalue()[:1000], "evals/a.png", embed)


def test_sound__whole__is_embedded_with_its_length():
    sound = open_sound(tone(0.25), "evals/a.wav", embed)
    assert sound.seconds == 0.25
    assert base64.b64decode(sound.source.removeprefix("data:audio/wav;base64,"), validate=True) == tone(0.25)


@pytest.mark.parametrize(
    "content",
    [b"", b"<svg onload='x'/>", tone(0.25)[:-1], tone(0.25)[:30], tone(0), tone(0.25).replace(b"WAVE", b"AVI ")],
    ids=["empty", "foreign", "one byte short", "half a header", "no samples", "another RIFF"],
)
def test_sound__that_is_none_or_was_cut_short__is_one_message(content):
    with pytest.raises(DataError, match=r"evals/a\.wav: found no complete sound.*expected WAV.*delete its folder"):
        open_sound(content, "evals/a.wav", embed)
