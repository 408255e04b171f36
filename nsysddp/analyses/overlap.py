"""How much communication is hidden under computation, per rank and window, and what is left exposed?

Definitions, "Interval decomposition". With C communication, P compute and spin, M memory, G graph spans, W window::

    hidden = |C & P|   exposed = |C - P|   exposed_memory = |M - P - C|   graph = |G - P - C - M|
    idle = |W - P - C - M - G|      hidden + exposed = communication
    compute + exposed + exposed_memory + graph + idle = window

Both identities are asserted on every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp import schema
from nsysddp.errors import AnalysisError
from nsysddp.intervals import Intervals, grouped_union

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsysddp.analyses.collectives import Split
    from nsysddp.analyses.steps import Attribution, Window, Windows
    from nsysddp.trace import Trace

UNKNOWN_UNDER_GRAPHS = (
    "hidden_communication_ns",
    "exposed_communication_ns",
    "hidden_transfer_ns",
    "hidden_wait_ns",
    "exposed_transfer_ns",
    "exposed_wait_ns",
    "hidden_unsplit_ns",
    "exposed_unsplit_ns",
    "overlap_ratio",
)
_SPLIT_COLUMNS = ("hidden_transfer_ns", "hidden_wait_ns", "exposed_transfer_ns", "exposed_wait_ns")


@dataclass(frozen=True)
class _Sets:
    """The interval sets of one rank that the decomposition measures; all lengths come from them."""

    compute: Intervals
    spin: Intervals
    communication: Intervals
    exposed_memory: Intervals
    p2p: Intervals
    graph: Intervals
    graph_any: Intervals
    busy: Intervals
    split: Split


def _sets(trace: Trace, rank: int, split: Split) -> _Sets:
    compute = trace.union(rank, ["compute", "spin"])
    communication = trace.union(rank, ["communication"])
    memory = trace.union(rank, ["memory"])
    graph = trace.union(rank, ["graph"])
    return _Sets(
        compute=compute,
        spin=trace.union(rank, ["spin"]),
        communication=communication,
        exposed_memory=memory - compute - communication,
        p2p=_peer_copies(trace, rank),
        graph=graph - compute - communication - memory,
        graph_any=graph,
        busy=trace.union(rank, schema.CLASSES),
        split=split,
    )


def _peer_copies(trace: Trace, rank: int) -> Intervals:
    peer = [number for number, text in enumerate(trace.names["text"].to_list()) if text == schema.P2P_COPY]
    if not peer:
        return Intervals.empty()
    events = trace.events_of(rank).filter(pl.col("name").is_in(peer) & (pl.col("class") == "memory"))
    return Intervals.union_of(events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), is_sorted=True)


def overlap_table(
    trace: Trace, attribution: Attribution, chosen: Windows, splits: Mapping[int, Split]
) -> pl.DataFrame:
    """The decomposition of every window (``schema.OVERLAP``).

    Where a window holds whole-graph spans, hidden, exposed and overlap columns are null.

    Raises:
        AnalysisError: an identity does not hold.
    """
    place = {
        rank: (pid, device) for rank, pid, device in trace.ranks.select("rank", "pid", "device").iter_rows()
    }
    names = dict(attribution.steps.select("step_index", "name").iter_rows())

    def of_rank(rank: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        windows = [window for window in chosen.windows if window.rank == rank]
        if not windows:
            return rows
        sets = _sets(trace, rank, splits[rank])
        measured = _measure(sets, windows)
        counts = _counts(trace, attribution, rank, windows, chosen.per)
        tails = _tails(trace, attribution, rank, windows, splits[rank])
        for number, window in enumerate(windows):
            row: dict[str, Any] = {name: int(values[number]) for name, values in measured.items()}
            _assert_identities(row, window)
            holds_graphs = row.pop("graph_any_ns") > 0
            matched = row.pop("matched_ns")
            if row["communication_ns"] and not matched:
                row.update(dict.fromkeys(_SPLIT_COLUMNS))
            row["overlap_ratio"] = (
                row["hidden_communication_ns"] / row["communication_ns"] if row["communication_ns"] else None
            )
            row.update(tails[number])
            if holds_graphs:
                row.update(dict.fromkeys(UNKNOWN_UNDER_GRAPHS))
            pid, device = place[rank]
            row.update(
                rank=rank,
                pid=pid,
                device=device,
                step=names.get(window.step),
                step_index=window.step if window.step >= 0 else None,
                is_warmup=window.is_warmup,
                kernels=int(counts[0][number]),
                collectives=int(counts[1][number]),
            )
            rows.append(row)
        return rows

    return schema.OVERLAP.frame([row for rows in trace.each_rank(of_rank) for row in rows])


def _measure(sets: _Sets, windows: list[Window]) -> dict[str, NDArray[np.int64]]:
    """Every length of every window, all from cumulative coverage at the window edges."""
    start = np.array([window.start for window in windows], dtype=np.int64)
    end = np.array([window.end for window in windows], dtype=np.int64)

    def within(some: Intervals) -> NDArray[np.int64]:
        return some.length_within(start, end)

    def shared(some: Intervals, other: Intervals) -> NDArray[np.int64]:
        length: NDArray[np.int64] = np.maximum(
            some.shared_before(other, end) - some.shared_before(other, start), 0
        )
        return length

    window = end - start
    communication, split = sets.communication, sets.split
    transfer, wait, unsplit = within(split.transfer), within(split.wait), within(split.unsplit)
    hidden_transfer = shared(split.transfer, sets.compute)
    hidden_wait = shared(split.wait, sets.compute)
    hidden_unsplit = shared(split.unsplit, sets.compute)
    without_compute = sets.compute.complement(*communication.bounds)
    return {
        "window_ns": window,
        "compute_ns": within(sets.compute),
        "spin_ns": within(sets.spin),
        "communication_ns": within(communication),
        "hidden_communication_ns": shared(communication, sets.compute),
        "exposed_communication_ns": shared(communication, without_compute),
        "hidden_transfer_ns": hidden_transfer,
        "hidden_wait_ns": hidden_wait,
        "exposed_transfer_ns": transfer - hidden_transfer,
        "exposed_wait_ns": wait - hidden_wait,
        "hidden_unsplit_ns": hidden_unsplit,
        "exposed_unsplit_ns": unsplit - hidden_unsplit,
        "exposed_memory_ns": within(sets.exposed_memory),
        "p2p_copy_ns": within(sets.p2p),
        "graph_ns": within(sets.graph),
        "idle_ns": window - within(sets.busy),
        "graph_any_ns": within(sets.graph_any),
        "matched_ns": transfer + wait,
    }


def _assert_identities(row: dict[str, Any], window: Window) -> None:
    parts = (
        row["compute_ns"]
        + row["exposed_communication_ns"]
        + row["exposed_memory_ns"]
        + row["graph_ns"]
        + row["idle_ns"]
    )
    split = sum(
        row[f"{where}_{what}_ns"]
        for where in ("hidden", "exposed")
        for what in ("transfer", "wait", "unsplit")
    )
    sound = (
        row["hidden_communication_ns"] + row["exposed_communication_ns"] == row["communication_ns"]
        and parts == row["window_ns"] == window.end - window.start
        and split == row["communication_ns"]
        and row["spin_ns"] <= row["compute_ns"]
        and min(value for value in row.values()) >= 0
    )
    if not sound:
        raise AnalysisError(
            f"the books of rank {window.rank} do not balance in [{window.start}, {window.end}): {row}",
            do="please report this with the export",
        )


def _counts(
    trace: Trace, attribution: Attribution, rank: int, windows: list[Window], per: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Kernels and collective kernels of each window: by launch for steps, by start for a capture or cut of it."""
    first, last = trace.rows_of(rank)
    events = trace.events_of(rank)
    is_kernel = trace.is_kernel[events["name"].to_numpy()]
    is_collective = trace.is_class(rank, ["communication"])
    if per == "step":
        index = attribution.step[first:last]
        size = max(window.step for window in windows) + 1
        inside = (index >= 0) & (index < size)
        kernels = np.bincount(index[inside & is_kernel], minlength=size)
        collectives = np.bincount(index[inside & is_collective], minlength=size)
        steps = [window.step for window in windows]
        return kernels[steps], collectives[steps]
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    made = []
    for window in windows:
        # An empty event at the very end of the capture is one of its events.
        begun = start <= window.end if window.end == end.max() else start < window.end
        inside = begun & ((end > window.start) | (start >= window.start))
        made.append((np.count_nonzero(inside & is_kernel), np.count_nonzero(inside & is_collective)))
    both = np.array(made, dtype=np.int64)
    return both[:, 0], both[:, 1]


