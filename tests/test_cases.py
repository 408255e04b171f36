"""The public fault classes, each with the value that is right, drawn small and asked from the command line.

The numbers are those of the case list; ``K s7[a,b)`` there is a kernel on stream 7 from a to b ms.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import re
import shutil
import sqlite3
import statistics
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from builder import Export, global_pid
from command import codes, document, overlap, run, tables
from conftest import require

Unpack = Callable[[str], Path]
MS = 1_000_000


def ms(row: dict[str, Any], *names: str) -> list[float | None]:
    """Columns (without their unit) in ms."""
    return [None if row[f"{name}_ns"] is None else row[f"{name}_ns"] / MS for name in names]


COMM = ("communication", "hidden_communication", "exposed_communication")


def one(path: Path, *argv: str) -> dict[str, Any]:
    """The only row of the whole capture."""
    (row,) = overlap(path, *argv)
    return row


def drawn(tmp_path: Path, *kernels: tuple[str, int, tuple[float, float]]) -> Path:
    """One rank that runs these kernels (name, stream, at)."""
    export = Export()
    process = export.process()
    for name, stream, at in kernels:
        process.kernel(name, stream, at)
    return export.write(tmp_path / "a.sqlite")


# --- 1 - 7: classification ----------------------------------------------------------------------------------


def test_1_renamed_nccl_kernels(tmp_path: Path) -> None:
    row = one(
        drawn(
            tmp_path,
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 17, (0, 100)),
            ("ncclKernel_AllReduce_RING_LL_Sum_half", 17, (200, 220)),
            ("ncclAllReduceRingLLKernel_sum_f32", 17, (230, 240)),
            ("sgemm", 7, (50, 150)),
        )
    )
    assert row["collectives"] == 3
    assert ms(row, *COMM) == [130, 50, 80]


NCCL = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_f16_NVLS_SIMPLE": "all_reduce",
    "ncclDevKernel_AllReduce_SumPostDiv_u8_COLLNET_CHAIN": "all_reduce",
    "ncclDevKernel_AllGather_RING_LL": "all_gather",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": "reduce_scatter",
    "ncclDevKernel_Broadcast_RING_LL": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL": "reduce",
    "ncclDevKernel_SendRecv": "send_recv",
    "ncclDevKernel_Generic_4": "unknown",
    "ncclDevKernel_Generic": "unknown",
    "ncclKernel_AllReduce_RING_LL_Sum_half": "all_reduce",
    "ncclKernel_AllReduce_TREE_LL128_Sum_float": "all_reduce",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t": "all_gather",
    "ncclKernel_ReduceScatter_RING_LL128_Sum_float": "reduce_scatter",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t": "send_recv",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t": "broadcast",
    "ncclAllReduceRingLLKernel_sum_f32": "all_reduce",
    "ncclAllReduceTreeLLKernel_sum_f16": "all_reduce",
    "ncclAllGatherRingLLKernel_copy_i8": "all_gather",
    "ncclReduceScatterRingLLKernel_sum_f32": "reduce_scatter",
    "ncclBroadcastRingLLKernel_copy_i8": "broadcast",
    "ncclReduceRingLLKernel_sum_f32": "reduce",
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32": "all_reduce",
    "ncclSymkDevKernel_AllGather_LL": "all_gather",
    "ncclSymkDevKernel_ReduceScatter_LD_sum_bf16": "reduce_scatter",
    "rcclKernel_Main": "unknown",
}


@pytest.mark.parametrize("name", NCCL)
@pytest.mark.parametrize("form", ["{}", "{}(ncclDevKernelArgsStorage<4096ul>)", "void {}<int, 4>(ncclWork)"])
def test_1_every_spelling_of_nccl(name: str, form: str) -> None:
    from nsysddp.model.classify import load_rules

    verdict = load_rules().kernel(form.format(name))
    assert (verdict.class_, verdict.kind) == ("communication", NCCL[name])


def test_3_custom_all_reduce(tmp_path: Path) -> None:
    row = one(
        drawn(tmp_path, ("vllm::cross_device_reduce_1stage<half,2>", 7, (0, 30)), ("gemm", 7, (30, 100)))
    )
    assert ms(row, *COMM) == [30, 0, 30]
    assert row["collectives"] == 1


OTHER_COLLECTIVES = (
    ("cross_device_reduce_1stage", "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData *)"),
    ("cross_device_reduce_2stage", "void sglang::cross_device_reduce_2stage<float, 8>(RankData *)"),
    ("one_shot_all_reduce_kernel", "void c10d::symmetric_memory::one_shot_all_reduce_kernel<float, 16>()"),
    ("two_shot_all_reduce_kernel", "void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(T1 *)"),
    ("multimem_all_reduce_kernel", "void multimem_all_reduce_kernel<float>(T1 *)"),
    ("multimem_one_shot_all_reduce_kernel", "void multimem_one_shot_all_reduce_kernel<float>(T1 *)"),
    ("multimem_all_gather_kernel", "void multimem_all_gather_kernel<16>(char *)"),
    ("nvshmemx_barrier_all_kernel", "nvshmemx_barrier_all_kernel"),
    ("nvshmemi_transfer_rma", "void nvshmemi_transfer_rma<int>(int)"),
    ("dispatch", "void deep_ep::intranode::dispatch<8, 768, 8192>(int4 *)"),
    ("combine", "void deep_ep::internode_ll::combine<true, 7168, 9>(void *)"),
    ("notify_dispatch", "void deep_ep::intranode::notify_dispatch<8>(const int *)"),
    ("cached_notify_combine", "void deep_ep::intranode::cached_notify_combine<8>(void **)"),
    ("oneShotAllReduceKernel", "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>()"),
    ("allreduce_fusion_kernel_oneshot_lamport", "void allreduce_fusion_kernel_oneshot_lamport<half>()"),
    ("twoShotAllReduceKernel", "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>()"),
    ("kuserbuffers_pushsend", "kuserbuffers_pushsend(int *, int *, int4 *, int4 *, int)"),
    ("broadcast_on_stream_kernel", "void broadcast_on_stream_kernel<int, (threadgroup_t)2>(int)"),
    ("reduce_on_stream_kernel", "void reduce_on_stream_kernel<float, (rdxn_ops)0>(int)"),
    ("alltoall_on_stream_kernel", "void alltoall_on_stream_kernel<float>(int)"),
    ("barrier_on_stream_kernel_threadgroup", "void barrier_on_stream_kernel_threadgroup<2>(int)"),
)


@pytest.mark.parametrize(("short", "full"), OTHER_COLLECTIVES, ids=lambda text: text[:30])
def test_3_collectives_that_are_not_nccl(short: str, full: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.kernel(short, 7, (0, 30), demangled=full)
    process.kernel("gemm", 8, (20, 100))
    row = one(export.write(tmp_path / "a.sqlite"))
    assert ms(row, *COMM) == [30, 10, 20]


@pytest.mark.parametrize(
    "name",
    [
        "my_custom_allreduce_v2",
        "acme_all_gather_x",
        "fastReduceScatterThing",
        "Broadcast_kernel",  # not "cast"
        "rms_norm_kernel_lamport",  # not "norm": Lamport flags synchronise ranks
    ],
)
def test_3_what_only_reads_like_a_collective_is_said(name: str, tmp_path: Path) -> None:
    made = document(drawn(tmp_path, (name, 7, (0, 30)), ("gemm", 7, (30, 100))), "--per", "capture")
    assert {row["rule"] for row in made["tables"]["kernel_class"] if row["name"] == name} == {"unclassified"}
    assert "suspected_collectives" in codes(made)
    assert "unclassified_kernels" in codes(made, "warnings")


def test_3_a_rule_of_the_user_decides(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\npattern = "acme_.*"\nclass = "communication"\nkind = "all_reduce"\n')
    path = drawn(tmp_path, ("acme_x", 7, (0, 30)), ("gemm", 8, (10, 100)))
    assert ms(one(path), *COMM) == [0, 0, 0]
    assert ms(one(path, "--rules", str(rules)), *COMM) == [30, 20, 10]


COMPUTE = (
    "at::native::reduce_kernel",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>",
    "vectorized_gather_kernel",
    "splitKreduce_kernel",
    "DeviceReduceSingleTileKernel",
    "embedding_dense_backward",
    "void cub::DeviceReduceKernel<float>",
    "index_put_with_sort_kernel",
    "_scatter_gather_elementwise_kernel",
    "broadcast_kernel_of_softmax",
    "cunn_SoftMaxForward",
    "layer_norm_grad_input_kernel",
    "triton_red_fused_all_reduce_mean_0",
    "triton_poi_fused_wait_tensor_3",
    "nvjet_hsh_128x128",
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
    "vectorized_elementwise_kernel",
    "Kernel2",
    "Kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80",
    "multi_tensor_apply_kernel",
    "gridsync_kernel",
    "memset_like_fill_kernel",
    "a_name_that_nobody_ever_saw",
)


@pytest.mark.parametrize("name", COMPUTE)
def test_4_and_5_computation_by_any_name(name: str, tmp_path: Path) -> None:
    row = one(drawn(tmp_path, (name, 7, (0, 50)), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 17, (0, 100))))
    assert row["collectives"] == 1
    assert ms(row, "compute", *COMM) == [50, 100, 50, 50]


@pytest.mark.parametrize(
    "name", ["after_ncclDevKernel_AllReduce_Sum_f32", "my_spin_kernel_x", "check_nvshmem_result", "xKernel2y"]
)
def test_4_a_name_that_only_holds_a_rule_is_not_meant(name: str) -> None:
    from nsysddp.model.classify import load_rules

    assert load_rules().kernel(name).class_ == "compute"


def test_4_words_of_collectives_in_compute_kernels(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    for number, name in enumerate(COMPUTE[:6]):
        process.kernel(name, 7, (10 * number, 10 * number + 5))
    process.memset((100, 101))
    made = tables(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert made["overlap"][0]["communication_ns"] == 0
    assert [(row["operation"], row["count"]) for row in made["memory"]] == [("memset", 1)]


def test_5_no_list_of_allowed_compute_names(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.draw("c", 17, (0, 100))
    process.kernel("nvjet_hsh_128x128", 7, (0, 50))
    process.kernel("vectorized_elementwise_kernel", 7, (50, 80))
    row = one(export.write(tmp_path / "a.sqlite"))
    assert ms(row, "compute", *COMM) == [80, 100, 80, 20]


@pytest.mark.parametrize("busy", ["memset", "memcpy", "sync"])
def test_7_what_is_no_computation_hides_nothing(busy: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.draw("c", 17, (0, 100))
    process.sync("stream", (0, 100))
    process.sync("device", (0, 100), row=True)
    if busy == "memset":
        process.memset((10, 20))
    elif busy == "memcpy":
        process.copy("HtoD", (10, 20))
    row = one(export.write(tmp_path / "a.sqlite"))
    assert ms(row, *COMM, "exposed_memory", "idle") == [100, 0, 100, 0, 0]


# --- 10 - 18: arithmetic ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "busy", "idle"), [(100, 100, 100), (200, 200, 0), (150, 150, 50)])
def test_10_busy_is_a_union_not_a_sum(end: int, busy: int, idle: int, tmp_path: Path) -> None:
    path = drawn(tmp_path, ("sgemm", 7, (0, 100)), ("sgemm", 8, (0, end)))
    row = one(path, "--from", "0", "--to", "200")
    assert ms(row, "window", "compute", "idle") == [200, busy, idle]


@pytest.mark.parametrize("apart", ["devices of one process", "processes", "processes that see one GPU each"])
def test_11_one_stream_id_on_two_devices(apart: str, tmp_path: Path) -> None:
    export = Export()
    if apart == "devices of one process":
        process = export.process(gpus={0: 0, 1: 1})
        for device in (0, 1):
            process.kernel("sgemm", 7, (0, 86), device=device)
    else:
        for gpu in (0, 1):
            export.process(device=gpu if apart == "processes" else 0, gpu=gpu).kernel("sgemm", 7, (0, 86))
    rows = overlap(export.write(tmp_path / "a.sqlite"), "--from", "0", "--to", "100")
    assert [ms(row, "compute", "window") for row in rows] == [[86, 100], [86, 100]]


WINDOWS = [(0, 10), (5, 6), (30, 60), (99, 101), (100, 500), (0, 1000), (139, 140), (42, 43), (-50, 20)]


@pytest.mark.parametrize(("low", "high"), WINDOWS)
def test_12_both_parts_of_a_share_are_cut_to_the_window(low: int, high: int, tmp_path: Path) -> None:
    export = Export()
    export.lanes("""
        rank 0 | s7 g[0,100) g[130,140)   s17 c[30,60) c[95,130)   s9 memcpy[58,72)
        rank 1 | s7 g[0,90)  g[130,140)   s17 c[20,60) c[90,130)
    """)
    rows = overlap(export.write(tmp_path / "a.sqlite"), f"--from={low}", f"--to={high}")
    for row in rows:
        assert row["window_ns"] == (high - low) * MS
        for name, value in row.items():
            if name.endswith("_ns") and value is not None:
                assert 0 <= value <= row["window_ns"], name
        assert row["overlap_ratio"] is None or 0 <= row["overlap_ratio"] <= 1
    gpu = [(0, 100), (130, 140)]
    assert rows[0]["compute_ns"] == sum(max(0, min(b, high) - max(a, low)) for a, b in gpu) * MS


def test_13_all_and_exposed_communication_are_two_numbers(tmp_path: Path) -> None:
    export = Export()
    export.lanes("rank 0 | s17 c[0,100) s7 g[0,98) g[100,1000)")
    path = export.write(tmp_path / "a.sqlite")
    row = one(path)
    assert row["communication_ns"] / row["window_ns"] == 0.1
    assert row["exposed_communication_ns"] / row["window_ns"] == 0.002


def test_14_no_communication_at_all(tmp_path: Path) -> None:
    export = Export()
    export.lanes("rank 0 | s7 g[0,10)\nrank 1 | s7 g[0,10)")
    path = export.write(tmp_path / "a.sqlite")
    made = document(path)
    assert [row["overlap_ratio"] for row in made["tables"]["overlap"]] == [None, None]
    assert "no_communication" in codes(made)
    said = run("analyze", path).out
    assert "n/a" in said
    assert not re.search(r"\bnan\b|100\.0\s*%", said, re.IGNORECASE)
    assert '"overlap_ratio":null' in run("analyze", path, "--format", "json").out.replace(" ", "")


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("other", ["c", "ncclDevKernel_SendRecv"])
def test_15_communication_on_the_compute_stream(other: str, steps: bool, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    if steps:  # of the whole capture it is not asked what was launched in them
        process.range("step 0", 0, 100)
    process.kernel("sgemm", 7, (0, 50))
    if other == "c":
        process.draw("c", 7, (50, 80))
    else:
        process.kernel(other, 7, (50, 80))
    made = document(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert ms(made["tables"]["overlap"][0], *COMM) == [30, 0, 30]
    assert "communication_on_compute_stream" in codes(made)


def test_15_seconds_on_one_rank_and_milliseconds_on_another(tmp_path: Path) -> None:
    export = Export()
    export.lanes("""
        rank 0 | s7 g[0,4000) c[4000,7000)
        rank 1 | s7 g[0,40) c[40,70)
    """)
    made = document(export.write(tmp_path / "a.sqlite"))
    told = [one["rank"] for one in made["findings"] if one["code"] == "communication_on_compute_stream"]
    assert told == [0, 1]


def test_16_nothing_is_saved_twice(tmp_path: Path) -> None:
    export = Export()
    export.lanes("rank 0 | s17 c[0,30) s7 g[30,40)\nrank 1 | s17 c[20,30) s7 g[0,20) g[30,40)")
    made = document(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    row = made["tables"]["overlap"][0]
    assert ms(row, "exposed_communication", "exposed_wait", "exposed_transfer") == [30, 20, 10]
    offered = [
        f["value"]
        for f in made["findings"]
        if f["rank"] == 0 and f["unit"] == "ns" and "exposed" in f["code"]
    ]
    assert sum(offered) <= 30 * MS


def test_18_the_last_bucket_is_a_tail(tmp_path: Path) -> None:
    export = Export()
    for line in (0, 1):
        process = export.process(device=line)
        process.range("step 0", 0, 140)
        process.range("backward", 0, 100)
        process.range("optimizer", 130, 140)
        process.kernel("bwd_gemm", 7, (0, 100))
        process.draw("c", 17, (30, 60))
        process.draw("c", 17, (95, 130))
        process.kernel("adam", 7, (130, 140))
    for row in tables(export.write(tmp_path / "a.sqlite"))["overlap"]:
        assert ms(row, *COMM) == [65, 35, 30]
        assert ms(row, "tail_communication", "tail_wait", "tail_transfer") == [30, 0, 30]


# --- 19 - 28: ranks, devices, files -------------------------------------------------------------------------


def test_19_every_rank_is_device_0(tmp_path: Path) -> None:
    export = Export()
    export.process(device=0, gpu=0).draw("c", 17, (0, 100))
    export.process(device=0, gpu=1).draw("g", 7, (0, 100))
    made = tables(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert [row["hidden_communication_ns"] for row in made["overlap"]] == [0, 0]
    assert [row["device"] for row in made["overlap"]] == [0, 0]
    uuids = [row["gpu_uuid"] for row in made["rank"]]
    assert len(set(uuids)) == 2
    assert None not in uuids


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2))))
def test_19_rank_order_is_that_of_physical_gpus(order: tuple[int, ...], tmp_path: Path) -> None:
    export = Export()
    for pid, gpu in enumerate(order, 50):
        export.process(pid=pid, device=0, gpu=gpu).kernel("sgemm", 7, (0, 10 + gpu))
    rows = overlap(export.write(tmp_path / "a.sqlite"))
    assert [ms(row, "compute") for row in rows] == [[10], [11], [12]]


def test_20_only_the_last_of_many_devices(tmp_path: Path) -> None:
    export = Export()
    process = export.process(device=7, gpus={number: number for number in range(9)})
    process.kernel("sgemm", 7, (0, 10))
    (row,) = overlap(export.write(tmp_path / "a.sqlite"))
    assert row["device"] == 7
    assert ms(row, "compute", "idle") == [10, 0]


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_21_one_process_with_many_gpus(gpus: int, tmp_path: Path) -> None:
    export = Export()
    process = export.process(gpus={number: number for number in range(gpus)})
    for device in range(gpus):
        process.kernel("sgemm", 7, (0, device + 1), device=device)
        process.kernel("sgemm", 7, (20, 22), device=device)
    made = tables(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert [row["rank"] for row in made["rank"]] == list(range(gpus))
    assert {row["pid"] for row in made["rank"]} == {100}
    assert [ms(row, "compute") for row in made["overlap"]] == [[device + 3] for device in range(gpus)]


def test_22_ids_are_local_to_a_process(tmp_path: Path) -> None:
    """Both processes count correlation ids from 1: a join without the process swaps their steps."""
    export = Export()
    for line, shift in ((0, 0), (1, 500)):
        process = export.process(device=line)
        for step in range(3):
            process.range(f"step {step}", shift + 100 * step, shift + 100 * step + 100)
            process.kernel("sgemm", 7, (shift + 100 * step + 10, shift + 100 * step + 60))
    rows = tables(export.write(tmp_path / "a.sqlite"))["overlap"]
    assert [(row["rank"], row["step"], row["kernels"]) for row in rows] == [
        (line, f"step {step}", 1) for line in (0, 1) for step in range(3)
    ]


def rank_files(tmp_path: Path, names: list[str], **first: Any) -> list[Path]:
    """One report a rank, each from its own host; rank n runs n + 1 ms."""
    paths = []
    for number, name in enumerate(names):
        export = Export(host=f"node{number}", **first)
        export.process(pid=7).kernel("sgemm", 7, (0, number + 1))
        paths.append(export.write(tmp_path / name))
    return paths


@pytest.mark.parametrize(
    "form", ["report_rank{}.sqlite", "run.rank-{}.sqlite", "Rank{}_x.sqlite", "my_rank_{}.sqlite"]
)
def test_24_natural_order_of_file_names(form: str, tmp_path: Path) -> None:
    paths = rank_files(tmp_path, [form.format(number) for number in range(12)])
    made = tables(*sorted(paths), "--per", "capture")
    assert [row["rank"] for row in made["rank"]] == list(range(12))
    assert {row["rank_source"] for row in made["rank"]} == {"file_name"}
    assert [ms(row, "compute") for row in made["overlap"]] == [[number + 1] for number in range(12)]


def test_24_two_files_of_one_rank(tmp_path: Path) -> None:
    paths = rank_files(tmp_path, ["a_rank3.sqlite", "b_rank3.sqlite"])
    ran = run("analyze", *paths)
    assert ran.code == 5
    assert "a_rank3.sqlite" in ran.line
    assert "b_rank3.sqlite" in ran.line


def test_24_one_pid_on_two_nodes_is_two_ranks(tmp_path: Path) -> None:
    paths = rank_files(tmp_path, ["x.sqlite", "y.sqlite"])
    ranks = tables(*paths, "--per", "capture")["rank"]
    assert [(row["rank"], row["pid"], row["host"]) for row in ranks] == [(0, 7, "host-1"), (1, 7, "host-2")]


@pytest.mark.parametrize("again", ["the same path", "a copy", "a packed copy"])
def test_24_one_report_twice_is_not_two_ranks(again: str, tmp_path: Path) -> None:
    (path,) = rank_files(tmp_path, ["x.sqlite"])
    other = path
    if again == "a copy":
        other = Path(shutil.copy(path, tmp_path / "y.sqlite"))
    elif again == "a packed copy":
        other = tmp_path / "x.sqlite.gz"
        other.write_bytes(gzip.compress(path.read_bytes()))
    ran = run("analyze", path, other)
    assert ran.code == 5
    assert "x.sqlite" in ran.line


def test_26_a_collective_that_waits(tmp_path: Path) -> None:
    export = Export()
    export.lanes("rank 0 | s17 c[0,100)\nrank 1 | s17 c[90,100)")
    made = tables(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert [ms(row, "exposed_wait", "exposed_transfer") for row in made["overlap"]] == [[90, 10], [0, 10]]
    assert {row["last_rank"] for row in made["collective"]} == {1}
    stragglers = {row["rank"]: row for row in made["straggler"]}
    assert [stragglers[rank]["collectives_last"] for rank in (0, 1)] == [0, 1]
    assert ms(stragglers[1], "arrival_skew_sum", "arrival_skew_max", "imposed_wait") == [90, 90, 90]


@pytest.mark.parametrize("known", ["", "_rank0"])
def test_28_repeated_captures_are_not_ranks(known: str, tmp_path: Path) -> None:
    paths = []
    for number in (1, 2):
        export = Export(utc_epoch_ns=1_795_972_367_000_000_000 + number * 10**10)
        export.process(pid=7).kernel("sgemm", 7, (0, 5))
        paths.append(export.write(tmp_path / f"report{known}.{number}.sqlite"))
    ran = run("analyze", *paths)
    assert ran.code == 5
    assert all(path.name in ran.line for path in paths)
    assert "one rank" in ran.line or "rank 0" in ran.line


# --- 29 - 35: ranges and steps ------------------------------------------------------------------------------

STYLES: dict[str, dict[str, Any]] = {
    "push_pop": {},
    "push_pop, registered": {"registered": True},
    "push_pop in a domain": {"domain": "train"},
    "start_end": {"kind": "start_end"},
    "start_end, registered": {"kind": "start_end", "registered": True},
    "start_end, ended elsewhere": {"kind": "start_end", "end_thread": 777},
    "imported push_pop": {"eventType": 70},
    "imported start_end": {"eventType": 71},
}


def _styled(process: Any, style: str, name: str, start: float, end: float | None) -> None:
    options = dict(STYLES[style])
    kind = options.pop("eventType", None)
    process.range(name, start, end, **options)
    if kind is not None:
        process.export.rows["NVTX_EVENTS"][-1]["eventType"] = kind


@pytest.mark.parametrize("style", STYLES)
def test_29_and_30_backward_on_another_thread_by_any_style_of_range(style: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    _styled(process, style, "step 0", 0, 100)
    _styled(process, style, "forward", 0, 40)
    process.kernel("f1", 7, (10, 20))
    process.kernel("b1", 7, (60, 70), thread=9999)
    made = tables(export.write(tmp_path / "a.sqlite"))
    (row,) = made["overlap"]
    assert (row["step"], row["kernels"]) == ("step 0", 2)
    (phase,) = made["phase"]
    assert (phase["phase"], phase["kernels"]) == ("forward", 1)


@pytest.mark.parametrize("style", ["push_pop", "start_end", "push_pop, registered"])
def test_30_a_range_that_never_ended(style: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    _styled(process, style, "step 1", 100, None)
    _styled(process, style, "backward", 120, None)
    process.kernel("a", 7, (10, 20))
    process.kernel("b", 7, (150, 180))
    process.kernel("c", 7, (190, 200), thread=5)
    made = tables(export.write(tmp_path / "a.sqlite"))
    assert [(row["step"], row["kernels"]) for row in made["overlap"]] == [("step 1", 2)]
    assert [(row["phase"], row["kernels"], row["host_end_ns"]) for row in made["phase"]] == [
        ("backward", 2, 200 * MS)
    ]


@pytest.mark.parametrize("end", [200, None])
def test_30_a_step_that_the_profiler_cut_off_is_left_out(end: float | None, tmp_path: Path) -> None:
    """nsys closes what is open when it stops at the time of the stop; other tools leave the end out."""
    export = Export()
    whole, cut = export.process(), export.process()
    for process in (whole, cut):
        process.range("step 0", 0, 100)
        process.range("forward", 10, 90)
        process.kernel("a", 7, (20, 40))
        process.kernel("b", 7, (150, 200))
    whole.range("step 1", 110, 190)
    whole.range("forward", 115, 180)
    cut.range("step 1", 110, end)
    cut.range("forward", 115, end)
    path = export.write(tmp_path / "a.sqlite")
    made = document(path)
    assert [(row["rank"], row["step"], row["kernels"]) for row in made["tables"]["overlap"]] == [
        *((0, "step 0", 1), (0, "step 1", 1)),
        (1, "step 0", 1),
    ]
    assert [(row["rank"], row["total_ns"]) for row in made["tables"]["outside_steps"]] == [(1, 50 * MS)]
    assert {one["code"]: one["count"] for one in made["warnings"]}["truncated_step"] == 1


def test_30_steps_that_always_end_with_their_last_phase_are_whole(tmp_path: Path) -> None:
    """A coarse clock, or a tool that closes both at once: then a common end is no sign of the profiler's stop."""
    export = Export()
    process = export.process()
    for number in range(3):
        process.range(f"step {number}", 100 * number, 100 * number + 100)
        process.range("backward", 100 * number + 40, 100 * number + 100)
        process.kernel("a", 7, (100 * number + 50, 100 * number + 70))
    made = document(export.write(tmp_path / "a.sqlite"))
    assert [row["step"] for row in made["tables"]["overlap"]] == ["step 0", "step 1", "step 2"]
    assert "truncated_step" not in {one["code"] for one in made["warnings"]}


