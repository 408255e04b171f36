"""What is claimed, what was answered, and which metrics can be claimed about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nsysddp.model.units import NS_PER_MS, NS_PER_S, NS_PER_US
from nsysddp.questions.compare.metrics import JOB_METRICS, METRICS, RANK_METRICS

if TYPE_CHECKING:
    from collections.abc import Callable


Outcome = Literal["pass", "fail", "undecidable"]
Floats = np.ndarray[Any, np.dtype[np.float64]]

UNITS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
COMPARATORS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
STATISTICS = ("median", "mean", "min", "max", "total", "p95", "p99")
SHARES = {"p95": 0.95, "p99": 0.99}

OVERLAP_METRICS = {
    "communication_ns": "lower",
    "hidden_communication_ns": "higher",
    "hidden_unsplit_ns": "lower",
    "exposed_unsplit_ns": "lower",
    "spin_ns": "neither",
    "graph_ns": "neither",
    "p2p_copy_ns": "neither",
    "tail_wait_ns": "lower",
    "tail_transfer_ns": "lower",
    "overlap_ratio": "higher",
    "collectives": "neither",
}
"""Columns of the overlap table that can be claimed about and are not compared."""

ALIASES = {"step": "step_ns", "overlap": "overlap_ratio"}
JOB = {metric.name for metric in JOB_METRICS}
BETTER: dict[str, str] = {**{name: metric.better for name, metric in METRICS.items()}, **OVERLAP_METRICS}
UNSPLIT = {
    "hidden_transfer_ns": "hidden_unsplit_ns",
    "hidden_wait_ns": "hidden_unsplit_ns",
    "exposed_transfer_ns": "exposed_unsplit_ns",
    "exposed_wait_ns": "exposed_unsplit_ns",
}
"""Where this much is not split, the metric lies between its value and its value plus that."""


@dataclass(frozen=True)
class Claim:
    """One claim, understood.

    Attributes:
        text: as it was written.
        name: its name; the text by default.
        metric: column or metric that it is about.
        statistic: over the steady steps; None for a change.
        comparator: of the value with ``number``.
        number: in ns, as a ratio for percentages, or a plain count.
        where: ``every``, ``any``, ``job``, or a rank number.
        change: ``improves`` or ``worsens``; None for a condition.
        confident: whether the interval has to hold.
    """

    text: str
    name: str
    metric: str
    comparator: str
    number: float
    where: str | int
    statistic: str | None = None
    change: str | None = None
    confident: bool = False


@dataclass(frozen=True)
class Verdict:
    """The answer to one claim.

    Attributes:
        claim: the claim.
        outcome: pass, fail or undecidable.
        reason: one sentence with the numbers that decided, or why they cannot.
        capture: undecidable: what to capture to decide it; None otherwise.
        rows: the numbers and where they stand: table, its key columns, value, and whether the row by itself holds.
    """

    claim: Claim
    outcome: Outcome
    reason: str
    capture: str | None = None
    rows: tuple[Mapping[str, Any], ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "name": self.claim.name,
            "claim": self.claim.text,
            "outcome": self.outcome,
            "reason": self.reason,
            "capture": self.capture,
            "rows": [dict(row) for row in self.rows],
        }


def shown(value: float, metric: str) -> str:
    """A value of a metric with its unit."""
    if metric.endswith("_ns"):
        return f"{value / NS_PER_MS:,.6f}".rstrip("0").rstrip(".") + " ms"
    if metric.endswith("_ratio"):
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"


def metric_names() -> list[tuple[str, str]]:
    """Every metric that can be claimed about, and what it is."""
    from nsysddp.questions.overlap import OVERLAP

    described = {column.name: column.meaning for column in OVERLAP.columns}
    named = [(metric.name, metric.meaning) for metric in (*JOB_METRICS, *RANK_METRICS)]
    return named + [(name, described[name]) for name in OVERLAP_METRICS]
