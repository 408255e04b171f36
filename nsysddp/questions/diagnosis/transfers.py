"""Why is each transfer on the critical path there?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.queues import event_queues
from nsysddp.model.intervals import Intervals
from nsysddp.questions.diagnosis.facts import SLOW_LINK, Facts
from nsysddp.questions.diagnosis.slowing import compared
from nsysddp.questions.link import Link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_ALONE, _BESIDE = 0.05, 0.5
"""Below the first share of its time beside others a transfer ran alone, above the second it did not."""


def bytes_of(context: Context, link: Link) -> Ints:
    """Message size of each collective of the link's kind and group size, 0 of all other events; shape (events,)."""
    size = np.zeros(context.trace.events.height, dtype=np.int64)
    alike = context.timed.filter(
        pl.col("kind") == link.kind,
        pl.col("group_size").eq_missing(link.group_size),
        pl.col("bytes").is_not_null(),
    )
    size[alike["event"].to_numpy()] = alike["bytes"].to_numpy()
    return size


def transfer_causes(context: Context, facts: Facts, transfers: pl.DataFrame) -> list[str]:
    """The cause of each transfer: its stream, what it waits for, or its place among the buckets of its backward."""
    trace = context.trace
    event, rank = transfers["event"].to_numpy(), transfers["rank"].to_numpy()
    gradients = facts.buckets.filter(pl.col("role") == "gradients")
    run = ["rank", "step_index", "micro_step"]
    gradients = gradients.with_columns(
        count=pl.len().over(run), final=pl.col("launched_ns") == pl.col("launched_ns").max().over(run)
    )
    place = {
        (collective, owner): (count, final)
        for collective, owner, count, final in gradients.filter(pl.col("collective_id").is_not_null())
        .select("collective_id", "rank", "count", "final")
        .iter_rows()
    }
    ids = np.full(trace.events.height, -1, dtype=np.int64)
    ids[context.timed["event"].to_numpy()] = context.timed["collective_id"].fill_null(-1).to_numpy()
    queues = trace.events[event].select("rank", "context", "stream")
    graph_nodes = trace.events["in_graph"].gather(event).fill_null(False).to_list()
    without_prefetch = gathers_without_prefetch(context)[event].tolist()
    # What the next kernel needs (an activation) has nothing to run beside; only a reduction of gradients has.
    knows_phases = gradients.height > 0
    made = []
    for number, owner, queue, node, behind in zip(
        ids[event].tolist(), rank.tolist(), queues.iter_rows(), graph_nodes, without_prefetch, strict=True
    ):
        count, final = place.get((number, owner), (0, False))
        if queue in facts.compute_streams and not node and (count or not knows_phases):
            made.append("compute_stream")
        elif behind:
            made.append("no_prefetch")
        elif count == 1:
            made.append("single_bucket")
        elif final:
            made.append("compute_tail")
        else:
            made.append("slow_communication")
    return made


def uneven_share(context: Context, event: Ints) -> Floats:
    """By what share of itself is each transfer longer than the median of its like? Shape as given."""
    length = pl.col("end_ns") - pl.col("transfer_start_ns")
    like = ["communicator", "group_size", "kind", "bytes"]
    known = context.timed.filter(length > 0)
    longer = known.select((1 - length.median().over(like) / length).clip(lower_bound=0)).to_series()
    share = np.zeros(context.trace.events.height)
    share[known["event"].to_numpy()] = longer.to_numpy()
    return share[event]


