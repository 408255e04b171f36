"""What is compared: metrics of the job and of each rank, and what a difference of one is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nsysddp.questions.statistics import Difference, Floats

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True)
class Metric:
    """One thing that is compared: name, unit, which way is better, and what it is."""

    name: str
    unit: str
    better: Better
    meaning: str


JOB_METRICS = (
    Metric(
        "measured_step_ns", "ns", "lower", "step by the workload's own clock, unprofiled steps, slowest rank"
    ),
    Metric("step_ns", "ns", "lower", "profiled step window of the slowest rank"),
    Metric(
        "throughput",
        "per s",
        "higher",
        "what the workload counted per second (tokens, samples), slowest rank",
    ),
    Metric("critical_communication_ns", "ns", "lower", "communication on the critical path over all ranks"),
)
"""Metrics of the job as a whole, the one that decides the verdict first."""

RANK_METRICS = (
    Metric("window_ns", "ns", "lower", "step window"),
    Metric("backward_ns", "ns", "lower", "span of the GPU events launched in backward"),
    Metric("compute_ns", "ns", "neither", "computation"),
    Metric("hidden_transfer_ns", "ns", "higher", "transfer under computation: what overlap saved"),
    Metric("exposed_transfer_ns", "ns", "lower", "transfer without computation"),
    Metric("hidden_wait_ns", "ns", "neither", "waiting for later ranks under computation"),
    Metric("exposed_wait_ns", "ns", "lower", "waiting for later ranks without computation"),
    Metric("exposed_communication_ns", "ns", "lower", "communication without computation"),
    Metric("tail_communication_ns", "ns", "lower", "communication after the last backward computation"),
    Metric("exposed_memory_ns", "ns", "lower", "copies and memsets alone"),
    Metric("contention_ns", "ns", "lower", "computation that communication beside it cost"),
    Metric("idle_ns", "ns", "lower", "nothing ran"),
    Metric("kernels", "count", "neither", "kernels launched in the step"),
)
"""Metrics of each rank."""

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*JOB_METRICS, *RANK_METRICS)}

_SPEED = ("measured_step_ns", "step_ns", "throughput", "window_ns", "backward_ns")
"""Of these, better is called faster."""


NOT_ENOUGH = "not enough data"
NO_DIFFERENCE = "no difference shown"


def verdict(metric: Metric, found: Difference) -> str:
    """faster, slower, lower, higher, no difference shown, or not enough data."""
    if found.scope != "runs":
        return NOT_ENOUGH
    if not found.decided:
        return NO_DIFFERENCE
    less = found.difference < 0
    if metric.name in _SPEED:
        return "faster" if less == (metric.better == "lower") else "slower"
    return "lower" if less else "higher"


LEAST_STEPS = {0.95: 20, 0.99: 100}
"""Steps from which a percentile is told: under them it is the largest value under another name."""


def percentile(steps: Floats, share: float) -> float | None:
    """The smallest value that at least this share of the steps does not exceed; None for too few steps."""
    if steps.size < LEAST_STEPS.get(share, 1):
        return None
    return float(np.sort(steps)[int(np.ceil(round(share * steps.size, 9))) - 1])
