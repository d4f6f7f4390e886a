"""Everything in a figure stands where its number says: the artists of the drawings, against numbers chosen here."""

import json

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from report_content import figure

from pipeline.report.figures import svg
from pipeline.report.figures.figures import STRONGEST, draw_bars, draw_heatmap
from pipeline.report.figures.lines import WIDTH, draw_curves, draw_lines
from pipeline.report.records import FilledTable

# Row -> column -> ours, error, paper; not in the order of anything.
NUMBERS = {0: [(40.0, 2.0, 41.0), (10.0, 1.0, 12.0)], 1: [(25.0, 0.5, 20.0), (30.0, 3.0, None)]}


def table(kind: str, **about) -> FilledTable:
    """Two rows and two columns with the numbers above; columns are at 0.9 and 0.1, rows at 400 and 100."""
    made = figure("mjp.f5", kind, about, [0.9, 0.1], tuple(NUMBERS))
    for line, numbers, x in zip(made["rows"], NUMBERS.values(), (400, 100), strict=True):
        line["x"] = x
        for place, (ours, error, paper) in zip(line["cells"].values(), numbers, strict=True):
            place |= {"ours": ours, "error": error, "paper": paper, "spread": 99.0}
    return FilledTable(**made)


def lines(**about):
    made = table("lines", **about)
    return draw_lines(made, made.figure).axes[0]


def drawn_series(axes) -> list[list[tuple[float, float, float]]]:
    """(x, y, error) of the points of each series, as they are drawn."""
    found = []
    for line, _, (bars,) in axes.containers:
        ends = [np.ptp(segment[:, 1]) / 2 for segment in bars.get_segments()]
        found.append([*zip(line.get_xdata().tolist(), line.get_ydata().tolist(), ends, strict=True)])
    return found


def papers(axes) -> list[list[tuple[float, float]]]:
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    return [[*zip(line.get_xdata(), line.get_ydata(), strict=True)] for line in hollow]


def test_lines__over_columns__points_errors_and_papers_numbers_are_at_their_places():
    axes = lines(x_from="columns")
    assert drawn_series(axes) == [[(0.1, 10, 1), (0.9, 40, 2)], [(0.1, 30, 3), (0.9, 25, 0.5)]]
    assert papers(axes) == [[(0.1, 12), (0.9, 41)], [(0.9, 20)]]


def test_lines__over_rows__points_errors_and_papers_numbers_are_at_their_places():
    axes = lines(x_from="rows", log_x=True)
    assert drawn_series(axes) == [[(100, 25, 0.5), (400, 40, 2)], [(100, 30, 3), (400, 10, 1)]]
    assert axes.get_xscale() == "log" and axes.get_xticks().tolist() == [100, 400]


def test_lines__rows_without_places__are_named_below_their_points():
    made = table("lines", x_from="rows")
    for row in made.rows:
        row.x = None
    axes = draw_lines(made, made.figure).axes[0]
    names = {
        tick: label.get_text().replace("\n", " ")
        for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    }
    assert names == {0: "DeiT-S", 1: "DeiT-S, no position embedding"}
    assert [point[:2] for point in drawn_series(axes)[0]] == [(0, 40), (1, 25)]


def test_lines__levels_of_two_series__are_across_at_their_numbers_in_the_colours_of_their_series():
    axes = lines(x_from="rows", levels=["1"])
    across = [line for line in axes.lines if [*line.get_xdata()] == [0, 1]]
    assert [line.get_ydata()[0] for line in across] == [25, 30]
    assert [line.get_color() for line in across] == svg.SERIES[:2]


def test_curves__of_two_seeds__are_the_mean_against_the_epoch_with_a_band_from_one_to_the_other():
    made = FilledTable(**figure("mjp.f6", "curves", {"curve": "val_top1"}, [], (0,)))
    made.rows[0].runs = {"": ["one", "two"]}
    logged = {"one": [10.0, 20.0, 40.0], "two": [30.0, 24.0, 44.0]}

    def read(name: str) -> bytes:
        found = enumerate(logged[name.split("/")[1]], start=1)
        return "".join(json.dumps({"step": 7 * at, "epoch": at, "val_top1": v}) + "\n" for at, v in found).encode()

    axes = draw_curves(made, made.figure, read).axes[0]
    (line,) = axes.lines
    assert [*zip(line.get_xdata(), line.get_ydata(), strict=True)] == [(1, 20), (2, 22), (3, 42)]
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[corners[:, 0] == 1][:, 1].min() == 10 and corners[corners[:, 0] == 3][:, 1].max() == 44


