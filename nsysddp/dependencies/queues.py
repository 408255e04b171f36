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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from nsysddp.dependencies.sparse import Sparse
from nsysddp.model.trace import in_parallel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]

NEVER = np.iinfo(np.int64).min
"""Earlier than any time of a trace."""

RECORD, WAIT, MARK = 0, 1, 2
"""What an operation does to its queue: record an event, wait for one, or ask what is enqueued so far."""


def running_latest(end: Ints) -> NDArray[np.int64]:
    """Index of the latest end so far, at each position (of equal ends the later one)."""
    if not end.size:
        return np.empty(0, dtype=np.int64)
    reach = np.maximum.accumulate(end)
    return np.maximum.accumulate(np.where(end == reach, np.arange(end.size), 0))


@dataclass(frozen=True)
class Sets:
    """A set of events for each of several things; most things have none.

    Attributes:
        thing: those that have one, ascending; shape (sets,).
        first: where the set of each begins in ``event``, and a last entry behind them all; shape (sets + 1,).
        event: rows of EVENTS, thing by thing.
    """

    thing: Rows
    first: Rows
    event: Rows

    @classmethod
    def of(cls, found: Mapping[int, Sequence[int]]) -> Sets:
        """From the sets of those things that have one."""
        members = [row for thing in sorted(found) for row in found[thing]]
        owner = np.repeat(sorted(found), [len(found[thing]) for thing in sorted(found)])
        return cls.ordered(owner.astype(np.int64), np.asarray(members, dtype=np.int64))

    @classmethod
    def ordered(cls, owner: NDArray[Any], event: NDArray[Any]) -> Sets:
        """From pairs of a thing and an event, which ascend by thing."""
        opens = np.flatnonzero(np.diff(owner, prepend=-1))
        first = np.append(opens, owner.size).astype(np.int32)
        return cls(owner[opens].astype(np.int32), first, event.astype(np.int32))

    @property
    def owner(self) -> Ints:
        """The thing to which each entry of ``event`` belongs."""
        return np.repeat(self.thing.astype(np.int64), np.diff(self.first))

    def of_things(self, first: int, last: int) -> slice:
        """The entries of the things from ``first`` to before ``last``."""
        low, high = self.first[np.searchsorted(self.thing, (first, last))].tolist()
        return slice(low, high)

    def entries(self, thing: NDArray[Any]) -> tuple[Ints, Rows]:
        """The events of some things: for each entry the position in ``thing``, and the event; of -1 none."""
        known = np.flatnonzero(np.isin(thing, self.thing))
        place = np.searchsorted(self.thing, thing[known])
        begin = self.first[place]
        size = self.first[place + 1] - begin
        at = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        return np.repeat(known, size), self.event[np.repeat(begin, size) + at]

    def latest(self, end: NDArray[Any], things: int, kept: NDArray[np.bool_] | None = None) -> Sparse:
        """For each thing the event of its set that ended last (of equal ends the later row), -1 if it has none.

        Args:
            end: end of each event, shape (events,).
            things: how many there are.
            kept: which entries count; shape of ``event``.
        """
        owner, event = self.owner, self.event
        if kept is not None:
            owner, event = owner[kept], event[kept]
        order = np.lexsort((event, end[event], owner))
        ends = np.flatnonzero(np.diff(owner[order], append=-1))
        return Sparse.of(owner[order][ends], event[order][ends], things)


@dataclass(frozen=True)
class Queues:
    """The order of the events in every queue, and what the queue operations stand for.

    Attributes:
        before: for each event the event ahead of it in its queue that ended last, -1 if none; shape (events,).
        awaits: for each event what the waits enqueued directly ahead of it stand for, but for events of its own queue.
        awaited: of that the event that ended last: what produced the data of a collective; -1 if none, shape (events,).
        worked: for each communication event the newest event ahead of it in its queue that is none, -1 if there is
            none; shape (events,).
        values: for each operation the events that it stands for.
        inside_graph: the event is a node of a CUDA graph and not the first of its launch to run: nothing is known
            about what it waited for inside the graph; shape (events,).
        waits: stream waits seen.
        unresolved_waits: of those, the ones whose record is not in the capture or could not be placed.
        empty_waits: of those, the ones whose record stands for nothing, since it was made before any event.
    """

    before: Rows
    awaits: Sets
    awaited: Sparse
    worked: Sparse
    values: Sets
    inside_graph: NDArray[np.bool_]
    waits: int
    unresolved_waits: int
    empty_waits: int


