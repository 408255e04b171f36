"""Why did the device not run what was ready: another process, or one hardware queue for all streams?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.join.sharing import ranks_of_one_gpu
from nsysddp.model.intervals import Intervals
from nsysddp.model.schema import CLASSES
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_NEXT_NS = 20 * NS_PER_US
"""What was held behind an event starts within this time of that event's start."""

_FEW_STEPS, _UNEVEN = 3, 1.5
"""Kernels are uneven if over at least so many steps the longest is so many times the shortest."""


def sharing_ranks(trace: Trace) -> dict[int, list[int]]:
    """Ranks that run on the same physical GPU as another: for each the others."""
    return {
        rank: [other for other in group if other != rank]
        for group in ranks_of_one_gpu(trace.ranks)
        for rank in group
    }


def other_process_ran(context: Context, parts: pl.DataFrame) -> Flags:
    """Did another process run work on the rank's GPU for most of each part?"""
    rank = parts["rank"].fill_null(-1).to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    ran = np.zeros(parts.height, dtype=bool)
    for number, busy in busy_by_others(context.trace).items():
        mine = np.flatnonzero(rank == number)
        ran[mine] = 2 * busy.length_within(start[mine], end[mine]) > end[mine] - start[mine]
    return ran


def busy_by_others(trace: Trace) -> dict[int, Intervals]:
    """For each rank that shares its GPU when another process ran work there."""
    made = {}
    for rank, others in sharing_ranks(trace).items():
        busy = Intervals.empty()
        for other in others:
            busy = busy | trace.union(other, CLASSES)
        made[rank] = busy
    return made


def lengthened_by_others(context: Context, parts: pl.DataFrame) -> Floats:
    """How much of each part of computation beside another process's work is that process's, in ns.

    The length of a kernel holds the slices of time that the other process got. What it takes by itself is not more than
    the shortest of its executions in the same place of the steps.
    """
    trace = context.trace
    cost = np.zeros(parts.height)
    shared = busy_by_others(trace)
    if not shared:
        return cost
    place = pl.col("start_ns").rank("ordinal").over("rank", "step", "name")
    shortest = pl.col("length").min().over("rank", "name", "place")
    table = trace.events.select("rank", "name", "start_ns", length=pl.col("end_ns") - pl.col("start_ns"))
    table = table.with_columns(step=pl.Series(context.attribution.step)).with_columns(place=place)
    lost = table.select(1 - shortest / pl.col("length").clip(lower_bound=1)).to_series().to_numpy()
    rank, event = parts["rank"].fill_null(-1).to_numpy(), parts["event"].fill_null(-1).to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    computing = parts["kind"].cast(pl.String).is_in(["compute", "spin"]).to_numpy()
    for number, busy in shared.items():
        mine = np.flatnonzero((rank == number) & computing)
        cost[mine] = lost[event[mine]] * busy.length_within(start[mine], end[mine])
    return cost


def held_behind_compute(context: Context, parts: pl.DataFrame) -> Flags:
    """Did each delayed event begin only when all that was launched before it had begun, on any stream?

    So it is where all streams share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1): then all events of the rank
    begin in the order of their launch.
    """
    trace = context.trace
    event = parts["event"].fill_null(-1).to_numpy()
    held = np.zeros(parts.height, dtype=bool)
    if trace.launches is None:
        return held
    rank = parts["rank"].fill_null(-1).to_numpy()
    for number in trace.rank_numbers:
        mine = np.flatnonzero((rank == number) & (event >= 0))
        first, _ = trace.rows_of(number)
        begun, is_ordered = _begun_before(context, number)
        if is_ordered and mine.size:
            start = trace.events["start_ns"].to_numpy()[event[mine]]
            behind = start - begun[event[mine] - first]
            held[mine] = (behind >= 0) & (behind <= _NEXT_NS)
    return held


def _begun_before(context: Context, rank: int) -> tuple[Ints, bool]:
    """When the last of what was launched before each event had begun; and whether all begin in order of launch."""
    trace = context.trace
    assert trace.launches is not None
    first, last = trace.rows_of(rank)
    start = trace.events_of(rank)["start_ns"].to_numpy()
    stream = trace.events_of(rank)["stream"].to_numpy()
    launch = trace.launches.slice(first, last - first)["launch_ns"]
    order = np.argsort(launch.fill_null(np.iinfo(np.int64).max).to_numpy(), kind="stable")
    order = order[launch.is_not_null().to_numpy()[order]]
    begun = np.full(start.size, np.iinfo(np.int64).min // 2, dtype=np.int64)
    if order.size < 2:
        return begun, False
    latest = np.maximum.accumulate(start[order])
    begun[order[1:]] = latest[:-1]
    late = start[order[1:]] < latest[:-1]
    changes = stream[order[1:]] != stream[order[:-1]]
    return begun, bool(changes.any() and late.mean() < 0.001)


def uneven_kernels(context: Context) -> tuple[int, str, int, int] | None:
    """Do kernels of one place in the step take much longer in some steps than in others, with nothing beside them?

    Another process on the GPU leaves no other mark in a capture of one.

    Returns:
        Rank, name, shortest and longest of the kernel that takes most time; None unless such kernels make up a third of
        a rank's computing.
    """
    trace = context.trace
    kernels = (
        pl.concat(trace.each_rank(lambda rank: _by_place(context, rank)))
        .with_columns(total_of_rank=pl.col("total").sum().over("rank"))
        .filter(
            pl.col("steps") >= _FEW_STEPS,
            pl.col("beside") == 0,
            pl.col("longest") >= _UNEVEN * pl.col("shortest"),
        )
        .with_columns(share=pl.col("total").sum().over("rank") / pl.col("total_of_rank"))
        .filter(pl.col("share") >= 1 / 3)
        .sort("total", "rank", "name", "place", descending=[True, False, False, False])
    )
    if kernels.is_empty():
        return None
    first = kernels.row(0, named=True)
    return first["rank"], trace.names["text"][first["name"]], first["shortest"], first["longest"]


def _by_place(context: Context, rank: int) -> pl.DataFrame:
    """What the kernels of a rank in one place of the steps took, over the steps that are no warm-up."""
    trace, (first, last) = context.trace, context.trace.rows_of(rank)
    warm = [window.step for window in context.every_window.windows if window.is_warmup]
    step = context.attribution.step[first:last]
    chosen = np.flatnonzero(trace.is_class(rank, ["compute"]) & (step >= 0) & ~np.isin(step, warm))
    events = trace.events_of(rank).select("name", "start_ns", "end_ns")[chosen]
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    communication = trace.union(rank, ["communication"])
    return (
        events.with_columns(step=pl.Series(step[chosen]))
        .select(
            "name",
            place=pl.col("start_ns").rank("ordinal").over("step", "name"),
            length=pl.col("end_ns") - pl.col("start_ns"),
            beside=pl.Series(communication.length_within(start, end)),
        )
        .group_by("name", "place")
        .agg(
            steps=pl.len(),
            shortest=pl.col("length").min(),
            longest=pl.col("length").max(),
            total=pl.col("length").sum(),
            beside=pl.col("beside").sum(),
        )
        .with_columns(rank=pl.lit(rank, pl.Int64))
    )
