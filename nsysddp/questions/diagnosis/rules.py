"""To which cause is each part of the critical path given? To the first rule that holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LAUNCH_NS, START_UP_NS
from nsysddp.model.intervals import Intervals
from nsysddp.questions.api_calls import are_like, is_allocation, is_copy
from nsysddp.questions.critical_path import COMMUNICATION_KINDS
from nsysddp.questions.diagnosis.blocking import are_of_kind, blocking_calls
from nsysddp.questions.diagnosis.causes import BY_CODE
from nsysddp.questions.diagnosis.device import held_behind_compute, lengthened_by_others, other_process_ran
from nsysddp.questions.diagnosis.facts import Facts
from nsysddp.questions.diagnosis.path import host_phases
from nsysddp.questions.diagnosis.pauses import within_shared_pauses
from nsysddp.questions.diagnosis.stopped import stopped_transfers
from nsysddp.questions.diagnosis.transfers import MOVING, shares_of_transfers, transfer_causes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

COMPUTATION, UNRESOLVED = "computation", "unresolved"
"""What the path holds beside causes: work that the step is there for, and what the trace cannot tell."""

CAUSE = pl.Enum([*BY_CODE, COMPUTATION, UNRESOLVED])
_NUMBER = {name: number for number, name in enumerate(CAUSE.categories)}

HOST_KINDS = ("host", "host_gap", "sync")


def given_to_causes(context: Context, facts: Facts, cut: pl.DataFrame) -> pl.DataFrame:
    """One row per part of a piece and cause: path, step, cause, kind, rank, phase, name, cost_ns."""
    launching = are_of_kind(cut, "gap") & (cut["via"] == "launch").fill_null(False).to_numpy()
    host = are_of_kind(cut, *HOST_KINDS) | launching
    blocking = blocking_calls(context.graph, cut, host)
    parts = _named(context, cut, blocking)
    rules = _rules(context, facts, parts, host, blocking >= 0)
    cause = np.select(
        [holds for _, holds in rules], [_NUMBER[name] for name, _ in rules], default=_NUMBER[UNRESOLVED]
    )
    transfer = are_of_kind(parts, "transfer")
    cause[transfer] = [_NUMBER[name] for name in transfer_causes(context, facts, parts.filter(transfer))]

    base = parts.select(
        *("path", "step", "step_index", "kind", "rank", "phase", "name", "host_phase"),
        *("event", "is_first"),
    )
    duration = (parts["end_ns"] - parts["start_ns"]).to_numpy()
    left = duration.copy()
    rows = []
    for rank, part in stopped_transfers(context, facts.stopped, parts):
        row = _taken_from(base, left, part, _are(cause, MOVING), "straggler")
        rows.append(row.with_columns(rank=pl.lit(rank, pl.Int32)))
    for other, part, allowed in (
        *shares_of_transfers(context, facts, parts),
        ("other_process", lengthened_by_others(context, parts), (COMPUTATION,)),
        _contention(context, facts, parts),
    ):
        rows.append(_taken_from(base, left, part, _are(cause, allowed), other))
    first = CAUSE.categories.cast(CAUSE).gather(cause)
    rows.insert(0, base.with_columns(cause=first, cost_ns=pl.Series(left)).filter(pl.col("cost_ns") > 0))
    whole = pl.concat(rows)
    assert int(whole["cost_ns"].sum() or 0) == int(duration.sum())
    return whole


def _are(cause: Ints, names: Sequence[str]) -> Flags:
    """Which parts have one of these causes?"""
    return np.isin(cause, [_NUMBER[name] for name in names])


def _taken_from(base: pl.DataFrame, left: Ints, part: Floats, allowed: Flags, cause: str) -> pl.DataFrame:
    """The parts of which something goes to another cause, as far as they have any left; takes it from ``left``."""
    taken = np.where(allowed, np.minimum(np.rint(part).astype(np.int64), left), 0)
    left -= taken
    real = np.flatnonzero(taken > 0)
    return base[real].with_columns(
        is_first=pl.lit(False), cause=pl.lit(cause, CAUSE), cost_ns=pl.Series(taken[real])
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
    late &= ~(host & within_shared_pauses(context, parts))
    peer = memory & are_like(name, "PtoP|peer")
    gradients, small = _launched_late(context, facts, parts)
    return [
        ("other_process", waits & other_process_ran(context, parts)),
        ("unexplained", ready),
        ("straggler", late),
        ("held_behind_compute", queued & held_behind_compute(context, parts)),
        ("queued", queued),
        ("peer_copies", peer),
        ("copies", memory | host & blocked & is_copy(name)),
        ("allocation", host & is_allocation(name)),
        ("synchronisation", host & blocked),
        ("small_buckets", host & gradients & small),
        ("bucket_scheduling", host & gradients),
        ("graph_breaks", host & _between_graphs(facts.breaks, parts)),
        ("host_stall", host & long),
        ("host_bound", host),
        ("kernel_latency", gap),
        (COMPUTATION, are_of_kind(parts, "compute", "spin")),
    ]


def _between_graphs(breaks: pl.DataFrame, parts: pl.DataFrame) -> Flags:
    """Which parts lie mostly between two graphs of the compiled model of their rank?"""
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    rank = parts["rank"].fill_null(-1).to_numpy()
    found = np.zeros(parts.height, dtype=bool)
    for (owner,), own in breaks.group_by("rank"):
        mine = np.flatnonzero(rank == owner)
        inside = Intervals.union_of(own["start_ns"], own["end_ns"]).length_within(start[mine], end[mine])
        found[mine] = 2 * inside > end[mine] - start[mine]
    return found


def _launched_late(context: Context, facts: Facts, parts: pl.DataFrame) -> tuple[Flags, Flags]:
    """Was a reduction of gradients ready on the GPU, and not launched? And is it one whose latency dominates?"""
    event = parts["unlaunched"].to_numpy()
    unlaunched = event >= 0
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
    gradients = unlaunched & reduces[event]
    small = gradients & facts.merging.is_cause
    return gradients, small


def _contention(
    context: Context, facts: Facts, parts: pl.DataFrame
) -> tuple[str, NDArray[np.float64], tuple[str, ...]]:
    """What computation beside communication lost to it, by what was measured on the rank."""
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
    return "contention", contended, (COMPUTATION,)
