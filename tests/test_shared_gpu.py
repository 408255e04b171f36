"""Real jobs of several groups: ranks that share one GPU, talk by sockets and end a collective milliseconds apart."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest
from builder import Export
from conftest import FIXTURES

import nsysddp
from nsysddp.model.result import Result

MIB = 1 << 20
CAPTURES = FIXTURES / "shared_gpu"


@cache
def real(job: str, question: str = "communicators") -> Result:
    return nsysddp.ask(nsysddp.load(CAPTURES / f"{job}.sqlite.gz", host_calls=True, metrics=True), question)


# --- real captures (fixtures/shared_gpu/shared_gpu.py) --------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("hsdp", {"shard": {"0 and 1", "2 and 3"}, "replicate": {"0 and 2", "1 and 3"}}),
        ("tensor", {"tensor": {"0 and 1", "2 and 3"}, "shard": {"0 and 2", "1 and 3"}}),
        ("pipeline", {"pipeline": {"0 and 1", "2 and 3"}, "data": {"0 and 2", "1 and 3"}}),
        ("experts", {"expert": {"0 to 3"}, "data": {"0 to 3"}}),
        ("late", {"data": {"0 to 3"}}),
    ],
)
def test_every_group_of_a_real_job_gets_the_role_that_the_job_gave_it(
    job: str, expected: dict[str, set[str]]
) -> None:
    table = real(job)["communicator"].drop_nulls("ranks")
    found: dict[str | None, set[str]] = {}
    for ranks, role in table.select("ranks", "role").iter_rows():
        found.setdefault(role, set()).add(ranks)
    assert found == expected


def test_more_tokens_for_one_expert_are_found() -> None:
    """From each other rank 0 gets 2 shares, a mean rank 1.25; on the way back 1, and others more."""
    row = real("experts")["exchange"].sort("received_ratio").to_dicts()[-1]
    assert row["rank"] == 0
    assert row["received_ratio"] == pytest.approx((1.6 + 0.8) / 2, abs=0.01)
    assert row["worst_ratio"] == pytest.approx((1.6 + 1) / 2, abs=0.01)


def test_without_phases_stages_and_micro_batches_are_those_of_the_job() -> None:
    """Two stages, eight micro-batches; in which part of the step bubbles lie is not known."""
    table = real("pipeline", "pipelines")["pipeline_stage"]
    assert dict(table.select("rank", "stage").unique().iter_rows()) == {0: 0, 1: 1, 2: 0, 3: 1}
    assert table["micro_batches"].unique().to_list() == [8]
    assert table["warm_up_ns"].null_count() == table.height
    assert table["bubble_ns"].null_count() == 0


@pytest.mark.parametrize("job", ["hsdp", "tensor", "pipeline", "experts", "late"])
def test_collectives_of_a_slow_link_are_matched_though_ranks_end_apart(job: str) -> None:
    table = real(job).trace.collectives.filter(pl.col("communicator").is_not_null())
    matched = table["collective_id"].is_not_null().mean()
    assert isinstance(matched, float)
    assert matched > 0.85


def test_three_ranks_hide_nothing_but_their_wait_for_the_rank_that_spins() -> None:
    found = [finding for finding in real("late", "analyze").findings if finding.code == "overlap_is_waiting"]
    assert len(found) == 1
    assert "ranks 0, 2 and 3 is waiting for rank 1" in found[0].message


def test_nothing_is_said_of_late_ranks_that_share_a_gpu() -> None:
    assert real("late", "stragglers")["late"].is_empty()


def test_a_framework_without_marks_is_read_as_one_window() -> None:
    result = real("accelerate", "analyze")
    assert result["overlap"]["step_index"].null_count() == result["overlap"].height == 2
    assert result["overlap"]["hidden_transfer_ns"].null_count() == 0


def test_a_pipeline_is_not_told_to_compress_gradients() -> None:
    """What takes long on its path beside reductions on the compute stream are messages between stages."""
    table = real("pipeline", "diagnose")["diagnosis"].filter(cause="slow_communication")
    assert table.height == 1
    assert "between the ranks" in table["try_next"][0]
    assert "gradients" not in table["try_next"][0]


# --- drawn: what these captures showed to be wrong --------------------------------------------------------------------


def two_ranks(late_ms: float, gap_ms: float, shift: int = 0, count: int = 12) -> Export:
    """All-reduces of 10 ms on one clock; rank 1 ends each ``late_ms`` later, and begins ``shift`` of them later."""
    export = Export()
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank)
        begin = 0.0
        for number in range(count):
            late = rank * (late_ms + shift * (10 + gap_ms))
            process.nccl("AllReduce", 17, (begin + late, begin + late + 10), bytes=4 * MIB)
            begin += 10 + gap_ms + 0.1 * (number % 3)
    return export


@pytest.mark.parametrize(
    ("late_ms", "shift", "matched"), [(0.0, 0, True), (0.9, 0, True), (3.0, 0, False), (0.9, 1, False)]
)
def test_on_one_clock_ends_agree_within_a_tenth_of_the_kernel(
    late_ms: float, shift: int, matched: bool, tmp_path: Path
) -> None:
    """Ends 3 ms apart are none of one collective of 10 ms, and neither is the next of a rank that began later."""
    path = two_ranks(late_ms, gap_ms=5, shift=shift).write(tmp_path / "a.sqlite")
    table = nsysddp.load(path).collectives
    same_number = table.filter(pl.col("collective_id").is_not_null())
    pairs = same_number.group_by("collective_id").agg(pl.col("sequence").n_unique(), pl.len())
    at_its_own = bool(pairs.height) and (pairs["sequence"] == 1).all() and (pairs["len"] == 2).all()
    assert at_its_own is matched


def gradients(tmp_path: Path, *, phases: bool) -> Result:
    """Four ranks; gradients are reduced between backward and the optimizer."""
    export = Export()
    for rank in range(4):
        process = export.process(pid=100 + rank, device=rank)
        for step in range(3):
            begin = 100 * step
            process.range(f"step {step}", begin, begin + 100)
            if phases:
                process.range("forward", begin, begin + 30)
                process.range("backward", begin + 30, begin + 60)
            process.kernel("gemm", at=(begin, begin + 60))
            process.nccl("AllReduce", 17, (begin + 65, begin + 75), bytes=64 * MIB)
            process.kernel("adam", at=(begin + 80, begin + 99))
    return nsysddp.ask(nsysddp.load(export.write(tmp_path / "a.sqlite"), host_calls=True), "communicators")


def test_gradients_reduced_after_backward_are_data_and_not_for_want_of_ranges(tmp_path: Path) -> None:
    row = gradients(tmp_path, phases=True)["communicator"].to_dicts()[0]
    assert (row["role"], "outside forward and backward" in row["evidence"]) == ("data", True)
    row = gradients(tmp_path, phases=False)["communicator"].to_dicts()[0]
    assert (row["role"], "no forward or backward range is known" in row["evidence"]) == (None, True)


def unmarked_pipeline(tmp_path: Path, *, both_ways: bool = False, early: bool = False) -> Result:
    """Two pipelines of two stages without phases; their replicas reduce after the last message, or between."""
    export = Export()
    for rank in range(4):
        process = export.process(pid=100 + rank, device=rank)
        pair, stage = divmod(rank, 2)
        for step in range(3):
            begin = 200 * step
            process.range(f"step {step}", begin, begin + 200)
            process.kernel("gemm", at=(begin, begin + 199))
            for number in range(4):
                forward = number % 2 == 0
                sends = forward == (stage == 0)
                at = (begin + 10 + 20 * number, begin + 20 + 20 * number)
                peer = {"communicator": 0xB0 + pair, "peer": 1 - stage, "bytes": MIB}
                if both_ways:
                    process.nccl_group([("Send", peer), ("Recv", peer)], 30, at, launched=at)
                else:
                    process.nccl("Send" if sends else "Recv", 30, at, **peer)
            reduced = begin + (40 if early else 120)
            process.nccl("AllReduce", 40, (reduced, reduced + 8), bytes=64 * MIB, communicator=0xD0 + stage)
    return nsysddp.ask(nsysddp.load(export.write(tmp_path / "a.sqlite"), host_calls=True), "communicators")


def roles(result: Result) -> dict[str, str | None]:
    return dict(result["communicator"].drop_nulls("ranks").select("ranks", "role").iter_rows())


def test_without_phases_the_first_messages_of_a_step_tell_a_pipeline(tmp_path: Path) -> None:
    assert roles(unmarked_pipeline(tmp_path)) == {
        "0 and 1": "pipeline",
        "2 and 3": "pipeline",
        "0 and 2": "data",
        "1 and 3": "data",
    }


def test_without_phases_messages_that_go_both_ways_at_once_are_no_pipeline(tmp_path: Path) -> None:
    found = roles(unmarked_pipeline(tmp_path, both_ways=True))
    assert {found["0 and 1"], found["2 and 3"]} == {None}


def test_without_phases_what_is_reduced_between_messages_is_not_reported(tmp_path: Path) -> None:
    found = roles(unmarked_pipeline(tmp_path, early=True))
    assert {found["0 and 2"], found["1 and 3"]} == {None}


def test_samples_of_a_shared_gpu_are_those_of_each_of_its_ranks(tmp_path: Path) -> None:
    export = Export()
    for rank in range(2):
        process = export.process(pid=100 + rank, device=0)
        for step in range(3):
            process.range(f"step {step}", 100 * step, 100 * step + 100)
            process.kernel("gemm", at=(100 * step, 100 * step + 60))
            process.nccl("AllReduce", 17, (100 * step + 60, 100 * step + 80), bytes=64 * MIB)
    export.gpu_metric("PCIe TX Throughput [Throughput %]", dict.fromkeys(range(1, 300), 40))
    trace = nsysddp.load(export.write(tmp_path / "a.sqlite"), host_calls=True, metrics=True)
    assert nsysddp.ask(trace, "stragglers")["link_counter"]["rank"].unique().sort().to_list() == [0, 1]


def test_ranks_that_differ_share_one_sentence_on_their_compute_stream(tmp_path: Path) -> None:
    export = Export()
    for rank in range(4):
        process = export.process(pid=100 + rank, device=rank)
        process.kernel("gemm", 7, at=(0, 100))
        process.nccl("AllReduce", 7, (100, 140 + 10 * rank), bytes=MIB)
        process.nccl("AllReduce", 17, (160, 200), bytes=MIB, communicator=0xA)
    result = nsysddp.ask(nsysddp.load(export.write(tmp_path / "a.sqlite")), "analyze")
    found = [finding for finding in result.findings if finding.code == "communication_on_compute_stream"]
    assert len(found) == 1
    assert "40.00 to 70.00 ms" in found[0].message
    assert "50 to 64 %" in found[0].message