def _tails(
    trace: Trace, attribution: Attribution, rank: int, windows: list[Window], split: Split
) -> list[dict[str, int | None]]:
    """Communication after the last backward compute of each step (definitions, "Tail").

    comm_finish = end of the last communication event launched in backward; backward_finish = end of the last compute
    event launched in backward no later than the launch of that communication event. With several backward ranges in a
    step the last counts.
    """
    nothing: dict[str, int | None] = dict.fromkeys(
        ("tail_communication_ns", "tail_wait_ns", "tail_transfer_ns")
    )
    process = trace.process_of_rank[rank]
    backward = attribution.phases.with_row_index("row").filter(
        (pl.col("process") == process) & (pl.col("phase") == "backward") & (pl.col("step_index") >= 0)
    )
    last_range = dict(
        backward.sort("start_ns", "row")
        .group_by("step_index", maintain_order=True)
        .agg(pl.col("row").last())
        .iter_rows()
    )
    if not last_range or trace.launches is None:
        return [nothing] * len(windows)
    first, last = trace.rows_of(rank)
    events = trace.events_of(rank)
    table = (
        pl.DataFrame(
            {
                "range": attribution.phase_range[first:last],
                "class": events["class"],
                "end": events["end_ns"],
                "launch": trace.launches["launch_ns"].slice(first, last - first),
            }
        )
        .filter(pl.col("range").is_in(list(last_range.values())))
        .with_columns(pl.col("class").is_in(["compute", "spin"]).alias("computes"))
    )
    finish = (
        table.filter(pl.col("class") == "communication")
        .sort("end", "launch")
        .group_by("range", maintain_order=True)
        .agg(pl.col("end").last().alias("comm_finish"), pl.col("launch").last().alias("comm_launch"))
    )
    compute = (
        table.filter(pl.col("computes"))
        .join(finish, on="range")
        .filter(pl.col("launch") <= pl.col("comm_launch"))
        .group_by("range")
        .agg(pl.col("end").max().alias("backward_finish"))
    )
    spans = {
        row["range"]: (row["backward_finish"], row["comm_finish"])
        for row in finish.join(compute, on="range", how="left").iter_rows(named=True)
    }
    made = []
    for window in windows:
        if window.step not in last_range:
            made.append(nothing)
            continue
        begin, end = spans.get(last_range[window.step], (0, 0))
        if begin is None:
            made.append(nothing)
            continue
        begin, end = int(begin), int(end)
        told = not split.unsplit.length_within(begin, end)
        made.append(
            {
                "tail_communication_ns": max(0, end - begin),
                "tail_wait_ns": int(split.wait.length_within(begin, end)) if told else None,
                "tail_transfer_ns": int(split.transfer.length_within(begin, end)) if told else None,
            }
        )
    return made


