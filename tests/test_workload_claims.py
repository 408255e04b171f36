"""What each workload says on top of its file, held against a real capture of it on 2 x H200.

The captures (``tests/fixtures/h200``) are redacted; ``docs/results`` tells how they were made.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import statistics
from pathlib import Path

import polars as pl
import pytest
from conftest import FIXTURES

from nsysddp.join.load import load
from nsysddp.model.result import Result
from nsysddp.model.trace import Trace
from nsysddp.questions import analyze, context_of
from nsysddp.questions.critical_path import critical_path
from nsysddp.questions.diagnosis import diagnose
from nsysddp.questions.idle import idle
from nsysddp.questions.whatif import whatif

CAPTURES = FIXTURES / "h200"
SHARED_GPU = FIXTURES / "shared_gpu"
RANKS = (0, 1)
MIB = 1 << 20


@functools.cache
def trace(name: str) -> Trace:
    return load([CAPTURES / f"{name}.sqlite.gz"], host_calls=True)


@functools.cache
def result(name: str) -> Result:
    return analyze(trace(name))


@functools.cache
def path(name: str) -> Result:
    return critical_path(trace(name))


def steps(name: str) -> list[str]:
    return result(name)["overlap"]["step"].unique().sort().to_list()


def collectives(name: str) -> pl.DataFrame:
    """Those launched in a step, in the order of a rank."""
    return result(name)["collective"].filter(pl.col("step").is_not_null()).sort("rank", "start_ns")


def per_step(name: str) -> list[pl.DataFrame]:
    """The collectives of each rank and step."""
    frames = collectives(name).partition_by("rank", "step", maintain_order=True)
    assert len(frames) == len(RANKS) * len(steps(name))
    return frames


def each_step(name: str, column: str, rank: int) -> list[int]:
    return result(name)["overlap"].filter(pl.col("rank") == rank)[column].to_list()


# --- ddp_branches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "buckets_mib"),
    [
        ("coarse4_cap4", [4] * 12),
        ("delay_cap4", [4] * 12),
        ("delay_cap64", [48]),
        ("static_unused", [16, 16, 16, 4]),
    ],
)
def test_buckets_are_the_collectives_of_backward(name: str, buckets_mib: list[int]) -> None:
    for step in per_step(name):
        assert step["bytes"].to_list() == [mib * MIB for mib in buckets_mib]
        assert set(step["phase"]) == {"backward"}
        assert set(step["kind"]) == {"all_reduce"}


def test_dynamic_unused_reduces_the_map_of_used_parameters_too() -> None:
    for step in per_step("dynamic_unused"):
        sizes = step["bytes"].to_list()
        assert [size for size in sizes if size >= MIB] == [4 * MIB, 16 * MIB, 16 * MIB, 16 * MIB]
        (small,) = [size for size in sizes if size < MIB]
        assert small == 13 * 4  # one int32 a parameter


def test_twelve_delayed_buckets_overlap_on_every_rank() -> None:
    overlap = result("delay_cap4")["overlap"]
    assert overlap.height == 2 * 3
    assert overlap["hidden_communication_ns"].min() > 0  # type: ignore[operator]
    assert overlap["hidden_transfer_ns"].min() > 0  # type: ignore[operator]
    assert overlap["tail_transfer_ns"].min() > 0  # type: ignore[operator]
    for step in per_step("delay_cap4"):
        assert (step["hidden_ns"] > 0).to_list() == [True] * 11 + [False]
    for rank in RANKS:
        spins = trace("delay_cap4").events_of(rank).filter(pl.col("class") == "spin")
        assert spins.height == 12 * 3


def test_one_delayed_bucket_overlaps_on_no_rank() -> None:
    overlap = result("delay_cap64")["overlap"]
    assert overlap.height == 2 * 3
    assert overlap["hidden_communication_ns"].to_list() == [0] * 6
    assert overlap["collectives"].to_list() == [1] * 6
    assert (overlap["tail_communication_ns"] >= overlap["communication_ns"]).all()


def test_a_step_that_the_profiler_cut_off_is_left_out() -> None:
    """This capture went on into a step that one rank had begun."""
    (told,) = [one for one in result("truncated").warnings if one.code == "truncated_step"]
    assert told.count == 1
    assert steps("truncated") == ["step 10", "step 11"]
    assert result("truncated")["overlap"].group_by("rank").len()["len"].to_list() == [2, 2]


# --- gpt_ddp --------------------------------------------------------------------------------------------


def test_gpt_ddp_sends_every_gradient_once_in_backward() -> None:
    layers, width, vocabulary, sequence = 12, 1024, 32768, 1024
    block = 12 * width**2 + 13 * width
    parameters = 2 * vocabulary * width + sequence * width + layers * block + 2 * width
    for step in per_step("gpt_ddp"):
        assert step["bytes"].sum() == 4 * parameters
        assert step.height == 20
        assert step["bytes"][0] == 4 * vocabulary * width  # the head alone, above the cap
        assert step["bytes"][-1] > 4 * vocabulary * width  # with the embedding, whose gradient is the last
        assert set(step["phase"]) == {"backward"}


def test_gpt_ddp_hides_transfer_on_every_rank_and_its_last_bucket_is_the_tail() -> None:
    overlap = result("gpt_ddp")["overlap"]
    assert overlap["hidden_transfer_ns"].min() > 0  # type: ignore[operator]
    for step in per_step("gpt_ddp"):
        last = step.row(-1, named=True)
        assert last["exposed_ns"] > 0.9 * last["transfer_ns"]
        tail = overlap.filter(rank=last["rank"], step=last["step"])["tail_transfer_ns"].item()
        assert tail > 0.9 * last["transfer_ns"]


def test_gpt_ddp_ranks_wait_for_the_one_whose_host_is_late() -> None:
    """The rank that hides less transfer is the one that the other waits for."""
    imposed = result("gpt_ddp")["straggler"].filter(pl.col("step").is_not_null())
    late = imposed.group_by("rank").agg(pl.col("imposed_wait_ns").sum()).sort("imposed_wait_ns")["rank"][-1]
    (early,) = [rank for rank in RANKS if rank != late]
    hidden = {rank: sum(each_step("gpt_ddp", "hidden_transfer_ns", rank)) for rank in RANKS}
    assert hidden[early] > hidden[late]
    kinds = path("gpt_ddp")["critical_path_kind"]
    shares = kinds.group_by("kind").agg(pl.col("duration_ns").sum()).sort("duration_ns")
    assert shares["kind"].cast(pl.String).to_list()[-2:] == ["host", "host_gap"]
    assert path("gpt_ddp")["critical_path_step"]["path_rank"].unique().to_list() == [late]


# --- gpt_fsdp -------------------------------------------------------------------------------------------


def test_gpt_fsdp_gathers_twice_and_scatters_once_for_each_block() -> None:
    blocks = 12
    for step in per_step("gpt_fsdp"):
        count = {
            (kind, phase): size
            for kind, phase, size in step.group_by("kind", "phase")
            .len()
            .select("kind", "phase", "len")
            .rows()
        }
        assert count == {
            ("all_gather", "forward"): blocks + 1,
            ("all_gather", "backward"): blocks,
            ("reduce_scatter", "backward"): blocks + 1,
        }


def test_gpt_fsdp_hides_transfer_on_every_rank_but_not_the_roots_first_gather() -> None:
    assert result("gpt_fsdp")["overlap"]["hidden_transfer_ns"].min() > 0  # type: ignore[operator]
    for step in per_step("gpt_fsdp"):
        first = step.row(0, named=True)
        assert first["kind"] == "all_gather"
        assert first["bytes"] == max(step.filter(kind="all_gather")["bytes"])
        assert first["exposed_ns"] > 0.9 * first["transfer_ns"]


# --- straggler ------------------------------------------------------------------------------------------

LATE, EARLY = 1, 0


def test_the_late_ranks_spin_is_on_the_path_of_every_step() -> None:
    pieces = path("straggler")["critical_path"].filter(pl.col("kind") == "spin")
    spin = each_step("straggler", "spin_ns", LATE)
    assert each_step("straggler", "spin_ns", EARLY) == [0, 0, 0]
    for name, spun in zip(steps("straggler"), spin, strict=True):
        for _, rows in pieces.filter(step=name).group_by("path_rank"):
            assert rows["rank"].to_list() == [LATE]
            assert rows.select(pl.col("end_ns") - pl.col("start_ns")).sum().item() == spun
    causes = [one for one in path("straggler").findings if one.code == "critical_path_cause"]
    assert (causes[0].rank, "spin" in causes[0].message) == (LATE, True)
    assert all(one.rank == LATE for one in causes)


def test_everybody_waits_for_the_late_rank_about_as_long_as_it_spins() -> None:
    blamed = result("straggler")["straggler"].filter(pl.col("step").is_not_null())
    last = {rank: blamed.filter(rank=rank)["collectives_last"].sum() for rank in RANKS}
    assert last[EARLY] == 0
    assert last[LATE] == collectives("straggler").filter(rank=LATE).height
    spin = statistics.median(each_step("straggler", "spin_ns", LATE))
    for rank, low, high in ((EARLY, 0.75, 1.25), (LATE, 0.0, 0.01)):
        waits = zip(
            each_step("straggler", "hidden_wait_ns", rank),
            each_step("straggler", "exposed_wait_ns", rank),
            strict=True,
        )
        for hidden, exposed in waits:
            assert low * spin <= hidden + exposed <= high * spin
    finding = result("straggler").findings
    assert any(f.rank == EARLY and f"waiting for rank {LATE}" in f.message for f in finding)


def test_what_the_early_rank_hides_is_waiting_and_not_transfer() -> None:
    assert each_step("straggler", "hidden_transfer_ns", EARLY) == [0, 0, 0]
    assert min(each_step("straggler", "hidden_wait_ns", EARLY)) > 0
    assert min(each_step("straggler", "hidden_transfer_ns", LATE)) > 0
    sent = [
        statistics.median(
            a + b
            for a, b in zip(
                each_step("straggler", "hidden_transfer_ns", rank),
                each_step("straggler", "exposed_transfer_ns", rank),
                strict=True,
            )
        )
        for rank in RANKS
    ]
    assert max(sent) < 1.25 * min(sent)


# --- host_gap -------------------------------------------------------------------------------------------

SLEEP_NS, SLOW, FAST = 10_000_000, 1, 0


def test_a_host_that_sleeps_is_one_host_gap_a_step() -> None:
    pieces = path("host_gap")["critical_path"].with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    assert steps("host_gap") == ["step 10", "step 11", "step 12"]
    for name in steps("host_gap"):
        of_step = pieces.filter(step=name)
        assert of_step["path_rank"].unique().to_list() == [SLOW]  # no other rank ends at the same time
        (gap,) = of_step.filter(pl.col("kind") == "host_gap", pl.col("ns") >= SLEEP_NS).iter_rows(named=True)
        assert gap["rank"] == SLOW
        assert gap["phase"] == "forward"  # of what was launched next
        assert gap["ns"] < 1.05 * SLEEP_NS
        assert of_step.filter(pl.col("kind") == "host_gap")["ns"].sort(descending=True)[1] < SLEEP_NS / 5
        (item,) = of_step.filter(pl.col("kind") == "sync").iter_rows(named=True)
        assert (item["rank"], item["name"]) == (SLOW, "cudaStreamSynchronize")
        assert item["end_ns"] <= gap["start_ns"]
        assert of_step.filter(pl.col("kind") == "transfer")["rank"].unique().to_list() in ([], [SLOW])


def test_the_other_rank_waits_for_the_host_and_calls_it_overlap() -> None:
    overlap = result("host_gap")["overlap"]
    waits = {
        rank: overlap.filter(pl.col("rank") == rank).select(
            pl.col("hidden_wait_ns") + pl.col("exposed_wait_ns")
        )["hidden_wait_ns"]
        for rank in RANKS
    }
    assert waits[FAST].min() > SLEEP_NS  # type: ignore[operator]
    assert waits[SLOW].max() == 0
    assert each_step("host_gap", "hidden_transfer_ns", FAST) == [0, 0, 0]
    assert min(each_step("host_gap", "hidden_wait_ns", FAST)) > 0


def test_the_barriers_of_the_capture_window_are_not_communication_on_the_compute_stream() -> None:
    """Rank 0 waits in one for 2.8 ms, on the compute stream: more than what it sends in its steps."""
    outside = result("host_gap")["collective"].filter(pl.col("step").is_null(), pl.col("stream") == 7)
    assert outside["wait_ns"].max() > 2_000_000
    assert "communication_on_compute_stream" not in {one.code for one in result("host_gap").findings}


def test_the_gpu_of_the_slow_rank_is_idle_because_its_host_launches_late() -> None:
    """A step's window runs to the first event of the next, so the pauses before steps 11 and 12 lie in 10 and 11."""
    pieces = idle(context_of(trace("host_gap")))["idle"]
    long = pieces.filter(pl.col("rank") == SLOW, pl.col("end_ns") - pl.col("start_ns") > SLEEP_NS)
    assert long.select("step", "cause", "activity").sort("step").rows() == [
        ("step 10", "launch_late", "host_gap"),
        ("step 11", "launch_late", "host_gap"),
    ]


