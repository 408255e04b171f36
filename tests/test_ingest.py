"""Who, when and which: identity, clocks, payloads, matching of collectives, each drawn small and read back."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builder import NCCL_PAYLOADS, Export, Process, nccl_blob
from command import codes, document, run, tables

from nsysddp.ingest.attribute import kind_of, message_bytes
from nsysddp.ingest.diagnostics import WITHHELD, public
from nsysddp.ingest.hashing import hash_ahead, hashing_of, sha256_of
from nsysddp.ingest.payload import Schemas
from nsysddp.join.clocks import clocks_of
from nsysddp.join.identity import host_aliases, rank_in_name
from nsysddp.join.load import load
from nsysddp.model.errors import RankConflict, ReportError
from nsysddp.model.markers import RankMark, rank_mark
from nsysddp.questions import analyze
from nsysddp.questions.steps import Selection

MS = 1_000_000
UTC = 1_795_972_367_000_000_000


# --- payloads -----------------------------------------------------------------------------------------------


def entries(*operations: str, domain: int = 1) -> list[dict[str, Any]]:
    """Rows of payload_entries for NCCL operations."""
    return [
        {
            "domain": domain,
            "schema_id": NCCL_PAYLOADS[operation][0],
            "idx": index,
            "type": kind,
            "flags": None,
            "name": name,
            "detail": None,
            "byte_offset": offset or None,
        }
        for operation in operations
        for index, (name, kind, offset) in enumerate(NCCL_PAYLOADS[operation][2])
    ]


ENUMS = [
    {"domain": 1, "schema_id": (1 << 24) + 20, "name": name, "value": value, "size_bytes": 4}
    for value, name in enumerate(("Sum", "Product", "Max", "Min", "Avg"))
]


@pytest.mark.parametrize("padding", [0, 1, 255])
def test_every_field_whatever_the_padding(padding: int) -> None:
    schemas = Schemas(entries(*NCCL_PAYLOADS), ENUMS)
    blobs = [
        nccl_blob("AllReduce", bytes=1 << 33, communicator=0xFFFF_FFFF_FFFF_FFFF, op="Avg", padding=padding),
        nccl_blob("Broadcast", bytes=0, communicator=0, root=7, padding=padding),
        nccl_blob("Send", bytes=5, communicator=3, peer=2, padding=padding),
        nccl_blob("Reduce", bytes=9, communicator=4, root=1, op="Max", padding=padding),
        b"",
    ]
    told = schemas.decode([1] * 5, blobs)
    assert told.communicator == ["0xffffffffffffffff", "0x0", "0x3", "0x4", None]
    assert told.bytes == [1 << 33, 0, 5, 9, None]
    assert told.reduction == ["avg", None, None, "max", None]
    assert told.root == [None, 7, None, 1, None]
    assert told.peer == [None, None, 2, None, None]
    assert told.skipped == 0


BLOB = nccl_blob("AllReduce", bytes=4, communicator=5)
SKIPPED = {
    "an unknown schema": struct.pack("<4Q", 1, 99, 24, 32) + BLOB[32:],
    "too short for a header": BLOB[:31],
    "no payload in it": struct.pack("<4Q", 0, (1 << 24) + 5, 24, 32) + BLOB[32:],
    "a payload longer than the blob": struct.pack("<4Q", 1, (1 << 24) + 5, 1 << 40, 32) + BLOB[32:],
    "a header longer than the blob": struct.pack("<4Q", 1, (1 << 24) + 5, 24, 4000) + BLOB[32:],
}


@pytest.mark.parametrize("what", SKIPPED)
def test_what_cannot_be_decoded_is_counted(what: str) -> None:
    told = Schemas(entries("AllReduce"), ENUMS).decode([1, 1], [SKIPPED[what], BLOB])
    assert told.skipped == 1
    assert told.communicator == [None, "0x5"]


def test_a_domain_is_local() -> None:
    told = Schemas(entries("AllReduce", domain=1), ENUMS).decode([2, 1], [BLOB, BLOB])
    assert (told.bytes, told.skipped) == ([None, 4], 1)


def test_equal_schemas_of_many_processes_are_one_in_any_order() -> None:
    rows = entries("AllReduce", "Send") * 3
    order = np.random.default_rng(3).permutation(len(rows))
    told = Schemas([rows[place] for place in order], ENUMS[::-1]).decode([1], [BLOB])
    assert (told.bytes, told.reduction, told.skipped) == ([4], ["sum"], 0)


def test_schemas_that_contradict_each_other_are_not_used() -> None:
    other = entries("AllReduce")
    other[1] = {**other[1], "byte_offset": 0}
    told = Schemas(entries("AllReduce") + other, ENUMS).decode([1], [BLOB])
    assert (told.bytes, told.skipped) == ([None], 1)


def test_fields_without_offsets_follow_each_other_aligned() -> None:
    rows = [
        {"domain": 1, "schema_id": 9, "idx": index, "type": kind, "name": name}
        for index, (name, kind) in enumerate([("Rank", 5), ("NCCL communicator ID", 18), ("Root", 5)])
    ]
    payload = struct.pack("<iiQi", 3, -1, 77, 2)
    blob = struct.pack("<4Q", 1, 9, len(payload), 32) + payload
    told = Schemas(rows, []).decode([1], [blob])
    assert (told.own_rank, told.communicator, told.root) == ([3], ["0x4d"], [2])


def test_fields_of_unknown_type_and_arrays_are_left_out() -> None:
    rows = entries("AllReduce")
    rows[0] = {**rows[0], "type": 12345}
    rows[1] = {**rows[1], "flags": 0x2}
    told = Schemas(rows, ENUMS).decode([1], [BLOB])
    assert (told.communicator, told.bytes, told.reduction) == ([None], [None], ["sum"])


@pytest.mark.parametrize("value", [1000.0, float("nan"), float("inf")])
def test_a_size_that_is_a_real_number_is_none_of_nccl(value: float) -> None:
    rows = entries("AllReduce")
    rows[1] = {**rows[1], "type": 20}
    told = Schemas(rows, ENUMS).decode([1], [BLOB[:40] + struct.pack("<d", value) + BLOB[48:]])
    assert (told.communicator, told.bytes) == (["0x5"], [None])


@pytest.mark.parametrize("size", [(1 << 42) + 1, 1 << 62, (1 << 64) - 1])
def test_a_size_beyond_any_message_is_unknown(size: int, tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl_group([("AllReduce", {"bytes": size})] * 2, 17, (20 + rank, 30), launched=(0, 10))
        process.nccl("AllGather", 17, (40 + rank, 50), bytes=size)

    made = job(tmp_path, draw)
    assert {row["bytes"] for row in made["tables"]["collective"]} == {None}
    assert [one["count"] for one in made["warnings"] if one["code"] == "payloads_skipped"] == [6]


def test_a_reduction_without_a_name_is_its_number() -> None:
    blob = bytearray(BLOB)
    blob[32 + 16] = 9
    assert Schemas(entries("AllReduce"), ENUMS).decode([1], [bytes(blob)]).reduction == ["9"]


# --- identity -----------------------------------------------------------------------------------------------


def report(
    tmp_path: Path, name: str = "a.sqlite", *, host: str = "node0", pid: int = 100, **process: Any
) -> Path:
    export = Export(host=host)
    export.process(pid=pid, **process).kernel("sgemm", 7, (0, 10))
    return export.write(tmp_path / name)


def identity(*paths: Path) -> list[tuple[int, str, int | None]]:
    rows = load(paths).ranks.to_dicts()
    return [(row["rank"], row["rank_source"], row["world_size"]) for row in rows]


@pytest.mark.parametrize(("value", "rank"), [("7", 7), ('"7', 7), ("'7'", 7)])
def test_rank_in_the_environment(value: str, rank: int, tmp_path: Path) -> None:
    """The builder puts quotes around every value, as some versions of nsys do."""
    assert identity(report(tmp_path, env={"RANK": value, "WORLD_SIZE": "16"})) == [(rank, "environment", 16)]


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "٣", "99999999999"])
def test_a_rank_that_is_no_number_is_no_rank(value: str, tmp_path: Path) -> None:
    assert identity(report(tmp_path, env={"RANK": value})) == [(0, "inferred", None)]


def test_the_environment_of_several_processes_names_none(tmp_path: Path) -> None:
    export = Export()
    for line in (0, 1):
        export.process(device=line, env={"RANK": "3", "WORLD_SIZE": "8"}).kernel("sgemm", 7, (0, 5))
    assert identity(export.write(tmp_path / "a.sqlite")) == [(0, "inferred", 8), (1, "inferred", 8)]


def test_a_mark_goes_before_environment_and_file_name(tmp_path: Path) -> None:
    export = Export()
    process = export.process(env={"RANK": "3"})
    process.mark(rank_mark(RankMark(5, 8, 1, 0)), 1)
    process.mark(rank_mark(RankMark(5, 8, 1, 0)), 2)
    process.kernel("sgemm", 7, (0, 5))
    assert identity(export.write(tmp_path / "x_rank9.sqlite")) == [(5, "marker", 8)]
    (tmp_path / "y").mkdir()
    assert identity(report(tmp_path / "y", "x_rank9.sqlite", env={"RANK": "3"})) == [(3, "environment", None)]


def test_marks_tell_the_devices_of_one_process_apart(tmp_path: Path) -> None:
    export = Export()
    process = export.process(gpus={0: 0, 1: 1})
    for device, rank in ((0, 4), (1, 2)):
        process.kernel("sgemm", 7, (0, 5 + device), device=device)
        process.mark(rank_mark(RankMark(rank, 8, device, device)), device)
    rows = load(export.write(tmp_path / "a.sqlite")).ranks.to_dicts()
    assert [(row["rank"], row["device"]) for row in rows] == [(2, 1), (4, 0)]


@pytest.mark.parametrize("text", ["rank=5000000000 world=2", "rank=0 world=99999999999999999999"])
def test_a_mark_beyond_any_real_rank_is_none(text: str, tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.mark(f"nsysddp:{text} local=0 device=0", 0)
    process.kernel("sgemm", 7, (0, 5))
    assert identity(export.write(tmp_path / "a.sqlite")) == [(0, "inferred", None)]


def test_known_ranks_leave_their_numbers_to_nobody(tmp_path: Path) -> None:
    paths = [report(tmp_path, "rank0.sqlite", host="a"), report(tmp_path, "other.sqlite", host="b")]
    assert identity(*paths) == [(0, "file_name", None), (1, "inferred", None)]


def test_two_claims_on_one_rank_name_both_reports(tmp_path: Path) -> None:
    paths = [
        report(tmp_path, "rank3.sqlite", host="a"),
        report(tmp_path, "b.sqlite", host="b", env={"RANK": "3"}),
    ]
    with pytest.raises(RankConflict, match=r"rank3\.sqlite and b\.sqlite both claim rank 3"):
        load(paths)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("report_rank12.sqlite", 12),
        ("rank0", 0),
        ("RANK-3.nsys-rep", 3),
        ("a.rank.4.sqlite", 4),
        ("rank1_of_rank2.sqlite", 2),
        ("frank3.sqlite", None),
        ("rank.sqlite", None),
        ("ranking5.sqlite", None),
        ("rank1234567890123.sqlite", None),
        ("report.12.sqlite", None),
    ],
)
def test_ranks_in_file_names(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_hosts_have_aliases_in_natural_order() -> None:
    assert host_aliases([None, "n10", "n2", "n10", None]) == [
        "host-3",
        "host-2",
        "host-1",
        "host-2",
        "host-4",
    ]


@pytest.mark.parametrize("shuffle", [0, 3, 7])
def test_inferred_ranks_follow_hosts_in_natural_order(shuffle: int, tmp_path: Path) -> None:
    paths = [report(tmp_path, f"{host}.sqlite", host=f"node{host}", pid=99 - host) for host in range(1, 13)]
    random.Random(shuffle).shuffle(paths)
    assert load(paths).ranks["pid"].to_list() == list(range(98, 86, -1))


@pytest.mark.parametrize("shuffle", [None, 1, 2])
def test_environments_that_differ_name_no_rank(shuffle: int | None, tmp_path: Path) -> None:
    """They are of several processes, whichever row comes first; what they agree on counts."""
    export = Export()
    process = export.process(env={"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "8"})
    export.capture("PROCESS_1:ENVIRONMENT_VARIABLE", 'RANK="5"')
    export.capture("PROCESS_1:ENVIRONMENT_VARIABLE", 'WORLD_SIZE="8"')
    process.kernel("sgemm", 7, (0, 5))
    assert identity(export.write(tmp_path / "a.sqlite", shuffle=shuffle)) == [(0, "inferred", 8)]
    export.capture("PROCESS_2:ENVIRONMENT_VARIABLE", 'WORLD_SIZE="2"')
    assert identity(export.write(tmp_path / "b.sqlite", shuffle=shuffle)) == [(0, "inferred", None)]


def warned(*paths: Path) -> dict[str, str]:
    return {one.code: one.message for one in load(paths).warnings}


def test_ranks_that_do_not_fit_their_job_are_said(tmp_path: Path) -> None:
    one = report(tmp_path, "a.sqlite", host="a", env={"RANK": "1", "WORLD_SIZE": "2"})
    two = report(tmp_path, "b.sqlite", host="b", env={"RANK": "3", "WORLD_SIZE": "2"})
    other = report(tmp_path, "c.sqlite", host="c", env={"RANK": "2", "WORLD_SIZE": "4"})
    assert warned(one, two) == {"rank_beyond_world_size": "a job of 2 has no rank 3"}
    assert warned(one, other).keys() == {"world_sizes_differ"}
    assert not warned(one)


@pytest.mark.parametrize(
    ("anchors", "starts", "ranks"),
    [
        ((UTC, UTC), (0, 20), 1),
        ((UTC, UTC), (0, 5), 2),  # at the same time: two processes with one pid, in containers
        ((UTC, UTC), (0, 0), 1),
        ((None, None), (0, 5), 1),  # times that are not comparable prove nothing
        ((None, UTC), (0, 5), 1),
    ],
)
def test_one_process_in_two_reports_is_one_rank(
    anchors: tuple[int | None, ...], starts: tuple[float, ...], ranks: int, tmp_path: Path
) -> None:
    paths = []
    for number, (anchor, start) in enumerate(zip(anchors, starts, strict=True)):
        export = Export(utc_epoch_ns=anchor)
        export.process(pid=7).kernel("sgemm", 7, (start, start + 10))
        paths.append(export.write(tmp_path / f"{number}.sqlite"))
    if ranks == 2:
        assert len(identity(*paths)) == 2
    else:
        with pytest.raises(RankConflict, match=r"repeated captures of one rank|copies of one report"):
            load(paths)


@pytest.mark.parametrize("apart", ["rank", "gpu", "host"])
@pytest.mark.parametrize("anchor", [None, UTC])
def test_reports_that_something_tells_apart_are_two_ranks(
    apart: str, anchor: int | None, tmp_path: Path
) -> None:
    """Containers of one host can share pid, device and name of the host."""
    paths = []
    for number in (0, 1):
        export = Export(utc_epoch_ns=anchor, host=f"n{number}" if apart == "host" else "n")
        process = export.process(pid=7, gpu=number if apart == "gpu" else 0)
        process.kernel("sgemm", 7, (0, 10))
        paths.append(
            export.write(tmp_path / (f"rank{number}.sqlite" if apart == "rank" else f"{number}.sqlite"))
        )
    assert [rank for rank, _, _ in identity(*paths)] == [0, 1]


def test_a_process_with_impossible_ids_is_still_a_rank(tmp_path: Path) -> None:
    export = Export()
    export.process(pid=1).kernel("sgemm", 7, (0, 5), device=-3)
    export.process(pid=2).kernel("sgemm", 7, (0, 7), device=2**31 - 1)
    rows = load(export.write(tmp_path / "a.sqlite")).ranks.to_dicts()
    assert {(row["pid"], row["device"]) for row in rows} == {(1, -3), (2, 2**31 - 1)}


# --- clocks -------------------------------------------------------------------------------------------------

Draw = Callable[[Process, int], None]


def two_nodes(
    tmp_path: Path,
    draw: Draw,
    *,
    skew_ms: float = 0,
    anchors: Sequence[int | None] = (UTC, UTC + 5_000 * MS),
    **options: Any,
) -> list[Path]:
    """Two reports of two hosts; the second started 5 s later by its own clock, which is off by ``skew_ms``."""
    paths = []
    for node, anchor in enumerate(anchors):
        export = Export(host=f"node{node}", utc_epoch_ns=anchor, **options)
        process = export.process(pid=7)
        draw(process, node)
        shift = 0 if node == 0 else round(-5_000 * MS - skew_ms * MS)
        paths.append(export.write(tmp_path / f"r{node}.sqlite", shift_ns=shift))
    return paths


IRREGULAR = (1000, 1020, 1045, 1061, 1099, 1140)  # as in training: a regular beat could be shifted by a beat


def six(process: Process, node: int) -> None:
    """Six all-reduces; the first node arrives 3 ms before the other."""
    for at in IRREGULAR:
        process.nccl("AllReduce", 17, (at + 3 * node, at + 10))
        process.kernel("sgemm", 7, (at, at + 2))


@pytest.mark.parametrize("skew", [0, 0.5, -0.5, 40, -3000])
def test_clocks_are_aligned_by_collectives(skew: float, tmp_path: Path) -> None:
    made = tables(*two_nodes(tmp_path, six, skew_ms=skew), "--per", "capture")
    rows = made["rank"]
    assert [row["clock_offset_ns"] for row in rows] == [0, skew * MS]
    assert [row["clock_residual_ns"] for row in rows] == [None, 0]
    assert [row["clock_method"] for row in rows] == ["shared", "collectives"]
    assert [row["exposed_wait_ns"] / MS for row in made["overlap"]] == [6, 0]
    assert [row["exposed_transfer_ns"] / MS for row in made["overlap"]] == [42, 42]
    assert {row["last_rank"] for row in made["collective"]} == {1}


def test_host_ranges_move_with_their_clock(tmp_path: Path) -> None:
    def draw(process: Process, node: int) -> None:
        process.range("step 0", 990, 1200)
        six(process, node)

    rows = tables(*two_nodes(tmp_path, draw, skew_ms=40))
    assert [(row["rank"], row["step"], row["kernels"]) for row in rows["overlap"]] == [
        (0, "step 0", 12),
        (1, "step 0", 12),
    ]
    assert len({row["collective_id"] for row in rows["collective"]}) == 6


def test_equal_anchors_share_a_clock_and_are_never_corrected(tmp_path: Path) -> None:
    def draw(process: Process, node: int) -> None:
        for number in range(6):
            process.nccl("AllReduce", 17, (20 * number, 20 * number + 10 + 0.05 * node))

    paths = []
    for node in (0, 1):
        export = Export(utc_epoch_ns=UTC)
        draw(export.process(pid=7 + node, device=node), node)
        paths.append(export.write(tmp_path / f"r{node}.sqlite"))
    rows = load(paths).ranks.to_dicts()
    assert [(row["clock_offset_ns"], row["clock_method"]) for row in rows] == [(0, "shared")] * 2


def test_without_anchors_collectives_alone_align(tmp_path: Path) -> None:
    made = document(*two_nodes(tmp_path, six, anchors=(None, None)), "--per", "capture")
    rows = made["tables"]["rank"]
    assert rows[1]["clock_offset_ns"] == 5_000 * MS
    assert rows[1]["clock_method"] == "collectives"


def test_nothing_to_compare_leaves_the_anchor_or_nothing(tmp_path: Path) -> None:
    def draw(process: Process, node: int) -> None:
        process.kernel("sgemm", 7, (1000, 1010))

    for anchors, method in (((UTC, UTC + 5_000 * MS), "anchor"), ((None, None), "none")):
        rows = load(two_nodes(tmp_path, draw, anchors=anchors)).ranks.to_dicts()
        assert (rows[1]["clock_method"], rows[1]["clock_residual_ns"]) == (method, None)


@pytest.mark.parametrize(("call", "waits"), [("Broadcast", 0), ("Reduce", 18)])
@pytest.mark.parametrize("anchors", [(None, None), (UTC, UTC + 5_000 * MS)])
def test_where_no_other_kind_is_shared_any_collective_aligns(
    call: str, waits: int, anchors: tuple[int | None, ...], tmp_path: Path
) -> None:
    def draw(process: Process, node: int) -> None:
        for at in IRREGULAR:
            process.nccl(call, 17, (at + 3 * node, at + 10))

    made = tables(*two_nodes(tmp_path, draw, anchors=anchors, skew_ms=-40), "--per", "capture")
    assert {row["clock_method"] for row in made["rank"]} == {"shared", "collectives"}
    # Rank 0 is the root: it needs the data of all in a reduce, and nobody's in a broadcast.
    assert [row["exposed_wait_ns"] / MS for row in made["overlap"]] == [waits, 0]
    assert [row["exposed_transfer_ns"] / MS for row in made["overlap"]] == [60 - waits, 42]


def test_a_root_that_left_early_moves_no_clock(tmp_path: Path) -> None:
    """A small broadcast is over on its root before the others arrive: all-reduces know better."""

    def draw(process: Process, node: int) -> None:
        six(process, node)
        for at in range(2000, 2900, 100):
            process.nccl("Broadcast", 17, (at + 7 * node, at + 7 * node + 0.01), communicator=0xB)

    rows = tables(*two_nodes(tmp_path, draw), "--per", "capture")["rank"]
    assert (rows[1]["clock_offset_ns"], rows[1]["clock_residual_ns"]) == (0, 0)


def chain(tmp_path: Path, *members: Sequence[int], skews: Sequence[float], late: float = 0) -> list[Path]:
    """Reports of as many hosts as there are skews (ms) and one communicator for each set of members.

    In each the n-th member arrives n ms late; the very last ends ``late`` ms after the others.
    """
    paths = []
    for node, skew in enumerate(skews):
        export = Export(host=f"node{node}", utc_epoch_ns=UTC + node * 5_000 * MS)
        process = export.process(pid=7)
        process.kernel("sgemm", 7, (990, 995))
        for number, ranks in enumerate(members):
            for at in IRREGULAR if node in ranks else ():
                start = 200 * number + at
                end = start + 10 + (late if (number, node) == (len(members) - 1, ranks[-1]) else 0)
                process.nccl("AllReduce", 17, (start + ranks.index(node), end), communicator=0xA + number)
        paths.append(
            export.write(tmp_path / f"rank{node}.sqlite", shift_ns=round(-(5_000 * node + skew) * MS))
        )
    return paths


@pytest.mark.parametrize(
    "members", [((0, 1), (1, 2), (2, 3)), ((2, 3), (0, 1), (1, 2)), ((0, 3), (2, 3), (1, 2))]
)
def test_clocks_are_aligned_along_chains(members: Sequence[Sequence[int]], tmp_path: Path) -> None:
    made = tables(*chain(tmp_path, *members, skews=(0, 5, -9, 40)), "--per", "capture")
    assert [row["clock_offset_ns"] / MS for row in made["rank"]] == [0, 5, -9, 40]
    assert [row["clock_residual_ns"] for row in made["rank"]] == [None, 0, 0, 0]
    for row in made["collective"]:
        first = row["rank"] == members[int(str(row["communicator"]), 16) - 0xA][0]
        assert (row["wait_ns"] / MS, row["transfer_ns"] / MS) == ((1, 9) if first else (0, 9))


def test_clocks_that_the_first_does_not_meet_are_aligned_with_each_other(tmp_path: Path) -> None:
    made = tables(*chain(tmp_path, (1, 2), skews=(0, 0, 7)), "--per", "capture")
    assert [(row["clock_method"], row["clock_offset_ns"] / MS) for row in made["rank"]] == [
        ("shared", 0),
        ("anchor", 0),
        ("collectives", 7),
    ]


def test_clocks_that_agree_with_the_first_must_agree_with_each_other(tmp_path: Path) -> None:
    made = tables(*chain(tmp_path, (0, 1), (0, 2), (1, 2), skews=(0, 5, 9), late=0.15), "--per", "capture")
    assert [row["clock_residual_ns"] for row in made["rank"]] == [None, 0, 0.15 * MS]
    told = {row["communicator"]: row["wait_ns"] is not None for row in made["collective"]}
    assert (told["0xa"], told["0xc"]) == (True, False)


def test_ranks_that_share_a_clock_need_no_other(tmp_path: Path) -> None:
    """Two hosts whose clocks do not agree: what ranks of one host do among themselves is told all the same."""
    paths = []
    for node in (0, 1):
        export = Export(host=f"node{node}", utc_epoch_ns=UTC + node)
        for local in (0, 1):
            process = export.process(pid=7 + local, device=local)
            for at in IRREGULAR:
                for communicator, late in ((0xA, 0), (0xB, node), (0xC + node, 0)):
                    start = at + 200 * (communicator - 0xA)
                    process.nccl(
                        "AllReduce", 17, (start + local, start + 10 + late), communicator=communicator
                    )
        paths.append(export.write(tmp_path / f"r{node}.sqlite"))
    rows = tables(*paths, "--per", "capture")["collective"]
    told = {(row["communicator"], row["wait_ns"] is not None) for row in rows}
    assert told == {("0xa", False), ("0xb", False), ("0xc", True), ("0xd", True)}


def noisy(process: Process, node: int) -> None:
    """The ends on the second node are off by up to 4 ms: no constant aligns them."""
    for at, noise in zip(IRREGULAR, (-4, 3, -2, 4, -3, 2), strict=True):
        process.nccl("AllReduce", 17, (at, at + 10 + noise * node))


@pytest.mark.parametrize(("tolerance", "told"), [("100", False), ("1999", False), ("4001", True)])
def test_ends_that_scatter_over_the_tolerance_tell_nothing(
    tolerance: str, told: bool, tmp_path: Path
) -> None:
    made = document(*two_nodes(tmp_path, noisy), "--per", "capture", "--clock-tolerance", tolerance)
    for row in made["tables"]["overlap"]:
        assert (row["exposed_wait_ns"] is not None) == told
        assert row["exposed_communication_ns"] > 0
    for row in made["tables"]["collective"]:
        assert (row["ready_ns"] is not None) == told
    assert ("unmatched_collectives" in codes(made, "warnings")) != told


def test_a_residual_over_the_tolerance_tells_nothing(tmp_path: Path) -> None:
    trace = load(two_nodes(tmp_path, six))
    for residual, told in ((100_000, True), (100_001, False)):
        ranks = trace.ranks.with_columns(pl.Series("clock_residual_ns", [None, residual], dtype=pl.Int64))
        result = analyze(replace(trace, ranks=ranks), Selection(per="capture"))
        assert (result["overlap"]["exposed_wait_ns"].null_count() == 0) == told
        assert set(result["collective"]["match"]) == {
            "sequence" if told else "unmatched:the clocks of the reports differ too much"
        }


def test_shifted_times_have_no_anchor(tmp_path: Path) -> None:
    paths = []
    for node in (0, 1):
        export = Export(host=f"node{node}", utc_epoch_ns=UTC + node * 10**12)
        for row in export.rows["META_DATA_EXPORT"]:
            if row["name"] == "EXPORT_PARAM_TIME_NORMALIZE":
                row["value"] = "true"
        six(export.process(pid=7), node)
        paths.append(export.write(tmp_path / f"r{node}.sqlite"))
    trace = load(paths)
    assert "shifted_times" in {one.code for one in trace.warnings}
    assert trace.ranks["clock_offset_ns"].to_list() == [0, 0]
    assert trace.ranks["clock_method"].to_list() == ["shared", "collectives"]


def test_sessions_decades_apart_are_refused(tmp_path: Path) -> None:
    paths = two_nodes(tmp_path, six, anchors=(0, 1 << 62))
    ran = run("analyze", *paths)
    assert ran.code == 2
    assert "decades" in ran.line


def test_a_clock_per_anchor() -> None:
    assert clocks_of([5, 7, 5, None, None]) == [0, 1, 0, 2, 3]


# --- which collectives are one ------------------------------------------------------------------------------


def job(tmp_path: Path, draw: Draw, ranks: int = 2, **options: Any) -> dict[str, Any]:
    """The document of a run in which every rank of one host draws itself."""
    export = Export(**options)
    for rank in range(ranks):
        draw(export.process(device=rank), rank)
    return document(export.write(tmp_path / "a.sqlite"), "--per", "capture")


def groups(made: dict[str, Any]) -> list[set[tuple[int, float]]]:
    """Matched collectives as sets of (rank, start in ms)."""
    found: dict[int, set] = {}
    for row in made["tables"]["collective"]:
        if row["collective_id"] is not None:
            found.setdefault(row["collective_id"], set()).add((row["rank"], row["start_ns"] / MS))
    return list(found.values())


def matches(made: dict[str, Any]) -> set[str]:
    return {row["match"] for row in made["tables"]["collective"]}


@pytest.mark.parametrize("first", range(1, 5))
def test_a_capture_that_began_later_on_one_rank(first: int, tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        for number in range(first if rank else 0, 9):
            process.nccl("AllReduce", 17, (20 * number + rank, 20 * number + 10), bytes=4096)

    made = job(tmp_path, draw)
    assert groups(made) == [{(0, 20 * n), (1, 20 * n + 1)} for n in range(first, 9)]
    assert "sequence_offset" in codes(made, "warnings")
    left = [row["match"] for row in made["tables"]["collective"] if row["ready_ns"] is None]
    assert left == ["unmatched:missing on a rank"] * first


@pytest.mark.parametrize("domain", [None, "mine"])
def test_a_users_range_named_like_a_call_of_nccl_is_none(domain: str | None, tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.range("ncclAllReduce", 10 * rank, 10 * rank + 8, domain=domain)
        process.nccl("AllReduce", 17, (10 * rank + 2, 50), bytes=4096)

    made = job(tmp_path, draw)
    assert matches(made) == {"sequence"}
    assert {row["bytes"] for row in made["tables"]["collective"]} == {4096}


def test_calls_of_nccl_whose_domain_has_no_name_are_calls(tmp_path: Path) -> None:
    export = Export()
    for rank in (0, 1):
        export.process(device=rank).nccl("AllReduce", 17, (rank, 50), bytes=4096)
    export.rows["NVTX_EVENTS"] = [row for row in export.rows["NVTX_EVENTS"] if row["eventType"] != 75]
    assert matches(document(export.write(tmp_path / "a.sqlite"), "--per", "capture")) == {"sequence"}


def test_several_communicators_do_not_mix(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        pair = 0xA if rank < 2 else 0xB
        for number in range(3):
            process.nccl("AllReduce", 17, (20 * number, 20 * number + 10), communicator=0xF)
            process.nccl("AllReduce", 18, (20 * number + 1 + rank, 20 * number + 8), communicator=pair)

    made = job(tmp_path, draw, ranks=4)
    sizes = sorted(len(one) for one in groups(made))
    assert sizes == [2] * 6 + [4] * 3
    by = {(row["communicator"], row["group_size"]) for row in made["tables"]["collective"]}
    assert by == {("0xf", 4), ("0xa", 2), ("0xb", 2)}


def test_sizes_that_differ_are_no_match(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        for number in range(6):
            process.nccl(
                "AllReduce", 17, (20 * number, 20 * number + 10), bytes=4096 * (1 + rank * (number == 2))
            )

    made = job(tmp_path, draw)
    assert matches(made) <= {
        "sequence",
        "unmatched:kind or size differs between ranks",
        "unmatched:the sequences of the ranks do not fit together",
    }
    assert len(groups(made)) < 6


def test_a_world_larger_than_what_was_captured(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        export = Export(host="n", utc_epoch_ns=UTC)
        process = export.process(pid=7 + rank, device=rank, env={"RANK": str(rank), "WORLD_SIZE": "4"})
        process.nccl("AllReduce", 17, (0, 10))
        paths.append(export.write(tmp_path / f"r{rank}.sqlite"))
    made = document(*paths, "--per", "capture")
    assert matches(made) == {"unmatched:ranks of the communicator are missing"}
    for row in made["tables"]["overlap"]:
        assert row["exposed_wait_ns"] is None
        assert row["exposed_unsplit_ns"] == row["exposed_communication_ns"]
    assert {row["group_size"] for row in made["tables"]["collective"]} == {None}


def test_one_rank_alone_cannot_tell_wait_from_transfer(tmp_path: Path) -> None:
    made = job(tmp_path, lambda process, rank: process.nccl("AllReduce", 17, (0, 10)) and None, ranks=1)
    assert matches(made) == {"unmatched:only one rank of the communicator was captured"}
    (row,) = made["tables"]["collective"]
    assert (row["wait_ns"], row["busbw_gbps"], row["last_rank"]) == (None, None, None)


def test_ends_that_lie_apart_are_no_collective(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl("AllReduce", 17, (0 + 500 * rank, 10 + 500 * rank))

    made = job(tmp_path, draw)
    assert not groups(made)
    assert not {"sequence", "order"} & matches(made)


def test_a_collective_cannot_have_ended_before_its_last_rank_arrived(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        for number, at in enumerate(IRREGULAR):
            late = rank == 1 and number == 3
            process.nccl("AllReduce", 17, (at + 10.5, at + 10.9) if late else (at, at + 10))

    made = job(tmp_path, draw)
    assert groups(made) == [{(0, at), (1, at)} for number, at in enumerate(IRREGULAR) if number != 3]


@pytest.mark.parametrize(
    ("kind", "size", "factor"),
    [
        ("AllReduce", 8, 2 * 3 / 4),
        ("AllGather", 8 * 4, 3 / 4),
        ("ReduceScatter", 8 * 4, 3 / 4),
        ("Broadcast", 8, 1),
        ("Reduce", 8, 1),
    ],
)
def test_bandwidth_is_that_of_the_last_arriver(kind: str, size: int, factor: float, tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl(kind, 17, (rank, 10), bytes=8 * 10**6)

    rows = job(tmp_path, draw, ranks=4)["tables"]["collective"]
    assert {row["bytes"] for row in rows} == {size * 10**6}
    assert {row["algbw_gbps"] for row in rows} == {size * 10**6 / (7 * MS)}
    assert [row["busbw_gbps"] for row in rows] == pytest.approx([size * 10**6 / (7 * MS) * factor] * 4)
    # Of a broadcast nobody waits for any but the root, rank 0; the root of a reduce waits for all.
    last = {"Broadcast": [0, 1, 2, 3], "Reduce": [3, 1, 2, 3]}.get(kind, [3] * 4)
    assert [row["last_rank"] for row in rows] == last


@pytest.mark.parametrize("nested", [0, 1, 2])
def test_a_group_of_all_reduces_is_one_kernel(nested: int, tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        members = [("AllReduce", {"bytes": 100}), ("AllReduce", {"bytes": 20})]
        process.nccl_group(members, 17, (20 + rank, 30), launched=(0, 10), nested=nested)
        process.nccl("AllReduce", 17, (40 + rank, 50), bytes=7)

    made = job(tmp_path, draw)
    rows = [row for row in made["tables"]["collective"] if row["rank"] == 0]
    assert {row["kind"] for row in rows} == {"all_reduce"}
    assert [(row["bytes"], row["sequence"]) for row in rows] == [(120, 0), (7, 2)]
    assert groups(made) == [{(0, 20), (1, 21)}, {(0, 40), (1, 41)}]


def test_a_group_whose_start_was_not_captured_carries_nothing(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl_call("AllReduce", (0, 1))
        process.nccl_call("GroupEnd", (2, 4))
        process.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 17, (5 + rank, 10), launched=3)

    made = job(tmp_path, draw)
    assert {row["bytes"] for row in made["tables"]["collective"]} == {None}
    assert matches(made) == {"order"}


def test_send_and_receive_along_a_pipeline(tmp_path: Path) -> None:
    """Rank r sends to r + 1; the middle ranks first receive. Ready is the later of the two kernels of a pair."""

    def draw(process: Process, rank: int) -> None:
        at = 10 * rank
        if rank:
            process.nccl("Recv", 17, (at - 10, at), peer=rank - 1, bytes=1000)
        if rank < 2:
            process.nccl("Send", 18, (at + 4, at + 10), peer=rank + 1, bytes=1000)

    made = job(tmp_path, draw, ranks=3)
    assert groups(made) == [{(0, 4), (1, 0)}, {(1, 14), (2, 10)}]
    rows = {(row["rank"], row["start_ns"] / MS): row for row in made["tables"]["collective"]}
    assert {row["kind"] for row in rows.values()} == {"send_recv"}
    assert [rows[1, 0][name] / MS for name in ("ready_ns", "wait_ns", "transfer_ns")] == [4, 4, 6]
    assert [rows[0, 4][name] / MS for name in ("ready_ns", "wait_ns", "transfer_ns")] == [4, 0, 6]
    assert rows[2, 10]["last_rank"] == 1
    assert {row["bytes"] for row in rows.values()} == {1000}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_an_all_to_all_of_sends_and_receives(ranks: int, tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        for number in range(3):
            members = [
                (way, {"peer": peer, "bytes": 100}) for peer in range(ranks) for way in ("Send", "Recv")
            ]
            at = 100 * number
            process.nccl_group(members, 17, (at + 20 + rank, at + 30), launched=(at, at + 10))

    made = job(tmp_path, draw, ranks=ranks)
    rows = made["tables"]["collective"]
    assert {row["kind"] for row in rows} == {"all_to_all"}
    assert groups(made) == [{(rank, 100 * n + 20 + rank) for rank in range(ranks)} for n in range(3)]
    assert {row["bytes"] for row in rows} == {100 * ranks}
    assert {row["last_rank"] for row in rows} == {ranks - 1}
    assert [row["wait_ns"] / MS for row in rows if row["rank"] == 0] == [ranks - 1] * 3


def test_a_send_whose_receiver_was_not_captured(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl("Send" if rank == 0 else "Recv", 17, (rank, 10), peer=1 - rank)
        if rank == 0:
            process.nccl("Send", 17, (20, 30), peer=1)

    made = job(tmp_path, draw)
    assert groups(made) == [{(0, 0), (1, 1)}]
    assert "unmatched:the counterpart was not captured" in matches(made)


@pytest.mark.parametrize("grouped", [True, False])
def test_one_process_that_drives_two_gpus(grouped: bool, tmp_path: Path) -> None:
    export = Export()
    process = export.process(gpus={0: 0, 1: 1})
    for number in range(3):
        at = 100 * number
        if grouped:
            for part, name in enumerate(["GroupStart", "AllReduce", "AllReduce", "GroupEnd"]):
                process.nccl_call(name, (at + 2 * part, at + 2 * part + 2), bytes=64)
        for device in (0, 1):
            launch = at + 6.5 + 0.1 * device if grouped else at + 6 + 2 * device
            correlation = process.call("cuLaunchKernelEx", (launch, launch + 0.01))
            if not grouped:
                process.nccl_call("AllReduce", (launch - 0.1, launch + 0.1), bytes=64)
            process.kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                17,
                (at + 20 + 3 * device, at + 30),
                device=device,
                correlation=correlation,
            )
    made = document(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert groups(made) == [{(0, 100 * n + 20), (1, 100 * n + 23)} for n in range(3)]
    assert {row["bytes"] for row in made["tables"]["collective"]} == {64}
    assert [row["exposed_wait_ns"] / MS for row in made["tables"]["overlap"]] == [9, 0]


def test_without_payloads_equal_sequences_are_matched_by_order(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        for number in range(4):
            at = 50 * number
            process.nccl("AllReduce", 17 + 100 * rank, (at + rank, at + 10), payload=False)
            process.nccl("AllGather", 18 + 100 * rank, (at + 20 + rank, at + 30), payload=False)

    made = job(tmp_path, draw)
    assert matches(made) == {"order"}
    assert len(groups(made)) == 8
    assert any("matched over ranks by stream, order and kind" in text for text in made["assumptions"])
    assert {row["bytes"] for row in made["tables"]["collective"]} == {None}


def test_without_payloads_unequal_sequences_stay_unmatched(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        for number in range(4 + rank):
            process.nccl("AllReduce", 17, (50 * number + rank, 50 * number + 10), payload=False)

    made = job(tmp_path, draw)
    assert matches(made) == {"unmatched:the ranks do not show the same sequence"}
    warning = next(one for one in made["warnings"] if one["code"] == "unmatched_collectives")
    assert warning["count"] == 9


def test_without_payloads_sends_among_three_are_not_guessed(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.nccl("Send", 17, (rank, 10), payload=False)

    assert matches(job(tmp_path, draw, ranks=3)) == {"unmatched:who sends to whom is not recorded"}


def test_copies_inside_a_collective_call_are_communication(tmp_path: Path) -> None:
    def draw(process: Process, rank: int) -> None:
        process.kernel("sgemm", 7, (0, 10))
        process.nccl_call("AllGather", (20, 30))
        process.copy("PtoP", (40, 50), launched=25, stream=19)
        process.copy("PtoP", (60, 70), launched=35, stream=19)
        process.copy("HtoD", (80, 90), launched=26, stream=19)

    made = job(tmp_path, draw)
    for row in made["tables"]["overlap"]:
        assert row["communication_ns"] == 10 * MS
        assert row["p2p_copy_ns"] == 10 * MS
        assert row["exposed_memory_ns"] == 20 * MS
    assert any("peer-to-peer copies" in text for text in made["assumptions"])


@pytest.mark.parametrize(
    ("calls", "peers", "kind"),
    [
        ([], [], None),
        (["ncclAllReduce"], [None], "all_reduce"),
        (["ncclAllReduce", "ncclAllGather"], [None, None], "grouped"),
        (["ncclSend"], [1], "send_recv"),
        (["ncclSend", "ncclRecv"], [1, 1], "send_recv"),
        (["ncclSend", "ncclRecv"] * 2, [0, 0, 1, 1], "all_to_all"),
        (["ncclSend", "ncclRecv"] * 2, [1, 2, 1, 2], "send_recv"),
        (["ncclSend", "ncclRecv"] * 2, [None] * 4, "all_to_all"),
        (["ncclSend", "ncclSend"], [0, 1], "send_recv"),
        (["ncclBcast"], [None], "broadcast"),
        (["ncclAllToAll"], [None], "all_to_all"),
    ],
)
def test_kind_of_grouped_operations(calls: list[str], peers: list[int | None], kind: str | None) -> None:
    assert kind_of(calls, peers) == kind


@pytest.mark.parametrize(
    ("kind", "calls", "sizes", "ranks", "size"),
    [
        ("all_reduce", ["ncclAllReduce"], [8], 4, 8),
        ("all_gather", ["ncclAllGather"], [8], 4, 32),
        ("all_gather", ["ncclAllGather"], [8], None, None),
        ("all_reduce", ["ncclAllReduce"] * 2, [8, 4], 4, 12),
        ("all_reduce", ["ncclAllReduce"] * 2, [8, None], 4, None),
        ("send_recv", ["ncclSend", "ncclRecv"], [8, 5], 2, 8),
        ("grouped", ["ncclAllReduce", "ncclAllGather"], [8, 4], 2, None),
        ("all_reduce", [], [], 2, None),
    ],
)
def test_message_sizes(kind: str, calls: list[str], sizes: list, ranks: int | None, size: int | None) -> None:
    assert message_bytes(kind, calls, sizes, ranks) == size


# --- steps and phases ---------------------------------------------------------------------------------------


def stepped(tmp_path: Path, draw: Callable[[Process], None]) -> dict[str, Any]:
    export = Export()
    draw(export.process())
    return document(export.write(tmp_path / "a.sqlite"))


def test_a_prefetch_does_not_pull_its_step_forward(tmp_path: Path) -> None:
    """A copy launched for step 1 runs while step 0 still computes."""

    def draw(process: Process) -> None:
        process.range("step 0", 0, 50)
        process.range("step 1", 50, 100)
        process.kernel("a", 7, (10, 80), launched=5)
        process.copy("HtoD", (60, 65), launched=52, stream=9)
        process.kernel("b", 7, (80, 120), launched=60)

    rows = stepped(tmp_path, draw)["tables"]["overlap"]
    assert [row["window_ns"] / MS for row in rows] == [70, 40]


def test_communication_of_a_step_under_the_next_is_hidden_there(tmp_path: Path) -> None:
    def draw(process: Process) -> None:
        process.range("step 0", 0, 50)
        process.range("step 1", 50, 100)
        process.kernel("a", 7, (0, 40))
        process.nccl("AllReduce", 17, (30, 70))
        process.kernel("b", 7, (50, 100))

    rows = stepped(tmp_path, draw)["tables"]["overlap"]
    assert [row["communication_ns"] / MS for row in rows] == [20, 20]
    assert [row["hidden_communication_ns"] / MS for row in rows] == [10, 20]
    assert [row["collectives"] for row in rows] == [1, 0]


def test_two_threads_in_a_step_leave_a_third_without_one(tmp_path: Path) -> None:
    def draw(process: Process) -> None:
        process.range("step 0", 0, 50)
        process.range("step 1", 0, 50, thread=5)
        process.kernel("a", 7, (10, 20))
        process.kernel("b", 7, (20, 30), thread=5)
        process.kernel("c", 7, (30, 40), thread=6)

    rows = stepped(tmp_path, draw)["tables"]["overlap"]
    assert [(row["step"], row["kernels"]) for row in rows] == [("step 0", 1), ("step 1", 1)]


def test_a_nested_step_is_a_part_of_the_outer(tmp_path: Path) -> None:
    def draw(process: Process) -> None:
        process.range("step 0", 0, 50)
        process.range("iteration 0", 5, 45)
        process.kernel("a", 7, (10, 20))

    rows = stepped(tmp_path, draw)["tables"]["overlap"]
    assert [row["step"] for row in rows] == ["step 0"]


def test_steps_of_one_name_are_told_apart_by_their_order(tmp_path: Path) -> None:
    def draw(process: Process) -> None:
        for epoch in range(2):
            for step in range(2):
                at = 100 * epoch + 50 * step
                process.range(f"step {step}", at, at + 50)
                process.kernel("a", 7, (at, at + 10 + step))

    rows = stepped(tmp_path, draw)["tables"]["overlap"]
    assert [row["step"] for row in rows] == ["step 0", "step 1"] * 2
    assert [row["step_index"] for row in rows] == [0, 1, 2, 3]


def test_a_step_without_gpu_work_is_counted(tmp_path: Path) -> None:
    def draw(process: Process) -> None:
        process.range("step 0", 0, 50)
        process.range("step 1", 50, 90)
        process.kernel("a", 7, (0, 10))

    made = stepped(tmp_path, draw)
    assert [row["step"] for row in made["tables"]["overlap"]] == ["step 0"]
    assert "steps_without_gpu_events" in codes(made, "warnings")


def test_events_without_a_launch_go_by_time_and_are_counted(tmp_path: Path) -> None:
    def draw(process: Process) -> None:
        process.range("step 0", 0, 50)
        process.range("step 1", 50, 100)
        process.kernel("a", 7, (0, 40))
        process.kernel("b", 7, (50, 90))
        process.kernel("lost", 8, (60, 200), launched=None)
        process.kernel("beyond", 8, (300, 310), launched=None)

    made = stepped(tmp_path, draw)
    assert [row["kernels"] for row in made["tables"]["overlap"]] == [1, 2]
    assert [row["window_ns"] / MS for row in made["tables"]["overlap"]] == [50, 40]
    (warning,) = (one for one in made["warnings"] if one["code"] == "events_without_launch")
    assert warning["count"] == 2
    (outside,) = made["tables"]["outside_steps"]
    assert (outside["count"], outside["total_ns"] / MS) == (2, 120)


def test_events_of_a_rank_without_any_launch_are_in_no_step(tmp_path: Path) -> None:
    export = Export()
    for line, known in ((0, True), (1, False)):
        process = export.process(device=line)
        process.range("step 0", 0, 50)
        process.kernel("a", 7, (0, 40), **({} if known else {"launched": None}))
    made = document(export.write(tmp_path / "a.sqlite"))
    assert [(row["rank"], row["step"]) for row in made["tables"]["overlap"]] == [(0, "step 0")]
    assert {"events_without_launch", "rank_without_window"} & codes(made, "warnings") == {
        "rank_without_window"
    }


def test_the_first_phase_in_which_a_rank_fell_behind(tmp_path: Path) -> None:
    export = Export()
    for rank in (0, 1):
        process = export.process(device=rank)
        process.range("step 0", 0, 100)
        process.range("forward", 0, 40)
        process.range("backward", 40, 90)
        process.kernel("sgemm", 7, (0, 80))
        process.nccl("AllReduce", 17, (20 + 5 * (1 - rank), 30))
        process.nccl("AllReduce", 17, (60 + 9 * rank, 75))
        process.nccl("AllReduce", 17, (80 + 4 * rank, 88))
    rows = {row["rank"]: row for row in tables(export.write(tmp_path / "a.sqlite"))["straggler"]}
    assert [(rows[rank]["first_phase"], rows[rank]["collectives_last"]) for rank in (0, 1)] == [
        ("forward", 1),
        ("backward", 2),
    ]
    assert [rows[rank]["arrival_skew_sum_ns"] / MS for rank in (0, 1)] == [5, 13]
    assert [rows[rank]["arrival_skew_max_ns"] / MS for rank in (0, 1)] == [5, 9]
    assert [rows[rank]["imposed_wait_ns"] / MS for rank in (0, 1)] == [5, 13]


def test_a_tail_is_that_of_the_last_backward(tmp_path: Path) -> None:
    """Gradient accumulation: two backward ranges; a hook's own kernel after the last collective is no backward."""

    def draw(process: Process) -> None:
        process.range("step 0", 0, 200)
        process.range("backward", 0, 40)
        process.range("backward", 60, 110)
        process.kernel("b1", 7, (0, 50))
        process.nccl("AllReduce", 17, (30, 58))
        process.kernel("b2", 7, (60, 100))
        process.nccl("AllReduce", 17, (90, 130))
        process.kernel("decompress", 7, (130, 140), launched=105)

    (row,) = stepped(tmp_path, draw)["tables"]["overlap"]
    assert row["tail_communication_ns"] / MS == 30
    assert row["tail_wait_ns"] is None  # one rank alone