def gathers_without_prefetch(context: Context) -> NDArray[np.bool_]:
    """Which all-gathers had to wait for the very computation that they could run beside? Shape (events,).

    By recorded dependencies: the gather waits for an event of a stream, and the next event of that stream waits for the
    gather. The first gather of a phase has nothing to run beside, and only counts if the others are like it.
    """
    trace, graph = context.trace, context.graph
    count = trace.events.height
    found = np.zeros(count, dtype=bool)
    gathers = context.timed.filter(pl.col("kind") == "all_gather")["event"].to_numpy()
    producer = graph.queues.awaited[gathers]
    known = producer >= 0
    gathers, producer = gathers[known], producer[known]
    if not gathers.size:
        return found
    following = np.full(count, -1, dtype=np.int64)
    queue = event_queues(trace)
    order = np.lexsort((trace.events["end_ns"].to_numpy(), trace.events["start_ns"].to_numpy(), queue))
    same = queue[order[1:]] == queue[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    needs = following[producer]
    pairs = graph.queues.awaits.owner * count + graph.queues.awaits.event
    serial = (needs >= 0) & np.isin(needs * count + gathers, pairs)
    phase, of = context.attribution.phase_range[gathers], context.attribution.phase_range[producer]
    table = pl.DataFrame({"event": gathers, "phase": phase, "serial": serial, "inside": phase == of})
    share = pl.col("serial").filter("inside").mean().over("phase").fill_null(0)
    chosen = table.filter(pl.col("serial") & pl.col("inside") & (share > 0.5))
    found[chosen["event"].to_numpy()] = True
    return found


MOVING = ("slow_communication", "compute_tail", "single_bucket", "compute_stream")
"""Causes of transfers from which others take a share."""


def shares_of_transfers(
    context: Context, facts: Facts, parts: pl.DataFrame
) -> Iterator[tuple[str, Floats, tuple[str, ...]]]:
    """Causes that hold a share of a transfer: the cause, ns of each part, and the causes from which it is taken."""
    transfer = (parts["kind"] == "transfer").to_numpy()
    rank, event = parts["rank"].fill_null(-1).to_numpy(), parts["event"].fill_null(-1).to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    competing, slowed = np.zeros(parts.height), np.zeros(parts.height)
    communicators = _other_communicators(context, transfer)
    for owner in context.trace.rank_numbers:
        rows = np.flatnonzero((rank == owner) & transfer)
        if owner in facts.slower_transfer and rows.size:
            computing = context.trace.union(owner, ["compute", "spin"]).length_within(start[rows], end[rows])
            slowed[rows] = facts.slower_transfer[owner] * computing
        for communicator, others in communicators.get(owner, {}).items():
            own = rows[_communicators(context, event[rows]) == communicator]
            competing[own] = others.length_within(start[own], end[own])
    yield "process_groups", competing * _lost_to_others(context, event, communicators), MOVING
    yield "link_contention", slowed, MOVING
    yield "small_buckets", _for_being_small(context, facts, event) * transfer * (end - start), _UNPLACED


_UNPLACED = ("slow_communication",)


def _for_being_small(context: Context, facts: Facts, event: Ints) -> Floats:
    """Share of each transfer that is there because the message is small; shape (transfers,).

    All of it where larger buckets would save most; else the latency, where that dominates.
    """
    merging, link = facts.merging, facts.link
    gradients = _of_collectives(context, event, merging.collectives)
    if merging.is_cause:
        return gradients.astype(np.float64)
    if link is None or not link.has_latency:
        return np.zeros(event.size)
    size = np.where(event >= 0, bytes_of(context, link)[event], 0)
    if merging.collectives:
        size = np.where(gradients, size, 0)
    whole = link.latency_ns + link.ns_per_byte * size
    latency = np.where((size > 0) & (whole > 0), link.latency_ns / np.maximum(whole, 1), 0.0)
    # Latency is there for every message; it is the cause only where it dominates.
    return np.where(latency > SLOW_LINK, latency, 0.0)


def _of_collectives(context: Context, event: Ints, collectives: frozenset[int]) -> NDArray[np.bool_]:
    """Which events belong to one of these collectives?"""
    ids = np.full(context.trace.events.height + 1, -1, dtype=np.int64)
    ids[context.timed["event"].to_numpy()] = context.timed["collective_id"].fill_null(-1).to_numpy()
    found: NDArray[np.bool_] = np.isin(ids[event], np.asarray(sorted(collectives), dtype=np.int64))
    return found


def _lost_to_others(context: Context, event: Ints, communicators: dict[int, dict[str, Intervals]]) -> Floats:
    """Share of the time beside other communicators that was lost to them.

    Of like transfers those alone are compared with those beside others, or where none ran alone those that were beside
    them for more and for less of their time; where that does not differ either it is at most all of it.
    """
    lost = np.ones(context.trace.events.height)
    if not communicators:
        return lost[event]
    timed = context.timed.filter(
        pl.col("communicator").is_not_null(), pl.col("transfer_start_ns").is_not_null()
    ).filter(pl.col("end_ns") > pl.col("transfer_start_ns"))
    beside = np.zeros(timed.height, dtype=np.int64)
    start, end = timed["transfer_start_ns"].to_numpy(), timed["end_ns"].to_numpy()
    rank, names = timed["rank"].to_numpy(), timed["communicator"].to_numpy()
    for owner, of in communicators.items():
        for communicator, others in of.items():
            rows = np.flatnonzero((rank == owner) & (names == communicator))
            beside[rows] = others.length_within(start[rows], end[rows])
    timed = timed.select(
        "event",
        "rank",
        same=pl.struct("communicator", "kind", "bytes").rank("dense"),
        duration_ns=pl.Series(end - start),
        beside_ns=pl.Series(beside),
    )
    length, share = pl.col("duration_ns"), pl.col("beside_ns") / pl.col("duration_ns")
    ratio = timed.group_by("same").agg(
        alone=length.filter(share < _ALONE).median(), accompanied=length.filter(share > _BESIDE).median()
    )
    by_ratio = 1 - pl.col("alone") / pl.col("accompanied")
    timed = timed.join(ratio, on="same", how="left", maintain_order="left").join(
        compared(timed), on="same", how="left", maintain_order="left"
    )
    found = timed.select(pl.coalesce(by_ratio, "lost").clip(0, 1).fill_null(1.0)).to_series()
    lost[timed["event"].to_numpy()] = found.to_numpy()
    return lost[event]


def _communicators(context: Context, event: Ints) -> Any:
    """Communicator of each event, the empty text where it is unknown; shape as given."""
    found = pl.DataFrame({"event": event}).join(
        context.timed.select("event", "communicator"), on="event", how="left", maintain_order="left"
    )
    return found["communicator"].fill_null("").to_numpy()


def _other_communicators(context: Context, transfer: NDArray[np.bool_]) -> dict[int, dict[str, Intervals]]:
    """For each rank and communicator of a transfer on the path: when other communicators of the rank transferred."""
    known = context.timed.filter(
        pl.col("communicator").is_not_null(), pl.col("transfer_start_ns").is_not_null()
    )
    if known["communicator"].n_unique() < 2 or not transfer.any():
        return {}
    made: dict[int, dict[str, Intervals]] = {}
    for rank in context.trace.rank_numbers:
        mine = known.filter(pl.col("rank") == rank)
        for communicator in mine["communicator"].unique().to_list():
            others = mine.filter(pl.col("communicator") != communicator)
            made.setdefault(rank, {})[communicator] = Intervals.union_of(
                others["transfer_start_ns"].to_numpy(), others["end_ns"].to_numpy()
            )
    return made
