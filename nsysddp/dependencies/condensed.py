"""When does everything happen that waits for other things? Longest paths, over far fewer points than nodes.

Nodes are events and calls. Each starts when all that it waits for is there, so its time is a maximum of sums. Most
nodes wait for the node ahead in their lane (queue or host line) and for their launch only. A *segment* is a run of such
nodes whose launches lie in one segment of the host; inside it every time is a maximum of two terms::

    start(node) = max(start(head of the segment) + p, start(head of its launches' segment) + q)

where ``p`` and ``q`` are running sums and maxima, computed for all segments at once. What is left to be solved one
after the other are heads of segments, the ends of waiting calls and the arrivals of collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.model.errors import AnalysisError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.integer[Any]]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Structure:
    """Who waits for whom. Node arrays have the shape (nodes,), and -1 is none.

    Attributes:
        lane: the queue or host line of the node.
        place: about when it runs, which orders it in its lane.
        ahead: the node in its lane whose end its start waits for.
        launcher: the call that launched it.
        from_start: it waits for that call's start, not for its end.
        waiting, awaited: the start of the one waits for the end of the other; shape (waits,).
        holding, held_by: the end of the one (a call) waits for the end of the other; shape (holds,).
        arrival: the arrival after which the node's own time begins: it ends that much later.
        meeting, member: the arrival of the one is not before the start of the other; shape (members,).
    """

    lane: Ints
    place: Floats
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


def solve(structure: Structure, weights: Weights) -> tuple[Floats, Floats]:
    """Start and end of every node in ns, each as soon as all that it waits for allows; shape (nodes,)."""
    plan = structure.plan
    terms = _Terms.of(plan, structure, weights)
    times = np.asarray(_longest(plan, terms.edge[plan.term] + terms.lag[plan.lag], weights.origin))
    along, beside = terms.along, terms.beside
    start = times[plan.segment] + along
    second = plan.beside >= 0
    start[second] = np.maximum(start[second], times[plan.beside[second]] + beside[second])
    end = start + weights.duration
    met = structure.arrival >= 0
    end[met] = times[plan.first_arrival + structure.arrival[met]] + weights.duration[met]
    held = plan.end_point >= 0
    end[held] = times[plan.end_point[held]]
    return start, end


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
    terms = _Terms.of(plan, structure, weights)
    weight = terms.edge[plan.term] + terms.lag[plan.lag]
    allowed = np.asarray(_backwards(plan, weight, _allowed(plan, structure, weights, terms, deadline)))
    met = structure.arrival >= 0
    ends = np.where(met, deadline, np.nan)
    node, which = plan.term % met.size, plan.term // met.size
    leaves = np.flatnonzero(
        ((which == _END) | (which == _END_BESIDE)) & met[node]
    )  # edges from the ends of such nodes
    target = np.repeat(plan.order, np.diff(plan.bounds))
    np.minimum.at(ends, node[leaves], allowed[target[leaves]] - terms.lag[plan.lag[leaves]])
    return ends


_END, _END_BESIDE = 1, 2
"""Kinds of terms that hold the end of a node (see ``_Plan.term``)."""


@dataclass(frozen=True)
class _Terms:
    """What edges weigh: a term of the node that they leave, by kind and node, and a lag.

    Attributes:
        along, beside: ``p`` and ``q`` of every node.
        edge: the four terms of every node, one kind after the other.
        lag: from the end or start of a node to the point that waits for it.
    """

    along: Floats
    beside: Floats
    edge: Floats
    lag: Floats

    @classmethod
    def of(cls, plan: _Plan, structure: Structure, weights: Weights) -> _Terms:
        along, beside = _inside(plan, structure, weights)
        plain = (structure.arrival < 0) & (plan.end_point < 0)
        whole = np.where(plan.end_point >= 0, 0.0, weights.duration + np.where(plain, along, 0.0))
        edge = np.concatenate([along, whole, np.where(plain, beside + weights.duration, 0.0), beside])
        lag = np.concatenate(
            [
                (weights.ahead_lag + weights.excess)[plan.with_ahead],
                (weights.launch_lag + weights.excess)[plan.with_launcher],
                weights.wait_lag + weights.excess[structure.waiting],
                weights.duration[plan.waiting_calls],
                weights.hold_lag,
                np.zeros(structure.member.size),
            ]
        )
        return cls(along, beside, edge, lag)


def _allowed(plan: _Plan, structure: Structure, weights: Weights, terms: _Terms, deadline: Floats) -> Floats:
    """The latest time of every point that keeps the deadlines of the nodes that it carries; shape (points,)."""
    made = np.full(plan.size, np.inf)
    met, held = structure.arrival >= 0, plan.end_point >= 0
    plain = ~met & ~held
    second = plain & (plan.beside >= 0)
    for nodes, point, offset in (
        (plain, plan.segment, terms.along + weights.duration),
        (second, plan.beside, terms.beside + weights.duration),
        (met, plan.first_arrival + structure.arrival, weights.duration),
        (held, plan.end_point, np.zeros(met.size)),
    ):
        np.minimum.at(made, point[nodes], deadline[nodes] - offset[nodes])
    return made


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


def _longest(plan: _Plan, weight: Floats, origin: Floats) -> list[float]:
    """Time of every point, in an order in which all that it waits for comes before it."""
    times = [0.0] * plan.size
    source, lag = plan.source.tolist(), weight.tolist()
    own = origin[plan.heads].tolist()
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


def _inside(plan: _Plan, structure: Structure, weights: Weights) -> tuple[Floats, Floats]:
    """``p`` and ``q`` of every node; ``q`` is minus infinity where there is no second term."""
    order, is_head = plan.along, plan.is_head[plan.along]
    step = weights.ahead_lag + weights.excess
    step[plan.with_before] += weights.duration[plan.before[plan.with_before]]
    total = np.cumsum(np.where(is_head, 0.0, step[order]))
    opened = np.maximum.accumulate(np.where(is_head, np.arange(order.size), 0)) if order.size else order
    along = np.empty(order.size)
    along[order] = total - total[opened]

    beside = np.full(order.size, -np.inf)
    nodes = plan.second  # in order along the lanes
    call = structure.launcher[nodes]
    after = np.where(plan.end_point[call] >= 0, 0.0, along[call] + weights.duration[call])
    begun = np.where(structure.from_start[nodes], along[call], after)
    let_go = begun + weights.launch_lag[nodes] + weights.excess[nodes] - along[nodes]
    beside[nodes] = along[nodes] + _running_most(let_go, plan.segment[nodes])
    return along, beside


def _running_most(value: Floats, group: Ints) -> Floats:
    """The largest value so far within each group; groups lie together and ascend. Exact: ranks are compared."""
    if not value.size:
        return value
    order = np.argsort(value, kind="stable")
    rank = np.empty(value.size, dtype=np.int64)
    rank[order] = np.arange(value.size)
    number = np.cumsum(np.diff(group, prepend=group[0]) != 0) * value.size
    most: Floats = value[order[np.maximum.accumulate(rank + number) - number]]
    return most


# --- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """Segments, and the edges between the points that are left: heads, ends of waiting calls, arrivals.

    Attributes:
        along: nodes lane by lane in order.
        before: the node before each in its lane, where the segment goes on.
        with_before: nodes that have one.
        is_head: the node begins a segment.
        segment: number of the segment of each node, which is the point of its head.
        heads: node of each such point.
        beside: point from which the second term of a node counts, -1 if it has none.
        second: nodes that have one, in order along the lanes.
        end_point: of a waiting call the point of its end, else -1.
        first_arrival: the point of the first arrival.
        size: number of points.
        with_ahead, with_launcher: heads that wait for the node ahead, and for a launch.
        waiting_calls: calls whose ends wait.
        order: points, such that what a point waits for comes before it.
        bounds: where the edges of each begin, in that order; shape (points + 1,).
        source: point that each edge comes from.
        term: which of the terms of ``_Terms`` it carries: p, p with duration, q with duration, q; by node.
        lag: which of its lags.
    """

    along: Ints
    before: Ints
    with_before: Ints
    is_head: Flags
    segment: Ints
    heads: Ints
    beside: Ints
    second: Ints
    end_point: Ints
    first_arrival: int
    size: int
    with_ahead: Ints
    with_launcher: Ints
    waiting_calls: Ints
    order: Ints
    bounds: Ints
    source: Ints
    term: Ints
    lag: Ints


def _plan(these: Structure) -> _Plan:
    count = these.lane.size
    along = np.lexsort((these.place, these.lane))
    before = np.full(count, -1, dtype=np.int64)
    same = these.lane[along[1:]] == these.lane[along[:-1]]
    before[along[1:][same]] = along[:-1][same]
    holds, waits = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    holds[these.holding], waits[these.waiting] = True, True
    goes_on = (before >= 0) & (these.ahead == before) & ~waits & (these.arrival[before] < 0) & ~holds[before]

    # A call has no launch, so the segments of host lines are known; events go on while their launches share one.
    segment = np.empty(count, dtype=np.int64)
    segment[along] = np.cumsum(~goes_on[along]) - 1
    call = these.launcher
    launched = call >= 0
    after_wait = launched & ~these.from_start & holds[call]
    by = np.where(after_wait, count + call, np.where(launched, segment[call], -1))
    goes_on &= by == by[before]

    is_head = ~goes_on
    segment[along] = np.cumsum(is_head[along]) - 1
    heads = along[is_head[along]]
    calls = np.flatnonzero(holds)
    end_point = np.full(count, -1, dtype=np.int64)
    end_point[calls] = heads.size + np.arange(calls.size)
    first_arrival = heads.size + calls.size
    arrivals = int(max(these.arrival.max(initial=-1), these.meeting.max(initial=-1))) + 1
    size = first_arrival + arrivals
    beside = np.where(
        is_head | ~launched, -1, np.where(after_wait, end_point[call], segment[np.maximum(call, 0)])
    )

    with_ahead = heads[these.ahead[heads] >= 0]
    with_launcher = heads[launched[heads]]
    target = np.concatenate(
        [
            segment[with_ahead],
            segment[with_launcher],
            segment[these.waiting],
            end_point[calls],
            end_point[these.holding],
            first_arrival + these.meeting,
        ]
    )
    node = np.concatenate(
        [these.ahead[with_ahead], call[with_launcher], these.awaited, calls, these.held_by, these.member]
    )
    sizes = [with_ahead.size, with_launcher.size, these.awaited.size, calls.size, these.held_by.size]
    is_end = np.repeat([True, False, True, False, True, False], [*sizes, these.member.size])
    is_end[sizes[0] : sizes[0] + sizes[1]] = ~these.from_start[with_launcher]

    met = is_end & (these.arrival[node] >= 0)
    held = is_end & (end_point[node] >= 0)
    source = np.where(met, first_arrival + these.arrival[node], segment[node])
    source = np.where(held, end_point[node], source)
    twice = np.flatnonzero((beside[node] >= 0) & ~met & ~held)
    term = np.concatenate([node + np.where(is_end, count, 0), node[twice] + count * (3 - is_end[twice])])
    source = np.concatenate([source, beside[node[twice]]])
    target = np.concatenate([target, target[twice]])
    lag = np.concatenate([np.arange(node.size), twice])
    order = _order(source, target, size)
    turn = np.empty(size, dtype=np.int64)
    turn[order] = np.arange(size)
    by_turn = np.argsort(turn[target], kind="stable")
    return _Plan(
        along=along,
        before=before,
        with_before=np.flatnonzero(goes_on),
        is_head=is_head,
        segment=segment,
        heads=heads,
        beside=beside,
        second=along[beside[along] >= 0],
        end_point=end_point,
        first_arrival=first_arrival,
        size=size,
        with_ahead=with_ahead,
        with_launcher=with_launcher,
        waiting_calls=calls,
        order=order,
        bounds=np.searchsorted(turn[target][by_turn], np.arange(size + 1)),
        source=source[by_turn],
        term=term[by_turn],
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
