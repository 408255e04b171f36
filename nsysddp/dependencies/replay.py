"""When would everything have run, had durations, the host or the collectives been others? A replay of the recorded run.

Every event and host call starts when all that it waited for is done, plus a start-up time; collectives transfer when
the last rank has arrived::

    start(event) = max(end(ahead in its queue), end(all that its stream waits for), end(its launch call)) + latency
    end(event)   = start + duration         of a matched collective: max(start of all whom it waits for) + transfer
    start(call)  = end(call before it on the rank's line) + the host's own time between the two
    end(call)    = start + duration         of one that waits: max(start + own part, end(all that it awaits) + return)

Unlike the critical path, which keeps only the binding edge of each node, *all* recorded edges take part here, because a
change can make another one bind: a collective keeps what is ahead on its stream and all that produced its data, and a
synchronising call keeps what it had to wait for even where that had ended before. Latencies are not replayed one by
one but as the mean of their kind, so that a replay with nothing changed is a test of the model and not a copy: its
error against the recorded steps is the *self-replay error*. Single latencies beyond ``ODD_NS`` are unexplained and are
kept with their event.

How it is solved is said in ``condensed``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.condensed import Structure, Weights, latest, solve
from nsysddp.dependencies.graph import Graph
from nsysddp.dependencies.launch_order import held_in_order
from nsysddp.dependencies.queues import event_queues
from nsysddp.model.errors import AnalysisError
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.questions.attribution import Attribution

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.integer[Any]]


ODD_NS = 20 * NS_PER_US
"""A latency above this is not explained by the edges that were recorded, and stays with its event."""

RETURN_NS = 5 * NS_PER_US
"""Of a call that waited for the GPU, at most this is the host's own time before the wait."""

AHEAD, WAIT, LAUNCH, EARLY = range(4)
"""What an event waits for: the one ahead, one of another queue, the end of its launch call, or that call's start."""


@dataclass(frozen=True)
class Program:
    """All nodes of a replay: the events, the calls of the host lines, then what a scenario adds.

    Attributes:
        structure: who waits for whom.
        weights: how long everything takes.
        latency: mean time from what an event waits for (``AHEAD`` ...) to its start, for work and for communication;
            shape (4, 2).
        events: number of events of the trace, which come first.
        is_call: calls of the host; shape (nodes,).
    """

    structure: Structure
    weights: Weights
    latency: Floats
    events: int
    is_call: Flags

    @property
    def duration(self) -> Floats:
        """Of each node, in ns; of a matched collective its transfer, of a call its own time."""
        return self.weights.duration

    def having(self, **weights: Floats) -> Program:
        """The same with other weights, by their names in ``Weights``."""
        return replace(self, weights=replace(self.weights, **weights))

    def apart(self, nodes: Flags) -> Program:
        """The same where these nodes wait for no other rank."""
        alone = np.where(nodes, -1, self.structure.arrival)
        return replace(self, structure=replace(self.structure, arrival=alone))

    def with_host(self, scale: float) -> Program:
        """The same with all of the host's own time scaled."""
        if scale == 1:
            return self
        host, of = self.is_call, self.weights
        return self.having(
            duration=np.where(host, of.duration * scale, of.duration),
            ahead_lag=np.where(host, of.ahead_lag * scale, of.ahead_lag),
        )


@dataclass(frozen=True)
class Schedule:
    """Start and end of every node in ns; shape (nodes,). Calls of the host may be left out, and are 0 then."""

    start: Floats
    end: Floats


def run(program: Program, *, calls: bool = True) -> Schedule:
    """Start and end of every node, each as soon as all that it waits for allows.

    Args:
        program: to be run.
        calls: also of the calls of the host.

    Raises:
        AnalysisError: nodes wait for each other in a circle, or one starts before what produced its data has ended.
    """
    schedule = Schedule(*solve(program.structure, program.weights, calls=calls))
    these, lag = program.structure, program.weights.wait_lag
    if np.any(schedule.start[these.waiting] < schedule.end[these.awaited] + lag - 1):
        raise AnalysisError("in the replay an event starts before what it waits for has ended")
    return schedule


