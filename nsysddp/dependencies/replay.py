"""When would everything have run, had durations, the host or the collectives been others? A replay of the recorded run.

Every event and host call starts when all that it waited for is done, plus a start-up time; collectives transfer when
the last rank has arrived::

    start(event) = max(end(ahead in its queue), end(what its stream waits for), end(its launch call)) + latency
    end(event)   = start + duration            of a matched collective: max over ranks of start + transfer
    start(call)  = end(call before it on the rank's line) + the host's own time between the two
    end(call)    = start + duration            of one that waits: max(start + own part, end(awaited) + return time)

Unlike the critical path, which keeps only the binding edge of each node, all recorded edges take part here, because a
change can make another one bind. Latencies are not replayed one by one but as the mean of their kind, so that a replay
with nothing changed is a test of the model and not a copy: its error against the recorded steps is the *self-replay
error*. Single latencies beyond ``ODD_NS`` are unexplained and are kept with their event.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.dependencies.graph import Graph
from nsysddp.dependencies.queues import NEVER
from nsysddp.model.errors import AnalysisError
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.questions.steps import Attribution

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

ODD_NS = 20 * NS_PER_US
"""A latency above this is not explained by the edges that were recorded, and stays with its event."""

RETURN_NS = 5 * NS_PER_US
"""Of a call that waited for the GPU, at most this is the host's own time before the wait."""

_UNKNOWN = -(1 << 62)


@dataclass(frozen=True)
class Program:
    """All nodes of a replay: the events, the calls of the host lines, then what a scenario adds.

    Every array has the shape (nodes,). A dependency of -1 is none.

    Attributes:
        duration: of an event, the transfer of a matched collective, or of a call its own time, in ns.
        ahead, awaited, launcher: what it waits for; of a call ``ahead`` is the call before it on its line.
        ahead_lag, awaited_lag, launch_lag: time between the end of that and the start, in ns.
        from_start: the launcher counts from its start: the event ran before the call returned.
        excess: unexplained latency, added to the start.
        held: event for whose end a call waits; -1 if it does not.
        held_lag: time from that end to the call's return.
        group: number of the collective over ranks, -1 if none.
        origin: start of a node that waits for nothing.
        order: nodes in the order in which they started when recorded.
        events: number of events of the trace, which come first.
        is_call: calls of the host.
    """

    duration: Floats
    ahead: Ints
    awaited: Ints
    launcher: Ints
    ahead_lag: Floats
    awaited_lag: Floats
    launch_lag: Floats
    from_start: NDArray[np.bool_]
    excess: Floats
    held: Ints
    held_lag: Floats
    group: Ints
    origin: Floats
    order: Ints
    events: int
    is_call: NDArray[np.bool_]

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The events of each group."""
        found: dict[int, list[int]] = {}
        for node in np.flatnonzero(self.group >= 0).tolist():
            found.setdefault(int(self.group[node]), []).append(node)
        return found

    def with_host(self, scale: float) -> Program:
        """The same with all of the host's own time scaled."""
        host = self.is_call
        return replace(
            self,
            duration=np.where(host, self.duration * scale, self.duration),
            ahead_lag=np.where(host, self.ahead_lag * scale, self.ahead_lag),
        )


@dataclass(frozen=True)
class Schedule:
    """Start and end of every node in ns; shape (nodes,)."""

    start: Floats
    end: Floats


