"""Slower beside other work: the walk forward in time against a simulation that steps from event to event."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_critical_path_random import Op, programs, simulate, trace_of

from nsysddp.dependencies import forward
from nsysddp.dependencies.condensed import Structure, Weights, solve
from nsysddp.dependencies.forward import Beside, durations
from nsysddp.dependencies.graph import build
from nsysddp.dependencies.replay import recorded
from nsysddp.model.errors import AnalysisError
from nsysddp.model.intervals import Intervals


@dataclass
class Drawing:
    """A program node by node; a lane is a list of nodes in the order in which they run."""

    nodes: list[dict[str, float]] = field(default_factory=list)
    lanes: dict[Any, list[int]] = field(default_factory=dict)
    waits: list[tuple[int, int, float]] = field(default_factory=list)
    holds: list[tuple[int, int, float]] = field(default_factory=list)
    members: list[tuple[int, int]] = field(default_factory=list)

    def node(self, lane: Any, **facts: float) -> int:
        number, row = len(self.nodes), self.lanes.setdefault(lane, [])
        self.nodes.append({"ahead": row[-1] if row else -1, **facts})
        row.append(number)
        return number

    def column(self, name: str, missing: float, dtype: Any = np.float64) -> Any:
        return np.asarray([node.get(name, missing) for node in self.nodes], dtype=dtype)

    def program(self) -> tuple[Structure, Weights]:
        def columns(rows: list[Any]) -> list[Any]:
            return [np.asarray(column) for column in zip(*rows, strict=True)] or [np.empty(0, int)] * 3

        lanes = list(self.lanes.values())
        waiting, awaited, wait_lag = columns(self.waits)
        holding, held_by, hold_lag = columns(self.holds)
        meeting, member, *_ = columns(self.members)
        structure = Structure(
            along=np.concatenate(lanes),
            opens=np.concatenate([np.arange(len(lane)) == 0 for lane in lanes]),
            ahead=self.column("ahead", -1, int),
            launcher=self.column("launcher", -1, int),
            from_start=self.column("from_start", 0, bool),
            waiting=waiting,
            awaited=awaited,
            holding=holding,
            held_by=held_by,
            arrival=self.column("arrival", -1, int),
            meeting=meeting,
            member=member,
        )
        names = ("duration", "ahead_lag", "launch_lag", "excess", "origin")
        node_weights = {name: self.column(name, 0.0) for name in names}
        return structure, Weights(**node_weights, wait_lag=wait_lag * 1.0, hold_lag=hold_lag * 1.0)

    def beside(self, share: np.ndarray, link: np.ndarray) -> Beside:
        rank, stream = self.column("rank", -1, int), self.column("stream", -1, int)
        return Beside(rank, stream >= 0, stream, share, link)


def job(rng: np.random.Generator, ranks: int, layers: int) -> Drawing:
    """Ranks that compute, copy and communicate on two streams; hosts that launch ahead, and wait now and then."""
    drawn = Drawing()
    arrivals = 0
    compute: dict[int, int] = {}
    sent: dict[int, int] = {}

    def call(rank: int) -> int:
        more = float(rng.integers(1, 30)) * float(rng.choice([0.1, 1, 3]))
        return drawn.node(("host", rank), duration=float(rng.integers(1, 5)), ahead_lag=more)

    def launched(host: int, lane: Any, **facts: float) -> int:
        row = drawn.lanes.get(lane)
        return drawn.node(
            lane,
            launcher=call(host),
            from_start=float(rng.random() < 0.2),
            launch_lag=float(rng.integers(1, 6)),
            ahead_lag=float(rng.integers(0, 4)) if row else 0.0,
            excess=float(rng.choice([0, 0, 0, 25])),
            **facts,
        )

    for _ in range(layers):
        kernels = int(rng.integers(1, 8))
        stream, group = int(rng.integers(0, 2)), int(rng.choice([1, ranks]))
        matched = rng.random() < 0.8
        for rank in range(ranks):
            for _ in range(kernels):
                is_copy = rng.random() < 0.1
                long = float(rng.integers(0, 40))
                compute[rank] = launched(rank, ("compute", rank), duration=long, rank=-1 if is_copy else rank)
            if rng.random() < 0.2:
                beside = launched(rank, ("other", rank), duration=float(rng.integers(1, 60)), rank=rank)
                drawn.waits.append((beside, compute[rank], 1.0))
            meets = arrivals + (rank if group == 1 else 0)
            sent[rank] = launched(
                rank,
                ("sent", rank, stream),
                duration=float(rng.integers(0, 120)),
                rank=rank,
                stream=stream,
                **({"arrival": meets} if matched else {}),
            )
            if matched:
                drawn.members.append((meets, sent[rank]))
            drawn.waits.append((sent[rank], compute[rank], 2.0))
            if rng.random() < 0.3:
                compute[rank] = launched(rank, ("compute", rank), duration=5.0, rank=rank)
                drawn.waits.append((compute[rank], sent[rank], 2.0))
            if rng.random() < 0.2:
                drawn.holds.append((call(rank), int(rng.choice([compute[rank], sent[rank]])), 3.0))
        arrivals += ranks if group == 1 else 1
    return drawn


def event_by_event(structure: Structure, weights: Weights, beside: Beside) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of every node: from each moment to the next at which anything begins or ends."""
    these, of, size = structure, weights, structure.along.size
    start, end = np.full(size, np.nan), np.full(size, np.nan)
    begin = np.full(size, np.nan)
    left = of.duration.copy()
    waits: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    holds: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for node, other, lag in zip(these.waiting, these.awaited, of.wait_lag, strict=True):
        waits[node].append((other, lag))
    for node, other, lag in zip(these.holding, these.held_by, of.hold_lag, strict=True):
        holds[node].append((other, lag))
    changes = np.where(beside.sent, beside.link[beside.rank] > 0, beside.share[beside.rank] > 0)
    changes &= (beside.rank >= 0) & (beside.sent | (these.arrival < 0))

    def learn() -> None:
        """All starts and ends that follow from what is known, whenever they will be."""
        while True:
            before = np.isnan(start).sum() + np.isnan(end).sum() + np.isnan(begin).sum()
            for node in np.flatnonzero(np.isnan(start)):
                needed = [(end[other], lag) for other, lag in waits[node]]
                if these.ahead[node] >= 0:
                    needed.append((end[these.ahead[node]], of.ahead_lag[node]))
                if (by := these.launcher[node]) >= 0:
                    needed.append((start[by] if these.from_start[node] else end[by], of.launch_lag[node]))
                if not any(np.isnan(time) for time, _ in needed):
                    allowed = [time + lag + of.excess[node] for time, lag in needed]
                    start[node] = max(allowed, default=of.origin[node])
            for node in np.flatnonzero(np.isnan(begin)):
                met = these.member[these.meeting == these.arrival[node]] if these.arrival[node] >= 0 else []
                begin[node] = np.max(start[met]) if len(met) else start[node]
            for node in np.flatnonzero(np.isnan(end) & ~np.isnan(begin) & ~changes):
                needed = [(end[other], lag) for other, lag in holds[node]]
                if not any(np.isnan(time) for time, _ in needed):
                    end[node] = max([begin[node] + of.duration[node], *(time + lag for time, lag in needed)])
            if before == np.isnan(start).sum() + np.isnan(end).sum() + np.isnan(begin).sum():
                return

    now = -1.0
    learn()
    while np.isnan(end).any():
        runs = np.flatnonzero(changes & (begin <= now) & np.isnan(end))
        sends = beside.sent & (start <= now) & ~(end <= now)
        transfers = beside.sent & (begin <= now) & ~(end <= now)
        rate = {}
        for node in runs:
            of_rank = beside.rank == beside.rank[node]
            others = transfers & of_rank & (beside.stream != beside.stream[node])
            slowed = others.any() if beside.sent[node] else (sends & of_rank).any()
            loses = (beside.link if beside.sent[node] else beside.share)[beside.rank[node]]
            rate[node] = 1 - loses if slowed else 1.0
        moments = [time for times in (start, begin, end) for time in times[times > now]]
        moments += [now + left[node] / rate[node] for node in runs]
        assert moments, "nothing goes on"
        after = min(moments)
        for node in runs:
            left[node] -= (after - now) * rate[node]
            if left[node] <= 1e-9 * (1 + abs(after)):
                end[node] = after
        now = after
        learn()
    return start, end


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1 << 30),
    ranks=st.sampled_from([2, 3, 5, 8]),
    layers=st.integers(1, 6),
    share=st.sampled_from([0.0, 0.1, 1 / 3, 0.7, 0.95]),
    link=st.sampled_from([0.0, 0.25, 0.5]),
    longest=st.sampled_from([3, 256]),
)
def test_the_walk_is_what_a_simulation_event_by_event_finds(
    seed: int, ranks: int, layers: int, share: float, link: float, longest: int
) -> None:
    agrees(seed, ranks, layers, share, link, longest)