def slack(program: Program, schedule: Schedule, steps: Steps) -> Floats:
    """How much later could each matched collective have ended on its rank, without a step getting longer?

    No event may end after the end of its step, that is after all events of the step and of those before it.

    Returns:
        ns, shape (nodes,); NaN for nodes that are no matched collectives, infinite outside the steps.
    """
    deadline = np.full(schedule.end.size, np.inf)
    deadline[: steps.index.size] = steps.deadlines(schedule.end)
    room = latest(program.structure, program.weights, deadline) - schedule.end
    least = float(np.nanmin(room, initial=0.0))
    if least < -1:
        raise AnalysisError("in the replay a collective ends later than its step")
    return np.maximum(room, 0.0)


def recorded(graph: Graph) -> Program:
    """The program of a trace as it ran, with mean latencies.

    Edges that were not kept when it ran (an event that started before what it waited for had ended) keep the recorded,
    negative lag.
    """
    trace, lines = graph.trace, graph.lines
    events, calls = trace.events.height, lines.start.size
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    waits = graph.queues.awaits
    lags = _latencies(graph, start, end)
    arrival, meeting, member = _arrivals(graph)
    transfer = end - start
    joined = np.flatnonzero(arrival >= 0)
    transfer[joined] = end[joined] - np.maximum(graph.ready[joined], start[joined])
    own, hold_lag = _returns(graph, end)

    size = events + calls

    def of_calls(values: NDArray[Any] | None, also: NDArray[Any] | None, dtype: Any = np.float64) -> Any:
        """Values of the events, then of the calls; where there are none, zeros that take no memory."""
        made = np.zeros(size, dtype=dtype)
        for part, here in ((values, slice(0, events)), (also, slice(events, size))):
            if part is not None:
                made[here] = part
        return made

    before = lines.before
    rows = np.int32 if size < 1 << 31 else np.int64
    nobody = np.full(size, -1, dtype=rows)
    nobody[:events] = lines.launcher
    nobody[:events][lines.launcher >= 0] += events
    launcher = nobody
    ahead = np.concatenate([graph.queues.before, before], dtype=rows)
    ahead[events:][before >= 0] += events
    met = np.full(size, -1, dtype=rows)
    met[:events] = arrival
    along, opens = _lanes(graph)
    # Of a node that waits for what is ahead of it nobody asks when it would start by itself.
    roots = np.flatnonzero((ahead < 0) | ((launcher < 0) & (np.arange(size) < events)))
    origin = of_calls(None, None)
    origin[roots] = np.where(
        roots < events,
        start[np.minimum(roots, events - 1)],
        lines.start[np.maximum(roots - events, 0)] if calls else 0,
    )
    excess = of_calls(None, None)
    odd = np.flatnonzero(lags.excess)
    excess[odd] = lags.excess[odd]
    begun = lines.start[:]
    gap = begun.astype(np.float64)
    gap -= np.where(before >= 0, lines.end[before], begun) if calls else 0
    made = Program(
        structure=Structure(
            along=along,
            opens=opens,
            ahead=ahead,
            launcher=launcher,
            from_start=of_calls(lags.from_start, None, bool),
            waiting=waits.owner,
            awaited=waits.event,
            holding=events + lines.holds.owner,
            held_by=lines.holds.event,
            arrival=met,
            meeting=meeting,
            member=member,
            calls=(events, size),
        ),
        weights=Weights(
            duration=of_calls(transfer, own),
            ahead_lag=of_calls(lags.ahead, gap),
            launch_lag=of_calls(lags.launch, None),
            excess=excess,
            origin=origin,
            wait_lag=lags.wait,
            hold_lag=hold_lag,
        ),
        latency=lags.mean,
        events=events,
        is_call=np.arange(size) >= events,
    )
    return _in_order(made, start, *held_in_order(graph, lags.excess > 0))


def _lanes(graph: Graph) -> tuple[Ints, Flags]:
    """All nodes, queue by queue and then line by line in the order in which they run; and which begin one."""
    trace, events, calls = graph.trace, graph.events, graph.lines.start.size
    queue = event_queues(trace)
    ordered = len(set(trace.process_of_rank.values())) == len(
        trace.process_of_rank
    )  # no two ranks share a queue
    order = (
        np.argsort(queue.astype(np.int16) if queue.max(initial=0) < 1 << 15 else queue, kind="stable")
        if ordered
        else np.lexsort((trace.events["start_ns"].to_numpy(), queue))
    )
    along = np.concatenate([order, np.arange(events, events + calls)], dtype=np.int64).astype(np.int32)
    opens = np.zeros(events + calls, dtype=bool)
    opens[:events] = np.diff(queue[order], prepend=-1) != 0
    opens[events + graph.lines.ranks[1][:-1][np.diff(graph.lines.ranks[1]) > 0]] = True
    return along, opens