@pytest.mark.parametrize(("low", "paper"), [(-10.0, 41.0), (10.0, 50.0)])
def test_bars__ends_errors_and_diamonds__are_on_one_scale(low, paper):
    made = table("bars", x_from="rows")
    made.rows[0].cells["at_10"].ours = low
    made.rows[0].cells["at_90"].paper = paper
    canvas = draw_bars(made, made.figure).axes[0]
    start, end = min(0.0, low - 1.0), max(42.0, paper)  # the outermost marks: 40 has an error of 2

    def place(value: float) -> float:
        return 4 + (value - start) / (end - start) * (WIDTH - 8)

    shown = [(cell.ours, cell.error, cell.paper) for row in made.rows for cell in row.cells.values()]
    bars = [patch for patch in canvas.patches if to_hex(patch.get_facecolor()) in svg.SERIES]
    ends = [sorted((bar.get_x(), bar.get_x() + bar.get_width())) for bar in bars]
    assert ends == [pytest.approx(sorted((place(0), place(ours)))) for ours, _, _ in shown]
    marks = [line.get_xdata() for line in canvas.lines]
    errors, diamonds = [m for m in marks if len(m) == 2], [m[0] for m in marks if len(m) == 1]
    assert errors == [pytest.approx([place(ours - error), place(ours + error)]) for ours, error, _ in shown]
    assert diamonds == pytest.approx([place(paper) for _, _, paper in shown if paper is not None])


def test_bars__x_from_rows__are_grouped_by_row_and_named_by_column():
    found = {x: [text.get_text() for text in bar_texts(x)] for x in ("rows", "columns")}
    rows, columns = ["DeiT-S", "DeiT-S, no position embedding"], ["at 0.9", "at 0.1"]
    assert [text for text in found["rows"] if text in rows + columns] == [rows[0], *columns, rows[1], *columns]
    assert [text for text in found["columns"] if text in rows + columns] == [columns[0], *rows, columns[1], *rows]


def bar_texts(x_from: str) -> list:
    made = table("bars", x_from=x_from)
    return draw_bars(made, made.figure).axes[0].texts


def test_heatmap__tint_and_number__are_in_the_cell_of_their_row_and_column():
    made = table("heatmap")
    canvas = draw_heatmap(made, made.figure).axes[0]
    boxes = [patch for patch in canvas.patches if isinstance(patch, Rectangle)]
    numbers = {text.get_text(): text.get_position() for text in canvas.texts}
    tints = {}
    for box in boxes:
        (inside,) = [n for n, (x, y) in numbers.items() if n[-2:] == ".0" and box.get_bbox().contains(x, y)]
        tints[inside] = box.get_alpha() / STRONGEST
    assert tints == pytest.approx({"40.0": 1, "10.0": 0, "25.0": 0.5, "30.0": 2 / 3})
    heads = [numbers[name][0] for name in ("at 0.9", "at 0.1")]
    sides = [numbers[name][1] for name in ("40.0", "25.0")]
    assert [numbers[name] for name in ("40.0", "10.0", "25.0", "30.0")] == [(x, y) for y in sides for x in heads]


def tints_of(made) -> dict[str, float]:
    """Number in a cell -> how strong its tint is."""
    canvas = draw_heatmap(made, made.figure).axes[0]
    boxes = [patch for patch in canvas.patches if isinstance(patch, Rectangle)]
    numbers = {text.get_text(): text.get_position() for text in canvas.texts if text.get_text()[-2:] == ".0"}
    found = {n: box for box in boxes for n, (x, y) in numbers.items() if box.get_bbox().contains(x, y)}
    return {n: box.get_alpha() / STRONGEST for n, box in found.items()}


def test_heatmap__shade_by_columns__is_strongest_for_the_best_of_each_column():
    made = table("heatmap", shade="columns")
    made.columns[0].direction, made.columns[1].direction = "up", "down"
    assert tints_of(made) == pytest.approx({"40.0": 1, "25.0": 0, "10.0": 1, "30.0": 0})


def test_heatmap__shade_by_columns__all_equal__is_weak():
    made = table("heatmap", shade="columns")
    for row in made.rows:
        row.cells["at_10"].ours = 7.0
    made.columns[1].direction = "down"
    assert tints_of(made)["7.0"] == 0


@pytest.mark.parametrize(("direction", "tints"), [("up", (0, 1)), ("down", (1, 0))])
def test_heatmap__shade_by_gain__is_what_is_better_than_the_first_column(direction, tints):
    made = table("heatmap", shade="gain")
    made.columns[1].direction = direction
    canvas = draw_heatmap(made, made.figure).axes[0]
    boxes = [patch for patch in canvas.patches if isinstance(patch, Rectangle)]
    texts = {text.get_text(): text.get_position() for text in canvas.texts}
    found = {n: box.get_alpha() / STRONGEST for n, at in texts.items() for box in boxes if box.get_bbox().contains(*at)}
    assert found == {"40.0": 0, "10.0 (-30.0)": tints[0], "25.0": 0, "30.0 (+5.0)": tints[1]}


def test_heatmap__x_from_rows__is_turned_over():
    made = table("heatmap", x_from="rows")
    canvas = draw_heatmap(made, made.figure).axes[0]
    at = {text.get_text(): text.get_position() for text in canvas.texts}
    assert at["40.0"][1] == at["25.0"][1] < at["10.0"][1] == at["30.0"][1]
    assert at["40.0"][0] == at["10.0"][0] < at["25.0"][0] == at["30.0"][0]
