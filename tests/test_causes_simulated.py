"""Simulated jobs with one thing planted: the first cause named is that one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from simulation import truth
from simulation.export import write
from simulation.jobs import KIB, MIB, US, Job, Planted, simulate

from nsysddp.join.load import load
from nsysddp.model.result import Result
from nsysddp.questions import Context, context_of
from nsysddp.questions.contention import executions as kernels_beside
from nsysddp.questions.diagnosis import competing, costs, device, diagnose, merging, pauses, slowing, stopped

FIXTURE = Path(__file__).parent / "fixtures/h200/coarse4_cap16.sqlite.gz"


def diagnosed(job: Job, folder: Path, *, payload: bool = True) -> Result:
    folder.mkdir(exist_ok=True)
    paths = write(simulate(job), folder, per_rank=False, payload=payload)
    return diagnose(context_of(load(paths, host_calls=True, shapes=True, metrics=True)))


def first_of(result: Result) -> dict[str, Any]:
    return result["diagnosis"].row(0, named=True)


# --- kernels beside communication ------------------------------------------------------------------------------


def executions(lost: float, shares: tuple[float, ...], name: str = "gemm") -> pl.DataFrame:
    """Twenty executions a share on two GPUs, of which one is 10 % slower: 1 ms of work and what communication took."""
    rows = []
    for rank, speed in ((0, 1.0), (1, 1.1)):
        for number in range(20 * len(shares)):
            share = shares[number % len(shares)]
            work = speed * 1e6 * (1 + 0.01 * np.sin(number))
            duration = work / (1 - lost * share)
            rows.append((rank, name, round(duration), round(duration * share)))
    return pl.DataFrame(rows, ["rank", "name", "duration_ns", "beside_ns"], orient="row").with_columns(
        same=pl.lit(len(name)), steady=True
    )


@pytest.mark.parametrize("lost", [0.0, 0.2, 0.4])
def test_kernels_that_never_run_alone_are_compared_by_how_long_communication_was_beside_them(
    monkeypatch: pytest.MonkeyPatch, lost: float
) -> None:
    monkeypatch.setattr(slowing, "executions", lambda _: executions(lost, (0.3, 0.6, 0.9)))
    found = slowing.losses(None)  # type: ignore[arg-type]
    assert set(found) == {0, 1}
    assert found[0].share == pytest.approx(lost, abs=0.01)
    assert found[0].measured == 1


def test_kernels_beside_communication_for_all_of_their_time_tell_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slowing, "executions", lambda _: executions(0.3, (1.0,)))
    assert slowing.losses(None) == {}  # type: ignore[arg-type]


def test_what_could_not_be_compared_is_charged_alike_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    both = pl.concat([executions(0.3, (0.2, 0.8)), executions(0.3, (1.0,), "other")])
    monkeypatch.setattr(slowing, "executions", lambda _: both)
    found = slowing.losses(None)  # type: ignore[arg-type]
    assert found[1].share == pytest.approx(0.3, abs=0.01)
    assert 0.3 < found[1].measured < 0.6


def test_only_executions_whose_shares_differ_are_compared_and_all_that_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def watched(runs: pl.DataFrame) -> pl.DataFrame:
        asked.append(runs.height)
        return compared(runs)

    compared = slowing.compared
    alike = executions(0.3, (0.5, 0.51), "alike").with_columns(same=pl.lit(1))
    few = executions(0.3, (0.2, 0.8), "few").head(9).with_columns(same=pl.lit(2))
    differ = executions(0.3, (0.2, 0.8), "differ").with_columns(same=pl.lit(3))
    monkeypatch.setattr(slowing, "executions", lambda _: pl.concat([alike, few, differ]))
    monkeypatch.setattr(slowing, "compared", watched)
    found = slowing.losses(None)  # type: ignore[arg-type]
    assert asked == [differ.height]
    monkeypatch.setattr(slowing, "_comparable", lambda groups: groups["same"])
    assert slowing.losses(None) == found  # type: ignore[arg-type]
    assert asked[1:] == [alike.height + few.height + differ.height]


@pytest.mark.parametrize("longest", [1_000, 1 << 31])
def test_executions_are_the_same_numbers_however_long_one_of_them_is(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(load(FIXTURE, host_calls=True, shapes=True))
    every = kernels_beside.executions(context)
    kernels_of = kernels_beside.kernels_of

    def lengthened(context: Context, rank: int, work: kernels_beside.Work) -> kernels_beside.Executions:
        kernels = kernels_of(context, rank, work)
        duration = kernels.duration.copy()
        duration[np.flatnonzero(kernels.steady)[0]] = longest
        return replace(kernels, duration=duration)

    monkeypatch.setattr(kernels_beside, "kernels_of", lengthened)
    found = kernels_beside.executions(context)
    assert found["duration_ns"].cast(pl.Int64).max() == max(longest, every["duration_ns"].max())
    unlike = found["duration_ns"].cast(pl.Int64) != every["duration_ns"].cast(pl.Int64)
    assert found.filter(unlike)["duration_ns"].to_list() == [longest] * len(context.trace.rank_numbers)
    assert found.drop("duration_ns").cast(pl.Int64).equals(every.drop("duration_ns").cast(pl.Int64))


@pytest.mark.parametrize("seed", range(5))
def test_the_place_in_a_run_is_counted_in_order_whatever_lies_between(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = rng.integers(0, 10 ** rng.integers(1, 12), rng.integers(0, 500))
    counts: dict[int, int] = {}
    expected = []
    for one in run.tolist():
        counts[one] = counts.get(one, 0) + 1
        expected.append(counts[one])
    assert device.place_in_run(run).tolist() == expected


def test_contention_under_sharding_where_no_kernel_runs_alone(tmp_path: Path) -> None:
    job = Job(
        "hsdp", 4, 2, steps=4, layers=6, gbps=55, planted=Planted("contention", 1.5), on_compute_stream=False
    )
    result = diagnosed(job, tmp_path)
    assert first_of(result)["cause"] == "contention"
    assert "contention" not in result["diagnosis_unjudged"]["cause"].to_list()


def transfers(lost: float, disturbed: float) -> pl.DataFrame:
    """Forty like transfers, half of them beside computation; those are beside another communicator's too or not."""
    rows = []
    for number in range(40):
        computing = 0.8 * (number % 2)
        duration = 1e6 * (1 + 0.01 * np.sin(number)) / (1 - lost * computing)
        rows.append(
            (0, 1, round(duration), round(disturbed * computing * duration), round(computing * duration))
        )
    return pl.DataFrame(rows, ["rank", "same", "duration_ns", "others_ns", "computing_ns"], orient="row")


