"""When had the host left one piece of a compiled model, and not yet entered the next?

Compiled kernels are numbered from 0 within the graph that they belong to, so a number of 0 after another one begins
a graph, or is a kernel that its graph uses again. What tells these apart is the host: it enters a graph through Python
and goes from kernel to kernel without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model import schema

if TYPE_CHECKING:
    from nsysddp.questions import Context

_NUMBER = r"^triton_(?:poi|red|per|tem|for)_.*?_(\d+)(?:_0d\w*)?$"
"""The number of a kernel of torch.compile in its graph; some versions append the classes of the arguments."""

_ENTERED = 3.0
"""Graphs are entered where pauses before kernels of number 0 last so many times the usual one between two launches."""


def breaks_of(context: Context) -> pl.DataFrame:
    """The host's time between two graphs of one forward or backward; columns rank, start_ns, end_ns.

    From the first pause after the last kernel of a graph that is at least half as long as the longest one, to the
    launch of the first compiled kernel of the next.
    """
    run = ["rank", "phase_range"]
    ahead = pl.col("number").forward_fill().shift(1).over(run)
    launches = (
        _launches(context)
        .with_columns(
            left_ns=pl.col("launch_end_ns").shift(1).over(run),
            enters=(pl.col("number") == 0) & ahead.is_not_null(),
            between=pl.col("number").is_not_null().shift(1, fill_value=False).cum_sum().over(run),
        )
        .with_columns(pause_ns=pl.col("launch_ns") - pl.col("left_ns"))
    )
    usual = pl.col("pause_ns").quantile(0.5, "lower").over("rank", "phase")
    pauses = (
        launches.with_columns(usual_ns=usual, longest_ns=pl.col("pause_ns").max().over(*run, "between"))
        .filter(pl.col("enters").any().over(*run, "between"))
        .filter(
            pl.col("longest_ns").filter("enters").median().over("rank", "phase")
            >= _ENTERED * pl.col("usual_ns")
        )
    )
    return (
        pauses.group_by(*run, "between")
        .agg(
            start_ns=pl.col("left_ns").filter(2 * pl.col("pause_ns") >= pl.col("longest_ns")).min(),
            end_ns=pl.col("launch_ns").max(),
        )
        .sort("rank", "start_ns")
        .select("rank", "start_ns", "end_ns")
    )


def _launches(context: Context) -> pl.DataFrame:
    """Launches of forward and backward in order, with rank, phase, phase_range, and the number of compiled ones."""
    trace, attribution = context.trace, context.attribution
    numbers = trace.names["text"].str.extract(_NUMBER).cast(pl.Int64)
    launches = trace.launches
    if launches is None or launches.height < trace.events.height or not numbers.count():
        launches = schema.LAUNCHES.empty()
    events = np.arange(launches.height)
    return (
        launches.select("launch_ns", "launch_end_ns")
        .with_columns(
            rank=trace.events["rank"].head(launches.height).cast(pl.Int64),
            phase_range=pl.Series(attribution.phase_range[events]).cast(pl.Int64),
            phase=attribution.phase_names(events),
            number=numbers.gather(trace.events["name"].head(launches.height)),
        )
        .filter(pl.col("phase").is_in(["forward", "backward"]), pl.col("launch_ns").is_not_null())
        .sort("rank", "phase_range", "launch_ns")
    )
