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
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from nsysddp.dependencies.queues import Queues, Sets, queue_codes, ranks_of_processes, running_latest
from nsysddp.dependencies.sparse import Gathered, Sparse
from nsysddp.model.trace import in_parallel
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]


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
class _Calls:
    """The outermost calls of every thread of a process, ordered by thread and start.

    Attributes:
        row: row of ``Trace.calls``, shape (calls,).
        start: start in ns.
        end: end in ns.
        spans: thread to first and one-past-last position.
        all_rows: rows of all calls of the process, ascending, shape (all calls,).
        outermost: for each of them the position of the call around it.
    """

    row: Rows
    start: Ints
    end: Ints
    spans: dict[int, tuple[int, int]]
    all_rows: Rows
    outermost: Rows

    @classmethod
    def of(cls, calls: pl.DataFrame, process: int, *, fold: bool) -> _Calls:
        """Fold nested calls (a runtime call around the driver calls that it makes) into the outermost.

        Args:
            calls: ``schema.CALLS``, any order.
            process: whose.
            fold: take nested calls for part of the call around them.
        """
        rows = np.flatnonzero(calls["process"].to_numpy() == process).astype(np.int32)
        start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
        thread = calls["thread"].to_numpy()[rows]
        outermost = np.empty(rows.size, dtype=np.int32)
        kept: list[Rows] = []
        spans: dict[int, tuple[int, int]] = {}
        count = 0
        for number in np.sort(pl.Series(thread).unique().to_numpy()).tolist():
            mine = np.flatnonzero(thread == number)
            begun, ended = start[rows[mine]], end[rows[mine]]
            if np.any((begun[1:] < begun[:-1]) | ((begun[1:] == begun[:-1]) & (ended[1:] > ended[:-1]))):
                order = np.lexsort((-ended, begun))
                mine, begun, ended = mine[order], begun[order], ended[order]
            opens = np.ones(mine.size, dtype=bool)
            if fold:
                opens[1:] = begun[1:] >= np.maximum.accumulate(ended)[:-1]
            outermost[mine] = count + np.cumsum(opens) - 1
            kept.append(rows[mine[opens]])
            spans[number] = count, count + kept[-1].size
            count += kept[-1].size
        row = np.concatenate(kept) if kept else rows
        return cls(row, start[row], end[row], spans, rows, outermost)

    def at(self, thread: int, time: Ints) -> Ints:
        """The call of the thread that contains each instant, -1 where there is none."""
        first, last = self.spans.get(thread, (0, 0))
        found = first + np.searchsorted(self.start[first:last], time, side="right") - 1
        inside = (found >= first) & (found < last)
        inside[inside] = time[inside] <= self.end[found[inside]]
        return np.where(inside, found, -1)


@dataclass(frozen=True)
class HostLines:
    """One line of calls per rank; a call that several ranks share stands in each of their lines.

    Attributes:
        calls: ``Trace.calls``.
        ranks: the ranks, ascending, and the first call of each one's line, with a last entry behind them all.
        row: row of ``Trace.calls``, shape (hosts,).
        start: start in ns.
        end: end in ns.
        awaited: row of EVENTS whose end the call waited for, -1 if it did not wait for one.
        holds: the events that each call had to wait for, whether or not one of them had it wait when it ran.
        leads_to: row of EVENTS that the call, or the next call of the line that launches, launched (-1: none does).
        launcher: for each event the position of the call that launched it, -1 if unknown; shape (events,).
        blocking_calls: synchronising calls in the lines.
        unresolved_calls: of those, the ones for which nothing says what they waited for.
        early_returns: of those, the ones that returned before the recorded end of what they waited for.
    """

    calls: pl.DataFrame
    ranks: tuple[NDArray[np.int32], Ints]
    row: Rows
    start: Gathered
    end: Gathered
    awaited: Sparse
    holds: Sets
    leads_to: Rows
    launcher: Rows
    blocking_calls: int
    unresolved_calls: int
    early_returns: int

    @classmethod
    def empty(cls, events: int) -> HostLines:
        """The lines of a trace without calls."""
        none = np.empty(0, dtype=np.int64)
        nobody = np.full(events, -1, dtype=np.int32)
        rows, first = none.astype(np.int32), np.zeros(1, dtype=np.int64)
        empty = pl.DataFrame({"thread": none})
        times, awaited = Gathered(none, rows), Sparse.of(rows, rows, 0)
        return cls(empty, (rows, first), rows, times, times, awaited, Sets.of({}), rows, nobody, 0, 0, 0)

    @cached_property
    def before(self) -> Rows:
        """Position of each call's predecessor in the line, -1 for the first, made when it is asked for."""
        before = np.empty_like(self.row)
        for low, high in pairwise(self.ranks[1].tolist()):
            ahead = self.ahead(slice(low, high))
            before[low:high] = np.where(ahead >= 0, ahead + np.int32(low), ahead)
        return before

    def ahead(self, line: slice) -> Rows:
        """The same for the line of one rank, counted from its first call."""
        return _before(self.start[line], self.end[line])

    @property
    def rank(self) -> NDArray[np.int32]:
        """Rank of each call's line, made when it is asked for; shape (hosts,)."""
        numbers, first = self.ranks
        return np.repeat(numbers, np.diff(first))

    @property
    def thread(self) -> NDArray[Any]:
        """Calling thread of each call, made when it is asked for; shape (hosts,)."""
        return self.threads_of(slice(None))

    def ranks_of(self, call: NDArray[Any]) -> NDArray[np.int32]:
        """Rank of the lines of some calls."""
        numbers, first = self.ranks
        return numbers[np.searchsorted(first, call, side="right") - 1]

    def threads_of(self, call: NDArray[Any] | slice) -> NDArray[Any]:
        """Calling thread of some calls."""
        threads: NDArray[Any] = self.calls["thread"].to_numpy()[self.row[call]]
        return threads


