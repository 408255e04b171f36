"""How long does everything take where work is slower beside other work? A replay forward in time.

What runs beside what hangs on the schedule, and the schedule on how long everything takes. But what happens hangs only
on what happened before: going forward, it is known at each moment what runs, so how fast, and so what ends next::

    rate of a kernel   = 1 - share, while any communication runs on its rank, else 1
    rate of a transfer = 1 - share, while a transfer of another stream runs on its rank, else 1

Between two moments at which communication of its rank begins or ends, all rates are constant, and a run of kernels
(a *piece* of a segment, see ``condensed``) ends at a maximum of two sums that are made for both rates beforehand. So
the walk visits points and pieces, not nodes. What nothing slows is known as soon as what it waits for is.

An event that starts before what it waits for has ended (a negative lag) counts from the moment when that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.dependencies.condensed import Parts, edges, lags
from nsysddp.model.errors import AnalysisError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.dependencies.condensed import Structure, Weights

    Ints = NDArray[np.integer[Any]]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_LONGEST = 256
"""Nodes of a piece at most: each change of rate looks at one."""


@dataclass(frozen=True)
class Beside:
    """What is slower beside what. Node arrays have the shape (nodes,).

    Attributes:
        rank: of kernels and communication, -1 of all else.
        sent: it is communication: kernels of its rank are slower while it runs.
        stream: of communication.
        share: what kernels of each rank lose of the time beside communication; shape (ranks,).
        link: what communication of each rank loses beside that of other streams; shape (ranks,).
    """

    rank: Ints
    sent: Flags
    stream: Ints
    share: Floats
    link: Floats

    @property
    def takes_part(self) -> Flags:
        """Which nodes slow others or are slowed?"""
        return self.sent | ((self.rank >= 0) & (self.share[self.rank] > 0))


def durations(structure: Structure, weights: Weights, beside: Beside) -> Floats:
    """How long every node takes, in ns, where ``weights`` say how long it takes alone; shape (nodes,).

    Raises:
        AnalysisError: nodes wait for each other in a circle.
    """
    parts = Parts.of(structure, weights)
    pieces, place_of = _Pieces.of(parts, beside)
    if not pieces.nodes.size:
        return weights.duration
    net = _Net.of(parts, beside, pieces, place_of)
    nodes = pieces.nodes
    del parts, place_of  # the walk takes memory itself
    changed = _Walk(pieces, net).durations()
    del pieces, net
    found: Floats = np.copy(weights.duration)
    found[nodes] = changed
    return found


@dataclass(frozen=True)
class _Pieces:
    """Nodes of the segments in which anything slows or is slowed, lane by lane, cut into pieces.

    A piece ends where the end of a node is waited for, and begins where a start is. All its nodes are kernels of one
    rank, or none is; communication is alone in its own. Arrays have the shape (nodes of such segments,) or (pieces,).

    Attributes:
        weights: of all nodes.
        nodes: which they are.
        launched: when its launch lets each start, from the time of ``launch`` of its piece on; -inf without one.
        along: alone and slowed, sum of what is ahead of the start of each, over all pieces.
        first, last: places of the first and of the last node of each piece.
        inner: it goes on with the segment of the piece before it.
        launch: the point from which launches inside the segment count, -1 if none.
        rank: of its kernels or its communication, -1 for all else.
        factor: by which its nodes take longer while they are slowed.
    """

    weights: Weights
    nodes: Ints
    launched: Floats
    along: tuple[Floats, Floats]
    first: Ints
    last: Ints
    inner: Flags
    launch: Ints
    rank: Ints
    factor: Floats

    @classmethod
    def of(cls, parts: Parts, beside: Beside) -> tuple[_Pieces, Ints]:
        """Those of a program, and the place of each of its nodes in them (-1 for none)."""
        structure, weights = parts.structure, parts.weights
        plan, along = structure.plan, structure.along
        moves = beside.takes_part
        begin = np.flatnonzero(plan.is_head)
        lengths = np.diff(begin, append=along.size)
        of_segment = (
            np.logical_or.reduceat(moves[along], begin) if begin.size else np.empty(0, dtype=np.bool_)
        )
        places = np.repeat(of_segment, lengths)
        nodes, head = along[places], plan.is_head[places]
        place_of = np.full(along.size, -1, dtype=np.int32)
        place_of[nodes] = np.arange(nodes.size)
        first = np.flatnonzero(_cuts(structure, beside, nodes, place_of, head))
        size = np.diff(first, append=nodes.size)
        begun, rank = nodes[first], beside.rank[nodes[first]]
        loses = (rank >= 0) & ~beside.sent[begun] & (structure.arrival[begun] < 0)
        factor = 1 / (1 - np.where(loses, beside.share[rank], 0.0))
        launched = np.full(nodes.size, -np.inf)
        second = np.flatnonzero(plan.beside[nodes] >= 0)
        launched[second] = parts.launched(nodes[second])
        made = cls(
            weights=weights,
            nodes=nodes,
            launched=launched,
            along=(_running(weights, nodes, 1.0), _running(weights, nodes, np.repeat(factor, size))),
            first=first,
            last=first + size - 1,
            inner=~head[first],
            launch=plan.beside[nodes[first + size - 1]],
            rank=rank,
            factor=factor,
        )
        return made, place_of

    def let_go(self, slowed: int) -> Floats:
        """The largest of ``launched - along`` inside each piece: its start knows its own launch; -inf without any."""
        inside = self.launched - self.along[slowed]
        inside[self.first] = -np.inf
        most: Floats = np.maximum.reduceat(inside, self.first)
        return most


def _running(weights: Weights, nodes: Ints, factor: Floats | float) -> Floats:
    """From the first start to that of each node, where each waits only for the one ahead of it."""
    step = weights.duration[nodes]
    step *= factor
    step[1:] = step[:-1]
    step[:1] = 0
    step += weights.ahead_lag[nodes]
    step += weights.excess[nodes]
    return np.cumsum(step, out=step)


def _cuts(structure: Structure, beside: Beside, nodes: Ints, place_of: Ints, head: Flags) -> Flags:
    """Which nodes begin a piece; shape of ``nodes``."""
    plan, rank = structure.plan, beside.rank[nodes]
    lonely = beside.sent[nodes] | (structure.arrival[nodes] >= 0)
    cut = head | lonely
    cut[1:] |= lonely[:-1] | (rank[1:] != rank[:-1])
    place = place_of[plan.node]
    cut[place[(place >= 0) & ~plan.to_end]] = True
    behind = place[(place >= 0) & plan.to_end] + 1
    cut[behind[behind < nodes.size]] = True
    cut[::_LONGEST] = True
    return cut


_KERNELS, _SENT, _ENDED, _TRANSFER = 1, 2, 3, 4
"""What the walk has to do when a point is known: run kernels, communication begins, it ends, a transfer begins."""


@dataclass(frozen=True)
class _Net:
    """Who waits for whom: the points of the plan, and those of starts and ends of pieces.

    Attributes:
        missing: how many edges lead to each point.
        origin: time of a point that waits for nothing.
        bounds, target, lag: the edges by the point that they come from.
        task: what the walk has to do when a point is known; 0 for nothing.
        piece: the piece of a point with a task.
        end: the point of the end of each piece.
        rank, stream, first, last, launch, factor: of each piece.
        link: share that transfers of each rank lose beside others.
    """

    missing: list[int]
    origin: list[float]
    bounds: list[int]
    target: list[int]
    lag: list[float]
    task: list[int]
    piece: list[int]
    end: list[int]
    rank: list[int]
    stream: list[int]
    first: list[int]
    last: list[int]
    launch: list[int]
    factor: list[float]
    link: list[float]

    @classmethod
    def of(cls, parts: Parts, beside: Beside, pieces: _Pieces, place_of: Ints) -> _Net:
        """Those of a program and its pieces."""
        structure, weights = parts.structure, parts.weights
        plan = structure.plan
        count, inner = pieces.first.size, np.flatnonzero(pieces.inner)
        first = pieces.nodes[pieces.first]
        segment = np.empty(structure.along.size, dtype=np.int32)
        segment[plan.heads] = np.arange(plan.heads.size)
        start = segment[first]
        start[inner] = plan.size + np.arange(inner.size)
        end = plan.size + inner.size + np.arange(count)
        rank, of = pieces.rank, parts.weights
        sent, meets = beside.sent[first], structure.arrival[first] >= 0
        shares = sent & (beside.link[rank] > 0)
        slowed = pieces.factor > 1
        begin = plan.size + inner.size + count - 1 + np.cumsum(shares)  # of transfers that share
        size = plan.size + inner.size + count + int(shares.sum())
        source, target, lag = _of_plan(parts, pieces, place_of, start, end)
        known = [(source, target, lag)]

        def edge(which: Flags | Ints, source: Ints, target: Ints, lag: Floats) -> None:
            known.append((source[which], target[which], lag[which]))

        before = np.concatenate([[0], end[:-1]])
        edge(inner, before, start, of.ahead_lag[first] + of.excess[first])
        launches = pieces.launch
        edge(pieces.inner & (launches >= 0), launches, start, pieces.launched[pieces.first])
        nothing, took = np.zeros(count), of.duration[first]
        arrival = plan.first_arrival + structure.arrival[first]
        edge(shares & meets, arrival, begin, nothing)
        edge(shares & ~meets, start, begin, nothing)
        edge(meets & ~shares, arrival, end, took)
        plain = ~slowed & ~meets & ~shares
        reach = pieces.along[0][pieces.last] + of.duration[pieces.nodes[pieces.last]]
        edge(plain, start, end, reach - pieces.along[0][pieces.first])
        let_go = pieces.let_go(0)
        edge(plain & np.isfinite(let_go), launches, end, reach + let_go)

        task, piece = np.zeros(size, dtype=np.int8), np.zeros(size, dtype=np.int32)
        for code, which, point in (
            (_KERNELS, slowed, start),
            (_SENT, sent, start),
            (_ENDED, sent, end),
            (_TRANSFER, shares, begin),
        ):
            task[point[which]] = code
            piece[point[which]] = np.flatnonzero(which)
        source, target, lag = (np.concatenate(parts) for parts in zip(*known, strict=True))
        by_source = np.argsort(source, kind="stable")
        origin = np.zeros(size)
        origin[: plan.heads.size] = weights.origin[plan.heads]
        missing = np.bincount(target, minlength=size)
        missing[end[slowed | shares]] = 1  # the walk itself says when
        origin[missing > 0] = -np.inf
        return cls(
            missing=missing.tolist(),
            origin=origin.tolist(),
            bounds=np.searchsorted(source[by_source], np.arange(size + 1)).tolist(),
            target=target[by_source].tolist(),
            lag=lag[by_source].tolist(),
            task=task.tolist(),
            piece=piece.tolist(),
            end=end.tolist(),
            rank=rank.tolist(),
            stream=beside.stream[first].tolist(),
            first=pieces.first.tolist(),
            last=pieces.last.tolist(),
            launch=launches.tolist(),
            factor=pieces.factor.tolist(),
            link=beside.link.tolist(),
        )


def _of_plan(
    parts: Parts, pieces: _Pieces, place_of: Ints, start: Ints, end: Ints
) -> tuple[Ints, Ints, Floats]:
    """The edges of the plan, those from nodes of pieces from the points of these: source, target and lag."""
    structure, weights = parts.structure, parts.weights
    plan = structure.plan
    place = place_of[plan.node]
    kept = (place < 0) | ~plan.second
    target = np.repeat(plan.order, np.diff(plan.bounds))[kept]
    source, to_end, place = plan.source[kept], plan.to_end[kept], place[kept]
    lag = edges(structure, weights, parts)[kept]
    cut = place >= 0
    piece = np.searchsorted(pieces.first, place[cut], "right") - 1
    source[cut] = np.where(to_end[cut], end[piece], start[piece])
    lag[cut] = lags(structure, weights)[plan.lag[kept][cut]]
    return source, target, lag


class _Walk:
    """Forward in time: what is known, what runs how fast, and what ends next.

    The agenda holds what is to be done when: the task of a point, or (with the number of a forecast) the end of a
    piece. Of the forecasts of a piece only the last one counts.
    """

    def __init__(self, pieces: _Pieces, net: _Net) -> None:
        self.pieces, self.net = pieces, net
        self.times, self.missing = net.origin.copy(), net.missing.copy()
        self.agenda: list[tuple[float, int, int, int]] = []
        self.now, self.number = -np.inf, 0
        alone = [1.0] * len(net.factor)
        self.rates = tuple(
            _Rate(pieces, factor, pieces.along[slowed], pieces.let_go(slowed).tolist())
            for slowed, factor in enumerate((alone, net.factor))
        )
        self.sending = [0] * len(net.link)
        self.running: list[dict[int, _Run]] = [{} for _ in net.link]
        self.transfers: list[dict[int, _Transfer]] = [{} for _ in net.link]
        self.took: list[tuple[int, float]] = []
        self.slowed: list[tuple[int, int]] = []

    def durations(self) -> Floats:
        """How long each node of the pieces takes, in ns.

        Raises:
            AnalysisError: some wait for each other in a circle.
        """
        self._learn([point for point, missing in enumerate(self.missing) if not missing])
        tasks = {
            _KERNELS: self._begin,
            _SENT: self._send,
            _ENDED: self._fall_silent,
            _TRANSFER: self._transfer,
        }
        net = self.net
        while self.agenda:
            time, point, piece, number = heappop(self.agenda)
            self.now = max(self.now, time)
            rank = net.rank[piece]
            if number < 0:
                tasks[net.task[point]](rank, piece, time)
            elif self._is_over(rank, piece, number, time):
                self.times[point], self.missing[point] = time, 0
                self._learn([point])
        if any(self.missing):
            raise AnalysisError("the replayed dependencies go in a circle")
        return self._written()

    def _learn(self, known: list[int]) -> None:
        """These points are known, and with them all that waited for nothing else."""
        times, missing, net = self.times, self.missing, self.net
        bounds, target, lag, task = net.bounds, net.target, net.lag, net.task
        while known:
            point = known.pop()
            time = times[point]
            for at in range(bounds[point], bounds[point + 1]):
                other = target[at]
                allowed = time + lag[at]
                if allowed > times[other]:
                    times[other] = allowed
                missing[other] -= 1
                if not missing[other]:
                    known.append(other)
            if task[point]:
                heappush(self.agenda, (time, point, net.piece[point], -1))

    def _forecast(self, piece: int, end: float) -> int:
        """Look again when the piece will be over, if nothing changes; the number of this forecast."""
        self.number += 1
        heappush(self.agenda, (end, self.net.end[piece], piece, self.number))
        return self.number

    def _is_over(self, rank: int, piece: int, number: int, time: float) -> bool:
        """Does the newest forecast of a piece come true? Then it has run."""
        run = self.running[rank].get(piece)
        if run is not None and run.number == number:
            del self.running[rank][piece]
            run.passes(self.net.last[piece] + 1, self.sending[rank] > 0, self)
            return True
        transfer = self.transfers[rank].get(piece)
        if transfer is not None and transfer.number == number:
            del self.transfers[rank][piece]
            self.took.append((self.net.first[piece], time - transfer.begin))
            self._share(rank)
            return True
        return False

    def _begin(self, rank: int, piece: int, time: float) -> None:
        """Kernels begin to run."""
        slowed, launch = self.sending[rank] > 0, self.net.launch[piece]
        rate, first = self.rates[slowed], self.net.first[piece]
        let_go = self.times[launch] if launch >= 0 else -np.inf
        run = _Run(piece, first, self.net.last[piece], time, time, let_go)
        run.end += rate.duration(first, piece)
        run.number = self._forecast(piece, rate.end_of(run))
        self.running[rank][piece] = run

    def _send(self, rank: int, _piece: int, _time: float) -> None:
        """Communication begins."""
        self.sending[rank] += 1
        if self.sending[rank] == 1:
            self._change(rank, 0, 1)

    def _fall_silent(self, rank: int, _piece: int, _time: float) -> None:
        """Communication ends."""
        self.sending[rank] -= 1
        if not self.sending[rank]:
            self._change(rank, 1, 0)

    def _change(self, rank: int, before: int, after: int) -> None:
        """From now on the kernels of a rank run at the other rate."""
        was, now = self.rates[before], self.rates[after]
        for piece, run in self.running[rank].items():
            node, start = was.running_at(run, self.now)
            if node > run.node:
                run.passes(node, before > 0, self)
                run.node, run.start, run.end = node, start, start + was.duration(node, piece)
            left = run.end - max(self.now, run.start)
            if left > 0:  # else it is over just now
                run.end += left * (now.factor[piece] / was.factor[piece] - 1)
            run.number = self._forecast(piece, now.end_of(run))

    def _transfer(self, rank: int, piece: int, time: float) -> None:
        """All have arrived, and the transfer itself begins."""
        took = self.rates[0].duration(self.net.first[piece], piece)
        transfer = _Transfer(self.net.stream[piece], time, time + took)
        transfer.number = self._forecast(piece, transfer.end)
        self.transfers[rank][piece] = transfer
        self._share(rank)

    def _share(self, rank: int) -> None:
        """From now on each transfer of a rank is as fast as the others let it."""
        transfers = self.transfers[rank]
        streams = {transfer.stream for transfer in transfers.values()}
        left_over = 1 - self.net.link[rank]
        for piece, transfer in transfers.items():
            slowed = len(streams - {transfer.stream}) > 0
            if slowed != transfer.slowed and transfer.end > self.now:
                left = transfer.end - self.now
                transfer.end = self.now + (left / left_over if slowed else left * left_over)
                transfer.slowed = slowed
                transfer.number = self._forecast(piece, transfer.end)

    def _written(self) -> Floats:
        """The durations: as alone, as slowed where a node ran that way as a whole, or as it was seen."""
        pieces = self.pieces
        found: Floats = pieces.weights.duration[pieces.nodes]
        edges = np.asarray(self.slowed, dtype=np.int64).reshape(-1, 2)
        depth = np.zeros(found.size + 1, dtype=np.int32)
        np.add.at(depth, edges[:, 0], 1)
        np.add.at(depth, edges[:, 1], -1)
        whole = np.cumsum(depth)[:-1] > 0
        found[whole] *= np.repeat(pieces.factor, pieces.last - pieces.first + 1)[whole]
        place = np.fromiter((place for place, _ in self.took), dtype=np.int64, count=len(self.took))
        found[place] = [took for _, took in self.took]
        return found


@dataclass
class _Transfer:
    """A transfer that runs: its stream, when it began and ends if nothing changes, and whether it is slowed."""

    stream: int
    begin: float
    end: float
    slowed: bool = False
    number: int = 0


@dataclass
class _Run:
    """A piece that runs.

    Attributes:
        piece: which.
        node: the place of what began last.
        last: the place of its last node.
        start, end: of that node, if nothing changes.
        launch: time of the point from which its launches count.
        number: of the last forecast of its end.
    """

    piece: int
    node: int
    last: int
    start: float
    end: float
    launch: float
    number: int = 0

    def passes(self, node: int, slowed: bool, walk: _Walk) -> None:
        """All nodes before this one have run, those after the first all at one rate."""
        walk.took.append((self.node, self.end - self.start))
        if slowed and node > self.node + 1:
            walk.slowed.append((self.node + 1, node))


@dataclass(frozen=True)
class _Rate:
    """The nodes of the pieces at one rate: how long they take, and what is known of pieces from that."""

    pieces: _Pieces
    factor: list[float]
    """By which the nodes of each piece take longer."""
    along: Floats
    latest: list[float]
    """The largest of ``launched - along`` inside each piece."""

    def duration(self, place: int, piece: int) -> float:
        """How long does a node of a piece take?"""
        alone: float = self.pieces.weights.duration.item(self.pieces.nodes.item(place))
        return alone * self.factor[piece]

    def end_of(self, run: _Run) -> float:
        """When will the last node of a piece end?"""
        node, last = run.node, run.last
        if node == last:
            return run.end
        offset = self._offset(run)
        if run.launch + self.latest[run.piece] > offset:
            inside = slice(node + 1, last + 1)
            late = run.launch + (self.pieces.launched[inside] - self.along[inside]).max().item()
            offset = max(offset, late)
        return offset + self.along.item(last) + self.duration(last, run.piece)

    def _offset(self, run: _Run) -> float:
        """From ``along`` to the starts of nodes that wait only for the ones ahead of them."""
        after = run.node + 1
        weights, following = self.pieces.weights, self.pieces.nodes.item(after)
        gap = weights.ahead_lag.item(following) + weights.excess.item(following)
        return run.end + gap - self.along.item(after)

    def running_at(self, run: _Run, time: float) -> tuple[int, float]:
        """The last node of a piece that has begun by then, and when it did."""
        node, last = run.node, run.last
        if run.end > time or node == last:
            return node, run.start
        inside = slice(node + 1, last + 1)
        offset, along = self._offset(run), self.along[inside]
        if run.launch + self.latest[run.piece] > offset:
            late = np.maximum.accumulate(self.pieces.launched[inside] - along)
            start = np.maximum(late + run.launch, offset) + along
        else:
            start = along + offset
        begun = int(start.searchsorted(time, "right"))
        return (node + begun, start.item(begun - 1)) if begun else (node, run.start)
