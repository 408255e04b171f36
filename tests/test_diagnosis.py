"""Diagnosis: causes drawn by hand, bounds on random runs, and real captures with a known bottleneck."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from hypothesis import HealthCheck, given, settings
from scene import MS, Scene
from test_critical_path_random import Op, programs, simulate, trace_of

from nsysddp import samples
from nsysddp.cli import cli
from nsysddp.join.load import load
from nsysddp.model.errors import AnalysisError
from nsysddp.model.result import Result
from nsysddp.model.trace import Trace
from nsysddp.questions import context_of
from nsysddp.questions.critical_path import critical_path
from nsysddp.questions.diagnosis import COMPUTATION, TABLES, UNRESOLVED, diagnose
from nsysddp.questions.diagnosis.causes import BY_CODE, CAUSES
from nsysddp.questions.link import fit_link, link_reference_gbps

Unpacked = Callable[[str], Path]


def of(trace: Trace) -> Result:
    """The diagnosis of a drawn trace, whose collectives are all-reduces."""
    named = trace.collectives.with_columns(kind=pl.col("kind").fill_null("all_reduce"))
    return diagnose(context_of(replace(trace, collectives=named)))


def costs(result: Result) -> dict[str, float]:
    """Milliseconds per step of each cause; -1 of a fault."""
    return {
        cause: -1.0 if cost is None else cost / MS
        for cause, cost in result["diagnosis"].select("cause", "cost_ns").iter_rows()
    }


def real(unpacked: Unpacked, name: str) -> Result:
    return of(load(unpacked(f"h200/{name}"), host_calls=True, shapes=True, metrics=True))


# --- drawn by hand ---------------------------------------------------------------------------------------------------


def two_ranks(late_ms: float) -> Scene:
    """One step each: forward g, backward b, then one all-reduce; rank 1's forward takes longer.

    rank 0  g[1,2) b[2,4) wait  r[4.01, 7+late)
    rank 1  g[1,2+late) b[,4+late) r[4.01+late, 7+late)
    """
    scene = Scene()
    handles = []
    for rank, more in ((0, 0.0), (1, late_ms)):
        scene.range(rank, "step 0", 0, 20)
        scene.range(rank, "forward", 0, 0.2)
        scene.range(rank, "backward", 0.3, 0.6)
        scene.launch(rank, 7, (1, 2 + more), "g", ("main", 0.05, 0.1))
        scene.launch(rank, 7, (2 + more, 4 + more), "b", ("main", 0.35, 0.4))
        scene.record(rank, 7, 0.41, 1)
        scene.wait(rank, 17, 0.42, 1)
        handles.append(
            scene.launch(
                rank, 17, (4.001 + more, 7 + late_ms), "nccl", ("main", 0.45, 0.5), kind="communication"
            )
        )
    scene.collective(*handles)
    return scene


@pytest.mark.parametrize("late_ms", [0.5, 3.0])
def test_lateness_of_a_rank_is_what_it_costs(late_ms: float) -> None:
    result = of(two_ranks(late_ms).trace())
    first = result["diagnosis"].filter(pl.col("cause") == "straggler").row(0, named=True)
    assert first["cost_ns"] == pytest.approx(late_ms * MS, abs=0.002 * MS)
    assert first["rank"] == 1
    assert first["phase"] == "forward"  # where it takes longer, not where the lateness shows
    assert f"g alone {late_ms:.3f} ms longer" in first["claim"]


def test_a_run_without_any_length_has_no_causes() -> None:
    scene = Scene()
    scene.launch(0, 7, (5, 5), "g", ("main", 4, 5))
    assert not of(scene.trace())["diagnosis"].height


def test_without_lateness_there_is_no_straggler() -> None:
    result = of(two_ranks(0.0).trace())
    assert "straggler" not in costs(result)
    assert costs(result)["single_bucket"] == pytest.approx(2.999)


def test_the_late_rank_is_behind_the_median_of_the_others() -> None:
    """Three ranks: two arrive at 4, one at 9; and with two late ones the lateness is that behind the median."""
    for second, expected in ((4.0, 5.0), (8.0, 3.0)):
        scene = Scene()
        handles = []
        for rank, end in ((0, 4.0), (1, second), (2, 9.0)):
            scene.launch(rank, 7, (1, end), "g", ("main", 0.05, 0.1))
            scene.record(rank, 7, 0.2, 1)
            scene.wait(rank, 17, 0.25, 1)
            handles.append(
                scene.launch(rank, 17, (end, 12.0), "nccl", ("main", 0.3, 0.35), kind="communication")
            )
        scene.collective(*handles)
        assert costs(of(scene.trace()))["straggler"] == pytest.approx(expected)


def two_collectives(kernels: dict[int, tuple[float, float]], *, serial: bool) -> Scene:
    """Two kernels a rank, from 1 on (``kernels``: how long they take), each sent by a collective on its own stream.

    ``serial``: the second kernel waits for the first collective.
    """
    scene = Scene()
    handles: dict[int, list[int]] = {0: [], 1: []}
    ready = {rank: 1.0 + first for rank, (first, _) in kernels.items()}
    sent = max(ready.values()) + 1
    for rank, (first, second) in kernels.items():
        begin = sent if serial else 1.0 + first
        last = max((sent if serial else 1.0 + one) + two for one, two in kernels.values()) + 1
        scene.launch(rank, 7, (1, 1 + first), "a", ("main", 0.01, 0.02))
        scene.record(rank, 7, 0.03, 1)
        scene.wait(rank, 17, 0.04, 1)
        handles[0].append(
            scene.launch(rank, 17, (1 + first, sent), "nccl", ("main", 0.05, 0.06), kind="communication")
        )
        scene.record(rank, 17, 0.07, 2)
        if serial:
            scene.wait(rank, 7, 0.08, 2)
        scene.launch(rank, 7, (begin, begin + second), "b", ("main", 0.09, 0.1))
        scene.record(rank, 7, 0.11, 3)
        scene.wait(rank, 17, 0.12, 3)
        handles[1].append(
            scene.launch(
                rank,
                17,
                (max(begin + second, sent), last),
                "nccl",
                ("main", 0.13, 0.14),
                kind="communication",
            )
        )
    for group in handles.values():
        scene.collective(*group)
    return scene


def test_lateness_that_the_others_cannot_have_waited_for_yet_counts_once() -> None:
    """Rank 1 is 3 ms late for both collectives, the second of which is ready 10 ms later on either rank."""
    found = costs(of(two_collectives({0: (1, 10), 1: (4, 10)}, serial=False).trace()))
    assert found["straggler"] == pytest.approx(3.0)


def test_lateness_grows_by_what_is_added() -> None:
    found = costs(of(two_collectives({0: (1, 10), 1: (4, 12)}, serial=False).trace()))
    assert found["straggler"] == pytest.approx(5.0)


def test_lateness_after_the_others_have_waited_is_new() -> None:
    """The second kernels begin together, behind the first collective: rank 1 is 3 ms late, then 2 ms."""
    found = costs(of(two_collectives({0: (1, 10), 1: (4, 12)}, serial=True).trace()))
    assert found["straggler"] == pytest.approx(5.0)
    found = costs(of(two_collectives({0: (1, 10), 1: (4, 11)}, serial=True).trace()))
    assert found["straggler"] == pytest.approx(4.0)


def test_host_time_after_a_synchronisation_is_its_consequence() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 4), "a", ("main", 0.1, 0.2))
    scene.synchronise(0, (0.3, 4.1), "cudaDeviceSynchronize")
    scene.launch(0, 7, (4.6, 6), "b", ("main", 4.3, 4.5))
    found = costs(of(scene.trace()))
    assert found["synchronisation"] == pytest.approx(0.6)
    assert "host_bound" not in found

    scene = Scene()  # a long pause of the host is a cause of its own, a stall, whatever came before it
    scene.launch(0, 7, (1, 4), "a", ("main", 0.1, 0.2))
    scene.synchronise(0, (0.3, 4.1), "cudaDeviceSynchronize")
    scene.launch(0, 7, (7.2, 8), "b", ("main", 7, 7.1))
    found = costs(of(scene.trace()))
    assert found["host_stall"] == pytest.approx(2.9)
    assert found["synchronisation"] == pytest.approx(0.3)  # the rest of the call, the launch and its latency


def pausing(pauses_ms: tuple[float, float]) -> Scene:
    """Two steps; in each, a rank's host stops for so long in its ``data`` range, then launches b and an all-reduce.

    The path ends with o, which the last rank to launch it launches: it meets no transfer.
    """
    scene = Scene()
    for number in (0, 1):
        handles = []
        for rank, pause in enumerate(pauses_ms):
            at = begin = number * (max(pauses_ms) + 1.5)
            scene.range(rank, f"step {number}", at, at + max(pauses_ms) + 1.45)
            scene.range(rank, "data", at + 0.2, at + 0.21 + pause)
            scene.call(rank, at + 0.1, at + 0.19, "cudaEventCreateWithFlags")
            at += pause
            scene.range(rank, "backward", at + 0.3, at + 0.6)
            scene.launch(rank, 7, (at + 0.5, at + 0.8), "b", ("main", at + 0.4, at + 0.45))
            scene.record(rank, 7, at + 0.46, number)
            scene.wait(rank, 17, at + 0.47, number)
            handles.append(
                scene.launch(
                    rank,
                    17,
                    (at + 0.82, begin + max(pauses_ms) + 1.0),
                    "nccl",
                    ("main", at + 0.5, at + 0.55),
                    kind="communication",
                )
            )
            scene.range(rank, "optimizer", at + 1.05, at + 1.25)
            scene.launch(rank, 7, (at + 1.3, at + 1.4), "o", ("main", at + 1.1, at + 1.2))
            done = max(at + 1.4, begin + max(pauses_ms) + 1.0)
            scene.synchronise(rank, (at + 1.25, done + 0.02), "cudaDeviceSynchronize")
        scene.collective(*handles)
    return scene


def test_a_pause_of_every_rank_is_a_stall_and_names_what_the_host_was_in() -> None:
    result = of(pausing((8.0, 8.0)).trace())
    first = result["diagnosis"].row(0, named=True)
    assert first["cause"] == "host_stall"
    assert "straggler" not in costs(result)
    part = result["diagnosis_evidence"].filter(cause="host_stall").row(0, named=True)
    assert (part["kind"], part["name"], part["host_phase"]) == ("host_gap", "cudaLaunchKernel", "data")
    assert part["phase"] == "backward"  # of what was launched next
    assert "spent in data" in first["claim"]


def test_the_pause_of_one_rank_is_its_lateness_and_counts_once() -> None:
    """The path never leaves the late rank, so no transfer tells of the lateness; the collective's skew does."""
    result = of(pausing((0.5, 8.0)).trace())
    first = result["diagnosis"].row(0, named=True)
    assert (first["cause"], first["rank"]) == ("straggler", 1)
    # 7.5 ms in the first step; in the second rank 0 needs 0.4 ms more from its synchronisation on.
    assert first["cost_ns"] == 7.3 * MS
    part = result["diagnosis_evidence"].filter(cause="straggler").row(0, named=True)
    assert (part["kind"], part["host_phase"]) == ("host_gap", "data")
    assert (
        costs(result)["host_stall"] < 0.7
    )  # what is left of the pause: about half a millisecond, as on the other rank


