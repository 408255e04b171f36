"""How much of a transfer is lost to other transfers of the rank, and how much to computation beside it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.questions.diagnosis.slowing import STANDARD_ERRORS, compared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_ALONE, _BESIDE = 0.05, 0.5
"""Below the first share of its time beside others a transfer ran alone, above the second it did not."""


def transfers_beside(context: Context) -> pl.DataFrame:
    """What ran beside each matched transfer?

    Returns:
        ``event``, ``rank``, ``communicator``, ``same`` (a number for its like), ``duration_ns``, and how long other
        communicators of the rank transferred meanwhile (``others_ns``) and it computed (``computing_ns``).
        Transfers of unknown communicators are beside no others.
    """
    timed = context.timed.filter(pl.col("end_ns") > pl.col("transfer_start_ns"))
    start, end = timed["transfer_start_ns"].to_numpy(), timed["end_ns"].to_numpy()
    rank = timed["rank"].to_numpy()
    names = timed["communicator"].fill_null("").to_numpy()
    others, computing = np.zeros(timed.height, dtype=np.int64), np.zeros(timed.height, dtype=np.int64)
    for owner in context.trace.rank_numbers:
        mine = np.flatnonzero(rank == owner)
        computing[mine] = context.trace.union(owner, ["compute", "spin"]).length_within(
            start[mine], end[mine]
        )
        known = mine[names[mine] != ""]
        for name in np.unique(names[known]):
            own, rest = known[names[known] == name], known[names[known] != name]
            others[own] = Intervals.union_of(start[rest], end[rest]).length_within(start[own], end[own])
    return timed.select(
        "event",
        "rank",
        "communicator",
        same=pl.struct("communicator", "group_size", "kind", "bytes").rank("dense"),
        duration_ns=pl.Series(end - start),
        others_ns=pl.Series(others),
        computing_ns=pl.Series(computing),
    )


def lost_to_others(transfers: pl.DataFrame) -> Floats:
    """Time that each transfer lost to those of other communicators of its rank, ns; shape (transfers,).

    Of like transfers those alone are compared with those beside others, or where none ran alone those that were beside
    them for more and for less of their time; where that does not differ either, it is at most all of that time.
    """
    length, share = pl.col("duration_ns"), pl.col("others_ns") / pl.col("duration_ns")
    ratio = transfers.group_by("same").agg(
        alone=length.filter(share < _ALONE).median(), accompanied=length.filter(share > _BESIDE).median()
    )
    dose = compared(transfers.rename({"others_ns": "beside_ns"}))
    by_ratio = 1 - pl.col("alone") / pl.col("accompanied")
    found = (
        transfers.join(ratio, on="same", how="left", maintain_order="left")
        .join(dose, on="same", how="left", maintain_order="left")
        .select(pl.coalesce(by_ratio, "lost").clip(0, 1).fill_null(1.0) * pl.col("others_ns"))
        .to_series()
    )
    lost: Floats = found.to_numpy()
    return lost


def lost_to_computation(transfers: pl.DataFrame) -> dict[int, float]:
    """Per rank the share of the time beside computation that transfers lost to it, where that is more than nothing.

    Only transfers with no other communicator's beside them are compared: what transfers lose to each other they lose
    beside computation too.
    """
    undisturbed = transfers.filter(pl.col("others_ns") < _ALONE * pl.col("duration_ns"))
    dose = compared(undisturbed.rename({"computing_ns": "beside_ns"}))
    sums = undisturbed.group_by("rank", "same").agg(pl.col("computing_ns").sum()).sort("rank", "same")
    made = {}
    for (rank,), own in sums.join(dose, on="same").sort("rank", "same").group_by("rank", maintain_order=True):
        weight = own["computing_ns"].to_numpy().astype(np.float64)
        if not weight.sum():
            continue
        mean = float(weight @ own["lost"].to_numpy() / weight.sum())
        error = float(np.sqrt(weight**2 @ own["error"].to_numpy() ** 2) / weight.sum())
        if mean > STANDARD_ERRORS * error:
            made[int(str(rank))] = min(mean, 1.0)
    return made


def uneven_share(context: Context, event: Ints) -> Floats:
    """By what share of itself is each transfer longer than the median of its like? Shape as given."""
    length = pl.col("end_ns") - pl.col("transfer_start_ns")
    like = ["communicator", "group_size", "kind", "bytes"]
    known = context.timed.filter(length > 0)
    longer = known.select((1 - length.median().over(like) / length).clip(lower_bound=0)).to_series()
    share = np.zeros(context.trace.events.height)
    share[known["event"].to_numpy()] = longer.to_numpy()
    return share[event]
