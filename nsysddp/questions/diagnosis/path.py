"""The pieces of the critical paths of the steady steps, cut where a cause begins or ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS, Edge, Graph
from nsysddp.model.intervals import GroupedAxis, Intervals
from nsysddp.model.result import Result
from nsysddp.model.trace import whole_groups
from nsysddp.model.units import NS_PER_MS
from nsysddp.questions.diagnosis.lateness import OwnTime, Spans, lateness

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


_NEEDED = ("step_index", "path_rank", "start_ns", "end_ns", "kind", "via", "rank", "event", "name", "phase")

OPEN_KINDS = ("unmatched_communication", "wait", "unknown", "graph")
"""Kinds of pieces of which the trace cannot tell what they are there for."""

_SLACK = 0.01
"""Paths that leave open this share of the step more than another are as good."""

LONG_HOST_NS = NS_PER_MS
"""A single host piece longer than this is a cause of its own, whatever synchronisation preceded it (as in ``idle``)."""


def steady_paths(paths: Result) -> pl.DataFrame:
    """The steady steps' paths, numbered (``path``) in their order; of tied ones those that leave least open.

    With the number of ``paths`` of their step, and of ``steps``.
    """
    steady = paths["critical_path_step"].filter(~pl.col("is_warmup"))
    if steady.is_empty():
        steady = paths["critical_path_step"]
    # Of millions of pieces numbers take most of the memory: all of these are small.
    return (
        _best_resolved(paths, steady)
        .select(pl.col("step_index", "path_rank").cast(pl.Int32), pl.col("step").cast(pl.Categorical))
        .with_row_index("path")
        .with_columns(
            pl.col("path").cast(pl.Int32),
            paths=pl.len().over("step_index"),
            steps=pl.col("step_index").n_unique(),
        )
    )


def some_at_a_time(pieces: pl.DataFrame) -> list[pl.DataFrame]:
    """The table ``critical_path`` in parts of whole paths, since what is known of each piece takes much memory."""
    return whole_groups(pieces, ["path_rank", "step_index"], _PIECES_AT_A_TIME)


_PIECES_AT_A_TIME = 1 << 18
"""Pieces of paths that are given to causes together."""


def pieces_of(some: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """The pieces of those paths that are chosen, in order.

    With the number of their path (``path``), and whether they are one long piece of host time (``is_long``).
    """
    small = pl.col("step_index", "path_rank", "rank", "event").cast(pl.Int32)
    return (
        some.select(_NEEDED)
        .with_columns(small)
        .join(chosen, on=["step_index", "path_rank"], how="inner", nulls_equal=True, maintain_order="left")
        .with_columns(
            is_long=pl.col("kind").is_in(["host", "host_gap"])
            & (pl.col("end_ns") - pl.col("start_ns") > LONG_HOST_NS)
        )
        .drop("path_rank")
    )


def _best_resolved(paths: Result, steps: pl.DataFrame) -> pl.DataFrame:
    """Of a step's tied paths those that leave least open: all end together, so each says what bounds the step."""
    key = ["step_index", "path_rank"]
    left = (
        paths["critical_path_kind"]
        .filter(pl.col("kind").cast(pl.String).is_in(OPEN_KINDS))
        .group_by(key)
        .agg(open_ns=pl.col("duration_ns").sum())
    )
    known = steps.join(left, on=key, how="left", nulls_equal=True, maintain_order="left")
    known = known.with_columns(pl.col("open_ns").fill_null(0))
    least = pl.col("open_ns").min().over("step_index")
    return known.filter(pl.col("open_ns") <= least + _SLACK * pl.col("path_ns")).select(steps.columns)


