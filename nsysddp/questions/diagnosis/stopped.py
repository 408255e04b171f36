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


def sums_of(runs: pl.DataFrame) -> pl.DataFrame:
    """What is asked of executions to tell whether their rank was stopped: sums of each rank.

    Args:
        runs: ``rank``, ``own_ns`` and ``longer_ns`` (than its peers') of events of a rank's own.
    """
    usual = pl.col("own_ns") - pl.col("longer_ns")
    stopped = pl.col("own_ns") > _STOPPED * usual
    more = pl.col("longer_ns").clip(lower_bound=0)
    return (
        runs.filter(usual > 0, pl.col("own_ns") > 0)
        .group_by("rank")
        .agg(
            usual=usual.sum(),
            usual_stopped=usual.filter(stopped).sum(),
            more=more.sum(),
            more_stopped=more.filter(stopped).sum(),
        )
    )


def stopped_ranks(sums: pl.DataFrame) -> list[int]:
    """The ranks that were stopped now and then, from ``sums_of`` all their executions, in any number of parts."""
    few = pl.col("usual_stopped") / pl.col("usual")
    most = pl.col("more_stopped") / pl.col("more")
    worth = pl.col("more") / pl.col("usual")
    return (
        sums.group_by("rank")
        .sum()
        .filter(few <= _FEW, most >= _MOST, worth >= _WORTH)
        .sort("rank")["rank"]
        .to_list()
    )


def stopped_transfers(
    context: Context, ranks: Sequence[int], parts: pl.DataFrame
) -> Iterator[tuple[int, Floats]]:
    """Per stopped rank how much of each part of a path, a transfer, was stopped with it, ns; shape (parts,).

    What transfers without it exceed their like by on average is not its doing.
    """
    if not ranks:
        return
    timed = context.timed.filter(pl.col("collective_id").is_not_null())
    event = timed["event"].to_numpy()
    uneven = np.zeros(context.trace.events.height)
    uneven[event] = uneven_share(context, event)
    own, length = parts["event"].to_numpy(), (parts["end_ns"] - parts["start_ns"]).to_numpy()
    for rank in ranks:
        ids = timed.filter(pl.col("rank") == rank)["collective_id"].unique().implode()
        with_it = timed.select(pl.col("collective_id").is_in(ids)).to_series().to_numpy()
        takes_part = np.zeros(uneven.size, dtype=bool)
        takes_part[event[with_it]] = True
        usual = float(uneven[event[~with_it]].mean()) if not with_it.all() else 0.0
        yield rank, np.where(takes_part[own], np.maximum(uneven[own] - usual, 0.0) * length, 0.0)
