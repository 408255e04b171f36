"""Algorithm, protocol and channels: only what NCCL says, and not what a kernel happens to be called."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest
from builder import Export
from command import run
from test_communicators import asked

from nsysddp.questions.communicators.nccl import Word, words_of

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
TREE = "ncclDevKernel_AllReduce_Sum_f32_TREE_LL"


def said(*names: str) -> dict[str, tuple[str | None, str | None]]:
    return {name: (word.algorithm, word.protocol) for name, word in words_of(names).items()}


def test_the_usual_kernels_say_no_protocol_and_a_ring_kernel_no_algorithm() -> None:
    assert said(RING, TREE, "ncclDevKernel_SendRecv") == {
        RING: (None, None),
        TREE: ("TREE", None),
        "ncclDevKernel_SendRecv": (None, None),
    }
    assert "NVLS" in words_of([RING])[RING].note


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclAllReduceRingLLKernel_sum_f32",
        "ncclDevKernel_AllGather_RING_LL",
    ],
)
def test_older_names_say_as_little(name: str) -> None:
    assert said(name) == {name: (None, None)}


def test_a_build_with_a_kernel_for_each_protocol_says_the_protocol() -> None:
    simple = "ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE"
    assert said(RING, simple) == {RING: (None, "LL"), simple: (None, "SIMPLE")}


def test_a_build_with_a_kernel_for_each_algorithm_says_both() -> None:
    nvls = "ncclDevKernel_AllReduce_Sum_bf16_NVLS_TREE_SIMPLE"
    assert said(RING, nvls) == {RING: ("RING", "LL"), nvls: ("NVLS_TREE", "SIMPLE")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32", ("AGxLL_R", "LL")),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16", ("RSxLDMC_AGxSTMC", None)),
        ("ncclSymDevKernel_AllGather_STMC", ("STMC", None)),
        ("ncclSymkDevKernel_ReduceScatter_LD_avg_f16", ("LD", None)),
    ],
)
def test_kernels_for_symmetric_memory_are_named_for_what_they_do(
    name: str, expected: tuple[str | None, str | None]
) -> None:
    assert said(name) == {name: expected}
    assert words_of([name])[name] == Word(*expected)


def drawn(tmp_path: Path, *, blobs: bool = True) -> Path:
    """Two ranks, one step, two all-reduces of one communicator."""
    export = Export()
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 100)
        process.kernel("gemm", at=(0, 90))
        for at in (10, 40):
            process.nccl("AllReduce", 17, (at, at + 10), bytes=8 << 20, name=RING, payload=blobs)
    return export.write(tmp_path / "a.sqlite")


def with_fields(path: Path, **fields: int) -> Path:
    """Later payloads of the all-reduce: further integers behind the last field, an enum of the algorithms."""
    with sqlite3.connect(path) as connection:
        schema, domain = connection.execute(
            "SELECT schemaId, domainId FROM NVTX_PAYLOAD_SCHEMA_ENTRIES WHERE name = 'Reduction operation' LIMIT 1"
        ).fetchone()
        enum = 16777299
        connection.execute(
            "INSERT INTO NVTX_PAYLOAD_ENUMS (domainId, schemaId, numEntries, size) VALUES (?, ?, 2, 4)",
            (domain, enum),
        )
        for value, name in enumerate(("Tree", "Ring", "NVLS")):
            connection.execute(
                "INSERT INTO NVTX_PAYLOAD_ENUM_ENTRIES (domainId, schemaId, idx, name, value) VALUES (?, ?, ?, ?, ?)",
                (domain, enum, value, name, value),
            )
        for place, label in enumerate(fields):
            connection.execute(
                "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, type, name, offset)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (domain, schema, 3 + place, enum if label == "Algorithm" else 5, label, 24 + 4 * place),
            )
        blobs = connection.execute(
            "SELECT rowid, binaryData FROM NVTX_EVENTS WHERE binaryData IS NOT NULL"
        ).fetchall()
        for row, blob in blobs:
            count, its_schema, _, offset = struct.unpack_from("<4Q", blob)
            more = struct.pack(f"<{len(fields)}i", *fields.values())
            made = (
                struct.pack("<4Q", count, its_schema, 24 + len(more), offset)
                + blob[32:].ljust(24, b"\0")
                + more
            )
            connection.execute("UPDATE NVTX_EVENTS SET binaryData = ? WHERE rowid = ?", (made, row))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return asked(path)["nccl_says"].to_dicts()


def test_what_a_payload_says_stands_above_the_name_of_the_kernel(tmp_path: Path) -> None:
    (row,) = rows(with_fields(drawn(tmp_path), Algorithm=2, channels=16))
    assert (row["algorithm"], row["protocol"], row["channels"], row["source"]) == (
        "nvls",
        None,
        16,
        "NCCL",
    )
    assert row["note"] == "protocol: not in this NCCL's payload"
    assert (row["kernels"], row["smallest_bytes"], row["largest_bytes"]) == (4, 8 << 20, 8 << 20)


def test_a_payload_without_these_fields_says_nothing_and_that_is_said(tmp_path: Path) -> None:
    (row,) = rows(drawn(tmp_path))
    assert (row["algorithm"], row["protocol"], row["channels"], row["source"]) == (None, None, None, None)
    assert row["note"].startswith("algorithm, protocol, channels: not in this NCCL's payload; ")


def test_without_payloads_the_flag_is_named(tmp_path: Path) -> None:
    (row,) = rows(drawn(tmp_path, blobs=False))
    assert "--include-blobs=true" in row["note"]
    text = run("communicators", tmp_path / "a.sqlite").out
    assert "What NCCL says" in text
    assert "--include-blobs=true" in " ".join(text.split())


def with_tasks(path: Path, *tasks: tuple[str, int, int, int], blobs: bool = True) -> Path:
    """NCCL's range of each task (protocol's name, algorithm, protocol, channels) around every launch, as proposed."""
    schema = 16777241
    fields = (
        ("NCCL communicator ID", 18, 0),
        ("Rank", 5, 8),
        ("Message size [bytes]", 22, 16),
        ("Collective", 5, 24),
        ("Algorithm", 5, 28),
        ("Protocol", 5, 32),
        ("Datatype", 5, 36),
        ("Root", 5, 40),
        ("No. of channels", 5, 44),
    )
    with sqlite3.connect(path) as connection:
        for place, (label, kind, offset) in enumerate(fields):
            connection.execute(
                "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, type, name, offset)"
                " VALUES (1, ?, ?, ?, ?, ?)",
                (schema, place, kind, label, offset),
            )
        calls = connection.execute(
            "SELECT start, end, globalTid FROM NVTX_EVENTS WHERE domainId = 1 AND eventType = 59"
        ).fetchall()
        for start, end, tid in calls:
            for depth, (name, algorithm, protocol, channels) in enumerate(tasks):
                payload = struct.pack(
                    "<QiiQ6i", 0xC0FFEE, 0, 0, 8 << 20, 4, algorithm, protocol, 7, 0, channels
                )
                blob = struct.pack("<4Q", 1, schema, len(payload), 32) + payload
                connection.execute(
                    "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, binaryData)"
                    " VALUES (?, ?, 59, ?, ?, 1, ?)",
                    (
                        start - 10 + depth,
                        end + 10 - depth,
                        f"NCCL Kernel Task Proto {name}",
                        tid,
                        blob if blobs else None,
                    ),
                )
    return path


def test_the_range_of_a_task_around_a_launch_says_what_ran(tmp_path: Path) -> None:
    before = asked(drawn(tmp_path))["communicator"].drop("evidence")
    path = with_tasks(drawn(tmp_path), ("Simple", 4, 2, 24))
    (row,) = rows(path)
    assert (row["algorithm"], row["protocol"], row["channels"]) == ("nvls", "simple", 24)
    assert (row["source"], row["note"], row["kernels"]) == ("NCCL", "", 4)
    after = asked(path)["communicator"].drop("evidence")
    assert after.equals(before)  # a task is no call of the program
    assert "nvls, simple, 24 channels (by NCCL)" in " ".join(run("communicators", path).out.split())


def test_of_several_tasks_in_one_kernel_none_is_said(tmp_path: Path) -> None:
    (row,) = rows(with_tasks(drawn(tmp_path), ("Simple", 1, 2, 24), ("LL", 0, 0, 2)))
    assert (row["algorithm"], row["protocol"], row["channels"], row["source"]) == (None, None, None, None)


def test_without_payloads_the_name_of_a_task_says_the_protocol(tmp_path: Path) -> None:
    (row,) = rows(with_tasks(drawn(tmp_path), ("LL128", 1, 1, 2), blobs=False))
    assert (row["algorithm"], row["protocol"], row["channels"]) == (None, "ll128", None)
    assert row["note"] == "algorithm, channels: not in this NCCL's payload"


def test_a_protocol_that_nccl_does_not_know_itself_is_none(tmp_path: Path) -> None:
    (row,) = rows(with_tasks(drawn(tmp_path), ("Unknown", 1, 1, 2), blobs=False))
    assert row["protocol"] is None