def _in_order(base: Program, start: Ints, held: Ints, holder: Ints) -> Program:
    """The program in which the one event starts after the other has started, because they share a hardware queue.

    Starts are awaited by a node without length that ends at the arrival of its one member, the other event.
    """
    if not held.size:
        return base
    these, of = base.structure, base.weights
    number, nodes = np.arange(held.size), these.along.size + np.arange(held.size)
    arrival = int(max(these.arrival.max(initial=-1), these.meeting.max(initial=-1))) + 1 + number
    late = (start[held] - start[holder]).astype(np.float64)
    bound = of.excess[held] > 0
    usual = float(np.median(late[bound & (late <= ODD_NS)]))
    excess = of.excess.copy()
    excess[held[late <= ODD_NS]] = 0.0

    def more(have: NDArray[Any], value: NDArray[Any] | float) -> NDArray[Any]:
        return np.concatenate([have, np.broadcast_to(value, held.size)]).astype(have.dtype)

    structure = replace(
        these,
        along=more(these.along, nodes),
        opens=more(these.opens, 1),  # each in a lane of its own
        ahead=more(these.ahead, -1),
        launcher=more(these.launcher, -1),
        from_start=more(these.from_start, 0),
        waiting=more(these.waiting, held),
        awaited=more(these.awaited, nodes),
        arrival=more(these.arrival, arrival),
        meeting=more(these.meeting, arrival),
        member=more(these.member, holder),
    )
    weights = replace(
        of,
        duration=more(of.duration, 0),
        ahead_lag=more(of.ahead_lag, 0),
        launch_lag=more(of.launch_lag, 0),
        excess=more(excess, 0),
        origin=more(of.origin, start[holder]),
        wait_lag=more(of.wait_lag, np.minimum(usual, late)),
    )
    return replace(base, structure=structure, weights=weights, is_call=more(base.is_call, 0))


@dataclass(frozen=True)
class _Lags:
    """From what an event waits for to its start: of each event, of each wait, and the means that they come from."""

    ahead: Floats
    launch: Floats
    wait: Floats
    excess: Floats
    from_start: Flags
    mean: Floats


def _latencies(graph: Graph, start: Ints, end: Ints) -> _Lags:
    """The lag of every edge: the mean of its kind, at most what was recorded where another edge bound the event."""
    lines, waits = graph.lines, graph.queues.awaits
    # The copy that held its own call was launched at its start, whatever the clocks say of its end.
    own = np.zeros(start.size, dtype=bool)
    own[lines.holds.event[lines.launcher[lines.holds.event] == lines.holds.owner]] = True
    side = (graph.trace.events["class"] == "communication").to_numpy().astype(np.int8)
    made = _Lags(
        ahead=np.zeros(start.size),
        launch=np.zeros(start.size),
        wait=np.zeros(waits.event.size),
        excess=np.zeros(start.size),
        from_start=np.zeros(start.size, dtype=bool),
        mean=np.zeros((4, 2)),
    )

    def sums(rank: int) -> Floats:
        """Sum and number of the latencies of each kind."""
        here = slice(*graph.trace.rows_of(rank))
        slack = _Slack.of(graph, rank, start, end, own)
        usual = np.flatnonzero(slack.latency <= ODD_NS)
        kind = slack.binding[usual] * 2 + side[here][usual]
        latency = slack.latency[usual]
        return np.stack([np.bincount(kind, latency, 8), np.bincount(kind, minlength=8)])

    def fill(rank: int) -> None:
        first, last = graph.trace.rows_of(rank)
        here, there = slice(first, last), waits.of_things(first, last)
        slack = _Slack.of(graph, rank, start, end, own)
        of_side, hangs = side[here], np.isfinite(slack.latency)

        def lag(kind: int, recorded: Floats) -> Floats:
            # What did not bind held nothing back then, and a violated edge keeps the lag that it had: two clocks, or
            # programmatic dependent launch.
            typical = made.mean[kind][of_side]
            binds = hangs & (slack.binding == kind) & (recorded >= 0)
            return np.where(
                np.isfinite(recorded), np.where(binds, typical, np.minimum(typical, recorded)), 0.0
            )

        made.ahead[here] = lag(AHEAD, slack.ahead)
        early, late = lag(EARLY, slack.early), lag(LAUNCH, slack.launch)
        made.from_start[here] = slack.from_start
        made.launch[here] = np.where(slack.from_start, early, late)
        owner = waits.owner[there] - first
        typical = made.mean[WAIT][of_side[owner]]
        bound = (hangs & (slack.binding == WAIT))[owner] & (slack.waits == slack.latency[owner])
        made.wait[there] = np.where(bound, typical, np.minimum(typical, slack.waits))
        odd = np.flatnonzero(hangs & (slack.latency > ODD_NS))
        made.excess[first + odd] = slack.latency[odd] - made.mean[slack.binding[odd], of_side[odd]]

    total, number = np.sum(graph.trace.each_rank(sums), axis=0)
    made.mean[:] = (total / np.maximum(number, 1)).reshape(4, 2)
    graph.trace.each_rank(fill)
    return made


