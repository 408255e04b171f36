"""To which cause is each part of the critical path given?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS, Graph
from nsysddp.model.intervals import Intervals
from nsysddp.questions.critical_path import COMMUNICATION_KINDS
from nsysddp.questions.diagnosis.facts import Facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

COMPUTATION, UNRESOLVED = "computation", "unresolved"
"""What the path holds beside causes: work that the step is there for, and what the trace cannot tell."""


SLOW_LINK = 0.5
"""Below this share of the link's reference, busbw of large messages is called low."""
HOST_KINDS = ("host", "host_gap", "sync")


def given_to_causes(context: Context, graph: Graph, facts: Facts, cut: pl.DataFrame) -> pl.DataFrame:
    """One row per part of a piece and cause: path, step, cause, kind, rank, phase, name, cost_ns."""
    trace = context.trace
    duration = (cut["end_ns"] - cut["start_ns"]).to_numpy()
    kind = cut["kind"].cast(pl.String).to_numpy()
    rank = cut["rank"].fill_null(-1).to_numpy()
    event = cut["event"].fill_null(-1).to_numpy()
    phase = cut["phase"]
    cause = np.full(cut.height, UNRESOLVED, dtype=object)
    cause[np.isin(kind, ["compute", "spin"])] = COMPUTATION
    cause[kind == "memory"] = "copies"
    cause[kind == "queued"] = "queued"
    cause[kind == "gap"] = "kernel_latency"
    launched_late = (kind == "gap") & (cut["via"].cast(pl.String) == "launch").fill_null(False).to_numpy()
    host = np.isin(kind, HOST_KINDS) | launched_late
    cause[host] = "host_bound"
    cause[host & cut["is_long"].to_numpy()] = "host_stall"

    early = (cut["unlaunched"] >= 0).to_numpy() & host
    cause[early] = "bucket_scheduling"
    if facts.link is not None and facts.link.has_latency and early.any():
        sizes = _bytes_of(context)
        size = sizes[cut["unlaunched"].to_numpy()[early]]
        small = np.array([of > 0 and facts.link.latency_ratio(of) > SLOW_LINK for of in size], dtype=bool)
        cause[np.flatnonzero(early)[small]] = "small_buckets"
    backward = (phase == "backward").fill_null(False).to_numpy()
    cause[host & backward & np.isin(rank, facts.compiled) & (duration > LATENCY_NS)] = "graph_breaks"
    cause[_after_synchronisation(graph, cut, kind, host)] = "synchronisation"

    transfer = kind == "transfer"
    cause[transfer] = _transfer_causes(context, facts, event[transfer], rank[transfer])
    cause[cut["late"].to_numpy() & ~np.isin(kind, COMMUNICATION_KINDS)] = "straggler"

    shares = _shares(context, facts, cut, duration, kind, rank, event)
    base = cut.select(
        "path", "step", "step_index", "path_rank", "kind", "rank", "phase", "name", "host_phase", "is_first"
    ).with_columns(pl.col("kind").cast(pl.String))
    rows = [base.with_columns(cause=pl.Series(cause, dtype=pl.String))]
    left = duration.astype(np.int64).copy()
    costs: list[Ints] = []
    for other, part, allowed in shares:
        taken = np.where(np.isin(cause, allowed), np.minimum(np.rint(part).astype(np.int64), left), 0)
        left -= taken
        rows.append(base.with_columns(cause=pl.lit(other), is_first=pl.lit(False)))
        costs.append(taken)
    assert trace is graph.trace
    whole = pl.concat(
        [
            frame.with_columns(cost_ns=pl.Series(cost))
            for frame, cost in zip(rows, [left, *costs], strict=True)
        ]
    ).filter(pl.col("cost_ns") > 0)
    assert int(whole["cost_ns"].sum() or 0) == int(duration.sum())
    return whole