def queue_codes(events: pl.DataFrame) -> tuple[NDArray[np.int32], Ints]:
    """The queue of each event of one process as a small number, and the keys that these stand for, ascending."""
    key = _queue_keys(events["context"].to_numpy(), events["stream"].to_numpy())
    keys = np.sort(pl.Series(key).unique().to_numpy())
    return np.searchsorted(keys, key).astype(np.int32), keys


def event_queues(trace: Trace) -> NDArray[np.int32]:
    """A number for the queue of each event, ascending by process, context and stream; shape (events,)."""
    found = np.empty(trace.events.height, dtype=np.int32)
    first = 0
    for ranks in ranks_of_processes(trace).values():
        spans = [trace.rows_of(rank) for rank in ranks]
        code, keys = queue_codes(pl.concat([trace.events.slice(a, b - a) for a, b in spans]))
        found[rows_of_ranks(trace, ranks)] = code + np.int32(first)
        first += keys.size
    return found


def ahead_in_queue(trace: Trace) -> NDArray[np.int32]:
    """For each event the one that began before it in its queue, -1 for the first; shape (events,)."""
    ahead = np.full(trace.events.height, -1, dtype=np.int32)
    for ranks in ranks_of_processes(trace).values():
        rows = rows_of_ranks(trace, ranks)
        events = pl.concat([trace.events.slice(a, b - a) for a, b in map(trace.rows_of, ranks)])
        code, _ = queue_codes(events)
        order = (
            np.argsort(code, kind="stable")
            if len(ranks) == 1
            else np.lexsort((events["start_ns"].to_numpy(), code))
        )
        same = code[order[1:]] == code[order[:-1]]
        ahead[rows[order[1:][same]]] = rows[order[:-1][same]]
    return ahead


def _queue_keys(context: NDArray[Any], stream: NDArray[Any]) -> Ints:
    """One number per queue of a process: equal if and only if context and stream are."""
    key: Ints = (context.astype(np.int64) & 0xFFFF) << 32 | (stream.astype(np.int64) & 0xFFFFFFFF)
    return key


def ranks_of_processes(trace: Trace) -> dict[int, list[int]]:
    """The ranks of each process, both ascending."""
    found: dict[int, list[int]] = {}
    for rank in sorted(trace.rank_numbers, key=lambda rank: (trace.process_of_rank[rank], rank)):
        found.setdefault(trace.process_of_rank[rank], []).append(rank)
    return found


def rows_of_ranks(trace: Trace, ranks: Sequence[int]) -> NDArray[np.int32]:
    """Rows of the events of some ranks, rank by rank."""
    spans = [np.arange(*trace.rows_of(rank), dtype=np.int32) for rank in ranks]
    return np.concatenate(spans) if spans else np.empty(0, dtype=np.int32)


def follow_queues(
    trace: Trace, operations: pl.DataFrame, *, pass_through: bool = True, order_in_graphs: bool = False
) -> Queues:
    """What was ahead of each event in its queue, and what each record, wait and mark stands for.

    Queues of different processes have nothing to do with each other, so it is done process by process.

    Args:
        trace: events with their launches.
        operations: one row per operation on a queue, ordered by process and time: ``process``, ``context``,
            ``stream``, ``time_ns`` (start of the call that enqueued it), ``operation`` (RECORD, WAIT, MARK) and
            ``sync_id`` (null if none).
        pass_through: a record also stands for what its queue waited for since its last event.
        order_in_graphs: take the nodes of a CUDA graph for ordered by their stream, which they are not.
    """
    count = trace.events.height
    before = np.full(count, -1, dtype=np.int32)
    inside = np.zeros(count, dtype=bool)
    ranks = ranks_of_processes(trace)
    process = operations["process"].cast(pl.Int64).to_numpy()
    numbers = sorted(set(ranks) | set(np.unique(process).tolist()))

    def of(number: int) -> _Followed:
        found = _of_process(
            trace,
            ranks.get(number, []),
            operations.slice(*_run(process, number)),
            pass_through=pass_through,
            order_in_graphs=order_in_graphs,
        )
        rows = found.rows
        inside[rows] = found.inside_graph
        before[rows] = np.where(found.before >= 0, rows[found.before], np.int32(-1))
        return found._replace(before=rows[:0], inside_graph=inside[:0])

    parts = in_parallel(numbers, of, events=count)
    owner = np.concatenate([part.rows[part.waiting] for part in parts])
    event = np.concatenate([part.rows[part.awaited] for part in parts])
    order = np.argsort(owner, kind="stable")
    awaits = Sets.ordered(owner[order], event[order])
    joins = np.concatenate([part.rows[part.communication] for part in parts])
    worked = np.concatenate([part.rows[part.worked] for part in parts])
    order = np.argsort(joins, kind="stable")
    return Queues(
        before=before,
        awaits=awaits,
        awaited=awaits.latest(trace.events["end_ns"].to_numpy(), count),
        worked=Sparse.of(joins[order], worked[order], count),
        values=_one_after_the_other(parts),
        inside_graph=inside,
        waits=sum(part.counts[0] for part in parts),
        unresolved_waits=sum(part.counts[1] for part in parts),
        empty_waits=sum(part.counts[2] for part in parts),
    )