def test_a_barrier_between_steps_does_not_put_communication_on_the_compute_stream() -> None:
    scene = pausing((0.5, 0.5))
    handles = [
        scene.launch(rank, 7, (50, 80), "barrier", ("main", 49, 49.1), kind="communication")
        for rank in (0, 1)
    ]
    scene.collective(*handles)
    assert "compute_stream" not in costs(of(scene.trace()))


def test_a_bucket_ready_early_and_launched_late() -> None:
    scene = Scene()
    handles = []
    for rank in (0, 1):
        scene.launch(rank, 7, (1, 2), "g", ("main", 0.1, 0.2))
        scene.record(rank, 7, 0.3, 1)
        scene.wait(rank, 17, 0.4, 1)
        handles.append(scene.launch(rank, 17, (5.0, 6.0), "nccl", ("main", 4.8, 4.9), kind="communication"))
    scene.collective(*handles)
    found = costs(of(scene.trace()))
    assert found["bucket_scheduling"] == pytest.approx(3.0)
    assert found["slow_communication"] == pytest.approx(1.0)


def test_collectives_on_the_compute_stream() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 2), "g", ("main", 0.1, 0.2))
    one = scene.launch(0, 7, (2, 3), "nccl", ("main", 0.3, 0.4), kind="communication")
    scene.launch(1, 7, (1, 2), "g", ("main", 0.1, 0.2))
    other = scene.launch(1, 7, (2, 3), "nccl", ("main", 0.3, 0.4), kind="communication")
    scene.collective(one, other)
    assert costs(of(scene.trace()))["compute_stream"] == pytest.approx(1.0)