def test_what_transfers_lose_to_each_other_is_not_lost_to_computation() -> None:
    found = competing.lost_to_computation(transfers(0.3, 0.0))
    assert found == {0: pytest.approx(0.3, abs=0.02)}
    assert competing.lost_to_computation(transfers(0.3, 1.0)) == {}
    assert competing.lost_to_computation(transfers(0.0, 0.0)) == {}


# --- buckets and the link ----------------------------------------------------------------------------------------


SMALL = Job(
    ranks=2, steps=4, layers=6, layer_ns=200 * US, layer_bytes=3 * MIB, layer_parameters=7, latency_ns=60 * US
)


@pytest.mark.parametrize(("gbps", "cause"), [(20.0, "small_buckets"), (0.8, "slow_communication")])
def test_many_buckets_are_the_cause_if_larger_ones_would_save_more_than_half_the_bytes(
    tmp_path: Path, gbps: float, cause: str
) -> None:
    job = replace(SMALL, gbps=gbps, planted=Planted("small_buckets", 512 * KIB))
    assert first_of(diagnosed(job, tmp_path))["cause"] == cause


def test_tiny_buckets_of_one_size_are_named_with_low_confidence(tmp_path: Path) -> None:
    job = replace(
        SMALL,
        layer_parameters=1,
        layer_bytes=512 * KIB,
        layers=40,
        layer_ns=30 * US,
        latency_ns=150 * US,
        planted=Planted("small_buckets", 1),
    )
    result = diagnosed(job, tmp_path)
    first = first_of(result)
    assert (first["cause"], first["confidence"]) == ("small_buckets", "low")
    assert "one size" in first["doubt"]
    assert "small_buckets" not in result["diagnosis_unjudged"]["cause"].to_list()


def test_the_end_of_a_chain_of_buckets() -> None:
    """Run 0: the second is ready last; run 1: the first lasts."""
    run = np.array([0, 0, 1, 1])
    ends = merging._ends(run, np.array([0.0, 10.0, 0.0, 1.0]), np.array([4.0, 3.0, 8.0, 2.0]))
    assert ends.tolist() == [13.0, 10.0]


# --- what a cost is, and where it is no bound ----------------------------------------------------------------------