def host_lines(
    trace: Trace,
    blocking: pl.DataFrame,
    queues: Queues,
    ready: Sparse,
    *,
    fold: bool = True,
    all_threads: bool = False,
) -> HostLines:
    """The line of every rank, with what its synchronising calls waited for.

    Args:
        trace: events, launches and calls.
        blocking: the synchronising calls: ``row`` (of ``Trace.calls``), ``kind`` (Blocking) and ``source`` (the
            operation on a queue that a stream or event call waits for, -1 if it is not known).
        queues: what operations stand for, and what is ahead of events.
        ready: time from which each event no longer waited for other ranks, shape (events,).
        fold: take nested calls for part of the call around them.
        all_threads: let threads that only poll take part.
    """
    assert trace.calls is not None
    end = trace.events["end_ns"].to_numpy()
    events = _Events(trace, end, ready, queues)
    blocking = blocking.sort("row", maintain_order=True)
    launcher = np.full(trace.events.height, -1, dtype=np.int32)

    def of_process(process_and_ranks: tuple[int, list[int]]) -> list[_Line]:
        process, ranks = process_and_ranks
        assert trace.calls is not None
        calls = _Calls.of(trace.calls, process, fold=fold)
        waiting = blocking["row"].to_numpy()
        at = np.searchsorted(calls.all_rows, waiting)
        found = at < calls.all_rows.size
        found[found] = calls.all_rows[at[found]] == waiting[found]
        blocked = _Blocked(
            calls.outermost[at[found]],
            blocking["kind"].to_numpy()[found],
            blocking["source"].to_numpy()[found],
        )
        return [
            _line(events, rank, calls, blocked, queues.values, launcher, all_threads=all_threads)
            for rank in ranks
        ]

    processes = ranks_of_processes(trace)
    made = in_parallel(processes.items(), of_process, events=trace.events.height)
    lines = sorted((line for some in made for line in some), key=lambda line: line.rank)
    return _joined(trace, lines, launcher)


def _joined(trace: Trace, lines: list[_Line], launcher: Rows) -> HostLines:
    """The lines of all ranks, one behind the other; what follows from their rows is made only now, for all at once.

    ``launcher`` counts from the first call of each line, and afterwards from the first of all.
    """
    assert trace.calls is not None
    first = np.cumsum([0, *(line.row.size for line in lines)])
    row, leads_to = np.empty((2, first[-1]), dtype=np.int32)

    def place(number: int) -> None:
        line, (low, high) = lines[number], first[number : number + 2].tolist()
        row[low:high] = line.row
        base, own = trace.rows_of(line.rank)[0], launcher[slice(*trace.rows_of(line.rank))]
        leads_to[low:high] = _next_launched(own, high - low, base)
        own[own >= 0] += low

    in_parallel(range(len(lines)), place, events=row.size)
    held = [(line.waited.holds, low) for line, low in zip(lines, first.tolist(), strict=False)]
    awaited = [(line.waited.awaited, low) for line, low in zip(lines, first.tolist(), strict=False)]
    return HostLines(
        calls=trace.calls,
        ranks=(np.asarray([line.rank for line in lines], dtype=np.int32), first),
        row=row,
        start=Gathered(trace.calls["start_ns"].to_numpy(), row),
        end=Gathered(trace.calls["end_ns"].to_numpy(), row),
        awaited=Sparse.of(
            np.concatenate([of.at + np.int32(low) for of, low in awaited]),
            np.concatenate([of.value for of, _ in awaited]),
            row.size,
        ),
        holds=Sets.ordered(
            np.concatenate([sets.owner + low for sets, low in held]),
            np.concatenate([sets.event for sets, _ in held]),
        ),
        leads_to=leads_to,
        launcher=launcher,
        blocking_calls=sum(line.blocking for line in lines),
        unresolved_calls=sum(line.waited.unresolved for line in lines),
        early_returns=sum(line.waited.early for line in lines),
    )


