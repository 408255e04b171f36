"""How did a metric move over runs: what a trend is, and its picture with intervals and change points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.model.errors import UsageError
from nsysddp.model.units import NS_PER_MS, NS_PER_US
from nsysddp.render.files import whole_file
from nsysddp.render.theme import FORMATS, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by every kind of colour vision, and by their lightness in grey print.
_BLUE, _VERMILION, _INK, _GREY, _LIGHT = "#0072B2", "#D55E00", "#222222", "#767676", "#C9CDD2"


@dataclass(frozen=True)
class TrendPoint:
    """One run's place in a trend, in the metric's own unit.

    Attributes:
        run_id: its number.
        label: its name, or None.
        created_at: when it was saved.
        rank: the rank shown: the one asked for, else the run's worst one; None when nothing was measured.
        value: median over that rank's steps; None where the trace did not tell.
        low: lower end of the interval of ``value``; None when there are too few steps for one.
        high: its upper end.
        best: the same median of the run's best rank (equal to ``value`` when one rank was asked for).
        steps: how many values the median is of.
    """

    run_id: int
    label: str | None
    created_at: datetime
    rank: int | None
    value: float | None
    low: float | None
    high: float | None
    best: float | None
    steps: int


@dataclass(frozen=True)
class ChangePoint:
    """One shift of the level, between two neighbouring runs.

    Attributes:
        run_id: the first run on the new level.
        label: its name, or None.
        previous_run_id: the last run on the old level.
        before: median over the runs of the old level.
        after: median over the runs of the new level.
        low: lower end of the interval of ``after - before`` (runs are resampled).
        high: its upper end.
        p_value: how often runs in random order show a shift this clear.
        differences: what is recorded differently for the two neighbouring runs, as ``name old → new``.
    """

    run_id: int
    label: str | None
    previous_run_id: int
    before: float
    after: float
    low: float
    high: float
    p_value: float
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Unlike:
    """A run that is left out of a trend.

    Attributes:
        run_id: its number.
        reason: in what it is unlike the run that the others are held beside.
    """

    run_id: int
    reason: str


@dataclass(frozen=True)
class Trend:
    """A metric over runs, oldest first."""

    metric: str
    rank: int | None
    higher_is_better: bool
    confidence: float
    points: tuple[TrendPoint, ...]
    change_points: tuple[ChangePoint, ...]
    warnings: tuple[str, ...]
    left_out: tuple[Unlike, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        document = asdict(self)
        for point in document["points"]:
            point["created_at"] = point["created_at"].isoformat(timespec="seconds")
        return document


@dataclass(frozen=True)
class Scale:
    """In which unit is a metric read, and by what is a stored value divided for it?"""

    divisor: float
    unit: str

    def show(self, value: float | None) -> str:
        """The value for people, without its unit; a dash for unknown."""
        if value is None:
            return "–"
        shown = value / self.divisor
        if self.divisor == 1 and float(shown).is_integer():
            return f"{shown:,.0f}"
        digits = 3 if abs(shown) < 10 else 2 if abs(shown) < 1000 else 1
        return f"{shown:,.{digits}f}".replace("-", "−")


def scale_of(metric: str, values: Sequence[float]) -> Scale:
    """Which unit suits these values: milliseconds (or microseconds), per cent, or a count?"""
    if metric.endswith("_ns"):
        small = max(map(abs, values), default=0.0) < NS_PER_MS
        return Scale(NS_PER_US, "µs") if small else Scale(NS_PER_MS, "ms")
    if metric == "overlap_ratio":
        return Scale(0.01, "% of communication")
    return Scale(1, "per step")


def scale_for(trend: Trend) -> Scale:
    """Which unit suits everything that a trend shows?"""
    ends = [end for point in trend.points for end in (point.value, point.high, point.best) if end is not None]
    return scale_of(trend.metric, ends)


def title_of(metric: str) -> str:
    """The metric's name in words: ``exposed_wait_ns`` is ``Exposed wait``."""
    name = metric.removesuffix("_ns").replace("_", " ")
    return {"window": "Step", "p2p copy": "P2P copy"}.get(name, name.capitalize())


def describe_change(trend: Trend, change: ChangePoint) -> str:
    """One change point in words: at which run, by how much of the old level, with which interval."""
    scale = scale_for(trend)
    name = f"run {change.run_id}" + (f" ({printable(change.label)})" if change.label else "")
    percent = f"{relative(change)} of the old level, " if change.before else ""
    levels = f"{scale.show(change.before)} → {scale.show(change.after)} {scale.unit}"
    sure = f"{trend.confidence * 100:.0f} %"
    interval = f"difference {scale.show(change.low)} to {scale.show(change.high)} at {sure}"
    chance = f"p = {change.p_value:.3f}" if change.p_value >= 0.001 else "p < 0.001"
    return f"{name}: {percent}{levels} ({interval}, {chance})"


