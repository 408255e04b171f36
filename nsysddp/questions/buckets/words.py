"""Buckets in words: what is to be read with care, and what the buckets of each role show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from nsysddp.model.names import ranks_text
from nsysddp.model.result import Finding
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.steps import steady


def warnings_of(frame: pl.DataFrame) -> tuple[Warning, ...]:
    """What is inferred or unknown of buckets, with how often."""
    made: list[Warning] = []
    if frame.is_empty():
        made.append(
            Warning(
                "no_buckets",
                1,
                "no bucket ranges, and no collective launched in a backward range, so there are no buckets to show "
                "(mark phases and register nsysddp.annotate's hook)",
            )
        )
        return tuple(made)
    inferred = frame.filter(pl.col("source") == "inferred", pl.col("role") == "gradients")
    if inferred.height:
        made.append(
            Warning(
                "buckets_inferred",
                inferred.height,
                "buckets inferred from the order of all-reduces in backward: number and size by order and message, "
                "parameters unknown (register nsysddp.annotate's hook to mark them)",
            )
        )
        several = inferred["communicator"].drop_nulls().n_unique()
        if several > 1:
            made.append(
                Warning(
                    "buckets_several_communicators",
                    several,
                    "all-reduces of several communicators in backward: not all need be buckets",
                )
            )
    unready = frame.filter(pl.col("ready_ns").is_null()).height
    if unready:
        made.append(
            Warning(
                "buckets_ready_unknown",
                unready,
                "buckets of which nothing says what they waited for (capture with --cuda-event-trace=true)",
            )
        )
    ordered = frame.filter(pl.col("ready_source") == "launch_order").height
    if ordered:
        made.append(
            Warning(
                "buckets_ready_by_launch_order",
                ordered,
                "buckets ready when the compute launched before them had ended, since no CUDA event says more",
            )
        )
    return tuple(made)


_ALIKE = 1.1
"""Ranks whose exposed time differs by less than this factor are one sentence."""

_LEAST_NS = 1_000
"""Exposed times below this are alike."""


def findings_of(frame: pl.DataFrame) -> tuple[Finding, ...]:
    """Buckets of a steady step: how many, and the transfer that the last one leaves exposed; medians of each rank.

    Ranks of which the same is true are one finding, the longest exposed first.
    """
    chosen = steady(frame.filter(pl.col("role") == "gradients", pl.col("step_index").is_not_null()))
    facts = (
        chosen.group_by("rank", "step_index")
        .agg(
            buckets=pl.len(),
            exposed=pl.col("exposed_ns").sum(),
            last=pl.col("exposed_ns").filter(pl.col("is_last")).sum(),
        )
        .group_by("rank")
        .agg(pl.col("buckets", "exposed", "last").median())
        .sort("buckets", "exposed", "rank", descending=[False, True, False])
    )
    alike: list[list[dict[str, Any]]] = []
    for row in facts.iter_rows(named=True):
        if alike and _are_alike(alike[-1][0], row):
            alike[-1].append(row)
        else:
            alike.append([row])
    return tuple(_finding(rows) for rows in sorted(alike, key=lambda rows: -rows[0]["exposed"]))


def _are_alike(most: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return bool(
        row["buckets"] == most["buckets"] and most["exposed"] <= max(_ALIKE * row["exposed"], _LEAST_NS)
    )


def _finding(rows: Sequence[Mapping[str, Any]]) -> Finding:
    ranks = sorted(row["rank"] for row in rows)
    count, exposed = rows[0]["buckets"], rows[0]["exposed"]
    buckets = f"{count:g} bucket{'' if count == 1 else 's'} a step"
    times = f"{_range(rows, 'exposed')} ms exposed, {_range(rows, 'last')} ms of it by the last one"
    return Finding(
        code="buckets",
        message=f"{ranks_text(ranks)}: {buckets}, {times}",
        rank=ranks[0] if len(ranks) == 1 else None,
        value=exposed,
        unit="ns",
        rows=tuple({"table": "bucket", "rank": rank} for rank in ranks),
        severity=exposed,
    )


def _range(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    least, most = (f"{ms(of(row[name] for row in rows)):.3f}" for of in (min, max))
    return least if least == most else f"{least} to {most}"
