"""Which pauses of a rank's host are pauses of all ranks?

A host that stops on all ranks makes none late, though the others need not show it: where their GPUs wait for
communication meanwhile, their own line has no gap. So host time is compared with host time: what the host of each rank
took in a phase of a step by itself, outside calls and in them once what they waited for was there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.host import Blocking, blocking_kind
from nsysddp.model.intervals import Intervals
from nsysddp.model.units import NS_PER_US
from nsysddp.questions.diagnosis.path import host_phases
from nsysddp.questions.peers import median_of_others

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

LEAST_NS = 100 * NS_PER_US
"""Host time in one piece from which on it is a pause, rather than launching."""

_ALIKE = 0.5
"""Peers whose pauses last at least this share of a rank's have the same pause."""


def shared_pauses(context: Context) -> dict[int, Intervals]:
    """Per rank: its pauses in those phases and steps in which its peers' hosts paused for about as long."""
    found = _pauses(context)
    if found.is_empty():
        return {}
    length = pl.col("end_ns") - pl.col("start_ns")
    place = ["rank", "step", "phase"]
    sums = found.group_by(place).agg(own=length.sum()).sort(place)
    same = sums.select(pl.struct("step", "phase").rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    others = np.full(sums.height, len(context.trace.rank_numbers) - 1, dtype=np.int64)
    peers = median_of_others(same, sums["own"].to_numpy(), others)
    alike = sums.filter(pl.Series(peers >= _ALIKE * sums["own"].to_numpy()))
    shared = found.join(alike, on=place, how="semi", nulls_equal=True)
    return {
        int(str(rank)): Intervals.union_of(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        for (rank,), own in shared.group_by("rank")
    }


def _pauses(context: Context) -> pl.DataFrame:
    """``rank``, ``step``, ``phase``, ``start_ns`` and ``end_ns`` of every pause: gaps ahead of calls, and calls."""
    numbers, first = context.graph.lines.ranks
    silent = _waits_unresolved(context)
    parts = [
        _pauses_of(context, int(rank), slice(low, high), silent)
        for rank, low, high in zip(numbers.tolist(), first[:-1].tolist(), first[1:].tolist(), strict=True)
        if high > low
    ]
    return pl.concat(parts) if parts else pl.DataFrame()


def _pauses_of(context: Context, rank: int, line: slice, silent: NDArray[np.bool_]) -> pl.DataFrame:
    """Those of one rank; first the gaps, then the calls."""
    graph = context.graph
    start, end, awaited = graph.lines.start[line], graph.lines.end[line], graph.lines.awaited[line]
    ahead = np.append(start[0], np.maximum.accumulate(end)[:-1])
    waited = np.where(awaited >= 0, graph.ends(np.maximum(awaited, 0)), 0)
    parts = []
    for begin, finish, chosen in (
        (np.minimum(ahead, start), start, True),
        (np.clip(waited, start, end), end, ~silent[line]),
    ):
        long = np.flatnonzero((finish - begin > LEAST_NS) & chosen)
        opened, closed = begin[long], finish[long]
        launched = graph.lines.leads_to[line][long]
        step = np.where(launched >= 0, context.attribution.step[np.maximum(launched, 0)], -1)
        owner = np.full(long.size, rank, dtype=np.int64)
        parts.append(
            pl.DataFrame(
                {
                    "rank": owner,
                    "step": step,
                    "phase": host_phases(context, owner, opened, closed),
                    "start_ns": opened,
                    "end_ns": closed,
                }
            )
        )
    return pl.concat(parts)


def _waits_unresolved(context: Context) -> NDArray[np.bool_]:
    """Which calls wait for the GPU, and nothing says for what? Their own time is unknown."""
    lines = context.graph.lines
    waits = context.trace.calls_named(lambda name: blocking_kind(name) != Blocking.NOTHING)
    flags: NDArray[np.bool_] = waits[lines.row]
    flags[lines.awaited.at] = False
    return flags