def test_tied_paths_that_have_the_same_transfers_by_different_names_share_the_least_of_their_sums() -> None:
    def part(path: int, cause: str, cost: int) -> dict[str, Any]:
        return {"step": "step 1", "step_index": 1, "path": path, "cause": cause, "cost_ns": cost}

    parts = pl.DataFrame(
        [
            *(part(0, "slow_communication", 60), part(0, "computation", 40)),
            *(part(1, "compute_tail", 30), part(1, "slow_communication", 20), part(1, "straggler", 50)),
        ]
    )
    found = dict(costs.per_step_of(parts).select("cause", "cost_ns").iter_rows())
    assert found == {
        "slow_communication": 20 + 17,
        "compute_tail": 12,
    }  # 50 in all; the means are 20 and 15 more


@pytest.mark.parametrize("kind", ["tp", "pp"])
def test_transfers_that_a_stopped_gpu_held_up_are_its_rank_s(tmp_path: Path, kind: str) -> None:
    job = Job(kind, 8, 4, steps=4, layers=3, micro_batches=4, activation_bytes=40 * MIB)
    job = replace(job, planted=Planted("preemption", 2.5e6, rank=5, how="stretch"))
    result = diagnosed(job, tmp_path)
    late = result["diagnosis"].filter(cause="straggler").row(0, named=True)
    assert late["rank"] == 5
    assert "its GPU was stopped now and then" in late["claim"]
    assert "nvidia-smi pmon" in late["try_next"]
    moved = result["diagnosis_evidence"].filter(cause="straggler", kind="transfer")
    assert moved["cost_ns"].sum() > 0
    assert set(moved["rank"].to_list()) == {5}
    assert late["cost_ns"] > truth.saving(job) - 0.02 * truth.mean(truth.lengths(job))


def test_a_rank_that_is_slow_in_all_its_kernels_holds_up_no_transfer() -> None:
    def longer(lengths: list[int]) -> pl.DataFrame:
        runs = pl.DataFrame({"rank": 1, "own_ns": lengths, "longer_ns": [one - 100 for one in lengths]})
        return stopped.sums_of(runs)

    assert stopped.stopped_ranks(longer([140] * 10)) == []
    assert stopped.stopped_ranks(longer([100] * 9 + [400])) == [1]
    assert stopped.stopped_ranks(longer([100] * 10)) == []


def test_a_pause_between_two_calls_is_seen_on_every_rank(tmp_path: Path) -> None:
    job = Job("dp", ranks=3, steps=4, layers=3, planted=Planted("pause_all", 6e6, None, "optimizer", "sleep"))
    paths = write(simulate(job), tmp_path, per_rank=False)
    found = pauses.shared_pauses(context_of(load(paths, host_calls=True)))
    for rank in range(3):
        assert found[rank].length_ns == pytest.approx(4 * 6e6, rel=0.2)


def test_a_pause_of_all_ranks_of_a_pipeline_makes_none_of_them_late(tmp_path: Path) -> None:
    """Later stages wait for the first meanwhile, so their GPUs show no pause of their own."""
    job = Job(
        "pp",
        8,
        2,
        steps=4,
        layers=3,
        micro_batches=4,
        planted=Planted("pause_all", 6e6, None, "forward", "free"),
    )
    result = diagnosed(job, tmp_path)
    assert first_of(result)["cause"] == "allocation"
    assert result["diagnosis"].filter(cause="straggler")["step_ratio"].sum() < 0.01


def test_a_cost_beside_communication_that_could_not_be_matched_is_no_bound(tmp_path: Path) -> None:
    job = Job("pp", 8, 2, steps=4, layers=2, planted=Planted("slow_link", 4.0))
    result = diagnosed(job, tmp_path, payload=False)
    first = first_of(result)
    assert not first["is_bound"]
    assert "part of the unresolved" in first["claim"]
    assert "slow_communication" in result["diagnosis_unjudged"]["cause"].to_list()


# --- what transfers cost, and what they save ---------------------------------------------------------------------


GATHERING = Job(
    "hsdp",
    8,
    8,
    per_host=4,
    layers=11,
    layer_ns=430 * US,
    layer_bytes=20 * MIB,
    layer_parameters=4,
    gap_ns=13 * US,
    gbps=80,
    far_gbps=47,
    jitter=0.003,
    side="around",
)