def racing(*, ordered: bool, early: bool) -> Trace:
    """The optimizer on its own stream; it starts before the reduction ends, or just does not wait for it."""
    scene = Scene()
    handles = []
    for rank in (0, 1):
        scene.range(rank, "step 0", 0, 20)
        scene.range(rank, "backward", 0, 0.6)
        scene.range(rank, "optimizer", 0.7, 1.5)
        scene.launch(rank, 7, (1, 2), "g", ("main", 0.1, 0.2))
        scene.record(rank, 7, 0.25, 1)
        scene.wait(rank, 17, 0.3, 1)
        handles.append(scene.launch(rank, 17, (2.1, 4), "nccl", ("main", 0.4, 0.5), kind="communication"))
        scene.record(rank, 17, 0.55, 2)
        if ordered:
            scene.wait(rank, 9, 0.8, 2)
        scene.launch(rank, 9, (3, 5) if early else (4.1, 5), "adam", ("main", 0.9, 1.0))
    scene.collective(*handles)
    return scene.trace()


def test_an_optimizer_that_does_not_wait_is_a_fault_without_cost() -> None:
    observed = of(racing(ordered=False, early=True))["diagnosis"].filter(pl.col("cause") == "race")
    assert observed["cost_ns"].to_list() == [None]
    assert observed["confidence"].to_list() == ["high"]
    assert "1.000 ms before" in observed["claim"][0]
    silent = of(racing(ordered=False, early=False))["diagnosis"].filter(pl.col("cause") == "race")
    assert silent["confidence"].to_list() == ["low"]
    assert "race" not in costs(of(racing(ordered=True, early=False)))


