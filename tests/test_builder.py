"""Synthetic exports look like real ones: tables, columns, packed ids, payloads; they hold what was drawn."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builder import NO_EVENT, SCHEMA, Export, global_pid, global_tid, nccl_blob


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def columns(path: Path, table: str) -> list[tuple[str, str, int, int]]:
    return rows(path, f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')")


def tables(path: Path) -> set[str]:
    return {name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.parametrize(
    ("trace", "known"),
    [
        ("h200/blobs_ddp", 25),
        ("h200/graph_node", 1),
        ("h200/graph_graph", 2),
        ("h200/cvd", 1),
        ("public/c2023.4.4_s3.7.2__1proc_4gpu", 2),
    ],
)
def test_tables_and_columns_are_those_of_real_exports(
    trace: str, known: int, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    real = unpacked(trace)
    drawn = Export().write(tmp_path / "empty.sqlite", lazy=False)
    wanted = {name for name in tables(real) if not name.startswith("ENUM_")}
    if "s3.7.2" in trace:  # older schema: only the tables that no capture of 3.20.3 has
        wanted &= {"GPU_METRICS", "TARGET_INFO_GPU_METRICS"}
    assert wanted <= set(SCHEMA)
    assert len(wanted) >= known
    for table in wanted:
        assert columns(drawn, table) == columns(real, table), table


def test_ids_are_packed_as_in_a_real_export(unpacked: Callable[[str], Path]) -> None:
    real = unpacked("h200/blobs_ddp")
    processes = rows(real, "SELECT globalPid, pid FROM PROCESSES")
    assert {global_pid(pid) for _, pid in processes} == {packed for packed, _ in processes}
    main = set(rows(real, "SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE text LIKE 'step%'"))
    assert main == {(global_tid(pid, pid),) for _, pid in processes}


def test_payloads_and_their_schemas_are_those_of_a_real_export(
    unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    real = unpacked("h200/blobs_ddp")
    ((blob,),) = rows(real, "SELECT binaryData FROM NVTX_EVENTS WHERE rowid = 10")
    assert nccl_blob("AllReduce", bytes=131_072_000, communicator=0xEF70F98B928CA22C) == blob
    export = Export()
    for pid in (608, 609):
        export.process(pid=pid).nccl("AllReduce", 17, (0, 1))
    drawn = export.write(tmp_path / "a.sqlite")
    for table in ("NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        used = f"SELECT * FROM {table} WHERE schemaId BETWEEN 16777220 AND 16777222 ORDER BY schemaId, "
        order = "rowid" if table == "NVTX_PAYLOAD_SCHEMAS" else "idx"
        assert rows(drawn, used + order) == rows(real, used + order)
    for table in ("NVTX_PAYLOAD_ENUMS", "NVTX_PAYLOAD_ENUM_ENTRIES"):
        assert rows(drawn, f"SELECT * FROM {table}") == rows(real, f"SELECT * FROM {table}")
    kinds = (
        "SELECT typeof(binaryData), eventType, domainId, text FROM NVTX_EVENTS WHERE domainId = 1 ORDER BY 2"
    )
    assert set(rows(drawn, kinds)) == set(rows(real, kinds))


def test_lanes_draw_what_they_say(tmp_path: Path) -> None:
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,100) s7 g[0,50) g[60,90)   s17 c[20,80)
        rank 1 | spin s7[0,50)  c s17[40,80)  memset[50,51) memcpy[51,52.5)
    """)
    path = export.write(tmp_path / "lanes.sqlite")
    drawn = rows(
        path,
        "SELECT deviceId, streamId, value, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "JOIN StringIds ON id = shortName",
    )
    assert drawn == [
        (0, 7, "sgemm", 0, 50_000_000),
        (0, 7, "sgemm", 60_000_000, 90_000_000),
        (0, 17, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20_000_000, 80_000_000),
        (1, 7, "spin_kernel", 0, 50_000_000),
        (1, 17, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40_000_000, 80_000_000),
    ]
    assert rows(path, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY") == [(51_000_000, 52_500_000)]
    assert rows(path, "SELECT streamId FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(7,)]
    steps = rows(path, "SELECT text, start, end, eventType FROM NVTX_EVENTS WHERE domainId = 0")
    assert steps == [("step 0", 0, 100_000_000, 59)]


@pytest.mark.parametrize("lane", ["rank 0 | s7 g(0,50)", "rank 0 | g[0,50]", "gpu 0 | g[0,50)", "rank 0 | ?"])
def test_a_lane_that_cannot_be_read_is_an_error(lane: str) -> None:
    with pytest.raises(ValueError, match="lane"):
        Export().lanes(lane)


def test_launches_join_on_process_and_correlation(tmp_path: Path) -> None:
    export = Export("us")
    r0, r1 = export.process(pid=100, device=0, gpu=0), export.process(pid=101, device=0, gpu=1)
    r0.kernel("fwd", at=(50, 80), launched=5)
    r0.kernel("bwd", at=(90, 95), launched=(60, 62), thread=132)
    r0.kernel("orphan", at=(96, 97), launched=None)
    r1.kernel("fwd", at=(50, 80), launched=-1)
    path = export.write(tmp_path / "a.sqlite")
    joined = rows(
        path,
        "SELECT s.value, r.start, r.end, r.globalTid & 0xFFFFFF FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.shortName JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        "ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24 ORDER BY r.start",
    )
    assert joined == [("fwd", -1000, -999, 101), ("fwd", 5000, 5001, 100), ("bwd", 60000, 62000, 132)]
    assert rows(path, "SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE") == [(100, 0, 0), (101, 0, 1)]
    assert len({uuid for (uuid,) in rows(path, "SELECT uuid FROM TARGET_INFO_GPU")}) == 2


def test_a_group_is_many_operations_and_one_kernel(tmp_path: Path) -> None:
    export = Export()
    rank = export.process()
    peers = [("Send", {"peer": 1, "bytes": 64}), ("Recv", {"peer": 1, "bytes": 64})]
    rank.nccl_group(peers, 17, (10, 20), launched=(1, 7), nested=1)
    path = export.write(tmp_path / "a.sqlite")
    names = rows(
        path,
        "SELECT value FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE eventType = 59 ORDER BY start",
    )
    assert [n for (n,) in names] == [
        *["ncclGroupStart"] * 2,
        "ncclSend",
        "ncclRecv",
        *["ncclGroupEnd"] * 2,
    ]
    inside = rows(
        path,
        "SELECT n.start <= r.start AND r.end <= n.end FROM CUPTI_ACTIVITY_KIND_RUNTIME r, NVTX_EVENTS n "
        "WHERE n.eventType = 59 ORDER BY n.start",
    )
    assert [bool(i) for (i,) in inside] == [False] * 5 + [True]
    assert rows(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]


def test_events_order_streams_through_their_sync_id(tmp_path: Path) -> None:
    export = Export()
    rank = export.process(device=1)
    rank.record(4, 7, 1)
    second = rank.record(4, 7, 2)
    rank.wait(4, 17, 3)
    rank.sync("stream", (4, 5), stream=17)
    rank.sync("device", (5, 6))
    path = export.write(tmp_path / "a.sqlite")
    syncs = rows(
        path,
        "SELECT deviceId, streamId, syncType, eventId, eventSyncId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    )
    assert syncs == [(0, 17, 2, 4, second), (0, 17, 2, NO_EVENT, NO_EVENT)]
    records = rows(path, "SELECT deviceId, eventId, eventSyncId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT")
    assert records == [(1, 4, 1), (1, 4, 2)]


def test_ranges_of_every_kind(tmp_path: Path) -> None:
    export = Export()
    rank = export.process(pid=100)
    rank.range("step 0", 0, 9, kind="start_end", end_thread=132)
    rank.range("forward", 0, 4, registered=True, thread=101)
    rank.range(b"caf\xe9", 5, None, domain="mine")
    rank.mark("here", 3)
    path = export.write(tmp_path / "a.sqlite")
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    found = connection.execute(
        "SELECT eventType, start, end, text, textId IS NULL, endGlobalTid & 0xFFFFFF, domainId "
        "FROM NVTX_EVENTS WHERE eventType != 75"
    ).fetchall()
    connection.close()
    assert found == [
        (60, 0, 9_000_000, b"step 0", 1, 132, 0),
        (59, 0, 4_000_000, None, 0, None, 0),
        (59, 5_000_000, None, b"caf\xe9", 1, None, 2),
        (34, 3_000_000, None, b"here", 1, None, 0),
    ]


def test_graphs_by_span_and_by_node(tmp_path: Path) -> None:
    export = Export(graph_mode="Node")
    rank = export.process()
    whole = rank.graph((0, 5))
    nodes = rank.graph_nodes((6, 7), [("a", 7, (7, 8)), ("b", 17, (7, 9))])
    path = export.write(tmp_path / "a.sqlite")
    assert rows(path, "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(whole,)]
    kernels = rows(path, "SELECT correlationId, graphNodeId FROM CUPTI_ACTIVITY_KIND_KERNEL")
    known = {node for (node,) in rows(path, "SELECT graphNodeId FROM CUDA_GRAPH_NODE_EVENTS")}
    assert [c for c, _ in kernels] == [nodes, nodes]
    assert {node for _, node in kernels} == known


def test_what_may_differ_between_exports(tmp_path: Path) -> None:
    export = Export(schema=None, utc_epoch_ns=None)
    r0, r1 = export.process(env={"RANK": "0"}), export.process(env={"RANK": "1"})
    for rank in (r0, r1):
        for at in range(20):
            rank.kernel(f"k{at}", at=(at, at + 1))
    plain = export.write(tmp_path / "plain.sqlite")
    assert "META_DATA_EXPORT" not in tables(plain)
    assert "TARGET_INFO_SESSION_START_TIME" not in tables(plain)
    assert ("PROCESS_1:ENVIRONMENT_VARIABLE", 'RANK="1"') in rows(plain, "SELECT * FROM META_DATA_CAPTURE")
    kernels = "SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL"
    shuffled = export.write(tmp_path / "shuffled.sqlite", shuffle=1)
    assert rows(shuffled, kernels) != rows(plain, kernels)
    assert sorted(rows(shuffled, kernels), key=str) == sorted(rows(plain, kernels), key=str)
    split = export.write(tmp_path / "split.sqlite", only=[r1])
    assert rows(split, "SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(r1.global_pid,)]
    assert rows(split, "SELECT pid FROM TARGET_INFO_CUDA_DEVICE") == [(r1.pid,)]
    shifted = export.write(tmp_path / "shifted.sqlite", shift_ns=-5)
    assert rows(shifted, "SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(-5, 19_999_995)]
    changed = export.write(
        tmp_path / "changed.sqlite",
        drop=["PROCESSES", "CUPTI_ACTIVITY_KIND_KERNEL.globalPid"],
        rename={"CUPTI_ACTIVITY_KIND_KERNEL": "KERNEL_V3", "CUPTI_ACTIVITY_KIND_KERNEL.shortName": "nameId"},
        add={"CUPTI_ACTIVITY_KIND_RUNTIME.mine": "INTEGER DEFAULT 3"},
    )
    assert "PROCESSES" not in tables(changed)
    assert {"nameId", "start"} <= {c for c, *_ in columns(changed, "KERNEL_V3")}
    assert not {"shortName", "globalPid"} & {c for c, *_ in columns(changed, "KERNEL_V3")}
    assert rows(changed, "SELECT DISTINCT mine FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(3,)]


def test_a_planted_secret_is_in_the_file_and_in_every_private_place(tmp_path: Path) -> None:
    export = Export()
    export.process()
    export.plant_secret("SENTINEL")
    path = export.write(tmp_path / "a.sqlite")
    for table in (
        "META_DATA_CAPTURE",
        "TARGET_INFO_SYSTEM_ENV",
        "StringIds",
        "ANALYSIS_FILE",
        "PROCESSES",
        "DIAGNOSTIC_EVENT",
    ):
        assert any("SENTINEL" in str(row) for row in rows(path, f"SELECT * FROM {table}")), table


def test_gpu_metrics_name_their_gpu(tmp_path: Path) -> None:
    export = Export()
    export.gpu_metric("SMs Active [Throughput %]", {0: 10, 0.1: 90}, gpu=1)
    path = export.write(tmp_path / "a.sqlite")
    sampled = rows(
        path,
        "SELECT timestamp, value, typeId & 255, metricName FROM GPU_METRICS "
        "JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId)",
    )
    assert sampled == [(0, 10, 1, "SMs Active [Throughput %]"), (100_000, 90, 1, "SMs Active [Throughput %]")]
