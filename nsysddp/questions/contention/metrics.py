"""Sampled metrics of the GPU in four situations: computation and communication, one of them, neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.questions.contention.tables import CONTENTION_METRIC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.intervals import Intervals
    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]

SAMPLE_SHARE = 0.9
"""A sample of a GPU metric counts for a situation that covers this share of its sampling interval."""


def metrics(trace: Trace) -> pl.DataFrame:
    """Every sampled metric in the four situations (``CONTENTION_METRIC``); empty if none was sampled."""
    if trace.metrics is None or trace.metrics.is_empty():
        return CONTENTION_METRIC.empty()
    made = []
    for (rank,), samples in trace.metrics.partition_by("rank", as_dict=True, maintain_order=True).items():
        ordered = samples.sort("metric", "time_ns").with_columns(
            interval=pl.col("time_ns").diff().over("metric")
        )
        # A sample tells of the interval that ends with it; the usual interval where there is no sample before it.
        usual = pl.col("interval").median().fill_null(0).cast(pl.Int64)
        ordered = ordered.with_columns(
            interval=pl.when(pl.col("interval") < usual).then("interval").otherwise(usual)
        )
        end = ordered["time_ns"].to_numpy()
        start = end - ordered["interval"].to_numpy()
        situation = _situation(
            trace.union(int(rank), ("compute", "spin")),
            trace.union(int(rank), ("communication",)),
            start,
            end,
        )
        made.append(ordered.with_columns(situation=pl.Series(situation, dtype=pl.String)))
    return CONTENTION_METRIC.check(
        pl.concat(made)
        .filter(pl.col("situation") != "")
        .group_by("rank", "metric", "situation")
        .agg(
            samples=pl.len(),
            mean_value=pl.col("value").mean(),
            median_value=pl.col("value").median(),
        )
        .sort("rank", "metric", "situation")
    )


def _situation(compute: Intervals, communication: Intervals, start: Ints, end: Ints) -> NDArray[np.str_]:
    """What ran during nine tenths of each interval; empty where nothing did for so long."""
    length = end - start
    both = (compute & communication).length_within(start, end)
    computing, communicating = compute.length_within(start, end), communication.length_within(start, end)
    parts = {
        "both": both,
        "compute_alone": computing - both,
        "communication_alone": communicating - both,
        "neither": length - computing - communicating + both,
    }
    enough = [(part >= SAMPLE_SHARE * length) & (length > 0) for part in parts.values()]
    return np.select(enough, list(parts), "")
