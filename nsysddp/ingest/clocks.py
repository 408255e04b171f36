"""On one time axis: how far each report's clock is from the others, and how well that is known.

Definitions, "When". Ranks of one report, and reports with equal anchors, share a clock and are never corrected
against each other. Between other reports there is one offset: the median difference of the ends of matched
collectives, from those with the shortest transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest.match import ALL_KINDS, SYNCHRONISING, Kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORT_TRANSFER_NS = 20_000
"""Ends of short collectives differ least by protocol."""


@dataclass(frozen=True)
class Clock:
    """Alignment of one clock: add ``offset_ns`` to its anchored times.

    Attributes:
        offset_ns: correction in ns.
        residual_ns: median absolute deviation after it; None if nothing could be compared.
        method: shared, anchor, collectives or none.
    """

    offset_ns: int
    residual_ns: int | None
    method: str


def clocks_of(anchors: Sequence[int | None]) -> list[int]:
    """A clock number for each report: equal anchors share one, a report without an anchor has its own."""
    seen: dict[object, int] = {}
    return [
        seen.setdefault(anchor if anchor is not None else ("report", number), len(seen))
        for number, anchor in enumerate(anchors)
    ]


def align(kernels: Kernels, anchored: Mapping[int, bool]) -> dict[int, Clock]:
    """The alignment of every clock against the first one.

    Args:
        kernels: matched communication kernels.
        anchored: clock number to whether its report named its session start.

    Returns:
        Clock number to its alignment.
    """
    result = {0: Clock(0, None, "shared")}
    if len(anchored) == 1:
        return result
    comparable = [ALL_KINDS.index(kind) for kind in (*SYNCHRONISING, "send_recv")]
    rows = np.flatnonzero((kernels.collective >= 0) & np.isin(kernels.kind, comparable))
    frame = pl.DataFrame(
        {
            "collective": kernels.collective[rows],
            "clock": kernels.clock[rows],
            "end": kernels.end[rows],
            "duration": kernels.end[rows] - kernels.start[rows],
        }
    )
    transfer = frame.group_by("collective").agg(pl.col("duration").min().alias("transfer"))
    ends = frame.group_by("collective", "clock").agg(pl.col("end").median().floor().cast(pl.Int64))
    first = ends.filter(pl.col("clock") == 0).select("collective", pl.col("end").alias("reference"))
    pairs = ends.filter(pl.col("clock") != 0).join(first, on="collective").join(transfer, on="collective")
    for clock in anchored:
        if clock == 0:
            continue
        mine = pairs.filter(pl.col("clock") == clock)
        result[clock] = _from_pairs(
            (mine["reference"] - mine["end"]).to_numpy(),
            mine["transfer"].to_numpy(),
            anchored[clock] and anchored[0],
        )
    return result


def _from_pairs(difference: NDArray[Any], transfer: NDArray[Any], anchored: bool) -> Clock:
    if not difference.size:
        return Clock(0, None, "anchor" if anchored else "none")
    short = difference[transfer <= SHORT_TRANSFER_NS]
    chosen = short if short.size >= 3 else difference
    offset = int(np.median(chosen))
    return Clock(offset, int(np.median(np.abs(chosen - offset))), "collectives")
