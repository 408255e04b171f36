"""What does overlap cost, and is it still a gain?

Definitions, "Contention". The same kernel is compared with itself: executions *alone* (no communication beside them)
with *accompanied* ones (communication beside at least half of their time). Executions between the two are compared with
neither, but the time that they spent beside communication is charged like that of the others::

    ratio       = median duration accompanied / median duration alone
    contention  = |C & P| x mean over the time beside communication of (1 - 1 / ratio)
    net_overlap_gain = hidden_transfer - contention

*The same* is (rank, name, grid, block, phase) and the kernel ahead of it in its queue: a matrix product of one name
and shape does other work in other places of a layer (its inner dimension is not part of the shape). Where the
durations alone still spread by more than ``MIXED_RATIO`` there is no ratio. The other way round a collective's
transfer is compared over those of the same kind, size and group, with and without computation beside it.

The interval is the bootstrap of the ratio of medians over executions. It is drawn without resampling: of n values
drawn with replacement the k-th smallest is the value of rank ceil(n U), with U the k-th smallest of n uniforms, which
is a beta variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.errors import AnalysisError
from nsysddp.model.intervals import GroupedAxis
from nsysddp.model.result import Finding, Result
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.contention.executions import (
    Executions,
    Work,
    dense,
    described,
    kernels_of,
    transfers_of,
)
from nsysddp.questions.contention.metrics import metrics
from nsysddp.questions.contention.tables import CONTENTION, CONTENTION_METRIC, CONTENTION_STEP
from nsysddp.questions.overlap import joined
from nsysddp.questions.question import Question
from nsysddp.questions.steps import steady

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context
    from nsysddp.questions.window import Window

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Columns = Mapping[str, NDArray[Any]]

ACCOMPANIED_SHARE = 0.5
"""An execution with at least this share of its time beside the other side is accompanied; with none it is alone."""

MIN_SAMPLES = 5
"""Executions that each of the two situations must have."""

MIXED_RATIO = 1.5
"""Ninth over first decile of the durations alone above which the executions are not the same work."""

MEASURED_SHARE = 0.5
"""A window's cost is told if at least this share of its time beside communication is of kernels with a ratio."""

RESAMPLES = 1000
SEED = 20_401
TAIL = 0.025

COMPUTE, COMMUNICATION = "compute", "communication"

REASONS = {
    "too_few_alone": f"fewer than {MIN_SAMPLES} executions without the other side beside them: capture steps without "
    "it too (a no_sync step, a single rank, or more steps)",
    "too_few_accompanied": f"fewer than {MIN_SAMPLES} executions with the other side beside at least half of them: "
    "capture more steps",
    "mixed_work": f"durations alone differ by more than {MIXED_RATIO:g}x: the executions are not the same work",
    "whole_graph": "the window holds CUDA graphs traced as one span: capture with --cuda-graph-trace=node",
    "unmeasured": "less than half of the time beside communication is of kernels seen alone often enough: capture "
    "steps without communication too (a no_sync step, a single rank, or more steps)",
    "unmatched": "no communication could be matched over ranks, so transfer and wait cannot be told apart: capture all "
    "ranks, and export with --include-blobs=true",
}
"""Why a figure is null, and what to capture next time."""


