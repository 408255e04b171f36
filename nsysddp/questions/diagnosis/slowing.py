"""How much of the time beside communication do kernels lose to it, where too few ran without?

Where a kernel never runs alone it can still be compared with itself, if communication was beside some of its executions
for more of their time than beside others. Of executions of the same work each lasts::

    duration = work + lost x time beside communication

so ``lost`` is by how much longer executions are per time that they were longer beside communication. Time beside it is
itself longer where an execution is long for another reason; the *share* of the time is not, so it is the instrument::

    lost = cov(share, duration) / cov(share, time beside)        over the executions of one kernel, each rank by itself

Kernels whose shares hardly differ say nothing and are charged like those that do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.trace import whole_groups
from nsysddp.questions.contention import MIN_SAMPLES, MIXED_RATIO, slowdowns
from nsysddp.questions.contention.executions import executions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Floats = NDArray[np.float64]

LEAST_SPREAD = 0.1
"""Standard deviation of the shares from which on executions differ enough to be compared."""

LEAST_MEASURED = 0.1
"""Share of the time beside communication that kernels which can be compared must have."""

STANDARD_ERRORS = 3.0
"""By so many a share that is lost is told from nothing."""

_MOST = 0.95


@dataclass(frozen=True)
class Slowing:
    """By how much kernels are slower beside communication.

    Attributes:
        by_step: per (rank, step; -1 of the whole capture) the share of the time beside communication that was lost,
            from kernels that ran alone too; 0 where that is not told from nothing.
        by_rank: the same of ranks in whose other steps only executions with more and with less of it can be compared.
        is_judged: something could be compared on every rank.
    """

    by_step: Mapping[tuple[int, int], float]
    by_rank: Mapping[int, Loss]
    is_judged: bool

    @classmethod
    def of(cls, context: Context) -> Slowing:
        """What this capture says."""
        if context.trace.shapes is None:
            return cls({}, {}, is_judged=False)
        steps = context.contention["contention_step"].filter(pl.col("hidden_communication_ns") > 0)
        known = steps.filter(pl.col("contention_ns").is_not_null())
        slower = slowdowns(context.contention)
        keys = known.select("rank", pl.col("step_index").fill_null(-1)).iter_rows()
        by_step = {key: slower.get(key, 0.0) for key in keys}
        unknown = known.height < steps.height
        by_rank = losses(context) if unknown else {}
        silent = set(steps["rank"].to_list()) - set(known["rank"].to_list()) - set(by_rank)
        return cls(by_step, by_rank, is_judged=not silent)

    def lost(self, rank: int, step: int) -> float:
        """Share of its time beside communication that the rank lost in a step."""
        found = self.by_step.get((rank, step))
        if found is not None:
            return found
        return self.by_rank[rank].share if rank in self.by_rank else 0.0

    def lost_by_step(self, rank: int, steps: int) -> Floats:
        """``lost`` of what is in no step, and of so many steps."""
        return np.array([self.lost(rank, step) for step in range(-1, steps)])

    @property
    def measured(self) -> float:
        """The least share of a rank's time beside communication that the comparison rests on; 1 if that is enough."""
        return min((loss.measured for loss in self.by_rank.values()), default=1.0)


@dataclass(frozen=True)
class Loss:
    """What kernels lose to communication beside them.

    Attributes:
        share: of the time beside it.
        measured: share of the time beside communication of kernels that could be compared.
    """

    share: float
    measured: float


