"""A comparison for people: the verdict in a sentence, tables, and a picture with intervals."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from nsysddp.model.units import ms
from nsysddp.questions.compare.metrics import METRICS
from nsysddp.questions.compare.tables import TABLES
from nsysddp.render.document import TEXT, TOOL_SCHEMA, listed, record, request_schema, rows_of, tool
from nsysddp.render.theme import GREY, INK, LIGHT, LOOKS, STYLE, TRACK, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

    from nsysddp.questions.compare import Comparison


class Compared(Protocol):
    """What holds the tables of a comparison (``questions.compare.tables.TABLES``)."""

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Frames by name."""


COMPARED = ("comparison", "account", "matrix")
"""Tables that a comparison is drawn from."""

SCHEMA_VERSION = 1
_TITLES = {
    "measured_step_ns": "step, unprofiled",
    "step_ns": "step, profiled",
    "throughput": "throughput",
    "critical_communication_ns": "critical communication",
    "window_ns": "step window",
    "backward_ns": "backward",
    "compute_ns": "compute",
    "hidden_transfer_ns": "hidden transfer",
    "exposed_transfer_ns": "exposed transfer",
    "hidden_wait_ns": "hidden wait",
    "exposed_wait_ns": "exposed wait",
    "exposed_communication_ns": "exposed communication",
    "tail_communication_ns": "tail",
    "exposed_memory_ns": "copies alone",
    "contention_ns": "contention",
    "idle_ns": "idle",
    "kernels": "kernels",
}

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

_PART_TITLES = {"memory": "copies alone", "unknown": "before the first call"}


def title_of(metric: str) -> str:
    """A metric's name for people."""
    return _TITLES.get(metric, metric)


def part_title(part: str) -> str:
    """The name of a part of an account for people."""
    return _PART_TITLES.get(part, part.replace("_", " "))


def number(value: float | None, unit: str, *, sign: bool = False, bare: bool = False) -> str:
    """A value of a metric for people, with its unit unless ``bare``; a dash for unknown."""
    if value is None:
        return "–"
    shown = ms(value) if unit == "ns" else value
    digits = 3 if unit == "ns" else 0 if float(value).is_integer() else 2
    return f"{shown:{'+' if sign else ''},.{digits}f}{' ms' if unit == 'ns' and not bare else ''}".replace(
        "-", "−"
    )


def percent(ratio: float | None) -> str:
    """A relative change for people."""
    return "–" if ratio is None else f"{100 * ratio:+.1f} %".replace("-", "−")


def sentence(comparison: Comparison) -> str:
    """The verdict on the step, with its numbers and how sure they are."""
    row = comparison.headline
    counts = f"{row['base_runs']} and {row['new_runs']} run{'s' if row['new_runs'] != 1 else ''}"
    change = (
        f"{title_of(row['metric'])} {number(row['base'], row['unit'])} → {number(row['new'], row['unit'])} "
        f"({number(row['difference'], row['unit'], sign=True)}, {percent(row['change_ratio'])}"
    )
    if row["low"] is not None:
        change += f"; 95 % interval {interval(row)}"
    change += ")"
    if row["verdict"] == "not enough data":
        only = " (within these runs)" if row["scope"] == "these_runs" else ""
        return f"Not enough data for a verdict: {change}{only}, {counts}; at least 3 a side are needed."
    if row["verdict"] == "no difference shown":
        found = number(row["detectable"], row["unit"])
        return f"No difference shown: {change}, {counts}; a difference of {found} would have been."
    return f"The new side is {row['verdict']}: {change}, {counts}."


def interval(row: Mapping[str, Any]) -> str:
    """The interval of a row of ``comparison``; a dash without."""
    if row["low"] is None:
        return "–"
    low = number(row["low"], row["unit"], sign=True).removesuffix(" ms")
    return f"{low}..{number(row['high'], row['unit'], sign=True)}"


def which_is_which(comparison: Comparison) -> list[str]:
    """Every figure of a step that is shown and moved the other way than the headline, with what either is.

    A job's step lasts as long as on its slowest rank, which can be another one in each step, and a median leaves out
    what a mean counts: all of these can be right at once, and side by side they seem to contradict each other.
    """
    headline = comparison.headline
    direction = _longer(headline["metric"], headline["difference"])
    others: list[tuple[str, str, float]] = []
    rank = shown_rank(comparison)
    frame = comparison.tables["comparison"].filter(
        pl.col("difference").is_not_null()
        & (
            (pl.col("rank").is_null() & pl.col("metric").is_in([*_STEP_OF_JOB]))
            | ((pl.col("rank") == (-1 if rank is None else rank)) & (pl.col("metric") == "window_ns"))
        )
    )
    for row in frame.iter_rows(named=True):
        whose = _STEP_OF_JOB.get(row["metric"]) or f"rank {row['rank']}'s own step, {_MEDIANS}"
        others.append((row["metric"], whose, row["difference"]))
    for view, of_rank, whose in (
        ("window", rank, f"rank {rank}'s own step, mean of all its steps"),
        ("critical_path", None, "the job's critical path, mean of all its steps"),
    ):
        rows = _account(comparison, view, of_rank)
        if rows and not (view == "window" and rank is None):
            others.append(("step_ns", whose, float(rows[0]["change_ns"])))
    found = [
        f"{whose}: {number(change, METRICS[metric].unit, sign=True)}"
        for metric, whose, change in others
        if direction * _longer(metric, change) < 0
    ]
    if not found:
        return []
    what = (
        _STEP_OF_JOB[headline["metric"]]
        if headline["metric"] in _STEP_OF_JOB
        else title_of(headline["metric"])
    )
    change = number(headline["difference"], headline["unit"], sign=True)
    return [
        f"Not the same thing, and not the same sign: {change} is of {what}; the other way went {'; '.join(found)}."
    ]


