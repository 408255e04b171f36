"""Ranks by steps and ranks by ranks, as pictures that are legible at 512 ranks.

Colour says how much; what is unknown is hatched, for it is neither much nor little. Hosts are bounded by lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.errors import CannotTell
from nsysddp.model.names import natural, visible
from nsysddp.model.units import NS_PER_MS
from nsysddp.render.theme import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from nsysddp.model.result import Result

    Floats = NDArray[np.float64]

LATE_SHARE = 0.03
"""Of the step: from there on a rank is called late, and its colour is full; jitter must not look like it."""

_MOST_RANKS = 64
"""With more ranks pairs are shown by host."""

_LEAST_SPREAD = 0.75
"""Colours reach down to this part of the most at least: what is nearer to it is alike."""

_TITLE_WIDTH = 76
_LEAST_WIDE = 7.2
_BESIDE_IN = 3.0
"""Maps of at most this width lie beside each other, wider ones below each other."""
_WIDE_IN = 0.42
_SOFT = "#767676"


@dataclass(frozen=True)
class _Figure:
    """A figure of ``lateness`` that has a map: its column, what a unit of the picture is, its words, its colours."""

    column: str
    scale: float
    label: str
    is_signed: bool = False


_BY_STEP = (
    _Figure("lateness_ns", NS_PER_MS, "own time beyond the peers', ms", is_signed=True),
    _Figure("exposed_communication_ns", NS_PER_MS, "exposed communication, ms"),
    _Figure("busbw_gbps", 1.0, "bus bandwidth, GB/s"),
)


def draw_lateness(result: Result) -> Figure:
    """Own time of every rank in every step beyond its peers', its exposed communication and its bandwidth, by host.

    Args:
        result: the answer of ``questions.stragglers``.

    Raises:
        CannotTell: there are no steps, or nothing to compare a rank with.
    """
    frame = result["lateness"].filter(pl.col("step_index").is_not_null())
    if frame["lateness_ns"].null_count() == frame.height:
        raise CannotTell(
            "no rank has peers and steps to compare its own time with", do="capture several ranks and steps"
        )
    ranks = frame.select("rank", "host").unique("rank").sort("rank").to_dicts()
    ranks.sort(key=lambda row: (natural(row["host"] or ""), row["rank"]))
    steps = frame.select("step_index", "step").unique("step_index").sort("step_index")
    step_ms = float(np.median(frame["window_ns"].to_numpy())) / NS_PER_MS
    known = [figure for figure in _BY_STEP if frame[figure.column].null_count() < frame.height]
    title = _title(result, "No rank's own time is beyond its peers'")
    beside = 0.55 * steps.height <= _BESIDE_IN
    wide = min(9.0, max(2.2, 0.55 * steps.height))
    tall = min(8.5 if beside else 3.6, max(1.2, 0.2 * len(ranks)))
    sheet, every = _sheet(title, wide, tall, len(known) if beside else 1, 1 if beside else len(known))
    for figure, axes in zip(known, every, strict=True):
        shown = [row["rank"] for row in ranks]
        values = by_step(frame, figure.column, shown, steps["step_index"].to_numpy()) / figure.scale
        reach = _reach(values, LATE_SHARE * step_ms if figure.is_signed else None)
        _paint(
            axes,
            values,
            reach,
            figure.label,
            _diverging() if figure.is_signed else _rising(),
            np.isnan(values),
        )
        _label(
            axes,
            [str(row["rank"]) for row in ranks],
            [visible(name or "") for name in steps["step"].to_list()],
        )
        _bound(axes, [row["host"] for row in ranks])
        axes.set_ylabel("rank, by host")
        axes.set_xlabel("step")
    return sheet


def _reach(values: Floats, least: float | None) -> tuple[float, float]:
    """From where to where the colours reach: around zero with ``least``, else over the values; jitter stays pale."""
    if least is not None:
        most = max(float(np.nanquantile(np.abs(values), 0.995)), least)
        return -most, most
    low, high = (float(np.nanquantile(values, share)) for share in (0.005, 0.995))
    high = high or 1.0
    return min(low, _LEAST_SPREAD * high), high


def by_step(frame: pl.DataFrame, name: str, ranks: Sequence[int], steps: NDArray[np.int64]) -> Floats:
    """A column of ``lateness`` as ranks by ascending steps; NaN where it is not known."""
    place = {rank: number for number, rank in enumerate(ranks)}
    values = np.full((len(ranks), steps.size), np.nan)
    row = np.array([place[rank] for rank in frame["rank"].to_list()])
    column = np.searchsorted(steps, frame["step_index"].to_numpy())
    values[row, column] = frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return values


def draw_pairs(result: Result) -> Figure:
    """Bytes and bandwidth between ranks that send to each other; of many ranks between hosts.

    Args:
        result: the answer of ``questions.communicators``.

    Raises:
        CannotTell: no messages between two ranks are in the capture.
    """
    pairs = result["pair"]
    if pairs.is_empty():
        raise CannotTell(
            "no messages from one rank to another are known", do="export with --include-blobs=true"
        )
    exchanged = exchanged_between(pairs, dict(result.trace.ranks.select("rank", "host").iter_rows()))
    names, sent, rate = exchanged.names, exchanged.sent, exchanged.rate
    title = wrap(_of_pairs(names, rate, exchanged.what), _TITLE_WIDTH)
    side = min(6.0, max(2.2, 0.22 * len(names)))
    figure, both = _sheet(title, side, side, 2)
    for axes, values, label, is_unknown in (
        (both[0], sent, "MB sent", exchanged.talks & np.isnan(sent)),
        (both[1], rate, "GB/s, alone on the link", exchanged.talks & np.isnan(rate)),
    ):
        most = float(np.max(values, initial=0.0, where=~np.isnan(values))) or 1.0
        _paint(axes, values, (0.0, most), label, _rising(), is_unknown)
        _label(axes, names, names)
        axes.set_ylabel("sender")
        axes.set_xlabel("receiver")
    return figure


@dataclass(frozen=True)
class Exchanged:
    """Who sends how much to whom, as matrices of senders by receivers.

    Attributes:
        what: ``ranks``, or of many ``hosts``.
        names: of rows and columns.
        talks: there are messages.
        sent: MB; NaN without messages, or where no size is known.
        rate: GB/s of messages that were alone in their kernel; NaN where there are none.
    """

    what: str
    names: Sequence[str]
    talks: NDArray[np.bool_]
    sent: Floats
    rate: Floats


def exchanged_between(pairs: pl.DataFrame, host_of: Mapping[int, str | None]) -> Exchanged:
    """The table ``pair`` as matrices; of many ranks by host.

    Args:
        pairs: at least one row.
        host_of: rank to its host.
    """
    ranks = sorted({*pairs["sender"].to_list(), *pairs["receiver"].to_list()})
    by_host = len(ranks) > _MOST_RANKS
    name = {rank: visible(host_of[rank] or "?") if by_host else str(rank) for rank in ranks}
    names = sorted(set(name.values()), key=natural)
    place = {text: number for number, text in enumerate(names)}
    size, moved, took = (np.zeros((len(names), len(names))) for _ in range(3))
    talks = np.zeros_like(size, dtype=bool)
    for row in pairs.iter_rows(named=True):
        at = place[name[row["sender"]]], place[name[row["receiver"]]]
        talks[at] = True
        size[at] += row["bytes"] or 0
        if row["transfer_ns"] and row["busbw_gbps"] is not None:
            moved[at] += row["busbw_gbps"] * row["transfer_ns"]
            took[at] += row["transfer_ns"]
    return Exchanged(
        "hosts" if by_host else "ranks",
        names,
        talks,
        sent=np.where(size > 0, size / 1e6, np.nan),
        rate=np.divide(moved, took, out=np.full_like(size, np.nan), where=took > 0),
    )


def _of_pairs(names: Sequence[str], rate: Floats, what: str) -> str:
    """The slowest and the fastest of the pairs that are drawn."""
    known = np.argwhere(~np.isnan(rate))
    if not known.size:
        return f"Messages between {what}; none was alone on its link"
    order = sorted((float(rate[sender, receiver]), int(sender), int(receiver)) for sender, receiver in known)
    ends = [f"{gbps:.1f} GB/s ({names[sender]} to {names[receiver]})" for gbps, sender, receiver in order]
    if len(ends) == 1:
        return f"Messages between {what}: {ends[0]}"
    return f"Messages between {what}: slowest {ends[0]}, fastest {ends[-1]}"


def _title(result: Result, otherwise: str) -> list[str]:
    first = next((finding.message for finding in result.findings if finding.message), otherwise)
    return wrap(printable(visible(first)), _TITLE_WIDTH)


def _sheet(
    title: Sequence[str], wide: float, tall: float, columns: int, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure with maps of this size in inches, in columns and rows, each with room for its scale."""
    from matplotlib.figure import Figure

    top, left, right, foot = 0.45 + 0.24 * len(title), 1.1, 1.25, 0.75
    width = max(_LEAST_WIDE, columns * (left + wide + right))
    height = top + rows * (tall + foot)
    figure = Figure(figsize=(width, height), facecolor="white")
    for number, line in enumerate(title):
        at = 1 - (0.32 + 0.24 * number) / height
        figure.text(0.25 / width, at, line, fontsize=11, fontweight="bold")
    return figure, [
        figure.add_axes(
            (
                (left + column * (left + wide + right)) / width,
                (foot + (rows - 1 - row) * (tall + foot)) / height,
                wide / width,
                tall / height,
            )
        )
        for row in range(rows)
        for column in range(columns)
    ]


