"""Every figure known of the shared real traces, to the nanosecond, from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command import codes, document, run, tables

Unpack = Callable[[str], Path]

FIGURES = (
    "kernels",
    "collectives",
    "compute_ns",
    "communication_ns",
    "hidden_communication_ns",
    "exposed_communication_ns",
    "exposed_memory_ns",
    "hidden_transfer_ns",
    "hidden_wait_ns",
    "exposed_transfer_ns",
    "exposed_wait_ns",
)

#: file, pid, then FIGURES, from an independent integer sweep
OWN = """
delay_cap4    614   88 13  60832650   386590   337118    49472  45152  337118        0   49472       0
delay_cap4    615   88 13  60844691 36537988 33476150  3061838  45408  349175 33126975   36482 3025356
delay_cap64   753   77  2  60872990   518685        0   518685  44928       0        0  178693  339992
delay_cap64   754   77  2  60836708   231711        0   231711  45280       0        0  194553   37158
nodelay_cap16 890   67  4    220928   228190        0   228190  44672       0        0  228190       0
nodelay_cap16 891   67  4    326752  3496683   158656  3338027  45024       0   158656  223180 3114847
blobs_ddp     608 1788 41  41075092 27559661 16494783 11064878 117407 3322833 13171950 3809638 7255240
blobs_ddp     609 1788 41  39589039 21992967 11702818 10290149 136223 3645491  8057327 3602360 6687789
hook         1270  322 25  99662293  4531699  4087827   443872 657630 1552847  2534980  419583   24289
hook         1271  322 25 100716531  6248210  5593587   654623 647231 1575487  4018100  359115  295508
tp            871   50 25   4286071  3279288        0  3279288  24640       0        0 3277156    2132
tp            872   50 25   4274712  3281593        0  3281593  26752       0        0 3064298  217295
graph_node   1545  161 49  47558369  3177015        0  3177015  95647       0        0 1909721 1267294
graph_node   1546  161 49  47531176  1931005        0  1931005  97375       0        0 1906573   24432
cvd          1883  346 25 113436659 49220160 45827303  3392857 125599 3246811 42580492  537085 2855772
cvd          1884  350 25 115949707  4076953  3427450   649503 170304 3427450        0  649503       0
"""
OWN_ROWS = [(line.split()[0], *map(int, line.split()[1:])) for line in OWN.strip().splitlines()]


@pytest.mark.parametrize("row", OWN_ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_own_captures_to_the_nanosecond(row: tuple, unpacked: Unpack) -> None:
    name, pid, *figures = row
    found = tables(unpacked(f"h200/{name}"), "--per", "capture")["overlap"]
    (mine,) = (one for one in found if one["pid"] == pid)
    assert dict(zip(FIGURES, figures, strict=True)) == {key: mine[key] for key in FIGURES}
    assert mine["hidden_unsplit_ns"] == mine["exposed_unsplit_ns"] == 0


def test_twelve_buckets_overlap_on_both_ranks_and_nearly_all_of_one_is_wait(unpacked: Unpack) -> None:
    made = document(unpacked("h200/delay_cap4"))
    assert "overlap_on_every_rank" in codes(made)
    waits = [one["rank"] for one in made["findings"] if one["code"] == "overlap_is_waiting"]
    assert waits == [1]
    spins = [row for row in made["tables"]["kernel_class"] if row["class"] == "spin"]
    assert [(row["rank"], row["count"]) for row in spins] == [(0, 12), (1, 12)]
    steps = made["tables"]["overlap"]
    assert [row["collectives"] for row in steps] == [12, 12]
    outside = {(row["rank"], row["class"]): row["count"] for row in made["tables"]["outside_steps"]}
    assert outside[0, "communication"] == outside[1, "communication"] == 1
    barrier = [row for row in made["tables"]["collective"] if row["step"] is None]
    assert {(row["rank"], row["stream"]) for row in barrier} == {(0, 7), (1, 7)}


def test_one_bucket_is_no_overlap_on_any_rank(unpacked: Unpack) -> None:
    made = document(unpacked("h200/delay_cap64"))
    assert "no_overlap" in codes(made)
    assert [row["hidden_communication_ns"] for row in made["tables"]["overlap"]] == [0, 0]


def test_vendor_recipe_on_the_capture_with_payloads(unpacked: Unpack) -> None:
    classes = tables(unpacked("h200/blobs_ddp"), "--per", "capture")["kernel_class"]
    nccl = [row for row in classes if row["class"] == "communication"]
    assert sum(row["count"] for row in nccl) == 82
    share = sum(row["hidden_ns"] for row in nccl) / sum(row["total_ns"] for row in nccl)
    assert round(100 * share, 1) == 56.9
    name = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
    gemm = [row for row in classes if row["name"] == name]
    assert sum(row["count"] for row in gemm) == 100
    share = sum(row["hidden_ns"] for row in gemm) / sum(row["total_ns"] for row in gemm)
    assert round(100 * share, 1) == 54.3


def test_payloads_tell_sizes_and_communicators(unpacked: Unpack) -> None:
    rows = tables(unpacked("h200/blobs_ddp"), "--per", "capture")["collective"]
    assert len(rows) == 82
    assert {row["match"] for row in rows} == {"sequence"}
    assert {row["kind"] for row in rows} == {"all_reduce"}
    assert {row["group_size"] for row in rows} == {2}
    by_id: dict[int, set] = {}
    for row in rows:
        by_id.setdefault(row["collective_id"], set()).add(
            (row["communicator"], row["sequence"], row["bytes"])
        )
    assert len(by_id) == 41
    assert all(len(same) == 1 for same in by_id.values())
    assert all(row["bytes"] > 0 and row["busbw_gbps"] == row["algbw_gbps"] for row in rows)


def test_launches_join_by_process(unpacked: Unpack) -> None:
    """A join without the process gives 6,338 pairs instead of 3,576: kernels would be put in wrong steps."""
    from nsysddp.join.load import load

    trace = load(unpacked("h200/blobs_ddp"))
    kernel = trace.is_kernel[trace.events["name"].to_numpy()]
    assert int(kernel.sum()) == 3576
    assert trace.launches is not None
    assert int(trace.launches["launch_ns"].is_not_null().to_numpy()[kernel].sum()) == 3576


def test_rank_and_physical_gpu_when_each_process_sees_one_gpu(unpacked: Unpack) -> None:
    ranks = tables(unpacked("h200/cvd"))["rank"]
    assert [(row["rank"], row["pid"], row["device"]) for row in ranks] == [(0, 1883, 0), (1, 1884, 0)]
    assert len({row["gpu_uuid"] for row in ranks} - {None}) == 2


def test_whole_graphs_claim_nothing(unpacked: Unpack) -> None:
    made = document(unpacked("h200/graph_graph"), "--per", "capture")
    rows = made["tables"]["overlap"]
    assert [row["graph_ns"] for row in rows] == [49_896_348, 52_044_939]
    assert [row["kernels"] for row in rows] == [2, 2]
    for row in rows:
        unknown = ("hidden_communication_ns", "exposed_communication_ns", "overlap_ratio")
        assert [row[name] for name in unknown] == [None] * 3
    (finding,) = (one for one in made["findings"] if one["code"] == "whole_graph")
    assert "--cuda-graph-trace=node" in finding["message"]
    assert not {"no_overlap", "overlap_on_every_rank", "no_communication"} & codes(made)


def test_graph_nodes_count_once_and_are_no_evidence_of_streams(unpacked: Unpack) -> None:
    made = document(unpacked("h200/graph_node"), "--per", "capture")
    assert sum(row["kernels"] for row in made["tables"]["overlap"]) == 322
    assert "communication_on_compute_stream" not in codes(made)


PUBLIC = {
    "r2026.2.1_s3.25.0__2gpu_sendrecv_after": [
        (148, 0, {"communication_ns": 9_989_016, "exposed_communication_ns": 9_989_016,
                  "hidden_communication_ns": 0, "collectives": 31}),
        (149, 1, {"communication_ns": 23_753_085, "exposed_communication_ns": 23_753_085,
                  "hidden_communication_ns": 0, "collectives": 31}),
    ],
    "r2026.1.1_s3.24.14__mock_2kernels": [(None, None, {"kernels": 2, "compute_ns": 4_129})],
    "d2026.1.1_s3.24.14__reduced_no_globalPid": [
        (None, None, {"kernels": 400, "compute_ns": 400_000_000, "pid": None})
    ],
    "r2025.5.1_s3.23.3__small_2gpu_listed": [(None, 0, {"kernels": 97})],
    "r2024.6.2_s3.16.1__small": [(None, None, {"kernels": 22, "compute_ns": 161_902_340})],
    "r2024.5.1_s3.13.2__cloverleaf": [(None, None, {"kernels": 1312, "compute_ns": 294_404_540})],
    "r2023.3.3_s3.4.0__tiny": [(None, None, {"kernels": 1, "compute_ns": 1_665_243})],
    "c2023.4.4_s3.7.2__1proc_4gpu": [
        (None, device, {"kernels": 32, "compute_ns": busy})
        for device, busy in enumerate([206_567_418, 218_505_585, 204_339_211, 223_034_502])
    ],
    "c2023.4.4_s3.7.2__device7_of_9": [(None, 7, {"kernels": 78, "compute_ns": 2_485_594_817})],
    "r2022.1.3_s2.9.1__user_added_columns": [(None, None, {"kernels": 59, "compute_ns": 578_300})],
    "r2021_pre__no_meta_17tab": [(None, None, {"kernels": 12, "compute_ns": 8_544_420})],
    "r2020-21_pre__cuda_gpu_table_2gpu": [(None, None, {"kernels": 2419, "compute_ns": 2_543_278_880})],
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_exports_have_their_right_answer(name: str, unpacked: Unpack) -> None:
    rows = tables(unpacked(f"public/{name}"), "--per", "capture")["overlap"]
    expected = PUBLIC[name]
    assert len(rows) == len(expected)
    for row, (pid, device, figures) in zip(rows, expected, strict=True):
        assert pid in (None, row["pid"])
        assert device in (None, row["device"])
        assert {key: row[key] for key in figures} == figures


def test_an_all_to_all_on_the_compute_stream_is_named(unpacked: Unpack) -> None:
    made = document(unpacked("public/r2026.2.1_s3.25.0__2gpu_sendrecv_after"), "--per", "capture")
    rows = made["tables"]["collective"]
    streams = {(pid, row["stream"]) for row in rows for pid in (_pid(made, row["rank"]),)}
    assert streams == {(148, 7), (149, 15)}
    assert {row["kernel"] for row in rows} == {"ncclDevKernel_SendRecv"}
    found = [one for one in made["findings"] if one["code"] == "communication_on_compute_stream"]
    assert {one["rank"] for one in found} == {0, 1}
    assert "overlap_on_every_rank" not in codes(made)
    assert [row["gpu_uuid"] for row in made["tables"]["rank"]] == [None, None]


def _pid(made: dict, rank: int) -> int:
    return next(row["pid"] for row in made["tables"]["rank"] if row["rank"] == rank)


def test_no_communication_is_not_applicable(unpacked: Unpack) -> None:
    path = unpacked("public/r2026.2.1_s3.25.0__2gpu_no_nccl")
    made = document(path, "--per", "capture")
    rows = made["tables"]["overlap"]
    assert sum(row["kernels"] for row in rows) == 3442
    assert {row["communication_ns"] for row in rows} == {0}
    assert {row["overlap_ratio"] for row in rows} == {None}
    mine = next(row for row in rows if row["pid"] == 111)
    assert mine["compute_ns"] == 22_385_163
    memory = [row for row in made["tables"]["memory"] if row["rank"] == mine["rank"]]
    assert sum(row["total_ns"] for row in memory) == 940_505_084
    assert "no_communication" in codes(made)
    text = run("analyze", path, "--per", "capture")
    assert "n/a" in text.out
    assert "nan" not in text.out.lower().replace("nanosecond", "")
    assert "No communication kernels" in text.out


def test_kernels_without_a_launch_row_still_count(unpacked: Unpack) -> None:
    from nsysddp.join.load import load

    trace = load(unpacked("public/r2026.2.1_s3.25.0__2gpu_no_nccl"))
    kernel = trace.is_kernel[trace.events["name"].to_numpy()]
    assert trace.launches is not None
    assert int(trace.launches["launch_ns"].is_null().to_numpy()[kernel].sum()) == 1810


def test_copies_of_a_copy_benchmark(unpacked: Unpack) -> None:
    made = tables(unpacked("public/r2025.1.3_s3.17.2__2370_memcpy"), "--per", "capture")
    assert [row["kernels"] for row in made["overlap"]] == [1]
    assert {row["operation"] for row in made["memory"]} == {"unified memory DtoH", "unified memory HtoD"}
    assert sum(row["count"] for row in made["memory"]) == 2370
    assert sum(row["total_ns"] for row in made["memory"]) == 86_717_154


def test_four_mpi_processes_are_four_ranks_without_nccl(unpacked: Unpack) -> None:
    made = document(unpacked("public/c2023.4.4_s3.7.2__4gpu_mpi_managed"), "--per", "capture")
    ranks = made["tables"]["rank"]
    assert len(ranks) == len({row["pid"] for row in ranks}) == 4
    assert codes(made) >= {"no_communication"}


NO_KERNELS = (
    "r2025.1.3_s3.17.2__no_kernel_table",
    "r2023.4.1_s3.6.0__no_kernel_table",
    "c2023.4.4_s3.7.2__8gpu_empty_kernel_table",
)


def test_missing_and_empty_kernel_tables_get_one_answer(unpacked: Unpack) -> None:
    said = set()
    for name in NO_KERNELS:
        ran = run("analyze", unpacked(f"public/{name}"))
        assert ran.code == 4
        said.add(ran.line.replace(f"{name}.sqlite", "REPORT"))
    assert len(said) == 1
    assert "--trace=cuda" in said.pop()


def test_a_foreign_database_is_refused_in_one_line(unpacked: Unpack) -> None:
    ran = run("analyze", unpacked("public/x_not_nsys_sqlite__one_table"))
    assert ran.code == 3
    assert "no nsys export" in ran.line
