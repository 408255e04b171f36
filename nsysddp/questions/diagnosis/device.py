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
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_NEXT_NS = 20 * NS_PER_US
"""What was held behind an event starts within this time of that event's start."""

_FEW_EARLIER = 0.001
"""Events begin in the order of their launch if less than this share of them begins before one launched earlier."""

_FEW_STEPS, _UNEVEN = 3, 1.5
"""Kernels are uneven if over at least so many steps the longest is so many times the shortest."""


def sharing_ranks(trace: Trace) -> dict[int, list[int]]:
    """Ranks that run on the same physical GPU as another: for each the others."""
    return {
        rank: [other for other in group if other != rank]
        for group in ranks_of_one_gpu(trace.ranks)
        for rank in group
    }


def mostly_within(held: Mapping[int, Intervals], parts: pl.DataFrame) -> Flags:
    """Which parts of a path lie mostly in what is held of their rank?"""
    rank = parts["rank"].fill_null(-1).to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    inside = np.zeros(parts.height, dtype=bool)
    for number, own in held.items():
        mine = np.flatnonzero(rank == number)
        inside[mine] = 2 * own.length_within(start[mine], end[mine]) > end[mine] - start[mine]
    return inside


def busy_by_others(trace: Trace) -> dict[int, Intervals]:
    """For each rank that shares its GPU: when another process ran work there."""
    made = {}
    for rank, others in sharing_ranks(trace).items():
        busy = Intervals.empty()
        for other in others:
            busy = busy | trace.union(other, CLASSES)
        made[rank] = busy
    return made


def longer_than_shortest(context: Context) -> Floats:
    """By what share of itself each event is longer than the shortest in its place of the steps; shape (events,).

    The length of a kernel holds the slices of time that another process got. What it takes by itself is not more than
    the shortest of its executions in the same place.
    """
    place = pl.col("start_ns").rank("ordinal").over("rank", "step", "name")
    shortest = pl.col("length").min().over("rank", "name", "place")
    table = context.trace.events.select(
        "rank", "name", "start_ns", length=pl.col("end_ns") - pl.col("start_ns")
    )
    table = table.with_columns(step=pl.Series(context.attribution.step)).with_columns(place=place)
    share: Floats = table.select(1 - shortest / pl.col("length").clip(lower_bound=1)).to_series().to_numpy()
    return share


def lengthened_by_others(busy: Mapping[int, Intervals], longer: Floats, parts: pl.DataFrame) -> Floats:
    """How much of each part of computation beside another process's work is that process's, in ns.

    Args:
        busy: of ``busy_by_others``.
        longer: of ``longer_than_shortest``.
        parts: of paths.
    """
    cost = np.zeros(parts.height)
    rank, event = parts["rank"].fill_null(-1).to_numpy(), parts["event"].fill_null(-1).to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    computing = parts["kind"].is_in(["compute", "spin"]).to_numpy()
    for number, own in busy.items():
        mine = np.flatnonzero((rank == number) & computing)
        cost[mine] = longer[event[mine]] * own.length_within(start[mine], end[mine])
    return cost


def held_behind_compute(trace: Trace, begun: Mapping[int, Ints], parts: pl.DataFrame) -> Flags:
    """Did each delayed event begin only when all that was launched before it had begun, on any stream?

    So it is where all streams share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1): then all events of the rank
    begin in the order of their launch.

    Args:
        trace: the run.
        begun: of ``begun_in_order``.
        parts: of paths.
    """
    event, rank = parts["event"].fill_null(-1).to_numpy(), parts["rank"].fill_null(-1).to_numpy()
    held = np.zeros(parts.height, dtype=bool)
    for number, latest in begun.items():
        mine = np.flatnonzero((rank == number) & (event >= 0))
        start = trace.events["start_ns"].to_numpy()[event[mine]]
        behind = start - latest[event[mine] - trace.rows_of(number)[0]]
        held[mine] = (behind >= 0) & (behind <= _NEXT_NS)
    return held


