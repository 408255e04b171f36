"""What does a first look at each rank show? Its figures over the steady windows, ready for a screen or a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model.units import ms
from nsysddp.questions.steps import steady

if TYPE_CHECKING:
    from nsysddp.model.result import Result

_OPTIONAL = frozenset(
    {"spin_ns", "unsplit_ns", "graph_ns", "exposed_memory_ns", "tail_communication_ns", "p2p_copy_ns"}
)
"""Kinds of time that are left out where they are nothing but zero or unknown."""

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
    frame = steady(result["overlap"])
    most = int(max(frame.group_by("rank").len()["len"].to_list(), default=0))
    if frame["step_index"].null_count() == frame.height:
        return "ms of the whole capture"
    return f"ms, median of {most} steady steps" if most > 1 else "ms of the only steady step"


def figures(result: Result, digits: int = 3) -> tuple[list[str], list[Figures]]:
    """Column labels, and each rank's medians over its steady windows; a figure unknown in any window is ``?``."""
    frame = steady(result["overlap"]).with_columns(
        unsplit_ns=pl.col("hidden_unsplit_ns") + pl.col("exposed_unsplit_ns")
    )
    whole = frame["step_index"].null_count() == frame.height
    shown = [
        (name, "window" if whole and name == "window_ns" else label)
        for name, label in _COLUMNS
        if name not in _OPTIONAL or bool((frame[name].fill_null(0) > 0).any())
    ]
    rows = []
    for (rank,), part in frame.group_by("rank", maintain_order=True):
        cells = [milliseconds(median(part, name), digits) for name, _ in shown]
        cells += [_ratio(part), *(_count(median(part, name)) for name in ("kernels", "collectives"))]
        rows.append(Figures(int(str(rank)), median(part, "window_ns"), tuple(cells)))
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
            columns = [one for one in columns if one[0] != "exposed_unsplit_ns"]
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
    per = (
        steady(result["overlap"])
        .group_by("rank")
        .agg(pl.col("window_ns").median())
        .sort("window_ns", "rank")
        .to_dicts()
    )
    if len(per) < 2:
        return None
    fast, slow = per[0], per[-1]
    return (
        f"slowest rank {slow['rank']} {ms(slow['window_ns']):,.3f} ms, fastest rank {fast['rank']} "
        f"{ms(fast['window_ns']):,.3f} ms, spread {ms(slow['window_ns'] - fast['window_ns']):,.3f} ms"
    )


def milliseconds(ns: float | None, digits: int = 3) -> str:
    """Nanoseconds as text in ms: ``?`` where unknown, ``<0.001`` where rounding would make it look like nothing."""
    if ns is None:
        return "?"
    if 0 < ms(ns) < 0.5 * 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    return f"{ms(ns):,.{digits}f}"


def median(part: pl.DataFrame, name: str) -> float | None:
    """Median over the rank's windows; unknown if it is unknown in any of them."""
    if part[name].null_count():
        return None
    value = part[name].median()
    return float(value) if isinstance(value, (int, float)) else None


def _ratio(part: pl.DataFrame) -> str:
    hidden, total = part["hidden_communication_ns"], part["communication_ns"]
    if hidden.null_count() or not total.sum():
        return "n/a"
    return f"{100 * float(hidden.sum()) / float(total.sum()):.1f} %"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"
