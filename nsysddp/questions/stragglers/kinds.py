"""Which rows of a matrix (ranks x steps) are late, since when, and in what way? Statistics alone; no trace is needed.

The matrix holds the own time of each rank and step as a share beyond its peers'. Of a row five things can be true::

    slow      x = a                          the level differs from the peers'
    changed   x = a before step s, b after   it changed (a passing level has two changes)
    drift     x = a + b * step               it grows
    periodic  x = a, and b at every p-th step
    one_off   x = a, and b at one step

Each is tested against the noise between neighbouring steps, over all rows together, with a threshold of Student's
distribution that is divided among all comparisons of its kind (Bonferroni): less than 1 % of jobs without a straggler
show one (``docs/results/stragglers.md``). A level must also stand out of what ranks differ by for good, since no two
GPUs are equally fast. Of what passes, the one that leaves least unexplained, with a price for every parameter, is the
kind (Bayesian information criterion); it is taken off, and the row is searched again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from nsysddp.questions.changes import SHORTEST_LEVEL, SHORTEST_SERIES, find_changes
from nsysddp.questions.statistics import student_quantile

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Kind = Literal["slow", "changed", "drift", "periodic", "one_off"]

ALARM = 0.0005
"""How often one of the five searches of a job may find something where nothing is."""

LEAST_STEPS = 3
"""Fewer steps say nothing about noise."""

_STANDS_OUT = 4.0
"""A level must be so many times what other rows differ by for good."""

_LONGEST_PERIOD = 50
_MOST_KINDS = 3
"""So many kinds of lateness are looked for in one row."""

_TAILS = 1.4
"""So much further than a normal distribution's threshold means of a few values must be: their noise has tails."""

_BEYOND_SELDOM = 10.0
"""A single step is late if it is so many times what one step in a hundred shows."""

_ENOUGH_ROWS = 5
_OF_NORMAL = 1.4826
_MEDIAN_COSTS = 1.2533
"""A median of normal values is so much less certain than their mean."""


@dataclass(frozen=True)
class Late:
    """One kind of lateness of one row.

    Attributes:
        row: number of the row.
        kind: what it is.
        late: which steps are late; shape (steps,).
        lateness: by how much, mean over those; in the unit of the matrix.
        score: how far the test statistic is beyond its threshold (1: at it).
        period: of ``periodic``, in steps; else None.
        fitted: what is explained; shape (steps,).
    """

    row: int
    kind: Kind
    late: Flags
    lateness: float
    score: float
    fitted: Floats
    period: int | None = None