def describe_differences(change: ChangePoint) -> str:
    """What else is recorded to have changed there; a coincidence in time, not a proof of the cause."""
    known = "; ".join(map(printable, change.differences))
    return f"differs from run {change.previous_run_id}: {known or 'nothing that was recorded'}"


def relative(change: ChangePoint) -> str:
    """The shift in per cent of the old level, signed; nothing where that was zero."""
    if not change.before:
        return ""
    return f"{(change.after - change.before) / abs(change.before) * 100:+.1f} %".replace("-", "−")


_WIDTH_IN, _PLOT_IN, _HEAD_IN = 10.0, 3.6, 1.25
_LEFT, _AXES = 0.085, 0.885  # where the axes begin, and how wide they are, in widths of the page


def draw_trend(trend: Trend, path: Path, *, force: bool = True) -> None:
    """Draw a trend to ``path`` (png, svg or pdf by its ending): what is where?

    Dots are the run's worst rank (or the rank asked for) with its interval; the pale bar leads to its best
    rank. Blue lines show the level between change points; each of those is a numbered line, explained below.

    Raises:
        UsageError: the ending is none of ``theme.FORMATS``, or the place cannot be written.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        what = f"a picture cannot be written as {path.suffix or 'a file without an ending'}"
        raise UsageError(what, do=f"end its name in {', '.join(f'.{form}' for form in FORMATS)}")
    import matplotlib as mpl

    style: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "svg.hashsalt": "nsysddp",
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "axes.edgecolor": _GREY,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "text.color": _INK,
        # Names come from people: a $ in one is not mathematics.
        "text.parse_math": False,
    }
    # Same trend, same bytes.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with whole_file(path, force=force) as stream, mpl.rc_context(style):
        _compose(trend).savefig(stream, format=kind, dpi=200, metadata=metadata)


def _compose(trend: Trend) -> Figure:
    from matplotlib.figure import Figure

    foot_in = 0.95 + 0.46 * max(1, len(trend.change_points))
    height_in = _HEAD_IN + _PLOT_IN + foot_in
    figure = Figure(figsize=(_WIDTH_IN, height_in), facecolor="white")
    axes = figure.add_axes((_LEFT, foot_in / height_in, _AXES, _PLOT_IN / height_in))
    _draw_points(axes, trend)
    _draw_changes(axes, trend)
    _draw_frame(axes, trend)
    _draw_key(figure, trend)
    _draw_words(figure, trend)
    return figure


def _bounds(trend: Trend) -> list[int]:
    """Where each level starts and the last one ends, as places on the axis."""
    places = {point.run_id: place for place, point in enumerate(trend.points)}
    return [0, *(places[change.run_id] for change in trend.change_points), len(trend.points)]


def _draw_points(axes: Axes, trend: Trend) -> None:
    scale = scale_for(trend)
    at_foot = axes.get_xaxis_transform()
    for place, point in enumerate(trend.points):
        if point.value is None:
            axes.plot(place, 0.03, "x", color=_GREY, ms=6, mew=1.4, transform=at_foot)
            continue
        value = point.value / scale.divisor
        if point.best is not None and point.best != point.value:
            best = point.best / scale.divisor
            axes.plot([place, place], [value, best], color=_LIGHT, lw=5, solid_capstyle="butt", zorder=1)
            axes.plot(place, best, "_", color=_GREY, ms=8, mew=1.2, zorder=2)
        if point.low is not None and point.high is not None:
            ends = [point.low / scale.divisor, point.high / scale.divisor]
            axes.plot([place, place], ends, "_-", color=_BLUE, lw=1.6, ms=7, mew=1.6, zorder=4)
        fill = "white" if point.low is None else _BLUE
        axes.plot(place, value, "o", ms=5.5, mfc=fill, mec=_BLUE, mew=1.3, zorder=5)


def _draw_changes(axes: Axes, trend: Trend) -> None:
    scale, bounds = scale_for(trend), _bounds(trend)
    changes = trend.change_points
    levels = [changes[0].before, *(change.after for change in changes)] if changes else []
    for start, end, level in zip(bounds, bounds[1:], levels, strict=False):
        height = level / scale.divisor
        axes.plot([start - 0.5, end - 0.5], [height, height], color=_BLUE, lw=1.1, alpha=0.6, zorder=3)
    for number, change in enumerate(changes, 1):
        edge = bounds[number] - 0.5
        axes.axvline(edge, color=_VERMILION, lw=1.3, ls=(0, (4, 2)), zorder=2)
        at: dict[str, Any] = {"xy": (edge, 1), "xycoords": ("data", "axes fraction"), "va": "center"}
        badge = {"boxstyle": "circle,pad=0.28", "fc": _VERMILION, "ec": "white", "lw": 1.2}
        axes.annotate(
            str(number), ha="center", color="white", size=9.5, weight="bold", bbox=badge, zorder=6, **at
        )
        # The size beside it only where it cannot run into the next number.
        if (bounds[number + 1] - bounds[number]) * _AXES * _WIDTH_IN / len(trend.points) > 1.1:
            offset: dict[str, Any] = {"xytext": (12, 0), "textcoords": "offset points"}
            axes.annotate(relative(change), color=_VERMILION, size=10, weight="bold", **offset, **at)


def _draw_frame(axes: Axes, trend: Trend) -> None:
    count = len(trend.points)
    axes.set_xlim(-0.6, max(count, 1) - 0.4)
    known = any(point.value is not None for point in trend.points)
    low, high = axes.get_ylim() if known else (0.0, 1.0)
    # From zero, so that a shift looks as large as it is.
    axes.set_ylim(min(0.0, low), high + 0.08 * (high - min(0.0, low)))
    axes.set_ylabel(f"{title_of(trend.metric)}, {scale_for(trend).unit}")
    axes.set_xlabel("run, oldest first", color=_GREY, fontsize=9)
    named = count <= 8 and any(point.label for point in trend.points)
    # A digit of the axis is less than 0.1 in wide.
    label_in = 0.1 * (1 + len(str(max(point.run_id for point in trend.points))))
    shown = range(0, count, 1 if named else math.ceil(count * label_in / (_AXES * _WIDTH_IN)))
    axes.set_xticks(list(shown), [_tick(trend.points[place], named) for place in shown])
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    axes.tick_params(length=0, pad=6)
    axes.grid(axis="y", color="#E6E8EB", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _tick(point: TrendPoint, named: bool) -> str:
    return f"{point.run_id}\n{_short(point.label or '', 12)}" if named else str(point.run_id)


def _short(text: str, length: int) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def _draw_key(figure: Figure, trend: Trend) -> None:
    """What each mark means, for the marks that the picture has."""
    from matplotlib.lines import Line2D

    def mark(marker: str = "", ls: str = "", **style: Any) -> Any:
        return Line2D([], [], marker=marker, ls=ls, **style)

    known = [point for point in trend.points if point.value is not None]
    certain = any(point.low is not None for point in known)
    interval = f"{trend.confidence:.0%} interval over steps".replace("%", " %")
    marks = [
        (certain, mark("o", color=_BLUE, ms=5.5), "median"),
        (certain, mark("_", color=_BLUE, ms=7, mew=1.6), interval),
        (
            any(point.low is None for point in known),
            mark("o", mfc="white", mec=_BLUE, ms=5.5, mew=1.3),
            "too few steps for an interval",
        ),
        (
            any(point.best != point.value for point in known),
            mark(ls="-", color=_LIGHT, lw=5, solid_capstyle="butt"),
            "to the best rank",
        ),
        (bool(trend.change_points), mark(ls="-", color=_BLUE, lw=1.1, alpha=0.6), "level over runs"),
        (len(known) < len(trend.points), mark("x", color=_GREY, ms=6, mew=1.4), "unknown"),
    ]
    shown = [(handle, name) for there, handle, name in marks if there]
    figure.legend(
        [handle for handle, _ in shown],
        [name for _, name in shown],
        loc="center left",
        bbox_to_anchor=(_LEFT - 0.004, 1 - 0.92 / figure.get_figheight()),
        ncols=max(1, len(shown)),
        frameon=False,
        fontsize=9,
        handlelength=1.1,
        handletextpad=0.5,
        columnspacing=1.6,
        borderpad=0,
        borderaxespad=0,
    )


def _draw_words(figure: Figure, trend: Trend) -> None:
    """The title, how to read it, and the change points in words; places in inches from the top left."""

    def write(text: str, top_in: float, left_in: float = 0.0, **style: Any) -> None:
        place = (_LEFT + left_in / _WIDTH_IN, 1 - top_in / figure.get_figheight())
        figure.text(*place, text, **style)

    ranks = "each run's worst rank" if trend.rank is None else f"rank {trend.rank} in each run"
    wanted = "; higher is better" if trend.higher_is_better else "; lower is better"
    # A count is neither.
    wanted = wanted if trend.higher_is_better or trend.metric.endswith("_ns") else ""
    write(f"{title_of(trend.metric)} over {len(trend.points)} runs", 0.38, fontsize=15, fontweight="bold")
    write(f"Median over the steps of {ranks}, without warm-up{wanted}", 0.65, color=_GREY)

    foot = _HEAD_IN + _PLOT_IN + 0.95
    if not trend.change_points:
        nothing = "No change of level can be shown between these runs."
        write(_short(trend.warnings[0] if trend.warnings else nothing, 140), foot, fontsize=9.5, color=_GREY)
    for number, change in enumerate(trend.change_points, 1):
        top = foot + 0.46 * (number - 1)
        badge = {"boxstyle": "circle,pad=0.25", "fc": _VERMILION, "ec": "none"}
        middle = {"ha": "center", "va": "center", "color": "white", "fontsize": 8.5, "fontweight": "bold"}
        write(str(number), top - 0.045, 0.08, bbox=badge, **middle)
        write(_short(describe_change(trend, change), 125), top, 0.3, fontsize=9.5)
        write(_short(describe_differences(change), 140), top + 0.17, 0.3, fontsize=8.5, color=_GREY)
