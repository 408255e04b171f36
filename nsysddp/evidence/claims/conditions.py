"""Does a condition hold, on each rank or for the job?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.evidence.claims.claim import COMPARATORS, SHARES, UNSPLIT, Verdict, shown
from nsysddp.questions.compare.metrics import LEAST_STEPS, percentile
from nsysddp.questions.steps import steady

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from nsysddp.evidence.claims.claim import Claim, Floats, Outcome
    from nsysddp.evidence.sources import Loaded


CAPTURE = {
    "graph": "capture with --cuda-graph-trace=node",
    "split": "capture every rank, with NVTX and NCCL's payloads (export with --include-blobs=true)",
    "steps": "mark steps and phases with NVTX (nsysddp.annotate) and capture with --trace=cuda,nvtx",
    "more": "capture more steps (nsysddp capture --capture-steps)",
    "ranks": "capture every rank of the job",
    "host": "capture with --trace=cuda,nvtx and --cuda-event-trace=true",
    "records": "run the workload under nsysddp capture, which keeps its own records",
    "contention": "capture steps without communication too (a no_sync step, a single rank, or more steps)",
}


@dataclass(frozen=True)
class _Part:
    """The values of one rank (None: the job): one a steady step, with how much more they can be."""

    rank: int | None
    values: Floats
    extra: Floats
    why: str | None = None
    capture: str | None = None


def _parts(claim: Claim, runs: Sequence[Loaded]) -> list[_Part]:
    if claim.where == "job":
        known = [run.run.samples.get((claim.metric, None)) for run in runs]
        values = [steps for steps in known if steps is not None]
        if len(values) < len(runs):
            why = runs[0].run.unknown.get((claim.metric, None), "it was not recorded")
            capture = {"critical_communication_ns": "host", "step_ns": "steps"}.get(claim.metric, "records")
            return [_Part(None, np.empty(0), np.empty(0), f"{claim.metric}: {why}", CAPTURE[capture])]
        joined = np.concatenate(values)
        return [_Part(None, joined, np.zeros(joined.size))]
    ranks = sorted({rank for run in runs for rank in run.result["rank"]["rank"].to_list()})
    if isinstance(claim.where, int):
        ranks = [claim.where]
    return [_rank_part(claim.metric, rank, runs) for rank in ranks]


def _rank_part(metric: str, rank: int, runs: Sequence[Loaded]) -> _Part:
    values: list[Floats] = []
    extra: list[Floats] = []
    for run in runs:
        overlap = steady(run.result["overlap"])
        mine = overlap.filter(overlap["rank"] == rank)
        nothing = np.empty(0)
        if not mine.height:
            there = rank in run.result["rank"]["rank"]
            why = f"rank {rank} {'has no window of steps' if there else 'is not'} in {run.source.name}"
            return _Part(rank, nothing, nothing, why, CAPTURE["steps" if there else "ranks"])
        if metric == "window_ns" and mine["step_index"].null_count():
            return _Part(rank, nothing, nothing, f"{run.source.name} shows no steps", CAPTURE["steps"])
        if metric in mine.columns:
            if mine[metric].null_count():
                why, capture = _why_null(metric, mine)
                return _Part(rank, nothing, nothing, f"rank {rank}: {why}", capture)
            values.append(mine[metric].to_numpy().astype(np.float64))
            holder = UNSPLIT.get(metric)
            extra.append(
                mine[holder].fill_null(0).to_numpy().astype(np.float64) if holder else np.zeros(mine.height)
            )
        else:
            steps = run.run.samples.get((metric, rank))
            if steps is None:
                why = run.run.unknown.get((metric, rank), "not known")
                capture = CAPTURE["contention" if metric == "contention_ns" else "steps"]
                return _Part(rank, nothing, nothing, f"rank {rank}: {metric} is {why}", capture)
            values.append(steps)
            extra.append(np.zeros(steps.size))
    return _Part(rank, np.concatenate(values), np.concatenate(extra))


def _why_null(metric: str, windows: pl.DataFrame) -> tuple[str, str]:
    unknown = windows.filter(windows[metric].is_null())
    counted = f"in {unknown.height} of {windows.height} window{'s' if windows.height > 1 else ''}"
    if unknown["hidden_communication_ns"].null_count():
        return f"CUDA graphs were traced as one span {counted}, so {metric} is unknown", CAPTURE["graph"]
    if metric == "overlap_ratio":
        return (
            f"there is no communication {counted}, so there is no overlap ratio",
            "nothing: it is not applicable",
        )
    if metric in UNSPLIT:
        return f"wait and transfer cannot be told apart {counted}", CAPTURE["split"]
    if metric.startswith("tail_"):
        return f"there is no backward range, or its communication is not matched, {counted}", CAPTURE["steps"]
    return f"{metric} is unknown {counted}", CAPTURE["steps"]


def _statistic(name: str, values: Floats) -> float:
    if name in SHARES:
        return float(np.sort(values)[math.ceil(round(SHARES[name] * values.size, 9)) - 1])
    made: dict[str, Callable[[Floats], Any]] = {
        "median": np.median,
        "mean": np.mean,
        "min": np.min,
        "max": np.max,
        "total": np.sum,
    }
    return float(made[name](values))


def check_condition(claim: Claim, runs: Sequence[Loaded]) -> Verdict:
    """The answer to a condition, over the ranks that it is about and all repeats."""
    parts = _parts(claim, runs)
    verdicts = [_check_part(claim, part) for part in parts]
    rows = tuple(row for _, row, _, _ in verdicts if row is not None)
    passed = [row for outcome, row, _, _ in verdicts if outcome == "pass" and row is not None]
    failed = [row for outcome, row, _, _ in verdicts if outcome == "fail" and row is not None]
    unclear = [(why, capture) for outcome, _, why, capture in verdicts if outcome == "undecidable"]
    if claim.where == "any":
        if passed:
            return Verdict(claim, "pass", _sentence(claim, passed[:1]), rows=rows)
        if not unclear and not (missing := _missing_ranks(runs)):
            return Verdict(claim, "fail", _sentence(claim, _nearest(claim, failed)), rows=rows)
    elif failed:
        return Verdict(claim, "fail", _sentence(claim, failed), rows=rows)
    if unclear:
        reasons = list(dict.fromkeys(why for why, _ in unclear))
        return Verdict(claim, "undecidable", "; ".join(reasons), unclear[0][1], rows)
    if claim.where in ("every", "any") and (missing := _missing_ranks(runs)):
        return Verdict(claim, "undecidable", missing, CAPTURE["ranks"], rows)
    nothing = _nothing_to_overlap(claim, runs)
    if nothing:
        return Verdict(claim, "undecidable", nothing, "capture steps in which the ranks communicate", rows)
    return Verdict(claim, "pass", _sentence(claim, passed), rows=rows)


def _check_part(claim: Claim, part: _Part) -> tuple[Outcome, dict[str, Any] | None, str, str]:
    """Outcome of one rank, its row, and why and what to capture where it is undecidable."""
    if part.why is not None or not part.values.size:
        return "undecidable", None, part.why or "no steps", part.capture or CAPTURE["steps"]
    assert claim.statistic is not None
    holds = COMPARATORS[claim.comparator]
    low = _statistic(claim.statistic, part.values)
    high = _statistic(claim.statistic, part.values + part.extra)
    row: dict[str, Any] = {
        "table": "comparison" if part.rank is None else "overlap",
        "rank": part.rank,
        "metric": claim.metric,
        "statistic": claim.statistic,
        "steps": part.values.size,
        "value": low,
        "holds": holds(low, claim.number),
    }
    who = "" if part.rank is None else f"rank {part.rank}: "
    share = SHARES.get(claim.statistic)
    if share is not None and percentile(part.values, share) is None:
        least = LEAST_STEPS[share]
        # A percentile above the median is at least the median, so few steps can refute a claim but not show it.
        if claim.comparator in ("<", "<=") and not holds(float(np.median(part.values)), claim.number):
            row["value"] = float(np.median(part.values))
            row["statistic"] = "median"
            row["holds"] = False
            return "fail", row, "", ""
        row["holds"] = None
        why = f"{who}{claim.statistic.upper()} needs at least {least} steps, there are {part.values.size}"
        return "undecidable", row, why, CAPTURE["more"]
    if high != low and holds(low, claim.number) != holds(high, claim.number):
        row["holds"] = None
        why = (
            f"{who}{claim.metric} is between {shown(low, claim.metric)} and {shown(high, claim.metric)}: some "
            "communication is not matched over ranks"
        )
        return "undecidable", row, why, CAPTURE["split"]
    return ("pass" if row["holds"] else "fail"), row, "", ""


def _missing_ranks(runs: Sequence[Loaded]) -> str | None:
    for run in runs:
        worlds = run.result["rank"]["world_size"].drop_nulls().to_list()
        if worlds and max(worlds) > run.result["rank"].height:
            return (
                f"{run.source.name} holds {run.result['rank'].height} of {max(worlds)} ranks, and nothing is known "
                "about the others"
            )
    return None


def _nothing_to_overlap(claim: Claim, runs: Sequence[Loaded]) -> str | None:
    """'No overlap' of ranks that did not communicate says nothing."""
    if not (claim.metric.startswith(("hidden_", "exposed_")) and claim.comparator in ("==", "<", "<=")):
        return None
    if "memory" in claim.metric:
        return None
    for run in runs:
        overlap = run.result["overlap"]
        silent = [
            rank
            for rank in overlap["rank"].unique().sort().to_list()
            if not overlap.filter(overlap["rank"] == rank)["communication_ns"].sum()
        ]
        if silent:
            return f"rank {silent[0]} of {run.source.name} ran no communication: overlap is not applicable"
    return None


def _nearest(claim: Claim, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: abs(float(row["value"]) - claim.number))[:1]


def _sentence(claim: Claim, rows: Sequence[Mapping[str, Any]]) -> str:
    bound = f"{claim.comparator} {shown(claim.number, claim.metric)}"
    parts = []
    for row in rows[:4]:
        who = "" if row["rank"] is None else f"rank {row['rank']}: "
        verb = "" if row["holds"] else "not "
        parts.append(
            f"{who}{row['statistic']} {claim.metric} {shown(row['value'], claim.metric)} is {verb}{bound} "
            f"({row['steps']} step{'s' if row['steps'] != 1 else ''})"
        )
    more = f"; and {len(rows) - 4} more ranks" if len(rows) > 4 else ""
    return "; ".join(parts) + more