@dataclass(frozen=True)
class _Events:
    """What is asked of the events of a trace.

    Attributes:
        trace: the trace.
        end: end of each event, ns.
        ready: time from which each no longer waited for other ranks.
        queues: what is ahead of each, and what it awaits.
    """

    trace: Trace
    end: Ints
    ready: Sparse
    queues: Queues

    def held_by(self, rows: Rows) -> Rows:
        """The event that each of some waited for last, on its queue or another; -1 if none."""
        ahead, signal = self.queues.before[rows], self.queues.awaited[rows]
        by_signal = (signal >= 0) & ((ahead < 0) | (self.end[signal] > self.end[ahead]))
        held: Rows = np.where(by_signal, signal, ahead)
        return held


class _Blocked(NamedTuple):
    """The synchronising calls of a process: position among its outermost calls, kind, and source."""

    call: Rows
    kind: Ints
    source: Ints


class _Line(NamedTuple):
    """The line of one rank; calls are counted from its first."""

    rank: int
    row: Rows
    waited: _Waited
    blocking: int


def _line(
    events: _Events,
    rank: int,
    calls: _Calls,
    blocked: _Blocked,
    values: Sets,
    launcher: Rows,
    *,
    all_threads: bool,
) -> _Line:
    """The line of a rank; writes into ``launcher`` which of its calls launched each of the rank's events."""
    trace = events.trace
    assert trace.launches is not None
    first, last = trace.rows_of(rank)
    launches = trace.launches.slice(first, last - first)
    thread = launches["thread"].fill_null(-1).to_numpy()
    launched = launches["launch_ns"].is_not_null().to_numpy()
    time = launches["launch_ns"].fill_null(-1).to_numpy()
    callers = pl.Series(thread if launched.all() else thread[launched]).unique().sort().to_list()

    member = [
        np.arange(*span, dtype=np.int32)
        for number, span in calls.spans.items()
        if all_threads or number in callers
    ]
    chosen = np.concatenate(member) if member else np.empty(0, dtype=np.int32)
    start, end = calls.start[chosen], calls.end[chosen]
    if len(member) > 1 or np.any(end[1:] < end[:-1]):
        order = np.lexsort((start, end))
        chosen, start, end = chosen[order], start[order], end[order]
    position = np.full(calls.row.size, -1, dtype=np.int32)  # outermost call -> place in the line
    position[chosen] = np.arange(chosen.size, dtype=np.int32)

    called = launcher[first:last]
    for number in callers:
        mine = np.flatnonzero(launched & (thread == number))
        found = calls.at(number, time[mine])
        called[mine[found >= 0]] = position[found[found >= 0]]

    of_rank = trace.events.slice(first, last - first)
    crosses = trace.names["text"].str.contains("DtoH|HtoD").fill_null(False).to_numpy()
    waits = _Waits(
        begun=start,
        returned=end,
        first_event=first,
        launch=np.where(launched, time, np.iinfo(np.int64).max),
        of_rank=of_rank,
        called=called,
        pageable=crosses[of_rank["name"].to_numpy()] & trace.is_class(rank, ["memory"]),
        events=events,
    )
    at = position[blocked.call]
    here = at >= 0
    waited = waits.of(at[here], blocked.kind[here], blocked.source[here], values)
    return _Line(
        rank=rank,
        row=calls.row[chosen],
        waited=waited,
        blocking=int(here.sum()),
    )


def _before(start: Ints, end: Ints) -> Rows:
    """For each call of a line (in order of end) the one that ended last, not after its start; -1 if none did."""
    places = np.arange(-1, start.size - 1, dtype=np.int32)
    # Most begin when the one ahead has ended; only the others have to be looked up.
    before: Rows = places.copy()
    overlapping = np.flatnonzero(end[:-1] > start[1:]) + 1
    found = np.searchsorted(end, start[overlapping], side="right") - 1
    before[overlapping] = np.minimum(found, places[overlapping])
    return before