def _one_after_the_other(parts: Sequence[_Followed]) -> Sets:
    """What all operations stand for, process by process."""
    operations = np.cumsum([0, *(part.operations for part in parts)])
    entries = np.cumsum([0, *(part.values.event.size for part in parts)])
    return Sets(
        np.concatenate([p.values.thing + np.int32(base) for p, base in zip(parts, operations, strict=False)]),
        np.concatenate(
            [
                *(p.values.first[:-1] + np.int32(base) for p, base in zip(parts, entries, strict=False)),
                entries[-1:].astype(np.int32),
            ]
        ),
        np.concatenate([part.rows[part.values.event] for part in parts]),
    )


def _run(values: Ints, value: int) -> tuple[int, int]:
    """Where a value begins among ascending ones, and how often it is there."""
    first, last = np.searchsorted(values, [value, value + 1])
    return int(first), int(last - first)


class _Followed(NamedTuple):
    """Of one process what ``Queues`` says; events are counted from its first, ``rows`` are theirs in the trace.

    ``worked`` is of those ``communication`` events that have it; ``operations`` is the number of operations.
    """

    rows: Rows
    before: Rows
    communication: Rows
    worked: Rows
    inside_graph: NDArray[np.bool_]
    waiting: Ints
    awaited: NDArray[Any]
    values: Sets
    operations: int
    counts: tuple[int, int, int]


def _of_process(
    trace: Trace,
    ranks: Sequence[int],
    operations: pl.DataFrame,
    *,
    pass_through: bool,
    order_in_graphs: bool,
) -> _Followed:
    rows = rows_of_ranks(trace, ranks)
    spans = [trace.rows_of(rank) for rank in ranks]
    events = pl.concat(
        [trace.events.slice(first, last - first) for first, last in spans] or [trace.events[:0]]
    )
    launch = _launch_times(trace, spans)
    end = events["end_ns"].to_numpy()
    code, keys = queue_codes(events)
    # A rank's events are ordered already.
    order = (
        np.argsort(code.astype(np.int16) if keys.size < 1 << 15 else code, kind="stable")
        if len(ranks) == 1
        else np.lexsort((end, events["start_ns"].to_numpy(), code))
    ).astype(np.int32)
    bounds = np.append(0, np.cumsum(np.bincount(code, minlength=keys.size)))
    head = _heads_of_graph_launches(events, order, bounds[:-1], order_in_graphs=order_in_graphs)
    key = _queue_keys(operations["context"].to_numpy(), operations["stream"].to_numpy())
    time = operations["time_ns"].to_numpy()
    lane, known = _lanes(key, keys)
    place = np.zeros(key.size, dtype=np.int64)  # position in queue order of the first event enqueued after it
    latest = np.empty(order.size, dtype=np.int32)  # along `order`: the latest-ending event so far
    for queue, (first, last) in enumerate(pairwise(bounds.tolist())):
        mine = order[first:last]
        latest[first:last] = mine[running_latest(end[mine])]
        asked = np.flatnonzero(lane == queue)
        # Never before what is ahead in the queue.
        enqueued = np.maximum.accumulate(launch[mine])
        place[asked] = first + np.searchsorted(enqueued, time[asked], side="left")
    queues = _InOrder(order, bounds, latest, code, end)
    values, held, counts = _resolve(operations, queues, lane, place, known, pass_through=pass_through)
    first_of_queue = np.repeat(bounds[:-1].astype(np.int32), np.diff(bounds))
    before = np.empty(order.size, dtype=np.int32)
    before[order] = np.where(head > first_of_queue, latest[head - 1], -1) if order.size else order
    works = (events["class"] != "communication").to_numpy()
    waiting, awaited = _awaits(held, order, head)
    inside = np.zeros(order.size, dtype=bool)
    inside[order] = head < np.arange(order.size, dtype=np.int32)
    communication, worked = _newest_work(order, first_of_queue, head, works)
    return _Followed(
        rows, before, communication, worked, inside, waiting, awaited, values, operations.height, counts
    )


