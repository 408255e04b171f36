"""By how much do kernels slow down beside communication, and how long are they when it is shorter?

A kernel loses the share ``s`` of the time that it spends beside communication::

    work     = recorded duration - s x recorded time beside communication
    duration = work + s x time beside communication          in any other run

The time beside communication hangs on the schedule and the schedule on the durations: both are found together, going
forward in time (``dependencies.forward``).

The share is that of the contention table where it has one; else of all executions of one kernel and shape together,
which mixes places of a layer; else nothing is known, and a band has to reach to ``UNKNOWN_SHARE``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies import replay
from nsysddp.dependencies.forward import Beside, durations
from nsysddp.questions.contention import ACCOMPANIED_SHARE, COMPUTE, MIN_SAMPLES, MIXED_RATIO
from nsysddp.questions.contention.executions import executions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsysddp.dependencies.replay import Program, Schedule
    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context
    from nsysddp.questions.whatif.sharing import Transfers

    Floats = NDArray[np.float64]
    Ints = NDArray[np.integer[Any]]

UNKNOWN_SHARE = 1 / 3
"""What kernels may lose beside communication where nothing is known: up to half as long again."""

_MOST = 0.95
_ENOUGH = 0.25
"""Share of the time beside communication that the kernels with an estimate must have."""


@dataclass(frozen=True)
class Slowing:
    """What each rank's kernels lose of the time beside communication.

    Attributes:
        low, mid, high: the share by rank, with what the capture leaves open.
        is_known: it was measured on every rank that has any.
    """

    low: Mapping[int, float]
    mid: Mapping[int, float]
    high: Mapping[int, float]
    is_known: bool

    @property
    def different(self) -> list[Mapping[int, float]]:
        """The shares to be tried: the likely ones, then the ends of what they can be, where these differ."""
        made = [self.mid]
        made += [share for share in (self.low, self.high) if share not in made]
        return made

    @classmethod
    def of(cls, context: Context) -> Slowing:
        """What this capture says."""
        trace = context.trace
        ranks = trace.rank_numbers
        nothing = dict.fromkeys(ranks, 0.0)
        if trace.shapes is None:
            return cls(nothing, nothing, dict.fromkeys(ranks, UNKNOWN_SHARE), is_known=False)
        found: dict[int, tuple[float, float, float]] = {}
        table = context.contention["contention_step"].filter(
            pl.col("contention_ns").is_not_null(), pl.col("hidden_communication_ns") > 0
        )
        sums = table.group_by("rank").agg(
            pl.col(
                "contention_low_ns", "contention_ns", "contention_high_ns", "hidden_communication_ns"
            ).sum()
        )
        for rank, low, mid, high, beside in sums.iter_rows():
            found[rank] = low / beside, mid / beside, high / beside
        kernels = context.contention["contention"].filter(pl.col("side") == COMPUTE)
        unknown = set(kernels["rank"].to_list()) - set(found)
        if unknown:
            together = _together(executions(context))
            if together is not None:
                found |= dict.fromkeys(unknown, together)
                unknown = set()
        low, mid, high = (
            {rank: _within(found.get(rank, (0.0, 0.0, 0.0))[side]) for rank in ranks} for side in range(3)
        )
        return cls(low, mid, high | dict.fromkeys(unknown, UNKNOWN_SHARE), is_known=not unknown)


def _within(share: float) -> float:
    return min(max(share, 0.0), _MOST)


def _together(kernels: pl.DataFrame) -> tuple[float, float, float] | None:
    """Share lost, of executions of one kernel and shape on all ranks: lower and upper quartile, and mean."""
    alone = pl.col("beside_ns") == 0
    accompanied = pl.col("beside_ns") >= ACCOMPANIED_SHARE * pl.col("duration_ns")
    duration = pl.col("duration_ns")
    base = duration.filter(alone).median()
    groups = (
        kernels.group_by("shape")
        .agg(
            alone=alone.sum(),
            accompanied=accompanied.sum(),
            mixed=duration.filter(alone).quantile(0.9) > MIXED_RATIO * duration.filter(alone).quantile(0.1),
            share=((duration - base) / pl.col("beside_ns")).filter(accompanied).median(),
            beside=pl.col("beside_ns").cast(pl.Int64).sum(),
        )
        .sort("shape")
    )
    known = groups.filter(
        pl.col("alone") >= MIN_SAMPLES, pl.col("accompanied") >= MIN_SAMPLES, ~pl.col("mixed")
    ).sort("share", "beside")
    total = float(groups["beside"].sum())
    weight = known["beside"].cast(pl.Float64).to_numpy()
    if not total or weight.sum() < _ENOUGH * total:
        return None
    share, reached = known["share"].to_numpy(), np.cumsum(weight) / weight.sum()
    low, high = (float(share[min(int(np.searchsorted(reached, q)), share.size - 1)]) for q in (0.25, 0.75))
    mean = float((share * weight).sum() / weight.sum())
    return min(low, mean), mean, max(high, mean)


@dataclass(frozen=True)
class Kernels:
    """The kernels of a program that communication can slow down.

    Attributes:
        rows: events, rank by rank.
        beside: their recorded time beside communication, ns.
        of_rank: rank to its part of ``rows``.
        communication: events of each rank that are communication.
    """

    rows: Ints
    beside: Ints
    of_rank: Mapping[int, slice]
    communication: Mapping[int, Ints]

    @classmethod
    def of(cls, trace: Trace) -> Kernels:
        """Those of a trace."""
        events = trace.events
        start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        computes = events["class"].is_in(["compute", "spin"]).to_numpy()
        communicates = (events["class"] == "communication").to_numpy()
        rows, beside, of_rank, communication, at = [], [], {}, {}, 0
        for rank in trace.rank_numbers:
            first, last = trace.rows_of(rank)
            mine = first + np.flatnonzero(computes[first:last])
            time = trace.union(rank, ["communication"]).length_within(start[mine], end[mine])
            rows.append(mine.astype(np.int32))
            beside.append(time if time.max(initial=0) >> 31 else time.astype(np.int32))
            of_rank[rank] = slice(at, at + mine.size)
            communication[rank] = first + np.flatnonzero(communicates[first:last])
            at += mine.size
        return cls(np.concatenate(rows), np.concatenate(beside), of_rank, communication)

    def joined_by(self, ranks: Mapping[int, int]) -> Kernels:
        """The same beside communication that a scenario adds, by node and rank."""
        more: dict[int, list[int]] = {}
        for node, rank in ranks.items():
            more.setdefault(rank, []).append(node)
        sent = {
            rank: np.concatenate([nodes, np.asarray(more.get(rank, []), dtype=np.int64)])
            for rank, nodes in self.communication.items()
        }
        return replace(self, communication=sent)

    def freed(self, duration: Floats, share: Mapping[int, float]) -> Floats:
        """The durations of all nodes without what communication cost the kernels."""
        freed: Floats = duration.copy()
        for rank, part in self.of_rank.items():
            freed[self.rows[part]] -= share[rank] * self.beside[part]
        return freed

    def settled(
        self, program: Program, share: Mapping[int, float], transfers: Transfers | None = None
    ) -> Schedule:
        """The schedule of a program whose communication is another, with kernels as long as that makes them.

        Args:
            program: with the durations that everything has alone (``freed``, ``Transfers.alone``).
            share: what each rank's kernels lose beside communication.
            transfers: those that share links; None if none do.
        """
        if not any(share.values()) and transfers is None:
            return replay.run(program, calls=False)
        ranks, size = len(self.of_rank), program.duration.size
        rank = np.full(size, -1, dtype=np.int16 if ranks < 1 << 15 else np.int32)
        stream = np.full_like(rank, -1) if transfers is not None else rank  # which nobody asks for then
        shares, links, sent = np.zeros(ranks), np.zeros(ranks), np.zeros(size, dtype=bool)
        for number, (name, part) in enumerate(self.of_rank.items()):
            rank[self.rows[part]] = rank[self.communication[name]] = number
            sent[self.communication[name]] = True
            shares[number] = share[name]
            if transfers is not None and len(transfers.lanes[name]) > 1:
                links[number] = transfers.share[name]
                for lane, nodes in enumerate(transfers.lanes[name]):
                    stream[nodes] = lane
        took = durations(program.structure, program.weights, Beside(rank, sent, stream, shares, links))
        return replay.run(program.having(duration=took), calls=False)