@dataclass(frozen=True)
class Noise:
    """What neighbouring steps of one row differ by without a cause.

    Attributes:
        sigma: standard deviation of one value.
        freedom: degrees of freedom with which it is known.
        seldom: what one value in a hundred is above the level of its row by; noise has tails.
    """

    sigma: float
    freedom: float
    seldom: float

    @classmethod
    def of(cls, matrix: Floats) -> Noise:
        """Robust: from differences of neighbours, which see no levels, or up to twice as much from deviations."""
        rows, steps = matrix.shape
        apart = np.abs(np.diff(matrix, axis=1)) / math.sqrt(2)
        away = np.abs(matrix - np.nanmedian(matrix, axis=1, keepdims=True)) * math.sqrt(steps / (steps - 1))
        near = float(np.nanmedian(apart))
        far = (
            float(np.nanmedian(away)) if rows >= _ENOUGH_ROWS else near
        )  # of few, one late row is no exception
        sigma = _OF_NORMAL * max(near, min(far, 2 * near))
        above = (matrix - np.nanmedian(matrix, axis=1, keepdims=True)).ravel()
        above = np.sort(above[~np.isnan(above)])
        seldom = float(
            above[-min(above.size, 2 + above.size // 100)]
        )  # the largest itself is no measure for it
        return cls(max(sigma, 1e-9), max(1.0, 0.5 * (rows - 1) * (steps - 1)), max(seldom, 0.0))

    def threshold(self, comparisons: float) -> float:
        """How many standard errors are too many for chance, of so many comparisons."""
        return _quantile(1 - ALARM / max(comparisons, 1.0), min(round(self.freedom), 200))


@cache
def _quantile(probability: float, freedom: int) -> float:
    return student_quantile(probability, max(freedom, 1))


def find_late(matrix: Floats, least: float, differ: float | None = None) -> list[Late]:
    """Every kind of lateness of every row.

    Args:
        matrix: lateness of each row and step against its peers', relative; NaN where unknown. Shape (rows, steps).
        least: lateness below this is of no account.
        differ: what rows may differ by for good (standard deviation); None: as much as they do.

    Returns:
        What was found, the largest lateness first; empty for fewer than two rows or three steps.
    """
    rows, steps = matrix.shape
    if rows < 2 or steps < LEAST_STEPS:
        return []
    noise = Noise.of(matrix)
    values = matrix.copy()
    found: list[Late] = []
    open_rows = np.arange(rows)
    for _ in range(_MOST_KINDS):
        levels = np.nanmedian(values, axis=1)
        best: list[Late] = []
        for row in open_rows[_suspicious(values[open_rows], noise, least)].tolist():
            stands = _for_good(levels, row) if differ is None else differ
            options = list(_options(values[row], row, noise, rows, least, stands))
            if options:
                best.append(min(options, key=lambda option: option[0])[1])
        for late in best:
            values[late.row] -= late.fitted
        found += best
        open_rows = np.array([late.row for late in best], dtype=np.int64)
        if not open_rows.size:
            break
    return sorted(found, key=lambda late: (-late.lateness * late.late.sum(), late.row))


def _suspicious(values: Floats, noise: Noise, least: float) -> Flags:
    """Rows in which anything could be late; a coarse and fast sieve."""
    level, high = np.nanmedian(values, axis=1), np.nanmax(values, axis=1)
    moves = high - np.nanmin(values, axis=1) > 2 * noise.sigma
    made: Flags = (level > least) | ((high > least) & moves)
    return made


def _options(
    line: Floats, row: int, noise: Noise, rows: int, least: float, stands: float
) -> Iterator[tuple[float, Late]]:
    """What may be true of a row, each with its information criterion (less is better)."""
    known = np.flatnonzero(~np.isnan(line))
    x = line[known]
    if x.size < LEAST_STEPS:
        return
    for test in _TESTS:
        made = test(x, noise, rows, least, stands)
        if made is None:
            continue
        kind, fitted, late, score, parameters, period = made
        rest = float(((x - fitted) ** 2).sum()) / noise.sigma**2
        whole, late_steps = np.zeros(line.size), np.zeros(line.size, dtype=bool)
        whole[known], late_steps[known] = fitted, late
        lateness = float(np.mean(fitted[late]))
        yield (
            rest + parameters * math.log(x.size),
            Late(row, kind, late_steps, lateness, score, whole, period),
        )


def _for_good(levels: Floats, row: int) -> float:
    """What other rows differ by for good; 0 where too few are there to say."""
    if levels.size <= _FEW_ROWS:  # of many rows one more or less does not matter
        levels = np.delete(levels, row)
    if levels.size < 3:
        return 0.0
    return _OF_NORMAL * float(np.nanmedian(np.abs(levels - np.nanmedian(levels))))


_FEW_ROWS = 16

Made = tuple[Kind, Floats, Flags, float, int, int | None]
"""Kind, what it explains, which steps are late, score, number of parameters, period."""
Test = Callable[[Floats, Noise, int, float, float], Made | None]


def _slow(x: Floats, noise: Noise, rows: int, least: float, stands: float) -> Made | None:
    count = x.size
    level, costs = (float(np.median(x)), _MEDIAN_COSTS) if count >= 5 else (float(x.mean()), 1.0)
    z = level / (noise.sigma * costs / math.sqrt(count))
    score = z / noise.threshold(rows)
    if score < 1 or level < max(least, _STANDS_OUT * stands):
        return None
    return "slow", np.full(count, level), np.ones(count, dtype=bool), score, 1, None


def _level(x: Floats, noise: Noise, rows: int, least: float, stands: float) -> Made | None:
    """The clearest change of level; with enough steps all changes that a permutation test finds."""
    count, x = x.size, _without_spikes(x, noise)
    splits = np.arange(SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1)
    if not splits.size:
        return None
    sums = np.cumsum(x)
    apart = (sums[-1] - sums[splits - 1]) / (count - splits) - sums[splits - 1] / splits
    z = np.abs(apart) / (noise.sigma * np.sqrt(1 / splits + 1 / (count - splits)))
    best = int(np.argmax(z))
    places = [int(splits[best])]
    score = float(z[best]) / noise.threshold(2 * rows * count) / _TAILS
    if count >= SHORTEST_SERIES and (score >= 1 or x.max() > least + 4 * noise.sigma):
        places = [place for place, _ in find_changes(x.tolist())] or places
        edges = [0, *places, count]
        middle = [slice(a, b) for a, b in pairwise(edges)]
        score = max(score, *(_part_score(x, part, noise, rows) for part in middle))
    if score < 1:
        return None
    parts = np.split(np.arange(count), places)
    fitted = np.concatenate([np.full(part.size, np.median(x[part])) for part in parts])
    late = fitted - min(float(np.median(x[part])) for part in parts) > least
    late &= fitted > max(least, stands)
    if not late.any() or late.all():
        return None
    return "changed", fitted, late, score, 2 * len(parts) - 1, None


def _without_spikes(x: Floats, noise: Noise) -> Floats:
    """The values, each at most three standard deviations from the median of the five around it."""
    around = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(x, 2, mode="reflect"), 5), axis=1)
    made: Floats = np.clip(x, around - 3 * noise.sigma, around + 3 * noise.sigma)
    return made


