"""How much longer is a transfer beside another one of its rank, and how long when others run beside it?

Gradients of one group and what another group exchanges can leave a GPU over one link. A transfer that shares it loses
the share ``s`` of the time beside the other, half of it where both get the same::

    alone    = recorded transfer - s x recorded time beside other transfers
    transfer = alone + s x time beside other transfers              in any other run

``s`` is measured where collectives of one kind, size and group ran both alone and beside others; else it is unknown,
and what an even share would do belongs to the band.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.dependencies.replay import Program
    from nsysddp.model.trace import Trace

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

EVEN_SHARE = 0.5
"""Of two transfers that get the same of a link."""

_LEAST_SAMPLES = 3
_ALONE, _TOGETHER = 0.02, 0.4
"""Of its time beside others: below it counts as alone, above as beside others."""

_LEAST_SHARE = 0.05
_MOST_SHARE = 0.75


@dataclass(frozen=True)
class Transfers:
    """The transfers of a program that can share a link.

    Attributes:
        lanes: of each rank its communication by stream: nodes.
        beside: recorded time beside transfers of other streams of the rank, ns; shape (events,).
        share: what a transfer of each rank loses of the time beside another one: ranks share with others what they
            send over, and some groups of theirs go other ways.
        is_known: it was measured; else it is 0.
    """

    lanes: Mapping[int, tuple[Ints, ...]]
    beside: Floats
    share: Mapping[int, float]
    is_known: bool

    @classmethod
    def of(cls, trace: Trace, program: Program) -> Transfers:
        """Those of a trace with its recorded program."""
        events = trace.events
        sent, stream = (events["class"] == "communication").to_numpy(), events["stream"].to_numpy()
        lanes = {}
        for rank in trace.rank_numbers:
            first, last = trace.rows_of(rank)
            rows = first + np.flatnonzero(sent[first:last])
            lanes[rank] = tuple(rows[stream[rows] == number] for number in np.unique(stream[rows]))
        end = events["end_ns"].to_numpy().astype(np.float64)
        transfers = cls(lanes, np.zeros(events.height), dict.fromkeys(lanes, 0.0), is_known=False)
        begin = end - program.duration[: events.height]
        for rank in lanes:
            for rows, others in transfers._neighbours(rank, begin, end):
                transfers.beside[rows] = others.length_within(
                    np.round(begin[rows]).astype(np.int64), end[rows].astype(np.int64)
                )
        share = _measured(trace, program.duration, transfers.beside)
        return replace(transfers, share=share, is_known=True) if share else transfers

    @property
    def matters(self) -> bool:
        """Does anything run beside anything else, and may it cost something?"""
        return bool(self.beside.any()) and (any(self.share.values()) or not self.is_known)

    @property
    def are_several(self) -> bool:
        """Does any rank communicate on several streams?"""
        return any(len(streams) > 1 for streams in self.lanes.values())

    @property
    def other_share(self) -> Mapping[int, float]:
        """What it could be as well: half of what was measured, or an even share where nothing was."""
        if not self.is_known:
            return dict.fromkeys(self.share, EVEN_SHARE)
        return {rank: share / 2 for rank, share in self.share.items()}

    def with_share(self, share: Mapping[int, float]) -> Transfers:
        """The same with other shares."""
        return replace(self, share=share)

    def joined_by(self, ranks: Mapping[int, int]) -> Transfers:
        """The same beside communication that a scenario adds, by node and rank, each rank's on a stream of its own."""
        more: dict[int, list[int]] = {}
        for node, rank in ranks.items():
            more.setdefault(rank, []).append(node)
        lanes = {
            rank: (*streams, np.asarray(more[rank], dtype=np.int64)) if rank in more else streams
            for rank, streams in self.lanes.items()
        }
        return replace(self, lanes=lanes)

    def alone(self, duration: Floats) -> Floats:
        """The durations of all nodes without what sharing cost the recorded transfers."""
        freed: Floats = duration.copy()
        for rank, streams in self.lanes.items():
            rows = np.concatenate(streams)
            rows = rows[rows < self.beside.size]
            freed[rows] -= np.minimum(self.share[rank] * self.beside[rows], freed[rows])
        return freed

    def _neighbours(self, rank: int, begin: Floats, end: Floats) -> list[tuple[Ints, Intervals]]:
        """Each stream's nodes, with when transfers of the rank's other streams run."""
        streams = self.lanes[rank]
        found = []
        for rows in streams if len(streams) > 1 else ():
            others = np.concatenate([other for other in streams if other is not rows])
            runs = others[end[others] > begin[others]]
            union = Intervals.union_of(
                np.round(begin[runs]).astype(np.int64), np.round(end[runs]).astype(np.int64)
            )
            found.append((rows, union))
        return found


def _measured(trace: Trace, duration: Floats, beside: Floats) -> dict[int, float]:
    """The share that transfers of each rank lose beside others, median over those alike alone and beside.

    A rank without such has the median of all; empty if there are none at all.
    """
    events = trace.collectives.select("event", "kind", "bytes", "group_size").drop_nulls()
    row = events["event"].to_numpy()
    known = (
        events.with_columns(
            rank=pl.Series(trace.events["rank"].to_numpy()[row]),
            duration=pl.Series(duration[row]),
            beside=pl.Series(beside[row]),
        )
        .filter(pl.col("duration") > 0)
        .with_columns(part=pl.col("beside") / pl.col("duration"))
    )
    alike = ["rank", "kind", "bytes", "group_size"]
    alone = (
        known.filter(pl.col("part") <= _ALONE)
        .group_by(alike)
        .agg(base=pl.col("duration").median(), samples=pl.len())
    )
    together = known.filter(pl.col("part") >= _TOGETHER).join(
        alone.filter(pl.col("samples") >= _LEAST_SAMPLES), on=alike
    )
    if together.height < _LEAST_SAMPLES:
        return {}
    lost = together.with_columns(lost=(pl.col("duration") - pl.col("base")) / pl.col("beside"))
    of_all = lost["lost"].median()
    of_rank = dict(
        lost.group_by("rank")
        .agg(pl.col("lost").median(), samples=pl.len())
        .filter(pl.col("samples") >= _LEAST_SAMPLES)
        .select("rank", "lost")
        .iter_rows()
    )
    found = {rank: float(of_rank.get(rank, of_all)) for rank in trace.rank_numbers}  # type: ignore[arg-type]
    return {rank: 0.0 if share < _LEAST_SHARE else min(share, _MOST_SHARE) for rank, share in found.items()}