def phase_table(trace: Trace, attribution: Attribution, chosen: Windows) -> pl.DataFrame:
    """What each phase launched and when it ran on the GPU (``schema.PHASE``)."""
    if chosen.per != "step":
        return schema.PHASE.empty()
    names = dict(attribution.steps.select("step_index", "name").iter_rows())

    def of_rank(rank: int) -> pl.DataFrame:
        steps = {window.step for window in chosen.windows if window.rank == rank}
        mine = attribution.phases.with_row_index("row").filter(
            (pl.col("process") == trace.process_of_rank[rank]) & pl.col("step_index").is_in(list(steps))
        )
        if not mine.height:
            return schema.PHASE.empty()
        first, last = trace.rows_of(rank)
        of_phase = attribution.phase_range[first:last]
        inside = (
            trace.events_of(rank)
            .filter(pl.Series(of_phase >= 0))
            .with_columns(pl.Series("row", of_phase[of_phase >= 0].astype(np.uint32)))
        )
        spans = inside.group_by("row").agg(
            pl.col("start_ns").min().alias("gpu_start_ns"),
            pl.col("end_ns").max().alias("gpu_end_ns"),
            pl.col("name").is_in(np.flatnonzero(trace.is_kernel)).sum().alias("kernels"),
        )
        compute = trace.union(rank, ["compute", "spin"])
        computing = inside.filter(pl.col("class").is_in(["compute", "spin"]))
        communicating = inside.filter(pl.col("class") == "communication")
        lengths = {
            "compute_ns": _per_group(computing, None),
            "communication_ns": _per_group(communicating, None),
            "exposed_communication_ns": _per_group(communicating, compute),
        }
        table = mine.join(spans, on="row", how="left")
        for name, found in lengths.items():
            table = table.join(found.rename({"length": name}), on="row", how="left")
        return schema.PHASE.check(
            table.with_columns(
                pl.lit(rank).alias("rank"),
                pl.Series(
                    "step", [names.get(step) for step in table["step_index"].to_list()], dtype=pl.String
                ),
                pl.col("start_ns").alias("host_start_ns"),
                pl.col("end_ns").alias("host_end_ns"),
                *(pl.col(name).fill_null(0) for name in ("kernels", *lengths)),
            ).sort("step_index", "start_ns", "row")
        )

    return pl.concat([schema.PHASE.empty(), *trace.each_rank(of_rank)])


