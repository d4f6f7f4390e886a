"""Training curves as small inline SVGs: for each run its loss and what it was validated by, against the epoch.

One small figure per run rather than one plot with a legend: any number of runs stays readable, and colour
carries no meaning. All runs that have the same panels and end at the same epoch share their axes, and a shaded band
shows the range over them: a pretraining and the run that starts from it have losses of different kinds.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.core.files import read_lines
from pipeline.report.figures import svg

PANELS = {"loss": "loss", "val_top1": "validation top-1", "val_position_top1": "validation position top-1"}
MAX_PANELS = 2
MAX_POINTS = 120
SMALL = {"font.size": 7.5, "lines.linewidth": 1.4}
Series = tuple[np.ndarray, np.ndarray]


class Frame(NamedTuple):
    """What the runs of one kind share in one panel: the band, and the limits of both axes."""

    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    epochs: tuple[float, float]
    values: tuple[float, float]


class Logged(NamedTuple):
    """A run and the file with its curves."""

    name: str
    label: str
    metrics: Path


class Curve(NamedTuple):
    """The picture of one run."""

    label: str
    name: str
    svg: str | None  # None where nothing was logged
    last: dict[str, float]  # panel -> value at the end


def decimals_of(panel: str) -> int:
    """How many decimals a value in the text has: accuracies are percentages of some thousand images."""
    return 2 if panel == PANELS["loss"] else 1


def draw(runs: list[Logged], prefix: str) -> list[Curve]:
    """One curve per run; `prefix` keeps the ids of several groups of runs apart."""
    read = [read_series(run.metrics) for run in runs]
    kinds = [_kind(series) for series in read]
    frames = {kind: frames_of([other for other in read if _kind(other) == kind]) for kind in dict.fromkeys(kinds)}
    return [
        Curve(
            run.label,
            run.name,
            figure(series, frames[_kind(series)], f"{prefix}-{index}") if series else None,
            {PANELS[panel]: float(values[-1]) for panel, (_, values) in series.items()},
        )
        for index, (run, series) in enumerate(zip(runs, read, strict=True))
    ]


def _kind(series: dict[str, Series]) -> tuple[tuple[str, ...], int]:
    """The panels of a run, and the epoch at which it ends."""
    return tuple(series), round(max((epochs[-1] for epochs, _ in series.values()), default=0))


def frames_of(runs: list[dict[str, Series]]) -> dict[str, Frame]:
    """The frame of each panel of runs that have the same panels."""
    together = {panel: [series[panel] for series in runs] for panel in runs[0]}
    return {panel: Frame(band(series), *limits(series)) for panel, series in together.items()}


def read_series(path: Path) -> dict[str, Series]:
    """Epochs and values of the first panels that the run has; empty where the file is missing."""
    if not path.is_file():
        return {}
    records = read_lines(path)
    series: dict[str, Series] = {}
    for panel in PANELS:
        points = [(record["epoch"], record[panel]) for record in records if record.get(panel) is not None]
        if points and len(series) < MAX_PANELS:
            series[panel] = thin(np.array(points, dtype=float))
    return series


def thin(points: np.ndarray) -> Series:
    """At most MAX_POINTS points, each the mean of its neighbours; the last stays as it was logged."""
    if len(points) <= MAX_POINTS:
        return points[:, 0], points[:, 1]
    means = [group.mean(axis=0) for group in np.array_split(points[:-1], MAX_POINTS - 1)]
    epochs, values = np.array([*means, points[-1]]).T
    return epochs, values


def band(series: list[Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Epochs, lowest and highest value over the runs that reach each epoch; None for fewer than two runs."""
    if len(series) < 2:
        return None
    epochs = np.linspace(min(x[0] for x, _ in series), max(x[-1] for x, _ in series), MAX_POINTS)
    values = np.array([np.interp(epochs, x, y, left=np.nan, right=np.nan) for x, y in series])
    reached = np.isfinite(values).any(axis=0)
    values = values[:, reached]
    return epochs[reached], np.nanmin(values, axis=0), np.nanmax(values, axis=0)


def limits(series: list[Series]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Lowest and highest epoch and value over all runs, with a little room around the values."""
    epochs, values = (np.concatenate(parts) for parts in zip(*series, strict=True))
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.array([0.0, 1.0])
    room = 0.06 * (np.ptp(values) or 1.0)
    return (0.0, max(epochs.max(), 1e-6)), (values.min() - room, values.max() + room)


def figure(series: dict[str, Series], frames: dict[str, Frame], prefix: str) -> str:
    """The panels side by side, at fixed places: the bytes must not depend on how wide a font is."""
    with svg.style(**SMALL):
        drawing = Figure(figsize=(3.9, 1.55))
        width = 0.40 if len(series) > 1 else 0.89
        for place, (panel, points) in enumerate(series.items()):
            axes = drawing.add_axes((0.085 + 0.505 * place, 0.2, width, 0.64))
            draw_panel(axes, points, frames[panel], PANELS[panel])
        return svg.inline(drawing, prefix)


def draw_panel(axes: Axes, points: Series, frame: Frame, name: str) -> None:
    axes.set(xlim=frame.epochs, ylim=frame.values)
    if frame.band is not None:
        axes.fill_between(*frame.band, color=svg.BAND, linewidth=0)
    axes.plot(*points, color=svg.ACCENT, marker="o" if len(points[0]) <= 12 else "", markersize=2.4, clip_on=False)
    axes.set_title(name, loc="left", fontsize=7.5, pad=5)
    axes.set_xlabel("epoch", fontsize=7, labelpad=1, loc="right")
    axes.grid(axis="y", color=svg.GRID, linewidth=0.5)
    axes.tick_params(length=2, width=0.5, pad=2)
    axes.locator_params(nbins=4)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
