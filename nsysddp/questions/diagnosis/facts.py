"""What the other questions say of the run, which decides between causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.names import visible
from nsysddp.model.result import Result
from nsysddp.model.units import BYTES_PER_MIB
from nsysddp.questions.diagnosis.breaks import breaks_of
from nsysddp.questions.diagnosis.competing import lost_to_computation, transfers_beside
from nsysddp.questions.diagnosis.device import uneven_kernels
from nsysddp.questions.diagnosis.lateness import OwnTime
from nsysddp.questions.diagnosis.merging import Merging
from nsysddp.questions.diagnosis.slowing import Slowing
from nsysddp.questions.link import Link, link_reference_gbps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


LARGE_BYTES = 8 * BYTES_PER_MIB
"""From this size on a collective should reach the bandwidth of its link."""

SLOW_LINK = 0.5
"""Below this share of the link's reference, busbw of large messages is called low; above it latency dominates."""

_LINK_METRICS = r"(?i)pcie|nvlink|\bnic\b|infiniband"


@dataclass(frozen=True)
class Facts:
    """What decides between causes.

    Attributes:
        buckets: ``BUCKET`` rows.
        own: what ranks take for the same work.
        merging: would larger buckets help?
        slowing: by how much kernels are slower beside communication.
        transfers: of ``competing.transfers_beside``.
        slower_transfer: per rank: share of the time of transfers beside computation that was lost to it.
        compute_streams: (rank, context, stream) of the queues that do most of the computing.
        breaks: of ``breaks.breaks_of``.
        reference_gbps: what the link of the GPUs carries in one direction; None if it is unknown.
        has_shapes: contention could be judged.
        has_metrics: GPU metrics were sampled.
        uneven: rank, name, shortest and longest of kernels that take longer in some steps (``device.uneven_kernels``).
        link_activity: sampled PCIe, NVLink and NIC metrics beside computation and without, in words.
    """

    buckets: pl.DataFrame
    own: OwnTime
    merging: Merging
    slowing: Slowing
    transfers: pl.DataFrame
    slower_transfer: dict[int, float]
    compute_streams: set[tuple[int, int, int]]
    breaks: pl.DataFrame
    reference_gbps: float | None
    has_shapes: bool
    has_metrics: bool
    uneven: tuple[int, str, int, int] | None
    link_activity: tuple[str, ...]

    @property
    def stopped(self) -> list[int]:
        """Ranks whose GPU was stopped now and then."""
        return self.own.stopped

    @property
    def link(self) -> Link | None:
        """Latency and bandwidth of the gradients' group, or without such of the one that moves most."""
        return self.merging.link

    @classmethod
    def of(cls, context: Context) -> Facts:
        """Ask the other analyses."""
        trace = context.trace
        found = None if trace.shapes is None else context.contention
        transfers = transfers_beside(context)
        slowing = Slowing.of(context)
        references = {link_reference_gbps(name) for name in trace.ranks["gpu_name"].to_list()}
        reference = references.pop() if len(references) == 1 else None
        return cls(
            buckets=context.buckets["bucket"],
            own=OwnTime.of(context, slowing),
            merging=Merging.of(context),
            slowing=slowing,
            transfers=transfers,
            slower_transfer=lost_to_computation(transfers),
            compute_streams=set(
                context.of_ranks("compute_streams").select("rank", "context", "stream").iter_rows()
            ),
            breaks=breaks_of(context),
            reference_gbps=reference,
            has_shapes=trace.shapes is not None,
            has_metrics=trace.metrics is not None and not trace.metrics.is_empty(),
            uneven=uneven_kernels(context),
            link_activity=_link_activity(found),
        )


def _link_activity(found: Result | None) -> tuple[str, ...]:
    """Sampled activity of the links while communication ran beside computation and alone, the busiest first."""
    if found is None or found["contention_metric"].is_empty():
        return ()
    table = (
        found["contention_metric"]
        .filter(pl.col("metric").str.contains(_LINK_METRICS))
        .pivot(on="situation", index="metric", values="mean_value", aggregate_function="max")
    )
    if not {"both", "communication_alone"} <= set(table.columns):
        return ()
    busy = table.filter(pl.col("both").is_not_null()).sort("both", "metric", descending=[True, False]).head(3)
    return tuple(
        f"{visible(metric)} {both:.1f} beside computation"
        + ("" if alone is None else f", {alone:.1f} without")
        for metric, both, alone in busy.select("metric", "both", "communication_alone").iter_rows()
    )