def _next_launched(called: Rows, size: int, first_event: int) -> Rows:
    """For each call of a line the event that it, or the next call that launches one, launched; -1 if none does."""
    launched = np.full(size + 1, -1, dtype=np.int32)
    events = np.flatnonzero(called >= 0)[::-1]
    launched[called[events]] = first_event + events  # the first of several (CUDA graphs) wins
    places = np.where(launched[:-1] >= 0, np.arange(size, dtype=np.int32), np.int32(size))
    following = np.minimum.accumulate(places[::-1])[::-1]
    events_of: Rows = launched[following]
    return events_of


@dataclass(frozen=True)
class _Waited:
    """What the calls of one line waited for: ``awaited`` and ``holds`` of ``HostLines``, and counts."""

    awaited: Sparse
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
        of_rank: the rank's events.
        called: position in the line of the call that launched each event, -1 if unknown.
        pageable: an asynchronous copy that blocks if its memory is pageable.
        events: all events of the trace.
    """

    begun: Ints
    returned: Ints
    first_event: int
    launch: Ints
    of_rank: pl.DataFrame
    called: Rows
    pageable: NDArray[np.bool_]
    events: _Events

    @property
    def end(self) -> Ints:
        """End of every event of the trace."""
        return self.events.end

    def of(self, place: Rows, kind: Ints, source: Ints, values: Sets) -> _Waited:
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
        possible = (self.end[event] <= returned) & (self.events.ready[event] <= returned)
        call, event = call[possible], event[possible]
        order = np.lexsort((event, call))
        call, event = call[order], event[order]
        once = np.ones(call.size, dtype=bool)
        once[1:] = (call[1:] != call[:-1]) | (event[1:] != event[:-1])
        call, event = call[once], event[once]
        holds = Sets.ordered(call, event)
        awaited = self._inside(holds.latest(self.end, self.begun.size, self.end[event] > self.begun[call]))
        return _Waited(
            awaited,
            holds,
            unresolved=int(recorded.sum()) - int(np.unique(entry).size),
            early=int((self.end[awaited.value] > self.returned[awaited.at]).sum()),
        )

    def _inside(self, latest: Sparse) -> Sparse:
        """What each call waited for, of which the path can go on: it began before the call returned.

        Work that seems to begin after the return is shorter than the clocks differ (a copy of 4 bytes): what that
        waited for held the call.
        """
        call, event = latest.at, latest.value.copy()
        for _ in range(_SHORT_IN_A_ROW):
            late = np.flatnonzero((event >= 0) & (self.events.ready[event] > self.returned[call]))
            if not late.size:
                break
            event[late] = self.events.held_by(event[late])
        outside = (self.events.ready[event] > self.returned[call]) | (self.end[event] <= self.begun[call])
        event[outside] = -1
        return Sparse.of(call, event, latest.size)

    def _all_launched(self, place: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        """Calls, and the latest-ending event of each queue among those launched before them."""
        calls: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)]
        events: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)]
        if not place.size:
            return calls[0], events[0]
        ends = self.end[self.first_event : self.first_event + self.launch.size]
        queues, keys = queue_codes(self.of_rank)
        for queue in range(keys.size):
            mine = np.flatnonzero(queues == queue)
            launch = self.launch[mine]
            if np.any(launch[1:] < launch[:-1]):
                mine = mine[np.argsort(launch, kind="stable")]
            latest = mine[running_latest(ends[mine])]
            earlier = np.searchsorted(self.launch[mine], self.begun[place], side="left")
            calls.append(place[earlier > 0])
            events.append(self.first_event + latest[earlier[earlier > 0] - 1])
        return np.concatenate(calls), np.concatenate(events)

    def _own_copies(self, place: Rows, candidates: NDArray[np.bool_]) -> tuple[Rows, Rows]:
        """Calls, and the event of each that it launched itself (of several the last to end)."""
        if not place.size:
            return place, place
        ends = self.end[self.first_event : self.first_event + self.launch.size]
        own = np.full(self.begun.size, -1, dtype=np.int32)
        asked = np.zeros(self.begun.size, dtype=bool)
        asked[place] = True
        events = np.flatnonzero(candidates)
        events = events[asked[self.called[events]]]
        events = events[np.argsort(ends[events], kind="stable")]
        own[self.called[events]] = self.first_event + events
        return place[own[place] >= 0], own[place][own[place] >= 0]

    def _blocked(self, call: Rows, event: Rows) -> NDArray[np.bool_]:
        """Did an asynchronous copy block? If it ended inside its call, up to the clocks if that was a long one."""
        late = self.end[event] - self.returned[call]
        long = self.returned[call] - self.begun[call] >= 2 * CLOCK_NS
        blocked: NDArray[np.bool_] = late <= np.where(long, CLOCK_NS, JITTER_NS)
        return blocked
