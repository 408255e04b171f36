"""In which order did work enter the GPU's queues, and for which events does a recorded CUDA event stand?

A *queue* is (process, context, stream): the device number takes no part, because synchronisation rows report
device 0 on every rank. A queue holds events, records and waits in the order in which the host enqueued them; its
events also ran in that order, so the order of their starts is the order of enqueueing.

A *record* stands for the last event of its queue and, through every wait enqueued there since that event, for what
those waits stand for. A queue that never holds an event (NCCL's side stream) thus passes on what it waited for.

                 e1        r1                        r1 stands for e1
    stream 7   ──███████───◆─────────────────
                            ╲ w1       r2            r2 stands for what w1 stands for: e1
    stream 14  ─────────────◇─────────◆──────
                                       ╲ w2   e2     e2 may start when e1 has ended
    stream 17  ────────────────────────◇──███
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).min
"""Earlier than any time of a trace."""

RECORD, WAIT, MARK = 0, 1, 2
"""What an operation does to its queue: record an event, wait for one, or ask what is enqueued so far."""


def running_latest(end: Ints) -> Ints:
    """Index of the latest end so far, at each position (of equal ends the later one)."""
    if not end.size:
        return np.empty(0, dtype=np.int64)
    reach = np.maximum.accumulate(end)
    return np.maximum.accumulate(np.where(end == reach, np.arange(end.size), 0))


@dataclass(frozen=True)
class Queues:
    """The order of the events in every queue, and what the queue operations stand for.

    Attributes:
        before: for each event the event ahead of it in its queue that ended last, -1 if none; shape (events,).
        awaited: for each event the latest-ending event that the waits enqueued directly ahead of it stand for,
            -1 if none; shape (events,).
        awaited_work: the same of events other than communication: NCCL makes each of its kernels wait for the one
            before, which says nothing about when the data was ready; shape (events,).
        behind_ns: end of the latest collective that the event, what is ahead of it in its queue or what these wait
            for had to wait for; NEVER if none; shape (events,).
        value: for each operation the latest-ending event that it stands for, -1 if none; shape (operations,).
        inside_graph: the event is a node of a CUDA graph and not the first of its launch to run: nothing is known
            about what it waited for inside the graph; shape (events,).
        waits: stream waits seen.
        unresolved_waits: of those, the ones whose record is not in the capture or could not be placed.
        empty_waits: of those, the ones whose record stands for nothing, since it was made before any event.
    """

    before: Ints
    awaited: Ints
    awaited_work: Ints
    behind_ns: Ints
    value: Ints
    inside_graph: NDArray[np.bool_]
    waits: int
    unresolved_waits: int
    empty_waits: int


def queue_keys(process: Ints, context: Ints, stream: Ints) -> Ints:
    """One number per queue: equal if and only if process, context and stream are."""
    return (process << 48) | ((context & 0xFFFF) << 32) | (stream & 0xFFFFFFFF)


def event_queues(trace: Trace) -> Ints:
    """The queue of each event, shape (events,)."""
    ranks = trace.events["rank"].to_numpy()
    process = np.zeros(ranks.size, dtype=np.int64)
    for rank in trace.rank_numbers:
        first, last = trace.rows_of(rank)
        process[first:last] = trace.process_of_rank[rank]
    return queue_keys(
        process,
        trace.events["context"].cast(pl.Int64).to_numpy(),
        trace.events["stream"].cast(pl.Int64).to_numpy(),
    )


def follow_queues(
    trace: Trace, operations: pl.DataFrame, *, pass_through: bool = True, order_in_graphs: bool = False
) -> Queues:
    """What was ahead of each event in its queue, and what each record, wait and mark stands for.

    Args:
        trace: events with their launches.
        operations: one row per operation on a queue, ordered by process and time: ``process``, ``context``,
            ``stream``, ``time_ns`` (start of the call that enqueued it), ``operation`` (RECORD, WAIT, MARK) and
            ``sync_id`` (null if none).
        pass_through: a record also stands for what its queue waited for since its last event.
        order_in_graphs: take the nodes of a CUDA graph for ordered by their stream, which they are not.
    """
    events = trace.events
    count = events.height
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    queue = event_queues(trace)
    order = np.lexsort((end, start, queue))  # row numbers, queue by queue in order of start
    keys, firsts = np.unique(queue[order], return_index=True)
    bounds = np.append(firsts, count)

    head = _heads_of_graph_launches(events, order, firsts, order_in_graphs=order_in_graphs)
    launch = _launch_times(trace)
    enqueued = np.empty(count, dtype=np.int64)  # along `order`: never before what is ahead in the queue
    latest = np.empty(count, dtype=np.int64)  # along `order`: row of the latest-ending event so far
    for first, last in pairwise(bounds.tolist()):
        rows = order[first:last]
        enqueued[first:last] = np.maximum.accumulate(launch[rows])
        latest[first:last] = rows[running_latest(end[rows])]
    first_of_queue = np.repeat(firsts, np.diff(bounds))
    ahead = np.where(head > first_of_queue, latest[head - 1], -1) if count else latest

    communicates = (events["class"] == "communication").to_numpy()
    value, held, counts = _resolve(
        operations, keys, bounds, enqueued, latest, end, communicates, pass_through=pass_through
    )
    before = np.full(count, -1, dtype=np.int64)
    before[order] = ahead
    awaited = np.full((2, count), -1, dtype=np.int64)
    awaited[:, order] = held[:, head] if count else held
    inside = np.zeros(count, dtype=bool)
    inside[order] = head < np.arange(count)
    behind = _collectives_behind(order, bounds, awaited[0], communicates, end)
    return Queues(before, awaited[0], awaited[1], behind, value, inside, *counts)


def _collectives_behind(
    order: Ints, bounds: Ints, awaited: Ints, communicates: NDArray[np.bool_], end: Ints
) -> Ints:
    """``Queues.behind_ns``: along the queues, then over the waits for other work, until nothing is added."""
    own = np.where(communicates, end, NEVER).astype(np.int64)
    waiting = np.flatnonzero(awaited >= 0)
    collective = waiting[communicates[awaited[waiting]]]
    own[collective] = np.maximum(own[collective], end[awaited[collective]])
    through = waiting[~communicates[awaited[waiting]]]
    while True:
        behind: Ints = own.copy()
        for first, last in pairwise(bounds.tolist()):
            rows = order[first:last]
            behind[rows] = np.maximum.accumulate(own[rows])
        passed_on = np.maximum(own[through], behind[awaited[through]])
        if (passed_on == own[through]).all():
            return behind
        own[through] = passed_on


def _heads_of_graph_launches(
    events: pl.DataFrame, order: Ints, firsts: Ints, *, order_in_graphs: bool
) -> Ints:
    """For each position in queue order, the position of the first node of its graph launch (itself if no node)."""
    count = order.size
    in_graph = events["in_graph"].fill_null(False).to_numpy()[order]
    if order_in_graphs or not in_graph.any():
        return np.arange(count)
    correlation = events["correlation"].to_numpy()[order]
    opens = np.ones(count, dtype=bool)
    opens[1:] = ~(in_graph[1:] & in_graph[:-1] & (correlation[1:] == correlation[:-1]))
    opens[firsts] = True
    return np.maximum.accumulate(np.where(opens, np.arange(count), 0))


def _launch_times(trace: Trace) -> Ints:
    """Start of each event's launch call; NEVER where it has none, so that its queue neighbours decide."""
    if trace.launches is None:
        return np.full(trace.events.height, NEVER, dtype=np.int64)
    return trace.launches["launch_ns"].fill_null(NEVER).to_numpy()


