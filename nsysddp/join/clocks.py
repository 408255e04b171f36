"""On one time axis: how far each report's clock is from the others, and how well that is known.

Definitions, "When". Ranks of one report, and reports with equal anchors, share a clock and are never corrected
against each other. Between other reports there is one offset, the median difference of the ends of matched
collectives, from those with the shortest transfer, and a rate where long captures show that clocks drift; where two
share none, by way of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.join import drift
from nsysddp.join.drift import Line
from nsysddp.join.kernels import ALL_KINDS, SYNCHRONISING, Kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORT_TRANSFER_NS = 20_000
"""Ends of short collectives differ least by protocol."""


@dataclass(frozen=True)
class Clock:
    """Alignment of one clock.

    Attributes:
        line: what to add to its anchored times.
        residual_ns: median absolute deviation after it; None if nothing could be compared.
        method: shared, anchor, collectives or none.
    """

    residual_ns: int | None
    method: str
    line: Line = field(default_factory=Line)


def clocks_of(anchors: Sequence[int | None]) -> list[int]:
    """A clock number for each report: equal anchors share one, a report without an anchor has its own."""
    seen: dict[object, int] = {}
    return [
        seen.setdefault(anchor if anchor is not None else ("report", number), len(seen))
        for number, anchor in enumerate(anchors)
    ]


def align(kernels: Kernels, anchored: Mapping[int, bool]) -> dict[int, Clock]:
    """The alignment of every clock, from clock to clock: against the first one where collectives lead there.

    A clock that shares collectives with the first is compared with it, one that does not with a clock that is aligned
    already, and so on. A clock that nothing leads to keeps its anchor, and others are aligned with it.

    Args:
        kernels: matched communication kernels.
        anchored: clock number to whether its report named its session start.

    Returns:
        Clock number to its alignment.
    """
    result: dict[int, Clock] = {}
    if len(anchored) == 1:
        return {0: Clock(None, "shared")}
    ends = _ends(kernels)
    better = ends.filter("synchronises")
    for clock in sorted(anchored):
        if clock in result:
            continue
        lone = "anchor" if anchored[clock] and anchored[0] else "none"
        result[clock] = Clock(None, lone if clock else "shared")
        # Kinds in which a rank can end before others arrive are for those that share no better ones.
        while len(result) < len(anchored) and (_reach(better, result) or _reach(ends, result)):
            pass
    _check(better, result)
    return result


def _ends(kernels: Kernels) -> pl.DataFrame:
    """One row per matched collective and clock: its end there, its shortest kernel anywhere, and its kind's nature."""
    rows = np.flatnonzero(kernels.collective >= 0)
    synchronising = [ALL_KINDS.index(kind) for kind in (*SYNCHRONISING, "send_recv")]
    frame = pl.DataFrame(
        {
            "collective": kernels.collective[rows],
            "clock": kernels.clock[rows],
            "end": kernels.end[rows],
            "duration": kernels.end[rows] - kernels.start[rows],
            "synchronises": np.isin(kernels.kind[rows], synchronising),
        }
    )
    return (
        frame.group_by("collective", "clock")
        .agg(
            pl.col("end").median().floor().cast(pl.Int64),
            pl.col("duration").min(),
            pl.col("synchronises").all(),
        )
        .with_columns(pl.col("duration").min().over("collective").alias("transfer"))
        .sort("collective", "clock")
    )


def _differences(ends: pl.DataFrame, aligned: Mapping[int, Clock]) -> pl.DataFrame:
    """How far each end is before the aligned end by the clock aligned first.

    Returns:
        clock, lead_clock, recorded (the end, not aligned), difference and transfer.
    """
    order = pl.DataFrame(
        [
            (clock, place, one.line.offset_ns, one.line.rate, one.line.origin_ns)
            for place, (clock, one) in enumerate(aligned.items())
        ],
        schema={
            "clock": pl.Int64,
            "place": pl.Int64,
            "offset": pl.Int64,
            "rate": pl.Float64,
            "origin": pl.Int64,
        },
        orient="row",
    )
    placed = ends.join(order, on="clock", how="left").sort("collective", "place", nulls_last=True)
    lead = pl.col("clock", "place").first().over("collective").name.prefix("lead_")
    drifted = ((pl.col("end") - pl.col("origin")) * pl.col("rate")).round(mode="half_to_even").cast(pl.Int64)
    end = pl.col("end") + (pl.col("offset") + drifted).fill_null(0)
    return (
        placed.with_columns(lead, recorded="end", end=end)
        .with_columns(difference=pl.col("end").first().over("collective") - pl.col("end"))
        .filter(pl.col("lead_place").is_not_null() & (pl.col("clock") != pl.col("lead_clock")))
        .select("clock", "lead_clock", "recorded", "difference", "transfer")
    )


def _reach(ends: pl.DataFrame, aligned: dict[int, Clock]) -> bool:
    """Align every clock that shares a collective with an aligned one; False if there is none."""
    found = _differences(ends, aligned).filter(~pl.col("clock").is_in(list(aligned)))
    for (clock,), mine in sorted(found.partition_by("clock", as_dict=True).items()):
        recorded, difference = _chosen(mine)
        line = drift.fit(recorded, difference)
        residual = int(np.median(np.abs(difference - line.at(recorded))))
        aligned[clock] = Clock(residual, "collectives", line)
    return found.height > 0


def _check(ends: pl.DataFrame, aligned: dict[int, Clock]) -> None:
    """Clocks aligned along different ways must agree where they meet, too: the worst residual counts."""
    met = _differences(ends, aligned).partition_by("clock", "lead_clock", as_dict=True)
    for (clock, _), mine in met.items():
        residual = int(np.median(np.abs(_chosen(mine)[1])))
        aligned[clock] = replace(aligned[clock], residual_ns=max(residual, aligned[clock].residual_ns or 0))


def _chosen(pairs: pl.DataFrame) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ends and their differences to believe: those of short transfers, if there are enough all over the capture."""
    short = pairs.filter(pl.col("transfer") <= SHORT_TRANSFER_NS)
    reach = [float(np.ptp(frame["recorded"].to_numpy())) if frame.height else 0.0 for frame in (short, pairs)]
    enough = short.height >= 3 and (
        reach[0] >= reach[1] / 2 or reach[1] * drift.MOST_RATE < SHORT_TRANSFER_NS
    )
    chosen = short if enough else pairs
    return chosen["recorded"].to_numpy(), chosen["difference"].to_numpy()