def _part_score(x: Floats, part: slice, noise: Noise, rows: int) -> float:
    """How clearly a part of the steps lies above the rest, of all parts that there could be."""
    inside = x[part]
    if inside.size in (0, x.size):
        return 0.0
    outside = np.delete(x, np.arange(x.size)[part])
    z = (inside.mean() - outside.mean()) / (noise.sigma * math.sqrt(1 / inside.size + 1 / outside.size))
    return float(z) / noise.threshold(rows * x.size**2 / 2) / _TAILS


_DRIFT_STEPS = 6


def _drift(x: Floats, noise: Noise, rows: int, least: float, stands: float) -> Made | None:
    count = x.size
    if count < _DRIFT_STEPS:
        return None
    at, x = np.arange(count) - (count - 1) / 2, _without_spikes(x, noise)
    slope = float((at * x).sum() / (at**2).sum())
    score = slope * math.sqrt(float((at**2).sum())) / noise.sigma / noise.threshold(rows) / _TAILS
    fitted = x.mean() + slope * at
    late = fitted > max(least, stands)
    if score < 1 or slope * (count - 1) < 2 * least or not late.any():
        return None
    return "drift", fitted, late, score, 2, None


def _periodic(x: Floats, noise: Noise, rows: int, least: float, _: float) -> Made | None:
    """Every p-th step is late, at least three times, and all of them."""
    count, total = x.size, float(x.sum())
    longest = min(count // 3, _LONGEST_PERIOD)
    best: tuple[float, int, int] | None = None
    for period in range(2, longest + 1):
        padded = np.full(-(-count // period) * period, np.nan)
        padded[:count] = x
        table = padded.reshape(-1, period)
        times = (~np.isnan(table)).sum(axis=0)
        inside = np.nansum(table, axis=0)
        other = (total - inside) / (count - times)
        apart = np.nanmedian(table, axis=0) - other
        z = apart / (_MEDIAN_COSTS * noise.sigma * np.sqrt(1 / times + 1 / (count - times)))
        z[(times < 3) | (np.nanmin(table, axis=0) < other + apart / 3)] = -np.inf
        phase = int(np.argmax(z))
        if np.isfinite(z[phase]) and (best is None or z[phase] > best[0]):
            best = (float(z[phase]), period, phase)
    if best is None:
        return None
    # Of many rows the highest of all means is far out in the tails.
    tails = _TAILS if rows > _FEW_ROWS else 1.0
    score = best[0] / noise.threshold(rows * longest * (longest + 1) / 2) / tails
    late = np.zeros(count, dtype=bool)
    late[best[2] :: best[1]] = True
    level, rest = float(np.median(x[late])), float(np.median(x[~late]))
    if score < 1 or level < least or level - rest < least:
        return None
    return "periodic", np.where(late, level, rest), late, score, 4, best[1]


def _one_off(x: Floats, noise: Noise, rows: int, least: float, _: float) -> Made | None:
    """One step far above all others; what comes again is another one of these."""
    place = int(np.argmax(x))
    rest = float(np.median(np.delete(x, place)))
    score = (x[place] - rest) / noise.sigma / noise.threshold(rows * x.size)
    beyond = max(2 * least, _BEYOND_SELDOM * noise.seldom)
    if score < 1 or x[place] - rest < beyond or x[place] < least:
        return None
    late = np.zeros(x.size, dtype=bool)
    late[place] = True
    return "one_off", np.where(late, x[place], 0.0), late, float(score), 2, None


_TESTS: tuple[Test, ...] = (_slow, _level, _drift, _periodic, _one_off)
