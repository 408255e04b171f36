"""How many events were launched and had not started, over time? Depth = launched (the call returned), not started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.questions.idle.tables import LAUNCH_QUEUE, LAUNCH_QUEUE_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]


def launch_queue(context: Context, windows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Depth over time of every rank, and its summary of every window."""
    trace = context.trace
    if trace.launches is None:
        return LAUNCH_QUEUE.empty(), LAUNCH_QUEUE_STEP.empty()
    changes, summaries = [], []
    for rank in trace.rank_numbers:
        first, last = trace.rows_of(rank)
        events = trace.events_of(rank)
        launches = trace.launches.slice(first, last - first)
        known = launches["launch_ns"].is_not_null().to_numpy() & _opens_launch(events)
        start = events["start_ns"].to_numpy()
        launched = np.minimum(launches["launch_end_ns"].fill_null(0).to_numpy(), start)
        time, depth = _depth(launched[known], start[known])
        changes.append(pl.DataFrame({"rank": np.full(time.size, rank), "time_ns": time, "depth": depth}))
        mine = windows.filter(pl.col("rank") == rank)
        opens, closes = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        area = _area(time, depth, closes) - _area(time, depth, opens)
        ahead = Intervals.union_of(launched[known], start[known]).length_within(opens, closes)
        begins = start[launches["launch_ns"].is_null().to_numpy()]
        summaries.append(
            mine.with_columns(
                mean_depth=pl.Series(area) / (pl.col("end_ns") - pl.col("start_ns")),
                max_depth=pl.Series(_highest(time, depth, opens, closes)),
                empty_ns=pl.col("end_ns") - pl.col("start_ns") - pl.Series(ahead),
                unlaunched=pl.Series(np.searchsorted(begins, closes) - np.searchsorted(begins, opens)),
            ).with_columns(mean_depth=pl.when(pl.col("end_ns") > pl.col("start_ns")).then("mean_depth"))
        )
    return LAUNCH_QUEUE.check(pl.concat(changes)), LAUNCH_QUEUE_STEP.check(pl.concat(summaries))


def _opens_launch(events: pl.DataFrame) -> Flags:
    """Events that count as a launch of their own: of the nodes of a CUDA graph the first of each launch."""
    in_graph = events["in_graph"].fill_null(False).to_numpy()
    opens = ~in_graph
    nodes = np.flatnonzero(in_graph)
    _, heads = np.unique(events["correlation"].to_numpy()[nodes], return_index=True)
    opens[nodes[heads]] = True
    return opens


def _depth(launched: Ints, started: Ints) -> tuple[Ints, Ints]:
    """Times at which the depth changes, and the depth from each on."""
    time = np.concatenate([launched, started])
    order = np.argsort(time, kind="stable")
    delta = np.where(order < launched.size, 1, -1)
    time, depth = time[order], np.cumsum(delta)
    last = np.append(time[1:] != time[:-1], True) if time.size else np.empty(0, dtype=bool)
    time, depth = time[last], depth[last]
    changed = np.concatenate([[True], depth[1:] != depth[:-1]]) if depth.size else np.empty(0, dtype=bool)
    assert not depth.size or (depth.min() >= 0 and depth[-1] == 0)
    return time[changed], depth[changed].astype(np.int64)


def _area(time: Ints, depth: Ints, at: Ints) -> Ints:
    """Integral of the depth up to each instant."""
    if not time.size:
        return np.zeros(at.shape, dtype=np.int64)
    whole = np.concatenate([[0], np.cumsum(depth[:-1] * np.diff(time))])
    place = np.searchsorted(time, at, side="right") - 1
    inside = whole[np.maximum(place, 0)] + depth[np.maximum(place, 0)] * (at - time[np.maximum(place, 0)])
    return np.where(place < 0, 0, inside)


def _highest(time: Ints, depth: Ints, opens: Ints, closes: Ints) -> Ints:
    """Largest depth inside each window."""
    first = np.searchsorted(time, opens, side="right") - 1
    last = np.searchsorted(time, closes, side="left")
    return np.array(
        [
            int(depth[max(a, 0) : b].max(initial=0)) if b > a and high > low else 0
            for a, b, low, high in zip(
                first.tolist(), last.tolist(), opens.tolist(), closes.tolist(), strict=True
            )
        ],
        dtype=np.int64,
    )
