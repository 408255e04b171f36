"""What each cause costs in each step, and over the steady steps."""

from __future__ import annotations

from typing import Any

import polars as pl

from nsysddp.model.errors import AnalysisError
from nsysddp.model.result import Result
from nsysddp.questions.diagnosis.causes import BY_CODE
from nsysddp.questions.diagnosis.claims import advice_of, claim_of, confidence_of
from nsysddp.questions.diagnosis.facts import Facts


def per_step_of(parts: pl.DataFrame, paths: Result) -> pl.DataFrame:
    """Cost of each cause in each step: the least over the step's paths; what only some paths have costs nothing."""
    steps = paths["critical_path_step"].select("step", "step_index", "path_ns")
    count = parts.group_by("step_index").agg(paths=pl.col("path").n_unique())
    shortest = steps.group_by("step_index").agg(pl.col("path_ns").min())
    return (
        parts.group_by("step", "step_index", "path", "cause")
        .agg(pl.col("cost_ns").sum())
        .group_by("step", "step_index", "cause")
        .agg(pl.col("cost_ns").min(), having=pl.len())
        .join(count, on="step_index", how="left", nulls_equal=True)
        .filter(pl.col("having") == pl.col("paths"))
        .join(shortest, on="step_index", how="left", nulls_equal=True)
        .sort("step_index", "cost_ns", "cause", descending=[False, True, False])
    )


def assert_bounds(per_step: pl.DataFrame) -> None:
    """Causes never add up to more than the step, so no cause is more than the critical path allows."""
    sums = per_step.group_by("step_index").agg(pl.col("cost_ns").sum(), pl.col("path_ns").first())
    if (sums["cost_ns"] > sums["path_ns"]).any() or (per_step["cost_ns"] < 0).any():
        raise AnalysisError("the causes of a step add up to more than its critical path")


def evidence_of(parts: pl.DataFrame) -> pl.DataFrame:
    """Path time by cause and place, per steady step: the mean over the paths of a step."""
    steps = max(1, parts["step_index"].n_unique())
    weight = parts.group_by("step_index").agg(paths=pl.col("path").n_unique())
    by = ["cause", "kind", "rank", "phase", "name", "host_phase"]
    return (
        parts.filter(pl.col("cause").is_in(list(BY_CODE)))
        .join(weight, on="step_index", how="left", nulls_equal=True)
        .group_by(by)
        .agg(
            cost_ns=((pl.col("cost_ns") / pl.col("paths")).sum() / steps).round().cast(pl.Int64),
            pieces=pl.col("is_first").sum().cast(pl.Int64),
        )
        .filter(pl.col("cost_ns") > 0)
        .sort("cause", "cost_ns", *by[1:], descending=[False, True, *[False] * 5], nulls_last=True)
    )


_SPREAD_OUT = 0.6
"""A rank (phase) with at least this share of a cause is named."""


def costs_of(
    per_step: pl.DataFrame, evidence: pl.DataFrame, paths: Result, facts: Facts
) -> list[dict[str, Any]]:
    """One row per cause that costs anything, the costliest first."""
    steady = per_step.group_by("step_index").agg(pl.col("path_ns").first())
    steps, path = steady.height, int(steady["path_ns"].sum() or 0)
    if not steps:
        return []
    rows = []
    sums = per_step.group_by("cause").agg(pl.col("cost_ns").sum(), found=pl.len())
    for code, total, found in sums.sort("cost_ns", "cause", descending=[True, False]).iter_rows():
        cost = round(total / steps)
        if code not in BY_CODE or not cost:
            continue
        parts = evidence.filter(pl.col("cause") == code)
        rank, phase = _mostly(parts, "rank"), _mostly(parts, "phase")
        longer = facts.excess.filter(pl.col("rank").eq_missing(rank), pl.col("longer_ns") > cost / 2).head(1)
        if code == "straggler":  # lateness is made before it shows: the phase is where the rank takes longer
            phase = longer["phase"][0] if longer.height else None
        confidence, doubt = confidence_of(code, found, steps, rank, paths, facts)
        rows.append(
            {
                "cause": code,
                "cost_ns": cost,
                "step_ratio": total / path,
                "confidence": confidence,
                "doubt": doubt,
                "steps": found,
                "of_steps": steps,
                "rank": rank,
                "phase": phase,
                "claim": claim_of(BY_CODE[code], cost, total / path, parts, rank, phase, facts),
                "try_next": advice_of(BY_CODE[code], facts),
                "refuted_by": BY_CODE[code].refuted_by,
            }
        )
    return rows


def _mostly(parts: pl.DataFrame, column: str) -> Any:
    """The value with most of the cost, if it has at least ``_SPREAD_OUT`` of it."""
    if parts.is_empty():
        return None
    sums = (
        parts.group_by(column).agg(pl.col("cost_ns").sum()).sort("cost_ns", column, descending=[True, False])
    )
    return sums[column][0] if sums["cost_ns"][0] >= _SPREAD_OUT * int(sums["cost_ns"].sum()) else None
