"""What made a rank late for the collectives that the critical path left on it?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS, Graph
from nsysddp.dependencies.queues import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

Spans = tuple["Ints", "Ints", "Ints", "Ints"]
"""Path, start, end and what it says, of each span."""


def lateness(context: Context, graph: Graph, pieces: pl.DataFrame) -> Spans:
    """What made a path's rank late for every collective at whose last arrival the path is on that rank.

    Lateness is behind the others' arrival (their median), which is when they had launched the collective and its data
    was ready, not its start: a collective that queues behind one which itself waited for the late rank would hide the
    lateness. Until the others' data come from work that waited for the rank, they are ahead of it by the lateness of
    before, so that only what is added counts; and a waiting collective slows their kernels, so lateness never shrinks.
    """
    trace = context.trace
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    members = context.timed.filter(pl.col("ready_ns").is_not_null(), pl.col("ready_peers").is_null())
    member = members["event"].to_numpy()
    communication = (trace.events["class"] == "communication").to_numpy()
    ahead = graph.queues.before[member]
    ahead = np.where(communication[ahead], -1, ahead)
    call = graph.lines.launcher[member]
    ready = np.full(member.size, -1, dtype=np.int64)
    for row, times in ((graph.queues.awaited[member], end), (ahead, end), (call, graph.lines.end)):
        if times.size:
            ready = np.maximum(ready, np.where(row >= 0, times[np.maximum(row, 0)], -1))
    behind = np.full(member.size, NEVER, dtype=np.int64)
    for row in (graph.queues.awaited[member], ahead):
        behind = np.maximum(behind, np.where(row >= 0, graph.queues.behind_ns[np.maximum(row, 0)], NEVER))
    # What a node of a CUDA graph waited for is not known.
    known = (ready >= 0) & ~trace.events["in_graph"].gather(member).fill_null(False).to_numpy()
    arrival = np.where(known, np.minimum(ready, start[member]), start[member])
    arriver = graph.last[member]
    turn = ("last_rank", "step")
    others = (
        members.with_columns(
            arrival=arrival,
            behind=behind,
            arriver=arriver,
            step=context.attribution.step[arriver],
            ready=start[arriver],
        )
        .filter(pl.col("event") != pl.col("arriver"))
        .group_by("arriver", "last_rank", "step", "ready")
        .agg(
            skew=pl.col("ready").first() - pl.col("arrival").median().cast(pl.Int64),
            behind=pl.col("behind").max(),
        )
        .sort("last_rank", "step", "ready", "arriver")
        .with_columns(earlier=pl.col("ready").shift().over(turn).fill_null(NEVER))
        .with_columns(chain=(pl.col("behind") >= pl.col("earlier")).cum_sum().over(turn))
        .with_columns(
            most=pl.col("skew").cum_max().over(*turn, "chain"),
            since=pl.col("earlier").first().over(*turn, "chain"),
        )
        .with_columns(lateness=pl.col("most") - pl.col("most").shift(fill_value=0).over(*turn, "chain"))
        .filter(pl.col("skew") > LATENCY_NS, pl.col("lateness") > 0)
        .cast({"last_rank": pl.Int64})
    )
    met = _met(pieces, others)
    pauses: dict[tuple[int, int], list[list[int]]] = {}
    for on, rank, first, last in (
        pieces.filter("is_long").select("path", "rank", "start_ns", "end_ns").iter_rows()
    ):
        pauses.setdefault((on, rank), []).append([first, last, last])
    spans = [
        (on, *span, rank)
        for on, rank, since, ready, lateness in met.select(
            "path", "last_rank", "since", "ready", "lateness"
        ).iter_rows()
        for span in _made_in(pauses.get((on, rank), []), since, ready, lateness)
    ]
    table = np.array(spans, dtype=np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _met(pieces: pl.DataFrame, arrivals: pl.DataFrame) -> pl.DataFrame:
    """The arrivals (``ready``, ``last_rank``) at which a path is on the rank that arrives, with that ``path``."""
    path, start = pieces["path"].to_numpy(), pieces["start_ns"].to_numpy()
    rank = pieces["rank"].fill_null(-1).to_numpy()
    firsts = np.flatnonzero(np.append(True, path[1:] != path[:-1])) if path.size else path
    lasts = np.append(firsts, path.size)[1:] - 1
    arrivals = arrivals.sort("ready", "arriver")
    ready = arrivals["ready"].to_numpy()
    low = np.searchsorted(ready, start[firsts], side="right")
    count = np.searchsorted(ready, pieces["end_ns"].to_numpy()[lasts], side="right") - low
    on = np.repeat(np.arange(firsts.size), count)
    row = np.arange(on.size) + np.repeat(low - np.cumsum(count) + count, count)
    # (path, time) is one ascending number, since paths follow each other.
    zero = int(min(start.min(initial=0), ready.min(initial=0)))
    width = int(max(start.max(initial=0), ready.max(initial=0))) - zero + 1
    begins = np.repeat(np.arange(firsts.size), lasts - firsts + 1) * width + (start - zero)
    piece = np.searchsorted(begins, on * width + (ready[row] - zero), side="left") - 1
    here = np.flatnonzero(rank[piece] == arrivals["last_rank"].to_numpy()[row])
    met: pl.DataFrame = arrivals[row[here]].with_columns(path=pl.Series(path[firsts][on[here]]))
    return met


def _made_in(pauses: list[list[int]], since: int, ready: int, lateness: int) -> Iterator[tuple[int, int]]:
    """Where a rank was held up before ``ready``: in its host's long pauses, the latest first, then just before.

    ``pauses``: start, end and end of what is left of each; what is taken is cut off, for the next lateness.
    """
    before = [pause for pause in reversed(pauses) if since < pause[1] <= ready]
    for pause in before:
        taken = min(lateness, pause[2] - pause[0])
        if taken:
            yield pause[2] - taken, pause[2]
            pause[2] -= taken
            lateness -= taken
    held_up = ready - lateness
    for first, last, _ in before:
        if last > held_up:
            held_up -= last - first
    if lateness:
        yield held_up, ready