_MEDIANS = "median of each run, mean over the runs"
_STEP_OF_JOB = {
    "measured_step_ns": f"the job's unprofiled step (slowest rank, {_MEDIANS})",
    "step_ns": f"the job's profiled step (slowest rank of each step, {_MEDIANS})",
    "throughput": f"the job's throughput (slowest rank, {_MEDIANS})",
}


def _longer(metric: str, change: float) -> float:
    """Above 0 where the change is for the worse."""
    return -change if METRICS[metric].better == "higher" else change


def shown_rank(comparison: Compared) -> int | None:
    """The rank whose figures stand for the rest on a screen: the new side's slowest, where both sides have it."""
    both = comparison.tables["account"].filter(pl.col("rank").is_not_null())["rank"].unique().to_list()
    slowest = comparison.tables["matrix"].filter(
        (pl.col("side") == "new")
        & (pl.col("metric") == "window_ns")
        & pl.col("is_slowest")
        & pl.col("rank").is_in(both)
    )
    return int(slowest["rank"][-1]) if slowest.height else min(both, default=None)


def who(comparison: Compared, rank: int) -> str:
    """The shown rank in words, and why it is that one."""
    window = comparison.tables["matrix"].filter((pl.col("metric") == "window_ns") & (pl.col("side") == "new"))
    slowest = window.filter(pl.col("is_slowest"))["rank"].to_list()
    if rank in slowest and window.height > 1:
        return f"rank {rank}, the slowest of the new side"
    return f"rank {rank}"


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": comparison.headline["verdict"],
        "sentence": sentence(comparison),
        "which_is_which": which_is_which(comparison),
        "base": list(comparison.base),
        "new": list(comparison.new),
        "tables": {name: frame.to_dicts() for name, frame in comparison.tables.items()},
        "warnings": list(comparison.warnings),
        "assumptions": list(comparison.assumptions),
    }


def schema_of_comparison() -> dict[str, Any]:
    """The JSON Schema of ``as_dict``."""
    return record(
        {
            "schema_version": {"type": "integer"},
            "verdict": TEXT,
            "sentence": TEXT,
            "which_is_which": listed(TEXT),
            "base": listed(TEXT),
            "new": listed(TEXT),
            "tables": record({name: rows_of(table) for name, table in TABLES.items()}),
            "warnings": listed(TEXT),
            "assumptions": listed(TEXT),
        }
    )


def document(comparison: Comparison, request: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a comparison: what made it, what was asked, and ``as_dict``."""
    content = as_dict(comparison)
    return {
        "schema_version": content.pop("schema_version"),
        "tool": tool(),
        "request": dict(request),
        **content,
    }


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``document``."""
    of_comparison = schema_of_comparison()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Is the new side faster, how sure, and what changed?",
        **record({"tool": TOOL_SCHEMA, "request": request_schema(), **of_comparison["properties"]}),
    }


def rows_for_people(comparison: Comparison, rank: int | None) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the metrics of the job (``rank`` None) or of one rank."""
    heads = ["metric", "base", "new", "change", "", "95 % interval", "detectable", "verdict"]
    of_rank = pl.col("rank").is_null() if rank is None else pl.col("rank") == rank
    cells = []
    for row in comparison.tables["comparison"].filter(of_rank).iter_rows(named=True):
        if row["difference"] is None or row["base"] == row["new"] == 0:
            continue
        unit = row["unit"]
        cells.append(
            [
                title_of(row["metric"]),
                number(row["base"], unit, bare=True),
                number(row["new"], unit, bare=True),
                number(row["difference"], unit, sign=True, bare=True),
                percent(row["change_ratio"]),
                interval(row).removesuffix(" ms") + (" *" if row["scope"] == "these_runs" else ""),
                number(row["detectable"], unit, bare=True),
                row["verdict"],
            ]
        )
    kept = [place for place in range(len(heads)) if place < 5 or any(row[place] != "–" for row in cells)]
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in cells]


def account_for_people(
    comparison: Comparison, view: str, rank: int | None
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of one account, the whole last."""
    rows = _account(comparison, view, rank)
    cells = [
        [
            part_title(row["part"]),
            number(row["base_ns"], "ns", bare=True),
            number(row["new_ns"], "ns", bare=True),
            number(row["change_ns"], "ns", sign=True, bare=True),
        ]
        for row in (*rows[1:], *rows[:1])
    ]
    return ["part of the step", "base", "new", "change"], cells


