"""Why is each transfer on the critical path there?"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from nsysddp.dependencies.queues import event_queues
from nsysddp.questions.diagnosis.competing import lost_to_others
from nsysddp.questions.diagnosis.facts import SLOW_LINK, Facts
from nsysddp.questions.latency import LATENCY
from nsysddp.questions.link import Link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Share(NamedTuple):
    """What a cause takes of parts of paths that have another.

    Attributes:
        cause: that takes it.
        part: ns of each part.
        of: causes from which it is taken.
        rank: on which the reason lies; None where that is the rank of the part.
    """

    cause: str
    part: Floats
    of: tuple[str, ...]
    rank: int | None = None


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


def shares_of_transfers(context: Context, facts: Facts, parts: pl.DataFrame) -> Iterator[Share]:
    """Causes that hold a share of a transfer."""
    rank, event = parts["rank"].to_numpy(), parts["event"].to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    length = end - start
    lost = np.zeros(context.trace.events.height)
    lost[facts.transfers["event"].to_numpy()] = (
        lost_to_others(facts.transfers) / facts.transfers["duration_ns"].to_numpy()
    )
    yield Share("process_groups", length * lost[event], MOVING)
    del lost  # it is as long as all events
    slowed = np.zeros(parts.height)
    for owner, share in facts.slower_transfer.items():
        rows = np.flatnonzero(rank == owner)
        computing = context.trace.union(owner, ["compute", "spin"])
        slowed[rows] = share * computing.length_within(start[rows], end[rows])
    yield Share("link_contention", slowed, MOVING)
    yield Share("small_buckets", _for_being_small(context, facts, event) * length, _UNPLACED)
    few = set(context.deciding.filter(decides=LATENCY)["collective_id"].to_list())
    yield Share("message_latency", _of_collectives(context, event, few) * length, _UNPLACED)


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
    size = bytes_of(context, link)[event]
    if merging.collectives:
        size = np.where(gradients, size, 0)
    whole = link.latency_ns + link.ns_per_byte * size
    latency = np.where((size > 0) & (whole > 0), link.latency_ns / np.maximum(whole, 1), 0.0)
    # Latency is there for every message; it is the cause only where it dominates.
    return np.where(latency > SLOW_LINK, latency, 0.0)


def _of_collectives(context: Context, event: Ints, collectives: AbstractSet[int]) -> NDArray[np.bool_]:
    """Which events belong to one of these collectives?"""
    ids = context.timed["collective_id"].fill_null(-1).to_numpy()
    chosen = np.isin(ids, np.asarray(sorted(collectives), dtype=np.int64))
    found = np.zeros(context.trace.events.height, dtype=bool)
    found[context.timed["event"].to_numpy()[chosen]] = True
    of_events: NDArray[np.bool_] = found[event]
    return of_events