@dataclass(frozen=True)
class _Slack:
    """Between what the events of a rank waited for and their starts, in ns; infinite where there is nothing.

    Attributes:
        ahead, launch, early: of each kind of edge; shape (events of the rank,).
        waits: of each wait of the rank's events.
        from_start: the launch call still ran, so its start is what was waited for.
        binding: kind of the least that was kept.
        latency: that least, infinite where there is none.
    """

    ahead: Floats
    launch: Floats
    early: Floats
    waits: Floats
    from_start: Flags
    binding: NDArray[np.int8]
    latency: Floats

    @classmethod
    def of(cls, graph: Graph, rank: int, start: Ints, end: Ints, own: Flags) -> _Slack:
        """Of the events of one rank; ``own`` are copies that held their own calls."""
        lines, waits = graph.lines, graph.queues.awaits
        first, last = graph.trace.rows_of(rank)
        begun = start[first:last]
        ahead, call = graph.queues.before[first:last], lines.launcher[first:last]
        entries = waits.of_things(first, last)
        owner, event = waits.owner[entries] - first, waits.event[entries]
        recorded = (begun[owner] - end[event]).astype(np.float64)
        by_wait = np.full(begun.size, np.inf)
        np.minimum.at(by_wait, owner, np.where(recorded >= 0, recorded, np.inf))
        behind = np.where(ahead >= 0, begun - end[ahead], np.inf)
        by_launch, by_early = np.full((2, begun.size), np.inf)
        from_start = np.zeros(begun.size, dtype=bool)
        known = np.flatnonzero(call >= 0)
        if known.size:
            closed = lines.end[call[known]]
            early = (closed > begun[known]) | own[first:last][known]
            from_start[known] = early
            by_launch[known[~early]] = (begun[known] - closed)[~early]
            by_early[known[early]] = (begun[known] - lines.start[call[known]])[early]
        binding = np.full(begun.size, AHEAD, dtype=np.int8)
        latency = np.where(behind >= 0, behind, np.inf)
        for kind, slack in ((WAIT, by_wait), (LAUNCH, by_launch), (EARLY, by_early)):
            less = (slack >= 0) & (slack < latency)
            binding[less], latency[less] = kind, slack[less]
        return cls(behind, by_launch, by_early, recorded, from_start, binding, latency)


def _arrivals(graph: Graph) -> tuple[Ints, Ints, Ints]:
    """The arrival of each event (-1 if none), and whose starts every arrival has to wait for.

    A collective of all has one arrival; of a send, a receive or a rooted collective each rank has its own.
    """
    table = graph.trace.collectives.filter(
        pl.Series(graph.matched[graph.trace.collectives["event"].to_numpy()])
    )
    arrival = np.full(graph.events, -1, dtype=np.int64)
    together = table.filter(pl.col("ready_peers").is_null())
    event = together["event"].to_numpy()
    number = np.unique(together["collective_id"].to_numpy(), return_inverse=True)[1].ravel().astype(np.int64)
    several = np.bincount(number, minlength=1)[number] > 1 if number.size else np.empty(0, dtype=bool)
    arrival[event[several]] = number[several]
    first = int(number.max(initial=-1)) + 1
    pairs = table.filter(pl.col("ready_peers").is_not_null())
    own = pairs["event"].to_numpy()
    arrival[own] = first + np.arange(own.size)
    peers = (
        pairs.select("event", peer="ready_peers")
        .explode("peer")
        .drop_nulls("peer")
        .filter(pl.col("peer") != pl.col("event"))
    )
    meeting = np.concatenate([number[several], arrival[own], arrival[peers["event"].to_numpy()]])
    member = np.concatenate([event[several], own, peers["peer"].to_numpy()])
    return arrival, meeting.astype(np.int64), member.astype(np.int64)


