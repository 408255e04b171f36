"""To which cause is each part of the critical path given? To the first rule that holds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LAUNCH_NS, START_UP_NS
from nsysddp.model.intervals import Intervals
from nsysddp.model.trace import in_parallel
from nsysddp.questions.api_calls import are_like, is_allocation, is_copy
from nsysddp.questions.critical_path import COMMUNICATION_KINDS
from nsysddp.questions.diagnosis.blocking import are_of_kind, blocking_calls
from nsysddp.questions.diagnosis.causes import BY_CODE
from nsysddp.questions.diagnosis.device import (
    begun_in_order,
    busy_by_others,
    held_behind_compute,
    lengthened_by_others,
    longer_than_shortest,
    mostly_within,
)
from nsysddp.questions.diagnosis.facts import Facts
from nsysddp.questions.diagnosis.path import (
    cut_at_causes,
    host_phases,
    pieces_of,
    some_at_a_time,
    steady_paths,
)
from nsysddp.questions.diagnosis.pauses import shared_pauses
from nsysddp.questions.diagnosis.stopped import stopped_transfers
from nsysddp.questions.diagnosis.transfers import MOVING, Share, shares_of_transfers, transfer_causes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nsysddp.model.result import Result
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

COMPUTATION, UNRESOLVED = "computation", "unresolved"
"""What the path holds beside causes: work that the step is there for, and what the trace cannot tell."""

CAUSE = pl.Enum([*BY_CODE, COMPUTATION, UNRESOLVED])
_NUMBER = {name: number for number, name in enumerate(CAUSE.categories)}

HOST_KINDS = ("host", "host_gap", "sync")


@dataclass(frozen=True)
class _Run:
    """What rules ask of the whole run, found once for all paths.

    Attributes:
        pauses: per rank pauses of the host that it shares with its peers.
        busy: per rank on a shared GPU when another process ran work there.
        longer: by what share of itself each event is longer than its shortest like; empty where no GPU is shared.
        begun: per rank whose events begin in order of launch when what was launched before each had begun.
        reduces: which events are reductions of gradients.
        breaks: per rank when it was between two graphs of its compiled model.
    """

    pauses: dict[int, Intervals]
    busy: dict[int, Intervals]
    longer: Floats
    begun: dict[int, Ints]
    reduces: Flags
    breaks: dict[int, Intervals]

    @classmethod
    def of(cls, context: Context, facts: Facts, paths: Result) -> _Run:
        """Ask it, as far as there are parts of which it decides anything."""
        trace, busy = context.trace, busy_by_others(context.trace)
        queues = (paths["critical_path_kind"]["kind"] == "queued").any()
        return cls(
            pauses=shared_pauses(context),
            busy=busy,
            longer=longer_than_shortest(context) if busy else np.empty(0),
            begun=begun_in_order(trace) if queues else {},
            reduces=_reductions(context, facts),
            breaks={
                int(str(rank)): Intervals.union_of(own["start_ns"], own["end_ns"])
                for (rank,), own in facts.breaks.group_by("rank")
            },
        )


def given_to_causes(context: Context, facts: Facts, paths: Result) -> pl.DataFrame:
    """What parts of paths cost by their cause: of all like parts of a path together, of transfers each by itself.

    Returns:
        ``path``, ``step``, ``step_index``, ``kind``, ``rank``, ``phase``, ``name``, ``host_phase``, ``event`` (of
        transfers), ``cause``, ``cost_ns``, ``pieces`` that begin with one of them, and ``cost``: what they add to the
        mean over the paths of a step, and over the steps.
    """
    run, chosen = _Run.of(context, facts, paths), steady_paths(paths)

    def given(some: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        cut = cut_at_causes(facts.own, context.graph, pieces_of(some, chosen))
        return _given(context, facts, run, cut)

    pieces = paths["critical_path"]
    every = in_parallel(some_at_a_time(pieces), given, events=pieces.height)
    likes, transfers = (pl.concat(frames) for frames in zip(*every, strict=True))
    # Transfers are few, and what is known of them is of all events: they are given to causes at once.
    return _weighted(pl.concat([likes, *_given_transfers(context, facts, transfers)], how="diagonal"))


_LIKE = ("path", "step", "step_index", "paths", "steps", "kind", "rank", "phase", "name", "host_phase")


def _given(context: Context, facts: Facts, run: _Run, cut: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Of some paths what is given to causes, like parts together, and the parts of transfers."""
    launching = are_of_kind(cut, "gap") & (cut["via"] == "launch").fill_null(False).to_numpy()
    host = are_of_kind(cut, *HOST_KINDS) | launching
    blocking = blocking_calls(context.graph, cut, host)
    every = _named(context, cut, blocking)
    transfer = are_of_kind(every, "transfer")
    rules = _rules(context, facts, run, every, host, blocking >= 0)
    cause = np.select(
        [holds for _, holds in rules], [_NUMBER[name] for name, _ in rules], default=_NUMBER[UNRESOLVED]
    )
    parts = every.filter(~transfer)
    shares = [
        Share("other_process", lengthened_by_others(run.busy, run.longer, parts), (COMPUTATION,)),
        Share("contention", _contention(context, facts, parts), (COMPUTATION,)),
    ]
    divided = pl.concat(_divided(parts, cause[~transfer], shares))
    likes = divided.group_by(*_LIKE, "cause", maintain_order=True).agg(pl.col("cost_ns", "pieces").sum())
    return likes, every.filter(transfer).select(*_LIKE, "event", "is_first", "start_ns", "end_ns")