def losses(context: Context) -> dict[int, Loss]:
    """Per rank what its kernels lose, 0 where that is not told from nothing; ranks left out of which nothing is known.

    Kernels are compared on all ranks that ran them, each execution with those of its own rank: what GPUs differ by
    takes no part.
    """
    kernels = executions(context).select("rank", "duration_ns", "beside_ns", "same")
    groups = pl.concat(map(_sums, whole_groups(kernels, ["rank"], _AT_A_TIME)))
    beside = groups.select("rank", "same", "beside_ns")
    kernels = kernels.filter(pl.col("same").is_in(_comparable(groups).implode()))
    found = pl.concat(map(compared, _together(kernels)))
    known = beside.join(found, on="same", how="left").sort("rank", "same")
    made = {}
    for (rank,), own in known.group_by("rank", maintain_order=True):
        total = float(own["beside_ns"].sum())
        measured = own.filter(pl.col("lost").is_not_null())
        weight = measured["beside_ns"].to_numpy().astype(np.float64)
        if not total or weight.sum() < LEAST_MEASURED * total:
            continue
        mean = float(weight @ measured["lost"].to_numpy() / weight.sum())
        error = float(np.sqrt(weight**2 @ measured["error"].to_numpy() ** 2) / weight.sum())
        lost = min(mean, _MOST) if mean > STANDARD_ERRORS * error else 0.0
        made[int(str(rank))] = Loss(lost, float(weight.sum() / total))
    return made


def _sums(kernels: pl.DataFrame) -> pl.DataFrame:
    """Sums of some executions per rank and ``same``: how many, time beside, and its shares and their squares."""
    beside = pl.col("beside_ns").cast(pl.Int64)
    share = beside / pl.col("duration_ns")
    return kernels.group_by("rank", "same").agg(
        beside.sum(), count=pl.len().cast(pl.Int64), share=share.sum(), square=(share**2).sum()
    )


def _comparable(groups: pl.DataFrame) -> pl.Series:
    """What ``compared`` can tell something of: enough executions, with shares that differ."""
    least = 0.99 * LEAST_SPREAD  # sums are rounded in other places there
    off = pl.col("square") - pl.col("share") ** 2 / pl.col("count")
    return (
        groups.group_by("same")
        .agg(pl.col("count").sum(), off=off.sum())
        .filter(pl.col("count") >= 2 * MIN_SAMPLES, pl.col("off") >= least**2 * pl.col("count"))["same"]
    )


_AT_A_TIME = 1 << 18
"""Executions that are compared together: what is known of each takes ten times their memory."""


def _together(kernels: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The executions of some kernels at a time."""
    parts = max(1, kernels.height // _AT_A_TIME)
    for part in range(parts):
        yield kernels.filter(pl.col("same") % parts == part)


def compared(runs: pl.DataFrame) -> pl.DataFrame:
    """By how much longer is the same work per time that something else was longer beside it?

    Args:
        runs: ``same`` (what is the same work), ``rank``, ``duration_ns`` and ``beside_ns`` of each execution.

    Returns:
        ``same``, ``lost`` and its standard ``error``, of those of which the shares of executions differ enough.
    """

    def off(column: pl.Expr) -> pl.Expr:
        return column - column.mean().over("same", "rank")

    duration, beside = pl.col("duration_ns"), pl.col("beside_ns")
    s, b = pl.col("s"), pl.col("b")
    table = runs.select(
        "same", "duration_ns", "beside_ns", s=off(beside / duration), d=off(duration), b=off(beside)
    )
    return (
        table.with_columns(lost=(s * pl.col("d")).sum().over("same") / (s * b).sum().over("same"))
        .with_columns(left=pl.col("d") - pl.col("lost") * b, work=duration - pl.col("lost") * beside)
        .group_by("same")
        .agg(
            pl.col("lost").first(),
            error=(s**2 * pl.col("left") ** 2).sum().sqrt() / (s * b).sum().abs(),
            spread=(s**2).mean().sqrt(),
            count=pl.len(),
            is_mixed=pl.col("work").quantile(0.9) > MIXED_RATIO * pl.col("work").quantile(0.1),
        )
        .filter(
            pl.col("spread") >= LEAST_SPREAD,
            pl.col("count") >= 2 * MIN_SAMPLES,
            ~pl.col("is_mixed"),
            pl.col("lost").is_finite(),
        )
        .select("same", "lost", "error")
    )