def test_two_groups_that_transfer_at_once_compete() -> None:
    scene = Scene()
    pairs: list[list[int]] = [[], []]
    for rank in (0, 1):
        scene.launch(rank, 7, (1, 2), "g", ("main", 0.1, 0.2))
        scene.record(rank, 7, 0.3, 1)
        for group, (stream, at) in enumerate(((17, (2.0, 6.0)), (27, (2.0, 5.0)))):
            scene.wait(rank, stream, 0.32 + group / 20, 1)
            call = ("main", 0.33 + group / 20, 0.34 + group / 20)
            pairs[group].append(scene.launch(rank, stream, at, f"nccl{group}", call, kind="communication"))
    for group in pairs:
        scene.collective(*group)
    trace = scene.trace()
    trace = replace(
        trace,
        collectives=trace.collectives.with_columns(
            communicator=pl.when(pl.col("collective_id") == 0).then(pl.lit("aa")).otherwise(pl.lit("bb"))
        ),
    )
    found = costs(of(trace))
    assert found["process_groups"] == pytest.approx(3.0)  # of 4 ms on the path, 3 beside the other group
    assert found["slow_communication"] == pytest.approx(1.0)


def test_compiled_backward_in_pieces_has_graph_breaks_of_low_confidence() -> None:
    scene = Scene()
    scene.range(0, "step 0", 0, 20)
    scene.range(0, "backward", 0, 15)
    scene.launch(0, 7, (1, 1.9), "triton_poi_fused_add_0", ("main", 0.1, 0.15))
    scene.launch(0, 7, (1.9, 2), "triton_per_fused_sum_1", ("main", 0.16, 0.2))
    scene.launch(0, 7, (5.1, 6), "triton_red_fused_mul_0", ("main", 5.0, 5.05))
    row = of(scene.trace())["diagnosis"].filter(pl.col("cause") == "graph_breaks").row(0, named=True)
    assert row["confidence"] == "low"
    assert row["cost_ns"] / MS == pytest.approx(4.0)
    assert "graph_breaks" in row["try_next"]


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 1, 0)])
def test_a_compiled_backward_in_one_graph_has_no_graph_breaks(numbers: tuple[int, ...]) -> None:
    """The host stops for long, inside of a graph; and a graph uses its first kernel again."""
    scene = Scene()
    scene.range(0, "step 0", 0, 20)
    scene.range(0, "backward", 0, 15)
    scene.launch(0, 7, (1, 2), f"triton_poi_fused_add_{numbers[0]}", ("main", 0.1, 0.2))
    scene.launch(0, 7, (5, 6), f"triton_red_fused_mul_{numbers[1]}", ("main", 4.8, 4.9))
    scene.launch(0, 7, (6, 7), f"triton_poi_fused_add_{numbers[2]}", ("main", 4.95, 5.0))
    found = costs(of(scene.trace()))
    assert "graph_breaks" not in found
    assert found["host_stall"] == pytest.approx(3.8)


def test_a_run_that_is_not_steady_is_a_fault() -> None:
    scene = Scene()
    at = 1.0
    for number, length in enumerate((9.0, 2.0, 2.0, 4.0)):
        scene.range(0, f"step {number}", at - 0.9, at - 0.1)
        scene.launch(0, 7, (at, at + length), "g", ("main", at - 0.5, at - 0.4))
        at += length + 1
    row = of(scene.trace())["diagnosis"].filter(pl.col("cause") == "not_steady").row(0, named=True)
    assert "the first step is warm-up" in row["claim"]
    assert "steady steps last" in row["claim"]


def test_link_fit_finds_latency_and_bandwidth_and_says_when_it_cannot() -> None:
    def timed(sizes: list[int], noise: float = 0.0) -> pl.DataFrame:
        rows = []
        for number, size in enumerate(sizes):
            start = number * 10_000_000
            time = round((20_000 + size / 100) * (1 + noise * (-1) ** number))
            rows.append(
                {
                    "kind": "all_reduce",
                    "collective_id": number,
                    "bytes": size,
                    "group_size": 2,
                    "ready_ns": start,
                    "transfer_start_ns": start,
                    "end_ns": start + time,
                }
            )
        return pl.DataFrame(rows)

    link = fit_link(timed([4, 1 << 20, 4 << 20, 25 << 20] * 3))
    assert link is not None
    assert link.has_latency
    assert link.latency_ns == pytest.approx(20_000, rel=0.01)
    assert link.bandwidth_gbps == pytest.approx(100, rel=0.01)
    assert link.error_ratio < 0.001
    noisy = fit_link(timed([4, 1 << 20, 4 << 20, 25 << 20] * 3, noise=0.1))
    assert noisy is not None
    assert 0.05 < noisy.error_ratio < 0.15
    single = fit_link(timed([1 << 20] * 4))
    assert single is not None
    assert not single.has_latency
    assert single.transfer_ns(2 << 20) == 2 * single.transfer_ns(1 << 20)
    assert fit_link(timed([4]).with_columns(bytes=pl.lit(None, pl.Int64))) is None


