"""Would larger buckets shorten backward, and by more than sending half the bytes?

Buckets of a communicator are reduced one after the other, so a backward's reductions end when the slowest chain does::

    end = max over buckets i of  ready(i) + sum over i and those behind it of their transfers

It is asked with the buckets as they are, with every two, four, ... of them together (ready with their last, one latency
instead of several), and with half the bytes in each. Which of the two is the cause hangs on what runs beside it: a
chain whose latencies alone last longer than the computation beside it gets short by either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.units import BYTES_PER_MIB
from nsysddp.questions.link import Link, fit_link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

AS_GOOD = 0.8
"""Larger buckets are a change of one number: they come first if they save this share of what half the bytes save."""

TINY_BYTES = BYTES_PER_MIB
"""DDP's own first and smallest bucket."""

_TOGETHER = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Merging:
    """What is to be said of the size of buckets.

    Attributes:
        link: latency and bandwidth of their group; None where no size is known.
        collectives: of gradient buckets.
        is_cause: larger buckets would save most.
        is_told: that follows from a latency that is known.
    """

    link: Link | None
    collectives: frozenset[int]
    is_cause: bool
    is_told: bool

    @classmethod
    def of(cls, context: Context) -> Merging:
        """What this capture says."""
        chains = _chains(context)
        collectives = frozenset(chains["collective_id"].to_list())
        group = _group_size(chains)
        link = fit_link(context.timed, group_size=group)
        if link is None or chains.is_empty():
            return cls(link, collectives, is_cause=False, is_told=False)
        if not link.has_latency:
            tiny = int(chains["bytes"].max() or 0) < TINY_BYTES  # type: ignore[arg-type]
            return cls(link, collectives, is_cause=tiny, is_told=False)
        larger, lighter = _savings(chains, link)
        return cls(link, collectives, is_cause=larger > 0 and larger >= AS_GOOD * lighter, is_told=True)


def _chains(context: Context) -> pl.DataFrame:
    """Reduced gradient buckets in order: ``run``, ``collective_id``, ``bytes``, ``group_size``, ``ready``, ``took``.

    Ready when the last of its ranks has computed and launched it; it took what it took from the last arrival on.
    """
    rows = context.buckets["bucket"].filter(
        pl.col("role") == "gradients",
        pl.col("collective_id").is_not_null() & pl.col("ready_ns").is_not_null(),
        pl.col("bytes").is_not_null() & (pl.col("bytes") > 0) & pl.col("transfer_ns").is_not_null(),
    )
    sizes = context.timed.select("collective_id", "group_size").unique("collective_id")
    run = ["communicator", "step_index", "micro_step"]
    return (
        rows.join(sizes, on="collective_id", how="left", maintain_order="left")
        .group_by(*run, "collective_id")
        .agg(
            pl.col("bytes", "group_size").first(),
            ready=pl.max_horizontal("ready_ns", "launched_ns").max(),
            took=pl.col("transfer_ns").min(),
            launched=pl.col("launched_ns").min(),
        )
        .sort(*run, "launched", "collective_id", nulls_last=True)
        .with_columns(run=pl.struct(run).rle_id().cast(pl.Int64))
    )


def _group_size(chains: pl.DataFrame) -> int | None:
    sums = chains.drop_nulls("group_size").group_by("group_size").agg(pl.col("bytes").sum())
    return None if sums.is_empty() else int(sums.sort("bytes", "group_size")["group_size"][-1])


def _savings(chains: pl.DataFrame, link: Link) -> tuple[float, float]:
    """How much earlier all backwards end with larger buckets, and with half the bytes, ns summed over the runs."""
    run, size = chains["run"].to_numpy(), chains["bytes"].cast(pl.Float64).to_numpy()
    ready, took = chains["ready"].cast(pl.Float64).to_numpy(), chains["took"].cast(pl.Float64).to_numpy()
    as_is = _ends(run, ready, took).sum()
    lighter = as_is - _ends(run, ready, np.maximum(took - link.ns_per_byte * size / 2, 0)).sum()
    place = np.arange(run.size) - np.searchsorted(run, run)
    larger = 0.0
    for together in _TOGETHER:
        head = np.flatnonzero(place % together == 0)
        latest = np.maximum.reduceat(ready, head)
        merged = link.latency_ns + link.ns_per_byte * np.add.reduceat(size, head)
        larger = max(larger, as_is - _ends(run[head], latest, merged).sum())
    return larger, lighter


def _ends(run: Ints, ready: Floats, took: Floats) -> Floats:
    """When each run's chain has ended; shape (runs,)."""
    total = np.cumsum(took)
    head = np.flatnonzero(np.append(True, run[1:] != run[:-1]))
    last = np.append(head[1:], run.size) - 1
    behind = total[last][np.searchsorted(head, np.arange(run.size), side="right") - 1] - total + took
    return np.asarray(np.maximum.reduceat(ready + behind, head))