def run(program: Program) -> Schedule:
    """Start and end of every node, each as soon as all that it waits for allows.

    Raises:
        AnalysisError: nodes wait for each other in a circle.
    """
    size = program.duration.size
    start: list[float] = [_UNKNOWN] * size
    end: list[float] = [_UNKNOWN] * size
    duration, excess, origin = program.duration.tolist(), program.excess.tolist(), program.origin.tolist()
    edges = (
        (program.ahead.tolist(), program.ahead_lag.tolist()),
        (program.awaited.tolist(), program.awaited_lag.tolist()),
    )
    (ahead, ahead_lag), (awaited, awaited_lag) = edges
    launcher, launch_lag = program.launcher.tolist(), program.launch_lag.tolist()
    from_start = program.from_start.tolist()
    held, held_lag = program.held.tolist(), program.held_lag.tolist()
    group, members = program.group.tolist(), program.members
    limit = 20 * size + 1000

    def needs_to_start(node: int) -> list[tuple[int, bool]]:
        """Unknown times among what the start of the node hangs on, as (node, whether its end)."""
        missing = []
        for other in (ahead[node], awaited[node]):
            if other >= 0 and end[other] == _UNKNOWN:
                missing.append((other, True))
        call = launcher[node]
        if call >= 0 and (start[call] if from_start[node] else end[call]) == _UNKNOWN:
            missing.append((call, not from_start[node]))
        return missing

    def begin(node: int) -> None:
        latest = _UNKNOWN
        other = ahead[node]
        if other >= 0:
            latest = end[other] + ahead_lag[node]
        other = awaited[node]
        if other >= 0:
            latest = max(latest, end[other] + awaited_lag[node])
        other = launcher[node]
        if other >= 0:
            latest = max(latest, (start[other] if from_start[node] else end[other]) + launch_lag[node])
        start[node] = origin[node] if latest == _UNKNOWN else latest + excess[node]

    def needs_to_end(node: int) -> list[tuple[int, bool]]:
        if start[node] == _UNKNOWN:
            return [(node, False)]
        if group[node] >= 0:
            return [(other, False) for other in members[group[node]] if start[other] == _UNKNOWN]
        if held[node] >= 0 and end[held[node]] == _UNKNOWN:
            return [(held[node], True)]
        return []

    def finish(node: int) -> None:
        if group[node] >= 0:
            arrival = max(start[other] for other in members[group[node]])
            for other in members[group[node]]:
                end[other] = arrival + duration[other]
        elif held[node] >= 0:
            end[node] = max(start[node] + duration[node], end[held[node]] + held_lag[node])
        else:
            end[node] = start[node] + duration[node]

    visits = 0
    for first in program.order.tolist():
        if start[first] == _UNKNOWN and not needs_to_start(first):
            begin(first)
        # Most nodes are ready in recorded order; what is not is looked for along its dependencies.
        if end[first] == _UNKNOWN and start[first] != _UNKNOWN and (group[first] >= 0 or held[first] >= 0):
            continue  # asked for by whoever needs it
        stack = [(first, True)] if end[first] == _UNKNOWN else []
        while stack:
            visits += 1
            if visits > limit:
                raise AnalysisError("the replayed dependencies go in a circle")
            node, wants_end = stack[-1]
            if (end[node] if wants_end else start[node]) != _UNKNOWN:
                stack.pop()
                continue
            missing = needs_to_end(node) if wants_end else needs_to_start(node)
            if missing:
                stack.extend(missing)
            elif wants_end:
                finish(node)
            else:
                begin(node)
    for node in range(size):  # collectives and waiting calls that nobody asked for
        if start[node] != _UNKNOWN and end[node] == _UNKNOWN:
            finish(node)
    return Schedule(np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64))


# --- the program that was recorded -----------------------------------------------------------------------------------