def test_every_cause_says_what_to_try_and_what_refutes_it() -> None:
    assert len(BY_CODE) == len(CAUSES)
    for cause in CAUSES:
        assert cause.title
        assert cause.try_next
        assert cause.refuted_by
    assert link_reference_gbps("NVIDIA H200") == 450
    assert link_reference_gbps("NVIDIA H100 PCIe") == 64
    assert link_reference_gbps("a toaster") is None
    assert link_reference_gbps(None) is None


# --- bounds on any run -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs=programs())
def test_causes_never_cost_more_than_the_path(programs: tuple[tuple[Op, ...], ...]) -> None:
    trace = trace_of(programs, simulate(programs))
    if trace.events.is_empty():
        return
    result = of(trace)
    steps = result["diagnosis_step"]
    sums = steps.group_by("step_index").agg(pl.col("cost_ns").sum(), pl.col("path_ns").first())
    assert (sums["cost_ns"] <= sums["path_ns"]).all()
    # One path, one step: every instant is given to something, and what is given is what the path holds.
    paths = critical_path(trace)
    if paths["critical_path_step"].height == 1:
        assert int(steps["cost_ns"].sum()) == int(paths["critical_path_step"]["path_ns"].sum())
    assert set(steps["cause"]) <= {*BY_CODE, COMPUTATION, UNRESOLVED}
    found = result["diagnosis"].filter(pl.col("cost_ns").is_not_null())
    # By what can be saved: of transfers no more than without any communication.
    assert found.select(pl.min_horizontal("cost_ns", "saving_ns")).to_series().is_sorted(descending=True)
    for table in TABLES:
        assert result[table.name].columns == table.names


# --- real captures ---------------------------------------------------------------------------------------------------


def test_a_rank_that_is_8_million_cycles_late_is_the_first_cause(unpacked: Unpacked) -> None:
    result = real(unpacked, "cvd")
    first = result["diagnosis"].row(0, named=True)
    assert first["cause"] == "straggler"
    assert (first["rank"], first["phase"], first["confidence"]) == (1, "forward", "high")
    assert (
        4.0 < first["cost_ns"] / MS < 4.8
    )  # 4.04 ms of spin; NCCL kernels that wait slow the other rank down too
    assert first["steps"] == first["of_steps"] == 4
    assert first["cost_ns"] > 10 * (result["diagnosis"]["cost_ns"][1] or 0)


def test_serial_matmul_and_all_reduce_share_a_stream(unpacked: Unpacked) -> None:
    result = real(unpacked, "tp")
    first = result["diagnosis"].row(0, named=True)
    assert first["cause"] == "compute_stream"
    assert first["step_ratio"] > 0.35


def test_one_bucket_is_found_where_there_is_one_and_not_where_there_are_twelve(unpacked: Unpacked) -> None:
    one, twelve = costs(real(unpacked, "delay_cap64")), costs(real(unpacked, "delay_cap4"))
    assert one["single_bucket"] == pytest.approx(0.174, abs=0.01)
    assert "single_bucket" not in twelve
    assert twelve["compute_tail"] == pytest.approx(
        0.031, abs=0.005
    )  # the last of twelve, of 0.38 ms together


def test_a_small_gpt_on_a_fast_link_is_host_bound(unpacked: Unpacked) -> None:
    result = real(unpacked, "blobs_ddp")
    assert result["diagnosis"]["cause"][0] == "host_bound"
    assert result["diagnosis"]["confidence"][0] == "medium"  # the profiler lengthens host time


def captured(name: str) -> Result:
    path = FIXTURES / "h200" / f"{name}.sqlite.gz"
    return diagnose(context_of(load(path, host_calls=True, shapes=True, metrics=True)))


def test_two_communicators_at_once_compete() -> None:
    """two_groups: 64 MiB on each of two communicators, issued together; nothing else is sent in a step."""
    result = captured("two_groups")
    first = result["diagnosis"].row(0, named=True)
    assert (first["cause"], first["confidence"]) == ("process_groups", "medium")
    assert first["phase"] == "backward"


def test_a_compiled_model_with_graph_breaks() -> None:
    """graph_breaks: one in each of six blocks, so backward is compiled in pieces."""
    result = captured("graph_breaks")
    first = result["diagnosis"].row(0, named=True)
    assert (first["cause"], first["phase"]) == ("graph_breaks", "backward")
    assert first["confidence"] == "low"  # host time between compiled kernels can have other reasons


def test_a_compiled_model_in_one_graph_has_no_graph_breaks() -> None:
    """one_gpu_compiled_breaks has one in each of six blocks; one_gpu_compiled_whole is the same model without."""
    assert "graph_breaks" in costs(captured("one_gpu_compiled_breaks"))
    assert "graph_breaks" not in costs(captured("one_gpu_compiled_whole"))