def begun_in_order(trace: Trace) -> dict[int, Ints]:
    """When the last of what was launched before each event had begun, of ranks whose events begin in that order."""
    if trace.launches is None:
        return {}
    begun = ((rank, _begun_before(trace, rank)) for rank in trace.rank_numbers)
    return {rank: latest for rank, latest in begun if latest is not None}


def _begun_before(trace: Trace, rank: int) -> Ints | None:
    assert trace.launches is not None
    first, last = trace.rows_of(rank)
    start = trace.events_of(rank)["start_ns"].to_numpy()
    stream = trace.events_of(rank)["stream"].to_numpy()
    launch = trace.launches.slice(first, last - first)["launch_ns"]
    order = np.argsort(launch.fill_null(np.iinfo(np.int64).max).to_numpy(), kind="stable")
    order = order[launch.is_not_null().to_numpy()[order]]
    latest = np.maximum.accumulate(start[order])
    late = start[order[1:]] < latest[:-1]
    changes = stream[order[1:]] != stream[order[:-1]]
    if not changes.any() or late.mean() >= _FEW_EARLIER:
        return None
    begun = np.full(start.size, np.iinfo(np.int64).min // 2, dtype=np.int64)
    begun[order[1:]] = latest[:-1]
    return begun


def uneven_kernels(context: Context) -> tuple[int, str, int, int] | None:
    """Do kernels of one place in the step take much longer in some steps than in others, with nothing beside them?

    Another process on the GPU leaves no other mark in a capture of one.

    Returns:
        Rank, name, shortest and longest of the kernel that takes most time; None unless such kernels make up a third of
        a rank's computing.
    """
    trace = context.trace
    kernels = pl.concat(trace.each_rank(lambda rank: _uneven(context, rank))).sort(
        "total", "rank", "name", "place", descending=[True, False, False, False]
    )
    if kernels.is_empty():
        return None
    first = kernels.row(0, named=True)
    return first["rank"], trace.names["text"][first["name"]], first["shortest"], first["longest"]


def _uneven(context: Context, rank: int) -> pl.DataFrame:
    """The uneven kernels of a rank; none unless they make up a third of its computing."""
    kernels = _by_place(context, rank)
    uneven = kernels.filter(
        pl.col("steps") >= _FEW_STEPS,
        pl.col("beside") == 0,
        pl.col("longest") >= _UNEVEN * pl.col("shortest"),
    )
    return uneven if 3 * int(uneven["total"].sum()) >= int(kernels["total"].sum()) else uneven.clear()


def _by_place(context: Context, rank: int) -> pl.DataFrame:
    """What the kernels of a rank in one place of the steps took, over the steps that are no warm-up."""
    trace, (first, last) = context.trace, context.trace.rows_of(rank)
    warm = [window.step for window in context.every_window.windows if window.is_warmup]
    step = context.attribution.step[first:last]
    chosen = np.flatnonzero(trace.is_class(rank, ["compute"]) & (step >= 0) & ~np.isin(step, warm))
    events = trace.events_of(rank)
    start, end = (events[name].to_numpy()[chosen] for name in ("start_ns", "end_ns"))
    name = events["name"].to_numpy()[chosen]
    beside = trace.union(rank, ["communication"]).length_within_each(start, end)
    run = name * (np.int64(step.max(initial=0)) + 1) + step[chosen]
    return (
        pl.DataFrame(
            {"name": name, "place": place_in_run(run), "length": end - start, "beside": beside},
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


def place_in_run(run: Ints) -> Rows:
    """The how manieth of its run each is, from 1; shape as given. What runs hold need not be together."""
    run = run.astype(
        np.min_scalar_type(int(run.max(initial=0)))
    )  # sorting small numbers takes a tenth of the time
    order = np.argsort(run, kind="stable")
    ordered = run[order]
    heads = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: run.size])
    place = np.empty(run.size, dtype=np.int32)
    place[order] = np.arange(1, run.size + 1) - np.repeat(heads, np.diff(np.append(heads, run.size)))
    return place
