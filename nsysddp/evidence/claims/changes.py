"""Does a claimed change against a base hold?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsysddp.evidence.claims.claim import BETTER, COMPARATORS, Verdict, shown
from nsysddp.evidence.claims.conditions import CAPTURE
from nsysddp.questions.compare import Comparison
from nsysddp.questions.statistics import runs_needed

if TYPE_CHECKING:
    from nsysddp.evidence.claims.claim import Claim, Outcome


_MORE_RUNS = "capture at least three repeats of each side (nsysddp capture --repeat)"


def check_change(claim: Claim, comparison: Comparison | None) -> Verdict:
    """The answer to a claim about a change, over the ranks that it is about."""
    if comparison is None:
        return Verdict(
            claim,
            "undecidable",
            "there is no base to compare with",
            "give the other side with --against: its runs, or a baseline",
        )
    ranks: list[int | None]
    if claim.where == "job":
        ranks = [None]
    elif isinstance(claim.where, int):
        ranks = [claim.where]
    else:
        ranks = [*sorted({rank for side in comparison.runs for run in side for rank in run.ranks})]
    metric, ranks = _decisive(claim, comparison, ranks)
    verdicts = [_check_change_of(claim, comparison, metric, rank) for rank in ranks]
    rows = tuple(row for _, row, _, _ in verdicts if row is not None)
    outcomes = [outcome for outcome, *_ in verdicts]
    decisive: Outcome = "undecidable"
    if claim.where == "any":
        decisive = "pass" if "pass" in outcomes else "undecidable" if "undecidable" in outcomes else "fail"
    else:
        decisive = "fail" if "fail" in outcomes else "undecidable" if "undecidable" in outcomes else "pass"
    mine = [(why, capture) for outcome, _, why, capture in verdicts if outcome == decisive]
    return Verdict(claim, decisive, "; ".join(why for why, _ in mine[:4]), mine[0][1] or None, rows)


def _decisive(claim: Claim, comparison: Comparison, ranks: list[int | None]) -> tuple[str, list[int | None]]:
    """``step`` is the unprofiled step where every run recorded it: profiling lengthens the other."""
    if claim.metric == "step_ns" and comparison.difference("measured_step_ns", None) is not None:
        return "measured_step_ns", ranks
    return claim.metric, ranks


def _check_change_of(
    claim: Claim, comparison: Comparison, metric: str, rank: int | None
) -> tuple[Outcome, dict[str, Any] | None, str, str]:
    who = metric if rank is None else f"rank {rank}: {metric}"
    plain = comparison.difference(metric, rank)
    if plain is None:
        return "undecidable", None, f"{who} is not known on both sides", CAPTURE["steps"]
    if plain.base == 0:
        return "undecidable", None, f"{who} is 0 in the base, so there is no change in per cent", "nothing"
    # Lower is better: improvement = 1 - new / base; higher is better: new / base - 1. Worsening is its negative.
    sign = -1.0 if BETTER[metric] == "lower" else 1.0
    sign = sign if claim.change == "improves" else -sign
    change = sign * (plain.new / plain.base - 1)
    row: dict[str, Any] = {
        "table": "comparison",
        "rank": rank,
        "metric": metric,
        "statistic": claim.change,
        "steps": None,
        "value": change,
        "holds": COMPARATORS[claim.comparator](change, claim.number),
    }
    numbers = (
        f"{who} {claim.change} by {100 * change:.2f} % ({shown(plain.base, metric)} to {shown(plain.new, metric)}, "
        f"{plain.base_runs} and {plain.new_runs} runs)"
    )
    if not claim.confident:
        verb = "is" if row["holds"] else "is not"
        bound = f"{claim.comparator} {100 * claim.number:g} %"
        return ("pass" if row["holds"] else "fail"), row, f"{numbers}, which {verb} {bound}", ""
    # The bound as a difference whose sign decides: new - factor * base, with an interval of its own.
    scaled = comparison.difference(metric, rank, factor=1 + sign * claim.number)
    assert scaled is not None
    if scaled.scope != "runs" or scaled.low is None or scaled.high is None:
        row["holds"] = None
        return "undecidable", row, f"{numbers}: too few runs for confidence", _MORE_RUNS
    ends = [sign * end >= 0 for end in (scaled.low, scaled.high)]
    wanted = claim.comparator in (">", ">=")
    interval = sorted(claim.number + sign * end / plain.base for end in (scaled.low, scaled.high))
    numbers += f", 95 % interval {100 * interval[0]:.2f} to {100 * interval[1]:.2f} %"
    row["low"], row["high"] = interval
    if ends[0] == ends[1]:
        row["holds"] = ends[0] == wanted
        return ("pass" if row["holds"] else "fail"), row, numbers, ""
    row["holds"] = None
    needed = runs_needed(scaled)
    advice = f"about {needed} repeats of each side would decide it" if needed else _MORE_RUNS
    return "undecidable", row, f"{numbers}, which contains {100 * claim.number:g} %", advice
