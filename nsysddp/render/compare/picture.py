"""A comparison as a picture with intervals."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from nsysddp.model.units import ms
from nsysddp.render.compare.words import (
    account_rows,
    names_text,
    number,
    part_title,
    sentence,
    shown_rank,
    title_of,
    which_is_which,
    who,
)
from nsysddp.render.theme import GREY, INK, LIGHT, LOOKS, STYLE, TRACK, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nsysddp.questions.compare import Comparison
    from nsysddp.render.compare.words import Compared


_LOOK_OF_PART = {
    "compute": "compute",
    "contention": "spin",
    "exposed_transfer": "transfer",
    "exposed_wait": "wait",
    "exposed_unsplit": "unsplit",
    "transfer": "transfer",
    "wait": "wait",
    "unmatched_communication": "unsplit",
    "memory": "memory",
    "graph": "graph",
}


_BASE, _NEW = GREY, "#0072B2"
_WIDTH_IN = 11.0
_TITLE_CHARACTERS, _TEXT_CHARACTERS = 108, 125
"""What fits into the width of the picture in bold and in plain type."""

_LINE_IN = 0.2


def drawn_rows(comparison: Compared) -> list[dict[str, Any]]:
    """The times of the job and of the shown rank that are drawn, with ``label`` and ``decided``.

    Where a side has one run there is no interval: how much runs differ is then not known at all.
    """
    rank = shown_rank(comparison)
    made = []
    for row in comparison.tables["comparison"].iter_rows(named=True):
        shown = row["unit"] == "ns" and row["difference"] is not None and row["rank"] in (None, rank)
        if not shown or row["base"] == row["new"] == 0:
            continue
        title = title_of(row["metric"])
        alone = min(row["base_runs"], row["new_runs"]) < 2
        made.append(
            {
                **row,
                "label": title if row["rank"] is None else f"rank {row['rank']}: {title}",
                "decided": row["verdict"] not in ("not enough data", "no difference shown"),
                **({"low": None, "high": None} if alone else {}),
            }
        )
    return made


def key_of(rows: Sequence[Mapping[str, Any]], *, weak: str = "dashed") -> str:
    """What the marks of ``drawn_rows`` mean; ``weak`` is how intervals of these very runs look."""
    key = "new − base in ms"
    if any(row["low"] is not None for row in rows):
        key += "; line: 95 % interval"
        if any(row["scope"] == "these_runs" for row in rows):
            key += f" ({weak}: of these very runs only)"
    if any(row["detectable"] is not None for row in rows):
        key += "; grey: a difference inside could have been missed"
    if any(row["low"] is None for row in rows):
        key += "; without line: too few steps or runs for an interval"
    return key


def draw_comparison(comparison: Comparison) -> Figure:
    """How do the sides differ: every run's step, what changed in it, and each metric's interval.

    Returns:
        The picture; ``timeline.save`` writes it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rank = shown_rank(comparison)
    rows = drawn_rows(comparison)
    title = textwrap.wrap(printable(sentence(comparison)), _TITLE_CHARACTERS)
    notes = [
        f"base: {names_text(comparison.base)}     new: {names_text(comparison.new)}",
        *which_is_which(comparison),
    ]
    lines = [line for note in notes for line in textwrap.wrap(printable(note), _TEXT_CHARACTERS)]
    top = 0.5 + _LINE_IN * (len(title) + len(lines))
    height = top + 3.4 + 0.25 * len(rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, height), facecolor="white")

        def place(left: float, top_in: float, width: float, height_in: float) -> Axes:
            return figure.add_axes((left, 1 - (top_in + height_in) / height, width, height_in / height))

        for number_of_line, line in enumerate((*title, *lines)):
            head = number_of_line < len(title)
            figure.text(
                0.02, 1 - (0.3 + _LINE_IN * number_of_line) / height, line, va="center",
                fontsize=10 if head else 9, weight="bold" if head else "normal", color=INK if head else GREY,
            )  # fmt: skip
        _draw_runs(place(0.07, top + 0.15, 0.34, 1.75), comparison)
        _draw_account(place(0.60, top + 0.15, 0.37, 1.75), comparison, rank)
        of_whom = "Each metric" if rank is None else f"The job, and {who(comparison, rank)}"
        _draw_intervals(place(0.27, top + 2.7, 0.71, 0.25 * len(rows)), rows, of_whom)
    return figure


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, weight="bold", pad=8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_runs(axes: Axes, comparison: Comparison) -> None:
    """Every run's median step as a point, its steps behind as lighter ones; of several runs their mean as a line."""
    import numpy as np

    headline = comparison.headline
    key = (headline["metric"], None)
    divisor = 1e6 if headline["unit"] == "ns" else 1.0
    for row, (runs, colour, mean) in enumerate(
        zip(comparison.runs, (_BASE, _NEW), (headline["base"], headline["new"]), strict=True)
    ):
        for place, run in enumerate(runs):
            y = row + (place - (len(runs) - 1) / 2) * min(0.12, 0.6 / len(runs))
            steps = run.samples[key] / divisor
            axes.plot(steps, np.full(steps.size, y), "o", color=colour, alpha=0.25, ms=2.2, mew=0)
            axes.plot(float(np.median(steps)), y, "o", color=colour, ms=4.5)
        if len(runs) > 1:
            axes.plot([mean / divisor] * 2, [row - 0.42, row + 0.42], color=colour, lw=1.4)
    axes.set_ylim(1.55, -0.55)
    axes.set_yticks([0, 1], ["base", "new"])
    axes.grid(axis="x", color="#E6E8EB", lw=0.8)
    unit = "ms" if headline["unit"] == "ns" else headline["unit"]
    several = max(len(runs) for runs in comparison.runs) > 1
    axes.set_xlabel(
        f"{unit}; point: median of a run, dot: a step" + (", line: mean of the runs" if several else "")
    )
    _plain(axes, f"Every run: {title_of(headline['metric'])}")