def host_phases(context: Context, rank: Ints, start: Ints, end: Ints) -> pl.Series:
    """In which phase's range was the host in the middle of each span? In none: between which two; null without ranges.

    What the host did next belongs to the phase of what it launched then; what held it up lies before that.
    """
    phases = context.attribution.phases
    middle = start + (end - start) // 2
    found: list[str | None] = [None] * rank.size
    for number in np.unique(rank[rank >= 0]):
        process = context.trace.process_of_rank[int(number)]
        low, high = (phases["process"].search_sorted(process, side) for side in ("left", "right"))
        mine = phases.slice(low, high - low)
        names, opened, closed = (
            mine["phase"].to_list(),
            mine["start_ns"].to_numpy(),
            mine["end_ns"].to_numpy(),
        )
        rows = np.flatnonzero(rank == number)
        latest = np.searchsorted(opened, middle[rows], side="right") - 1
        for row, at in zip(rows.tolist(), latest.tolist(), strict=True):
            if at >= 0 and closed[at] > middle[row]:
                found[row] = names[at]
            elif 0 <= at < len(names) - 1:
                found[row] = f"between {names[at]} and {names[at + 1]}"
    return pl.Series("host_phase", found, dtype=pl.String)


def cut_at_causes(own: OwnTime, graph: Graph, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces, cut at the edges of lateness and of late launches.

    ``late``: whether the part lies in the lateness of its own rank. ``unlaunched``: the row of the collective that was
    ready on the GPU then, and not launched, -1 if none.
    """
    path = pieces["path"].to_numpy()
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    collective = pieces.filter(pl.col("kind") == "transfer")
    arriver = graph.last[collective["event"].to_numpy()]
    spans = [
        lateness(own, pieces),
        late_launches(graph, arriver, collective["path"].to_numpy()),
    ]
    # Cut points become parts of their pieces.
    edges = [(of, edge) for of, first, last, _ in spans for edge in (first, last)]
    times = np.concatenate([start, end, *(edge for _, edge in edges)])
    axis = GroupedAxis(times, int(path.max(initial=-1)) + 1)
    begins, ends = axis.place(path, start), axis.place(path, end)
    points = np.concatenate([begins, *(axis.place(of, edge) for of, edge in edges)])
    points = np.sort(points)
    points = points[np.diff(points, prepend=-1) > 0]
    owner = np.searchsorted(begins, points, side="right") - 1
    inside = (owner >= 0) & (points < ends[np.maximum(owner, 0)])
    points, owner = points[inside], owner[inside]
    tops = np.minimum(np.append(points[1:], np.iinfo(np.int64).max), ends[owner])
    late, unlaunched = (
        [axis.place(of, first), axis.place(of, last), what] for of, first, last, what in spans
    )
    rank = pieces["rank"].fill_null(-1).to_numpy()[owner]
    return (
        pieces[owner]
        .with_columns(start_ns=axis.value(points, path[owner]), end_ns=axis.value(tops, path[owner]))
        .with_columns(
            piece_start_ns=pl.Series(start[owner]),
            piece_end_ns=pl.Series(end[owner]),
            late=_covered_by_own(points, rank, *late),
            unlaunched=_covered(points, *unlaunched),
            is_first=np.append(True, owner[1:] != owner[:-1])[: owner.size],
        )
    )


def late_launches(graph: Graph, event: Ints, path: Ints) -> Spans:
    """From the end of what a collective on a path waited for to its start, where it was its launch that came last."""
    trace = graph.trace
    producer = graph.queues.awaited[event]
    late = (producer >= 0) & (graph.edge[event] == Edge.LAUNCH)
    event, path, producer = event[late], path[late], producer[late]
    first, last = trace.events["end_ns"].to_numpy()[producer], trace.events["start_ns"].to_numpy()[event]
    long = last - first > LATENCY_NS
    return path[long], first[long], last[long], event[long]


def _covered(points: Ints, start: Ints, end: Ints, value: Ints) -> Ints:
    """For each point the value of the last span that begins at or before it and holds it, -1 if none does."""
    found = np.full(points.size, -1, dtype=np.int64)
    for which in np.argsort(start, kind="stable"):
        first, last = np.searchsorted(points, (start[which], end[which]))
        found[first:last] = value[which]
    return found


def _covered_by_own(points: Ints, rank: Ints, start: Ints, end: Ints, owner: Ints) -> NDArray[np.bool_]:
    """For each point, which lies on a rank: does any span of that rank hold it?"""
    held = np.zeros(points.size, dtype=bool)
    for one in np.unique(owner):
        mine, asked = owner == one, np.flatnonzero(rank == one)
        late = Intervals.union_of(start[mine], end[mine])
        held[asked] = late.length_within(points[asked], points[asked] + 1) > 0
    return held
