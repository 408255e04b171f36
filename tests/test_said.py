"""What the job itself calls its groups of ranks, beside what they look like."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builder import Export
from simulation.export import write
from simulation.jobs import simulate
from test_communicators import MIB, asked, drawn, job

from nsysddp import annotate
from nsysddp.ddp import annotate as inside
from nsysddp.model.markers import GroupMark, group_mark, named_group, parse_group_mark
from nsysddp.questions.communicators.said import role_of_name

TENSOR = [("AllReduce", "forward", 8 * MIB), ("AllReduce", "backward", 8 * MIB)]
DATA = [("AllReduce", "backward", 24 * MIB)]
UNCLEAR = [("AllReduce", "forward", 8192), ("AllReduce", "backward", 24 * MIB)]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("mesh_dp", "data"),
        ("mesh_dp_replicate", "replicate"),
        ("mesh_dp_shard", "shard"),
        ("mesh_dp_shard_cp", "shard"),
        ("mesh_fsdp", "shard"),
        ("mesh_tp", "tensor"),
        ("mesh_dp_cp", "data"),
        ("mesh_dp_tp", None),
        ("mesh_dim_0", None),
        ("default_pg", None),
        ("FSDP::all_gather", "shard"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("MODEL_PARALLEL_GROUP", None),
        ("EMBEDDING_GROUP", None),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", None),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tensor"),
        ("depth_group", None),
    ],
)
def test_a_name_of_a_group_tells_its_role_or_none(name: str, role: str | None) -> None:
    assert role_of_name(name) == role


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("all_reduce mesh_tp", "mesh_tp"),
        ("forward (TENSOR_MODEL_PARALLEL_GROUP)", "TENSOR_MODEL_PARALLEL_GROUP"),
        ("FSDP::all_gather (layers.3), op_id = 17", "FSDP::all_gather"),
        ("all_reduce pg_desc=mesh_dp", "mesh_dp"),
        ('allreduce, process_group: "experts"', "experts"),
        ("group_name=tp", "tp"),
        ("record_param_comms, op_id = 993823", None),
        ("nccl:all_reduce, op_id = 5, sizes = [[4]]", None),
        ("Optimizer.param_group=0", None),
        ("my_mesh_tp", None),
        ("FSDP::all_gather_copy_out", None),
        ("default_pg_options", None),
        ("step 4", None),
    ],
)
def test_a_range_names_a_group_only_in_the_forms_in_use(text: str, name: str | None) -> None:
    assert named_group(text) == name


@pytest.mark.parametrize(
    "ranks", [(0,), (0, 1), (1, 3, 5, 7), tuple(range(512)), tuple(range(3, 512, 8)), (0, 1, 2, 9, 12, 40)]
)
def test_a_mark_of_a_group_is_read_as_it_was_written(ranks: tuple[int, ...]) -> None:
    text = group_mark(GroupMark("mesh_dp", ranks))
    assert parse_group_mark(text) == GroupMark("mesh_dp", ranks)
    assert len(text) < 60


@pytest.mark.parametrize("ranks", ["", "3-1", "0-9999999", "0-8:0", "1,,2", "a", "0-4:2:2", "1,2-"])
def test_a_mark_with_impossible_ranks_is_none(ranks: str) -> None:
    assert parse_group_mark(f"nsysddp:group=x ranks={ranks}") is None


def named(path: Path, *, ranges: str | None = None, marks: tuple[str, ...] = ()) -> Path:
    """The drawn run with a range around every launch of the first 5 ms of a phase, or marks on every rank."""
    import sqlite3

    with sqlite3.connect(path) as connection:
        tids = [row[0] for row in connection.execute("SELECT DISTINCT globalTid FROM NVTX_EVENTS")]
        add = "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES (?, ?, ?, ?, ?, 0)"
        for tid in tids:
            for text in marks:
                connection.execute(add, (1_000_000, None, 34, text, tid))
            if ranges:
                calls = connection.execute(
                    "SELECT start, end FROM NVTX_EVENTS WHERE globalTid = ? AND domainId = 1 AND eventType = 59",
                    (tid,),
                ).fetchall()
                for start, end in calls:
                    connection.execute(add, (start - 10, end + 10, 59, ranges, tid))
    return path


def only(path: Path) -> dict[str, Any]:
    """The one group of a run."""
    (row,) = asked(path)["communicator"].to_dicts()
    return row


def test_a_range_around_the_launches_says_what_a_group_is_for(tmp_path: Path) -> None:
    before = drawn(tmp_path, [range(4)], UNCLEAR)
    assert only(before)["role"] is None
    row = only(named(before, ranges="all_reduce TENSOR_MODEL_PARALLEL_GROUP"))
    assert (row["role"], row["said"], row["inferred"]) == ("tensor", '"TENSOR_MODEL_PARALLEL_GROUP"', None)
    assert row["evidence"].startswith(
        'said by the job: "TENSOR_MODEL_PARALLEL_GROUP"; what it does tells no role'
    )
    assert row["is_contradicted"] is False


def test_a_mark_says_what_the_group_of_its_ranks_is_called(tmp_path: Path) -> None:
    marks = ("nsysddp:group=mesh_tp ranks=0-3", "nsysddp:group=mesh_dp ranks=0,1")
    row = only(named(drawn(tmp_path, [range(4)], UNCLEAR), marks=marks))
    assert (row["role"], row["said"]) == ("tensor", '"mesh_tp"')


def test_a_mark_of_more_ranks_than_the_group_has_is_of_another_one(tmp_path: Path) -> None:
    """Of eight ranks four were captured: a communicator of these four is not the group of all eight."""
    path = named(drawn(tmp_path, [range(4)], UNCLEAR), marks=("nsysddp:group=mesh_tp ranks=0-7",))
    row = only(path)
    assert (row["size"], row["role"], row["said"]) == (4, None, None)


def test_what_the_job_says_and_what_it_does_are_both_shown_where_they_differ(tmp_path: Path) -> None:
    path = named(drawn(tmp_path, [range(4)], DATA), ranges="mesh_tp")
    result = asked(path)
    row = result["communicator"].to_dicts()[0]
    assert (row["role"], row["inferred"], row["is_contradicted"]) == ("tensor", "data", True)
    assert "but it looks like data: " in row["evidence"]
    (said,) = [finding.message for finding in result.findings if finding.code == "role_contradicted"]
    assert (
        said == 'Group 0 (ranks 0 to 3) is tensor by its name ("mesh_tp"), but what it does looks like data.'
    )


def test_a_name_that_tells_no_role_leaves_the_inferred_one(tmp_path: Path) -> None:
    row = only(named(drawn(tmp_path, [range(4)], DATA), marks=("nsysddp:group=default_pg ranks=0-3",)))
    assert (row["role"], row["said"], row["is_contradicted"]) == ("data", '"default_pg"', False)


def test_several_names_of_the_same_ranks_decide_nothing(tmp_path: Path) -> None:
    marks = ("nsysddp:group=mesh_tp ranks=0-3", "nsysddp:group=mesh_cp ranks=0-3")
    row = only(named(drawn(tmp_path, [range(4)], DATA), marks=marks))
    assert (row["role"], row["said"], row["is_contradicted"]) == ("data", '"mesh_cp", "mesh_tp"', False)
    assert only(named(drawn(tmp_path, [range(4)], UNCLEAR), marks=marks))["role"] is None


def test_a_range_names_its_own_communicator_where_marks_name_all_of_its_ranks(tmp_path: Path) -> None:
    marks = ("nsysddp:group=mesh_tp ranks=0-3", "nsysddp:group=mesh_cp ranks=0-3")
    row = only(named(drawn(tmp_path, [range(4)], UNCLEAR), ranges="mesh_cp", marks=marks))
    assert (row["role"], row["said"]) == ("context", '"mesh_cp", "mesh_tp"')


def test_data_parallelism_that_shards_is_said_more_exactly(tmp_path: Path) -> None:
    scatter = [("AllGather", "forward", 4 * MIB), ("ReduceScatter", "backward", 4 * MIB)]
    row = only(named(drawn(tmp_path, [range(4)], scatter), ranges="mesh_dp"))
    assert (row["role"], row["inferred"], row["is_contradicted"]) == ("shard", "shard", False)
    assert "more exactly shard" in row["evidence"]


def test_a_launch_after_the_range_is_not_in_it(tmp_path: Path) -> None:
    export = Export()
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 100)
        process.range("forward", 0, 50)
        process.range("backward", 50, 100)
        process.range("mesh_tp", 10, 20)
        process.kernel("gemm", at=(0, 90))
        process.nccl("AllReduce", 17, (60, 70), bytes=24 * MIB)
    row = only(export.write(tmp_path / "a.sqlite"))
    assert (row["said"], row["role"]) == (None, "data")


@pytest.mark.parametrize(("kind", "ranks", "group"), [("tp", 4, 2), ("hsdp", 6, 3), ("ep", 4, 2)])
def test_a_simulated_job_that_names_its_groups_is_believed_and_agrees(
    kind: str, ranks: int, group: int, tmp_path: Path
) -> None:
    names = {
        "tp": ("mesh_tp", "mesh_dp"),
        "hsdp": ("mesh_dp_shard", "mesh_dp_replicate"),
        "ep": ("mesh_ep", "mesh_dp"),
    }
    paths = write(simulate(job(kind, ranks, group)), tmp_path)
    before = asked(*paths)["communicator"]
    inner = [tuple(range(first, first + group)) for first in range(0, ranks, group)]
    outer = [tuple(range(first, ranks, group)) for first in range(group)]
    if kind == "ep":
        outer = [tuple(range(ranks))]
    marks = tuple(
        group_mark(GroupMark(name, members))
        for name, groups in zip(names[kind], (inner, outer), strict=True)
        for members in groups
    )
    for path in paths:
        named(path, marks=marks)
    after = asked(*paths)["communicator"]
    assert after["role"].to_list() == before["role"].to_list()
    assert not after["is_contradicted"].any()
    assert after.filter(after["role"].is_not_null())["said"].null_count() == 0


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    """A process group of one gloo rank, in this process."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def test_annotate_marks_every_group_by_its_description(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[str] = []
    monkeypatch.setattr(inside, "_nvtx", lambda: inside._Nvtx(print, print, marks.append))
    monkeypatch.setattr(inside, "profiling", lambda: True)
    alone.new_group([0], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    annotate.mark_groups()
    assert sorted(marks) == [
        "nsysddp:group=TENSOR_MODEL_PARALLEL_GROUP ranks=0",
        "nsysddp:group=default_pg ranks=0",
    ]
