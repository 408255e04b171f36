"""How much longer does each rank take than the others for the same piece of work?

A rank's *own line* is everything that it runs but communication, in order of start. Each event of it has two parts, which
tile the line: the gap ahead of it, and what it adds to the line. Of the gap only that counts which the rank did not
spend waiting for communication: neither waiting for others nor a slow transfer is a rank's own time::

    own line  ██ a ██|      gap      |██ b ██        gap of b = its length - waiting for communication
    waiting             ░░░░░░░

    longer(event, part) = own time of the part - median of the other ranks' for the same part

The same part: the n-th event of that name in that step, on all ranks that run as many of them. So what every rank does
alike is no rank's lateness, and neither clocks nor the time at which a rank got what it needed take part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.model.trace import Trace
    from nsysddp.questions.steps import Attribution

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

OWN = ("compute", "spin", "memory", "graph")
"""Classes of events that are a rank's own work."""


def longer_than_others(
    trace: Trace, attribution: Attribution, waiting: Mapping[int, Intervals]
) -> pl.DataFrame:
    """Both parts of every event of the own lines, against the median of the other ranks.

    Args:
        trace: the run.
        attribution: step of every event.
        waiting: per rank when it waited for communication (``waiting_in_gaps``, or its exposed communication).

    Returns:
        One row per event and part, ordered by rank and time: ``rank``, ``event``, ``is_gap``, ``start_ns``,
        ``end_ns``, ``own_ns`` and ``longer_ns``, which is null where no other rank runs the same.
    """
    lines = [_line(trace, attribution, rank, waiting.get(rank, Intervals.empty())) for rank in trace.rank_numbers]
    table = pl.concat(lines).with_columns(
        count=pl.len().over("rank", "step", "name"),
        place=pl.col("event").cum_count().over("rank", "step", "name"),
    )
    same = table.select(pl.struct("step", "name", "count", "place").rank("dense")).to_series().to_numpy()
    parts = []
    for is_gap, of in ((True, "gap"), (False, "run")):
        own = table[of].to_numpy()
        parts.append(
            table.select(
                "rank",
                "event",
                pl.lit(is_gap).alias("is_gap"),
                pl.col(f"{of}_start").alias("start_ns"),
                pl.col(f"{of}_end").alias("end_ns"),
                pl.col(of).alias("own_ns"),
                pl.Series("longer_ns", own - median_of_others(same, own)).round().cast(pl.Int64, strict=False),
            )
        )
    return pl.concat(parts).sort("rank", "end_ns", "start_ns", "event", maintain_order=True)


def _line(trace: Trace, attribution: Attribution, rank: int, waiting: Intervals) -> pl.DataFrame:
    """The own line of a rank."""
    first, _ = trace.rows_of(rank)
    events = trace.events_of(rank)
    rows = np.flatnonzero(trace.is_class(rank, OWN))
    start, end = events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows]
    order = np.lexsort((end, start))
    rows, start, end = rows[order], start[order], end[order]
    reach = np.maximum.accumulate(end) if end.size else end
    ahead = np.append(start[:1], reach[:-1])
    gap_start = np.minimum(ahead, start)
    run_start = np.clip(ahead, start, end)
    return pl.DataFrame(
        {
            "rank": np.full(rows.size, rank, dtype=np.int64),
            "event": first + rows,
            "step": attribution.step[first + rows].astype(np.int64),
            "name": events["name"].to_numpy()[rows].astype(np.int64),
            "gap_start": gap_start,
            "gap_end": start,
            "gap": start - gap_start - waiting.length_within(gap_start, start),
            "run_start": run_start,
            "run_end": end,
            "run": end - run_start,
        }
    )


def median_of_others(group: Ints, value: Ints) -> Floats:
    """For each value the median of the other values of its group, NaN where there is none; shape (values,)."""
    order = np.lexsort((value, group))
    ordered, groups = value[order], group[order]
    heads = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])) if groups.size else order
    size = np.diff(np.append(heads, groups.size))
    head, others = np.repeat(heads, size), np.repeat(size, size) - 1
    place = np.arange(groups.size) - head
    low, high = (others - 1) // 2, others // 2  # places among the others; a place at or behind its own is one further

    def at(middle: Ints) -> Ints:
        middle = np.maximum(middle, 0)
        return ordered[np.minimum(head + middle + (middle >= place), groups.size - 1)]

    median = np.where(others > 0, (at(low) + at(high)) / 2, np.nan)
    made = np.empty(groups.size)
    made[order] = median
    return made


def waiting_in_gaps(graph: Graph) -> dict[int, Intervals]:
    """Per rank: when, in the gaps of its own line, what came next hung on communication.

    Not whenever communication ran then: a host that launches late is late beside a collective too.
    """
    from nsysddp.questions.gaps import Gaps, pieces_of

    trace = graph.trace
    made = {}
    for rank in trace.rank_numbers:
        first, _ = trace.rows_of(rank)
        events = trace.events_of(rank)
        rows = np.flatnonzero(trace.is_class(rank, OWN))
        start, end = events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows]
        order = np.lexsort((end, start))
        rows, start, end = rows[order], start[order], end[order]
        ahead = np.append(start[:1], np.maximum.accumulate(end)[:-1]) if end.size else end
        real = np.flatnonzero(start > ahead)
        gaps = Gaps(
            rank=np.full(real.size, rank),
            window=np.zeros(real.size, dtype=np.int64),
            start=ahead[real],
            end=start[real],
            event=first + rows[real],
        )
        pieces = pieces_of(graph, gaps)
        node = np.clip(pieces.node, 0, graph.events - 1)
        communicates = (trace.events["class"] == "communication").to_numpy()
        waits = pieces.ran & (pieces.node >= 0) & (pieces.node < graph.events) & communicates[node]
        made[rank] = Intervals.union_of(pieces.start[waits], pieces.end[waits])
    return made
