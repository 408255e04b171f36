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

    Ints = NDArray[np.integer[Any]]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

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
        host, of = self.is_call, self.weights
        return self.having(
            duration=np.where(host, of.duration * scale, of.duration),
            ahead_lag=np.where(host, of.ahead_lag * scale, of.ahead_lag),
        )


@dataclass(frozen=True)
class Schedule:
    """Start and end of every node in ns; shape (nodes,)."""

    start: Floats
    end: Floats


def run(program: Program) -> Schedule:
    """Start and end of every node, each as soon as all that it waits for allows.

    Raises:
        AnalysisError: nodes wait for each other in a circle, or one starts before what produced its data has ended.
    """
    schedule = Schedule(*solve(program.structure, program.weights))
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


# --- the program that was recorded -----------------------------------------------------------------------------------


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
    transfer = np.where(arrival >= 0, end - np.maximum(graph.ready, start), end - start)
    own, hold_lag = _returns(graph, end)

    def joined(of_events: Ints | Floats | float, of_calls: Ints | Floats | float) -> Floats:
        return np.concatenate(
            [np.broadcast_to(of_events, events), np.broadcast_to(of_calls, calls)], dtype=np.float64
        )

    def numbered(of_events: Ints, of_calls: Ints) -> Ints:
        return np.concatenate([of_events, of_calls])

    nobody = np.full(calls, -1, dtype=np.int64)
    before = lines.before
    gap = np.where(before >= 0, lines.start - lines.end[before], 0) if calls else before
    begun = joined(start, lines.start)
    launcher = np.where(lines.launcher >= 0, lines.launcher + events, -1)
    made = Program(
        structure=Structure(
            lane=numbered(
                event_queues(trace),
                events + lines.rank.astype(np.int64),
            ),
            place=joined(start, np.arange(calls)),
            ahead=numbered(graph.queues.before, np.where(before >= 0, before + events, -1)),
            launcher=numbered(launcher, nobody),
            from_start=np.concatenate([lags.from_start, np.zeros(calls, dtype=bool)]),
            waiting=waits.owner,
            awaited=waits.event,
            holding=events + lines.holds.owner,
            held_by=lines.holds.event,
            arrival=numbered(arrival, nobody),
            meeting=meeting,
            member=member,
        ),
        weights=Weights(
            duration=joined(transfer, own),
            ahead_lag=joined(lags.ahead, gap),
            launch_lag=joined(lags.launch, 0),
            excess=joined(lags.excess, 0),
            origin=begun,
            wait_lag=lags.wait,
            hold_lag=hold_lag,
        ),
        latency=lags.mean,
        events=events,
        is_call=np.concatenate([np.zeros(events, dtype=bool), np.ones(calls, dtype=bool)]),
    )
    return _in_order(made, start, *held_in_order(graph, lags.excess > 0))