def _after_synchronisation(
    graph: Graph, cut: pl.DataFrame, kind: Any, host: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Host time in a synchronising call, and after it until the path leaves the host.

    At most for as long as the call had blocked the host: without it, the host would have been that much earlier. A long
    piece is a cause of its own.
    """
    size = kind.size
    synchronises: NDArray[np.bool_] = kind == "sync"
    if not synchronises.any():
        return synchronises
    path, duration = cut["path"].to_numpy(), (cut["end_ns"] - cut["start_ns"]).to_numpy()
    fresh = np.ones(size, dtype=bool)
    fresh[1:] = ~(host[1:] & host[:-1] & (path[1:] == path[:-1]))
    run_start = np.maximum.accumulate(np.where(fresh, np.arange(size), 0))
    last_sync = np.maximum.accumulate(np.where(synchronises, np.arange(size), -1))
    elapsed = np.cumsum(duration) - duration
    since = elapsed - elapsed[last_sync] - duration[last_sync]
    lost = _blocked(graph, cut, np.flatnonzero(synchronises))
    follows = host & (last_sync >= run_start) & (since < lost[last_sync]) & ~cut["is_long"].to_numpy()
    kept: NDArray[np.bool_] = synchronises | follows
    return kept


def _blocked(graph: Graph, cut: pl.DataFrame, places: Ints) -> Ints:
    """How long each synchronising call had blocked the host, at the place of its piece; 0 elsewhere, shape (parts,)."""
    lines = graph.lines
    lost = np.zeros(cut.height, dtype=np.int64)
    ranks = cut["rank"].to_numpy()[places]
    until = cut["end_ns"].to_numpy()[places]
    for rank in np.unique(ranks):
        calls = np.flatnonzero((lines.rank == rank) & (lines.awaited >= 0))
        calls = calls[np.argsort(lines.end[calls], kind="stable")]
        mine = places[ranks == rank]
        found = np.searchsorted(lines.end[calls], until[ranks == rank], side="left").clip(max=calls.size - 1)
        lost[mine] = (lines.end - lines.start)[calls[found]]
    return lost


def _bytes_of(context: Context) -> Ints:
    """Message size of each event, 0 where it is unknown or none; shape (events,)."""
    size = np.zeros(context.trace.events.height, dtype=np.int64)
    size[context.timed["event"].to_numpy()] = context.timed["bytes"].fill_null(0).to_numpy()
    return size


def _transfer_causes(context: Context, facts: Facts, event: Ints, rank: Ints) -> list[str]:
    """Why each transfer on the path is there: its stream, or its place among the buckets of its backward."""
    trace = context.trace
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
    made = []
    for number, owner, queue, node in zip(
        ids[event].tolist(), rank.tolist(), queues.iter_rows(), graph_nodes, strict=True
    ):
        count, final = place.get((number, owner), (0, False))
        if queue in facts.compute_streams and not node:
            made.append("compute_stream")
        elif count == 1:
            made.append("single_bucket")
        elif final:
            made.append("compute_tail")
        else:
            made.append("slow_communication")
    return made


def _shares(
    context: Context, facts: Facts, cut: pl.DataFrame, duration: Ints, kind: Any, rank: Ints, event: Ints
) -> Iterator[tuple[str, Floats, tuple[str, ...]]]:
    """Causes that hold a share of a part: the cause, ns of each part, and the causes from which it is taken."""
    trace = context.trace
    start, end = cut["start_ns"].to_numpy(), cut["end_ns"].to_numpy()
    transfer = kind == "transfer"
    moving = ("slow_communication", "compute_tail", "single_bucket", "compute_stream")
    competing = np.zeros(cut.height)
    slowed = np.zeros(cut.height)
    contended = np.zeros(cut.height)
    communicators = _other_communicators(context, transfer)
    step = cut["step_index"].fill_null(-1).to_numpy()
    for owner in trace.rank_numbers:
        mine = rank == owner
        beside = np.flatnonzero(mine & (kind == "compute"))
        communication = trace.union(owner, ["communication"])
        share = np.array([facts.slower.get((owner, int(number)), 0.0) for number in step[beside]])
        contended[beside] = share * communication.length_within(start[beside], end[beside])
        rows = np.flatnonzero(mine & transfer)
        if owner in facts.slower_transfer and rows.size:
            computing = trace.union(owner, ["compute", "spin"]).length_within(start[rows], end[rows])
            slowed[rows] = facts.slower_transfer[owner] * computing
        for communicator, others in communicators.get(owner, {}).items():
            own = rows[_communicators(context, event[rows]) == communicator]
            competing[own] = others.length_within(start[own], end[own])
    yield "process_groups", competing, moving
    yield "link_contention", slowed, moving
    if facts.link is not None and facts.link.has_latency:
        sizes = _bytes_of(context)
        size = np.where(event >= 0, sizes[event], 0)
        whole = facts.link.latency_ns + facts.link.ns_per_byte * size
        latency = np.where(
            transfer & (size > 0) & (whole > 0), facts.link.latency_ns / np.maximum(whole, 1), 0.0
        )
        # Latency is there for every message; it is the cause only where it dominates.
        yield "small_buckets", np.where(latency > SLOW_LINK, latency, 0.0) * duration, ("slow_communication",)
    yield "contention", contended, (COMPUTATION,)


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
