"""The generated exports say what their truth says: recomputed from the file alone, one nanosecond at a time."""

from __future__ import annotations

import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import itertools

from check import compare
from generate import Size, generate, truth_path
from raw_read import kernel_rows

STEP_TABLES = {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"}


def read(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.fixture(scope="module", params=["flush", "start"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Size]:
    size = Size(kernels=600, ranks=3, kernels_per_step=50, buckets=4, seed=5, row_order=request.param)
    path = tmp_path_factory.mktemp("bench") / "small.sqlite"
    generate(path, size)
    return path, size


def events(path: Path, pid: int) -> list[tuple[str, int, int, int]]:
    """(class, start, end, step by launch) of every GPU event of one process."""
    steps = read(
        path,
        "SELECT start, end, CAST(substr(text, 6) AS INTEGER) FROM NVTX_EVENTS "
        f"WHERE text LIKE 'step %' AND (globalTid >> 24) & 0xFFFFFF = {pid}",
    )
    found = []
    for table in sorted(STEP_TABLES):
        name = "value LIKE 'nccl%'" if table.endswith("KERNEL") else "NULL"
        strings = "JOIN StringIds s ON s.id = g.shortName" if table.endswith("KERNEL") else ""
        for is_nccl, start, end, launch in read(
            path,
            f"SELECT {name}, g.start, g.end, r.start FROM {table} g {strings} "
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = g.correlationId "
            f"AND r.globalTid >> 24 = g.globalPid >> 24 WHERE (g.globalPid >> 24) & 0xFFFFFF = {pid}",
        ):
            kind = {None: "memory", 0: "compute", 1: "communication"}[is_nccl]
            (step,) = [step for begin, finish, step in steps if begin <= launch < finish]
            assert launch <= start
            found.append((kind, start, end, step))
    return found


def length(spans: list[tuple[int, int]]) -> int:
    total, reached = 0, None
    for start, end in sorted(spans):
        begin = start if reached is None else max(start, reached)
        total += max(0, end - begin)
        reached = end if reached is None else max(reached, end)
    return total


def clipped(found: list[tuple[str, int, int, int]], kinds: str, low: int, high: int) -> list[tuple[int, int]]:
    return [(max(s, low), min(e, high)) for k, s, e, _ in found if k in kinds and s < high and e > low]


def expected(found: list[tuple[str, int, int, int]], low: int, high: int) -> dict[str, int]:
    """The decomposition by inclusion and exclusion of union lengths: another way than the generator's sweep."""
    p, c, m = (clipped(found, kind, low, high) for kind in ("compute", "communication", "memory"))
    hidden = length(p) + length(c) - length(p + c)
    return {
        "window_ns": high - low,
        "compute_ns": length(p),
        "communication_ns": length(c),
        "hidden_communication_ns": hidden,
        "exposed_communication_ns": length(c) - hidden,
        "exposed_memory_ns": length(p + c + m) - length(p + c),
        "idle_ns": high - low - length(p + c + m),
    }


def test_the_truth_is_that_of_the_file(made: tuple[Path, Size]) -> None:
    path, size = made
    truth = json.loads(truth_path(path).read_text())
    pids = [pid for (pid,) in read(path, "SELECT pid FROM PROCESSES ORDER BY pid")]
    assert len(pids) == size.ranks
    assert truth["steps"] == size.steps == 4
    for rank, pid in enumerate(pids):
        found = events(path, pid)
        begin, finish = min(s for _, s, _, _ in found), max(e for _, _, e, _ in found)
        whole = truth["capture"][rank]
        assert expected(found, begin, finish).items() <= whole.items()
        edges = []
        for step in range(size.steps):
            first_event = min(s for _, s, _, k in found if k == step)
            first_compute = min(s for c, s, _, k in found if k == step and c == "compute")
            before = [e for c, _, e, k in found if k == step - 1 and c == "compute"]
            edges.append(min(first_compute, max(first_event, *before)) if before else first_event)
        edges.append(max(e for _, _, e, k in found if k == size.steps - 1))
        steps = [row for row in truth["step"] if row["rank"] == rank]
        assert [row["step"] for row in steps] == [f"step {i}" for i in range(size.steps)]
        for row, low, high in zip(steps, edges, edges[1:], strict=False):
            assert expected(found, low, high).items() <= row.items()
            assert row["kernels"] == size.kernels_per_step


def test_wait_and_transfer_split_communication(made: tuple[Path, Size]) -> None:
    path, _ = made
    truth = json.loads(truth_path(path).read_text())
    nccl = read(
        path,
        "SELECT g.globalPid, g.start, g.end FROM CUPTI_ACTIVITY_KIND_KERNEL g JOIN StringIds ON id = shortName "
        "WHERE value LIKE 'nccl%' ORDER BY g.globalPid, g.start",
    )
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for pid, start, end in nccl:
        by_rank.setdefault(pid, []).append((start, end))
    ready = [max(starts) for starts in zip(*([s for s, _ in own] for own in by_rank.values()), strict=True)]
    for row, own in zip(truth["capture"], by_rank.values(), strict=True):
        transfer = length([(min(r, e), e) for r, (_, e) in zip(ready, own, strict=True)])
        assert row["hidden_transfer_ns"] + row["exposed_transfer_ns"] == transfer
        parts = ("hidden_transfer_ns", "hidden_wait_ns", "exposed_transfer_ns", "exposed_wait_ns")
        assert sum(row[part] for part in parts) == row["communication_ns"]
        assert row["hidden_wait_ns"] + row["hidden_transfer_ns"] == row["hidden_communication_ns"]


def test_the_export_is_deterministic_and_like_a_real_one(made: tuple[Path, Size], tmp_path: Path) -> None:
    path, size = made
    generate(tmp_path / "again.sqlite", size)
    assert (tmp_path / "again.sqlite").read_bytes() == path.read_bytes()
    kernels = read(path, "SELECT start, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert len(kernels) == 600
    assert len(read(path, "SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME")) == 900
    ordered = [start for start, _ in kernels] == sorted(start for start, _ in kernels)
    assert ordered == (size.row_order == "start")
    calls = read(
        path,
        "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY globalTid, start ORDER BY globalTid, 1",
    )
    assert all(end > start for start, end in calls)
    threads = read(
        path, "SELECT start, end, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY globalTid, start"
    )
    for (_, end, thread), (start, _, following) in itertools.pairwise(threads):
        assert thread != following or end <= start
    assert len({thread for *_, thread in threads}) == 2 * size.ranks
    payloads = read(path, "SELECT count(*) FROM NVTX_EVENTS WHERE typeof(binaryData) = 'blob'")
    assert payloads == [(size.ranks * size.steps * size.buckets,)]
    without = tmp_path / "without.sqlite"
    generate(without, replace(size, payload=False, ranges_per_launch=2))
    assert read(without, "SELECT count(*) FROM NVTX_EVENTS WHERE binaryData IS NOT NULL") == [(0,)]
    operators = "SELECT start, end, globalTid FROM NVTX_EVENTS WHERE text LIKE 'aten::%'"
    assert len(read(without, operators)) == 2 * size.ranks * size.steps * (50 - size.buckets)
    assert (
        truth_path(without).read_text().partition("steps")[2]
        == truth_path(path).read_text().partition("steps")[2]
    )


def test_the_check_finds_what_differs() -> None:
    right = [
        {"rank": 0, "step": "step 0", "idle_ns": 5, "hidden_wait_ns": 3},
        {"rank": 1, "step": None, "idle_ns": 5},
    ]
    assert compare(right, right) == {
        "rows": 2,
        "equal": 7,
        "different": 0,
        "first_differences": [],
        "null": [],
    }
    wrong = [{"rank": 0, "step": "step 0", "idle_ns": 6, "hidden_wait_ns": None}, {"rank": 2, "step": None}]
    found = compare(wrong, right)
    assert found["first_differences"] == [
        "rank 0 step 0 idle_ns: 6, right is 5",
        "rank 1 None: no row",
        "rank 2 None: not in the truth",
    ]
    assert found["null"] == ["hidden_wait_ns"]


def test_the_raw_read_reads_every_kernel(made: tuple[Path, Size]) -> None:
    path, _ = made
    assert kernel_rows(path) == 600
