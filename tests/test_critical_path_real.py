"""Real two-GPU captures whose workload has a known bottleneck: the path must find it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from nsysddp.cli import cli
from nsysddp.dependencies.graph import build, check
from nsysddp.join.load import load
from nsysddp.model.result import Result
from nsysddp.model.units import NS_PER_MS, NS_PER_US
from nsysddp.questions import analyze
from nsysddp.questions.collectives import splits, timed
from nsysddp.questions.critical_path import communication_beside, critical_path, rank_paths

Unpacked = Callable[[str], Path]


def ask(unpacked: Unpacked, name: str, per: str = "step") -> Result:
    return critical_path(load(unpacked(f"h200/{name}"), host_calls=True), per)  # type: ignore[arg-type]


def share(result: Result, *kinds: str) -> float:
    """Smallest share of the kinds over the paths."""
    frame = result["critical_path_kind"].filter(pl.col("kind").is_in(kinds))
    return float(
        frame.group_by("step_index", "path_rank").agg(pl.col("path_ratio").sum())["path_ratio"].min()
    )


def test_late_rank_is_the_cause(unpacked: Unpacked) -> None:
    """cvd: rank 1 spins 8,000,000 cycles (4.04 ms) in every forward; rank 0 waits for it in its collectives."""
    result = ask(unpacked, "cvd")
    steps = result["critical_path_step"]
    assert steps.height == 8
    assert steps["tied"].all()  # both end with the same last collective: the path decides, not who ended last
    pieces = result["critical_path"].with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    spin = pieces.filter(pl.col("kind") == "spin")
    assert spin.group_by("step", "path_rank").len()["len"].to_list() == [1] * 8
    assert set(spin["rank"]) == {1}
    assert set(spin["phase"]) == {"forward"}
    assert spin["duration_ns"].is_between(4.0 * NS_PER_MS, 4.1 * NS_PER_MS).all()
    on_rank_0 = (
        pieces.filter(pl.col("rank") == 0)
        .group_by("step_index", "path_rank")
        .agg(pl.col("duration_ns").sum())
    )
    assert on_rank_0["duration_ns"].max() < 0.3 * NS_PER_MS  # its own last transfer and optimizer
    assert any(f.rank == 1 and "spin_kernel" in f.message for f in result.findings)
    own = rank_paths(result.trace)["critical_path"]
    assert set(own.filter(pl.col("kind") == "wait").select("path_rank", "waits_for").iter_rows()) == {(0, 1)}


def test_serial_collectives_are_all_on_the_path(unpacked: Unpacked) -> None:
    """tp: 8 x (matmul, all-reduce) in order: nearly all of both ranks' transfer is on the path."""
    result = ask(unpacked, "tp", "capture")
    trace = result.trace
    transfer = [split.transfer.length_ns for split in splits(trace, timed(trace)).values()]
    assert transfer == [3_277_156, 3_064_298]
    critical = result["critical_path_step"]["critical_communication_ns"].to_list()
    assert min(critical) > 0.999 * max(transfer)
    assert max(critical) <= max(transfer)
    per_step = ask(unpacked, "tp")
    assert share(per_step, "compute", "transfer") > 0.85
    steady = per_step["critical_path_kind"].filter(pl.col("step_index") > 0, pl.col("kind") == "transfer")
    assert steady["path_ratio"].is_between(0.41, 0.42).all()


def test_of_twelve_delayed_buckets_only_the_last_transfer(unpacked: Unpacked) -> None:
    """delay_cap4: each all-reduce but the last hides behind the next spin; 0.031 of 0.387 ms are critical."""
    result = ask(unpacked, "delay_cap4")
    trace = result.trace
    total = [split.transfer.length_ns for split in splits(trace, timed(trace)).values()]
    assert total[0] == 386_590
    steps = result["critical_path_step"]
    assert steps["critical_communication_ns"].is_between(30 * NS_PER_US, 31 * NS_PER_US).all()
    pieces = result["critical_path"]
    transfers = pieces.filter(pl.col("kind") == "transfer")
    assert transfers.group_by("path_rank").len()["len"].to_list() == [1, 1]
    # All work is rank 0's, whose first call comes 2.25 ms after rank 1's first event: that is nobody's fault.
    assert set(pieces.filter(~pl.col("kind").is_in(["transfer", "gap"]))["rank"].drop_nulls()) <= {0, 1}
    spin = pieces.filter(pl.col("kind") == "spin")
    assert spin.group_by("path_rank", "rank").len().sort("path_rank").rows() == [(0, 0, 12), (1, 0, 12)]
    late = pieces.filter(pl.col("kind") == "unknown").with_columns(
        length=pl.col("end_ns") - pl.col("start_ns")
    )
    assert late["rank"].to_list() == [None, None]
    assert late["length"].is_between(2.2 * NS_PER_MS, 2.3 * NS_PER_MS).all()
    beside = communication_beside(result, analyze(trace)["overlap"])
    assert (
        beside.filter(pl.col("rank") == 1)["exposed_wait_ns"].min() > 3 * NS_PER_MS
    )  # exposed, never critical


def test_one_large_bucket_is_on_the_path_once(unpacked: Unpacked) -> None:
    result = ask(unpacked, "delay_cap64")
    assert result["critical_path"].filter(pl.col("kind") == "transfer").height == 2  # one on each tied path
    assert result["critical_path_step"]["critical_communication_ns"].min() > 170 * NS_PER_US