def recorded(graph: Graph) -> Program:
    """The program of a trace as it ran, with mean latencies.

    Edges that were not kept when it ran (an event that started before what it waited for had ended) keep the recorded,
    negative lag.
    """
    trace, lines = graph.trace, graph.lines
    events, calls = trace.events.height, lines.start.size
    start = trace.events["start_ns"].to_numpy()
    end = trace.events["end_ns"].to_numpy()
    communication = (trace.events["class"] == "communication").to_numpy()
    call_start, call_end = lines.start, lines.end

    queue_ahead, awaited, launcher = graph.queues.before, graph.queues.awaited, lines.launcher
    ready = np.full((3, events), NEVER, dtype=np.int64)
    has_ahead, has_wait, has_call = queue_ahead >= 0, awaited >= 0, launcher >= 0
    ready[0, has_ahead] = end[queue_ahead[has_ahead]]
    ready[1, has_wait] = end[awaited[has_wait]]
    from_start = np.zeros(events, dtype=bool)
    if calls:
        ends = call_end[launcher[has_call]]
        from_start[has_call] = ends > start[has_call]
        ready[2, has_call] = np.where(from_start[has_call], call_start[launcher[has_call]], ends)
    kept = np.where(ready <= start, ready, NEVER)
    binding, latest = kept.argmax(axis=0), kept.max(axis=0)
    hangs = latest > NEVER
    latency = np.where(hangs, start - latest, 0)
    mean = np.zeros((3, 2))
    for kind in range(3):
        for side in (0, 1):
            chosen = hangs & (binding == kind) & (communication == bool(side)) & (latency <= ODD_NS)
            mean[kind, side] = latency[chosen].mean() if chosen.any() else 0.0
    lag = mean[:, communication.astype(int)]
    # A violated edge keeps the lag that it had: programmatic dependent launch, or two clocks.
    violated = (ready > start) & (ready > NEVER)
    lag = np.where(violated, (start - ready).astype(np.float64), lag)
    typical = np.take_along_axis(lag, binding[None, :], axis=0)[0]
    excess = np.where(hangs & (latency > ODD_NS), latency - typical, 0.0)

    matched = graph.matched
    transfer = np.where(matched, end - np.maximum(graph.ready, start), end - start)
    group = np.full(events, -1, dtype=np.int64)
    group[matched] = graph.last[matched]
    lonely = np.bincount(group[matched], minlength=events + 1)[np.maximum(group, 0)] < 2
    group[lonely] = -1

    line_before = lines.before
    gap = (
        np.where(line_before >= 0, call_start - call_end[np.maximum(line_before, 0)], 0)
        if calls
        else line_before
    )
    held = lines.awaited
    waits = held >= 0
    own = np.where(waits, np.minimum(call_end - call_start, RETURN_NS), call_end - call_start)
    held_lag = np.zeros(calls)
    held_lag[waits] = (call_end[waits] - end[held[waits]]).clip(min=0)

    def joined(of_events: Ints | Floats, of_calls: Ints | Floats) -> Floats:
        return np.concatenate([np.asarray(of_events, np.float64), np.asarray(of_calls, np.float64)])

    none = np.full(calls, -1, dtype=np.int64)
    zeros = np.zeros(calls)
    begun = np.concatenate([start, call_start])
    is_event = np.concatenate([np.ones(events, dtype=bool), np.zeros(calls, dtype=bool)])
    return Program(
        duration=joined(transfer, own),
        ahead=np.concatenate([queue_ahead, np.where(line_before >= 0, line_before + events, -1)]),
        awaited=np.concatenate([awaited, none]),
        launcher=np.concatenate([np.where(has_call, launcher + events, -1), none]),
        ahead_lag=joined(lag[0], gap),
        awaited_lag=joined(lag[1], zeros),
        launch_lag=joined(lag[2], zeros),
        from_start=np.concatenate([from_start, zeros.astype(bool)]),
        excess=joined(excess, zeros),
        held=np.concatenate([np.full(events, -1, dtype=np.int64), held]),
        held_lag=joined(np.zeros(events), held_lag),
        group=np.concatenate([group, none]),
        origin=begun.astype(np.float64),
        order=np.lexsort((is_event, begun)),
        events=events,
        is_call=~is_event,
    )


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
    """A program under change: its dependencies can be set, nodes be added; ``program`` closes it."""

    def __init__(self, base: Program) -> None:
        self.base = base
        self.duration, self.ahead_lag = base.duration.copy(), base.ahead_lag.copy()
        self.ahead, self.awaited = base.ahead.copy(), base.awaited.copy()
        self.held, self.group = base.held.copy(), base.group.copy()
        self.added: list[dict[str, float]] = []

    def add(self, **facts: float) -> int:
        """A node by its fields (those of ``Program``; ``origin`` is about when it runs); returns its number."""
        self.added.append(facts)
        return self.base.duration.size + len(self.added) - 1

    def program(self) -> Program:
        """Everything together."""
        base = self.base
        empty = {"ahead": -1, "awaited": -1, "launcher": -1, "held": -1, "group": -1}
        changed = {
            name: getattr(self, name)
            for name in ("duration", "ahead_lag", "ahead", "awaited", "held", "group")
        }

        def column(name: str) -> NDArray[Any]:
            have = changed.get(name, getattr(base, name))
            more = [node.get(name, empty.get(name, 0)) for node in self.added]
            return np.concatenate([have, np.asarray(more, dtype=have.dtype)])

        columns = {
            one.name: column(one.name) for one in fields(Program) if one.name not in ("order", "events")
        }
        order = np.lexsort((~columns["is_call"], columns["origin"]))
        return Program(**columns, order=order, events=base.events)