def _draw_account(axes: Axes, comparison: Comparison, rank: int | None) -> None:
    """From the base's step to the new one's, part by part."""
    view, of_rank = ("critical_path", None) if rank is None else ("window", rank)
    whole, *parts = account_rows(comparison, view, of_rank)
    parts = [part for part in parts if part["change_ns"]]
    at = 0.0
    edges = [0.0]
    for row, part in enumerate(parts):
        change = ms(part["change_ns"])
        look = LOOKS[_LOOK_OF_PART.get(part["part"], "idle")]
        axes.barh(
            row, change, left=at, height=0.62, color=look.fill, edgecolor=INK if look.hatch else look.fill, lw=0.4,
            hatch=look.hatch or None,
        )  # fmt: skip
        at += change
        edges.append(at)
        axes.plot([at, at], [row + 0.31, row + 0.69], color=GREY, lw=0.7)
    axes.barh(len(parts), at, height=0.62, color=INK)
    low, high = min(edges), max(edges)
    room = (high - low) or 1.0
    axes.set_xlim(low - 0.04 * room, high + 0.30 * room)
    for row, part in enumerate((*parts, whole)):
        right = max(edges[row], edges[row + 1]) if row < len(parts) else max(0.0, at)
        text = number(part["change_ns"], "ns", sign=True)
        axes.text(right + 0.02 * room, row, text, va="center", fontsize=8)
    axes.set_yticks(range(len(parts) + 1), [*(part_title(part["part"]) for part in parts), "step"])
    axes.set_ylim(len(parts) + 0.6, -0.6)
    axes.axvline(0, color=LIGHT, lw=0.8, zorder=0)
    whose = "the job's critical path" if rank is None else f"rank {rank}"
    axes.set_xlabel("change in ms (means); the parts sum to the step")
    _plain(axes, f"What changed in the step of {whose}")


def _draw_intervals(axes: Axes, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Difference of each metric with its interval, and what could have been shown."""
    for y, row in enumerate(rows):
        if row["detectable"] is not None:
            reach = ms(row["detectable"])
            axes.barh(y, 2 * reach, left=-reach, height=0.7, color=TRACK, edgecolor=LIGHT, lw=0.6, zorder=0)
        colour = _NEW if row["decided"] else GREY
        if row["low"] is not None:
            dashed = (0, (2, 1.5)) if row["scope"] == "these_runs" else "solid"
            axes.plot([ms(row["low"]), ms(row["high"])], [y, y], color=colour, lw=1.6, ls=dashed)
        axes.plot(
            ms(row["difference"]),
            y,
            "o",
            ms=5,
            mec=colour,
            mfc=colour if row["decided"] else "white",
            mew=1.3,
        )
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.axvline(0, color=INK, lw=0.8)
    axes.grid(axis="x", color="#E6E8EB", lw=0.8)
    axes.set_xlabel("\n".join(textwrap.wrap(key_of(rows), 100)))
    _plain(axes, title)