def test_host_bound_training_is_host_time(unpacked: Unpacked) -> None:
    """blobs_ddp: a small GPT under a profiler; the autograd thread cannot launch as fast as the GPU computes."""
    result = ask(unpacked, "blobs_ddp")
    assert share(result, "host", "host_gap") > 0.8
    assert (
        result["critical_path_step"]["critical_communication_ns"].max() == 0
    )  # 16.5 ms of it hidden, none critical
    host = result["critical_path"].filter(pl.col("kind").is_in(["host", "host_gap"]))
    assert set(host["phase"].drop_nulls()) == {"forward", "backward", "optimizer"}
    assert result["critical_path_step"]["thread_hops"].min() >= 2  # to autograd's thread and back


def test_whole_graphs_and_graph_nodes_claim_nothing(unpacked: Unpacked) -> None:
    whole = ask(unpacked, "graph_graph")
    assert share(whole, "graph") > 0.88
    nodes = ask(unpacked, "graph_node", "capture")
    assert share(nodes, "unknown") > 0.9
    assert build(nodes.trace).counts["unordered_graph_nodes"] > 300


def test_freeing_memory_waits_for_the_device(unpacked: Unpacked) -> None:
    """2.4 s of cuMemFree are waiting for kernels, and the path must name the kernels: all 2,485,594,817 ns of them."""
    trace = load(unpacked("public/c2023.4.4_s3.7.2__device7_of_9"), host_calls=True)
    kinds = critical_path(trace, "capture")["critical_path_kind"]
    assert kinds.filter(pl.col("kind") == "compute")["duration_ns"].to_list() == [2_485_594_817]


def test_page_migrations_have_no_known_cause(unpacked: Unpacked) -> None:
    trace = load(unpacked("public/r2025.1.3_s3.17.2__2370_memcpy"), host_calls=True)
    assert share(critical_path(trace, "capture"), "unknown") > 0.9


@pytest.mark.parametrize(
    ("name", "waits", "unresolved", "empty"),
    [
        ("blobs_ddp", 324, 0, 2),
        ("tp", 100, 0, 2),
        ("hook", 246, 2, 2),
        ("cvd", 198, 2, 2),
        ("delay_cap4", 102, 2, 2),
        ("delay_cap64", 14, 2, 2),
    ],
)
def test_stream_waits_resolve(unpacked: Unpacked, name: str, waits: int, unresolved: int, empty: int) -> None:
    graph = build(load(unpacked(f"h200/{name}"), host_calls=True))
    check(graph)
    counts = graph.counts
    assert (counts["waits"], counts["unresolved_waits"], counts["empty_waits"]) == (waits, unresolved, empty)
    assert counts["late_waits"] == counts["negative_launches"] == counts["unmatched_communication"] == 0
    assert 0.002 <= counts["early_events"] / counts["events"] <= 0.15


def test_rows_in_any_order(unpacked: Unpacked) -> None:
    """The tables of a report have no order."""
    trace = load(unpacked("h200/hook"), host_calls=True)
    from dataclasses import replace

    shuffled = replace(
        trace,
        calls=trace.calls.sample(fraction=1, shuffle=True, seed=1),
        records=trace.records.sample(fraction=1, shuffle=True, seed=2),
        syncs=trace.syncs.sample(fraction=1, shuffle=True, seed=3),
        collectives=trace.collectives.sample(fraction=1, shuffle=True, seed=4),
    )
    for one, other in zip(
        critical_path(trace).tables.values(), critical_path(shuffled).tables.values(), strict=True
    ):
        assert one.equals(other)


@pytest.mark.parametrize(
    "name",
    [
        "r2026.2.1_s3.25.0__2gpu_sendrecv_after",
        "r2026.2.1_s3.25.0__2gpu_no_nccl",
        "c2023.4.4_s3.7.2__1proc_4gpu",
        "c2023.4.4_s3.7.2__4gpu_mpi_managed",
        "d2026.1.1_s3.24.14__reduced_no_globalPid",
        "r2022.1.3_s2.9.1__user_added_columns",
        "r2020-21_pre__cuda_gpu_table_2gpu",
    ],
)
def test_foreign_exports_get_a_path_at_their_grade(unpacked: Unpacked, name: str) -> None:
    trace = load(unpacked(f"public/{name}"), host_calls=True)
    graph = build(trace)
    check(graph)
    for question in (critical_path, rank_paths):
        result = question(trace, graph=graph)
        assert result["critical_path_step"].height >= 1
        assert set(result["critical_path_step"]["grade"]) <= {"full", "no_events", "gpu_only"}


def test_command_line(unpacked: Unpacked, tmp_path: Path) -> None:
    report = str(unpacked("h200/tp"))
    text = CliRunner().invoke(cli, ["critical-path", report])
    assert text.exit_code == 0
    assert "Largest causes" in text.output
    assert "Read with care" in text.output
    found = json.loads(CliRunner().invoke(cli, ["critical-path", report, "--format", "json"]).output)
    assert set(found["tables"]) == {
        "critical_path",
        "critical_path_step",
        "critical_path_kind",
        "critical_path_cause",
        "critical_path_evidence",
        "critical_path_communication",
    }
    assert sum(row["duration_ns"] for row in found["tables"]["critical_path_kind"]) == sum(
        row["path_ns"] for row in found["tables"]["critical_path_step"]
    )
    each = CliRunner().invoke(
        cli,
        [
            "critical-path",
            report,
            "--each-rank",
            "--steps",
            "1:2",
            "--format",
            "csv",
            "--table",
            "critical_path_step",
        ],
    )
    assert each.output.count("\n") == 3
    assert CliRunner().invoke(cli, ["critical-path", report, "--from", "1"]).exit_code != 0
    folder = tmp_path / "path"
    assert CliRunner().invoke(cli, ["critical-path", report, "--out", str(folder)]).exit_code == 0
    assert (folder / "critical_path.csv").exists()