def test_30_a_last_step_that_a_phase_outlives_is_whole(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    for number in (0, 1):
        process.range(f"step {number}", 100 * number, 100 * number + 90)
        process.range("optimizer", 100 * number + 50, 100 * number + 90)
        process.kernel("a", 7, (100 * number + 60, 100 * number + 70))
    process.range("backward", 195, 199)
    made = tables(export.write(tmp_path / "a.sqlite"))
    assert [row["step"] for row in made["overlap"]] == ["step 0", "step 1"]


@pytest.mark.parametrize("style", ["push_pop", "start_end"])
def test_30_a_range_that_never_ended_lasts_until_the_next_of_its_kind(style: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    _styled(process, style, "step 0", 0, None)
    _styled(process, style, "forward", 5, 30)
    _styled(process, style, "step 1", 100, 200)
    process.kernel("a", 7, (50, 60))
    process.kernel("b", 7, (150, 180))
    made = tables(export.write(tmp_path / "a.sqlite"))
    assert [(row["step"], row["kernels"]) for row in made["overlap"]] == [("step 0", 1), ("step 1", 1)]


def test_31_a_kernel_belongs_to_the_range_that_launched_it(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.range("step 0", 0, 100)
    process.range("fwd", 0, 10)
    process.range("bwd", 10, 70)
    process.kernel("k", 7, (50, 80), launched=5)
    rows = {row["phase"]: row for row in tables(export.write(tmp_path / "a.sqlite"))["phase"]}
    assert rows["forward"]["kernels"] == 1
    assert ms(rows["forward"], "gpu_start", "gpu_end") == [50, 80]
    assert (rows["backward"]["kernels"], rows["backward"]["gpu_start_ns"]) == (0, None)


LOOKS_LIKE_A_STEP = (
    "optimizer.step",
    "step",
    "stepper 3",
    "my step 3",
    "step 3 done",
    "footstep_4",
    "iterate 2",
)


@pytest.mark.parametrize("noise", LOOKS_LIKE_A_STEP)
def test_33_names_match_whole(noise: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    for number in range(5):
        begin = 500 * number
        process.range(f"step_{number + 1}", begin, begin + 500)
        process.kernel("sgemm", 7, (begin, begin + 500))
        for small in range(100):
            at = begin + 100 + small
            process.range(noise, at, at + 0.1)
    rows = tables(export.write(tmp_path / "a.sqlite"))["overlap"]
    assert [row["step"] for row in rows] == [f"step_{number}" for number in range(1, 6)]
    assert statistics.median(row["window_ns"] for row in rows) == 500 * MS


@pytest.mark.parametrize(
    "form", ["step {}", "STEP_{}", "iter {}", "iteration:{}", "Iteration#{}", "ProfilerStep#{}", "step{}"]
)
def test_33_steps_as_people_name_them(form: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    for number in range(11):
        process.range(form.format(number), 10 * number, 10 * number + 10)
        process.kernel("sgemm", 7, (10 * number + 1, 10 * number + 5))
    rows = tables(export.write(tmp_path / "a.sqlite"))["overlap"]
    assert [row["step"] for row in rows] == [form.format(number) for number in range(11)]
    assert [row["step_index"] for row in rows] == list(range(11))


def test_33_a_pattern_of_the_user(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.range("train[7]", 0, 100)
    process.range("my-loss", 10, 50)
    process.kernel("sgemm", 7, (20, 30))
    path = export.write(tmp_path / "a.sqlite")
    assert "no_steps" in codes(document(path), "warnings")
    made = tables(path, "--step-pattern", r"train\[\d+\]", "--phase-pattern", "loss=my-.*")
    assert [row["step"] for row in made["overlap"]] == ["train[7]"]
    assert [(row["phase"], row["kernels"]) for row in made["phase"]] == [("loss", 1)]


def stepped(tmp_path: Path, lengths: list[int]) -> Path:
    export = Export()
    process = export.process()
    at = 0
    for number, length in enumerate(lengths):
        process.range(f"step {number}", at, at + length)
        process.kernel("sgemm", 7, (at, at + length))
        at += length
    return export.write(tmp_path / "a.sqlite")


@pytest.mark.parametrize(
    ("lengths", "warm"),
    [
        ([2000, 100, 100, 100], 1),
        ([2000, 900, 100, 100, 100], 2),
        ([100, 100, 100], 0),
        ([140, 100, 100], 0),
        ([100, 2000, 100, 100], 0),
        ([100], 0),
        ([400, 100], 1),
    ],
)
def test_34_warm_up_is_named_and_left_out(lengths: list[int], warm: int, tmp_path: Path) -> None:
    path = stepped(tmp_path, lengths)
    made = document(path)
    rows = made["tables"]["overlap"]
    assert [row["is_warmup"] for row in rows] == [number < warm for number in range(len(lengths))]
    steady = [row["window_ns"] / MS for row in rows if not row["is_warmup"]]
    assert steady == lengths[warm:]
    assert ("warm_up" in codes(made)) == (warm > 0)
    if lengths[0] == 2000:
        said = run("analyze", path).out
        assert "100.00" in said
        assert "575" not in said


def test_34_steps_by_number(tmp_path: Path) -> None:
    path = stepped(tmp_path, [2000, 100, 110, 120, 130])

    def chosen(*argv: str) -> list[int]:
        return [row["step_index"] for row in tables(path, *argv)["overlap"]]

    assert chosen("--skip-warmup", "1") == [1, 2, 3, 4]
    assert chosen("--steps", "1:3") == [1, 2]
    assert chosen("--steps", "3:") == [3, 4]
    assert chosen("--steps", ":2") == [0, 1]
    assert chosen("--steps", "1:4", "--skip-warmup", "2") == [2, 3]
    assert chosen("--from", "2050", "--to", "2150") == [1, 2]
    for wrong in (
        ["--steps", "9:"],
        ["--steps", "2:2"],
        ["--steps", "a:b"],
        ["--steps", "3"],
        ["--skip-warmup", "5"],
    ):
        ran = run("analyze", path, *wrong)
        assert ran.code == 2, wrong
        assert ran.line
    assert run("analyze", path, "--per", "capture", "--steps", "0:1").code == 2
    for wrong in (["--from", "nan"], ["--to", "inf"], ["--from=-inf"], ["--from", "5", "--to", "5"]):
        assert run("analyze", path, *wrong).code == 2, wrong


def test_34_a_step_choice_without_steps_is_refused(tmp_path: Path) -> None:
    path = drawn(tmp_path, ("sgemm", 7, (0, 10)))
    ran = run("analyze", path, "--steps", "0:1")
    assert ran.code == 2
    assert "NVTX" in ran.line


def test_35_gradient_accumulation(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    for number in range(4):
        at = 100 * number
        process.range(f"step {number}", at, at + 100)
        process.kernel("sgemm", 7, (at, at + 90))
    process.draw("c", 17, (360, 400))
    path = export.write(tmp_path / "a.sqlite")
    rows = tables(path)["overlap"]
    assert [row["overlap_ratio"] for row in rows] == [None, None, None, 0.75]
    assert "75.0%" in run("analyze", path).out


# --- 37, 38: CUDA graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["capture", "step"])
def test_37_a_graph_traced_as_a_whole(per: str, tmp_path: Path) -> None:
    export = Export()
    for line in (0, 1):
        process = export.process(device=line)
        process.range("step 0", 0, 100)
        process.kernel("sgemm", 7, (0, 10))
        process.graph((10, 60))
        process.draw("c", 17, (55, 70))
    path = export.write(tmp_path / "a.sqlite")
    made = document(path, "--per", per)
    for row in made["tables"]["overlap"]:
        assert ms(row, "graph", "idle") == [45, 0]
        assert [row[name] for name in ("hidden_communication_ns", "overlap_ratio", "exposed_wait_ns")] == [
            None
        ] * 3
    assert "whole_graph" in codes(made)
    said = run("analyze", path, "--per", per).out
    assert "--cuda-graph-trace=node" in said.replace("\n", "").replace("  ", "")
    assert not {"no_overlap", "no_communication", "overlap_on_every_rank"} & codes(made)


def test_37_no_table_tells_what_runs_beside_a_whole_graph(tmp_path: Path) -> None:
    """One collective beside a graph, which may compute, and one after it; the phase that launched the first."""
    export = Export()
    process = export.process()
    process.range("step 0", 0, 200)
    process.range("backward", 0, 60)
    process.kernel("sgemm", 7, (0, 10))
    process.nccl("AllReduce", 17, (20, 60))
    process.range("optimizer", 100, 150)
    process.nccl("Broadcast", 17, (110, 120))
    process.graph((15, 70))
    made = tables(export.write(tmp_path / "a.sqlite"))
    assert [(row["kind"], *ms(row, "hidden", "exposed")) for row in made["collective"]] == [
        ("all_reduce", None, None),
        ("broadcast", 0, 10),
    ]
    assert [row["hidden_ns"] for row in made["kernel_class"] if "AllReduce" in row["name"]] == [None]
    assert [row["hidden_ns"] for row in made["kernel_class"] if "Broadcast" in row["name"]] == [0]
    assert {row["phase"]: row["exposed_communication_ns"] for row in made["phase"]} == {
        "backward": None,
        "optimizer": 10 * MS,
    }


def test_37_nothing_but_graphs(tmp_path: Path) -> None:
    export = Export()
    export.process().graph((0, 50))
    made = document(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert ms(made["tables"]["overlap"][0], "graph", "idle") == [50, 0]
    assert "no_communication" not in codes(made)


def test_37_copies_beside_nothing_but_graphs_keep_their_sizes(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.copy("HtoD", (0, 10), bytes=111)
    process.copy("DtoH", (10, 20), bytes=222)
    process.memset((20, 30), bytes=333)
    process.graph((30, 90))
    path = export.write(tmp_path / "a.sqlite")
    assert {row["operation"]: row["bytes"] for row in tables(path)["memory"]} == {
        "memcpy HtoD": 111,
        "memcpy DtoH": 222,
        "memset": 333,
    }
    assert run("idle", path).code == 0


@pytest.mark.parametrize("mode", ["Node", None])
def test_38_nodes_of_a_graph_whose_launch_is_not_there(mode: str | None, tmp_path: Path) -> None:
    """All on one stream: of nodes that says nothing. Only the copy has a call, whose name may be unknown."""
    export = Export(graph_mode=mode or "")
    process = export.process()
    for at in (0, 20, 40):
        for node, name in enumerate(("sgemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")):
            process.kernel(
                name, 7, (at + 10 * node, at + 10 * node + 10), launched=None, graph_node=at + node + 1
            )
    process.copy("HtoD", (90, 91))
    assert "communication_on_compute_stream" not in codes(document(export.write(tmp_path / "a.sqlite")))


def test_38_nodes_of_a_graph_count_once(tmp_path: Path) -> None:
    export = Export()
    for line in (0, 1):
        process = export.process(device=line)
        process.range("step 0", 0, 100)
        process.graph_nodes(
            (0, 5),
            [
                ("sgemm", 7, (10, 20)),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 7, (20, 30)),
                ("sgemm", 7, (30, 40)),
            ],
        )
    made = document(export.write(tmp_path / "a.sqlite"))
    assert [row["kernels"] for row in made["tables"]["overlap"]] == [3, 3]
    assert [ms(row, *COMM) for row in made["tables"]["overlap"]] == [[10, 0, 10]] * 2
    assert "communication_on_compute_stream" not in codes(made)


# --- 40: windows --------------------------------------------------------------------------------------------


def test_40_a_kernel_over_the_edge_is_cut(tmp_path: Path) -> None:
    path = drawn(tmp_path, ("sgemm", 7, (90, 150)))
    row = one(path, "--from", "100", "--to", "200")
    assert ms(row, "window", "compute", "idle") == [100, 50, 50]
    assert row["kernels"] == 1


@pytest.mark.parametrize(("low", "high"), [(0, 1000), (0, 60_100), (60_400, 99_000), (-5, -1)])
def test_40_a_window_beside_the_capture_is_an_error_with_the_real_range(
    low: int, high: int, tmp_path: Path
) -> None:
    path = drawn(tmp_path, ("sgemm", 7, (60_100, 60_200)), ("sgemm", 7, (60_300, 60_400)))
    ran = run("analyze", path, f"--from={low}", f"--to={high}")
    assert ran.code == 4
    assert "60100.000 to 60400.000 ms" in ran.line


def test_40_events_before_the_session_start(tmp_path: Path) -> None:
    path = drawn(tmp_path, ("sgemm", 7, (-7000, -6990)), ("sgemm", 7, (-6980, -6970)))
    assert ms(one(path), "window", "compute") == [30, 20]
    assert ms(one(path, "--from=-6985", "--to=-6975"), "window", "compute") == [10, 5]


# --- 41 - 48: input files -----------------------------------------------------------------------------------


def test_41_no_kernel_table_and_an_empty_one_are_the_same(tmp_path: Path) -> None:
    said = set()
    for lazy in (True, False):
        export = Export()
        export.process().copy("HtoD", (0, 5))
        path = export.write(tmp_path / "a.sqlite", lazy=lazy)
        for argv in ([], ["--per", "capture"], ["--format", "json"]):
            ran = run("analyze", path, *argv)
            assert ran.code == 4
            said.add(ran.line)
    assert len(said) == 1
    assert "nsys profile --trace=cuda,nvtx" in said.pop()


def scene(**options: Any) -> Export:
    """Two ranks with steps, phases and payloads."""
    export = Export(**options)
    export.lanes("""
        rank 0 | host "step 0"[0,100) backward[10,90)  s7 g[10,60) g[70,80)  s17 c[20,80)  s9 memcpy[5,8)
        rank 1 | host "step 0"[0,100) backward[10,90)  s7 g[10,60) g[70,80)  s17 c[40,80)  s9 memset[5,8)
    """)
    return export


def altered(path: Path, *statements: str) -> Path:
    """The export after these statements."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def copied(table: str) -> tuple[str, ...]:
    """Statements that make a table one that allows NULL."""
    return (
        f"ALTER TABLE {table} RENAME TO original",
        f"CREATE TABLE {table} AS SELECT * FROM original",
        "DROP TABLE original",
    )


NUMBERS = ("compute", *COMM, "exposed_memory", "idle")


def figures(path: Path) -> list[list[float | None]]:
    return [ms(row, *NUMBERS) for row in overlap(path)]


@pytest.mark.parametrize("column", ["shortName", "start", "end", "deviceId", "streamId"])
@pytest.mark.parametrize("how", ["renamed", "dropped"])
def test_42_a_missing_column_is_named(column: str, how: str, tmp_path: Path) -> None:
    name = f"CUPTI_ACTIVITY_KIND_KERNEL.{column}"
    changed = {"rename": {name: f"{name}Renamed"}} if how == "renamed" else {"drop": [name]}
    ran = run("analyze", scene().write(tmp_path / "a.sqlite", **changed))
    assert ran.code == 3
    assert column in ran.line
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in ran.line


OPTIONAL = [
    "CUPTI_ACTIVITY_KIND_KERNEL.contextId",
    "CUPTI_ACTIVITY_KIND_KERNEL.graphNodeId",
    "CUPTI_ACTIVITY_KIND_KERNEL.correlationId",
    "CUPTI_ACTIVITY_KIND_KERNEL.demangledName",
    "CUPTI_ACTIVITY_KIND_KERNEL.mangledName",
    "CUPTI_ACTIVITY_KIND_MEMCPY.graphNodeId",
    "NVTX_EVENTS.domainId",
    "NVTX_EVENTS.textId",
    "NVTX_EVENTS.binaryData",
    "NVTX_EVENTS.jsonText",
    "TARGET_INFO_GPU.uuid",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_EXPORT",
    "META_DATA_CAPTURE",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "NVTX_PAYLOAD_ENUM_ENTRIES",
    "NVTX_PAYLOAD_ENUMS",
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "PROCESSES",
]


@pytest.mark.parametrize("what", OPTIONAL)
def test_42_what_a_schema_lacks_does_not_change_the_sums(what: str, tmp_path: Path) -> None:
    assert figures(scene().write(tmp_path / "a.sqlite", drop=[what])) == figures(
        scene().write(tmp_path / "whole.sqlite")
    )


@pytest.mark.parametrize("version", ["V2", "V3", "V10"])
def test_42_a_versioned_table_is_read_and_said(version: str, tmp_path: Path) -> None:
    plain = scene().write(tmp_path / "plain.sqlite")
    names = {
        table: f"{table}_{version}"
        for table in (
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "StringIds",
        )
    }
    path = scene().write(tmp_path / "a.sqlite", rename=names)
    assert tables(path)["overlap"] == tables(plain)["overlap"]
    assert "renamed_table" in codes(document(path), "warnings")


@pytest.mark.parametrize("first", [KERNEL, f"{KERNEL}_V2"])
def test_42_two_versions_of_a_table_are_refused_by_name(first: str, tmp_path: Path) -> None:
    path = altered(
        scene().write(tmp_path / "a.sqlite", rename={KERNEL: first}),
        f"CREATE TABLE {KERNEL}_V3 AS SELECT * FROM {first} WHERE streamId = 17",
        f"DELETE FROM {first} WHERE streamId = 17",
    )
    ran = run("analyze", path)
    assert ran.code == 3
    assert f"{first} and {KERNEL}_V3" in ran.line


@pytest.mark.parametrize("name", ["CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", f"{KERNEL}4"])
@pytest.mark.parametrize("beside", [True, False])
def test_42_kernels_in_an_unknown_table_are_refused_by_name(beside: bool, name: str, tmp_path: Path) -> None:
    path = scene().write(tmp_path / "a.sqlite", rename={} if beside else {KERNEL: name})
    ran = run("analyze", altered(path, f"CREATE TABLE {name} AS SELECT * FROM {KERNEL}") if beside else path)
    assert ran.code == 3
    assert name in ran.line


def test_42_case_of_names_means_nothing(tmp_path: Path) -> None:
    names = {KERNEL: f"{KERNEL.lower()}_v3", "StringIds": "STRINGIDS", "NVTX_EVENTS.eventType": "EVENTTYPE"}
    path = scene().write(tmp_path / "a.sqlite", rename={**names, f"{KERNEL}.globalPid": "GLOBALPID"})
    assert tables(path)["overlap"] == tables(scene().write(tmp_path / "b.sqlite"))["overlap"]


WITHOUT_ROWID = {
    "a column of that name": (f"ALTER TABLE {KERNEL} ADD COLUMN rowid INTEGER",),
    "a primary key": (
        f"ALTER TABLE {KERNEL} RENAME TO k",
        f'CREATE TABLE {KERNEL} (start, "end", deviceId, streamId, shortName, demangledName, globalPid, correlationId, '
        "PRIMARY KEY (start, globalPid, streamId)) WITHOUT ROWID",
        f'INSERT INTO {KERNEL} SELECT start, "end", deviceId, streamId, shortName, demangledName, globalPid, '
        "correlationId FROM k",
    ),
}


@pytest.mark.parametrize("how", WITHOUT_ROWID)
def test_42_a_table_without_row_numbers(how: str, tmp_path: Path) -> None:
    plain = tables(scene().write(tmp_path / "b.sqlite"))["overlap"]
    path = altered(scene().write(tmp_path / "a.sqlite"), *WITHOUT_ROWID[how])
    assert tables(path)["overlap"] == plain
    assert run("contention", path).code == 0


@pytest.mark.parametrize(
    ("schema", "warned"),
    [
        ("4.0.0", True),
        ("5.1", True),
        ("v4.0", True),
        ("9" * 5000, True),
        ("3.99.1", False),
        ("2.9.1", False),
        (None, False),
    ],
)
def test_42_an_unknown_major_schema_is_a_warning(schema: str | None, warned: bool, tmp_path: Path) -> None:
    path = scene(schema=schema).write(tmp_path / "a.sqlite")
    made = document(path)
    assert ("newer_schema" in codes(made, "warnings")) == warned
    assert made["inputs"][0]["schema"] == schema
    assert made["tables"]["overlap"] == tables(scene().write(tmp_path / "b.sqlite"))["overlap"]


def test_42_a_schema_told_in_parts(tmp_path: Path) -> None:
    export = scene(schema="4.1.0")
    for row in export.rows["META_DATA_EXPORT"]:
        if row["name"] in ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION_MICRO"):
            row["value"] = None
    path = export.write(tmp_path / "a.sqlite")
    made = document(path)
    assert (made["inputs"][0]["schema"], made["inputs"][0]["nsys_version"]) == ("4.1", None)
    assert "newer_schema" in codes(made, "warnings")
    assert "None" not in run("doctor", path).out


def test_42_old_metadata_and_foreign_columns(tmp_path: Path) -> None:
    path = scene().write(
        tmp_path / "a.sqlite",
        rename={"META_DATA_EXPORT": "EXPORT_META_DATA"},
        add={
            "CUPTI_ACTIVITY_KIND_KERNEL.nvtxRange": "TEXT DEFAULT 'x'",
            "CUPTI_ACTIVITY_KIND_KERNEL.class": "TEXT",
            "NVTX_EVENTS.rowid_": "INTEGER",
        },
    )
    made = document(path)
    assert made["inputs"][0]["schema"] == "3.20.3"
    assert figures(path) == figures(scene().write(tmp_path / "b.sqlite"))


def test_42_text_that_is_not_utf8(tmp_path: Path) -> None:
    export = scene()
    process = export.processes[0]
    process.kernel(b"caf\xe9_kernel", 7, (90, 95))
    process.range(b"na\xefve", 1, 2)
    path = export.write(tmp_path / "a.sqlite")
    names = {row["name"] for row in tables(path)["kernel_class"]}
    assert any(name.startswith("caf") and name.endswith("_kernel") for name in names)
    assert run("doctor", path).code == 0


def test_42_text_stored_as_blobs(tmp_path: Path) -> None:
    plain = scene().write(tmp_path / "a.sqlite")
    before = tables(plain)["overlap"]
    assert tables(altered(plain, "UPDATE StringIds SET value = CAST(value AS BLOB)"))["overlap"] == before


@pytest.mark.parametrize(
    ("fault", "warned"),
    [
        ("DELETE FROM StringIds WHERE value LIKE 'nccl%'", "unnamed_kernels"),
        ("UPDATE {} SET shortName = NULL WHERE streamId = 17", "unnamed_kernels"),
        ('UPDATE {} SET "end" = start - 1 WHERE streamId = 17', "impossible_times"),
        ('UPDATE {} SET "end" = start WHERE streamId = 17', None),
    ],
)
def test_42_kernels_that_may_communicate_are_not_called_silent(
    fault: str, warned: str | None, tmp_path: Path
) -> None:
    """Their names or times are not there, or they took no time: that none communicates is not known."""
    path = altered(scene().write(tmp_path / "a.sqlite"), *copied(KERNEL), fault.format(KERNEL))
    made = document(path)
    assert "no_communication" not in codes(made)
    assert warned is None or warned in codes(made, "warnings")


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_42_text_in_utf16(encoding: str, tmp_path: Path) -> None:
    plain, path = scene().write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    with closing(sqlite3.connect(plain)) as source, closing(sqlite3.connect(path)) as target:
        target.executescript("\n".join([f"PRAGMA encoding = '{encoding}';", *source.iterdump()]))
    assert tables(path)["overlap"] == tables(plain)["overlap"]


@pytest.mark.parametrize("lost", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_42_events_that_name_no_process(ranks: int, lost: str, tmp_path: Path) -> None:
    """They are of the only process; under CUDA_VISIBLE_DEVICES nothing else tells two apart."""
    export = Export()
    for line in range(ranks):
        process = export.process(device=0, gpu=line)
        process.range("step 0", 0, 100)
        process.draw("c" if line == 0 else "g", 7, (0, 100))
        process.copy("HtoD", (100, 110))
    path = export.write(tmp_path / "a.sqlite", drop=[f"{lost}.globalPid"])
    if ranks == 1:
        assert tables(path)["overlap"] == tables(export.write(tmp_path / "b.sqlite"))["overlap"]
    else:
        assert "2 processes" in (ran := run("analyze", path)).line
        assert ran.code == 3


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"])
def test_42_edges_that_name_no_process(ranks: int, table: str, tmp_path: Path) -> None:
    export = Export()
    for line in range(ranks):
        process = export.process(device=line)
        process.kernel("sgemm", 7, (10, 60), launched=1)
        process.record(1, 7, 2)
        process.wait(1, 8, 3)
        process.kernel("sgemm", 8, (60, 70), launched=4)
    path = export.write(tmp_path / "a.sqlite", drop=[f"{table}.globalPid"])
    ran = run("critical-path", path)
    if ranks == 1:
        assert ran.out == run("critical-path", export.write(path)).out
    else:
        assert (ran.code, table in ran.line) == (3, True)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("table", ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"])
def test_42_threads_that_are_not_told(ranks: int, table: str, tmp_path: Path) -> None:
    """In one process they do not matter; else ranges and calls are of no known process, and the column is named."""
    export = Export()
    for line in range(ranks):
        process = export.process(device=line)
        process.range("step 0", 0, 100)
        process.kernel("sgemm", 7, (10, 60))
    made = document(export.write(tmp_path / "a.sqlite", drop=[f"{table}.globalTid"]))
    (said,) = [one["message"] for one in made["warnings"] if one["code"] == "no_steps"] or [""]
    if ranks == 1:
        assert ([row["step"] for row in made["tables"]["overlap"]], said) == (["step 0"], "")
    else:
        assert f"{table}.globalTid" in said


def shuffled(source: Path, target: Path, seed: int) -> Path:
    """A copy of a real export with the rows of every table in another order."""
    shutil.copy(source, target)
    target.chmod(0o644)
    rng = random.Random(seed)
    connection = sqlite3.connect(target)
    connection.text_factory = bytes
    tables_ = [
        row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    for table in tables_:
        rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
        rng.shuffle(rows)
        connection.execute(f'DELETE FROM "{table}"')
        if rows:
            marks = ", ".join(
                "CAST(? AS TEXT)" if _is_text(connection, table, n) else "?" for n in range(len(rows[0]))
            )
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
    connection.commit()
    connection.close()
    return target


def _is_text(connection: sqlite3.Connection, table: str, column: int) -> bool:
    info = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
    return info[column][2] == b"TEXT" and info[column][1] != b"binaryData"


@pytest.mark.parametrize("name", ["blobs_ddp", "hook", "graph_node"])
def test_43_rows_in_any_order(name: str, unpacked: Unpack, tmp_path: Path) -> None:
    before, after = (
        document(path)
        for path in (
            unpacked(f"h200/{name}"),
            shuffled(unpacked(f"h200/{name}"), tmp_path / f"{name}.sqlite", 5),
        )
    )
    for made in (before, after):
        del made["inputs"]
    assert after == before


def bad_inputs(folder: Path) -> dict[str, tuple[Path, str]]:
    """Name to a file and what its one line must say."""
    good = scene().write(folder / "good.sqlite").read_bytes()
    import zstandard

    packed, squeezed = gzip.compress(good), zstandard.ZstdCompressor().compress(good)
    made: dict[str, tuple[bytes, str]] = {
        "empty.sqlite": (b"", "empty"),
        "random.sqlite": (random.Random(1).randbytes(5000), "no SQLite file"),
        "notes.txt": (b"just some text\n", "no SQLite file"),
        "page.html": (b"<!doctype html><html><body>404</body></html>", "no SQLite file"),
        "header.sqlite": (good[:16], "truncated"),
        "headers.sqlite": (good[:100], "truncated"),
        "half.sqlite": (good[: len(good) // 2], "truncated"),
        "nearly.sqlite": (good[:-1], "truncated"),
        "raw.qdstrm": (b"QDSTRM" + bytes(500), "qdstrm"),
        "raw2.QDSTRM": (random.Random(2).randbytes(500), "qdstrm"),
        "cut.sqlite.gz": (packed[: len(packed) // 2], "damaged"),
        "flipped.sqlite.gz": (packed[:60] + bytes([packed[60] ^ 255]) + packed[61:], "damaged"),
        "only.sqlite.gz": (b"\x1f\x8b", "damaged"),
        "cut.sqlite.zst": (squeezed[: len(squeezed) // 2], "damaged"),
        "flipped.sqlite.zst": (squeezed[:40] + bytes([squeezed[40] ^ 255]) + squeezed[41:], ""),
        "nothing.sqlite.gz": (gzip.compress(b""), "holds nothing"),
        "text.sqlite.gz": (gzip.compress(b"hello"), "no SQLite file"),
        "zeros.sqlite": (bytes(8192), "no SQLite file"),
        "zeroed.sqlite": (good[:100] + bytes(len(good) - 100), "damaged"),
        "utf16.sqlite": ("SQLite format 3".encode("utf-16"), "no SQLite file"),
    }
    paths = {}
    for name, (content, cause) in made.items():
        (folder / name).write_bytes(content)
        paths[name] = (folder / name, cause)
    (folder / "folder.sqlite").mkdir()
    paths["folder.sqlite"] = (folder / "folder.sqlite", "folder")
    paths["absent.sqlite"] = (folder / "absent.sqlite", "No such file")
    for name, statement in {
        "none.sqlite": "VACUUM",
        "one.sqlite": "CREATE TABLE t(x)",
        "foreign.sqlite": "CREATE TABLE StringIds(id, value)",
    }.items():
        connection = sqlite3.connect(folder / name)
        connection.execute("PRAGMA user_version = 1")
        connection.execute(statement)
        connection.commit()
        connection.close()
        paths[name] = (folder / name, "no nsys export")
    texts = scene().write(folder / "texts.sqlite", drop=["StringIds"])
    paths["texts.sqlite"] = (texts, "no table StringIds")
    return paths


BAD = (
    "empty random notes page header headers half nearly raw raw2 cut.gz flipped.gz only.gz cut.zst flipped.zst "
    "nothing.gz text.gz zeros zeroed utf16 folder absent none one foreign texts"
)


READERS = (
    ["analyze"],
    ["analyze", "--per", "capture", "--format", "json"],
    ["doctor"],
    ["query", "kernels"],
    ["critical-path"],
    ["diagnose"],
)


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_45_every_bad_input_is_one_line(command: list[str], tmp_path: Path) -> None:
    inputs = bad_inputs(tmp_path)
    assert len(inputs) == len(BAD.split())
    before = sorted(tmp_path.rglob("*"))
    for name, (path, cause) in inputs.items():
        ran = run(*command, path)
        assert ran.code == 3, (name, ran)
        said = ran.err.splitlines()
        assert len(said) == 1, (name, said)
        assert cause in said[0], (name, said)
        assert path.name in said[0], (name, said)
        assert str(tmp_path) not in said[0]
        assert "unforeseen" not in said[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_45_a_bad_input_leaves_no_output(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    good = scene().write(tmp_path / "in" / "good.sqlite")
    bad = tmp_path / "in" / "bad.sqlite"
    bad.write_bytes(good.read_bytes()[:5000])
    ran = run("analyze", bad, "--out", tmp_path / "out", "--format", "json")
    assert ran.code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_45_a_report_that_needs_nsys_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"\x00\x01\x02" * 500)
    ran = run("analyze", report)
    assert ran.code == 3
    assert "nsys export" in ran.line
    assert "--include-blobs=true" in ran.line


NEWER = """#!/bin/sh
case "$1" in
  --version) echo "NVIDIA Nsight Systems version 2024.5.1.113-245134037904v0";;
  *) echo "Importer error: the report was created by a newer version 2026.2.1.7" >&2; exit 1;;
esac
"""


def test_45_a_report_newer_than_nsys_names_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NEWER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"head 2026.2.1.7 tail" + bytes(300))
    ran = run("analyze", report)
    assert ran.code == 3
    assert "2024.5.1" in ran.line
    assert "2026.2.1" in ran.line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "report.nsys-rep"]


EXPORTER = """#!/bin/sh
case "$1" in --version) echo "NVIDIA Nsight Systems version 2024.5.1.113"; exit 0;; esac
case "$*" in *include-blobs*) {blobs};; esac
while [ "$1" != --output ]; do shift; done
{work}
"""


@pytest.mark.parametrize(
    ("blobs", "work", "code", "said"),
    [
        ("", 'cp "$SOURCE" "$2"', 0, ""),
        ('echo "unrecognised option --include-blobs" >&2; exit 1', 'cp "$SOURCE" "$2"', 0, ""),
        ("", "exit 0", 3, "cannot export it"),
        ("", "echo /home/me/x: Error: corrupt file >&2; exit 1", 3, "corrupt file"),
        ("", 'echo hello > "$2"', 3, "damaged"),
    ],
)
def test_45_a_report_is_exported_by_nsys(
    blobs: str, work: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(EXPORTER.format(blobs=blobs or ":", work=work))
    program.chmod(0o755)
    source = scene().write(tmp_path / "bin" / "export.sqlite")
    monkeypatch.setenv("SOURCE", str(source))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(bytes(300))
    ran = run("analyze", report, "--per", "capture", "--format", "json")
    assert ran.code == code, ran.err
    if code:
        assert said in ran.line
        assert "/home/me" not in ran.line
    else:
        assert json.loads(ran.out)["tables"]["overlap"] == overlap(source)
        assert json.loads(ran.out)["inputs"][0]["name"] == "report.nsys-rep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "report.nsys-rep"]


def test_45_an_nsys_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF not really")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(bytes(300))
    ran = run("analyze", report)
    assert ran.code == 3
    assert ran.line


def test_45_the_real_nsys_refuses_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/opt/nsys/target-linux-x64")
    require("nsys", shutil.which("nsys") is not None)
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(bytes(5000))
    ran = run("analyze", report)
    assert ran.code == 3
    assert ran.line


def test_46_ranges_that_all_overlap(tmp_path: Path) -> None:
    """20,000 phases open at once: the one opened last holds the kernel; looking through all of them takes minutes."""
    export = Export()
    process = export.process()
    process.range("step 0", 0, 100_000)
    for number in range(20_000):
        process.range("backward", number, number + 40_000)
    process.kernel("gemm", 7, (30_000, 30_010), launched=(25_000, 25_001))
    phases = [row for row in tables(export.write(tmp_path / "a.sqlite"))["phase"] if row["kernels"]]
    assert [(row["host_start_ns"], row["kernels"]) for row in phases] == [(19_999 * MS, 1)]


def test_46_work_grows_with_the_input_and_unrelated_tables_are_not_read(tmp_path: Path) -> None:
    """An unrelated table that never ends would hang whoever reads more than its first row.

    Calls of functions and bytes of arrays are counted, not seconds: eight times the input takes about eight times both.
    """

    def cost(steps: int) -> tuple[int, int]:
        export = Export(unit="us")
        process = export.process()
        for step in range(steps):
            at = step * 1000
            process.range(f"step {step}", at, at + 1000)
            for number in range(20):
                process.kernel("sgemm", 7, (at + 40 * number, at + 40 * number + 30))
                for small in range(3):
                    process.range("op", at + 40 * number + small, at + 40 * number + small + 1)
        path = export.write(tmp_path / f"{steps}.sqlite")
        connection = sqlite3.connect(path)
        connection.execute(
            "CREATE VIEW OSRT_API AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            'SELECT x AS start, x AS "end" FROM c'
        )
        connection.close()
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        tracemalloc.start()
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            assert len(tables(path)["overlap"]) == steps
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            allocated = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return calls, allocated

    cost(10)
    small, large = cost(100), cost(800)
    assert large[0] < 8 * 1.5 * small[0]
    assert large[1] < 8 * 1.5 * small[1] + (1 << 20)


SECRET = "s3cr3t-T0KEN"
FORMATS = [
    ["analyze"],
    ["analyze", "--per", "capture"],
    ["analyze", "--format", "json"],
    *(["analyze", "--format", form, "--table", table] for form in ("csv", "markdown", "text") for table in (
        "rank", "overlap", "phase", "collective", "kernel_class", "memory", "straggler", "outside_steps")),
    ["doctor"],
]  # fmt: skip


def planted(tmp_path: Path) -> Path:
    export = scene(host=f"{SECRET}.example.org")
    export.plant_secret(SECRET)
    export.capture("PROCESS_0:ENVIRONMENT_VARIABLE", f"RANK={SECRET}")
    for text in (
        f"Not all CUDA events in /home/{SECRET}/a",
        f"see C:\\Users\\{SECRET}\\x",
        f"~/{SECRET}/y z",
        f"host {SECRET}: CUPTI failed",
        f"env API_TOKEN={SECRET} rejected",
        f"./{SECRET}/run.sh --token={SECRET}",
        f"Loaded CUPTI library: {SECRET}/a b,c=%#.so",
        f"Not all CUDA events might have been collected. {SECRET}",
    ):
        export.diagnostic(text, severity=2)
        export.diagnostic(text, severity=3)
    for name in ("EXPORT_COMMAND_LINE", "EXPORT_PARAM_INPUT_PATH", "EXPORT_USER", "EXPORT_SCHEMA_VERSION"):
        export.row("META_DATA_EXPORT", name=name, value=SECRET)
    folder = tmp_path / SECRET
    folder.mkdir()
    return export.write(folder / "a.sqlite")


@pytest.mark.parametrize("argv", FORMATS, ids=" ".join)
def test_47_a_planted_secret_appears_nowhere(argv: list[str], tmp_path: Path) -> None:
    ran = run(*argv, planted(tmp_path))
    assert ran.code == 0, ran.err
    assert ran.out
    assert SECRET not in ran.out + ran.err
    assert SECRET.encode() not in (ran.out + ran.err).encode("utf-16")


def test_47_nor_in_any_file_or_picture(tmp_path: Path) -> None:
    path = planted(tmp_path)
    out = tmp_path / "out"
    assert run("analyze", path, "--out", out).code == 0
    for command, name in (("timeline", "t.svg"), ("timeline", "t.png"), ("report", "r.html")):
        ran = run(command, path, "-o", out / name)
        assert ran.code == 0, ran.err
        assert SECRET not in ran.out + ran.err
    files = [file for file in out.rglob("*") if file.is_file()]
    assert len(files) >= 11
    for file in files:
        assert SECRET.encode() not in file.read_bytes(), file.name


def test_47_nor_in_a_query_or_an_error(tmp_path: Path) -> None:
    from nsysddp.ingest import queries

    path = planted(tmp_path)
    for name in queries.names():
        for form in ("csv", "json", "text"):
            ran = run("query", name, path, "--format", form)
            assert SECRET not in ran.out + ran.err, (name, form)
    for argv in (
        ["--steps", "7:"],
        ["--from", "900", "--to", "901"],
        ["--table", "nothing"],
        ["--rules", "absent"],
    ):
        ran = run("analyze", path, *argv)
        assert ran.code in (2, 4)
        assert SECRET not in ran.line
    broken = path.with_name("b.sqlite")
    broken.write_bytes(path.read_bytes()[:-5])
    assert SECRET not in run("analyze", broken).line


NAMES = (
    "templates<float, 4>::operator()",
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "a & b && c",
    "\x1b[2J\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "bell\x07 back\x08space",
    "line\nbreak\r\ntwo",
    "tab\tbed",
    "[bold]markup[/bold] :smile:",
    "$(rm -rf ~) `id` ; DROP TABLE StringIds; --",
    "' OR 1=1 --",
    '" ; SELECT 1',
    "%s %d {0} {name}",
    "ünïcödé 漢字 🚀",
    "right\u202eto left",
    "=HYPERLINK(1)",
    "",
    " ",
    "x" * 5000,
    "null",
    "a|b|c",
    "$x^2$ \\frac{1}{2}",
)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_48_any_text_is_shown_as_it_is_and_does_nothing(name: str, tmp_path: Path) -> None:
    export = Export()
    for line in (0, 1):
        process = export.process(device=line)
        process.range("step 0", 0, 100)
        process.range(name, 0, 50)
        process.kernel(name, 7, (10, 50))
        process.draw("c", 17, (20, 60))
    path = export.write(tmp_path / "a.sqlite")
    made = document(path)
    from nsysddp.model.names import visible

    shown = {row["name"] for row in made["tables"]["kernel_class"] if row["class"] != "communication"}
    assert shown == {visible(name)}
    control = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
    for argv in (
        ["--format", "json"],
        ["--format", "csv", "--table", "kernel_class"],
        ["--format", "markdown", "--table", "kernel_class"],
        ["--format", "text", "--table", "kernel_class"],
        [],
    ):
        ran = run("analyze", path, *argv)
        assert ran.code == 0, ran.err
        assert not control.search(ran.out), argv
    rows = run("analyze", path, "--format", "markdown", "--table", "kernel_class").out.splitlines()
    assert len(rows) == 2 + 4
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    if name:
        step = run("analyze", path, "--step-pattern", re.escape(visible(name)), "--format", "json")
        assert json.loads(step.out)["tables"]["overlap"][0]["step"] == visible(name)


def test_48_sql_in_names_of_tables_and_columns(tmp_path: Path) -> None:
    path = scene().write(tmp_path / "a.sqlite")
    connection = sqlite3.connect(path)
    evil = 'x"; DROP TABLE StringIds; --'
    connection.execute('CREATE TABLE "{}" ("{}" INTEGER)'.format(*[evil.replace('"', '""')] * 2))
    connection.execute('INSERT INTO "{}" VALUES (1)'.format(evil.replace('"', '""')))
    connection.execute(
        f'ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN "{evil.replace(chr(34), chr(34) * 2)}"'
    )
    connection.commit()
    connection.close()
    assert figures(path) == figures(scene().write(tmp_path / "b.sqlite"))
    assert run("doctor", path).code == 0


def test_global_pid_is_packed_as_the_cases_assume() -> None:
    assert global_pid(7) >> 24 & 0xFFFFFF == 7