def _in_order(base: Program, start: Ints, held: Ints, holder: Ints) -> Program:
    """The program in which the one event starts after the other has started, because they share a hardware queue.

    Starts are awaited by a node without length that ends at the arrival of its one member, the other event.
    """
    if not held.size:
        return base
    these, of = base.structure, base.weights
    number, nodes = np.arange(held.size), these.lane.size + np.arange(held.size)
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
        lane=more(these.lane, these.lane.max() + 1 + number),
        place=more(these.place, start[holder]),
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
    count = start.size
    side = (graph.trace.events["class"] == "communication").to_numpy().astype(np.int64)
    ahead, call = graph.queues.before, lines.launcher
    slack = np.full((4, count), np.inf)  # between what the event waited for and its start; infinite without
    known = ahead >= 0
    slack[AHEAD, known] = (start - end[ahead])[known]
    wait_slack = (start[waits.owner] - end[waits.event]).astype(np.float64)
    np.minimum.at(slack[WAIT], waits.owner, np.where(wait_slack >= 0, wait_slack, np.inf))
    from_start = np.zeros(count, dtype=bool)
    known = call >= 0
    if known.any():
        # The copy that held its own call was launched at its start, whatever the clocks say of its end.
        own = np.zeros(count, dtype=bool)
        own[lines.holds.event[lines.launcher[lines.holds.event] == lines.holds.owner]] = True
        from_start[known] = (lines.end[call] > start)[known] | own[known]
        slack[LAUNCH, known & ~from_start] = (start - lines.end[call])[known & ~from_start]
        slack[EARLY, from_start] = (start - lines.start[call])[from_start]
    kept = np.where(slack >= 0, slack, np.inf)
    binding, latency = kept.argmin(axis=0), kept.min(axis=0)
    hangs = np.isfinite(latency)
    mean = np.zeros((4, 2))
    for kind in range(4):
        for communicates in (0, 1):
            chosen = hangs & (binding == kind) & (side == communicates) & (latency <= ODD_NS)
            mean[kind, communicates] = latency[chosen].mean() if chosen.any() else 0.0
    typical = mean[:, side]
    binds = (np.arange(4)[:, None] == binding) & hangs
    # What did not bind held nothing back then, and a violated edge keeps the lag that it had: two clocks, or
    # programmatic dependent launch.
    lag = np.where(binds & (slack >= 0), typical, np.minimum(typical, slack))
    of_waits = typical[WAIT, waits.owner]
    bound = binds[WAIT, waits.owner] & (wait_slack == latency[waits.owner])
    excess = np.where(hangs & (latency > ODD_NS), latency - typical[binding, np.arange(count)], 0.0)
    return _Lags(
        ahead=np.where(np.isfinite(lag[AHEAD]), lag[AHEAD], 0.0),
        launch=np.where(from_start, lag[EARLY], lag[LAUNCH]),
        wait=np.where(bound, of_waits, np.minimum(of_waits, wait_slack)),
        excess=excess,
        from_start=from_start,
        mean=mean,
    )


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
    length = (lines.end - lines.start).astype(np.float64)
    held = holds.latest(end, end[holds.event] > lines.start[holds.owner])
    own = np.where(held >= 0, np.minimum(length, RETURN_NS), length)
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

    def lengths(self, end: Floats, added: Mapping[int, int] | None = None) -> Floats:
        """Length of each step: from the end of the steps before to the end of its last event, over all ranks.

        Args:
            end: ends of the nodes, the events first.
            added: step of each node that a scenario added and that is an event.
        """
        finish = np.full(self.numbers.size, -np.inf)
        known = self.index >= 0
        place = np.searchsorted(self.numbers, self.index[known])
        np.maximum.at(finish, place, end[: self.index.size][known])
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
    index = launched.step.astype(np.int64)
    if not (index >= 0).any():
        nothing = np.zeros(events.height, dtype=np.int64)
        return Steps(nothing, np.zeros(1, dtype=np.int64), (None,), np.ones(1, dtype=bool), begin)
    numbers = np.unique(index[index >= 0])
    names = dict(launched.steps.select("step_index", "name").iter_rows())
    steady = ~np.isin(numbers, np.asarray(list(warm), dtype=np.int64))
    if steady.sum() > 1 and steady[0]:
        steady[0] = False
    return Steps(index, numbers, tuple(names.get(int(number)) for number in numbers), steady, begin)


# --- adding nodes ----------------------------------------------------------------------------------------------------


