"""Which kernels, copies and memsets ran, and how much of them beside nothing else, or outside every step?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model import schema
from nsysddp.model.intervals import Intervals, grouped_union
from nsysddp.model.schema import INT, RANK_NUMBER, STEP_NAME, TEXT, declare
from nsysddp.questions.overlap import joined, or_null, summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution
    from nsysddp.questions.window import Windows

KERNEL_CLASS = declare(
    "kernel_class",
    "one kernel name on one rank",
    [
        RANK_NUMBER,
        ("name", TEXT, "kernel name"),
        ("class", TEXT, "communication, spin or compute"),
        ("rule", TEXT, "the rule that decided; 'unclassified' where none matched (taken as compute)"),
        ("count", INT, "executions"),
        ("total_ns", INT, "sum of the durations"),
        ("median_ns", INT, "median duration, rounded down"),
        (
            "hidden_ns",
            INT,
            "sum over its executions of the time beside the other side: communication under compute, "
            "compute beside communication",
        ),
    ],
)

MEMORY = declare(
    "memory",
    "one kind of copy or memset on one rank in one step (by launch)",
    [
        RANK_NUMBER,
        STEP_NAME,
        ("operation", TEXT, "memcpy HtoD, memcpy DtoH, memset, ..."),
        ("count", INT, "operations"),
        ("bytes", INT, "bytes moved or set"),
        ("total_ns", INT, "|operations|"),
        ("exposed_ns", INT, "the part under neither compute nor communication"),
    ],
)

OUTSIDE_STEPS = declare(
    "outside_steps",
    "one class of GPU events on one rank outside every step window",
    [
        RANK_NUMBER,
        ("class", TEXT, "communication, spin, compute, memory or graph"),
        ("count", INT, "events that lie at least partly outside every window"),
        ("total_ns", INT, "|events of the class| outside every window"),
    ],
)


def kernel_class_table(trace: Trace, keep: NDArray[np.bool_]) -> pl.DataFrame:
    """Which kernels ran, as what they count, and how much of them ran beside the other side?

    Null for names of which any execution ran beside a whole CUDA graph, which may hold either side.
    """

    def of_rank(rank: int) -> dict[str, NDArray[Any]]:
        first, last = trace.rows_of(rank)
        events = trace.events_of(rank)
        name, start, end = (events[column].to_numpy() for column in ("name", "start_ns", "end_ns"))
        compute, communication = trace.union(rank, ["compute", "spin"]), trace.union(rank, ["communication"])
        hidden = communication.length_within_each(start, end)
        communicates = np.flatnonzero(trace.is_class(rank, ["communication"]))
        hidden[communicates] = compute.length_within_each(start[communicates], end[communicates])
        duration, chosen = end - start, keep[first:last]
        unsure = np.zeros(trace.names.height, dtype=bool)
        if len(graphs := trace.union(rank, ["graph"])):
            unsure[name[chosen & (graphs.length_within_each(start, end) > 0)]] = True
        if not chosen.all():
            name, duration, hidden = name[chosen], duration[chosen], hidden[chosen]
        count = np.bincount(name, minlength=trace.names.height)
        total, beside = np.zeros_like(count), np.zeros_like(count)
        np.add.at(total, name, duration)
        np.add.at(beside, name, hidden)
        found = np.flatnonzero((count > 0) & trace.is_kernel)
        return {
            "rank": np.full(found.size, rank),
            "row": found,
            "count": count[found],
            "total_ns": total[found],
            "median_ns": medians(name, duration, count)[found],
            "hidden_ns": beside[found],
            "unsure": unsure[found],
        }

    columns = joined(trace.each_rank(of_rank))
    of_row = trace.names[columns["row"]]
    table = pl.DataFrame(
        {
            **columns,
            "name": of_row["text"],
            "class": of_row["class"].cast(pl.String),
            "rule": of_row["rule"],
            "hidden_ns": or_null(columns["hidden_ns"], columns["unsure"]),
        }
    )
    return KERNEL_CLASS.check(table.sort("rank", "total_ns", "name", descending=[False, True, False]))


def medians(group: NDArray[Any], values: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Median of the values (none negative) of each group, rounded down; 0 for a group without any."""
    ends = np.cumsum(count)
    if not values.size:
        return np.zeros_like(count)
    bits = int(values.max()).bit_length()
    if count.size.bit_length() + bits < 64:  # one number sorts much faster than two
        ordered = (group.astype(np.int64) << bits) | values
        ordered.sort()
        ordered &= (1 << bits) - 1
    else:
        ordered = values[np.lexsort((values, group))]
    first = ends - count
    low, high = (ordered[np.where(count > 0, first + place, 0)] for place in ((count - 1) // 2, count // 2))
    middle: NDArray[np.int64] = np.where(count > 0, low + (high - low) // 2, 0)
    return middle


def memory_table(trace: Trace, attribution: Attribution, keep: NDArray[np.bool_]) -> pl.DataFrame:
    """Which copies and memsets ran, of what size, and how much of them beside nothing else?"""
    copies = (trace.names["group"] == "memory").to_numpy()

    def of_rank(rank: int) -> dict[str, NDArray[Any]]:
        """Figures of each step and operation of the rank, and the row of one event of it."""
        first, last = trace.rows_of(rank)
        events = trace.events_of(rank)
        name = events["name"].to_numpy()
        rows = np.flatnonzero(keep[first:last] & copies[name])
        if not rows.size:
            return {}
        kinds = attribution.step[first:last][rows].astype(np.int64) * trace.names.height + name[rows]
        _, example, group = np.unique(kinds, return_index=True, return_inverse=True)
        size = np.zeros(example.size, dtype=np.int64)
        np.add.at(size, group, events["bytes"][rows].fill_null(0).to_numpy())
        pieces = grouped_union(group, events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows])
        working = trace.fresh_union(rank, ["compute", "spin", "communication"])
        return {
            "rank": np.full(example.size, rank),
            "event": first + rows[example],
            "count": np.bincount(group),
            "bytes": size,
            "total_ns": summed(pieces, example.size),
            "exposed_ns": summed(pieces, example.size, minus=working),
        }

    columns = joined(trace.each_rank(of_rank))
    if not columns:
        return MEMORY.empty()
    event = columns["event"]
    table = pl.DataFrame(
        {
            **columns,
            "step": attribution.step_names(event),
            "step_index": attribution.step[event],
            "operation": trace.names["text"][trace.events["name"][event].to_numpy()],
        }
    )
    return MEMORY.check(table.sort("rank", "step_index", "operation"))


def outside_table(trace: Trace, all_windows: Windows) -> pl.DataFrame:
    """Which GPU work lies outside every step window (a barrier after the last step, say)?"""
    if all_windows.per != "step":
        return OUTSIDE_STEPS.empty()

    def of_rank(rank: int) -> list[dict[str, Any]]:
        mine = all_windows.of(rank)
        events = trace.events_of(rank)
        covered = Intervals.union_of([window.start for window in mine], [window.end for window in mine])
        start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        outside = np.flatnonzero(end - start > covered.length_within_each(start, end))
        counts = np.bincount(
            events["class"].to_physical().gather(outside).to_numpy(), minlength=len(schema.CLASSES)
        )
        return [
            {
                "rank": rank,
                "class": name,
                "count": count,
                "total_ns": (trace.union(rank, [name]) - covered).length_ns,
            }
            for name, count in zip(schema.CLASSES, counts.tolist(), strict=True)
            if count
        ]

    return OUTSIDE_STEPS.frame([row for rows in trace.each_rank(of_rank) for row in rows])