@pytest.mark.parametrize("ranks", [16, 64])
def test_the_walk_event_by_event_on_many_ranks(ranks: int) -> None:
    agrees(ranks, ranks, 3, 0.4, 0.5, 256)


def agrees(seed: int, ranks: int, layers: int, share: float, link: float, longest: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = job(rng, ranks, layers)
    structure, weights = drawn.program()
    shares = share * rng.choice([0, 1, 1], ranks)
    beside = drawn.beside(shares, link * rng.choice([0, 1, 1], ranks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "_LONGEST", longest)
        found = durations(structure, weights, beside)
    start, end = solve(structure, replace(weights, duration=found))
    expected = event_by_event(structure, weights, beside)
    assert start == pytest.approx(expected[0], abs=1e-3)
    assert end == pytest.approx(expected[1], abs=1e-3)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs=programs(), share=st.sampled_from([0.2, 1 / 3, 0.8]), seed=st.integers(0, 1000))
def test_a_kernel_takes_its_work_and_its_share_of_the_time_beside(
    programs: tuple[tuple[Op, ...], ...], share: float, seed: int
) -> None:
    """The definition itself, on captured programs with other durations."""
    trace = trace_of(programs, simulate(programs))
    if trace.events.is_empty():
        return
    program = recorded(build(trace))
    events, size = program.events, program.duration.size
    rank, sent = np.full(size, -1), np.zeros(size, dtype=bool)
    rank[:events] = trace.events["rank"].to_numpy()
    sent[:events] = (trace.events["class"] == "communication").to_numpy()
    ranks = int(rank.max()) + 1
    beside = Beside(rank, sent, np.zeros(size, dtype=int), np.full(ranks, share), np.zeros(ranks))
    work = program.duration * np.random.default_rng(seed).uniform(0.3, 3, size) * 1000
    weights = replace(program.weights, duration=work)
    found = durations(program.structure, weights, beside)
    start, end = solve(program.structure, replace(weights, duration=found))
    for number in range(ranks):
        kernels = np.flatnonzero((rank == number) & ~sent)
        runs = np.flatnonzero((rank == number) & sent)
        union = Intervals.union_of(np.round(start[runs]), np.round(end[runs]))
        spent = union.length_within(np.round(start[kernels]), np.round(end[kernels]))
        assert found[kernels] == pytest.approx(work[kernels] + share * spent, abs=4)


def test_a_transfer_does_not_share_its_link_with_its_own_stream() -> None:
    """Two transfers of one stream that overlap (10 each from 0 and 5) and one of another stream from 12."""
    drawn = Drawing()
    for lane, origin, stream in (("a", 0, 0), ("b", 5, 0), ("c", 12, 1)):
        drawn.node(lane, duration=10.0, origin=origin, rank=0, stream=stream)
    structure, weights = drawn.program()
    found = durations(structure, weights, drawn.beside(np.zeros(1), np.full(1, 0.5)))
    # From 12 on the second has 3 left, which take 6; meanwhile the third does 3 of its 10.
    assert found == pytest.approx([10, 13, 13])


def test_a_walk_in_a_circle_is_refused() -> None:
    drawn = Drawing()
    kernel = drawn.node("compute", duration=5.0, rank=0)
    sent = drawn.node("sent", duration=5.0, rank=0, stream=0, arrival=0)
    drawn.members.append((0, sent))
    drawn.waits += [(kernel, sent, 0.0), (sent, kernel, 0.0)]
    structure, weights = drawn.program()
    with pytest.raises(AnalysisError, match="circle"):
        durations(structure, weights, drawn.beside(np.full(1, 0.5), np.zeros(1)))
