"""Which events began only when the event launched before them had, on another queue? Streams that share one queue.

With CUDA_DEVICE_MAX_CONNECTIONS=1 all streams of a rank share one hardware queue: an event at its head that has to wait
holds back what was launched after it, whatever that itself waits for. No record or wait says so; it is inferred where
all events of a rank began in the order of their launch, and most of the delays that no recorded edge explains end when
the event launched before had begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

NEXT_NS = 20 * NS_PER_US
"""An event that was held back begins this soon after the one before it."""

_FEWEST_HELD = 3
_OVERTAKING = 0.001
"""Share of events that may begin before what was launched earlier: clocks and copies."""


def held_in_order(graph: Graph, unexplained: Flags) -> tuple[Ints, Ints]:
    """Pairs of events of ranks with one hardware queue: the one begins after the other, on another queue, has begun.

    Args:
        graph: of the trace.
        unexplained: the event began later than all recorded edges say; shape (events,).
    """
    events = graph.trace.events
    start, stream = events["start_ns"].to_numpy(), events["stream"].to_numpy()
    held, holder = [], []
    for rank in graph.trace.rank_numbers:
        first, last = graph.trace.rows_of(rank)
        launcher = graph.lines.launcher[first:last]
        order = first + np.argsort(launcher, kind="stable")[np.count_nonzero(launcher < 0) :]
        if order.size < 2:
            continue
        before, after = order[:-1], order[1:]
        if np.mean(start[after] < np.maximum.accumulate(start[before])) > _OVERTAKING:
            continue
        switches = (stream[after] != stream[before]) & (start[after] >= start[before])
        found = switches & unexplained[after] & (start[after] - start[before] <= NEXT_NS)
        if found.sum() >= max(_FEWEST_HELD, np.count_nonzero(unexplained[order]) / 2):
            held.append(after[switches])
            holder.append(before[switches])
    if not held:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate(held), np.concatenate(holder)
