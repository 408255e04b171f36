"""Does what is claimed about a run hold? A small language, and an answer with numbers: pass, fail or undecidable.

Grammar (case does not matter; ``[...]`` may be left out)::

    claim      = overlap [":" condition] | condition | change
    overlap    = "overlap on" WHERE | "no overlap on any rank"
    condition  = METRIC [STATISTIC] COMPARATOR NUMBER[UNIT] ["on" WHERE]
    change     = METRIC ("improves" | "worsens") "by" COMPARATOR NUMBER "%" ["on" WHERE] ["with 95% confidence"]
    WHERE      = "every rank" | "any rank" | "rank" N
    STATISTIC  = median | mean | min | max | total | p95 | p99
    COMPARATOR = ">" | ">=" | "<" | "<=" | "==" | "!="
    UNIT       = ns | us | ms | s | %

Examples::

    overlap on every rank: hidden_transfer_ns > 0
    no overlap on any rank
    exposed_communication_ns p95 <= 2ms
    step improves by >= 3% with 95% confidence

``overlap on WHERE`` alone means ``hidden_transfer_ns > 0 on WHERE``, and ``no overlap on any rank`` means
``hidden_communication_ns == 0 on every rank``. A condition is about every rank unless it says otherwise, or about the
job where the metric is the job's. Without a statistic it is about the total of the steady steps if the number is 0,
else about their median step; repeats are pooled, and ranks never are. A change compares the given runs with a base.
``step improves`` is about the workload's own clock where every run recorded it, else about the profiled step. With
confidence a change holds if the whole 95 % interval does and fails if none of it does; without, it is about these very
runs.

Undecidable is no failure: the trace cannot tell. The answer then says why, and what to capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsysddp.evidence.claims.changes import check_change
from nsysddp.evidence.claims.conditions import check_condition
from nsysddp.questions.compare import Comparison

if TYPE_CHECKING:
    from nsysddp.evidence.claims.claim import Claim, Verdict
    from nsysddp.evidence.sources import Loaded


def check(
    claims: Sequence[Claim], runs: Sequence[Loaded], comparison: Comparison | None = None
) -> list[Verdict]:
    """Do the claims hold for these runs?

    Args:
        claims: parsed claims.
        runs: the repeats they are about, pooled.
        comparison: of these runs with a base, for claims about a change.
    """
    return [
        check_condition(claim, runs) if claim.change is None else check_change(claim, comparison)
        for claim in claims
    ]
