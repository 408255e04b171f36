"""What changes what may be said of the whole: processes without GPU data, one GPU for two ranks, empty steps."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from builder import Export, Process
from command import document, run
from conftest import FIXTURES, unpack_fixture

from nsysddp.join.load import load
from nsysddp.questions import analyze

MS = 1_000_000
GPU_TABLES = ("KERNEL", "MEMCPY", "MEMSET")


@pytest.mark.parametrize("silent", [0, 1])
def test_a_process_whose_gpu_events_are_missing_is_of_the_job(silent: int, tmp_path: Path) -> None:
    path = unpack_fixture(FIXTURES / "h200" / "delay_cap4.sqlite.gz", tmp_path)
    pid = document(path)["tables"]["rank"][silent]["pid"]
    with sqlite3.connect(path) as connection:
        for table in GPU_TABLES:
            connection.execute(
                f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE ((globalPid >> 24) & 16777215) = ?", (pid,)
            )
    for command in ("analyze", "diagnose", "critical-path", "buckets", "idle", "contention", "whatif"):
        text = run(command, path)
        assert text.code == 0, text.err
        assert "GPU data for 1 of 2 processes" in " ".join(text.out.split()), command
        assert "every rank" not in text.out
    made = document(path)
    assert made["findings"][0]["code"] == "gpu_data_missing"
    assert made["tables"]["straggler"] == []
    assert {row["exposed_wait_ns"] for row in made["tables"]["overlap"]} == {None}


def test_a_process_that_launched_nothing_is_not_missing(tmp_path: Path) -> None:
    export = Export()
    export.process(100).kernel("sgemm", 7, (0, 10), launched=0)
    launcher = export.process(101)
    launcher.range("loading", 0, 5)
    launcher.call("cudaGetDeviceCount", (0, 1))
    codes = {one["code"] for one in document(export.write(tmp_path / "a.sqlite"))["warnings"]}
    assert "process_without_gpu_events" not in codes


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_of_one_gpu_are_named_before_anything_else(ranks: int, tmp_path: Path) -> None:
    export = Export()
    for rank in range(ranks):
        export.process(100 + rank, gpu=0).kernel("sgemm", 7, (10 * rank, 10 * rank + 15))
    made = document(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert made["findings"][0]["code"] == "shared_gpu"
    assert f"{5 * (ranks - 1):.2f} ms" in made["findings"][0]["message"]


def test_ranks_of_two_gpus_share_none(tmp_path: Path) -> None:
    export = Export()
    for rank in range(2):
        export.process(100 + rank, gpu=rank).kernel("sgemm", 7, (0, 15))
    assert analyze(load(export.write(tmp_path / "a.sqlite"))).findings[0].code != "shared_gpu"


# --- the tail is of what reduces gradients -------------------------------------------------------------------------


def tail_of(tmp_path: Path, draw: object) -> list[float | None]:
    export = Export()
    for rank in range(2):
        process = export.process(100 + rank, gpu=rank)
        process.range("step 0", 0, 100)
        process.range("forward", 0, 5)
        process.range("backward", 10, 20)
        process.kernel("sgemm", 7, (10, 50), launched=11)
        draw(process, rank)  # type: ignore[operator]
    rows = document(export.write(tmp_path / "a.sqlite"))["tables"]["overlap"]
    return [
        None if row["tail_communication_ns"] is None else row["tail_communication_ns"] / MS for row in rows
    ]


def test_a_reduction_after_backward_is_all_tail(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.range("grad-sync", 30, 40)
        process.nccl("AllReduce", 17, (50, 70), launched=31, bytes=1 << 20)

    assert tail_of(tmp_path, draw) == [20, 20]


def test_a_norm_after_backward_moves_no_tail(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl("AllReduce", 17, (40, 55), launched=15, bytes=1 << 20)
        process.nccl("AllReduce", 17, (80, 90), launched=35, bytes=4)

    assert tail_of(tmp_path, draw) == [5, 5]


def test_gradients_reduced_in_backward_and_after_it_end_with_the_last(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl("AllReduce", 17, (40, 55), launched=15, bytes=1 << 20)
        process.nccl("AllReduce", 17, (80, 90), launched=35, bytes=1 << 20)

    assert tail_of(tmp_path, draw) == [40, 40]


@pytest.mark.parametrize("call", ["AllGather", "Broadcast"])
def test_without_a_reduction_there_is_no_tail(call: str, tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl(call, 17, (40, 60), launched=15, bytes=1 << 20)

    assert tail_of(tmp_path, draw) == [None, None]


def test_a_reduction_that_ended_before_backward_did_has_a_tail_of_zero(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl("ReduceScatter", 17, (20, 30), launched=15, bytes=1 << 20)
        process.nccl("AllGather", 17, (60, 70), launched=45, bytes=1 << 20)

    assert tail_of(tmp_path, draw) == [0, 0]


# --- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("late", [7, 40, 79])
def test_threads_that_name_their_steps_alike_have_the_same_steps(
    threads: int, late: int, tmp_path: Path
) -> None:
    export = Export()
    process = export.process(100)
    for thread in range(threads):
        for step in range(3):
            start = 80 * step + late * thread / threads
            process.range("train", start, start + 80, thread=1000 + thread)
            process.kernel(
                "sgemm",
                7,
                (start + 5, start + 60),
                device=thread,
                context=thread + 1,
                launched=start + 1,
                thread=1000 + thread,
            )
    made = document(export.write(tmp_path / "a.sqlite"), "--step-pattern", "train")
    steps = {(row["rank"], row["step_index"]) for row in made["tables"]["overlap"]}
    assert steps == {(rank, step) for rank in range(threads) for step in range(3)}


def test_a_name_that_comes_back_on_another_thread_is_another_step(tmp_path: Path) -> None:
    export = Export()
    process = export.process(100)
    for number, thread in enumerate((1000, 1001, 1000)):
        process.range("train", 100 * number, 100 * number + 80, thread=thread)
        process.kernel(
            "sgemm", 7, (100 * number, 100 * number + 50), launched=100 * number + 1, thread=thread
        )
    made = document(export.write(tmp_path / "a.sqlite"), "--step-pattern", "train")
    assert [row["step_index"] for row in made["tables"]["overlap"]] == [0, 1, 2]


def test_a_step_does_not_stretch_over_its_empty_followers(tmp_path: Path) -> None:
    export = Export()
    process = export.process(100)
    for step in range(12):
        process.range(f"step {step}", 100 * step, 100 * step + 90)
    for step in (0, 11):
        process.kernel("sgemm", 7, (100 * step + 10, 100 * step + 40), launched=100 * step + 1)
    rows = document(export.write(tmp_path / "a.sqlite"))["tables"]["overlap"]
    assert [(row["step"], row["window_ns"] / MS, row["is_warmup"]) for row in rows] == [
        ("step 0", 30, False),
        ("step 11", 30, False),
    ]
