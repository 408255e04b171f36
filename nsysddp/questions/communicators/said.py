"""What does the job itself call each group of ranks?

Two things say so: marks of ``nsysddp.annotate`` (a group and its ranks), and ranges around a launch that name a group
(``markers.named_group``). Neither NCCL's payloads nor PyTorch's own ranges (``record_param_comms``, ``nccl:...``) hold
a name. A range names the very communicator that is launched in it; a mark names ranks, which several can have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.markers import named_group, parse_group_mark
from nsysddp.questions.communicators.groups import IN_NO_GROUP

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace
    from nsysddp.questions.communicators.groups import Groups

_WORDS = {
    "data": {"dp", "ddp", "data"},
    "shard": {"shard", "sharded", "fsdp"},
    "replicate": {"replicate", "replica", "replicas"},
    "tensor": {"tp", "tensor"},
    "pipeline": {"pp", "pipe", "pipeline"},
    "expert": {"ep", "expert", "experts", "moe"},
    "context": {"cp", "context"},
}
"""Words of a name by the role that they name."""


@dataclass(frozen=True)
class Said:
    """What the job calls a group.

    Attributes:
        names: names, by ranges first; none if it says nothing.
        roles: what these name: the roles of ranges, else those of marks.
    """

    names: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()


def role_of_name(name: str) -> str | None:
    """The role that a name of a group tells; None if it tells none, or several that do not go together."""
    words = set(re.findall(r"[a-z]+", name.lower()))
    roles = {role for role, its in _WORDS.items() if its & words}
    if "and" in words:  # the ranks of two groups together
        return None
    if roles & {"shard", "replicate"}:
        roles -= {"data", "context"}  # mesh_dp_shard_cp
    if "data" in roles:
        roles -= {"context"}  # DATA_PARALLEL_GROUP_WITH_CP
    if roles & {"data", "tensor"}:
        roles -= {"expert"}  # EXPERT_DATA_PARALLEL_GROUP: the data group of experts
    return roles.pop() if len(roles) == 1 else None


def said_of(groups: Groups) -> dict[int, Said]:
    """What the job calls each group, by its number; groups of which it says nothing are left out."""
    ranged, marked = _by_ranges(groups), _by_marks(groups)
    made = {}
    for number in ranged.keys() | marked.keys():
        around, its = ranged.get(number, []), marked.get(number, [])
        roles = _roles(around) or _roles(its)
        made[number] = Said(tuple(dict.fromkeys([*around, *its])), roles)
    return made


def _roles(names: list[str]) -> frozenset[str]:
    return frozenset(filter(None, map(role_of_name, names)))


def _by_marks(groups: Groups) -> dict[int, list[str]]:
    """Names of marks that name exactly the ranks of a group."""
    texts = groups.trace.ranges.filter(pl.col("style") == "mark")["text"].unique().sort().to_list()
    marks = [mark for mark in map(parse_group_mark, texts) if mark is not None]
    captured = frozenset(groups.trace.rank_numbers)
    by_ranks: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for mark in marks:
        here = tuple(rank for rank in mark.ranks if rank in captured)
        by_ranks.setdefault(here, []).append((mark.name, len(mark.ranks)))
    made = {}
    for group in groups.all:
        found = by_ranks.get(group.ranks, [])
        names = [name for name, size in found if group.size in (None, size)]
        if names:
            made[group.number] = names
    return made


def _by_ranges(groups: Groups) -> dict[int, list[str]]:
    """Names of ranges in which communication of a group is launched; the most frequent first."""
    trace = groups.trace
    events = groups.events.filter(pl.col("group") != IN_NO_GROUP)
    ranges = _named_ranges(trace)
    if trace.launches is None or not ranges.height or not events.height:
        return {}
    calls = trace.launches[events["event"].to_numpy()]
    process = np.array([trace.process_of_rank[rank] for rank in events["rank"].to_list()], dtype=np.int32)
    launched = (
        events.select("group")
        .with_columns(
            process=pl.Series(process), thread=calls["thread"].cast(pl.Int64), at=calls["launch_ns"]
        )
        .drop_nulls()
        .sort("at")
    )
    found = launched.join_asof(
        ranges, left_on="at", right_on="start_ns", by=["process", "thread"], check_sortedness=False
    ).filter(pl.col("at") <= pl.col("end_ns"))
    counted = found.group_by("group", "name").len().sort("len", "name", descending=[True, False])
    made: dict[int, list[str]] = {}
    for group, name in counted.select("group", "name").iter_rows():
        made.setdefault(group, []).append(name)
    return made


def _named_ranges(trace: Trace) -> pl.DataFrame:
    """Ranges that name a group, by their start."""
    texts = trace.ranges["text"].unique().to_list()
    named = {text: name for text in texts if (name := named_group(text)) is not None}
    return (
        trace.ranges.filter((pl.col("style") != "mark") & pl.col("text").is_in(list(named)))
        .select(
            pl.col("process").cast(pl.Int32),
            pl.col("thread").cast(pl.Int64),
            "start_ns",
            "end_ns",
            name=pl.col("text").replace_strict(named, default=None, return_dtype=pl.String),
        )
        .sort("start_ns", "end_ns", descending=[False, True])
    )
