"""Why did the device not run what was ready: another process, or one hardware queue for all streams?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.model.schema import CLASSES
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_NEXT_NS = 20 * NS_PER_US
"""What was held behind an event starts within this time of that event's start."""


def sharing_ranks(context: Context) -> dict[int, list[int]]:
    """Ranks that run on the same physical GPU as another: for each the others."""
    known = context.trace.ranks.filter(pl.col("gpu_uuid").is_not_null())
    rows = known.select("rank", "gpu_uuid").iter_rows()
    by_gpu: dict[str, list[int]] = {}
    for rank, uuid in rows:
        by_gpu.setdefault(uuid, []).append(int(rank))
    return {
        rank: [other for other in ranks if other != rank]
        for ranks in by_gpu.values()
        if len(ranks) > 1
        for rank in ranks
    }


def other_process_ran(context: Context, parts: pl.DataFrame) -> Flags:
    """Did another process run work on the rank's GPU for most of each part?"""
    rank = parts["rank"].fill_null(-1).to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    ran = np.zeros(parts.height, dtype=bool)
    for number, others in sharing_ranks(context).items():
        mine = np.flatnonzero(rank == number)
        busy = Intervals.empty()
        for other in others:
            busy = busy | context.trace.union(other, CLASSES)
        ran[mine] = 2 * busy.length_within(start[mine], end[mine]) > end[mine] - start[mine]
    return ran


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