class Draft:
    """A program under change: its dependencies can be set, nodes be added; ``program`` closes it.

    Node arrays can be written to; nodes that are added get what ``add`` says.
    """

    def __init__(self, base: Program) -> None:
        self.base = base
        these, of = base.structure, base.weights
        self.duration, self.ahead_lag, self.excess = of.duration.copy(), of.ahead_lag.copy(), of.excess.copy()
        self.ahead, self.arrival = these.ahead.copy(), these.arrival.copy()
        self.waiting, self.awaited, self.wait_lag = these.waiting.copy(), these.awaited.copy(), of.wait_lag
        self.holding, self.held_by, self.hold_lag = these.holding.copy(), these.held_by.copy(), of.hold_lag
        self.arrivals = int(max(these.arrival.max(initial=-1), these.meeting.max(initial=-1))) + 1
        self.added: list[dict[str, float]] = []
        self._waits: list[tuple[int, int, float]] = []
        self._members: list[tuple[int, int]] = []

    def add(self, **facts: float) -> int:
        """A node by its fields (those of ``Structure`` and ``Weights``; ``origin`` is about when it runs)."""
        self.added.append(facts)
        return self.base.is_call.size + len(self.added) - 1

    def wait(self, node: int, other: int, lag: float) -> None:
        """The start of a node waits for the end of another."""
        self._waits.append((node, other, lag))

    def meet(self, arrival: int, node: int) -> None:
        """An arrival waits for the start of a node."""
        self._members.append((arrival, node))

    def new_arrival(self) -> int:
        """A number for an arrival."""
        self.arrivals += 1
        return self.arrivals - 1

    def forget_waits(self, dropped: Flags) -> None:
        """Leave out waits; shape (waits,)."""
        kept = ~dropped
        self.waiting, self.awaited = self.waiting[kept], self.awaited[kept]
        self.wait_lag = self.wait_lag[kept]

    def take_out(self, nodes: Ints) -> None:
        """These nodes take no time and wait for nothing but the calls ahead of them."""
        self.duration[nodes] = self.excess[nodes] = 0
        self.arrival[nodes] = -1
        self.forget_waits(np.isin(self.waiting, nodes))
        kept = ~np.isin(self.holding, nodes)
        self.holding, self.held_by = self.holding[kept], self.held_by[kept]
        self.hold_lag = self.hold_lag[kept]

    def redirect(self, replaced: Mapping[int, int]) -> None:
        """What waits for the end of one node waits for that of another instead."""
        old = np.fromiter(replaced, dtype=np.int64)
        for name in ("ahead", "awaited", "held_by"):
            column = getattr(self, name)
            for place in np.flatnonzero(np.isin(column, old)).tolist():
                if name != "ahead" or place not in replaced:
                    column[place] = replaced[int(column[place])]

    def program(self) -> Program:
        """Everything together."""
        base, size = self.base, self.base.is_call.size
        these, of = base.structure, base.weights

        def column(name: str, have: NDArray[Any], missing: float = -1) -> NDArray[Any]:
            more = [node.get(name, missing) for node in self.added]
            return np.concatenate([have, np.asarray(more, dtype=have.dtype)])

        def longer(have: NDArray[Any], more: Sequence[float]) -> NDArray[Any]:
            return np.concatenate([have, np.asarray(more, dtype=have.dtype)])

        structure = Structure(
            lane=longer(these.lane, range(-1, -1 - len(self.added), -1)),  # each in a lane of its own
            place=column("origin", these.place, 0),
            ahead=column("ahead", self.ahead),
            launcher=column("launcher", these.launcher),
            from_start=column("from_start", these.from_start, 0),
            waiting=longer(self.waiting, [wait[0] for wait in self._waits]),
            awaited=longer(self.awaited, [wait[1] for wait in self._waits]),
            holding=self.holding,
            held_by=self.held_by,
            arrival=column("arrival", self.arrival),
            meeting=longer(these.meeting, [member[0] for member in self._members]),
            member=longer(these.member, [member[1] for member in self._members]),
        )
        weights = Weights(
            duration=column("duration", self.duration, 0),
            ahead_lag=column("ahead_lag", self.ahead_lag, 0),
            launch_lag=column("launch_lag", of.launch_lag, 0),
            excess=column("excess", self.excess, 0),
            origin=column("origin", of.origin, 0),
            wait_lag=longer(self.wait_lag, [wait[2] for wait in self._waits]),
            hold_lag=self.hold_lag,
        )
        assert structure.lane.size == size + len(self.added)
        return Program(structure, weights, base.latency, base.events, column("is_call", base.is_call, 0))
