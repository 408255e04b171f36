"""Ranks by steps and ranks by ranks, as pictures that are legible at 512 ranks.

Colour says how much; what is unknown is hatched, for it is neither much nor little. Hosts are bounded by lines.
"""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.errors import CannotTell
from nsysddp.model.names import natural, visible
from nsysddp.model.units import NS_PER_MS
from nsysddp.render.theme import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

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

_TITLE_WIDTH = 76
_LEAST_WIDE = 7.2
_WIDE_IN = 0.42
_SOFT = "#767676"


def draw_lateness(result: Result) -> Figure:
    """Own time of every rank in every step beyond its peers', ranks by host.

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
    place = {row["rank"]: number for number, row in enumerate(ranks)}
    column = np.searchsorted(steps["step_index"].to_numpy(), frame["step_index"].to_numpy())
    values = np.full((len(ranks), steps.height), np.nan)
    row = np.array([place[rank] for rank in frame["rank"].to_list()])
    values[row, column] = frame["lateness_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy() / NS_PER_MS
    step_ms = float(np.median(frame["window_ns"].to_numpy())) / NS_PER_MS
    most = max(float(np.nanquantile(np.abs(values), 0.995)), LATE_SHARE * step_ms)
    title = _title(result, "No rank's own time is beyond its peers'")
    wide, tall = min(9.0, max(3.0, 0.55 * steps.height)), min(8.5, max(1.2, 0.2 * len(ranks)))
    figure, (axes,) = _sheet(title, wide, tall, 1)
    _paint(axes, values, (-most, most), "ms beyond the peers", _diverging(), np.isnan(values))
    _label(
        axes, [str(row["rank"]) for row in ranks], [visible(name or "") for name in steps["step"].to_list()]
    )
    _bound(axes, [row["host"] for row in ranks])
    axes.set_ylabel("rank, by host")
    axes.set_xlabel("step")
    return figure


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
    host = dict(result.trace.ranks.select("rank", "host").iter_rows())
    ranks = sorted({*pairs["sender"].to_list(), *pairs["receiver"].to_list()})
    by_host = len(ranks) > _MOST_RANKS
    name = {rank: visible(host[rank] or "?") if by_host else str(rank) for rank in ranks}
    names = sorted(set(name.values()), key=natural)
    place = {text: number for number, text in enumerate(names)}
    size, moved, took = (np.zeros((len(names), len(names))) for _ in range(3))
    unknown = np.zeros_like(size, dtype=bool)
    for row in pairs.iter_rows(named=True):
        at = place[name[row["sender"]]], place[name[row["receiver"]]]
        if row["bytes"] is None:
            unknown[at] = True
        else:
            size[at] += row["bytes"]
        if row["transfer_ns"] and row["busbw_gbps"] is not None:
            moved[at] += row["busbw_gbps"] * row["transfer_ns"]
            took[at] += row["transfer_ns"]
    sent = np.where(size > 0, size / 1e6, np.nan)
    rate = np.divide(moved, took, out=np.full_like(size, np.nan), where=took > 0)
    title = wrap(_of_pairs(names, rate, "hosts" if by_host else "ranks"), _TITLE_WIDTH)
    side = min(6.0, max(2.2, 0.22 * len(names)))
    figure, both = _sheet(title, side, side, 2)
    for axes, values, label, is_unknown in (
        (both[0], sent, "MB sent", unknown & ~(size > 0)),
        (both[1], rate, "GB/s, alone on the link", (size > 0) & ~(took > 0)),
    ):
        most = float(np.max(values, initial=0.0, where=~np.isnan(values))) or 1.0
        _paint(axes, values, (0.0, most), label, _rising(), is_unknown)
        _label(axes, names, names)
        axes.set_ylabel("sender")
        axes.set_xlabel("receiver")
    return figure


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


def _sheet(title: Sequence[str], wide: float, tall: float, count: int) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` maps of this size in inches beside each other, each with room for its scale."""
    from matplotlib.figure import Figure

    top, left, right, foot = 0.45 + 0.24 * len(title), 1.1, 1.25, 0.75
    width = max(_LEAST_WIDE, count * (left + wide + right))
    height = top + tall + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    for number, line in enumerate(title):
        at = 1 - (0.32 + 0.24 * number) / height
        figure.text(0.25 / width, at, line, fontsize=11, fontweight="bold")
    return figure, [
        figure.add_axes(
            ((left + number * (left + wide + right)) / width, foot / height, wide / width, tall / height)
        )
        for number in range(count)
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
    bar = scale.figure.colorbar(image, cax=scale, extend="both" if reach[0] < 0 else "neither")
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