def _paint(
    axes: Axes,
    values: Floats,
    reach: tuple[float, float],
    label: str,
    colours: Colormap,
    unknown: NDArray[np.bool_],
) -> None:
    """The cells and their scale; ``unknown`` ones are hatched, other cells without a value are paper."""
    axes.patch.set(facecolor="white", edgecolor=_SOFT, hatch="/////", linewidth=0)
    axes.imshow(
        np.where(unknown[..., None], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]),
        aspect="auto",
        interpolation="nearest",
    )
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap=colours,
        vmin=reach[0],
        vmax=reach[1],
        aspect="auto",
        interpolation="nearest",
    )
    box = axes.get_position()
    width = axes.get_figure().get_figwidth()  # type: ignore[union-attr]
    scale = axes.get_figure().add_axes((box.x1 + 0.15 / width, box.y0, 0.16 / width, box.height))  # type: ignore[union-attr]
    bar = scale.figure.colorbar(image, cax=scale, extend="both" if reach[0] else "neither")
    bar.set_label(label, fontsize=9)
    scale.tick_params(labelsize=8)


def _label(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """As many names as there is room for."""
    box, figure = axes.get_position(), axes.get_figure()
    room = box.height * figure.get_figheight() / 0.15, box.width * figure.get_figwidth() / _WIDE_IN  # type: ignore[union-attr]
    for names, most, ticks in ((rows, room[0], axes.set_yticks), (columns, room[1], axes.set_xticks)):
        every = max(1, int(np.ceil(len(names) / max(most, 1))))
        ticks(range(0, len(names), every), names[::every], fontsize=7.5)
    axes.tick_params(length=2, color=_SOFT)
    for side in axes.spines.values():
        side.set_color(_SOFT)


def _bound(axes: Axes, hosts: Sequence[str | None]) -> None:
    """A line between hosts."""
    if len(set(hosts)) < 2:
        return
    for row in range(1, len(hosts)):
        if hosts[row] != hosts[row - 1]:
            axes.axhline(row - 0.5, color="#B4BAC2", linewidth=0.35)


def _diverging() -> Colormap:
    """Less is blue, more is vermilion; both get darker, so that grey print shows how much."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("lateness", ["#0A5C9E", "#F3F4F6", "#C84600"])


def _rising() -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("amount", ["#EAF1F7", "#5B9BC8", "#083B66"])
