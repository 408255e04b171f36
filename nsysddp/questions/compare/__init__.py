"""Is the new side faster than the base, by how much, how sure is that, and what changed in the step?

A side is a set of runs (repeats). Every metric is compared on its own: for the job as a whole where it has one value a
step, else on each rank; nothing is averaged over ranks. For the statistics see ``statistics``.

    step_ns[run, step] = max over ranks of W[run, rank, step]       (a job's step lasts as long as on its slowest rank)

The account of a rank adds up what its window is made of, in means over steps and then over runs, since means add up and
medians do not::

    d window = d compute + d exposed_transfer + d exposed_wait + d exposed_unsplit + d memory + d graph + d idle

Where it is known, what communication beside it cost computation is taken out of compute as *contention*, and the idle
time in which the GPU lacked work because the host was late or blocked is taken out of idle as *host*. The account of
the job does the same with the pieces of its critical path. All are exact: integers that sum to the whole, asserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.errors import AnalysisError, CannotTell, UsageError
from nsysddp.model.names import counted, ranks_text
from nsysddp.questions.compare.account import account_of
from nsysddp.questions.compare.facts import UNRECORDED, unlike
from nsysddp.questions.compare.metrics import JOB_METRICS, NOT_ENOUGH, RANK_METRICS, percentile, verdict
from nsysddp.questions.compare.tables import COMPARISON, MATRIX
from nsysddp.questions.statistics import MIN_RUNS, Difference, difference

if TYPE_CHECKING:
    from nsysddp.questions.compare.run import Run


_MATRIX_METRICS = ("window_ns", "backward_ns", "exposed_transfer_ns", "exposed_wait_ns")


@dataclass(frozen=True)
class Comparison:
    """The outcome: tables, what is unlike, and what to read it with.

    Attributes:
        base, new: names of the runs of each side.
        tables: ``comparison``, ``account``, ``matrix`` and ``unlike`` as in ``TABLES``.
        warnings: what limits the answer.
        assumptions: how it is to be read.
    """

    base: tuple[str, ...]
    new: tuple[str, ...]
    tables: Mapping[str, pl.DataFrame]
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    runs: tuple[tuple[Run, ...], tuple[Run, ...]] = field(repr=False, compare=False)

    @property
    def headline(self) -> Mapping[str, Any]:
        """The row of ``comparison`` that decides: the first job metric that both sides have."""
        frame = self.tables["comparison"].filter(
            pl.col("rank").is_null() & pl.col("difference").is_not_null()
        )
        return frame.row(0, named=True)

    def difference(self, metric: str, rank: int | None, *, factor: float = 1.0) -> Difference | None:
        """``statistics.difference`` of one metric; None where a side does not have it."""
        sides = [[run.samples.get((metric, rank)) for run in side] for side in self.runs]
        known = [[steps for steps in side if steps is not None] for side in sides]
        if any(len(all_of) != len(some) for all_of, some in zip(sides, known, strict=True)):
            return None
        return difference(known[0], known[1], factor=factor)


def compare(base: Sequence[Run], new: Sequence[Run], *, allow_unlike: bool = False) -> Comparison:
    """Is ``new`` faster than ``base``, how sure is that, and what in the step changed?

    Args:
        base: the repeats of the one side.
        new: those of the other.
        allow_unlike: compare although the sides differ in something of ``REFUSED``.

    Raises:
        UsageError: a side is empty, or the sides are unlike.
        CannotTell: no step can be compared.
        AnalysisError: an account does not balance.
    """
    if not base or not new:
        raise UsageError("a comparison needs at least one run on each side")
    differing = unlike(base, new)
    refused = differing.filter(pl.col("refused"))
    if refused.height and not allow_unlike:
        named = "; ".join(f"{what}: {one} against {other}" for what, one, other, _ in refused.iter_rows())
        raise UsageError(
            f"the runs are not alike ({named})", do="compare like with like, or give --allow-unlike"
        )
    made = Comparison(
        base=tuple(run.name for run in base),
        new=tuple(run.name for run in new),
        tables={},
        warnings=(),
        assumptions=ASSUMPTIONS,
        runs=(tuple(base), tuple(new)),
    )
    tables = {
        "comparison": _comparison(made),
        "account": account_of(base, new),
        "matrix": _matrix(base, new),
        "unlike": differing,
    }
    if not tables["comparison"].filter(pl.col("rank").is_null() & pl.col("difference").is_not_null()).height:
        raise CannotTell(
            "no step can be compared: the trace shows none that every rank has",
            do="mark steps with NVTX (nsysddp.annotate), or give --step-pattern; see nsysddp analyze of each run",
        )
    return Comparison(made.base, made.new, tables, _warnings(base, new, differing), ASSUMPTIONS, made.runs)


ASSUMPTIONS = (
    "every interval is at 95 % by itself: of twenty metrics without any difference about one shows one",
    "profiled steps are slower than unprofiled ones; both sides are assumed to be slowed alike",
)


def _warnings(base: Sequence[Run], new: Sequence[Run], differing: pl.DataFrame) -> tuple[str, ...]:
    said = []
    if min(len(base), len(new)) < MIN_RUNS:
        said.append(
            f"{len(base)} and {counted(len(new), 'run')}: at least {MIN_RUNS} a side are needed to say anything about "
            "further runs; intervals hold for these very runs only"
        )
    bare = [run.name for run in (*base, *new) if not run.recorded]
    if bare:
        said.append(
            f"without run.json of a capture it is not known whether {', '.join(UNRECORDED)} were alike "
            f"({', '.join(dict.fromkeys(bare))})"
        )
    every = (*base, *new)
    partly = {
        what: [run.name for run in every if run.recorded and what not in run.facts]
        for what in UNRECORDED
        if any(what in run.facts for run in every)
    }
    said += [
        f"it is not known whether {what} was alike: not kept of {', '.join(dict.fromkeys(names))}"
        for what, names in partly.items()
        if names
    ]
    for run in (*base, *new):
        absent = sorted(rank for _, rank in run.unknown if rank is not None and rank not in run.windows)
        if absent:
            said.append(
                f"{run.name} has no figures of {ranks_text(absent)}: its step is that of the other ranks"
            )
    steps = [
        samples.size for run in (*base, *new) if (samples := run.samples.get(("step_ns", None))) is not None
    ]
    if steps and len(set(steps)) > 1:
        said.append(f"the runs have {min(steps)} to {max(steps)} steady steps")
    said += [f"{what} differs: {one} against {other}" for what, one, other, _ in differing.iter_rows()]
    return tuple(said)


def _comparison(made: Comparison) -> pl.DataFrame:
    rows = []
    ranks = sorted({rank for side in made.runs for run in side for rank in run.ranks})
    keys = [(metric, None) for metric in JOB_METRICS] + [
        (metric, rank) for rank in ranks for metric in RANK_METRICS
    ]
    for metric, rank in keys:
        key = (metric.name, rank)
        if not any(key in run.samples or key in run.unknown for side in made.runs for run in side):
            continue
        row: dict[str, Any] = {"metric": metric.name, "rank": rank, "unit": metric.unit}
        for side, runs in zip(("base", "new"), made.runs, strict=True):
            row[f"{side}_runs"] = len(runs)
            row[f"{side}_steps"] = sum(run.samples[key].size for run in runs if key in run.samples)
        found = made.difference(*key)
        if found is None:
            row.update(scope="none", verdict=NOT_ENOUGH, reason=_why_missing(made, key))
        else:
            row.update(
                base=found.base,
                new=found.new,
                difference=found.difference,
                change_ratio=found.difference / found.base if found.base else None,
                low=found.low,
                high=found.high,
                detectable=found.detectable,
                scope=found.scope,
                verdict=verdict(metric, found),
                reason=None if found.scope == "runs" else _why_undecided(found),
            )
        rows.append(row)
    return COMPARISON.frame(rows)


def _why_undecided(found: Difference) -> str:
    counts = f"{found.base_runs} and {counted(found.new_runs, 'run')}, {MIN_RUNS} a side are needed"
    return (
        counts
        if found.scope == "these_runs"
        else f"{counts}; too few steps to say how well these were measured"
    )


def _why_missing(made: Comparison, key: tuple[str, int | None]) -> str:
    for run in (run for side in made.runs for run in side):
        if key not in run.samples:
            return f"{run.name}: {run.unknown.get(key, 'not recorded')}"
    raise AnalysisError(f"{key} is missing in no run")


def _matrix(base: Sequence[Run], new: Sequence[Run]) -> pl.DataFrame:
    rows = []
    for side, runs in (("base", base), ("new", new)):
        for metric in _MATRIX_METRICS:
            of_metric: list[dict[str, Any]] = []
            for rank in sorted({rank for run in runs for rank in run.ranks}):
                known = [run.samples[metric, rank] for run in runs if (metric, rank) in run.samples]
                if not known:
                    continue
                steps = np.concatenate(known)
                of_metric.append(
                    {
                        "side": side,
                        "metric": metric,
                        "rank": rank,
                        "steps": steps.size,
                        "median": float(np.median(steps)),
                        "p95": percentile(steps, 0.95),
                        "p99": percentile(steps, 0.99),
                        "largest": float(steps.max()),
                    }
                )
            medians = [row["median"] for row in of_metric]
            for row, value in zip(of_metric, medians, strict=True):
                row["is_slowest"] = value == max(medians) and (value > min(medians) or len(medians) == 1)
            rows += of_metric
    return MATRIX.frame(rows)
