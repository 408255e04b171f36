"""What does a first look at each rank show? Its figures over the steady windows, ready for a screen or a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.questions.steps import steady
from nsysddp.questions.summary import milliseconds as rounded
from nsysddp.questions.summary import summary

if TYPE_CHECKING:
    from nsysddp.model.result import Result

_OPTIONAL = {
    "spin_ns": 0.0,
    "unsplit_ns": 0.0,
    "graph_ns": 0.0,
    "exposed_memory_ns": 0.005,
    "tail_communication_ns": 0.0,
    "p2p_copy_ns": 0.0,
}
"""Kinds of time that are left out where they are nowhere more than this share of the window."""

_COLUMNS: tuple[tuple[str, str], ...] = (
    ("window_ns", "step"),
    ("compute_ns", "compute"),
    ("spin_ns", "of it spin"),
    ("hidden_transfer_ns", "hidden transfer"),
    ("hidden_wait_ns", "hidden wait"),
    ("exposed_transfer_ns", "exposed transfer"),
    ("exposed_wait_ns", "exposed wait"),
    ("unsplit_ns", "communication, unsplit"),
    ("tail_communication_ns", "tail"),
    ("exposed_memory_ns", "copies alone"),
    ("p2p_copy_ns", "peer copies"),
    ("graph_ns", "graphs"),
    ("idle_ns", "idle"),
)

PARTS: tuple[tuple[str, str, str], ...] = (
    ("compute_ns", "compute", "compute"),
    ("exposed_transfer_ns", "exposed transfer", "transfer"),
    ("exposed_wait_ns", "exposed wait", "wait"),
    ("exposed_unsplit_ns", "exposed, not split", "unsplit"),
    ("exposed_memory_ns", "copies alone", "memory"),
    ("graph_ns", "CUDA graphs, content unknown", "graph"),
    ("idle_ns", "idle", "idle"),
)
"""The parts of a window: column, label, and the look they share with the timeline (definitions: step equation)."""


@dataclass(frozen=True)
class Figures:
    """One rank's row: the rank, and a text for each column."""

    rank: int
    window_ns: float | None
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """One rank's window cut in parts that add up to it: ``(label, look, ns, share)`` each."""

    rank: int
    window_ns: int
    parts: tuple[tuple[str, str, int, float], ...]


def without_window(result: Result) -> list[int]:
    """Ranks of the trace of which no window was asked for, or can be: they have no figures."""
    return [rank for rank in result.trace.rank_numbers if rank not in result["overlap"]["rank"]]


def caption(result: Result) -> str:
    """What the figures of ``figures`` are: of how many windows, in which unit."""
    figures = summary(result)
    partly = figures.rows.filter(pl.col("split_windows") < pl.col("windows"))
    known = partly.filter(pl.col("split_windows") > 0).sort("split_windows").head(1).to_dicts()
    part = f"; wait and transfer in {known[0]['split_windows']} of {known[0]['windows']}" if known else ""
    return f"{figures.caption}{part}"


def figures(result: Result) -> tuple[list[str], list[Figures]]:
    """Column labels, and each rank's figures (``questions.summary``); what is unknown is ``?``."""
    found = summary(result)
    frame = steady(result["overlap"]).with_columns(
        unsplit_ns=pl.col("hidden_unsplit_ns") + pl.col("exposed_unsplit_ns")
    )
    shown = [
        (name, label if found.of_steps or name != "window_ns" else "window")
        for name, label in _COLUMNS
        if name not in _OPTIONAL
        or bool((frame[name].fill_null(0) > _OPTIONAL[name] * frame["window_ns"]).any())
    ]
    rows = []
    for row in found.rows.to_dicts():
        cells = [milliseconds(row[name], found.digits) for name, _ in shown]
        ratio = row["overlap_ratio"]
        cells += ["n/a" if ratio is None else f"{100 * ratio:.1f} %"]
        cells += [_count(row[name]) for name in ("kernels", "collectives")]
        rows.append(Figures(row["rank"], row["window_ns"], tuple(cells)))
    rows += [Figures(rank, None, ("?",) * (len(shown) + 3)) for rank in without_window(result)]
    return [*(label for _, label in shown), "overlap of comm.", "kernels", "collectives"], rows


def bars(result: Result) -> list[Bar]:
    """Each rank's steady windows, summed and cut in parts that add up to them.

    ``window = compute + exposed transfer, wait and unsplit + copies alone + graphs + idle``. Exposed
    communication that is not split is one part; where it is unknown (whole CUDA graphs) it is left out.
    """
    made = []
    for (rank,), part in steady(result["overlap"]).group_by("rank", maintain_order=True):
        window = int(part["window_ns"].sum())
        columns = [(name, label, look) for name, label, look in PARTS if not part[name].null_count()]
        if part["exposed_transfer_ns"].null_count() and not part["exposed_communication_ns"].null_count():
            columns.insert(1, ("exposed_communication_ns", "exposed, not split", "unsplit"))
            columns = [column for column in columns if column[0] != "exposed_unsplit_ns"]
        sums = [(label, look, int(part[name].sum())) for name, label, look in columns]
        made.append(
            Bar(
                int(str(rank)),
                window,
                tuple((label, look, ns, ns / window) for label, look, ns in sums if ns and window),
            )
        )
    return made


def spread(result: Result) -> str | None:
    """Slowest and fastest rank and what lies between; None for one rank."""
    found = summary(result)
    slow, fast = found.slowest(), found.fastest()
    if slow is None or fast is None or found.rows.height < 2:
        return None
    if slow["window_ns"] == fast["window_ns"]:
        return f"every rank {found.text(slow['window_ns'])} ms"
    return (
        f"slowest rank {slow['rank']} {found.text(slow['window_ns'])} ms, fastest rank {fast['rank']} "
        f"{found.text(fast['window_ns'])} ms, spread {found.text(slow['window_ns'] - fast['window_ns'])} ms"
    )


def milliseconds(ns: float | None, digits: int = 3) -> str:
    """Nanoseconds as text in ms: ``?`` where unknown, ``<0.001`` where rounding would make it look like nothing."""
    return "?" if ns is None else rounded(ns, digits)


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"
