"""When did each rank compute, communicate, copy and idle? One picture of a run, or of a part of it.

``lanes`` decides what is shown and ``detail`` how much of it a page can hold; this file places and draws it.
"""

from __future__ import annotations

import math
import warnings as python_warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.model.errors import UsageError
from nsysddp.questions.verdict import verdict_of
from nsysddp.render import drawn
from nsysddp.render.detail import CHARACTER_IN, View, as_bars, as_columns, ticks
from nsysddp.render.files import whole_file
from nsysddp.render.lanes import NUMBER_SIZE, Lane, Row, Scene, scene_of
from nsysddp.render.theme import (
    FORMATS,
    GREY,
    INK,
    LIGHT,
    LOOKS,
    PAPER,
    STYLE,
    TRACK,
    Look,
    metadata,
    printable,
    short,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Points = NDArray[np.float64]

WIDTH_IN = 11.0
LEFT_IN, RIGHT_IN = 1.95, 0.3
PLOT_IN = WIDTH_IN - LEFT_IN - RIGHT_IN

_LEAST_HEIGHT = 0.12
"""Height of the lowest column: a trace of activity stays visible."""


_PHASE_IN, _NUMBER_IN, _LANE_GAP_IN, _ROW_GAP_IN, _HOST_GAP_IN = 0.17, 0.15, 0.035, 0.2, 0.26
_STEP_IN = 0.24
_MARGIN_IN, _TITLE_LINE_IN, _TITLE_SIZE, _TITLE_CHARACTERS = 0.16, 0.23, 12, 110
_DASHES: Any = (0, (3, 2))


@dataclass
class _Page:
    """Shapes gathered by look, so that each look is one artist; y in inches from the top of the plot."""

    shapes: dict[Look, list[Points]] = field(default_factory=dict)
    lines: list[tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=list)
    tracks: list[tuple[float, float]] = field(default_factory=list)
    words: list[tuple[float, float, str, dict[str, Any]]] = field(default_factory=list)

    def rectangles(self, look: Look, left: Points, right: Points, top: float, bottom: float) -> None:
        """Rectangles that share top and bottom."""
        if left.size:
            tops, bottoms = np.full_like(left, top), np.full_like(left, bottom)
            x = np.stack([left, right, right, left], axis=1)
            y = np.stack([tops, tops, bottoms, bottoms], axis=1)
            self.shapes.setdefault(look, []).extend(np.stack([x, y], axis=2))

    def columns(self, look: Look, edges: Points, low: Points, high: Points) -> None:
        """Neighbouring columns from ``low`` up to ``high`` (y grows downwards), as one outline a run."""
        for first, last in _runs(low - high > 1e-9):
            keep = np.ones(last - first, dtype=bool)
            keep[1:] = (high[first + 1 : last] != high[first : last - 1]) | (
                low[first + 1 : last] != low[first : last - 1]
            )
            begins = np.flatnonzero(keep) + first
            x = np.repeat(np.append(edges[begins], edges[last]), 2)[1:-1]
            upper = np.stack([x, np.repeat(high[begins], 2)], axis=1)
            lower = np.stack([x, np.repeat(low[begins], 2)], axis=1)
            self.shapes.setdefault(look, []).append(np.concatenate([upper, lower[::-1]]))

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text at inches from the left and the top of the plot."""
        self.words.append((x, y, text, style))


def _runs(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _draw_lane(page: _Page, lane: Lane, scene: Scene, top: float) -> None:
    view, bottom = scene.view, top + lane.height_in
    page.tracks.append((top, lane.height_in))
    if lane.name not in scene.columns:
        for look, some in lane.parts:
            bars = as_bars(some, view)
            page.rectangles(look, view.x(bars.start), view.x(bars.end), top, bottom)
        return
    steps = round(lane.height_in * 200)
    low: Points | None = None
    for look, some in lane.parts:
        share = as_columns(some, view)
        height = np.where(share > 0, np.maximum(share, _LEAST_HEIGHT), 0)
        # Heights in whole dots of the raster, so that neighbours of one height share an outline.
        height = np.round(height * steps) / steps * lane.height_in
        if low is None:
            low = np.full(share.size, bottom)
        high = np.maximum(low - height, top)
        page.columns(look, np.minimum(view.x(view.columns()), PLOT_IN), low, high)
        low = high


def _draw_phases(page: _Page, row: Row, view: View, top: float) -> None:
    bottom = top + _PHASE_IN
    for phase in row.phases:
        bars = as_bars(phase.spans, view)
        left, right = view.x(bars.start), view.x(bars.end)
        page.rectangles(phase.look, left, right, top, bottom)
        label = short(phase.look.label, 24)
        wide = (len(label) + 1) * CHARACTER_IN * 7.5
        for a, b in zip(left[right - left > wide].tolist(), right[right - left > wide].tolist(), strict=True):
            page.write((a + b) / 2, (top + bottom) / 2, label, size=7.5, color=phase.look.ink, ha="center")


def _draw_row(page: _Page, row: Row, scene: Scene, top: float) -> float:
    """Draw one rank from ``top`` on; returns where it ends."""
    y = top
    if scene.full:
        page.write(-LEFT_IN + 0.16, y + 0.01, f"rank {row.rank}", size=10, weight="bold", va="top")
        for number, line in enumerate(row.place):
            at = y + 0.21 + 0.14 * number
            page.write(-LEFT_IN + 0.16, at, short(line, 18), size=7.5, color=GREY, va="top")
    if row.phases:
        page.write(-0.08, y + _PHASE_IN / 2, "host", size=8, color=GREY, ha="right")
        _draw_phases(page, row, scene.view, y)
        y += _PHASE_IN + 0.05
    for lane in row.lanes:
        if lane.name == "communication" and scene.full:
            y += _NUMBER_IN - _LANE_GAP_IN
            for x, text in row.numbers:
                page.write(x, y - 0.01, text, size=NUMBER_SIZE, ha="center", va="bottom")
        _draw_lane(page, lane, scene, y)
        if lane.label:
            page.write(-0.08, y + lane.height_in / 2, lane.label, size=8, ha="right")
        y += lane.height_in + (_LANE_GAP_IN if scene.full else 0.0)
    if not scene.full:
        height = sum(lane.height_in for lane in row.lanes)
        size = min(9.0, max(7.0, height * 55))
        page.write(-0.08, top + height / 2, f"rank {row.rank}", size=size, ha="right")
    return y


def _draw_boundaries(page: _Page, row: Row, scene: Scene, top: float, bottom: float) -> None:
    """Where the rank's steps begin, and where one ends if that is the next one's beginning or the last's end."""
    edges = {window.start for window in row.windows}
    if scene.every == 1:
        edges |= {window.end for window in row.windows}
    for edge in sorted(edges):
        if scene.view.start <= edge <= scene.view.end:
            x = float(scene.view.x(edge))
            page.lines.append(((x, top), (x, bottom)))


def _draw_step_names(page: _Page, row: Row, scene: Scene) -> None:
    """Names of a rank's steps above the plot: of each, or of every so many if they need more room."""
    size = 8.5
    names = {
        window: short(scene.names.get(window.step, ""), 28)
        + (" (warm-up)" if window.step in scene.warm else "")
        for window in row.windows
    }
    longest_in = max(((len(name) + 2) * CHARACTER_IN * size for name in names.values()), default=0.0)
    stride = max(1, math.ceil(longest_in * len(names) / PLOT_IN))
    for window in row.windows[::stride]:
        start, end = max(window.start, scene.view.start), min(window.end, scene.view.end)
        left, right = float(scene.view.x(start)), float(scene.view.x(end))
        half = (len(names[window]) + 1) / 2 * CHARACTER_IN * size
        # A step that is shorter than its name has it from where it begins.
        middle = (left + right) / 2 if right - left >= 2 * half else left + half
        if middle + half <= PLOT_IN + RIGHT_IN:
            page.write(middle, _STEP_IN / 2 - 0.02, names[window], size=size, ha="center")


def draw_timeline(context: Context, *, ranks: Sequence[int] | None = None) -> Figure:
    """When did each rank compute, communicate, copy and idle?

    Args:
        context: as of ``questions.context_of``; its selection decides which part of time is shown.
        ranks: the ranks to show; all by default.

    Returns:
        The picture, 11 inches wide. ``save`` writes it.

    Raises:
        UsageError: a rank does not exist or has nothing in the part asked for.
    """
    import matplotlib as mpl

    bound = verdict_of(context)
    answer = bound.message if bound else "Timeline"
    with mpl.rc_context(STYLE):
        return _compose(scene_of(context, PLOT_IN, ranks), wrap(printable(answer), _TITLE_CHARACTERS))


def _compose(scene: Scene, title: Sequence[str]) -> Figure:
    from matplotlib.figure import Figure

    page = _Page()
    y = _STEP_IN
    _draw_step_names(page, next((row for row in scene.rows if row.windows), scene.rows[0]), scene)
    hosts = len({row.host for row in scene.rows}) > 1
    previous: str | None = None
    for number, row in enumerate(scene.rows):
        if not scene.full and hosts and row.host != previous:
            y += _HOST_GAP_IN if number else 0.0
            page.write(-LEFT_IN + 0.16, y + 0.1, printable(row.host or "host unknown"), size=9, weight="bold")
        previous = row.host
        bottom = _draw_row(page, row, scene, y)
        _draw_boundaries(page, row, scene, y - 0.03, bottom)
        y = bottom + (_ROW_GAP_IN if scene.full else 0.19 * sum(lane.height_in for lane in row.lanes))
    height = y - (_ROW_GAP_IN if scene.full else 0) + 0.06

    keys = _legends(scene, page)
    words = _TITLE_LINE_IN * len(title) + 0.5
    head = words + sum(0.2 * key.rows + 0.04 for key in keys) + 0.08
    foot = 0.62 + 0.17 * sum(len(lines) for lines in _wrapped(scene.notes))
    total = head + height + foot
    figure = Figure(figsize=(WIDTH_IN, total), facecolor=PAPER)
    top = words
    for key in keys:
        key.draw(figure, top)
        top += 0.2 * key.rows + 0.04
    axes = figure.add_axes((LEFT_IN / WIDTH_IN, foot / total, PLOT_IN / WIDTH_IN, height / total))
    _frame(axes, scene, height)
    _fill(axes, page)
    _write_words(figure, scene, title, total, foot)
    return figure


def _paint(look: Look) -> dict[str, Any]:
    """How matplotlib paints a look: classes without an outline, phases with one."""
    if look.key in LOOKS:
        edge = look.hatch_ink if look.hatch else "none"
        return {"facecolor": look.fill, "edgecolor": edge, "hatch": look.hatch or None, "linewidth": 0}
    return {"facecolor": look.fill, "edgecolor": GREY, "linewidth": 0.4}


def _fill(axes: Axes, page: _Page) -> None:
    """Put the gathered shapes on the axes: one artist a look, whatever the number of events."""
    from matplotlib.collections import LineCollection, PolyCollection

    tracks = [[(0, top), (PLOT_IN, top), (PLOT_IN, top + tall), (0, top + tall)] for top, tall in page.tracks]
    axes.add_collection(PolyCollection(tracks, facecolor=TRACK, edgecolor="none", zorder=0), autolim=False)
    # The host's phases are drawn in their own order; of the classes transfer comes last and so stays visible.
    places = {look: place for place, look in enumerate(page.shapes)}
    for look in sorted(page.shapes, key=lambda shape: (shape.key == "transfer", places[shape])):
        shapes = PolyCollection(page.shapes[look], zorder=2, label=look.key, **_paint(look))
        axes.add_collection(shapes, autolim=False)
    lines = LineCollection(
        page.lines, colors=INK, linewidths=0.9, linestyles=[_DASHES], zorder=3, label="step"
    )
    axes.add_collection(lines, autolim=False)
    for x, top, text, style in page.words:
        axes.text(x, top, text, clip_on=False, zorder=4, **{"va": "center_baseline", **style})


def _frame(axes: Axes, scene: Scene, height: float) -> None:
    from matplotlib.collections import LineCollection

    size = 9
    axes.set_xlim(0, PLOT_IN)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    shown = ticks(scene.view, size)
    places = [float(scene.view.x(at)) for at, _ in shown]
    # A label that would leave the page is left out; its tick stays.
    rooms = [len(label) * CHARACTER_IN * size / 2 for _, label in shown]
    labels = [
        label if place + room < PLOT_IN + RIGHT_IN else ""
        for (_, label), place, room in zip(shown, places, rooms, strict=True)
    ]
    axes.set_xticks(places, labels)
    axes.tick_params(axis="x", length=3, color=LIGHT, pad=3, labelsize=size)
    axes.set_xlabel(scene.axis, fontsize=size, color=GREY, labelpad=3)
    grid = [((place, 0.0), (place, height)) for place in places]
    axes.add_collection(LineCollection(grid, colors=LIGHT, linewidths=0.6, zorder=1), autolim=False)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.patch.set_visible(False)


@dataclass(frozen=True)
class _Key:
    """A legend: what each mark means, read row by row."""

    handles: tuple[Any, ...]
    labels: tuple[str, ...]
    columns: int

    @property
    def rows(self) -> int:
        """Lines that it takes."""
        return -(-len(self.labels) // self.columns)

    def draw(self, figure: Figure, top_in: float) -> None:
        """Put it below the subtitle."""
        # matplotlib fills column by column.
        order = [
            place for first in range(self.columns) for place in range(first, len(self.labels), self.columns)
        ]
        legend = figure.legend(
            [self.handles[place] for place in order],
            [self.labels[place] for place in order],
            loc="upper left",
            bbox_to_anchor=(LEFT_IN / WIDTH_IN, 1 - top_in / figure.get_figheight()),
            ncols=self.columns,
            frameon=False,
            fontsize=8.5,
            handlelength=1.7,
            handleheight=0.85,
            handletextpad=0.5,
            columnspacing=1.8,
            labelspacing=0.45,
            borderpad=0,
            borderaxespad=0,
        )
        legend.set_zorder(5)


def _legends(scene: Scene, page: _Page) -> list[_Key]:
    """Keys of what the picture has: classes of GPU time, then the host's phases and steps."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def patch(look: Look) -> Patch:
        return Patch(**_paint(look))

    classes = [look for look in LOOKS.values() if look in page.shapes]
    first_seen = {phase.look: phase.spans.start[0] for row in reversed(scene.rows) for phase in row.phases}
    host = sorted((look for look in page.shapes if look not in classes), key=lambda look: first_seen[look])
    handles: list[Any] = [patch(look) for look in host]
    labels = [f"host: {short(look.label, 24)}" for look in host]
    if page.lines:
        handles.append(Line2D([], [], color=INK, lw=0.9, ls=_DASHES))
        labels.append("step boundary")
    keys = [
        _Key(tuple(map(patch, classes)), tuple(look.label for look in classes), 4),
        _Key(tuple(handles), tuple(labels), 5),
    ]
    return [key for key in keys if key.labels]


def _wrapped(notes: Sequence[str]) -> list[list[str]]:
    return [wrap(note, 156) for note in notes]


def _write_words(figure: Figure, scene: Scene, title: Sequence[str], total: float, foot: float) -> None:
    """The answer as title, what is shown below it, and the notes."""
    left = LEFT_IN / WIDTH_IN
    for number, line in enumerate(title):
        at = 0.3 + _TITLE_LINE_IN * number
        figure.text(_MARGIN_IN / WIDTH_IN, 1 - at / total, line, fontsize=_TITLE_SIZE, fontweight="bold")
    at = 0.3 + _TITLE_LINE_IN * len(title)
    figure.text(_MARGIN_IN / WIDTH_IN, 1 - at / total, scene.subtitle, fontsize=9, color=GREY)
    y = foot - 0.58
    for lines in _wrapped(scene.notes):
        for line in lines:
            figure.text(left, y / total, line, fontsize=8, color=GREY, va="top")
            y -= 0.17


def kind_of(path: Path) -> str:
    """The format that a picture's file name asks for.

    Raises:
        UsageError: its ending is none of ``theme.FORMATS``.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        what = f"a picture cannot be written as {path.suffix or 'a file without an ending'}"
        raise UsageError(what, do=f"end its name in {', '.join(f'.{form}' for form in FORMATS)}")
    return kind


def save(figure: Figure, path: Path, *, data: str | None = None, force: bool = True) -> None:
    """Write a picture as png, svg or pdf by its ending; the same picture gives the same bytes.

    It is written beside its place and renamed: never half a picture.

    Args:
        figure: the picture.
        path: where it goes.
        data: of ``drawn``: written into it, of png and svg.
        force: may it replace a file?

    Raises:
        UsageError: the ending is unknown, or the place cannot be written.
    """
    import matplotlib as mpl

    kind = kind_of(path)
    with whole_file(path, force=force) as stream, mpl.rc_context(STYLE), python_warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; it is no news for the reader.
        python_warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        more = {"metadata": metadata(kind)} if data is None else drawn.metadata(kind, data)
        figure.savefig(stream, format=kind, dpi=200, **more)
