"""When does everything happen that waits for other things? Longest paths, over far fewer points than nodes.

Nodes are events and calls. Each starts when all that it waits for is there, so its time is a maximum of sums. Most
nodes wait for the node ahead in their lane (queue or host line) and for their launch only. A *segment* is a run of such
nodes whose launches lie in one segment of the host; inside it every time is a maximum of two terms::

    start(node) = max(start(head of the segment) + p, start(head of its launches' segment) + q)

where ``p`` and ``q`` are running sums and maxima, computed for all segments of some lanes at once. What is left to be
solved one after the other are heads of segments, the ends of waiting calls and the arrivals of collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.model.errors import AnalysisError
from nsysddp.model.trace import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.integer[Any]]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Structure:
    """Who waits for whom. Node arrays have the shape (nodes,), and -1 is none.

    Attributes:
        along: all nodes, lane by lane (queue or host line) in the order in which they run.
        opens: the node in this place of ``along`` is the first of its lane.
        ahead: the node in its lane whose end its start waits for.
        launcher: the call that launched it.
        from_start: it waits for that call's start, not for its end.
        waiting, awaited: the start of the one waits for the end of the other; shape (waits,).
        holding, held_by: the end of the one (a call) waits for the end of the other; shape (holds,).
        arrival: the arrival after which the node's own time begins: it ends that much later.
        meeting, member: the arrival of the one is not before the start of the other; shape (members,).
        calls: nodes that are calls of the host, and their places in ``along``: the first, and one past the last. They
            wait for no launch, and what a scenario changes is mostly something else.
    """

    along: Ints
    opens: Flags
    ahead: Ints
    launcher: Ints
    from_start: Flags
    waiting: Ints
    awaited: Ints
    holding: Ints
    held_by: Ints
    arrival: Ints
    meeting: Ints
    member: Ints
    calls: tuple[int, int] = (0, 0)

    @cached_property
    def plan(self) -> _Plan:
        """What does not hang on durations, made once.

        Raises:
            AnalysisError: nodes wait for each other in a circle.
        """
        return _plan(self)


@dataclass(frozen=True)
class Weights:
    """How long everything takes, in ns: of nodes (``duration`` to ``origin``), of waits and of holds.

    Attributes:
        duration: of a node; of one with an arrival, from that on.
        ahead_lag, launch_lag: from the end of what it waits for to its start.
        excess: more, whatever it waits for last.
        origin: start of a node that waits for nothing.
        wait_lag, hold_lag: of each wait and hold.
    """

    duration: Floats
    ahead_lag: Floats
    launch_lag: Floats
    excess: Floats
    origin: Floats
    wait_lag: Floats
    hold_lag: Floats


def solve(structure: Structure, weights: Weights, *, calls: bool = True) -> tuple[Floats, Floats]:
    """Start and end of every node in ns, each as soon as all that it waits for allows; shape (nodes,).

    Args:
        structure: who waits for whom.
        weights: how long everything takes.
        calls: also of ``Structure.calls``; else they stay 0.
    """
    plan = structure.plan
    parts = Parts.of(structure, weights)
    origin = weights.origin[plan.heads]
    parts.place(np.asarray(_longest(plan, edges(structure, weights, parts), origin)), calls=calls)
    return parts.start, parts.end


def latest(structure: Structure, weights: Weights, deadline: Floats) -> Floats:
    """How late may each node with an arrival end, so that no node ends after its deadline?

    The solution backwards: no point may come later than all that waits for it allows.

    Args:
        structure: who waits for whom.
        weights: how long everything takes, as solved.
        deadline: latest end of each node in ns, infinite where it has none; shape (nodes,).

    Returns:
        Latest end in ns, shape (nodes,); NaN for nodes without an arrival.
    """
    plan = structure.plan
    parts = Parts.of(structure, weights)
    weight = edges(structure, weights, parts)
    allowed = np.asarray(_backwards(plan, weight, parts.allowed(deadline)))
    met = structure.arrival >= 0
    ends = np.where(met, deadline, np.nan)
    leaves = np.flatnonzero(plan.to_end & met[plan.node])  # edges from the ends of such nodes
    target = np.repeat(plan.order, np.diff(plan.bounds))
    lag = lags(structure, weights)[plan.lag[leaves]]
    np.minimum.at(ends, plan.node[leaves], allowed[target[leaves]] - lag)
    return ends


def lags(structure: Structure, weights: Weights) -> Floats:
    """The lags of all kinds of edges, one kind after the other."""
    plan = structure.plan
    return np.concatenate(
        [
            weights.ahead_lag[plan.with_ahead] + weights.excess[plan.with_ahead],
            weights.launch_lag[plan.with_launcher] + weights.excess[plan.with_launcher],
            weights.wait_lag + weights.excess[structure.waiting],
            weights.duration[plan.waiting_calls],
            weights.hold_lag,
            np.zeros(structure.member.size),
        ]
    )


def edges(structure: Structure, weights: Weights, parts: Parts) -> Floats:
    """From the point that each edge comes from to the one that waits: a term of a node, and a lag."""
    plan = structure.plan
    return _terms(structure, weights, parts) + lags(structure, weights)[plan.lag]


def _backwards(plan: _Plan, weight: Floats, allowed: Floats) -> list[float]:
    """The latest time of every point; what waits for a point is settled before it."""
    times: list[float] = allowed.tolist()
    source, lag = plan.source.tolist(), weight.tolist()
    bounds, order = plan.bounds.tolist(), plan.order.tolist()
    for place in range(len(order) - 1, -1, -1):
        time = times[order[place]]
        for at in range(bounds[place], bounds[place + 1]):
            before = time - lag[at]
            if before < times[source[at]]:
                times[source[at]] = before
    return times


def _terms(structure: Structure, weights: Weights, parts: Parts) -> Floats:
    """What each edge between points carries beside its lag: p or q of a node, to its start or to its end."""
    plan = structure.plan
    node = plan.node
    duration = weights.duration[node]
    plain = (structure.arrival[node] < 0) & ~plan.holds[node]
    to_start = np.where(plan.second, parts.end[node], parts.along(node))
    to_end = np.where(plain, to_start + duration, np.where(plan.holds[node], 0.0, duration))
    return np.where(plan.to_end, to_end, to_start)


def _longest(plan: _Plan, weight: Floats, origin: Floats) -> list[float]:
    """Time of every point, in an order in which all that it waits for comes before it."""
    times = [0.0] * plan.size
    source, lag = plan.source.tolist(), weight.tolist()
    own = origin.tolist()
    bounds = plan.bounds.tolist()
    for point, (first, last) in zip(plan.order.tolist(), pairwise(bounds), strict=True):
        if first == last:
            times[point] = own[point] if point < len(own) else 0.0
            continue
        latest = times[source[first]] + lag[first]
        for at in range(first + 1, last):
            time = times[source[at]] + lag[at]
            if time > latest:
                latest = time
        times[point] = latest
    return times


@dataclass(frozen=True)
class Parts:
    """The lanes, some at a time: what does not hang on other lanes is computed in threads, in little memory.

    Until the points are solved, ``start`` holds p and ``end`` holds q of each node; those of ``Structure.calls``, which
    have no q, are in ``hosts``.
    """

    structure: Structure
    plan: _Plan
    weights: Weights
    hosts: Floats
    start: Floats
    end: Floats

    @classmethod
    def of(cls, structure: Structure, weights: Weights) -> Parts:
        """``p`` and ``q`` of all nodes."""
        times = np.zeros((2, structure.along.size))  # where nobody writes they take no memory
        made = cls(structure, structure.plan, weights, _of_hosts(structure, weights), *times)
        made.each(made.sum_along, made.plan.events)
        made.each(made.run_beside, made.plan.events)
        return made

    def each(self, work: Callable[[tuple[int, int]], None], parts: list[tuple[int, int]]) -> None:
        """Do it for each of the parts, given by its first and one-past-last place along the lanes."""
        in_parallel(parts, work, events=self.structure.along.size)

    def along(self, nodes: Ints) -> Floats:
        """``p`` of some nodes."""
        first, last = self.structure.calls
        inside = (nodes >= first) & (nodes < last)
        if inside.all():
            return self.hosts[nodes - first] if nodes.size else np.empty(0)
        made = self.start[nodes]
        made[inside] = self.hosts[nodes[inside] - first]
        return made

    def sum_along(self, part: tuple[int, int]) -> None:
        """``p`` of every node."""
        self.start[self.structure.along[slice(*part)]] = _sums(self.structure, self.weights, part)

    def run_beside(self, part: tuple[int, int]) -> None:
        """``q`` of every node that has one."""
        nodes, heads = self.structure.along[slice(*part)], self.plan.is_head[slice(*part)]
        second = np.flatnonzero(self.plan.beside[nodes] >= 0)
        if not second.size:
            return
        segment: Ints = np.cumsum(heads, dtype=np.int64)[second]
        node = nodes[second]
        along = self.start[node]
        self.end[node] = along + _running_most(self.launched(node) - along, segment)

    def launched(self, node: Ints) -> Floats:
        """When its launch lets each node start, from the time of the point from which that counts."""
        of, call = self.weights, self.structure.launcher[node]
        along = self.along(call)
        after = np.where(self.plan.holds[call], 0.0, along + of.duration[call])
        begun = np.where(self.structure.from_start[node], along, after)
        let_go: Floats = begun + of.launch_lag[node] + of.excess[node]
        return let_go

    def allowed(self, deadline: Floats) -> Floats:
        """The latest time of every point that keeps the deadlines of the nodes that it carries; shape (points,)."""
        these, plan = self.structure, self.plan
        made = np.full(plan.size, np.inf)
        duration = self.weights.duration

        def of_segments(part: tuple[int, int]) -> None:
            nodes, heads = these.along[slice(*part)], np.flatnonzero(plan.is_head[slice(*part)])
            plain = (these.arrival[nodes] < 0) & ~plan.holds[nodes]
            room = np.where(plain, deadline[nodes] - (self.along(nodes) + duration[nodes]), np.inf)
            first = plan.segments_before(part)
            made[first : first + heads.size] = np.minimum.reduceat(room, heads)

        self.each(of_segments, plan.parts)
        second = np.flatnonzero(plan.beside >= 0)
        second = second[(these.arrival[second] < 0) & ~plan.holds[second]]
        np.minimum.at(made, plan.beside[second], deadline[second] - (self.end[second] + duration[second]))
        met, held = np.flatnonzero(these.arrival >= 0), np.flatnonzero(plan.holds)
        np.minimum.at(made, plan.first_arrival + these.arrival[met], deadline[met] - duration[met])
        np.minimum.at(made, plan.end_points(held), deadline[held])
        return made

    def place(self, times: Floats, *, calls: bool) -> None:
        """Start and end of every node from the times of the points; ``calls``: of those of the host too."""
        these, plan = self.structure, self.plan

        def of_part(part: tuple[int, int]) -> None:
            nodes = these.along[slice(*part)]
            segment = plan.segments_before(part) + np.cumsum(plan.is_head[slice(*part)]) - 1
            start = times[segment] + self.along(nodes)
            beside = plan.beside[nodes]
            second = np.flatnonzero(beside >= 0)
            start[second] = np.maximum(start[second], times[beside[second]] + self.end[nodes[second]])
            duration = self.weights.duration[nodes]
            end = start + duration
            arrival = these.arrival[nodes]
            met = np.flatnonzero(arrival >= 0)
            end[met] = times[plan.first_arrival + arrival[met]] + duration[met]
            held = np.flatnonzero(plan.holds[nodes])
            end[held] = times[plan.end_points(nodes[held])]
            self.start[nodes], self.end[nodes] = start, end

        self.each(of_part, plan.parts if calls else plan.events)


def _sums(structure: Structure, weights: Weights, part: tuple[int, int]) -> Floats:
    """``p`` of the nodes of a part."""
    nodes, heads = structure.along[slice(*part)], structure.plan.is_head[slice(*part)]
    step = weights.ahead_lag[nodes] + weights.excess[nodes]
    step[1:] += weights.duration[nodes[:-1]]
    step[heads] = 0
    total = np.cumsum(step)
    sums: Floats = total - np.repeat(total[heads], np.diff(np.flatnonzero(heads), append=nodes.size))
    return sums


def _of_hosts(structure: Structure, weights: Weights) -> Floats:
    """``p`` of the calls of the host, kept for weights in which these are the same."""
    plan, (first, last) = structure.plan, structure.calls

    def same(other: Weights) -> bool:
        return all(
            mine is its or np.array_equal(mine[first:last], its[first:last])
            for mine, its in (
                (weights.duration, other.duration),
                (weights.ahead_lag, other.ahead_lag),
                (weights.excess, other.excess),
            )
        )

    if not plan.hosts or not same(plan.hosts[-1][0]):
        made = np.empty(last - first)

        def sum_along(part: tuple[int, int]) -> None:
            made[part[0] - first : part[1] - first] = _sums(structure, weights, part)

        in_parallel([part for part in plan.parts if part not in plan.events], sum_along, events=made.size)
        plan.hosts[:] = [(weights, made)]
    return plan.hosts[-1][1]


def _running_most(value: Floats, group: Ints) -> Floats:
    """The largest value so far within each group; groups lie together and ascend.

    Exact and without sorting: the numbers are compared as integers of the same order, the upper half first.
    """
    if not value.size:
        return value
    bits = value.view(np.int64)
    key = bits ^ (bits >> 63 & 0x7FFF_FFFF_FFFF_FFFF)
    upper = (group.astype(np.int64) << 32) + ((key >> 32) + (1 << 31))
    most = np.maximum.accumulate(upper)
    run = np.cumsum(np.diff(most, prepend=most[0]) != 0, dtype=np.int64) << 32
    lower = np.maximum.accumulate(run | np.where(upper == most, key & 0xFFFF_FFFF, 0)) & 0xFFFF_FFFF
    found = ((most & 0xFFFF_FFFF) - (1 << 31)) << 32 | lower
    most_value: Floats = (found ^ (found >> 63 & 0x7FFF_FFFF_FFFF_FFFF)).view(np.float64)
    return most_value


# --- the plan --------------------------------------------------------------------------------------------------------

_NODES_AT_A_TIME = 1 << 17
"""Nodes of whole lanes that are worked on together."""


@dataclass(frozen=True)
class _Plan:
    """Segments, and the edges between the points that are left: heads, ends of waiting calls, arrivals.

    Attributes:
        parts: first and one-past-last place along the lanes of what is computed together.
        events: those that hold no ``Structure.calls``.
        hosts: the last weights that were solved, and ``p`` of those calls.
        is_head: the node in this place along the lanes begins a segment.
        before_parts: segments before each part.
        heads: node of the head of each segment, whose number is that of its point.
        beside: point from which the second term of a node counts, -1 if it has none; by node.
        holds: the end of the node waits for others; by node.
        waiting_calls: nodes of which that is so, ascending; the points of their ends follow those of heads.
        first_arrival: the point of the first arrival.
        size: number of points.
        with_ahead, with_launcher: heads that wait for the node ahead, and for a launch.
        order: points, such that what a point waits for comes before it.
        bounds: where the edges of each begin, in that order; shape (points + 1,).
        source: point that each edge comes from.
        node: node whose start or end it carries,
        to_end: which of the two,
        second: by its second term.
        lag: which of the lags of ``solve``.
    """

    parts: list[tuple[int, int]]
    events: list[tuple[int, int]]
    hosts: list[tuple[Weights, Floats]]
    is_head: Flags
    before_parts: dict[int, int]
    heads: Ints
    beside: Ints
    holds: Flags
    waiting_calls: Ints
    first_arrival: int
    size: int
    with_ahead: Ints
    with_launcher: Ints
    order: Ints
    bounds: Ints
    source: Ints
    node: Ints
    to_end: Flags
    second: Flags
    lag: Ints

    def segments_before(self, part: tuple[int, int]) -> int:
        """How many segments begin before a part?"""
        return self.before_parts[part[0]]

    def end_points(self, calls: Ints) -> Ints:
        """The points of the ends of waiting calls."""
        return self.heads.size + np.searchsorted(self.waiting_calls, calls)


def _parts_of(opens: Flags, first: int, last: int) -> list[tuple[int, int]]:
    """Whole lanes of these places together until they have nodes enough."""
    if first == last:
        return []
    ends = first + np.append(np.flatnonzero(opens[first:last])[1:], last - first)
    wanted = np.arange(first + _NODES_AT_A_TIME, last + _NODES_AT_A_TIME, _NODES_AT_A_TIME)
    cuts = np.unique(ends[np.minimum(np.searchsorted(ends, wanted), ends.size - 1)]).tolist()
    return list(pairwise([first, *cuts]))


def _plan(these: Structure) -> _Plan:
    along, count = these.along, these.along.size
    holds, waits = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    holds[these.holding], waits[these.waiting] = True, True
    segment = np.empty(count, dtype=np.int32)
    is_head = np.empty(count, dtype=bool)
    beside = np.full(count, -1, dtype=np.int32)
    first_call, last_call = these.calls
    before, hosts, after = (
        _parts_of(these.opens, *bounds) for bounds in ((0, first_call), these.calls, (last_call, count))
    )
    parts = [*before, *hosts, *after]

    def each(work: Callable[[slice], None]) -> None:
        in_parallel(parts, lambda part: work(slice(*part)), events=count)

    def go_on(part: slice) -> None:
        """Where a segment goes on, as far as launches do not end it."""
        nodes = along[part]
        ahead = nodes[:-1]
        goes_on = ~these.opens[part]
        goes_on[1:] &= (these.ahead[nodes[1:]] == ahead) & ~waits[nodes[1:]]
        goes_on[1:] &= (these.arrival[ahead] < 0) & ~holds[ahead]
        is_head[part] = ~goes_on

    def launched_by(nodes: Ints) -> Ints:
        """The segment of the call that launched each node, one of its own for a call that waits; -1 without."""
        call = these.launcher[nodes]
        launched = call >= 0
        after_wait = launched & ~these.from_start[nodes] & holds[call]
        return np.where(after_wait, count + call, np.where(launched, segment[call], -1))

    def end_with_launch(part: slice) -> None:
        """Events go on while their launches share a segment; a call has no launch, so theirs are known."""
        by = launched_by(along[part])
        is_head[part][1:] |= by[1:] != by[:-1]

    each(go_on)
    segment[along] = np.cumsum(is_head, dtype=np.int32) - 1
    each(end_with_launch)
    numbers = np.cumsum(is_head, dtype=np.int32) - 1
    segment[along] = numbers
    heads = along[is_head]
    calls = np.flatnonzero(holds).astype(np.int32)
    first_arrival = heads.size + calls.size
    before_parts = {first: int(numbers[first - 1]) + 1 if first else 0 for first, _ in parts}

    def beside_launch(part: slice) -> None:
        """From which point on the launch counts, where it is not that of the head."""
        nodes = along[part][~is_head[part]]
        nodes = nodes[these.launcher[nodes] >= 0]
        by = launched_by(nodes)
        waited = by >= count
        by[waited] = heads.size + np.searchsorted(calls, by[waited] - count)
        beside[nodes] = by

    each(beside_launch)
    arrivals = int(max(these.arrival.max(initial=-1), these.meeting.max(initial=-1))) + 1
    size = first_arrival + arrivals
    with_ahead = heads[these.ahead[heads] >= 0]
    with_launcher = heads[these.launcher[heads] >= 0]

    def end_points(nodes: Ints) -> Ints:
        return heads.size + np.searchsorted(calls, nodes)

    target = np.concatenate(
        [
            segment[with_ahead],
            segment[with_launcher],
            segment[these.waiting],
            end_points(calls),
            end_points(these.holding),
            first_arrival + these.meeting,
        ]
    )
    node = np.concatenate(
        [
            these.ahead[with_ahead],
            these.launcher[with_launcher],
            these.awaited,
            calls,
            these.held_by,
            these.member,
        ]
    )
    sizes = [with_ahead.size, with_launcher.size, these.awaited.size, calls.size, these.held_by.size]
    is_end = np.repeat([True, False, True, False, True, False], [*sizes, these.member.size])
    is_end[sizes[0] : sizes[0] + sizes[1]] = ~these.from_start[with_launcher]

    met = is_end & (these.arrival[node] >= 0)
    held = is_end & holds[node]
    source = np.where(met, first_arrival + these.arrival[node], segment[node])
    source[held] = end_points(node[held])
    twice = np.flatnonzero((beside[node] >= 0) & ~met & ~held)
    source = np.concatenate([source, beside[node[twice]]])
    target = np.concatenate([target, target[twice]])
    lag = np.concatenate([np.arange(node.size), twice])
    second = np.arange(lag.size) >= node.size
    order = _order(source, target, size)
    turn = np.empty(size, dtype=np.int64)
    turn[order] = np.arange(size)
    by_turn = np.argsort(turn[target], kind="stable")
    return _Plan(
        parts=parts,
        events=[*before, *after],
        hosts=[],
        is_head=is_head,
        before_parts=before_parts,
        heads=heads,
        beside=beside,
        holds=holds,
        waiting_calls=calls,
        first_arrival=first_arrival,
        size=size,
        with_ahead=with_ahead,
        with_launcher=with_launcher,
        order=order,
        bounds=np.searchsorted(turn[target][by_turn], np.arange(size + 1)),
        source=source[by_turn],
        node=node[lag][by_turn],
        to_end=is_end[lag][by_turn],
        second=second[by_turn],
        lag=lag[by_turn],
    )


def _order(source: Ints, target: Ints, size: int) -> Ints:
    """Points in an order in which the source of every edge comes before its target.

    Raises:
        AnalysisError: there is none.
    """
    by_source = np.argsort(source, kind="stable")
    bounds = np.searchsorted(source[by_source], np.arange(size + 1)).tolist()
    targets = target[by_source].tolist()
    missing = np.bincount(target, minlength=size).tolist()
    order = [point for point, number in enumerate(missing) if not number]
    for point in order:  # grows while it is read
        for other in targets[bounds[point] : bounds[point + 1]]:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    if len(order) < size:
        raise AnalysisError("the replayed dependencies go in a circle")
    return np.asarray(order, dtype=np.int64)
