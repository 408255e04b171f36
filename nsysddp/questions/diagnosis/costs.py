"""What each cause costs in each step, and over the steady steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.errors import AnalysisError
from nsysddp.model.result import Result
from nsysddp.questions.diagnosis.causes import BY_CODE
from nsysddp.questions.diagnosis.claims import SMALL, Case, Messages, rate_of
from nsysddp.questions.diagnosis.competing import uneven_share
from nsysddp.questions.diagnosis.facts import Facts
from nsysddp.questions.diagnosis.removal import saved_without_communication
from nsysddp.questions.diagnosis.rules import UNRESOLVED

if TYPE_CHECKING:
    from nsysddp.questions import Context


TRANSFERS = (
    *("slow_communication", "compute_tail", "single_bucket", "small_buckets", "compute_stream"),
    *("message_latency", "no_prefetch", "process_groups", "link_contention"),
)
"""Causes of transfers: without communication there is none of them."""

FAMILIES: tuple[tuple[str, ...], ...] = (
    TRANSFERS,
    ("bucket_scheduling", "graph_breaks", "host_stall", "host_bound", "kernel_latency"),
)
"""Causes that are names for parts of the same thing: of transfers, and of launching."""

_FAMILY = {cause: family[0] for family in FAMILIES for cause in family}


def per_step_of(parts: pl.DataFrame) -> pl.DataFrame:
    """Cost of each cause in each step: the least over the step's paths; what only some paths have costs nothing.

    Paths of one step can have the same thing by different names (the last bucket on one rank is not the last on
    another), so the least is that of a family of causes. It is divided into the least of each cause and, of what is
    left, shares like what they have more than that on average.
    """
    step = ["step", "step_index"]
    by_path = parts.group_by(*step, "path", "cause").agg(pl.col("cost_ns").sum())
    count = by_path.group_by("step_index").agg(paths=pl.col("path").n_unique())
    lengths = by_path.group_by("step_index", "path").agg(path_ns=pl.col("cost_ns").sum())
    shortest = lengths.group_by("step_index").agg(pl.col("path_ns").min())
    by_path = (
        by_path.with_columns(pl.col("step", "cause").cast(pl.String))
        .with_columns(
            family=pl.col("cause").replace_strict(_FAMILY, default=pl.col("cause"), return_dtype=pl.String)
        )
        .join(count, on="step_index", how="left", nulls_equal=True)
    )

    def least(of: pl.Expr) -> pl.Expr:  # on a path without it is 0
        return pl.when(pl.len() == pl.col("paths").first()).then(of.min()).otherwise(0)

    whole = (
        by_path.group_by(*step, "path", "family")
        .agg(pl.col("cost_ns").sum(), pl.col("paths").first())
        .group_by(*step, "family")
        .agg(whole=least(pl.col("cost_ns")))
    )
    causes = by_path.group_by(*step, "family", "cause").agg(
        least=least(pl.col("cost_ns")), mean=pl.col("cost_ns").sum() / pl.col("paths").first()
    )
    family = [*step, "family"]
    more = pl.col("mean") - pl.col("least")
    left = pl.col("whole") - pl.col("least").sum().over(family)
    share = pl.when(more.sum().over(family) > 0).then(more / more.sum().over(family)).otherwise(0.0)
    return (
        causes.join(whole, on=family, how="left", nulls_equal=True)
        .sort(*step, "cause")
        .with_columns(cost_ns=pl.col("least") + (left * share).floor().cast(pl.Int64))
        .filter(pl.col("cost_ns") > 0)
        .join(shortest, on="step_index", how="left", nulls_equal=True)
        .select(*step, "cause", "cost_ns", "path_ns")
        .sort("step_index", "cost_ns", "cause", descending=[False, True, False])
    )


def assert_bounds(per_step: pl.DataFrame) -> None:
    """Causes never add up to more than the step, so no cause is more than the critical path allows."""
    sums = per_step.group_by("step_index").agg(pl.col("cost_ns").sum(), pl.col("path_ns").first())
    if (sums["cost_ns"] > sums["path_ns"]).any() or (per_step["cost_ns"] < 0).any():
        raise AnalysisError("the causes of a step add up to more than its critical path")


def evidence_of(parts: pl.DataFrame) -> pl.DataFrame:
    """Path time by cause and place, per steady step: the mean over the paths of a step.

    Tied ranks each have a path, with the same collective on each: that is one part, of no rank in particular.
    """
    by = ["cause", "kind", "phase", "name", "host_phase"]
    ranks = pl.col("rank").drop_nulls()
    return (
        parts.filter(pl.col("cause").is_in(list(BY_CODE)))
        .group_by(by)
        .agg(
            pl.col("pieces").sum(),
            cost_ns=pl.col("cost").sum().round().cast(pl.Int64),
            rank=pl.when(ranks.n_unique() == 1).then(ranks.first()),
        )
        .filter(pl.col("cost_ns") > 0)
        .select(*by, "cost_ns", "pieces", "rank")
        .with_columns(pl.col(by).cast(pl.String))  # of millions of rows they are numbers
        .sort("cause", "cost_ns", *by[1:], "rank", descending=[False, True, *[False] * 5], nulls_last=True)
    )


_LEAST = 0.0002
"""Below this share of the step a cause is not reported."""

_SPREAD_OUT = 0.6
"""A rank (phase) with at least this share of a cause is named."""


def costs_of(
    context: Context,
    parts: pl.DataFrame,
    per_step: pl.DataFrame,
    evidence: pl.DataFrame,
    paths: Result,
    facts: Facts,
) -> list[dict[str, Any]]:
    """One row per cause that costs anything, by what it costs or, where that is less, saves."""
    steady = per_step.group_by("step_index").agg(pl.col("path_ns").first())
    steps, path = steady.height, int(steady["path_ns"].sum() or 0)
    if not steps:
        return []
    grade = paths["critical_path_step"]["grade"][0]
    rows = []
    sums = per_step.group_by("cause").agg(pl.col("cost_ns").sum(), found=pl.len())
    unresolved = int(sums.filter(pl.col("cause") == UNRESOLVED)["cost_ns"].sum())
    moved = parts.filter(pl.col("kind") == "transfer")
    explained = float(moved.filter(pl.col("cause") == "straggler")["cost"].sum())
    uneven = float(moved["cost"].to_numpy() @ uneven_share(context, moved["event"].to_numpy())) - explained
    mean = path / steps
    ratios = {code: total / path for code, total in sums.select("cause", "cost_ns").iter_rows()}
    sent = sums.filter(pl.col("cause").is_in(TRANSFERS))["cost_ns"].sum()
    saved = saved_without_communication(context, paths) if sent >= SMALL * path else None
    for code, total, found in sums.sort("cost_ns", "cause", descending=[True, False]).iter_rows():
        cost = round(total / steps)
        if code not in BY_CODE or total < _LEAST * path:
            continue
        own = parts.filter(pl.col("cause") == code)
        case = Case(
            cause=BY_CODE[code],
            cost_ns=cost,
            saving_ns=round(saved * mean) if saved is not None and code in TRANSFERS else None,
            step_ratio=total / path,
            found=found,
            steps=steps,
            rank=_mostly(own, pl.col("rank")),
            phase=_mostly(own, pl.coalesce("host_phase", "phase")),
            spread_ns=float(steady["path_ns"].to_numpy().std()),
            is_even=_is_even(own, steps),
            parts=evidence.filter(pl.col("cause") == code),
            rate=rate_of(context, own, facts),
            messages=Messages.of(context, own),
            grade=grade,
            unresolved_ratio=unresolved / path,
            uneven_ratio=uneven / mean,
            ratios=ratios,
        )
        confidence, doubt = case.confidence(facts)
        rows.append(
            {
                "cause": code,
                "cost_ns": cost,
                "saving_ns": case.saving_ns,
                "step_ratio": case.step_ratio,
                "is_bound": case.is_bound(facts),
                "confidence": confidence,
                "doubt": doubt,
                "steps": found,
                "of_steps": steps,
                "rank": case.rank,
                "phase": case.phase,
                "claim": case.claim(facts),
                "try_next": case.advice(facts),
                "refuted_by": case.cause.refuted_by,
            }
        )
    return sorted(
        rows,
        key=lambda row: (
            -min(row["cost_ns"], row["cost_ns"] if row["saving_ns"] is None else row["saving_ns"])
        ),
    )


def _mostly(own: pl.DataFrame, value: pl.Expr) -> Any:
    """The value with most of the cost, if it has at least ``_SPREAD_OUT`` of it."""
    sums = own.group_by(value=value).agg(pl.col("cost").sum())
    if sums["value"].dtype == pl.Categorical:
        sums = sums.with_columns(pl.col("value").cast(pl.String))
    sums = sums.sort("cost", "value", descending=[True, False])
    if sums.is_empty() or sums["cost"][0] < _SPREAD_OUT * float(sums["cost"].sum()):
        return None
    return sums["value"][0]


def _is_even(own: pl.DataFrame, steps: int) -> bool:
    """Is the cost of every step at least half of the mean?"""
    costs = own.group_by("step_index").agg(pl.col("cost").sum())["cost"].to_numpy()
    return costs.size == steps and bool(costs.min() >= costs.mean() / 2)
