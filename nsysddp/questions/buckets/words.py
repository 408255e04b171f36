"""Buckets in words: what is to be read with care, and what the buckets of each role show."""

from __future__ import annotations

import polars as pl

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


def findings_of(frame: pl.DataFrame) -> tuple[Finding, ...]:
    """Buckets of each rank a steady step: how many, and the transfer that the last one leaves exposed; medians."""
    chosen = steady(frame.filter(pl.col("role") == "gradients", pl.col("step_index").is_not_null()))
    made = []
    facts = (
        chosen.group_by("rank", "step_index")
        .agg(
            buckets=pl.len(),
            exposed=pl.col("exposed_ns").sum(),
            last=pl.col("exposed_ns").filter(pl.col("is_last")).sum(),
        )
        .group_by("rank")
        .agg(pl.col("buckets", "exposed", "last").median())
        .sort("rank")
    )
    for rank, count, exposed, last in facts.iter_rows():
        made.append(
            Finding(
                code="buckets",
                message=f"rank {rank}: {count:g} bucket{'' if count == 1 else 's'} a step, {ms(exposed):.3f} ms "
                f"exposed, {ms(last):.3f} ms of it by the last one",
                rank=rank,
                value=exposed,
                unit="ns",
                rows=({"table": "bucket", "rank": rank},),
                severity=exposed,
            )
        )
    return tuple(made)