def test_the_diagnosis_finds_the_pause_on_the_slow_rank_in_its_data_phase() -> None:
    found = diagnose(context_of(trace("host_gap")))
    parts = found["diagnosis_evidence"].filter(pl.col("host_phase") == "data")
    assert parts["rank"].unique().to_list() == [SLOW]
    assert parts["cost_ns"].sum() == pytest.approx(SLEEP_NS, rel=0.05)
    (late,) = found["diagnosis"].filter(cause="straggler").iter_rows(named=True)
    assert (late["rank"], late["confidence"]) == (SLOW, "high")
    assert SLEEP_NS < late["cost_ns"] < 1.7 * SLEEP_NS  # after the pause its host launches slower, too
    assert "spent in data" in late["claim"]


@pytest.mark.parametrize("name", ["host_gap", "straggler"])
def test_without_the_late_rank_the_replayed_step_is_shorter_by_no_more_than_the_diagnosis_says(
    name: str,
) -> None:
    found = diagnose(context_of(trace(name)))["diagnosis"].filter(cause="straggler")
    (change_ns,) = whatif(context_of(trace(name)))["whatif"].filter(scenario="no_straggler")["change_ns"]
    assert change_ns < -1_000_000
    assert found["cost_ns"].item() >= -change_ns


# --- no_overlap -----------------------------------------------------------------------------------------


