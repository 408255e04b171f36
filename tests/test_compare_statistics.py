"""Intervals over runs: what they cover on simulated runs, and what no data can make them say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysddp.model.errors import AnalysisError
from nsysddp.questions.statistics import (
    MIN_RUNS,
    Difference,
    Floats,
    difference,
    runs_needed,
    student_quantile,
)

TRIALS = 200


def simulated(
    rng: np.random.Generator, runs: int, steps: int, between: float, within: float, shift: float = 0.0
) -> list[Floats]:
    """Runs of a job: each has a level of its own, and skewed steps that are like their neighbours."""
    made = []
    for _ in range(runs):
        noise = np.empty(steps)
        noise[0] = rng.normal()
        for at in range(1, steps):
            noise[at] = 0.5 * noise[at - 1] + np.sqrt(0.75) * rng.normal()
        made.append(100 + shift + between * rng.normal() + within * np.exp(0.5 * noise))
    return made


@pytest.mark.parametrize(
    ("base", "new", "steps", "between", "within"),
    [
        (3, 3, 5, 1.0, 0.1),  # few runs, few steps, runs differ
        (3, 3, 20, 1.0, 1.0),
        (5, 5, 20, 0.0, 1.0),  # runs do not differ at all
        (5, 5, 20, 1.0, 1.0),
        (8, 4, 40, 1.0, 3.0),  # unlike numbers of runs, noisy steps
        (3, 10, 10, 0.3, 1.0),
    ],
)
def test_intervals_cover_no_difference(
    base: int, new: int, steps: int, between: float, within: float
) -> None:
    rng = np.random.default_rng([base, new, steps])
    covered = 0
    for _ in range(TRIALS):
        found = difference(
            simulated(rng, base, steps, between, within), simulated(rng, new, steps, between, within)
        )
        assert found.scope == "runs"
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
    # 95 % with about three standard errors of the trials; up to 100 % where runs do not differ (the floor is cautious).
    assert 0.90 <= covered / TRIALS <= (1.0 if between == 0 else 0.995)


def test_steps_pooled_as_if_independent_would_be_far_too_sure() -> None:
    """What the two stages are for: of runs that differ, one run a side looks like a difference nearly always."""
    rng = np.random.default_rng(1)
    shown = 0
    for _ in range(100):
        found = difference(simulated(rng, 1, 60, 1.0, 0.2), simulated(rng, 1, 60, 1.0, 0.2))
        assert found.scope == "these_runs"
        assert found.low is not None
        assert found.high is not None
        assert not found.decided
        shown += not found.low <= 0 <= found.high
    assert shown > 70


def test_one_absurd_step_does_not_drown_the_rest() -> None:
    """The step in which the profiler writes its report lasts half a minute."""
    rng = np.random.default_rng(4)
    base, new = simulated(rng, 1, 5, 0.0, 0.1), simulated(rng, 1, 5, 0.0, 0.1)
    for runs in (base, new):
        runs[0][2] = 3e7
    found = difference(base, new)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low < 10


@pytest.mark.parametrize("runs", [3, 6])
def test_a_difference_called_detectable_is_mostly_found(runs: int) -> None:
    rng = np.random.default_rng(runs)
    sizes = [
        difference(simulated(rng, runs, 10, 1.0, 0.3), simulated(rng, runs, 10, 1.0, 0.3)).detectable
        for _ in range(60)
    ]
    size = float(np.median([one for one in sizes if one is not None]))
    found = sum(
        difference(simulated(rng, runs, 10, 1.0, 0.3), simulated(rng, runs, 10, 1.0, 0.3, shift=size)).decided
        for _ in range(150)
    )
    assert 0.65 <= found / 150 <= 0.97


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.95, 2, 2.920), (0.8, 10, 0.879), (0.975, 1e9, 1.962)],
)
def test_student_quantiles_of_the_printed_tables(probability: float, freedom: float, expected: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(expected, abs=2e-3)


def test_student_quantile_between_whole_degrees_lies_between_theirs() -> None:
    low, middle, high = (student_quantile(0.975, freedom) for freedom in (3, 2.5, 2))
    assert low < middle < high
    with pytest.raises(AnalysisError):
        student_quantile(0.975, 0.5)


RUNS = st.lists(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=12).map(lambda steps: np.array(steps, np.float64)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30, deadline=None)
@given(base=RUNS, new=RUNS, shift=st.integers(-(10**6), 10**6))
def test_what_holds_for_any_data(base: list[Floats], new: list[Floats], shift: int) -> None:
    found = difference(base, new)
    assert found == difference(base, new), "the same data gives the same answer"
    assert found.base == pytest.approx(np.mean([np.median(run) for run in base]))
    assert found.difference == pytest.approx(found.new - found.base)
    assert (found.scope == "runs") == (min(len(base), len(new)) >= MIN_RUNS)
    assert (found.detectable is None) == (found.scope != "runs")
    if found.low is not None and found.high is not None:
        assert found.low <= found.difference <= found.high
    # A shift of both sides changes nothing; a scale scales.
    moved = difference([run + shift for run in base], [run + shift for run in new])
    _alike(found, moved, 1.0)
    _alike(found, difference([3 * run for run in base], [3 * run for run in new]), 3.0)
    swapped = difference(new, base)
    assert swapped.difference == pytest.approx(-found.difference)
    assert swapped.scope == found.scope


def _alike(one: Difference, other: Difference, scale: float) -> None:
    assert other.difference == pytest.approx(scale * one.difference, abs=1e-3)
    assert (one.low is None) == (other.low is None)
    if one.low is not None and one.high is not None:
        assert other.low == pytest.approx(scale * one.low, rel=1e-6, abs=1.0)
        assert other.high == pytest.approx(scale * one.high, rel=1e-6, abs=1.0)


@settings(max_examples=30, deadline=None)
@given(value=st.integers(1, 10**9), runs=st.integers(3, 5), percent=st.integers(1, 60))
def test_factor_asks_for_a_relative_change(value: int, runs: int, percent: int) -> None:
    """Identical steps leave no doubt: ``new - factor * base`` has the sign of the claim."""
    base = [np.full(6, float(value)) for _ in range(runs)]
    new = [np.full(6, value * (1 - percent / 100)) for _ in range(runs)]
    kept = difference(base, new, factor=1 - (percent - 0.5) / 100)
    missed = difference(base, new, factor=1 - (percent + 0.5) / 100)
    assert kept.high is not None
    assert missed.low is not None
    assert kept.high < 0 < missed.low


def test_runs_needed_shrink_with_the_difference() -> None:
    rng = np.random.default_rng(3)
    base = simulated(rng, 4, 10, 1.0, 0.1)
    near = difference(base, [run + 0.2 for run in simulated(rng, 4, 10, 1.0, 0.1)])
    far = difference(base, [run + 20 for run in simulated(rng, 4, 10, 1.0, 0.1)])
    more, less = runs_needed(near), runs_needed(far)
    assert more is not None
    assert less == MIN_RUNS < more
    assert runs_needed(difference(base[:1], base[1:2])) is None


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(AnalysisError):
        difference([], [np.ones(3)])
    with pytest.raises(AnalysisError):
        difference([np.ones(3)], [np.empty(0)])
