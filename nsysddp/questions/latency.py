"""Is it latency or bytes that decides how long a collective takes?

Where latency decides, bandwidth says nothing: twice the speed of the link, or half the bytes, changes (almost) nothing.
Decided from what was recorded, for each collective by the first rule that holds::

    bytes     bytes a rank > 256 KiB                what each rank sends at a time fills a link
    latency   bus bytes / 1 GB/s <= transfer / 10   so few bytes that no network is that slow
    latency   latency of the line >= transfer of the line / 2
    bytes     latency of the line <  transfer of the line / 2
    null      no line: one message size, or times that follow none

The line is that of ``link``, over the collectives of one kind, over as many ranks on as many hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.names import counted
from nsysddp.model.schema import TEXT, Column
from nsysddp.model.units import BYTES_PER_MIB
from nsysddp.questions.collectives import with_bus_bytes
from nsysddp.questions.link import line_of

if TYPE_CHECKING:
    from nsysddp.questions.context import Context

LATENCY, BYTES = "latency", "bytes"

DECIDES = Column(
    "decides",
    TEXT,
    "what its transfer hangs on: latency (twice the bandwidth would change little) or bytes; null: not told "
    "(no payloads, or messages of one size that are neither very small nor large)",
)

SLOW_GBPS = 1.0
"""A slow network (10 Gbit/s Ethernet): what it would carry in a tenth of the transfer is not what that time is for."""

_LITTLE = 0.1

FILLS_A_LINK = BYTES_PER_MIB // 4
"""Bytes that a rank sends at a time from which on a message is never called small."""

MOSTLY = 0.5
"""Latency decides from this share of a transfer on, and in a sum from this share of its time on."""

_WORST_FIT = 0.25
"""Times that deviate more from a line (the median of them) follow none."""

_SPLIT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Kinds in which a rank sends one part of the message for each of its peers."""


def what_decides(context: Context) -> pl.DataFrame:
    """What decides how long each matched collective with a known size takes; see the rules above.

    Returns:
        One row a collective: ``collective_id``, kind, bytes, group_size, ``hosts`` on which its ranks are,
        ``transfer_ns`` (shortest kernel) and ``decides``.
    """
    hosts = context.trace.ranks.select(pl.col("rank").cast(pl.Int64), "host")
    each = (
        with_bus_bytes(context.timed.filter(pl.col("ready_ns").is_not_null()))
        .join(hosts, on="rank", how="left")
        .group_by("collective_id")
        .agg(
            pl.col("kind", "bytes", "group_size", "bus_bytes").first(),
            hosts=pl.col("host").n_unique().cast(pl.Int64),
            transfer_ns=pl.col("shortest_ns").min(),
        )
        .filter(pl.col("bytes").is_not_null(), pl.col("transfer_ns") > 0)
        .sort("collective_id")
    )
    like = ["kind", "group_size", "hosts"]
    groups = each.group_by(like, maintain_order=True)
    lines = [row for (kind, size, count), part in groups for row in _line(part, kind, size, count)]
    latency, slope = pl.col("latency_ns"), pl.col("ns_per_byte")
    parts = pl.when(pl.col("kind").is_in(_SPLIT)).then(pl.col("group_size").fill_null(1).clip(1)).otherwise(1)
    moved = pl.coalesce("bus_bytes", 2 * pl.col("bytes"))
    return (
        each.join(
            pl.DataFrame(
                lines,
                schema={
                    "kind": each.schema["kind"],
                    "group_size": each.schema["group_size"],
                    "hosts": pl.Int64,
                    "latency_ns": pl.Float64,
                    "ns_per_byte": pl.Float64,
                },
                orient="row",
            ),
            on=like,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .with_columns(
            decides=pl.when(pl.col("bytes") / parts > FILLS_A_LINK)
            .then(pl.lit(BYTES))
            .when(moved / SLOW_GBPS <= _LITTLE * pl.col("transfer_ns"))
            .then(pl.lit(LATENCY))
            .when(latency >= MOSTLY * (latency + slope * pl.col("bytes")))
            .then(pl.lit(LATENCY))
            .when(latency.is_not_null())
            .then(pl.lit(BYTES))
        )
        .select("collective_id", *like, "bytes", "transfer_ns", "decides")
    )


def _line(part: pl.DataFrame, *like: object) -> list[tuple[object, ...]]:
    """The latency and slope of collectives that are alike; none where nothing tells them apart."""
    size = part["bytes"].cast(pl.Float64).to_numpy()
    time = part["transfer_ns"].cast(pl.Float64).to_numpy()
    line = line_of(size, time)
    if line is None or np.median(np.abs(line[0] + line[1] * size - time) / time) > _WORST_FIT:
        return []
    return [(*like, *line)]


def share_of_latency(collectives: pl.DataFrame) -> float | None:
    """Share of the transfer time of these collectives for which latency decides; None where nothing is told of any."""
    told = collectives.filter(pl.col("decides").is_not_null())
    if told.is_empty():
        return None
    latency = collectives.filter(pl.col("decides") == LATENCY)["transfer_ns"].sum()
    return float(latency) / float(collectives["transfer_ns"].sum() or 1)


def few_bytes(collectives: pl.DataFrame) -> str | None:
    """Those for which latency decides and that take longest together, in words; None where there are none."""
    mine = collectives.filter(pl.col("decides") == LATENCY)
    if mine.is_empty():
        return None
    like = mine.group_by("kind", "bytes", "group_size").agg(pl.col("transfer_ns").sum())
    kind, size, ranks, _ = like.sort("transfer_ns", "kind", "bytes", descending=[True, False, False]).row(0)
    over = "" if ranks is None else f" over {counted(ranks, 'rank')}"
    return f"{kind.replace('_', '-')} of {_size(size)}{over}"


def _size(size_bytes: int) -> str:
    """A message size: in bytes, KiB or MiB."""
    for unit, whole in (("MiB", BYTES_PER_MIB), ("KiB", BYTES_PER_MIB >> 10)):
        if size_bytes >= whole:
            return f"{size_bytes / whole:.3g} {unit}"
    return counted(size_bytes, "byte")
