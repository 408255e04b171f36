"""What did the host do before it launched an event, and which of its calls had to wait for the GPU?

The outermost calls of all threads that launch work on a rank form one *line*: autograd launches backward from its own
thread while the main thread waits, so the order of calls is that of the rank, not of a thread. A call's predecessor
is the one that ended last, not after its start; where that is a call of another thread the hop is inferred.

    main      ──[fwd launch]──[fwd launch]──────────────────────────────[optimizer launch]──
                                          ╲ hop                        ╱ hop
    autograd  ─────────────────────────────[bwd launch]──[bwd launch]────────────────────────
    watchdog  ──[query]──[query]──[query]──[query]──[query]──[query]──   never launches: not in the line
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.queues import Queues, Sets, event_queues, running_latest
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]


CLOCK_NS = 20 * NS_PER_US
"""GPU and host clocks of one report agree to within this: a call can seem to return before what it waited for ended
(by 5 us in a real report of two GPUs), and an event to start before the call that launched it."""

JITTER_NS = NS_PER_US
"""An asynchronous copy whose short call returned by more than this before its end did not block."""


_SHORT_IN_A_ROW = 8
"""So many events in a row, each shorter than the clocks differ, are looked through for one that held a call."""


class Blocking(IntEnum):
    """What a synchronising call waits for."""

    NOTHING = 0
    DEVICE = 1
    STREAM = 2
    EVENT = 3
    COPY = 4
    COPY_PAGEABLE = 5


_BLOCKING_APIS = (
    (Blocking.DEVICE, r"(cuda(Device|Thread)|cuCtx)Synchronize"),
    (Blocking.DEVICE, r"cuda(Free|FreeHost)|cuMemFree(Host)?"),  # waits for the device before it unmaps
    (Blocking.STREAM, r"(cuda|cu)StreamSynchronize"),
    (Blocking.EVENT, r"(cuda|cu)EventSynchronize"),
    (Blocking.COPY, r"(cuda|cu)Memcpy(?!.*Async).*"),
    # An asynchronous copy from or to pageable memory blocks all the same (`.item()`); with pinned memory it returns
    # at once.
    (Blocking.COPY_PAGEABLE, r"(cuda|cu)Memcpy.*Async.*"),
)
_NAME_TAIL = r"(_v\d+|_pt[ds][sz])*"


def blocking_kind(name: str) -> Blocking:
    """What a call of this API name waits for, if the trace does not contradict; NOTHING if it does not block."""
    for kind, pattern in _BLOCKING_APIS:
        if re.fullmatch(pattern + _NAME_TAIL, name):
            return kind
    return Blocking.NOTHING


@dataclass(frozen=True)
class Calls:
    """The outermost calls of every thread, ordered by process, thread and start.

    Attributes:
        row: row of ``Trace.calls``, shape (calls,).
        start: start in ns.
        end: end in ns.
        spans: (process, thread) to first and one-past-last position.
        outermost: for each row of ``Trace.calls`` the position of the call around it, shape (all calls,).
    """

    row: Ints
    start: Ints
    end: Ints
    spans: dict[tuple[int, int], tuple[int, int]]
    outermost: Ints

    @classmethod
    def of(cls, calls: pl.DataFrame, *, fold: bool = True) -> Calls:
        """Fold nested calls (a runtime call around the driver calls that it makes) into the outermost.

        Args:
            calls: ``schema.CALLS``, any order.
            fold: take nested calls for part of the call around them.
        """
        ordered = (
            calls.lazy()
            .select("process", "thread", "start_ns", "end_ns")
            .with_row_index("row")
            .sort(["process", "thread", "start_ns", "end_ns"], descending=[False, False, False, True])
            .collect()
        )
        start, end = ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy()
        row = ordered["row"].cast(pl.Int64).to_numpy()
        process, thread = ordered["process"].to_numpy(), ordered["thread"].to_numpy()
        changes = np.flatnonzero((process[1:] != process[:-1]) | (thread[1:] != thread[:-1])) + 1
        bounds = np.concatenate([[0], changes, [row.size]]) if row.size else np.zeros(1, dtype=np.int64)
        opens = np.ones(row.size, dtype=bool)
        if fold:
            for first, last in pairwise(bounds.tolist()):
                reach = np.maximum.accumulate(end[first:last])
                opens[first + 1 : last] = start[first + 1 : last] >= reach[:-1]
        position = np.cumsum(opens) - 1
        outermost = np.empty(row.size, dtype=np.int64)
        outermost[row] = position
        kept = np.append(0, np.cumsum(opens))
        spans = {
            (int(process[first]), int(thread[first])): (int(kept[first]), int(kept[last]))
            for first, last in pairwise(bounds.tolist())
        }
        return cls(row[opens], start[opens], end[opens], spans, outermost)

    def at(self, process: int, thread: int, time: Ints) -> Ints:
        """The call of the thread that contains each instant, -1 where there is none."""
        first, last = self.spans.get((process, thread), (0, 0))
        found = first + np.searchsorted(self.start[first:last], time, side="right") - 1
        inside = (found >= first) & (found < last)
        inside[inside] = time[inside] <= self.end[found[inside]]
        return np.where(inside, found, -1)


@dataclass(frozen=True)
class HostLines:
    """One line of calls per rank; a call that several ranks share stands in each of their lines.

    Attributes:
        rank: rank of the line, shape (hosts,).
        row: row of ``Trace.calls``.
        thread: calling thread.
        start: start in ns.
        end: end in ns.
        before: position of the predecessor in the line, -1 for the first.
        awaited: row of EVENTS whose end the call waited for, -1 if it did not wait for one.
        holds: the events that each call had to wait for, whether or not one of them had it wait when it ran.
        leads_to: row of EVENTS that the call, or the next call of the line that launches, launched (-1: none does).
        launcher: for each event the position of the call that launched it, -1 if unknown; shape (events,).
        blocking_calls: synchronising calls in the lines.
        unresolved_calls: of those, the ones for which nothing says what they waited for.
        early_returns: of those, the ones that returned before the recorded end of what they waited for.
    """

    rank: NDArray[np.int32]
    row: Ints
    thread: Ints
    start: Ints
    end: Ints
    before: Ints
    awaited: Ints
    holds: Sets
    leads_to: Ints
    launcher: Ints
    blocking_calls: int
    unresolved_calls: int
    early_returns: int

    @classmethod
    def empty(cls, events: int) -> HostLines:
        """The lines of a trace without calls."""
        none = np.empty(0, dtype=np.int64)
        nobody = np.full(events, -1, dtype=np.int64)
        empty = Sets.of({}, 0)
        return cls(none.astype(np.int32), none, none, none, none, none, none, empty, none, nobody, 0, 0, 0)


def host_lines(
    trace: Trace,
    calls: Calls,
    blocking: pl.DataFrame,
    queues: Queues,
    ready: Ints,
    *,
    all_threads: bool = False,
) -> HostLines:
    """The line of every rank, with what its synchronising calls waited for.

    Args:
        trace: events, launches and calls.
        calls: the folded calls of the trace.
        blocking: the synchronising calls: ``row`` (of ``Trace.calls``), ``kind`` (Blocking) and ``source`` (the
            operation on a queue that a stream or event call waits for, -1 if it is not known).
        queues: what operations stand for, and what is ahead of events.
        ready: time from which each event no longer waited for other ranks, shape (events,).
        all_threads: let threads that only poll take part.
    """
    assert trace.calls is not None
    assert trace.launches is not None
    end_of_event = trace.events["end_ns"].to_numpy()
    thread_of_call = trace.calls["thread"].to_numpy()
    crosses = trace.names["text"].str.contains("DtoH|HtoD").fill_null(False).to_numpy()
    pageable = crosses[trace.events["name"].to_numpy()] & (trace.events["class"] == "memory").to_numpy()
    queue = event_queues(trace)
    ahead, signal = queues.before, queues.awaited
    by_signal = (signal >= 0) & ((ahead < 0) | (end_of_event[signal] > end_of_event[ahead]))
    held_by = np.where(by_signal, signal, ahead)
    launcher = np.full(trace.events.height, -1, dtype=np.int64)
    position = np.full(calls.row.size, -1, dtype=np.int64)  # folded call -> place in the line at hand
    lines: list[tuple[int, Ints, Ints, Ints]] = []
    waited: list[tuple[Ints, Sets]] = []
    counted = unresolved = early = base = 0

    for rank in trace.rank_numbers:
        process = trace.process_of_rank[rank]
        first, last = trace.rows_of(rank)
        launches = trace.launches.slice(first, last - first)
        launch = launches["launch_ns"].to_numpy()
        thread = launches["thread"].fill_null(-1).to_numpy()
        launched = launches["launch_ns"].is_not_null().to_numpy()
        time = launches["launch_ns"].fill_null(-1).to_numpy() if not launched.all() else launch
        callers = np.unique(thread[launched])

        member = [
            np.arange(*span)
            for (owner, number), span in calls.spans.items()
            if owner == process and (all_threads or number in callers)
        ]
        chosen = np.concatenate(member) if member else np.empty(0, dtype=np.int64)
        line = chosen[np.lexsort((calls.start[chosen], calls.end[chosen]))]
        places = np.arange(line.size)
        before = np.minimum(np.searchsorted(calls.end[line], calls.start[line], side="right") - 1, places - 1)
        position[:] = -1
        position[line] = places

        called = np.full(last - first, -1, dtype=np.int64)
        for number in callers:
            mine = np.flatnonzero(launched & (thread == number))
            found = calls.at(process, int(number), time[mine])
            called[mine[found >= 0]] = position[found[found >= 0]]
        launcher[first:last] = np.where(called >= 0, called + base, -1)

        waits = _Waits(
            begun=calls.start[line],
            returned=calls.end[line],
            first_event=first,
            launch=np.where(launched, time, np.iinfo(np.int64).max),
            queue=queue[first:last],
            called=called,
            pageable=pageable[first:last],
            end=end_of_event,
            ready=ready,
            held_by=held_by,
        )
        at = position[calls.outermost[blocking["row"].to_numpy()]]
        ours = blocking.filter(pl.Series(at >= 0))
        outcome = waits.of(at[at >= 0], ours["kind"].to_numpy(), ours["source"].to_numpy(), queues.values)
        waited.append((outcome.awaited, outcome.holds))
        counted += ours.height
        unresolved += outcome.unresolved
        early += outcome.early
        before = np.where(before >= 0, before + base, -1)
        lines.append((rank, line, before, _next_launched(called, line.size, first)))
        base += line.size

    def joined(parts: list[Ints]) -> Ints:
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    line = joined([part for _, part, *_ in lines])
    return HostLines(
        rank=np.repeat(
            np.asarray([rank for rank, *_ in lines], dtype=np.int32), [part.size for _, part, *_ in lines]
        ),
        row=calls.row[line],
        thread=thread_of_call[calls.row[line]],
        start=calls.start[line],
        end=calls.end[line],
        before=joined([before for _, _, before, _ in lines]),
        awaited=joined([awaited for awaited, _ in waited]),
        holds=Sets(
            np.append(0, np.cumsum(joined([np.diff(held.first) for _, held in waited]))),
            joined([held.event for _, held in waited]),
        ),
        leads_to=joined([leads_to for *_, leads_to in lines]),
        launcher=launcher,
        blocking_calls=counted,
        unresolved_calls=unresolved,
        early_returns=early,
    )


def _next_launched(called: Ints, size: int, first_event: int) -> Ints:
    """For each call of a line the event that it, or the next call that launches one, launched; -1 if none does."""
    launched = np.full(size, -1, dtype=np.int64)
    events = np.flatnonzero(called >= 0)[::-1]
    launched[called[events]] = first_event + events  # the first of several (CUDA graphs) wins
    places = np.where(launched >= 0, np.arange(size), size)
    following = np.minimum.accumulate(places[::-1])[::-1]
    return np.append(launched, -1)[following]


@dataclass(frozen=True)
class _Waited:
    """What the calls of one line waited for: ``awaited`` and ``holds`` of ``HostLines``, and counts."""

    awaited: Ints
    holds: Sets
    unresolved: int
    early: int


@dataclass(frozen=True)
class _Waits:
    """The calls of one rank's line, and the events that they can have waited for.

    Attributes:
        begun, returned: start and end of each call, shape (calls,).
        first_event: row of EVENTS of the rank's first event.
        launch: start of each event's launch call, the far future without one; shape (events of the rank,).
        queue: queue of each event.
        called: position in the line of the call that launched each event, -1 if unknown.
        pageable: an asynchronous copy that blocks if its memory is pageable.
        end: end of every event of the trace.
        ready: time from which each event of the trace no longer waited for other ranks.
        held_by: the event that each event of the trace waited for last, on its queue or another; -1 if none.
    """

    begun: Ints
    returned: Ints
    first_event: int
    launch: Ints
    queue: Ints
    called: Ints
    pageable: NDArray[np.bool_]
    end: Ints
    ready: Ints
    held_by: Ints

    def of(self, place: Ints, kind: Ints, source: Ints, values: Sets) -> _Waited:
        """What each call waited for.

        Of what it had to wait for, it waited for what ended last while it ran: what had ended before costs nothing.
        What ended after it returned, by more than the clocks can differ, it cannot have waited for.

        Args:
            place: position of each synchronising call in the line.
            kind: what it waits for (Blocking).
            source: the operation that stands for it, -1 if unknown.
            values: what operations stand for.
        """
        recorded = (kind == Blocking.STREAM) | (kind == Blocking.EVENT)
        entry, events = values.entries(np.where(recorded, source, -1))
        of_queue, behind = self._all_launched(place[kind == Blocking.DEVICE])
        own_call, own_event = self._own_copies(place[kind == Blocking.COPY], self.called >= 0)
        async_call, async_event = self._own_copies(
            place[kind == Blocking.COPY_PAGEABLE], (self.called >= 0) & self.pageable
        )
        blocked = self._blocked(async_call, async_event)
        call = np.concatenate([place[entry], of_queue, own_call, async_call[blocked]])
        event = np.concatenate([events, behind, own_event, async_event[blocked]])

        returned = self.returned[call] + CLOCK_NS
        possible = (self.end[event] <= returned) & (self.ready[event] <= returned)
        call, event = call[possible], event[possible]
        order = np.lexsort((event, call))
        call, event = call[order], event[order]
        once = np.ones(call.size, dtype=bool)
        once[1:] = (call[1:] != call[:-1]) | (event[1:] != event[:-1])
        call, event = call[once], event[once]
        first = np.searchsorted(call, np.arange(self.begun.size + 1))
        holds = Sets(first.astype(np.int64), event)
        awaited = self._inside(holds.latest(self.end, self.end[event] > self.begun[call]))
        waiting = np.flatnonzero(awaited >= 0)
        return _Waited(
            awaited,
            holds,
            unresolved=int(recorded.sum()) - int(np.unique(entry).size),
            early=int((self.end[awaited[waiting]] > self.returned[waiting]).sum()),
        )

    def _inside(self, awaited: Ints) -> Ints:
        """What each call waited for, of which the path can go on: it began before the call returned.

        Work that seems to begin after the return is shorter than the clocks differ (a copy of 4 bytes): what that
        waited for held the call.
        """
        awaited = awaited.copy()
        for _ in range(_SHORT_IN_A_ROW):
            late = np.flatnonzero((awaited >= 0) & (self.ready[awaited] > self.returned))
            if not late.size:
                break
            awaited[late] = self.held_by[awaited[late]]
        outside = (self.ready[awaited] > self.returned) | (self.end[awaited] <= self.begun)
        return np.where((awaited >= 0) & ~outside, awaited, -1)

    def _all_launched(self, place: Ints) -> tuple[Ints, Ints]:
        """Calls, and the latest-ending event of each queue among those launched before them."""
        calls, events = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        ends = self.end[self.first_event : self.first_event + self.launch.size]
        for queue in np.unique(self.queue) if place.size else ():
            mine = np.flatnonzero(self.queue == queue)
            mine = mine[np.argsort(self.launch[mine], kind="stable")]
            latest = mine[running_latest(ends[mine])]
            earlier = np.searchsorted(self.launch[mine], self.begun[place], side="left")
            calls.append(place[earlier > 0])
            events.append(self.first_event + latest[earlier[earlier > 0] - 1])
        return np.concatenate(calls), np.concatenate(events)

    def _own_copies(self, place: Ints, candidates: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Calls, and the event of each that it launched itself (of several the last to end)."""
        ends = self.end[self.first_event : self.first_event + self.launch.size]
        own = np.full(self.begun.size, -1, dtype=np.int64)
        events = np.flatnonzero(candidates)
        events = events[np.argsort(ends[events], kind="stable")]
        own[self.called[events]] = self.first_event + events
        return place[own[place] >= 0], own[place][own[place] >= 0]

    def _blocked(self, call: Ints, event: Ints) -> NDArray[np.bool_]:
        """Did an asynchronous copy block? If it ended inside its call, up to the clocks if that was a long one."""
        late = self.end[event] - self.returned[call]
        long = self.returned[call] - self.begun[call] >= 2 * CLOCK_NS
        blocked: NDArray[np.bool_] = late <= np.where(long, CLOCK_NS, JITTER_NS)
        return blocked