def _returns(graph: Graph, end: Ints) -> tuple[Floats, Floats]:
    """Own time of each call, and for each that waits the time from the end of what it waits for to its return.

    What had ended before the call began keeps the usual time, at most what was recorded.
    """
    lines = graph.lines
    holds = lines.holds
    own = (lines.end[:] - lines.start[:]).astype(np.float64)
    held = holds.latest(end, own.size, end[holds.event] > lines.start[holds.owner])
    own[held.at] = np.minimum(own[held.at], RETURN_NS)
    after = (lines.end[holds.owner] - end[holds.event]).astype(np.float64)
    binds = held[holds.owner] == holds.event
    usual = float(np.median(after[binds])) if binds.any() else 0.0
    return own, np.where(binds, after, np.minimum(max(usual, 0.0), after))


@dataclass(frozen=True)
class Steps:
    """Which events end which step, and how long the recorded steps are.

    Attributes:
        index: step of each event, -1 for none; shape (events,). All 0 where there are no steps.
        numbers: the steps, ascending.
        names: their names; None for the whole capture.
        steady: which of them are not warm-up; the first is left out where there are more, since it starts from rest.
        begin: start of the capture, ns.
    """

    index: Ints
    numbers: Ints
    names: tuple[str | None, ...]
    steady: NDArray[np.bool_]
    begin: float

    @cached_property
    def _runs(self) -> tuple[Ints, Ints]:
        """Where runs of events of one step begin, and the step of each."""
        first = np.flatnonzero(np.diff(self.index, prepend=-2))
        return first, self.index[first]

    def lengths(self, end: Floats, added: Mapping[int, int] | None = None) -> Floats:
        """Length of each step: from the end of the steps before to the end of its last event, over all ranks.

        Args:
            end: ends of the nodes, the events first.
            added: step of each node that a scenario added and that is an event.
        """
        finish = np.full(self.numbers.size, -np.inf)
        first, of = self._runs
        if first.size:
            latest = np.maximum.reduceat(end[: self.index.size], first)
            np.maximum.at(finish, np.searchsorted(self.numbers, of[of >= 0]), latest[of >= 0])
        for node, step in (added or {}).items():
            where = int(np.searchsorted(self.numbers, step))
            finish[where] = max(finish[where], end[node])
        return np.diff(np.maximum.accumulate(finish), prepend=self.begin)

    def deadlines(self, end: Floats) -> Floats:
        """End of the step of each event, infinite for events of none; shape (events,)."""
        finish = self.begin + np.cumsum(self.lengths(end))
        known = self.index >= 0
        made = np.full(self.index.size, np.inf)
        made[known] = finish[np.searchsorted(self.numbers, self.index[known])]
        return made

    def mean(self, lengths: Floats) -> float:
        """Mean over the steady steps, ns."""
        return float(lengths[self.steady].mean())


def steps_of(graph: Graph, launched: Attribution, warm: Sequence[int]) -> Steps:
    """The steps of a trace, with the warm-up steps that are left out."""
    events = graph.trace.events
    begin = float(events["start_ns"].min() or 0)  # type: ignore[arg-type]
    index = launched.step
    if not (index >= 0).any():
        nothing = np.zeros(events.height, dtype=np.int64)
        return Steps(nothing, np.zeros(1, dtype=np.int64), (None,), np.ones(1, dtype=bool), begin)
    numbers = np.unique(index[index >= 0])
    names = dict(launched.steps.select("step_index", "name").iter_rows())
    steady = ~np.isin(numbers, np.asarray(list(warm), dtype=np.int64))
    if steady.sum() > 1 and steady[0]:
        steady[0] = False
    return Steps(index, numbers, tuple(names.get(int(number)) for number in numbers), steady, begin)
