"""Whose GPU was stopped now and then, and how much longer did that make what it sends?

A rank that is slow is slow in all of its kernels. One whose GPU is taken away now and then runs most kernels as its
peers do, and a few for much longer: those that ran when it was stopped. A transfer that it takes part in was stopped
with it, so what such transfers last longer than their like is that rank's too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.questions.diagnosis.competing import uneven_share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Floats = NDArray[np.float64]

_STOPPED = 1.5
"""A kernel that lasts so many times what its peers take was stopped."""

_FEW = 0.3
"""Of a stopped rank's kernels (by what they should take) at most this share was stopped."""

_MOST = 0.5
"""Of what its kernels take longer at least this share is of those."""

_WORTH = 0.02
"""What its kernels take longer is at least this share of what they should take."""


def stopped_ranks(runs: pl.DataFrame) -> list[int]:
    """The ranks that were stopped now and then.

    Args:
        runs: ``rank``, ``own_ns`` and ``longer_ns`` (than its peers') of the events of a rank's own.
    """
    usual = pl.col("own_ns") - pl.col("longer_ns")
    stopped = pl.col("own_ns") > _STOPPED * usual
    more = pl.col("longer_ns").clip(lower_bound=0)
    return (
        runs.filter(usual > 0)
        .group_by("rank")
        .agg(
            few=usual.filter(stopped).sum() / usual.sum(),
            most=more.filter(stopped).sum() / more.sum(),
            worth=more.sum() / usual.sum(),
        )
        .filter(pl.col("few") <= _FEW, pl.col("most") >= _MOST, pl.col("worth") >= _WORTH)
        .sort("rank")["rank"]
        .to_list()
    )


def runs_of(context: Context, longer: pl.DataFrame) -> pl.DataFrame:
    """Of the own parts of events those that are not the gaps ahead of them: rank, own and longer time."""
    event = longer["event"].to_numpy()
    start, end = (context.trace.events[name].to_numpy()[event] for name in ("start_ns", "end_ns"))
    is_run = (longer["end_ns"].to_numpy() == end) & (end > start)
    runs = longer.select("rank", "longer_ns", own_ns=pl.Series(end - start))
    return runs.filter(pl.Series(is_run), pl.col("longer_ns").is_not_null())


def stopped_transfers(
    context: Context, ranks: Sequence[int], parts: pl.DataFrame
) -> Iterator[tuple[int, Floats]]:
    """Per stopped rank how much of each part of a path is a transfer's that was stopped with it, ns; shape (parts,).

    What transfers without it exceed their like by on average is not its doing.
    """
    if not ranks:
        return
    timed = context.timed.filter(pl.col("collective_id").is_not_null())
    event = timed["event"].to_numpy()
    uneven = np.zeros(context.trace.events.height + 1)
    uneven[event] = uneven_share(context, event)
    transfer = (parts["kind"] == "transfer").to_numpy()
    own = np.where(transfer, parts["event"].fill_null(-1).to_numpy(), -1)
    length = (parts["end_ns"] - parts["start_ns"]).to_numpy()
    for rank in ranks:
        ids = timed.filter(pl.col("rank") == rank)["collective_id"].unique().implode()
        with_it = timed.select(pl.col("collective_id").is_in(ids)).to_series().to_numpy()
        takes_part = np.zeros(uneven.size, dtype=bool)
        takes_part[event[with_it]] = True
        usual = float(uneven[event[~with_it]].mean()) if not with_it.all() else 0.0
        yield rank, np.where(takes_part[own], np.maximum(uneven[own] - usual, 0.0) * length, 0.0)