def test_no_backward_is_no_tail(tmp_path: Path) -> None:
    def draw(process: Process) -> None:
        process.range("step 0", 0, 50)
        process.nccl("AllReduce", 17, (10, 20))

    (row,) = stepped(tmp_path, draw)["tables"]["overlap"]
    assert [row[f"tail_{name}_ns"] for name in ("communication", "wait", "transfer")] == [None] * 3


# --- reading ------------------------------------------------------------------------------------------------


def test_impossible_times_are_left_out_and_counted(tmp_path: Path) -> None:
    export = Export(unit="ns")
    process = export.process()
    process.kernel("a", 7, (0, 100))
    process.kernel("b", 7, (50, 40), launched=1)
    process.kernel("c", 7, (0, 1 << 62), launched=2)
    made = document(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert made["tables"]["overlap"][0]["window_ns"] == 100
    (warning,) = (one for one in made["warnings"] if one["code"] == "impossible_times")
    assert warning["count"] == 2


def test_ranges_with_impossible_times_are_left_out_and_counted(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    process.range("step 0", 0, 20)
    process.range("step 1", 40, 30)
    process.kernel("a", 7, (0, 10))
    made = document(export.write(tmp_path / "a.sqlite"))
    assert [row["step"] for row in made["tables"]["overlap"]] == ["step 0"]
    assert [one["count"] for one in made["warnings"] if one["code"] == "impossible_range_times"] == [1]


@pytest.mark.parametrize("span", [(50, 40), (-(1 << 61), 0), (0, 1 << 61)])
def test_shapes_stay_with_their_kernels_where_times_are_impossible(
    span: tuple[int, int], tmp_path: Path
) -> None:
    export = Export(unit="ns")
    process = export.process()
    for number, at in enumerate([(0, 10), span, (20, 30), (-(1 << 61) + 1, -(1 << 61) + 2)]):
        process.kernel("a", 7, at, launched=number, gridX=number)
    shapes = load(export.write(tmp_path / "a.sqlite"), shapes=True).shapes
    assert shapes is not None
    assert shapes["grid"].to_list() == ["3x1x1", "0x1x1", "2x1x1"]


def test_nothing_but_impossible_times(tmp_path: Path) -> None:
    export = Export(unit="ns")
    export.process().kernel("b", 7, (50, 40), launched=1)
    ran = run("analyze", export.write(tmp_path / "a.sqlite"))
    assert ran.code == 4
    assert ran.line


def test_a_correlation_id_may_be_huge_and_repeated(tmp_path: Path) -> None:
    """A runtime call around a driver call of one id: the outer one counts."""
    export = Export()
    process = export.process(first_correlation=1 << 40)
    process.range("step 0", 0, 50)
    process.range("step 1", 50, 100)
    outer = process.call("cudaLaunchKernel_v7000", (40, 60))
    process.call("cuLaunchKernel", (55, 58), correlation=outer)
    process.kernel("a", 7, (70, 80), correlation=outer)
    process.kernel("b", 7, (80, 90), correlation=3, launched=None)
    process.call("cuLaunchKernel", (95, 96), correlation=3)
    rows = tables(export.write(tmp_path / "a.sqlite"))["overlap"]
    assert [(row["step"], row["kernels"]) for row in rows] == [("step 0", 1), ("step 1", 1)]


def test_no_report_at_all() -> None:
    from nsysddp.model.errors import UsageError

    with pytest.raises(UsageError):
        load()
    with pytest.raises(UsageError):
        load([])


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    from nsysddp.model.errors import AnalysisError

    trace = load(report(tmp_path))
    with pytest.raises(AnalysisError, match="no rank 9"):
        trace.rows_of(9)


def test_a_file_that_vanishes_while_it_is_hashed(tmp_path: Path) -> None:
    from nsysddp.ingest.report import open_report

    path = report(tmp_path)
    with open_report(path) as opened:
        path.unlink()
        with pytest.raises(ReportError):
            assert opened.sha256


# --- what nsys itself said ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "Not all CUDA events might have been collected.",
        "No NVTX events collected. Does the process use NVTX?",
        "CUDA profiling might have not been started correctly.",
        "Number of CUPTI events produced: \t1033, CUPTI buffers: 50.",
        "The cudaProfilerStart API was ignored 1 times due to configuration settings; Note that, when requested, only "
        "the first pair of cudaProfilerStart/Stop APIs, after the collection is started, will be effective.",
        "Unable to collect CPU kernel IP/backtrace samples. perf event paranoid level is 2. \nChange the paranoid "
        "level to 1 to enable CPU kernel sample collection.\n"
        "Try\nsudo sh -c 'echo 1 >/proc/sys/kernel/perf_event_paranoid'"
        "\n to change the paranoid level to 1.",
        "Loaded CUPTI library: <path>",
        WITHHELD,
    ],
)
def test_a_message_of_known_form_is_told_with_its_numbers(message: str) -> None:
    assert public(message) == message


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Loaded CUPTI library: /opt/alice smith/libcupti.so.13", "Loaded CUPTI library: <path>"),
        (
            "Process was launched by the profiler, see alice and stderr.log for program output",
            "Process was launched by the profiler, see <path> and stderr.log for program output",
        ),
        ("Loaded CUPTI library: a\nalice", WITHHELD),
        ("Not all CUDA events might have been collected. alice", WITHHELD),
        ("Number of NVTX events collected: \u0661.", WITHHELD),
        ("alice", WITHHELD),
        ("", WITHHELD),
    ],
)
def test_of_any_other_message_nothing_is_told(message: str, told: str) -> None:
    assert public(message) == told


# --- hashes -------------------------------------------------------------------------------------------------


def test_a_hash_begun_ahead_is_the_files_and_is_used_once(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * 100_000)
    (tmp_path / "folder").mkdir()
    hash_ahead([path, tmp_path / "folder", tmp_path / "missing"])
    first = hashing_of(path)
    first.pause()  # waiting for the result goes on
    assert first.result() == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(b"another")
    assert hashing_of(path).result() == hashlib.sha256(b"another").hexdigest()
    assert hashing_of(tmp_path / "missing").result() is None


def test_a_hash_begun_ahead_is_not_that_of_a_file_written_since(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")
    hash_ahead([path])
    path.write_bytes(b"after it")
    assert sha256_of(path) == hashlib.sha256(b"after it").hexdigest()
    with pytest.raises(FileNotFoundError):
        sha256_of(tmp_path / "missing")
