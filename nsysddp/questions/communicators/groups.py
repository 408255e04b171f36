"""Which ranks communicate as one group, and what does each group cost each of its ranks?

A group is a communicator where payloads name it, else the ranks that a collective was matched over (definitions,
"Groups without payloads"): several communicators of the same ranks are then one group. What is in no group stays in
a row of its own, so that nothing is lost from the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.questions.collectives import with_bus_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsysddp.model.trace import Trace
    from nsysddp.questions.context import Context

IN_NO_GROUP = -1

SPLIT = (
    "hidden_transfer_ns",
    "exposed_transfer_ns",
    "hidden_wait_ns",
    "exposed_wait_ns",
    "hidden_unsplit_ns",
    "exposed_unsplit_ns",
)
"""Six parts that tile the time of a group on a rank."""


@dataclass(frozen=True)
class Group:
    """Ranks that communicate together.

    Attributes:
        number: 0-based, by first rank, then size, then id.
        communicator: its id in hex; None without payloads.
        ranks: its members as far as they were captured, ascending.
        size: how many there are; None if that is not known.
    """

    number: int
    communicator: str | None
    ranks: tuple[int, ...]
    size: int | None


@dataclass(frozen=True)
class Groups:
    """The groups of a run and their communication events.

    Attributes:
        trace: the run.
        all: the groups, by number.
        events: the communication of the steps used: the columns of ``collectives.timed``, ``group`` (its number, or
            ``IN_NO_GROUP``), ``step`` (its index; -1 for the whole capture) and ``phase``.
        everywhere: ``event``, ``rank`` and ``group`` of all communication of the capture.
        steps: how many steps are used; None for the whole capture.
        phases: names of the phases that the capture marks.
    """

    trace: Trace
    all: tuple[Group, ...]
    events: pl.DataFrame
    everywhere: pl.DataFrame
    steps: int | None
    phases: frozenset[str]

    @classmethod
    def of(cls, context: Context) -> Groups:
        """The groups of a run, with what they did in its steady steps."""
        trace = context.trace
        labelled = _labelled(context.timed)
        groups = _groups(labelled)
        numbers = pl.DataFrame(
            {"label": [label for label, _ in groups], "group": [group.number for _, group in groups]},
            schema={"label": pl.String, "group": pl.Int64},
        )
        event = labelled["event"].to_numpy()
        used = context.used_steps
        step = context.attribution.step[event] if used else np.full(event.size, -1)
        kept = context.keep[event] & (np.isin(step, used) if used else True)
        numbered = labelled.join(numbers, on="label", how="left", maintain_order="left").with_columns(
            pl.col("group").fill_null(IN_NO_GROUP)
        )
        events = numbered.with_columns(
            step=pl.Series(step, dtype=pl.Int64), phase=context.attribution.phase_names(event)
        ).filter(pl.Series(kept, dtype=pl.Boolean))
        everywhere = numbered.select("event", "rank", "group")
        phases = frozenset(context.attribution.phases["phase"].drop_nulls().unique().to_list())
        return cls(trace, tuple(group for _, group in groups), events, everywhere, len(used) or None, phases)

    @property
    def marks_passes(self) -> bool:
        """The capture marks forward and backward, so what is in neither was launched outside both."""
        return self.phases.issuperset(("forward", "backward"))

    @cached_property
    def host_of(self) -> Mapping[int, str]:
        """Rank to its host."""
        return dict(self.trace.ranks.select("rank", "host").iter_rows())

    def hosts(self, ranks: Iterable[int]) -> int:
        """On how many hosts these ranks are."""
        return len({self.host_of[rank] for rank in ranks})


def _labelled(timed: pl.DataFrame) -> pl.DataFrame:
    """The events with a text that names their group: the communicator, else its ranks; null where neither is known."""
    together = (
        timed.filter(pl.col("communicator").is_null() & pl.col("ready_ns").is_not_null())
        .group_by("collective_id")
        .agg(pl.col("rank").unique().sort())
        .filter(pl.col("rank").list.len() > 1)
        .select("collective_id", members=pl.col("rank").cast(pl.List(pl.String)).list.join(","))
    )
    return (
        timed.join(together, on="collective_id", how="left", maintain_order="left")
        .with_columns(label=pl.coalesce("communicator", "members"))
        .drop("members")
    )


def _groups(labelled: pl.DataFrame) -> list[tuple[str, Group]]:
    """Each group with its label."""
    found = (
        labelled.filter(pl.col("label").is_not_null())
        .group_by("label")
        .agg(
            pl.col("rank").unique().sort(),
            pl.col("communicator").first(),
            pl.col("group_size").max().alias("size"),
        )
        .with_columns(first=pl.col("rank").list.first(), seen=pl.col("rank").list.len())
        .sort("first", "seen", "rank", "label")
    )
    return [
        (row["label"], Group(number, row["communicator"], tuple(row["rank"]), row["size"]))
        for number, row in enumerate(found.to_dicts())
    ]


def figures(trace: Trace, events: pl.DataFrame, by: str) -> pl.DataFrame:
    """What the communication of each value of ``by`` costs each rank; one row a value and rank.

    Args:
        trace: the run.
        events: communication events (``Groups.events``).
        by: the column that tells them apart.

    Returns:
        ``by``, rank, collectives, bytes (null where one is unknown), time_ns, the parts of ``SPLIT``, which tile it,
        exposed_ns and busbw_gbps; hidden and exposed are null beside whole CUDA graphs.
    """
    rows = [
        {by: value, "rank": rank, **_figures(trace, int(rank), part)}
        for (rank, value), part in events.group_by("rank", by, maintain_order=True)
    ]
    whole = ("rank", "collectives", "bytes", "time_ns", *SPLIT, "exposed_ns")
    types = {by: events.schema[by], **dict.fromkeys(whole, pl.Int64()), "busbw_gbps": pl.Float64()}
    return pl.DataFrame(rows, schema=types).sort(by, "rank", nulls_last=True)


def _figures(trace: Trace, rank: int, mine: pl.DataFrame) -> dict[str, Any]:
    """The figures of some events of a rank; asserts that the parts tile their time."""
    start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
    known = mine.filter(pl.col("ready_ns").is_not_null())
    middle = known["transfer_start_ns"].to_numpy()
    whole = Intervals.union_of(start, end)
    transfer = Intervals.union_of(middle, known["end_ns"].to_numpy())
    wait = Intervals.union_of(known["start_ns"].to_numpy(), middle) - transfer
    parts = {"transfer": transfer, "wait": wait, "unsplit": whole - (transfer | wait)}
    computing, graphs = trace.union(rank, ["compute", "spin"]), trace.union(rank, ["graph"])
    row: dict[str, Any] = {
        "collectives": mine.height,
        "bytes": None if mine["bytes"].null_count() else int(mine["bytes"].sum()),
        "time_ns": whole.length_ns,
        "busbw_gbps": bus_bandwidth(mine),
    }
    if graphs.length_within(start, end).any():
        return row | dict.fromkeys((*SPLIT, "exposed_ns"))
    for name, part in parts.items():
        hidden = (part & computing).length_ns
        row |= {f"hidden_{name}_ns": hidden, f"exposed_{name}_ns": part.length_ns - hidden}
    assert sum(row[name] for name in SPLIT) == row["time_ns"]
    return row | {"exposed_ns": sum(row[name] for name in SPLIT if name.startswith("exposed"))}


def bus_bandwidth(events: pl.DataFrame) -> float | None:
    """Bus bytes over transfer time of these collectives together, decimal GB/s; None where none tells both.

    The transfer is that of the last to arrive (``shortest_ns``); a collective counts once.
    """
    known = with_bus_bytes(events).filter(pl.col("bus_bytes").is_not_null() & (pl.col("shortest_ns") > 0))
    known = known.unique("collective_id", maintain_order=True)
    if not known.height:
        return None
    return float(known["bus_bytes"].sum()) / float(known["shortest_ns"].sum())