@dataclass(frozen=True)
class _InOrder:
    """The events of a process queue by queue: in order, where each queue begins, and the latest end so far.

    ``lane`` and ``end`` are by event.
    """

    order: Rows
    bounds: Ints
    latest: Rows
    lane: Rows
    end: Ints


def _lanes(key: Ints, keys: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The number of the queue of each operation, and whether it holds events; one that does not gets its own."""
    code = np.searchsorted(keys, key)
    code[code == keys.size] = 0
    known = keys[code] == key if keys.size else np.zeros(key.size, dtype=bool)
    code[~known] = keys.size + np.unique(key[~known], return_inverse=True)[1].ravel()
    return code, known


def _awaits(held: Mapping[int, Sequence[int]], order: Rows, head: Rows) -> tuple[Ints, NDArray[Any]]:
    """Pairs of an event and what it awaits, from the sets by position in queue order.

    Nodes of a graph launch await what it does.
    """
    by_position = Sets.of(held)
    place = np.empty(order.size, dtype=np.int32)
    place[order] = head
    return by_position.entries(place)


def _newest_work(
    order: Rows, first_of_queue: Rows, head: Rows, works: NDArray[np.bool_]
) -> tuple[Rows, Rows]:
    """``Queues.worked``: communication events, and what is in the latest place before each, within its queue."""
    in_order = works[order]
    worked_at, joins = np.flatnonzero(in_order), np.flatnonzero(~in_order)
    ahead = np.searchsorted(worked_at, head[joins]) - 1
    joins, ahead = joins[ahead >= 0], ahead[ahead >= 0]
    before = worked_at[ahead]
    in_queue = before >= first_of_queue[joins]
    return order[joins[in_queue]], order[before[in_queue]]


def _heads_of_graph_launches(
    events: pl.DataFrame, order: Rows, firsts: Ints, *, order_in_graphs: bool
) -> Rows:
    """For each position in queue order, the position of the first node of its graph launch (itself if no node)."""
    places = np.arange(order.size, dtype=np.int32)
    if order_in_graphs or not events["in_graph"].any():
        return places
    in_graph = events["in_graph"].fill_null(False).to_numpy()[order]
    correlation = events["correlation"].to_numpy()[order]
    opens = np.ones(order.size, dtype=bool)
    opens[1:] = ~(in_graph[1:] & in_graph[:-1] & (correlation[1:] == correlation[:-1]))
    opens[firsts] = True
    return np.maximum.accumulate(np.where(opens, places, np.int32(0)))


def _launch_times(trace: Trace, spans: Sequence[tuple[int, int]]) -> Ints:
    """Start of each event's launch call; NEVER where it has none, so that its queue neighbours decide."""
    if trace.launches is None:
        return np.full(sum(last - first for first, last in spans), NEVER, dtype=np.int64)
    launch = trace.launches["launch_ns"]
    parts = [launch.slice(first, last - first).fill_null(NEVER).to_numpy() for first, last in spans]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _resolve(
    operations: pl.DataFrame,
    queues: _InOrder,
    lane: Ints,
    place: Ints,
    known: NDArray[np.bool_],
    *,
    pass_through: bool,
) -> tuple[Sets, dict[int, Sequence[int]], tuple[int, int, int]]:
    """What every operation stands for, what each event's own waits stand for, and the counts of waits.

    An operation stands for two things: the queue's latest-ending event so far (a lookup), and what the waits since
    that queue's last event stand for (``pending``, carried along in host order, because it can hang on waits that
    hang on records that hang on waits ...). What an event's waits stand for is by its position in queue order.

    Args:
        operations: of one process, in order of time.
        queues: its queues.
        lane: the queue of each operation; one without events has a number of its own.
        place: position in queue order of the first event enqueued after the operation; 0 in a queue without events.
        known: does its queue hold events?
        pass_through: a record also stands for what its queue waited for since its last event.
    """
    size, bounds = lane.size, queues.bounds
    base = np.full(size, -1, dtype=np.int64)
    behind_one = np.flatnonzero(known)[place[known] > bounds[lane[known]]]
    base[behind_one] = queues.latest[place[behind_one] - 1]
    follows = known.copy()  # is there an event behind it?
    follows[known] = place[known] < bounds[lane[known] + 1]

    lane_of, ends = memoryview(queues.lane.data), memoryview(np.ascontiguousarray(queues.end).data)
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
    seen = [-1] * (int(lane.max(initial=-1)) + 1)
    pending = [nothing] * len(seen)
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
    stands_for = Sets.of({number: found for number, found in enumerate(value) if found})
    return stands_for, held, (waits, unresolved, empty)


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