@pytest.mark.parametrize("name", ["graph_node", "graph_graph", "hook", "nodelay_cap16"])
def test_no_cause_is_invented(unpacked: Unpacked, name: str) -> None:
    found = costs(real(unpacked, name))
    assert not {"race", "compute_stream", "process_groups", "graph_breaks", "link_contention"} & set(found)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("diagnosis") / "one_bucket.sqlite"
    with gzip.open(samples.path(samples.ONE_BUCKET)) as packed, target.open("wb") as out:
        shutil.copyfileobj(packed, out)
    return target


@pytest.mark.parametrize("width", [80, 120])
def test_screen_fits(sample: Path, width: int) -> None:
    made = CliRunner().invoke(
        cli, ["diagnose", str(sample)], env={"COLUMNS": str(width)}, catch_exceptions=False
    )
    assert made.exit_code == 0
    assert max(map(len, made.output.splitlines())) <= width
    for part in ("single_bucket", "try: ", "refuted if: ", "This capture does not tell", "confidence medium"):
        assert part in made.output


def test_json_and_markdown(sample: Path) -> None:
    made = CliRunner().invoke(cli, ["diagnose", str(sample), "--format", "json"], catch_exceptions=False)
    document = json.loads(made.output)
    assert set(document["tables"]) == {table.name for table in TABLES}
    assert [row["place"] for row in document["tables"]["diagnosis"]] == list(
        range(1, len(document["tables"]["diagnosis"]) + 1)
    )
    assert document["findings"][0]["code"] == "critical_path_split"
    markdown = CliRunner().invoke(
        cli, ["diagnose", str(sample), "--format", "markdown"], catch_exceptions=False
    )
    assert "| single_bucket | 0.174 |" in markdown.output


def test_times_are_refused(sample: Path) -> None:
    assert CliRunner().invoke(cli, ["diagnose", str(sample), "--from", "1"]).exit_code != 0


# --- causes that look like others ------------------------------------------------------------------------------------


def row(result: Result, cause: str) -> dict[str, object]:
    return result["diagnosis"].filter(pl.col("cause") == cause).row(0, named=True)


def test_a_long_gap_between_kernels_that_were_launched_ahead_is_no_start_up_time() -> None:
    """Kernels of 8 ms, 12 ms apart, all launched at the beginning: nothing recorded says why."""
    scene = Scene()
    for number in range(5):
        at = 1 + 20 * number
        scene.launch(0, 7, (at, at + 8), "g", ("main", 0.01 + number / 10, 0.02 + number / 10))
    found = of(scene.trace())
    assert costs(found)["unexplained"] == pytest.approx(48)
    assert "kernel_latency" not in costs(found)
    assert "fuse" not in str(row(found, "unexplained")["try_next"])


def test_start_up_time_between_kernels_is_some_microseconds() -> None:
    scene = Scene()
    for number in range(5):
        at = 1 + 0.105 * number
        scene.launch(0, 7, (at, at + 0.1), "g", ("main", 0.01 + number / 10, 0.02 + number / 10))
    assert costs(of(scene.trace()))["kernel_latency"] == pytest.approx(0.02)


def shared_gpu(uuids: tuple[str, str]) -> Trace:
    """Two ranks that take turns: kernels of 8 ms of one in the gaps of the other."""
    scene = Scene()
    for rank in (0, 1):
        for number in range(4):
            at = 1 + 20 * number + 10 * rank
            scene.launch(rank, 7, (at, at + 9), "g", ("main", 0.01 + number / 10, 0.02 + number / 10))
    trace = scene.trace()
    ranks = trace.ranks.with_columns(gpu_uuid=pl.Series(uuids))
    return replace(trace, ranks=ranks)


def test_gaps_under_the_kernels_of_another_process_on_the_same_gpu() -> None:
    assert costs(of(shared_gpu(("a", "a"))))["other_process"] == pytest.approx(43)
    apart = costs(of(shared_gpu(("a", "b"))))
    assert "other_process" not in apart
    assert apart["unexplained"] == pytest.approx(43)


def test_the_same_synchronisation_on_all_ranks_is_no_lateness_and_is_named() -> None:
    scene = Scene()
    for number in range(3):
        at, handles = number * 14.5, []
        for rank in (0, 1):
            scene.range(rank, f"step {number}", at, at + 14.4)
            scene.range(rank, "forward", at + 0.1, at + 1)
            scene.launch(rank, 7, (at + 1, at + 3), "f", ("main", at + 0.2, at + 0.3))
            scene.synchronise(rank, (at + 1.5, at + 3.01), "cudaStreamSynchronize", stream=7)
            scene.range(rank, "backward", at + 9, at + 10)
            scene.launch(rank, 7, (at + 9.2, at + 12), "b", ("main", at + 9.1, at + 9.15))
            scene.record(rank, 7, at + 9.3, number)
            scene.wait(rank, 17, at + 9.4, number)
            call = ("main", at + 9.5, at + 9.6)
            handles.append(
                scene.launch(rank, 17, (at + 12 + rank / 100, at + 14), "nccl", call, kind="communication")
            )
        scene.collective(*handles)
    result = of(scene.trace())
    first = result["diagnosis"].row(0, named=True)
    assert (first["cause"], first["phase"]) == ("host_stall", "between forward and backward")
    assert "straggler" not in costs(result)
    parts = result["diagnosis_evidence"].filter(cause="synchronisation")
    assert parts["name"].to_list()[0] == "cudaStreamSynchronize"


