"""For whom did a kernel wait: rooted operations, sends that leave early, groups of ranks without payloads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import Export, Process
from command import document
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysddp.join.groups import groups_of
from nsysddp.join.kernels import CODE, Kernels
from nsysddp.join.sequences import NumberedKernels

MS = 1_000_000
Spans = Sequence[tuple[float, float]]


def collectives(tmp_path: Path, draw: Callable[[Process, int], None], ranks: int) -> dict[str, Any]:
    export = Export()
    for rank in range(ranks):
        draw(export.process(100 + rank, gpu=rank), rank)
    return document(export.write(tmp_path / "a.sqlite"), "--per", "capture")["tables"]


def waits(tables: dict[str, Any]) -> list[float | None]:
    return [None if row["wait_ns"] is None else row["wait_ns"] / MS for row in tables["collective"]]


@pytest.mark.parametrize(
    ("call", "root", "spans", "wanted"),
    [
        # A leaf that left before a later rank came waited for nobody; the root waited for all.
        ("Reduce", 0, [(0, 30), (0, 4), (12, 30)], [12, 0, 0]),
        ("Reduce", 2, [(0, 30), (0, 4), (12, 30)], [12, 0, 0]),  # what r1 sent was buffered
        ("Reduce", 1, [(6, 20), (0, 30), (9, 14)], [0, 9, 0]),
        ("Reduce", 1, [(0, 20), (5, 30), (9, 14)], [5, 4, 0]),
        # Everybody needs the root of a broadcast, and the root needs nobody.
        ("Broadcast", 0, [(0, 3), (5, 9), (1, 3.5)], [0, 0, 0]),
        ("Broadcast", 2, [(0, 30), (4, 30), (12, 30)], [12, 8, 0]),
        ("Broadcast", 1, [(0, 30), (4, 30), (12, 30)], [4, 0, 0]),
    ],
)
def test_a_kernel_waits_only_for_ranks_whose_data_it_needs(
    call: str, root: int, spans: Spans, wanted: list[float], tmp_path: Path
) -> None:
    tables = collectives(
        tmp_path, lambda p, rank: p.nccl(call, 17, spans[rank], root=root, bytes=64), len(spans)
    )
    if (
        wanted is None
    ):  # r1 sent what it had to a root that was not there: it was buffered, and it waited for nobody
        wanted = [12, 0, 0]
    assert waits(tables) == wanted


def test_a_receiver_that_ends_before_its_root_came_is_of_another_broadcast(tmp_path: Path) -> None:
    spans = [(10, 20), (0, 5), (10, 20)]
    tables = collectives(tmp_path, lambda p, rank: p.nccl("Broadcast", 17, spans[rank], bytes=64), 3)
    assert waits(tables) == [0, None, 0]
    assert tables["collective"][1]["match"] == "unmatched:the ends do not agree"


@pytest.mark.parametrize("call", ["Broadcast", "Reduce"])
def test_without_the_root_only_ranks_that_saw_no_later_arrival_are_certain(call: str, tmp_path: Path) -> None:
    spans = [(0, 30), (0, 4), (12, 30)]
    tables = collectives(tmp_path, lambda p, rank: p.nccl(call, 17, spans[rank], payload=False), 3)
    assert waits(tables) == [None, 0, 0]
    assert "root" in tables["collective"][0]["match"]
    assert tables["overlap"][0]["exposed_unsplit_ns"] == 30 * MS


def test_nobody_is_blamed_for_who_did_not_wait_for_it(tmp_path: Path) -> None:
    spans = [(0, 30), (0, 4), (12, 30), (2, 30)]
    tables = collectives(tmp_path, lambda p, rank: p.nccl("Reduce", 17, spans[rank], bytes=64), 4)
    imposed = {row["rank"]: row["imposed_wait_ns"] / MS for row in tables["straggler"]}
    assert imposed == {0: 0, 1: 0, 2: 12, 3: 0}


def test_a_send_that_was_buffered_waited_for_nobody(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        if rank:
            process.nccl("Recv", 17, (10, 12), peer=0, bytes=64)
        else:
            process.nccl("Send", 17, (0, 2), peer=1, bytes=64)

    tables = collectives(tmp_path, draw, 2)
    assert waits(tables) == [0, 0]
    assert [row["transfer_ns"] / MS for row in tables["collective"]] == [2, 2]


def test_a_send_waits_for_its_receiver_and_a_receive_for_its_sender(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        if rank:
            process.nccl("Recv", 17, (4, 9), peer=0, bytes=64)
            process.nccl("Recv", 17, (10, 20), peer=0, bytes=64)
        else:
            process.nccl("Send", 17, (0, 9), peer=1, bytes=64)
            process.nccl("Send", 17, (13, 20), peer=1, bytes=64)

    assert waits(collectives(tmp_path, draw, 2)) == [4, 0, 0, 3]


# --- groups without payloads ---------------------------------------------------------------------------------------


def plain(spans: Sequence[Spans]) -> Callable[[Process, int], None]:
    """All-reduces without payloads: ``spans[rank]``."""

    def draw(process: Process, rank: int) -> None:
        for span in spans[rank]:
            process.nccl("AllReduce", 17, span, payload=False)

    return draw


def test_two_groups_in_lockstep_are_not_one(tmp_path: Path) -> None:
    spans = [[(0, 5)], [(1, 5)], [(2, 5.05)], [(4, 5.05)]]
    tables = collectives(tmp_path, plain(spans), 4)
    assert waits(tables) in ([1, 0, 2, 0], [None] * 4)
    assert all(row["last_rank"] != 3 for row in tables["collective"] if row["rank"] < 2)
    assert all("group" in row["match"] for row in tables["collective"])


@pytest.mark.parametrize("ranks", [4, 8, 64])
@pytest.mark.parametrize("far", [True, False])
def test_groups_are_told_apart_where_their_ends_are(ranks: int, far: bool, tmp_path: Path) -> None:
    """Two groups, interleaved: apart by more than one group's ends ever are, or by too little to know."""
    apart = 3.0 if far else 0.03
    spans = [
        [(20 * n + (rank // 2) / ranks, 20 * n + 10 + apart * (rank % 2)) for n in range(6)]
        for rank in range(ranks)
    ]
    tables = collectives(tmp_path, plain(spans), ranks)
    if far:
        last = (ranks // 2 - 1) / ranks
        for row in tables["collective"]:
            assert row["group_size"] == ranks // 2
            assert row["last_rank"] % 2 == row["rank"] % 2
            assert row["wait_ns"] == pytest.approx((last - (row["rank"] // 2) / ranks) * MS, abs=2)
    else:
        assert set(waits(tables)) == {None}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_ranks_that_end_together_are_one_group(ranks: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(ranks)
    starts = rng.uniform(0, 5, (ranks, 4))
    spans = [
        [(20 * n + starts[rank, n], 20 * n + 8 + 0.001 * rank / ranks) for n in range(4)]
        for rank in range(ranks)
    ]
    tables = collectives(tmp_path, plain(spans), ranks)
    for row in tables["collective"]:
        number = int(row["end_ns"] // (20 * MS))
        assert row["last_rank"] == int(starts[:, number].argmax())


def test_one_collective_whose_ends_disagree_spoils_no_other(tmp_path: Path) -> None:
    spans = [
        [(20 * n, 20 * n + 10) for n in range(5)],
        [(20 * n + 2, 20 * n + (16 if n == 3 else 10)) for n in range(5)],
    ]
    tables = collectives(tmp_path, plain(spans), 2)
    assert waits(tables) == [2, 2, 2, None, 2, 0, 0, 0, None, 0]


def test_a_partition_by_brute_force() -> None:
    """Against every partition of six ranks into groups of one size: what stands out is what minimises the spread."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        size = int(rng.choice([2, 3]))
        order = rng.permutation(6)
        groups = [np.sort(order[n : n + size]) for n in range(0, 6, size)]
        end = np.zeros((6, 8), dtype=np.int64)
        for group in groups:
            end[group] = rng.integers(0, 50 * MS, 8)[None, :] + rng.integers(0, 2_000, (size, 8))
        start = end - 60 * MS
        found = groups_of(start, end, np.zeros(6), 100_000)
        assert found is not None
        best = min(
            (parts for width in (2, 3) for parts in _partitions(list(range(6)), width)),
            key=lambda parts: (sum(np.ptp(end[list(part)], axis=0).sum() for part in parts), -len(parts[0])),
        )
        assert sorted(map(tuple, found)) == sorted(map(tuple, groups))
        if size == 2:  # of groups of three a part into pairs cannot be tighter
            assert sorted(best) == sorted(map(tuple, found))


def _partitions(rest: list[int], size: int) -> list[list[tuple[int, ...]]]:
    if not rest:
        return [[]]
    first, *others = rest
    return [
        [(first, *chosen), *tail]
        for chosen in itertools.combinations(others, size - 1)
        for tail in _partitions([one for one in others if one not in chosen], size)
    ]


# --- clocks of two hosts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [4, 6, 12, 24])
@pytest.mark.parametrize("skew_ms", [1, 3, -5, 7])
def test_equal_buckets_on_two_hosts_are_matched_by_the_gaps_between_steps(
    buckets: int, skew_ms: float, tmp_path: Path
) -> None:
    """The clock is corrected; taking each bucket for the next would explain the ends of most of them as well."""
    paths = []
    for rank in range(2):
        export = Export(host=f"node{rank}", utc_epoch_ns=1_700_000_000_000_000_000 + int(rank * skew_ms * MS))
        process = export.process(100 + rank, gpu=rank)
        rng = np.random.default_rng(1)
        for step in range(4):
            for bucket in range(buckets):
                at = 40 * step + (32 / buckets) * bucket + rng.uniform(0, 0.01)
                process.nccl("AllReduce", 17, (at + 0.02 * rank, at + 0.5 + 0.005 * rank), bytes=4 << 20)
        paths.append(export.write(tmp_path / f"rank{rank}.sqlite"))
    tables = document(*paths, "--per", "capture")["tables"]
    assert {row["match"] for row in tables["collective"]} == {"sequence"}
    assert tables["rank"][1]["clock_offset_ns"] == pytest.approx(-skew_ms * MS, abs=10_000)


@pytest.mark.parametrize("skew_ms", [5.7, -6.1])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_steps_that_are_nearly_alike_are_not_taken_for_each_other(
    seed: int, skew_ms: float, tmp_path: Path
) -> None:
    """Clocks are wrong by most of a step, and the steps differ by 10 us: still more than the ends of a collective."""
    starts = np.random.default_rng(seed).normal(0, 0.01, (4, 4))
    paths = []
    for rank in range(2):
        export = Export(host=f"node{rank}", utc_epoch_ns=1_700_000_000_000_000_000 + int(rank * skew_ms * MS))
        process = export.process(100 + rank, gpu=rank)
        late = np.random.default_rng(10 * seed + rank).normal(0, 0.002, (4, 4))
        for step in range(4):
            for bucket in range(4):
                at = 8 * step + bucket + starts[step, bucket]
                process.nccl("AllReduce", 17, (at, at + 0.5 + late[step, bucket]), bytes=4 << 20)
        paths.append(export.write(tmp_path / f"rank{rank}.sqlite"))
    tables = document(*paths, "--per", "capture")["tables"]
    assert {row["match"] for row in tables["collective"]} == {"sequence"}
    assert tables["rank"][1]["clock_offset_ns"] == pytest.approx(-skew_ms * MS, abs=10_000)


def test_a_few_collectives_that_fit_by_chance_outweigh_no_capture(tmp_path: Path) -> None:
    """The last three of one rank lie to each other as the first three of the other, and closer than all others do."""
    ends = np.cumsum(np.random.default_rng(5).uniform(2, 4, 20))
    ends[17:] = ends[17] + ends[:3] - ends[0]
    noise = np.full(20, 0.003)
    noise[[0, 1, 2, 17, 18, 19]] = 0.001
    paths = []
    for rank in range(2):
        export = Export(host=f"node{rank}", utc_epoch_ns=1_700_000_000_000_000_000 + rank * 3 * MS)
        process = export.process(100 + rank, gpu=rank)
        for end in ends + np.random.default_rng(rank).normal(0, noise):
            process.nccl("AllReduce", 17, (end - 1, end), bytes=4 << 20)
        paths.append(export.write(tmp_path / f"rank{rank}.sqlite"))
    tables = document(*paths, "--per", "capture")["tables"]
    assert {row["match"] for row in tables["collective"]} == {"sequence"}
    assert tables["rank"][1]["clock_offset_ns"] == pytest.approx(-3 * MS, abs=10_000)


@given(
    sizes=st.lists(st.sampled_from([4, 8, 16]), min_size=2, max_size=12),
    steps=st.integers(2, 8),
    begins=st.integers(0, 30),
    holes=st.sets(st.integers(0, 40), max_size=4),
)
@settings(max_examples=80, deadline=None)
def test_a_few_kernels_refuse_no_offset_that_all_would_fit(
    sizes: list[int], steps: int, begins: int, holes: set[int]
) -> None:
    payload = np.array(sizes * steps)

    def line(first: int, left_out: set[int]) -> NumberedKernels:
        numbers = np.array([n for n in range(first, payload.size) if n not in left_out] or [first])
        kernels = Kernels.of(
            event=numbers, rank=np.zeros_like(numbers), clock=np.full_like(numbers, first), stream=numbers,
            start=numbers * 1000, end=numbers * 1000 + 500, kind=np.full_like(numbers, CODE["all_reduce"]),
        )  # fmt: skip
        kernels.sequence, kernels.payload = numbers - first, payload[np.minimum(numbers, payload.size - 1)]
        return NumberedKernels(kernels, np.arange(numbers.size))

    own, other = line(0, set()), line(min(begins, payload.size - 1), holes)
    offsets = np.arange(-payload.size, payload.size + 1)
    fitting = {offset for offset in offsets.tolist() if own._score(other, offset, False) is not None}
    assert fitting <= set(own._possible(other, offsets).tolist())