def _resolve(
    operations: pl.DataFrame,
    keys: Ints,
    bounds: Ints,
    enqueued: Ints,
    latest: Ints,
    end: Ints,
    communicates: NDArray[np.bool_],
    *,
    pass_through: bool,
) -> tuple[Ints, Ints, tuple[int, int, int]]:
    """What every operation stands for, what each event's own waits stand for, and the counts of waits.

    Of each event twice: of everything that it waits for, and of work other than communication; shape (2, events).

    An operation stands for two things: the queue's latest-ending event so far (a lookup), and what the waits since
    that queue's last event stand for (``pending``, carried along in host order, because it can hang on waits that
    hang on records that hang on waits ...).
    """
    process = operations["process"].cast(pl.Int64).to_numpy()
    key = queue_keys(process, operations["context"].to_numpy(), operations["stream"].to_numpy())
    time = operations["time_ns"].to_numpy()
    size = key.size

    code = np.searchsorted(keys, key)
    code[code == keys.size] = 0
    known = keys[code] == key if keys.size else np.zeros(size, dtype=bool)
    place = np.zeros(size, dtype=np.int64)  # position in queue order of the first event enqueued after it
    by_queue = np.argsort(np.where(known, code, -1), kind="stable")
    edges = np.searchsorted(np.where(known, code, -1)[by_queue], np.arange(keys.size + 1))
    for index in range(keys.size):
        mine = by_queue[edges[index] : edges[index + 1]]
        first, last = bounds[index], bounds[index + 1]
        place[mine] = first + np.searchsorted(enqueued[first:last], time[mine], side="left")
    base = np.full(size, -1, dtype=np.int64)
    if keys.size:
        behind = known & (place > bounds[code])
        base[behind] = latest[place[behind] - 1]
    # A queue without events gets a code of its own; its place never changes.
    strangers, stranger = np.unique(key[~known], return_inverse=True)
    lane = code.copy()
    lane[~known] = keys.size + stranger

    follows = known & (place < bounds[1:][code]) if keys.size else known  # is there an event behind it?

    value = [-1] * size
    held = np.full((2, end.size), -1, dtype=np.int64)
    held_any, held_work = memoryview(held[0].data), memoryview(held[1].data)
    ends = memoryview(np.ascontiguousarray(end).data)
    is_work = (~communicates).tolist()
    seen = [-1] * (keys.size + strangers.size)
    pending = [-1] * (keys.size + strangers.size)
    work = [-1] * (keys.size + strangers.size)
    waits = unresolved = empty = 0
    rows = zip(
        operations["operation"].to_list(),
        lane.tolist(),
        place.tolist(),
        follows.tolist(),
        base.tolist(),
        _record_of(operations).tolist(),
        strict=True,
    )
    for index, (what, at, position, has_follower, own, source) in enumerate(rows):
        if seen[at] != position:
            seen[at] = position
            pending[at] = work[at] = -1
        through = pending[at]
        if what != WAIT:
            later = pass_through and through >= 0 and (own < 0 or ends[through] > ends[own])
            value[index] = through if later else own
            continue
        waits += 1
        target = value[source] if source >= 0 else -1
        unresolved += source < 0
        empty += source >= 0 and target < 0
        value[index] = target
        if target < 0:
            continue
        if through < 0 or ends[target] >= ends[through]:
            pending[at] = target
            if has_follower:
                held_any[position] = target
        if is_work[target] and (work[at] < 0 or ends[target] >= ends[work[at]]):
            work[at] = target
            if has_follower:
                held_work[position] = target
    return np.asarray(value, dtype=np.int64), held, (waits, unresolved, empty)


def _record_of(operations: pl.DataFrame) -> Ints:
    """For each wait the operation that recorded what it waits for, joined on (process, sync id); -1 if none."""
    numbered = operations.with_row_index("index")
    records = numbered.filter(pl.col("operation") == RECORD, pl.col("sync_id").is_not_null())
    joined = numbered.join(
        records.select("process", "sync_id", source=pl.col("index").cast(pl.Int64)).unique(
            ["process", "sync_id"], keep="none"
        ),
        on=["process", "sync_id"],
        how="left",
        maintain_order="left",
    )
    source = joined["source"].fill_null(-1)
    return np.where((joined["operation"] == WAIT).to_numpy(), source.to_numpy(), -1)