def test_a_collective_queued_behind_the_rank_s_own_is_no_lateness() -> None:
    """Rank 1 launches the first of two collectives 0.3 ms before its peer; both queue behind it for as long."""
    scene = Scene()
    pairs: list[list[int]] = [[], []]
    for rank in (0, 1):
        scene.launch(rank, 7, (1, 2), "g", ("main", 0.1, 0.2))
        scene.record(rank, 7, 0.3, 1)
        scene.wait(rank, 17, 0.31, 1)
        for number, at in enumerate(((2.0, 2.3), (2.3 + rank / 200, 2.6))):
            call = ("main", 0.4 + number / 10, 0.45 + number / 10)
            pairs[number].append(scene.launch(rank, 17, at, "nccl", call, kind="communication"))
    for pair in pairs:
        scene.collective(*pair)
    assert "straggler" not in costs(of(scene.trace()))


def test_slow_transfers_in_one_group_are_nobody_s_lateness() -> None:
    """Reduce-scatter in groups {0, 1} and {2, 3}, the second slow; then all-reduces of {0, 2} and {1, 3}."""
    scene = Scene()
    scatters, reductions = {}, {}
    for rank in range(4):
        done = 4.0 if rank < 2 else 9.0
        scene.launch(rank, 7, (1, 2), "g", ("main", 0.1, 0.2))
        scene.record(rank, 7, 0.3, 1)
        scene.wait(rank, 22, 0.31, 1)
        scatters[rank] = scene.launch(rank, 22, (2.0, done), "s", ("main", 0.4, 0.45), kind="communication")
        scene.record(rank, 22, 0.5, 2)
        scene.wait(rank, 23, 0.51, 2)
        call = ("main", 0.6, 0.65)
        reductions[rank] = scene.launch(rank, 23, (done + 0.001, 11.0), "r", call, kind="communication")
    for a, b in ((0, 1), (2, 3)):
        scene.collective(scatters[a], scatters[b])
    for a, b in ((0, 2), (1, 3)):
        scene.collective(reductions[a], reductions[b])
    assert "straggler" not in costs(of(scene.trace()))


def test_one_collective_on_the_paths_of_tied_ranks_is_one_part() -> None:
    scene = Scene()
    handles = []
    for rank in range(3):
        scene.launch(rank, 7, (1, 2), "g", ("main", 0.1, 0.2))
        scene.record(rank, 7, 0.3, 1)
        scene.wait(rank, 17, 0.31, 1)
        handles.append(
            scene.launch(
                rank, 17, (2.0, 26.0 + rank / 1000), "nccl", ("main", 0.4, 0.5), kind="communication"
            )
        )
    scene.collective(*handles)
    result = of(scene.trace())
    (part,) = result["diagnosis_evidence"].filter(cause="slow_communication").iter_rows(named=True)
    assert part["cost_ns"] / MS == pytest.approx(24.0, abs=0.01)
    assert part["rank"] is None
    assert "largest part: nccl (24.00" in str(row(result, "slow_communication")["claim"])


def test_copies_between_gpus_are_a_cause_of_their_own() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 4), "memcpy PtoP", ("main", 0.1, 0.2), kind="memory", api="cudaMemcpyPeerAsync")
    scene.launch(0, 7, (4, 6), "g", ("main", 0.3, 0.4))
    assert costs(of(scene.trace()))["peer_copies"] == pytest.approx(3.0)


def gathering(*, prefetch: bool) -> Trace:
    """Four layers: gather of 1 ms, then computation of 1 ms; with prefetch the next gather runs beside it."""
    scene = Scene()
    gathers: dict[int, list[int]] = {}
    for rank in (0, 1):
        scene.range(rank, "step 0", 0, 30)
        scene.range(rank, "forward", 0.01, 3)
        scene.record(rank, 7, 0.02, 100)
        end = 1.0
        for layer in range(4):
            host = 0.1 + layer / 10
            waits = 99 + layer if prefetch else 100 + layer
            if waits >= 100:
                scene.wait(rank, 21, host, waits)
            begin = 1.0 + layer if prefetch else end
            call = ("main", host + 0.01, host + 0.02)
            handle = scene.launch(rank, 21, (begin, begin + 1), "gather", call, kind="communication")
            gathers.setdefault(layer, []).append(handle)
            scene.record(rank, 21, host + 0.03, 200 + layer)
            scene.wait(rank, 7, host + 0.04, 200 + layer)
            call = ("main", host + 0.05, host + 0.06)
            scene.launch(rank, 7, (begin + 1, begin + 2), f"layer{layer}", call)
            scene.record(rank, 7, host + 0.07, 101 + layer)
            end = begin + 2
    for handles in gathers.values():
        scene.collective(*handles)
    trace = scene.trace()
    return replace(trace, collectives=trace.collectives.with_columns(kind=pl.lit("all_gather")))