def test_transfers_just_above_a_late_rank_come_after_it(tmp_path: Path) -> None:
    """They take more of the path, but without them the late rank is the path, and the step hardly shorter."""
    job = replace(GATHERING, planted=Planted("slow_rank", 1.33, rank=2, phase="backward"))
    found = diagnosed(job, tmp_path)["diagnosis"]
    assert found["cause"].to_list()[:2] == ["straggler", "slow_communication"]
    sent = found.row(1, named=True)
    assert sent["cost_ns"] > found["cost_ns"][0] > sent["saving_ns"]
    quiet = truth.mean(truth.lengths(job)) - truth.mean(truth.lengths(replace(job, communication=0.0)))
    assert sent["saving_ns"] == pytest.approx(quiet, rel=0.05)
    assert sent["confidence"] == "medium"
    assert "without any communication the replayed step is" in sent["claim"]


def test_transfers_held_behind_computation_are_not_surely_slow(tmp_path: Path) -> None:
    job = replace(GATHERING, gbps=9, far_gbps=9, layers=6, layer_ns=1100 * US, layer_bytes=8 * MIB)
    alone = diagnosed(job, tmp_path / "alone")["diagnosis"].filter(cause="slow_communication")
    assert alone["confidence"].to_list() == ["high"]
    found = diagnosed(replace(job, planted=Planted("one_queue")), tmp_path / "held")["diagnosis"]
    assert found.filter(cause="held_behind_compute")["step_ratio"].item() > 0.1
    sent = found.filter(cause="slow_communication").row(0, named=True)
    assert sent["confidence"] == "medium"
    assert "held behind computation" in sent["doubt"]


def test_transfers_that_a_stopped_gpu_takes_part_in_are_not_surely_slow(tmp_path: Path) -> None:
    """Every transfer is about as long as its like: they are all held up."""
    job = Job(
        "ep",
        16,
        4,
        per_host=4,
        layers=6,
        layer_ns=1270 * US,
        layer_bytes=8 * MIB,
        layer_parameters=6,
        activation_bytes=572 * KIB,
        small_first=True,
        gbps=10.5,
        far_gbps=6.3,
        side="around",
        planted=Planted("preemption", 2.85e6, rank=5, how="stretch"),
    )
    found = diagnosed(job, tmp_path)["diagnosis"]
    moving = found.filter(pl.col("cause").is_in(["slow_communication", "compute_tail"]))
    assert moving.height
    assert "high" not in moving["confidence"].to_list()
    late = found.filter(cause="straggler").row(0, named=True)
    assert (late["rank"], late["is_bound"]) == (5, False)


def test_late_launches_in_a_run_bound_by_launches_have_no_bound(tmp_path: Path) -> None:
    """What of its launches is late by itself and what because all are late is not told."""
    job = Job("dp", 4, layers=8, layer_ns=60 * US, launch_ns=30 * US, gap_ns=40 * US, layer_bytes=4 * MIB)
    found = diagnosed(replace(job, planted=Planted("late_launch", 400e3)), tmp_path)["diagnosis"]
    ratio = dict(found.select("cause", "step_ratio").iter_rows())
    late = found.filter(cause="bucket_scheduling").row(0, named=True)
    assert late["is_bound"] is (ratio["host_bound"] <= ratio["bucket_scheduling"])
    assert late["is_bound"] is False
    assert "what all launches cost" in late["claim"]


def test_what_peers_lose_to_collectives_that_wait_for_the_late_rank_is_lateness_too(tmp_path: Path) -> None:
    """Their kernels are slower beside what waits for it, so that it seems less late than it is."""
    job = replace(GATHERING, ranks=2, group=2, layer_ns=1100 * US, gbps=60, contention=1.08)
    job = replace(job, planted=Planted("slow_rank", 1.15, rank=0))
    first = first_of(diagnosed(job, tmp_path))
    assert (first["cause"], first["rank"], first["is_bound"]) == ("straggler", 0, True)
    assert first["cost_ns"] == pytest.approx(truth.saving(job), rel=0.03)


def test_what_no_payload_tells_is_said_to_be_unresolved_with_what_to_capture(tmp_path: Path) -> None:
    job = Job("pp", 6, 3, steps=3, layers=3, micro_batches=6)
    job = replace(job, planted=Planted("slow_rank", 2.0, rank=2, phase="backward"))
    result = diagnosed(job, tmp_path, payload=False)
    assert "capture all ranks, with --include-blobs=true)" in result.findings[0].message
    (late,) = result["diagnosis_unjudged"].filter(cause="straggler").iter_rows(named=True)
    assert "of its own work rank 2 has" in late["reason"]
    assert late["capture"] == "all ranks, exported with --include-blobs=true"
    told = diagnosed(job, tmp_path / "told")
    assert "include-blobs" not in told.findings[0].message
    assert "straggler" not in told["diagnosis_unjudged"]["cause"].to_list()