def test_no_overlap_is_exactly_zero_with_every_collective_exposed() -> None:
    overlap = result("no_overlap")["overlap"]
    assert overlap["hidden_communication_ns"].to_list() == [0] * overlap.height
    assert (overlap["exposed_communication_ns"] == overlap["communication_ns"]).all()
    assert overlap["tail_communication_ns"].null_count() == overlap.height
    for step in per_step("no_overlap"):
        assert step["bytes"].to_list() == [4096 * 4096 * 2] * 8
        assert set(step["phase"]) == {"forward"}
    for rank in RANKS:
        events = trace("no_overlap").events_of(rank)
        streams = {
            kind: set(events.filter(pl.col("class") == kind, pl.col("in_graph").not_())["stream"])
            for kind in ("compute", "communication")
        }
        assert streams["communication"] == streams["compute"]
    (said,) = (one for one in result("no_overlap").findings if "compute stream" in one.message)
    assert {row["rank"] for row in said.rows} == set(RANKS)


def test_the_path_of_no_overlap_alternates_between_compute_and_transfer() -> None:
    steady = path("no_overlap")["critical_path"].filter(pl.col("step_index") > 0)
    for _, step in steady.group_by("step", "path_rank"):
        kinds = step.sort("start_ns")["kind"].cast(pl.String).to_list()
        turns = [kind for kind in kinds if kind in ("compute", "transfer")]
        changes = sum(a != b for a, b in itertools.pairwise(turns))
        assert turns.count("transfer") == 8
        assert changes in (15, 16)


# --- the files themselves -------------------------------------------------------------------------------


def test_fixtures_are_small() -> None:
    sizes = [one.stat().st_size for one in CAPTURES.glob("*.sqlite.gz")]
    assert 0 < sum(sizes) < 2_500_000
    sizes = [one.stat().st_size for one in SHARED_GPU.glob("*.sqlite.gz")]
    assert 0 < sum(sizes) < 2_200_000


@pytest.mark.parametrize(
    "file",
    sorted([*CAPTURES.glob("*.sqlite.gz"), *SHARED_GPU.glob("*.sqlite.gz")]),
    ids=lambda file: file.name,
)
def test_fixtures_hold_no_path_and_no_environment(file: Path) -> None:
    content = gzip.decompress(file.read_bytes())
    for word in (
        b"/home",
        b"/root",
        b"/tmp",
        b"/work",
        b"/opt",
        b"LD_LIBRARY",
        b"PATH=",
        b"torchrun",
        b".py",
    ):
        assert word not in content