def matrix_for_people(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the matrix of percentiles."""
    heads = ["side", "metric", "rank", "steps", "median", "P95", "P99", "largest", ""]
    cells = [
        [
            row["side"],
            title_of(row["metric"]),
            str(row["rank"]),
            str(row["steps"]),
            *(number(row[name], "ns", bare=True) for name in ("median", "p95", "p99", "largest")),
            "slowest" if row["is_slowest"] else "",
        ]
        for row in comparison.tables["matrix"].iter_rows(named=True)
    ]
    kept = [
        place for place in range(len(heads)) if place not in (5, 6) or any(row[place] != "–" for row in cells)
    ]
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in cells]


def _account(comparison: Comparison, view: str, rank: int | None) -> list[dict[str, Any]]:
    of_rank = pl.col("rank").is_null() if rank is None else pl.col("rank") == rank
    return comparison.tables["account"].filter((pl.col("view") == view) & of_rank).to_dicts()


def sections(comparison: Comparison) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, heads and cells of every table that a reader needs first."""
    rank = shown_rank(comparison)
    made = [(f"The job (ms; {_MEDIANS})", *rows_for_people(comparison, None))]
    if rank is not None:
        made.append(
            (f"{who(comparison, rank).capitalize()} (ms; {_MEDIANS})", *rows_for_people(comparison, rank))
        )
        made.append(
            (
                f"What changed in rank {rank}'s step (ms, means of all steps, which add up; time on its GPU)",
                *account_for_people(comparison, "window", rank),
            )
        )
    if _account(comparison, "critical_path", None):
        made.append(
            (
                "What changed on the job's critical path (ms, means of all steps, which add up)",
                *account_for_people(comparison, "critical_path", None),
            )
        )
    made.append(("Percentiles of each rank (ms)", *matrix_for_people(comparison)))
    return made


NOTE = "* holds for these very runs only"


def print_comparison(comparison: Comparison, out: Console) -> None:
    """Print what a reader needs first."""
    from rich.text import Text

    from nsysddp.render.screen import Column, Grid, bullet, indented

    out.print(Text(f"{_names(comparison.base)}  →  {_names(comparison.new)}", style="dim"))
    out.print(indented(sentence(comparison), "bold"))
    for note in which_is_which(comparison):
        out.print(indented(note))
    for title, heads, cells in sections(comparison):
        out.print()
        out.print(Text(title, style="dim"))
        last = len(heads) - 1
        grid = Grid(
            [
                Column(
                    head,
                    left=place == 0 or head in ("verdict", "metric") or (place == last and not head),
                    spare=0 if place == last or head not in _SPARE else _SPARE[head],
                )
                for place, head in enumerate(heads)
            ]
        )
        for row in cells:
            grid.add(*row)
        grid.print(out, "--format json")
    if (comparison.tables["comparison"]["scope"] == "these_runs").any():
        out.print(indented(NOTE, "dim"))
    if comparison.warnings:
        out.print()
    for warning in comparison.warnings:
        out.print(bullet(warning, "dim"))


_SPARE = {"": 3, "detectable": 2, "P99": 1, "P95": 1}
"""Columns that a narrow screen leaves out."""


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def markdown(comparison: Comparison, *, brief: bool = False) -> str:
    """The same in GitHub's Markdown; ``brief`` leaves out the sentence and the percentiles of each rank."""
    lines = []
    if not brief:
        lines = [f"**{escaped(sentence(comparison))}**", ""]
        lines += [line for note in which_is_which(comparison) for line in (escaped(note), "")]
    for title, heads, cells in sections(comparison)[: -1 if brief else None]:
        lines += [f"**{title}**", "", *markdown_table(heads, cells), ""]
    if (comparison.tables["comparison"]["scope"] == "these_runs").any():
        lines += [NOTE.replace("*", "\\*"), ""]
    lines += [f"- {escaped(note)}" for note in (*comparison.warnings, *comparison.assumptions)]
    return "\n".join(lines)


def markdown_table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table in GitHub's Markdown, text of the data escaped."""
    lines = [heads, ["---" if place == 0 else "---:" for place in range(len(heads))], *cells]
    return [
        f"| {' | '.join(cell if number == 1 else escaped(cell) for cell in row)} |"
        for number, row in enumerate(lines)
    ]


def escaped(text: str) -> str:
    """Text of the data that Markdown would read as markup, made plain."""
    made = printable(text).replace("\\", "\\\\")
    for special in "|<>*_`[]":
        made = made.replace(special, "\\" + special)
    return made


# --- the picture --------------------------------------------------------------------------------------------

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
        f"base: {_names(comparison.base)}     new: {_names(comparison.new)}",
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
    whole, *parts = _account(comparison, view, of_rank)
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
