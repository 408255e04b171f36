"""In which order did work enter the GPU's queues, and for which events does a recorded CUDA event stand?

A *queue* is (process, context, stream): the device number takes no part, because synchronisation rows report
device 0 on every rank. A queue holds events, records and waits in the order in which the host enqueued them; its
events also ran in that order, so the order of their starts is the order of enqueueing.

A *record* stands for the last event of its queue and, through every wait enqueued there since that event, for what
those waits stand for: a set of events, one a queue (of two events of one queue the later implies the earlier). A queue
that never holds an event (NCCL's side stream) thus passes on what it waited for.

                 e1        r1                        r1 stands for e1
    stream 7   ──███████───◆─────────────────
                            ╲ w1       r2            r2 stands for what w1 stands for: e1
    stream 14  ─────────────◇─────────◆──────
                                       ╲ w2   e2     e2 may start when e1 has ended
    stream 17  ────────────────────────◇──███

What an event waits for in its *own* queue is left out of what it awaits: the order of the queue says it already. NCCL
makes each of its kernels wait, through its side stream, for the one ahead on the same stream; that is queueing, and
says nothing about when the data was ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
class Sets:
    """A set of events for each of several things.

    Attributes:
        first: where the set of each thing begins in ``event``, and a last entry behind them all; shape (things + 1,).
        event: rows of EVENTS, thing by thing.
    """

    first: Ints
    event: Ints

    @classmethod
    def of(cls, found: Mapping[int, Sequence[int]], size: int) -> Sets:
        """From the sets of those things that have one."""
        lengths = np.zeros(size + 1, dtype=np.int64)
        for thing, members in found.items():
            lengths[thing + 1] = len(members)
        rows = [row for thing in sorted(found) for row in found[thing]]
        return cls(np.cumsum(lengths), np.asarray(rows, dtype=np.int64))

    @property
    def owner(self) -> Ints:
        """The thing to which each entry of ``event`` belongs."""
        return np.repeat(np.arange(self.first.size - 1), np.diff(self.first))

    def entries(self, thing: Ints) -> tuple[Ints, Ints]:
        """The events of some things: for each entry the position in ``thing``, and the event; of -1 none."""
        known = np.flatnonzero(thing >= 0)
        begin = self.first[thing[known]]
        size = self.first[thing[known] + 1] - begin
        at = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        return np.repeat(known, size), self.event[np.repeat(begin, size) + at]

    def latest(self, end: Ints, kept: NDArray[np.bool_] | None = None) -> Ints:
        """For each thing the event of its set that ended last (of equal ends the later row), -1 if it has none.

        Args:
            end: end of each event, shape (events,).
            kept: which entries count; shape of ``event``.
        """
        owner, event = self.owner, self.event
        if kept is not None:
            owner, event = owner[kept], event[kept]
        order = np.lexsort((event, end[event], owner))
        latest = np.full(self.first.size - 1, -1, dtype=np.int64)
        latest[owner[order]] = event[order]  # the last assignment wins
        return latest


@dataclass(frozen=True)
class Queues:
    """The order of the events in every queue, and what the queue operations stand for.

    Attributes:
        before: for each event the event ahead of it in its queue that ended last, -1 if none; shape (events,).
        awaits: for each event what the waits enqueued directly ahead of it stand for, but for events of its own queue.
        awaited: of that the event that ended last: what produced the data of a collective; -1 if none, shape (events,).
        worked: for each event the newest event ahead of it in its queue that is no communication, -1 if none;
            shape (events,).
        behind_ns: end of the latest collective that the event, what is ahead of it in its queue or what these wait
            for had to wait for; NEVER if none; shape (events,).
        values: for each operation the events that it stands for.
        inside_graph: the event is a node of a CUDA graph and not the first of its launch to run: nothing is known
            about what it waited for inside the graph; shape (events,).
        waits: stream waits seen.
        unresolved_waits: of those, the ones whose record is not in the capture or could not be placed.
        empty_waits: of those, the ones whose record stands for nothing, since it was made before any event.
    """

    before: Ints
    awaits: Sets
    awaited: Ints
    worked: Ints
    behind_ns: Ints
    values: Sets
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
    lane = np.empty(count, dtype=np.int64)
    lane[order] = np.repeat(np.arange(keys.size), np.diff(bounds))
    values, held, counts = _resolve(
        operations, keys, bounds, enqueued, latest, lane, end, pass_through=pass_through
    )
    before = np.full(count, -1, dtype=np.int64)
    before[order] = ahead
    awaits = _awaits(held, order, head)
    inside = np.zeros(count, dtype=bool)
    inside[order] = head < np.arange(count)
    return Queues(
        before=before,
        awaits=awaits,
        awaited=awaits.latest(end),
        worked=_newest_work(order, first_of_queue, head, ~communicates),
        behind_ns=_collectives_behind(order, bounds, awaits, communicates, end),
        values=values,
        inside_graph=inside,
        waits=counts[0],
        unresolved_waits=counts[1],
        empty_waits=counts[2],
    )


def _awaits(held: Mapping[int, Sequence[int]], order: Ints, head: Ints) -> Sets:
    """What each event awaits, from the sets by position in queue order; nodes of a graph launch await what it does."""
    by_position = Sets.of(held, order.size)
    place = np.empty(order.size, dtype=np.int64)
    place[order] = head
    owner, event = by_position.entries(place)
    return Sets(np.searchsorted(owner, np.arange(order.size + 1)), event)


def _newest_work(order: Ints, first_of_queue: Ints, head: Ints, works: NDArray[np.bool_]) -> Ints:
    """``Queues.worked``: the latest place before each that holds no communication, within its queue."""
    place = np.arange(order.size)
    newest = np.maximum.accumulate(np.where(works[order], place, -1)) if order.size else place
    before = np.where(head > 0, newest[head - 1], -1)
    worked = np.full(order.size, -1, dtype=np.int64)
    worked[order] = np.where(before >= first_of_queue, order[before], -1)
    return worked


def _collectives_behind(
    order: Ints, bounds: Ints, awaits: Sets, communicates: NDArray[np.bool_], end: Ints
) -> Ints:
    """``Queues.behind_ns``: along the queues, then over the waits for other work, until nothing is added."""
    own = np.where(communicates, end, NEVER).astype(np.int64)
    waiting, awaited = awaits.owner, awaits.event
    collective = communicates[awaited]
    np.maximum.at(own, waiting[collective], end[awaited[collective]])
    through, source = waiting[~collective], awaited[~collective]
    while True:
        behind: Ints = own.copy()
        for first, last in pairwise(bounds.tolist()):
            rows = order[first:last]
            behind[rows] = np.maximum.accumulate(own[rows])
        passed_on = behind[source]
        if (passed_on <= own[through]).all():
            return behind
        np.maximum.at(own, through, passed_on)


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
    lane_of_event: Ints,
    end: Ints,
    *,
    pass_through: bool,
) -> tuple[Sets, dict[int, Sequence[int]], tuple[int, int, int]]:
    """What every operation stands for, what each event's own waits stand for, and the counts of waits.

    An operation stands for two things: the queue's latest-ending event so far (a lookup), and what the waits since
    that queue's last event stand for (``pending``, carried along in host order, because it can hang on waits that
    hang on records that hang on waits ...). What an event's waits stand for is by its position in queue order.
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

    lane_of, ends = memoryview(lane_of_event.data), memoryview(np.ascontiguousarray(end).data)
    nothing: tuple[int, ...] = ()

    def merged(these: tuple[int, ...], those: tuple[int, ...]) -> tuple[int, ...]:
        """Both sets; of two events of one queue the one that ended later."""
        if not these or these == those:
            return those
        if not those:
            return these
        best = {lane_of[row]: row for row in these}
        for row in those:
            other = best.get(lane_of[row])
            if other is None or ends[row] >= ends[other]:
                best[lane_of[row]] = row
        return tuple(best.values())

    value = [nothing] * size
    held: dict[int, Sequence[int]] = {}
    seen = [-1] * (keys.size + strangers.size)
    pending = [nothing] * (keys.size + strangers.size)
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
            pending[at] = nothing
        if what != WAIT:
            behind = nothing if own < 0 else (own,)
            value[index] = merged(behind, pending[at]) if pass_through else behind
            continue
        waits += 1
        target = value[source] if source >= 0 else nothing
        unresolved += source < 0
        empty += source >= 0 and not target
        value[index] = target
        if not target:
            continue
        pending[at] = merged(pending[at], target)
        if has_follower:
            held[position] = [row for row in pending[at] if lane_of[row] != at]
    return Sets.of(dict(enumerate(value)), size), held, (waits, unresolved, empty)


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