def test_gathers_that_wait_for_the_computation_ahead_lack_prefetch() -> None:
    found = costs(of(gathering(prefetch=False)))
    assert found["no_prefetch"] == pytest.approx(3.0)  # the first has nothing to run beside
    assert "no_prefetch" not in costs(of(gathering(prefetch=True)))


@pytest.mark.parametrize(("one_queue", "cause"), [(True, "held_behind_compute"), (False, "queued")])
def test_a_reduction_held_behind_computation_launched_before_it(one_queue: bool, cause: str) -> None:
    """Its data are there at 2; it starts when the last kernel launched before it has begun."""
    scene = Scene()
    handles = []
    for rank in (0, 1):
        scene.launch(rank, 7, (1, 2), "g", ("main", 0.1, 0.15))
        scene.record(rank, 7, 0.2, 1)
        for number in range(4):
            at = 2.0 + 2 * number
            scene.launch(rank, 7, (at, at + 2), "h", ("main", 0.3 + number / 10, 0.35 + number / 10))
        scene.wait(rank, 17, 0.8, 1)
        handles.append(
            scene.launch(rank, 17, (8.005, 12.0), "nccl", ("main", 0.9, 0.95), kind="communication")
        )
        if not one_queue:  # launched later, begun earlier: streams have queues of their own
            scene.launch(rank, 9, (1.5, 1.6), "side", ("main", 0.96, 0.97))
    scene.collective(*handles)
    found = of(scene.trace())
    assert costs(found)[cause] == pytest.approx(6.005, abs=0.01)
    if one_queue:
        assert "CUDA_DEVICE_MAX_CONNECTIONS" in str(row(found, cause)["claim"])
        assert row(found, cause)["confidence"] != "high"


def test_a_copy_from_pageable_memory_holds_up_the_host() -> None:
    """One GPU, 128 MiB from pageable memory after forward: the wait for forward's work is computation."""
    result = captured("one_gpu_pageable")
    first = result["diagnosis"].row(0, named=True)
    assert (first["cause"], first["phase"]) == ("copies", "between forward and backward")
    assert 14 < first["cost_ns"] / MS < 18
    assert "pageable" in first["claim"]
    assert "host_stall" not in costs(result)


def test_memory_freed_inside_the_step() -> None:
    result = captured("one_gpu_cudafree")
    first = result["diagnosis"].row(0, named=True)
    assert (first["cause"], first["phase"]) == ("allocation", "between forward and backward")
    assert "cudaFree" in first["claim"]
    assert ".item()" not in first["try_next"]


def test_a_pause_after_a_synchronisation_says_between_which_phases_it_lies() -> None:
    first = captured("one_gpu_item_sleep")["diagnosis"].row(0, named=True)
    assert (first["cause"], first["phase"]) == ("host_stall", "between forward and backward")
    assert first["cost_ns"] / MS == pytest.approx(10.4, abs=0.3)


def test_message_sizes_too_close_to_each_other_are_not_said_to_be_one() -> None:
    scene = Scene()
    for number in range(4):
        at = 1.0 + number
        scene.collective(
            *(
                scene.launch(
                    rank, 17, (at, at + 0.5), "nccl", ("main", at - 0.5, at - 0.4), kind="communication"
                )
                for rank in (0, 1)
            )
        )
    trace = scene.trace()
    sizes = 1000 + 100 * pl.col("collective_id")
    result = of(replace(trace, collectives=trace.collectives.with_columns(bytes=sizes.cast(pl.Int64))))
    reason = result["diagnosis_unjudged"].filter(cause="small_buckets")["reason"][0]
    assert reason.startswith("4 message sizes")


def test_two_processes_on_one_gpu_lengthen_each_other_and_are_not_compared() -> None:
    """Both ran the same 28 ms of work a step at once; alone it takes 28, together 61."""
    result = captured("one_gpu_two")
    first = result["diagnosis"].row(0, named=True)
    assert first["cause"] == "other_process"
    assert 25 < first["cost_ns"] / MS < 40
    assert first["confidence"] == "medium"
    assert "straggler" not in costs(result)


def test_another_process_that_was_not_traced_leaves_a_hint_and_no_cost() -> None:
    result = captured("one_gpu_preempted")
    (hint,) = result["diagnosis_unjudged"].filter(cause="other_process").iter_rows(named=True)
    assert "takes 1.4" in hint["reason"]
    assert "other_process" not in costs(result)
    plain = captured("one_gpu_cudafree")["diagnosis_unjudged"]
    assert plain.filter(cause="other_process").is_empty()


def test_a_trace_without_host_calls_is_refused_in_one_line() -> None:
    trace = load(FIXTURES / "h200" / "delay_cap4.sqlite.gz")
    with pytest.raises(AnalysisError, match=r"what the host did.*host_calls=True"):
        diagnose(context_of(trace))