def _per_group(events: pl.DataFrame, minus: Intervals | None) -> pl.DataFrame:
    """``|union of each group's events - minus|`` by ``row``."""
    group, start, end = grouped_union(
        events["row"].to_numpy(), events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    )
    length = end - start
    if minus is not None:
        length = length - minus.length_within(start, end)
    return (
        pl.DataFrame({"row": group.astype(np.uint32), "length": length})
        .group_by("row")
        .agg(pl.col("length").sum())
    )


def kernel_class_table(trace: Trace, keep: NDArray[np.bool_]) -> pl.DataFrame:
    """Which kernels ran, as what they count, and how much of them ran beside the other side?"""

    def of_rank(rank: int) -> pl.DataFrame:
        first, last = trace.rows_of(rank)
        events = trace.events_of(rank)
        name, start, end = (events[column].to_numpy() for column in ("name", "start_ns", "end_ns"))
        compute, communication = trace.union(rank, ["compute", "spin"]), trace.union(rank, ["communication"])
        hidden = communication.length_within_each(start, end)
        communicates = np.flatnonzero(trace.is_class(rank, ["communication"]))
        hidden[communicates] = compute.length_within_each(start[communicates], end[communicates])
        duration, chosen = end - start, keep[first:last]
        if not chosen.all():
            name, duration, hidden = name[chosen], duration[chosen], hidden[chosen]
        count = np.bincount(name, minlength=trace.names.height)
        total, beside = np.zeros_like(count), np.zeros_like(count)
        np.add.at(total, name, duration)
        np.add.at(beside, name, hidden)
        found = np.flatnonzero((count > 0) & trace.is_kernel)
        texts, rules, classes = (trace.names[column].gather(found) for column in ("text", "rule", "class"))
        return schema.KERNEL_CLASS.check(
            pl.DataFrame(
                {
                    "name": texts,
                    "class": classes.cast(pl.String),
                    "rule": rules,
                    "count": count[found],
                    "total_ns": total[found],
                    "median_ns": medians(name, duration, count)[found],
                    "hidden_ns": beside[found],
                }
            )
            .with_columns(pl.lit(rank).alias("rank"))
            .sort(["total_ns", "name"], descending=[True, False])
        )

    return pl.concat(trace.each_rank(of_rank))


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
    names = dict(attribution.steps.select("step_index", "name").iter_rows())
    copies = (trace.names["group"] == "memory").to_numpy()

    def of_rank(rank: int) -> pl.DataFrame:
        first, last = trace.rows_of(rank)
        events = trace.events_of(rank)
        rows = np.flatnonzero(keep[first:last] & copies[events["name"].to_numpy()])
        if not rows.size:
            return schema.MEMORY.empty()
        part = events[rows].with_columns(pl.Series("step_index", attribution.step[first:last][rows]))
        groups = part.select("step_index", "name").unique().sort("step_index", "name").with_row_index("row")
        part = part.join(groups, on=["step_index", "name"], how="left", maintain_order="left")
        totals = _per_group(part, None).rename({"length": "total_ns"})
        working = trace.union(rank, ["compute", "spin", "communication"])
        alone = _per_group(part, working).rename({"length": "exposed_ns"})
        counted = part.group_by("row").agg(pl.len().alias("count"), pl.col("bytes").sum())
        table = (
            groups.join(counted, on="row")
            .join(totals, on="row", how="left")
            .join(alone, on="row", how="left")
        )
        return schema.MEMORY.check(
            table.with_columns(
                pl.lit(rank).alias("rank"),
                pl.Series(
                    "step", [names.get(step) for step in table["step_index"].to_list()], dtype=pl.String
                ),
                trace.names["text"].gather(table["name"].to_numpy()).alias("operation"),
                pl.col("total_ns").fill_null(0),
                pl.col("exposed_ns").fill_null(0),
            ).sort("step_index", "operation")
        )

    return pl.concat(trace.each_rank(of_rank))


def outside_table(trace: Trace, all_windows: Windows) -> pl.DataFrame:
    """Which GPU work lies outside every step window (a barrier after the last step, say)?"""
    if all_windows.per != "step":
        return schema.OUTSIDE_STEPS.empty()
    rows = []
    for rank in trace.rank_numbers:
        mine = [window for window in all_windows.windows if window.rank == rank]
        events = trace.events_of(rank)
        covered = Intervals.union_of([window.start for window in mine], [window.end for window in mine])
        start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        outside = (end - start) > covered.length_within(start, end)
        for name in schema.CLASSES:
            count = int(np.count_nonzero(outside & (events["class"] == name).to_numpy()))
            if count:
                total = trace.union(rank, [name]) - covered
                rows.append({"rank": rank, "class": name, "count": count, "total_ns": total.length_ns})
    return schema.OUTSIDE_STEPS.frame(rows)
