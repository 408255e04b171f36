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

from nsysddp.dependencies.queues import running_latest
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]


JITTER_NS = NS_PER_US
"""GPU and host clocks are matched to within this: a call can seem to return just before what it waited for ended."""


class Blocking(IntEnum):
    """What a synchronising call waits for."""

    NOTHING = 0
    DEVICE = 1
    STREAM = 2
    EVENT = 3
    COPY = 4
    COPY_TO_HOST = 5


_BLOCKING_APIS = (
    (Blocking.DEVICE, r"(cuda(Device|Thread)|cuCtx)Synchronize"),
    (Blocking.DEVICE, r"cuda(Free|FreeHost)|cuMemFree(Host)?"),  # waits for the device before it unmaps
    (Blocking.STREAM, r"(cuda|cu)StreamSynchronize"),
    (Blocking.EVENT, r"(cuda|cu)EventSynchronize"),
    (Blocking.COPY, r"(cuda|cu)Memcpy(?!.*Async).*"),
    # An asynchronous copy to pageable memory blocks all the same (`.item()`); to pinned memory it returns at once.
    (Blocking.COPY_TO_HOST, r"(cuda|cu)Memcpy.*Async.*"),
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
        leads_to: row of EVENTS that the call, or the next call of the line that launches, launched (-1: none does).
        launcher: for each event the position of the call that launched it, -1 if unknown; shape (events,).
        blocking_calls: synchronising calls in the lines.
        unresolved_calls: of those, the ones for which nothing says what they waited for.
    """

    rank: NDArray[np.int32]
    row: Ints
    thread: Ints
    start: Ints
    end: Ints
    before: Ints
    awaited: Ints
    leads_to: Ints
    launcher: Ints
    blocking_calls: int
    unresolved_calls: int

    @classmethod
    def empty(cls, events: int) -> HostLines:
        """The lines of a trace without calls."""
        none = np.empty(0, dtype=np.int64)
        nobody = np.full(events, -1, dtype=np.int64)
        return cls(none.astype(np.int32), none, none, none, none, none, none, none, nobody, 0, 0)


def host_lines(
    trace: Trace,
    calls: Calls,
    blocking: pl.DataFrame,
    ready: Ints,
    *,
    all_threads: bool = False,
) -> HostLines:
    """The line of every rank, with what its synchronising calls waited for.

    Args:
        trace: events, launches and calls.
        calls: the folded calls of the trace.
        blocking: the synchronising calls: ``row`` (of ``Trace.calls``), ``kind`` (Blocking) and ``target`` (row of
            the event that a stream or event call waits for, -1 if it is not known).
        ready: time from which each event no longer waited for other ranks, shape (events,).
        all_threads: let threads that only poll take part.
    """
    assert trace.calls is not None
    assert trace.launches is not None
    end_of_event = trace.events["end_ns"].to_numpy()
    thread_of_call = trace.calls["thread"].to_numpy()
    is_copy_to_host = trace.names["text"].str.contains("DtoH").fill_null(False).to_numpy()
    to_host = is_copy_to_host[trace.events["name"].to_numpy()]
    launcher = np.full(trace.events.height, -1, dtype=np.int64)
    position = np.full(calls.row.size, -1, dtype=np.int64)  # folded call -> place in the line at hand
    lines: list[tuple[int, Ints, Ints, Ints, Ints]] = []
    counted = unresolved = base = 0

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

        awaited, seen, unknown = _awaited(
            calls,
            blocking,
            position,
            line,
            called,
            first,
            np.where(launched, time, np.iinfo(np.int64).max),
            to_host[first:last],
            ready,
            end_of_event,
        )
        counted += seen
        unresolved += unknown
        before = np.where(before >= 0, before + base, -1)
        lines.append((rank, line, before, awaited, _next_launched(called, line.size, first)))
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
        before=joined([before for _, _, before, *_ in lines]),
        awaited=joined([awaited for *_, awaited, _ in lines]),
        leads_to=joined([leads_to for *_, leads_to in lines]),
        launcher=launcher,
        blocking_calls=counted,
        unresolved_calls=unresolved,
    )


def _next_launched(called: Ints, size: int, first_event: int) -> Ints:
    """For each call of a line the event that it, or the next call that launches one, launched; -1 if none does."""
    launched = np.full(size, -1, dtype=np.int64)
    events = np.flatnonzero(called >= 0)[::-1]
    launched[called[events]] = first_event + events  # the first of several (CUDA graphs) wins
    places = np.where(launched >= 0, np.arange(size), size)
    following = np.minimum.accumulate(places[::-1])[::-1]
    return np.append(launched, -1)[following]


def _awaited(
    calls: Calls,
    blocking: pl.DataFrame,
    position: Ints,
    line: Ints,
    called: Ints,
    first_event: int,
    launch: Ints,
    to_host: NDArray[np.bool_],
    ready: Ints,
    end_of_event: Ints,
) -> tuple[Ints, int, int]:
    """For each call of one rank's line the event that it waited for, -1 if none.

    It waited only if that event ended while it ran: what had ended before costs nothing, and what ended after the
    call returned cannot have held it.
    """
    outer = calls.outermost[blocking["row"].to_numpy()]
    place = position[outer]
    here = place >= 0
    place = place[here]
    kind = blocking["kind"].to_numpy()[here]
    target = blocking["target"].to_numpy()[here].copy()
    ends = end_of_event[first_event : first_event + launch.size]

    # Device: all work of the rank that was launched before it, so the latest end of that.
    by_launch = np.argsort(launch, kind="stable")
    latest = by_launch[running_latest(ends[by_launch])]
    device = np.flatnonzero(kind == Blocking.DEVICE)
    earlier = np.searchsorted(launch[by_launch], calls.start[line[place[device]]], side="left")
    target[device] = np.where(earlier > 0, first_event + latest[earlier - 1], -1) if latest.size else -1

    # Copy: its own event.
    for what, candidates in ((Blocking.COPY, called >= 0), (Blocking.COPY_TO_HOST, (called >= 0) & to_host)):
        own = np.full(line.size, -1, dtype=np.int64)
        events = np.flatnonzero(candidates)
        events = events[np.argsort(ends[events], kind="stable")]
        own[called[events]] = first_event + events  # the last to end wins
        copy = kind == what
        target[copy] = own[place[copy]]

    unknown = int(((target < 0) & ((kind == Blocking.STREAM) | (kind == Blocking.EVENT))).sum())
    begun, returned = calls.start[line[place]], calls.end[line[place]]
    held = (
        (target >= 0)
        & (end_of_event[target] > begun)
        & (end_of_event[target] <= returned + JITTER_NS)
        & (ready[target] <= returned)
    )
    awaited = np.full(line.size, -1, dtype=np.int64)
    awaited[place[held]] = target[held]
    return awaited, int(place.size), unknown