def _given_transfers(context: Context, facts: Facts, parts: pl.DataFrame) -> list[pl.DataFrame]:
    """What is left to the causes of transfers, and what others take of it."""
    cause = np.array([_NUMBER[name] for name in transfer_causes(context, facts, parts)], dtype=np.int64)
    stopped = stopped_transfers(context, facts.stopped, parts)
    shares = chain(
        (Share("straggler", part, MOVING, rank) for rank, part in stopped),
        shares_of_transfers(context, facts, parts),
    )
    return _divided(parts, cause, shares)


def _divided(parts: pl.DataFrame, cause: Ints, shares: Iterable[Share]) -> list[pl.DataFrame]:
    """Of parts with a cause what is left to it, and what each other takes of it, as far as there is any left."""
    base = parts.select(*_LIKE, "event", pieces=pl.col("is_first").cast(pl.Int64))
    duration = (parts["end_ns"] - parts["start_ns"]).to_numpy()
    left = duration.copy()
    rows = [_taken_from(base, left, _are(cause, share.of), share) for share in shares]
    first = CAUSE.categories.cast(CAUSE).gather(cause)
    rows.insert(0, base.with_columns(cause=first, cost_ns=pl.Series(left)).filter(pl.col("cost_ns") > 0))
    assert sum(int(row["cost_ns"].sum()) for row in rows) == int(duration.sum())
    return rows


def _weighted(parts: pl.DataFrame) -> pl.DataFrame:
    """The parts with what each adds to the mean over the paths of a step, and over the steps."""
    cost = pl.col("cost_ns") / pl.col("paths") / pl.col("steps")
    return parts.with_columns(cost=cost).drop("paths", "steps")


def _are(cause: Ints, names: Sequence[str]) -> Flags:
    """Which parts have one of these causes?"""
    return np.isin(cause, [_NUMBER[name] for name in names])


def _taken_from(base: pl.DataFrame, left: Ints, allowed: Flags, share: Share) -> pl.DataFrame:
    """The parts of which something goes to another cause; takes it from ``left``."""
    taken = np.where(allowed, np.minimum(np.rint(share.part).astype(np.int64), left), 0)
    left -= taken
    real = np.flatnonzero(taken > 0)
    rank = pl.col("rank") if share.rank is None else pl.lit(share.rank, pl.Int32)
    return base[real].with_columns(
        rank=rank,
        pieces=pl.lit(0, pl.Int64),
        cause=pl.lit(share.cause, CAUSE),
        cost_ns=pl.Series(taken[real]),
    )


def _named(context: Context, cut: pl.DataFrame, blocking: NDArray[np.int64]) -> pl.DataFrame:
    """The parts; what is in a blocking call or follows from it by the name and the phase of the call."""
    lines = context.graph.lines
    rank = cut["rank"].fill_null(-1).to_numpy().astype(np.int64)
    start, end = cut["piece_start_ns"].to_numpy().copy(), cut["piece_end_ns"].to_numpy().copy()
    calls = np.flatnonzero((blocking >= 0) & (cut["kind"] != "memory").to_numpy())
    start[calls], end[calls] = lines.start[blocking[calls]], lines.end[blocking[calls]]
    spent = np.flatnonzero((blocking >= 0) | cut["is_long"].to_numpy())
    phases = host_phases(context, rank[spent], start[spent], end[spent])
    names = cut["name"]
    if calls.size:
        names = _with(names, calls, context.trace.call_names(lines.row[blocking[calls]]))
    copies = np.flatnonzero((blocking >= 0) & (cut["kind"] == "memory").to_numpy())
    if copies.size:
        called = context.trace.call_names(lines.row[blocking[copies]])
        how = np.where(called.str.contains("Async").fill_null(False).to_numpy(), " (pageable)", " (blocking)")
        names = _with(names, copies, names.gather(copies).cast(pl.String) + pl.Series(how))
    unknown = pl.repeat(None, cut.height, dtype=pl.Categorical, eager=True)
    return cut.with_columns(name=names, host_phase=_with(unknown, spent, phases))


