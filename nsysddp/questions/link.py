"""How long does a collective of a given size take on this link? A latency and a bandwidth, fitted on the trace.

    transfer(bytes) = latency_ns + bytes / bandwidth                  over the collectives of one kind and group size

Each collective counts once, with its shortest transfer over the ranks (the last arriver's view). The line minimises
the absolute *relative* deviations, because a collective of 4 bytes and one of 100 MB matter alike. What the fit
cannot know is said: with one size only there is no latency, and the time of other sizes is taken as proportional.
Transfers are those of the trace, with whatever computation ran beside them: contention is in the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_ROUNDS = 50
_SIZES_APART = 1.5
"""Sizes closer than this are one size: they cannot tell latency from bandwidth."""


@dataclass(frozen=True)
class Link:
    """Transfer time over message size of one kind of collective.

    Attributes:
        kind: collective kind.
        group_size: ranks in the communicator; None if unknown.
        latency_ns: time of an empty message; 0 where ``has_latency`` is False.
        ns_per_byte: slope.
        has_latency: sizes differ enough to tell latency from bandwidth.
        error_ratio: median absolute relative deviation of the collectives from the line.
        spread_ratio: 90th percentile of it.
        smallest_bytes, largest_bytes: sizes seen: outside them the line is extrapolated.
        samples: collectives fitted.
        sizes: distinct sizes among them.
    """

    kind: str
    group_size: int | None
    latency_ns: float
    ns_per_byte: float
    has_latency: bool
    error_ratio: float
    spread_ratio: float
    smallest_bytes: int
    largest_bytes: int
    samples: int
    sizes: int

    def transfer_ns(self, size_bytes: int) -> int:
        """Time of one collective of this size, in ns, rounded."""
        return round(self.latency_ns + self.ns_per_byte * size_bytes)

    @property
    def bandwidth_gbps(self) -> float | None:
        """Algorithm bandwidth of a very large message, decimal GB/s; None if the slope is 0."""
        return 1 / self.ns_per_byte if self.ns_per_byte > 0 else None


def fit_link(timed: pl.DataFrame, kind: str = "all_reduce", group_size: int | None = None) -> Link | None:
    """The line of one kind of collective; None if no matched one with a known size was seen.

    Args:
        timed: as returned by ``collectives.timed``, or a part of it.
        kind: collective kind.
        group_size: ranks in the communicator; None takes the group that moved the most bytes.
    """
    known = (
        timed.filter(
            pl.col("kind") == kind,
            pl.col("collective_id").is_not_null(),
            pl.col("bytes").is_not_null() & (pl.col("bytes") > 0),
            pl.col("ready_ns").is_not_null(),
        )
        .with_columns(transfer=pl.col("end_ns") - pl.col("transfer_start_ns"))
        .group_by("collective_id")
        .agg(pl.col("bytes").first(), pl.col("group_size").first(), pl.col("transfer").min())
        .filter(pl.col("transfer") > 0)
        .sort("collective_id")  # sums of floats in one order, so that the same trace gives the same bytes
    )
    if known.is_empty():
        return None
    if group_size is None:
        sums = known.group_by("group_size").agg(pl.col("bytes").sum()).sort("bytes", "group_size")
        group_size = sums["group_size"][-1]
    chosen = known.filter(pl.col("group_size").eq_missing(group_size))
    if chosen.is_empty():
        return None
    size = chosen["bytes"].cast(pl.Float64).to_numpy()
    time = chosen["transfer"].cast(pl.Float64).to_numpy()
    line = line_of(size, time)
    apart = line is not None
    latency, slope = line or (0.0, float(np.median(time / size)))
    deviation = np.abs(latency + slope * size - time) / time
    return Link(
        kind=kind,
        group_size=group_size,
        latency_ns=latency,
        ns_per_byte=slope,
        has_latency=apart,
        error_ratio=float(np.median(deviation)),
        spread_ratio=float(np.quantile(deviation, 0.9)),
        smallest_bytes=int(size.min()),
        largest_bytes=int(size.max()),
        samples=int(size.size),
        sizes=int(np.unique(size).size),
    )


def line_of(size: Floats, time: Floats) -> tuple[float, float] | None:
    """Latency and slope, neither negative, with the least sum of absolute relative deviations.

    Weighted least squares, repeated with weights that make them absolute deviations.

    Args:
        size: bytes of each collective; shape (collectives,).
        time: its transfer in ns, above 0; same shape.

    Returns:
        Latency in ns and ns a byte; None where all sizes are about one.
    """
    if size.max() < _SIZES_APART * max(size.min(), 1):
        return None
    weight = 1 / time**2
    latency = slope = 0.0
    for _ in range(_ROUNDS):
        total = weight.sum()
        mean_size, mean_time = (weight * size).sum() / total, (weight * time).sum() / total
        spread = (weight * (size - mean_size) ** 2).sum()
        slope = float((weight * (size - mean_size) * (time - mean_time)).sum() / spread)
        latency = float(mean_time - slope * mean_size)
        if latency < 0:
            latency, slope = 0.0, float((weight * size * time).sum() / (weight * size**2).sum())
        if slope < 0:
            latency, slope = float(mean_time), 0.0
        off = np.abs(latency + slope * size - time) / time
        weight = 1 / time**2 / np.maximum(off, 1e-3)
    return latency, slope


# Bandwidth of one GPU in one direction, decimal GB/s, from the vendor's data sheets (NVLink total / 2).
LINK_REFERENCE_GBPS = (
    ("GB200", 900.0),
    ("B200", 900.0),
    ("GH200", 450.0),
    ("H200", 450.0),
    ("H100 PCIe", 64.0),
    ("H100 NVL", 300.0),
    ("H100", 450.0),
    ("H800", 200.0),
    ("A100", 300.0),
    ("A800", 200.0),
    ("V100", 150.0),
)
"""By the first name that the GPU's product name contains."""


def link_reference_gbps(gpu_name: str | None) -> float | None:
    """What the link of this GPU can carry in one direction; None for a GPU that is not listed."""
    if gpu_name is None:
        return None
    return next((rate for name, rate in LINK_REFERENCE_GBPS if name in gpu_name), None)
