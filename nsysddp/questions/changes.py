"""Where does the level of a series change? Permutation tests of ranks, searched from the clearest change on.

Shared by trends over runs (``store.trend``) and by stragglers over steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PERMUTATIONS = 1999
SHORTEST_LEVEL = 3
"""Fewer values than this are not called a level: one odd value is an outlier, not a change."""

SHORTEST_SERIES = 10
"""Of fewer values, even the clearest shift comes up in more than one of a hundred random orders."""

LEVEL = 0.01
"""How often a series without any change may show one; low, because a trend is looked at again and again."""


def find_changes(values: Sequence[float]) -> list[tuple[int, float]]:
    """Where does the level differ: index of the first value of each new level, with its p-value.

    In a stretch of n values, every inner part of k values has the clearness
    ``|sum of its ranks - k * mean rank| / sqrt(k * (n - k) / n)``. The clearest part that reaches to an end (a shift),
    then the clearest one that does not (a level that comes and goes), is a finding if at most ``LEVEL`` of random
    orders of the same values show one as clear; the parts are then searched in the same way. A change stands where
    the values on both sides are nearest to their medians. Ranks, so that one odd value cannot make a change. Fewer than
    ``SHORTEST_SERIES`` values can't show any. A slow drift shows as one or several changes: the test says that the
    order matters, not that there was a jump.
    """
    series = np.asarray(values, np.float64)
    p_values: dict[int, float] = {}
    stretches = [(0, series.size)]
    while stretches:
        start, end = stretches.pop()
        edges, p_value = _clearest_part(series[start:end])
        if p_value <= LEVEL:
            places = [start + edge for edge in _settled(series[start:end], edges)]
            p_values.update(dict.fromkeys(places, p_value))
            stretches += pairwise([start, *places, end])
    found = sorted(p_values)
    return list(zip(_settled(series, found), (p_values[place] for place in found), strict=True))


def _clearest_part(values: Floats) -> tuple[list[int], float]:
    """Where the clearest shift or passing level begins (and ends), and how often random orders have one as clear."""
    count = values.size
    if count < 2 * SHORTEST_LEVEL or np.all(values == values[0]):
        return [], 1.0
    ranks = _centred_ranks(values)
    shuffled = np.random.default_rng(0).permuted(np.tile(ranks, (PERMUTATIONS, 1)), axis=1)
    # The real order is the first row; a part's sum is a difference of two of its row's running sums.
    orders = np.vstack([ranks, shuffled])
    sums = np.concatenate([np.zeros((len(orders), 1)), np.cumsum(orders, axis=1)], axis=1)

    sizes = np.arange(SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1)
    shifts = np.abs(sums[:, sizes]) / _scale(sizes, count)
    shift = [int(sizes[np.argmax(shifts[0])])]
    shift_p = _as_clear(shifts.max(axis=1))

    passing, passing_clear = [], np.zeros(len(orders))
    for size in _passing_sizes(count):
        starts = np.arange(SHORTEST_LEVEL, count - SHORTEST_LEVEL - size + 1)
        clear = np.abs(sums[:, starts + size] - sums[:, starts]) / _scale(size, count)
        if clear[0].max() > passing_clear[0]:
            first = int(starts[np.argmax(clear[0])])
            passing = [first, first + size]
        passing_clear = np.maximum(passing_clear, clear.max(axis=1))
    passing_p = _as_clear(passing_clear) if passing else 1.0

    if passing_p <= LEVEL and (shift_p > LEVEL or passing_clear[0] > shifts[0].max()):
        return passing, passing_p
    return shift, shift_p


def _centred_ranks(values: Floats) -> Floats:
    """Ranks less their mean; equal values share the middle one of their ranks."""
    _, inverse, repeats = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(repeats) - (repeats - 1) / 2)[inverse]
    ranks -= ranks.mean()
    return ranks


def _scale(size: Any, count: int) -> Any:
    return np.sqrt(size * (count - size) / count)


def _passing_sizes(count: int) -> list[int]:
    """Lengths tried for a passing level, a quarter apart: the edges are settled afterwards, and time stays linear."""
    sizes, size = [], float(SHORTEST_LEVEL)
    while round(size) <= count - 2 * SHORTEST_LEVEL:
        sizes.append(round(size))
        size = max(size + 1, size * 1.25)
    return sizes


def _as_clear(clearness: Floats) -> float:
    """The share of orders, the real one (first) included, that are as clear as it."""
    # A hair of tolerance: the same runs summed in another sequence count as equally clear.
    return float(np.mean(clearness >= clearness[0] - 1e-9))


def _settled(values: Floats, places: Sequence[int]) -> list[int]:
    """Each change where, between its neighbours, both sides lie nearest to their medians; until none moves.

    Ranks tell that there is a change better than where: they forget how far apart the two levels are.
    """
    settled = list(places)
    for _ in range(5):
        bounds = [0, *settled, values.size]
        for index in range(1, len(bounds) - 1):
            start, end = bounds[index - 1], bounds[index + 1]
            splits = range(start + SHORTEST_LEVEL, end - SHORTEST_LEVEL + 1)
            bounds[index] = min(splits, key=lambda at: _spread(values[start:at]) + _spread(values[at:end]))
        if bounds[1:-1] == settled:
            break
        settled = bounds[1:-1]
    return settled


def _spread(values: Floats) -> float:
    return float(np.abs(values - np.median(values)).sum())