def _with(texts: pl.Series, rows: Ints, others: pl.Series) -> pl.Series:
    """The texts, with others in these rows."""
    place = np.arange(texts.len())
    place[rows] = texts.len() + np.arange(rows.size)
    made: pl.Series = pl.concat([texts, others.cast(pl.Categorical)]).gather(place)
    return made


def _rules(
    context: Context,
    facts: Facts,
    run: _Run,
    parts: pl.DataFrame,
    host: Flags,
    blocked: Flags,
) -> list[tuple[str, Flags]]:
    """Causes and where they hold, the first first."""
    length = (parts["piece_end_ns"] - parts["piece_start_ns"]).to_numpy()
    long = parts["is_long"].to_numpy()
    name = parts["name"]
    gap, memory, queued = (are_of_kind(parts, kind) for kind in ("gap", "memory", "queued"))
    waits = gap | queued
    ready = gap & np.where(host, length > LAUNCH_NS, length > START_UP_NS)
    late = parts["late"].to_numpy() & ~are_of_kind(parts, *COMMUNICATION_KINDS)
    late &= ~(host & mostly_within(run.pauses, parts))
    peer = memory & are_like(name, "PtoP|peer")
    # A reduction of gradients was ready on the GPU, and not launched.
    unlaunched = parts["unlaunched"].to_numpy()
    gradients = (unlaunched >= 0) & run.reduces[unlaunched]
    return [
        ("other_process", waits & mostly_within(run.busy, parts)),
        ("unexplained", ready),
        ("straggler", late),
        ("held_behind_compute", queued & held_behind_compute(context.trace, run.begun, parts)),
        ("queued", queued),
        ("peer_copies", peer),
        ("copies", memory | host & blocked & is_copy(name)),
        ("allocation", host & is_allocation(name)),
        ("synchronisation", host & blocked),
        ("small_buckets", host & gradients & facts.merging.is_cause),
        ("bucket_scheduling", host & gradients),
        ("graph_breaks", host & mostly_within(run.breaks, parts)),
        ("host_stall", host & long),
        ("host_bound", host),
        ("kernel_latency", gap),
        (COMPUTATION, are_of_kind(parts, "compute", "spin")),
    ]


def _reductions(context: Context, facts: Facts) -> Flags:
    """Which events are reductions of gradients?"""
    phases = context.attribution.phases["phase"]
    kinds = context.timed.filter(pl.col("kind").is_in(["all_reduce", "reduce_scatter"]))
    if phases.is_in(["backward"]).any():
        buckets = facts.buckets.filter(pl.col("role").is_in(["gradients", "reduce_scatter"]))
        kinds = kinds.join(
            buckets.select("rank", "collective_id").cast({"rank": pl.Int64}),
            on=["rank", "collective_id"],
            how="semi",
        )
    reduces = np.zeros(context.trace.events.height, dtype=bool)
    reduces[kinds["event"].to_numpy()] = True
    return reduces


def _contention(context: Context, facts: Facts, parts: pl.DataFrame) -> Floats:
    """What computation beside communication lost to it, by what was measured on the rank, ns of each part."""
    computing, rank = are_of_kind(parts, "compute"), parts["rank"].fill_null(-1).to_numpy()
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    step = parts["step_index"].fill_null(-1).to_numpy()
    contended = np.zeros(parts.height)
    for owner in context.trace.rank_numbers:
        beside = np.flatnonzero((rank == owner) & computing)
        communication = context.trace.union(owner, ["communication"])
        steps, which = np.unique(step[beside], return_inverse=True)
        share = np.array([facts.slowing.lost(owner, int(number)) for number in steps])[which]
        contended[beside] = share * communication.length_within(start[beside], end[beside])
    return contended