def contention(context: Context, *, resamples: int = RESAMPLES, seed: int = SEED) -> Result:
    """What does overlap cost the kernels under it, and is it still a gain?

    Executions launched in warm-up steps are compared with none; every window gets its cost.

    Args:
        context: of a trace loaded with ``shapes=True`` (and ``metrics=True`` for the sampled metrics).
        resamples: draws of the bootstrap.
        seed: of the draws, which are the same for the same trace and seed.

    Returns:
        The tables ``contention``, ``contention_step`` and ``contention_metric``.

    Raises:
        AnalysisError: the trace was loaded without shapes.
    """
    trace = context.trace
    if trace.shapes is None:
        raise AnalysisError("contention compares kernels of one shape", do="load with shapes=True")
    work = Work.of(context)
    transfers, of_transfers = transfers_of(context)
    decomposition = context.decomposition
    hidden = decomposition["hidden_communication_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    bounds = np.searchsorted(decomposition["rank"].to_numpy(), [*trace.rank_numbers, np.iinfo(np.int32).max])
    rows_of = dict(zip(trace.rank_numbers, pairwise(bounds.tolist()), strict=True))

    def of_rank(rank: int) -> tuple[Columns, Columns, Columns]:
        """What kernels and what collectives lose to the other side, and what that costs each window."""
        first, last = rows_of[rank]
        mine = kernels_of(context, rank, work)
        compared = _compare(mine, np.random.default_rng([seed, rank, 0]), resamples)
        costs = _per_window(context.windows.of(rank), hidden[first:last], mine, compared)
        reverse = _compare(transfers[rank], np.random.default_rng([seed, rank, 1]), resamples)
        return compared.groups(last - first), reverse.groups(last - first), costs

    kernels, collectives, costs = zip(*trace.each_rank(of_rank), strict=True)
    tables = [
        _table(joined(kernels), lambda rows: described(context, rows, work), COMPUTE),
        _table(joined(collectives), lambda rows: of_transfers[rows], COMMUNICATION),
    ]
    frames = {
        "contention": CONTENTION.check(_sorted(pl.concat(tables))),
        "contention_step": _steps(decomposition, joined(costs)),
        "contention_metric": metrics(trace),
    }
    return Result(
        trace,
        frames,
        findings=_findings(frames),
        assumptions=(
            f"a kernel is accompanied when communication (transfer or wait) covers at least "
            f"{ACCOMPANIED_SHARE:.0%} of it, and alone when none touches it",
            "kernels without a ratio are charged like the measured ones of their window",
            "the interval of contention holds the uncertainty of the ratios, not that of one step's own noise",
        ),
        warnings=_warnings(trace, frames),
    )


# --- comparison ---------------------------------------------------------------------------------------------


_UNMEASURED = ("too_few_alone", "too_few_accompanied", "mixed_work")


@dataclass(frozen=True)
class _Compared:
    """The groups of one rank and side.

    Attributes:
        columns: of each group: the ``row`` of an execution of it, counts, medians, ratio with its interval (NaN: not
            measured), time beside the other side, and why nothing is measured (place in ``_UNMEASURED``, -1: it is).
        loss: 1 - 1 / ratio of the measured groups, shape (measured,).
        drawn: the same of every bootstrap draw, shape (measured, resamples).
        place: for each execution its row in ``loss``, -1 if it has no ratio.
    """

    columns: Mapping[str, NDArray[Any]]
    loss: Floats
    drawn: Floats
    place: Ints

    def groups(self, windows: int) -> dict[str, NDArray[Any]]:
        """Of groups that ran beside the other side at all their columns, with the number of the rank's windows."""
        some = self.columns["beside_ns"] > 0
        found = {name: values[some] for name, values in self.columns.items()}
        return {**found, "windows": np.full(int(some.sum()), max(windows, 1))}


def _compare(executions: Executions, rng: np.random.Generator, resamples: int) -> _Compared:
    """Ratio of medians of every group with its bootstrap interval.

    Args:
        executions: of one rank and side.
        rng: of the draws.
        resamples: how many draws.
    """
    beside, duration, steady = executions.beside, executions.duration, executions.steady
    group = dense(executions.group)
    size = int(group.max()) + 1 if group.size else 0
    alone = steady & (beside == 0)
    accompanied = steady & (beside >= ACCOMPANIED_SHARE * duration) & (beside > 0)
    partial = steady & (beside > 0) & ~accompanied
    without = _Samples.of(group[alone], duration[alone], size)
    beside_them = _Samples.of(group[accompanied], duration[accompanied], size)
    total = np.bincount(group, weights=beside, minlength=size).astype(np.int64)

    mixed = without.quantile(0.9) > MIXED_RATIO * without.quantile(0.1)
    reason = np.select(
        [without.count < MIN_SAMPLES, beside_them.count < MIN_SAMPLES, mixed], np.arange(len(_UNMEASURED)), -1
    )
    measured = np.flatnonzero((reason < 0) & (total > 0))
    medians = np.stack([without.median(), beside_them.median()])
    ratio = medians[1, measured] / medians[0, measured]
    drawn = beside_them.bootstrap(measured, rng, resamples) / without.bootstrap(measured, rng, resamples)
    low, high = np.quantile(drawn, [TAIL, 1 - TAIL], axis=1) if measured.size else np.empty((2, 0))
    place = np.full(size, -1, dtype=np.int64)
    place[measured] = np.arange(measured.size)

    def spread(values: Floats) -> Floats:
        full = np.full(size, np.nan)
        full[measured] = values
        return full

    first = np.zeros(size, dtype=np.int64)
    first[group[::-1]] = executions.row[::-1]
    columns = {
        "row": first,
        "alone": without.count,
        "accompanied": beside_them.count,
        "partial": np.bincount(group[partial], minlength=size),
        "alone_median_ns": medians[0],
        "accompanied_median_ns": medians[1],
        "ratio": spread(ratio),
        "ratio_low": spread(low),
        "ratio_high": spread(high),
        "beside_ns": total,
        "reason": reason,
    }
    assert int(total.sum()) == int(beside.sum())
    return _Compared(columns, 1 - 1 / ratio, 1 - 1 / drawn, place[group])


@dataclass(frozen=True)
class _Samples:
    """Durations of each group, ascending: group g holds ``value[first[g] : first[g] + count[g]]``."""

    value: Ints
    first: Ints
    count: Ints

    @classmethod
    def of(cls, group: Ints, duration: Ints, size: int) -> _Samples:
        """Sort durations by group."""
        count = np.bincount(group, minlength=size).astype(np.int64)
        axis = GroupedAxis(duration, size)  # sorting numbers is quicker than sorting places
        ordered = np.sort(axis.place(group, duration))
        return cls(axis.value(ordered, np.repeat(np.arange(size), count)), np.cumsum(count) - count, count)

    def _at(self, place: Ints) -> Floats:
        """The value at a place of each group, NaN for an empty group."""
        if not self.value.size:
            return np.full(self.count.size, np.nan)
        found = self.value[np.minimum(self.first + place, self.value.size - 1)].astype(np.float64)
        return np.where(self.count > 0, found, np.nan)

    def quantile(self, share: float) -> Floats:
        """The value below which about this share of each group lies (nearest rank)."""
        return self._at(np.maximum(np.ceil(share * self.count).astype(np.int64) - 1, 0))

    def median(self) -> Floats:
        """Median of each group; of an even number the mean of the middle two."""
        return (self._at(np.maximum(self.count - 1, 0) // 2) + self._at(self.count // 2)) / 2

    def bootstrap(self, groups: Ints, rng: np.random.Generator, resamples: int) -> Floats:
        """Medians of resamples of each of the groups, shape (groups, resamples); see the module's text."""
        count, first = self.count[groups][:, None], self.first[groups][:, None]
        middle = (count + 1) // 2  # the k of the lower median
        size = (groups.size, resamples)
        lower = rng.beta(middle, count - middle + 1, size=size)
        upper = 1 - (1 - lower) * rng.random(size) ** (1 / np.maximum(count - middle, 1))  # the next smallest
        upper = np.where(count % 2 == 1, lower, upper)

        def value(uniform: Floats) -> Floats:
            place = np.clip(np.ceil(count * uniform).astype(np.int64) - 1, 0, count - 1)
            found: Floats = self.value[first + place].astype(np.float64)
            return found

        if not groups.size:
            return np.empty(size)
        return (value(lower) + value(upper)) / 2


def _table(
    groups: Mapping[str, NDArray[Any]], describe: Callable[[Ints], pl.DataFrame], side: str
) -> pl.DataFrame:
    """The rows of ``CONTENTION`` of one side; ``describe`` says what the executions in some rows are."""
    medians, ratios = ("alone_median_ns", "accompanied_median_ns"), ("ratio", "ratio_low", "ratio_high")
    cost = pl.col("beside_ns") * (1 - 1 / pl.col("ratio")) / pl.col("windows")
    figures = pl.DataFrame({name: values for name, values in groups.items() if name != "row"})
    return (
        describe(groups["row"])
        .select("rank", "phase", "name", "grid", "block", "after", "bytes")
        .hstack(figures)
        .with_columns(
            pl.col(medians).fill_nan(None).floor().cast(pl.Int64),
            pl.col(ratios).fill_nan(None),
            pl.Series("reason", [None, *_UNMEASURED])[groups["reason"] + 1],
            side=pl.lit(side),
        )
        .with_columns(cost_per_step_ns=cost.round().cast(pl.Int64))
        .select(CONTENTION.names)
    )


def _sorted(table: pl.DataFrame) -> pl.DataFrame:
    """The rows by rank, side and time beside it: some ranks at a time, since texts to sort by take much memory."""
    order = ["rank", "side", "beside_ns", "name", "grid", "block", "phase", "after", "bytes"]
    descending = [False, True, True, *[False] * 6]
    ranks = table["rank"].unique().sort().to_list()
    return pl.concat(
        [
            table.filter(pl.col("rank").is_between(some[0], some[-1])).sort(
                order, descending=descending, nulls_last=True
            )
            for some in (
                ranks[first : first + _RANKS_AT_A_TIME] for first in range(0, len(ranks), _RANKS_AT_A_TIME)
            )
        ]
        or [table]
    )


_RANKS_AT_A_TIME = 64


# --- cost and net gain of every window ------------------------------------------------------------------------


def _per_window(
    windows: Sequence[Window], hidden: Floats, executions: Executions, compared: _Compared
) -> dict[str, Floats]:
    """Of each window of one rank the share of the time beside communication that is measured, and what of it is lost.

    Args:
        windows: of the rank.
        hidden: communication under compute in each, ns; NaN where that is not known.
        executions: kernels of the rank.
        compared: their groups.
    """
    assert len(windows) == hidden.size
    starts = np.array([window.start for window in windows], dtype=np.int64)
    ends = np.array([window.end for window in windows], dtype=np.int64)
    if not starts.size:
        return {}
    begin = executions.start
    window = np.searchsorted(starts, begin, side="right") - 1
    inside = (window >= 0) & (begin < ends[np.maximum(window, 0)])
    beside = np.where(inside, executions.beside, 0)
    window = np.maximum(window, 0)

    count, known = len(windows), compared.loss.size
    everything = np.bincount(window, weights=beside, minlength=count)
    measured = compared.place >= 0
    weights = np.bincount(
        window[measured] * known + compared.place[measured],
        weights=beside[measured],
        minlength=count * known,
    ).reshape(count, known)
    of_known = weights.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(everything > 0, of_known / everything, np.nan)
        mean = np.where(of_known > 0, weights @ compared.loss / of_known, np.nan)
        drawn = np.where(of_known[:, None] > 0, weights @ compared.drawn / of_known[:, None], np.nan)
    told = share >= MEASURED_SHARE
    low, high = np.full(count, np.nan), np.full(count, np.nan)
    if told.any():
        low[told], high[told] = np.quantile(drawn[told], [TAIL, 1 - TAIL], axis=1)
    return {"share": share, "mean": mean, "low": low, "high": high}


def _steps(windows: pl.DataFrame, costs: Mapping[str, Floats]) -> pl.DataFrame:
    """``CONTENTION_STEP``, from the table ``overlap`` and what ``_per_window`` says of its rows."""
    hidden, transfer = windows["hidden_communication_ns"], windows["hidden_transfer_ns"]
    length = hidden.cast(pl.Float64).fill_null(np.nan).to_numpy()
    told, nothing = costs["share"] >= MEASURED_SHARE, length == 0

    def cost(factor: Floats) -> pl.Series:
        value = np.where(nothing, 0.0, np.where(told, length * factor, np.nan))
        whole: pl.Series = pl.Series(value).fill_nan(None).round().cast(pl.Int64)
        return whole

    is_graph = hidden.is_null().to_numpy()
    unmatched = transfer.is_null().to_numpy() & ~is_graph & ~nothing
    reason = np.select(
        [is_graph, ~nothing & ~told, unmatched],
        [REASONS["whole_graph"], REASONS["unmeasured"], REASONS["unmatched"]],
        "",
    )
    transfer = pl.select(pl.when(pl.lit(pl.Series(nothing))).then(0).otherwise(pl.lit(transfer))).to_series()
    return CONTENTION_STEP.check(
        windows.select("rank", "step", "step_index", "is_warmup", "hidden_communication_ns")
        .with_columns(
            hidden_transfer_ns=transfer,
            measured_ratio=pl.Series(costs["share"]).fill_nan(None),
            contention_ns=cost(costs["mean"]),
            contention_low_ns=cost(costs["low"]),
            contention_high_ns=cost(costs["high"]),
            reason=pl.Series(reason, dtype=pl.String).replace("", None),
        )
        .with_columns(
            net_overlap_gain_ns=pl.col("hidden_transfer_ns") - pl.col("contention_ns"),
            net_overlap_gain_low_ns=pl.col("hidden_transfer_ns") - pl.col("contention_high_ns"),
            net_overlap_gain_high_ns=pl.col("hidden_transfer_ns") - pl.col("contention_low_ns"),
        )
        .select(CONTENTION_STEP.names)
    )


# --- in words -------------------------------------------------------------------------------------------------


def _warnings(trace: Trace, frames: dict[str, pl.DataFrame]) -> tuple[Warning, ...]:
    made = []
    without = frames["contention"].filter(pl.col("reason").is_not_null())
    for reason, count in without.group_by("reason").len().sort("reason").iter_rows():
        made.append(Warning(f"contention_{reason}", count, f"kernels or collectives: {REASONS[reason]}"))
    unknown = frames["contention_step"].filter(pl.col("reason").is_not_null())
    for text, count in unknown.group_by("reason").len().sort("reason").iter_rows():
        made.append(Warning("contention_window", count, f"windows without a net gain: {text}"))
    if trace.metrics is not None and trace.metrics.is_empty():
        made.append(
            Warning(
                "no_gpu_metrics",
                1,
                "no GPU metrics were sampled: what SMs, DRAM and links did is unknown (capture with "
                "--gpu-metrics-devices=all, which needs permission)",
            )
        )
    return tuple(made)


def _findings(frames: dict[str, pl.DataFrame]) -> tuple[Finding, ...]:
    """What contention cost each rank a steady step, and what overlap gained after it; medians of the steps known."""
    steps = frames["contention_step"]
    hides = steady(steps.filter(pl.col("hidden_communication_ns") > 0))
    known = hides.filter(pl.col("net_overlap_gain_ns").is_not_null())
    columns = [
        "contention_ns",
        "contention_low_ns",
        "contention_high_ns",
        "hidden_transfer_ns",
        "net_overlap_gain_ns",
    ]
    every = dict(hides.group_by("rank").len().iter_rows())
    typical = known.group_by("rank").agg(pl.col(columns).median(), pl.len().alias("steps")).sort("rank")
    span = " a step" if steps["step_index"].null_count() < steps.height else ""
    made = []
    for rank, cost, low, high, saved, net, count in typical.iter_rows():
        verdict = (
            "overlap gains"
            if saved > high
            else "overlap costs more than it hides"
            if saved < low
            else "undecided"
        )
        part = "" if count == every[rank] else f", known in {count} of {every[rank]} steps"
        made.append(
            Finding(
                code="net_overlap_gain",
                message=f"rank {rank}: overlap hides {ms(saved):.3f} ms of transfer{span} and slows the kernels "
                f"under it by {ms(cost):.3f} ms ({ms(low):.3f} to {ms(high):.3f}): "
                f"net {ms(net):.3f} ms, {verdict}{part}",
                rank=rank,
                value=net,
                unit="ns",
                rows=({"table": "contention_step", "rank": rank},),
                severity=abs(cost),
            )
        )
    return tuple(made)


def slowdowns(found: Result) -> dict[tuple[int, int], float]:
    """By how much are kernels slower beside communication?

    Args:
        found: the answer of ``contention``.

    Returns:
        Per (rank, step; -1 for the whole capture) the share of the time beside communication that contention cost;
        only where the interval excludes 0.
    """
    known = found["contention_step"].filter(
        pl.col("contention_low_ns") > 0, pl.col("hidden_communication_ns") > 0
    )
    return {
        (rank, -1 if step is None else step): min(cost / beside, 1.0)
        for rank, step, cost, beside in known.select(
            "rank", "step_index", "contention_ns", "hidden_communication_ns"
        ).iter_rows()
    }


QUESTION = Question(
    name="contention",
    ask="What does overlap cost, and is it still a gain?",
    more="The same kernel beside communication and alone: ratio of medians with intervals, cost and net gain of each "
    "step.",
    tables=(CONTENTION, CONTENTION_STEP, CONTENTION_METRIC),
    run=lambda context, _: context.contention,
    shown="contention_step",
    reads=frozenset({"launches", "host_calls", "shapes", "metrics"}),
    examples=("report.sqlite", "node0.sqlite node1.sqlite --table contention"),
    findings={
        "net_overlap_gain": "what a rank gains by overlap in a step, less what it costs the kernels under it"
    },
    warnings={
        **{f"contention_{reason}": why for reason, why in REASONS.items()},
        "contention_window": "windows without a net gain, with the reason",
        "no_gpu_metrics": "no GPU metrics were sampled: what SMs, DRAM and links did is unknown",
    },
)
