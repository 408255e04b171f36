"""How much do two sets of runs differ, and how sure is that? Runs first, then their steps.

Steps of one run follow each other and share its clocks, its placement and its neighbours on the machine: they are not
independent, and a thousand of them say little about the next run. Therefore runs are the unit. With runs r of a side,
their steps i, and n runs::

    m[r]    = median over i of x[r, i]
    side    = mean over r of m[r]
    D       = side(new) - factor * side(base)                                    (factor 1: the plain difference)

    s2 = variance of m over the runs (n - 1),   w2 = mean over r of the variance of m[r] when its steps are resampled
    each replicate: n runs with replacement, their m moved towards the side by sqrt(max(0, 1 - w2 / s2)), times
                    sqrt(n / (n - 1)); to each the deviation of a resampled median of its own steps is added
    SE2        = variance of the replicates of D                                 (about max(s2, w2) / n of each side)
    interval   = D ± t * SE,    t of Student with the degrees of freedom of Welch and Satterthwaite

Steps are resampled in circular blocks of about the cube root of their count, which keeps most of the likeness of
neighbours. Moving the runs towards their mean takes out the noise of their steps, which the second stage puts back;
without that it would be counted twice. Percentiles of the replicates are not used: of three to ten runs they are far
too narrow (a nominal 95 % covers about 80 % of three runs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from nsysddp.model.errors import AnalysisError

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
"""Of every interval, two-sided."""

POWER = 0.8
"""With this probability the smallest difference that is called detectable would have been found."""

MIN_RUNS = 3
"""Fewer runs of a side say nothing about how much a run differs from the next."""

MIN_STEPS = 5
"""Fewer steps of a run say too little about their own spread."""

REPLICATES = 4000
_MEDIANS = 500
_FAR = 3.0


@dataclass(frozen=True)
class Difference:
    """One comparison of two sides, in the unit of the values.

    Attributes:
        base, new: each side: the mean over its runs of a run's median step.
        difference: ``new - factor * base``.
        low, high: the interval of the difference; None where there is too little data for any.
        detectable: the smallest difference that this data would have shown with ``POWER``; None without ``runs``.
        scope: ``runs`` if the interval holds for further runs too; ``these_runs`` if it only says how well these
            very runs were measured; ``none`` without interval.
        standard_error: of the difference; None without interval.
        freedom: degrees of freedom of the interval; None without.
        base_runs, new_runs: runs of each side.
    """

    base: float
    new: float
    difference: float
    low: float | None
    high: float | None
    detectable: float | None
    scope: Literal["runs", "these_runs", "none"]
    standard_error: float | None
    freedom: float | None
    base_runs: int
    new_runs: int

    @property
    def decided(self) -> bool:
        """Does the interval hold for further runs, and exclude 0?"""
        return self.scope == "runs" and self.low is not None and not self.low <= 0 <= (self.high or 0.0)


@dataclass(frozen=True)
class _Side:
    value: float
    replicates: Floats
    variance: float
    freedom: int
    covers_runs: bool


def difference(
    base: Sequence[Floats], new: Sequence[Floats], *, factor: float = 1.0, confidence: float = CONFIDENCE
) -> Difference:
    """How much do the runs of ``new`` differ from ``factor`` times those of ``base``?

    Args:
        base: the steps of each run of the base; unit as wanted.
        new: the same of the other side.
        factor: scales the base, to ask for a relative change: ``factor=0.97`` and ``high < 0`` is "at least 3 % less".
        confidence: of the interval, two-sided.

    Raises:
        AnalysisError: a side without runs, or a run without steps.
    """
    if not base or not new or not all(steps.size for steps in (*base, *new)):
        raise AnalysisError("a comparison needs runs on both sides, and steps in every run")
    rng = np.random.default_rng(0)
    sides = (
        _side([factor * np.asarray(steps, np.float64) for steps in base], rng),
        _side([np.asarray(steps, np.float64) for steps in new], rng),
    )
    found = sides[1].value - sides[0].value
    plain_base = float(np.mean([np.median(steps) for steps in base]))
    covers = all(side.covers_runs for side in sides)
    known = all(math.isfinite(side.variance) for side in sides)
    if not known:
        return Difference(
            plain_base, sides[1].value, found, None, None, None, "none", None, None, len(base), len(new)
        )
    error = float((sides[1].replicates - sides[0].replicates).std(ddof=1))
    freedom = _welch(*((side.variance, side.freedom) for side in sides))
    reach = student_quantile((1 + confidence) / 2, freedom) * error
    return Difference(
        base=plain_base,
        new=sides[1].value,
        difference=found,
        low=found - reach,
        high=found + reach,
        detectable=reach + student_quantile(POWER, freedom) * error if covers else None,
        scope="runs" if covers else "these_runs",
        standard_error=error,
        freedom=freedom,
        base_runs=len(base),
        new_runs=len(new),
    )


def _side(runs: Sequence[Floats], rng: np.random.Generator) -> _Side:
    """Value, replicates and variance of one side; the variance is NaN where the data says nothing about it."""
    count = len(runs)
    medians = np.array([np.median(steps) for steps in runs])
    value = float(medians.mean())
    pools = [_resampled_medians(steps, rng) - np.median(steps) for steps in runs]
    within = float(np.mean([pool.var() for pool in pools]))
    covers = count >= MIN_RUNS
    if not covers:
        # Only these runs: each stands for itself, and its steps alone are resampled.
        if min(steps.size for steps in runs) < MIN_STEPS:
            return _Side(value, np.full(REPLICATES, value), math.nan, 0, False)
        noise = np.stack([rng.choice(pool, REPLICATES) for pool in pools]).mean(axis=0)
        return _Side(
            value, value + noise, float(noise.var()), sum(steps.size for steps in runs) - count, False
        )
    between = float(medians.var(ddof=1))
    shrink = math.sqrt(max(0.0, 1 - within / between)) if between > 0 else 0.0
    centred = (medians - value) * shrink * math.sqrt(count / (count - 1))
    picked = rng.integers(0, count, size=(REPLICATES, count))
    steps = np.stack(pools)[picked, rng.integers(0, _MEDIANS, size=picked.shape)]
    replicates = value + (centred[picked] + steps).mean(axis=1)
    return _Side(value, replicates, float(replicates.var()), count - 1, True)


def _resampled_medians(steps: Floats, rng: np.random.Generator) -> Floats:
    """Medians of ``steps`` resampled in circular blocks."""
    count = steps.size
    if count == 1:
        return np.full(_MEDIANS, steps[0])
    block = max(1, round(count ** (1 / 3)))
    starts = rng.integers(0, count, size=(_MEDIANS, -(-count // block)))
    picks = (starts[:, :, None] + np.arange(block)).reshape(_MEDIANS, -1)[:, :count] % count
    medians = np.asarray(np.median(steps[picks], axis=1), dtype=np.float64)
    # One step of half a minute among few (the profiler writing its report) comes up as the median now and then, and a
    # standard error would be nothing but that step: what lies far outside the middle two thirds is drawn in.
    low, middle, high = np.quantile(medians, [0.159, 0.5, 0.841])
    reach = _FAR * (high - low) / 2
    return medians.clip(middle - reach, middle + reach) if reach > 0 else medians


def _welch(first: tuple[float, int], second: tuple[float, int]) -> float:
    """Degrees of freedom of a difference of two means with unlike variances (Welch and Satterthwaite)."""
    total = first[0] + second[0]
    if total == 0:
        return float(first[1] + second[1])
    return total**2 / sum(variance**2 / freedom for variance, freedom in (first, second))


def runs_needed(found: Difference) -> int | None:
    """About how many runs a side would have shown this difference with ``POWER``? None if it is 0 or unknown."""
    if found.scope != "runs" or not found.standard_error or not found.difference:
        return None
    # Both quantiles of the normal distribution: with that many runs Student's is close to it.
    ratio = (1.96 + 0.84) * found.standard_error / abs(found.difference)
    return max(MIN_RUNS, math.ceil(min(found.base_runs, found.new_runs) * ratio**2))


def student_quantile(probability: float, freedom: float) -> float:
    """Below which value does Student's t with ``freedom`` degrees lie with this probability (above 0.5)?

    By bisection of the distribution, whose integral is a finite sum for whole degrees of freedom (Abramowitz and
    Stegun 26.7.3 and 26.7.4); between whole ones linear in 1 / freedom.
    """
    if freedom < 1:
        raise AnalysisError(f"Student's t needs at least one degree of freedom, not {freedom:g}")
    low = math.floor(min(freedom, 1000.0))  # beyond, it is the normal distribution to three digits
    if low == freedom or low == 1000:
        return _whole_quantile(probability, low)
    share = (1 / low - 1 / freedom) / (1 / low - 1 / (low + 1))
    return (1 - share) * _whole_quantile(probability, low) + share * _whole_quantile(probability, low + 1)


def _whole_quantile(probability: float, freedom: int) -> float:
    def below(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        odd = freedom % 2
        term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
        for step in range(1 if odd else 0, freedom - 1, 2):
            total += term
            term *= (step + 1) / (step + 2) * math.cos(angle) ** 2
        inner = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
        return 0.5 + inner / 2

    low, high = 0.0, 1.0
    while below(high) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return high
