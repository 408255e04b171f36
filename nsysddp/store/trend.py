"""Did a metric change over runs, when, and together with what: medians, intervals, change points.

Runs are the independent units: change points and their sizes come from one value a run. A run's own
interval comes from its steps, which follow each other and are alike, so they are resampled in blocks; it
says how well that run was measured and nothing about the next one. Ranks are never averaged: a run stands
for its worst rank, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from nsysddp.model.errors import EvidenceError
from nsysddp.render.trend import ChangePoint, Trend, TrendPoint, Unlike
from nsysddp.store.database import StoredRun, metric_values, runs
from nsysddp.store.likeness import unknown, unlike

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000
PERMUTATIONS = 1999
SHORTEST_LEVEL = 3
"""Fewer runs than this are not called a level: one odd run is an outlier, not a change."""

SHORTEST_SERIES = 10
"""Of fewer runs, even the clearest shift comes up in more than one of a hundred random orders."""

LEVEL = 0.01
"""How often a series without any change may show one; low, because a trend is looked at again and again."""

HIGHER_IS_BETTER = frozenset({"hidden_communication_ns", "hidden_transfer_ns", "overlap_ratio"})
"""Metrics of which more is wanted; of all others the worst rank is the one with most."""


def trend(
    metric: str,
    *,
    url: str | None = None,
    rank: int | None = None,
    tags: Sequence[str] = (),
    label: str | None = None,
    last: int | None = None,
) -> Trend:
    """How did ``metric`` move over the kept runs that are alike, oldest first?

    All are held beside the newest run that knows the metric; what is unlike it is left out, with the reason.

    value of a run = median over the steps (without warm-up) of its worst rank, or of ``rank``.

    Args:
        metric: a metric column of table ``overlap``.
        url: database (``resolve_url``).
        rank: follow this rank instead of each run's worst one.
        tags: only runs that carry all of these.
        label: only runs with this label.
        last: only the newest so many runs.

    Raises:
        UsageError: there is no such metric.
        EvidenceError: no run fits, or there is no database.
    """
    kept = runs(url=url, tags=tags, label=label, last=last)
    measured = metric_values(metric, [run.run_id for run in kept], url=url)
    if not kept:
        raise EvidenceError("no kept run fits", do="see nsysddp runs list")
    samples: dict[int, dict[int, list[float | None]]] = {run.run_id: {} for run in kept}
    for row in measured:
        samples[row.run_id].setdefault(row.rank, []).append(row.value)
    higher = metric in HIGHER_IS_BETTER
    every = [(run, _point(run, samples[run.run_id], rank=rank, higher_is_better=higher)) for run in kept]
    newest = next((run for run, point in reversed(every) if point.value is not None), kept[-1])
    reasons = {run.run_id: unlike(run, newest) for run in kept}
    left_out = tuple(Unlike(number, reason) for number, reason in reasons.items() if reason is not None)
    kept = [run for run in kept if reasons[run.run_id] is None]
    points = [point for run, point in every if reasons[run.run_id] is None]
    known = [(run, point) for run, point in zip(kept, points, strict=True) if point.value is not None]
    values = [point.value for _, point in known if point.value is not None]
    return Trend(
        metric=metric,
        rank=rank,
        higher_is_better=higher,
        confidence=CONFIDENCE,
        points=tuple(points),
        change_points=tuple(_change_points([run for run, _ in known], values)),
        warnings=tuple(_warnings(metric, points, [run for run, _ in known], left_out, newest)),
        left_out=left_out,
    )


def _point(
    run: StoredRun, samples: Mapping[int, Sequence[float | None]], *, rank: int | None, higher_is_better: bool
) -> TrendPoint:
    known = {
        one: np.array([value for value in values if value is not None], np.float64)
        for one, values in samples.items()
        if rank is None or one == rank
    }
    medians = {one: float(np.median(values)) for one, values in known.items() if values.size}
    if not medians:
        return TrendPoint(run.run_id, run.label, run.created_at, None, None, None, None, None, 0)
    # The lowest rank number among equals, so that the same rows always name the same rank.
    order = sorted(medians, key=lambda one: (medians[one] if higher_is_better else -medians[one], one))
    worst, best = order[0], order[-1]
    interval = median_interval(known[worst])
    low, high = interval if interval is not None else (None, None)
    return TrendPoint(
        run_id=run.run_id,
        label=run.label,
        created_at=run.created_at,
        rank=worst,
        value=medians[worst],
        low=low,
        high=high,
        best=medians[best],
        steps=known[worst].size,
    )


def median_interval(values: Floats, *, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Within which bounds is the median of consecutive steps known?

    Percentile bootstrap over circular blocks, whose length of about the cube root of the count keeps most of the
    likeness of neighbouring steps. Always contains the median itself. None for fewer than five steps,
    which say too little about their own spread.
    """
    count = values.size
    if count < 5:
        return None
    rng = np.random.default_rng(0)
    block = max(1, round(count ** (1 / 3)))
    starts = rng.integers(0, count, size=(RESAMPLES, -(-count // block)))
    picks = (starts[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count] % count
    low, high = np.quantile(np.median(values[picks], axis=1), [(1 - confidence) / 2, (1 + confidence) / 2])
    middle = float(np.median(values))
    return min(float(low), middle), max(float(high), middle)


def find_changes(values: Sequence[float]) -> list[tuple[int, float]]:
    """After which runs does the level differ: index of the first run of each new level, with its p-value.

    In a stretch of n runs, every inner part of k runs has the clearness
    ``|sum of its ranks - k * mean rank| / sqrt(k * (n - k) / n)``. The clearest part that reaches to an end (a shift),
    then the clearest one that does not (a level that comes and goes), is a finding if at most ``LEVEL`` of random
    orders of the same runs show one as clear; the parts are then searched in the same way. A change stands where
    the values on both sides are nearest to their medians. Ranks, so that one odd run cannot make a change. Fewer than
    ``SHORTEST_SERIES`` runs can't show any. A slow drift shows as one or several changes: the test says that the
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


def _change_points(kept: Sequence[StoredRun], values: Sequence[float]) -> list[ChangePoint]:
    changes = find_changes(values)
    bounds = [0, *(place for place, _ in changes), len(values)]
    points = []
    for (place, p_value), start, end in zip(changes, bounds, bounds[2:], strict=False):
        old, new = np.asarray(values[start:place], np.float64), np.asarray(values[place:end], np.float64)
        low, high = _difference_interval(old, new)
        points.append(
            ChangePoint(
                run_id=kept[place].run_id,
                label=kept[place].label,
                previous_run_id=kept[place - 1].run_id,
                before=float(np.median(old)),
                after=float(np.median(new)),
                low=low,
                high=high,
                p_value=p_value,
                differences=tuple(differences(kept[place - 1], kept[place])),
            )
        )
    return points


def _difference_interval(old: Floats, new: Floats) -> tuple[float, float]:
    """Bounds of the difference of medians (percentile bootstrap over runs)."""
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(side, size=(RESAMPLES, side.size)), axis=1) for side in (new, old)]
    low, high = np.quantile(drawn[0] - drawn[1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def differences(old: StoredRun, new: StoredRun) -> list[str]:
    """What is recorded differently for two runs: settings as ``name old → new``, tags as added or removed.

    A list, not a cause: that two things changed between the same runs does not say that one made the other.
    """
    before, after = _settings(old), _settings(new)
    names = list(dict.fromkeys([*before, *after]))
    changed = [
        f"{name} {before.get(name, 'unknown')} → {after.get(name, 'unknown')}"
        for name in names
        if before.get(name) != after.get(name)
    ]
    changed += [f"tag {name} added" for name in sorted(set(new.tags) - set(old.tags))]
    return changed + [f"tag {name} removed" for name in sorted(set(old.tags) - set(new.tags))]


_VOLATILE = frozenset(
    {
        "bytes",
        "created",
        "date",
        "diagnostics",
        "duration",
        "ended",
        "files",
        "finished",
        "hash",
        "name",
        "outcome",
    }
    | {"pid", "repeat", "sha256", "started", "time", "utc"}
)
"""Words of keys of a capture record that say something new in every run."""


def _settings(run: StoredRun) -> dict[str, str]:
    """What could explain a run's numbers, of what was recorded and is not new in every run?"""
    settings = {
        "nsysddp": run.tool_version,
        "nsys": _distinct(row["nsys_version"] for row in run.inputs),
        "GPU": _distinct(row["gpu_name"] for row in run.ranks),
        "ranks": str(len(run.ranks)),
    }
    settings.update(_leaves(run.capture or {}, ""))
    return settings


def _distinct(values: Any) -> str:
    return ", ".join(sorted({str(value) for value in values if value is not None})) or "unknown"


def _leaves(record: Mapping[str, Any], prefix: str) -> dict[str, str]:
    leaves: dict[str, str] = {}
    for key, value in record.items():
        if not _VOLATILE.isdisjoint(key.lower().split("_")):
            continue
        if isinstance(value, Mapping):
            leaves.update(_leaves(value, f"{prefix}{key}."))
        elif isinstance(value, str | int | float | bool):
            leaves[f"{prefix}{key}"] = str(value)
    return leaves


def _warnings(
    metric: str,
    points: Sequence[TrendPoint],
    known: Sequence[StoredRun],
    left_out: Sequence[Unlike],
    newest: StoredRun,
) -> list[str]:
    warnings = []
    silent = [str(point.run_id) for point in points if point.value is None]
    if silent:
        warnings.append(
            f"{metric} is unknown in run {', '.join(silent)}: left out, see the warnings of the run itself"
        )
    if len(known) < SHORTEST_SERIES:
        warnings.append(
            f"Not enough runs to show a change of level: {len(known)} of at least {SHORTEST_SERIES}."
        )
    by_reason: dict[str, list[str]] = {}
    for run in left_out:
        by_reason.setdefault(run.reason, []).append(str(run.run_id))
    warnings += [
        f"Left out as unlike run {newest.run_id}, the newest: run {', '.join(numbers)}: {reason}"
        for reason, numbers in by_reason.items()
    ]
    versions = sorted({run.tool_version for run in known})
    if len(versions) > 1:
        warnings.append(
            f"The runs were analysed by different versions of nsysddp ({', '.join(versions)}): "
            "analyse them again where a number can have changed its meaning"
        )
    open_ = unknown(known)
    return warnings if open_ is None else [*warnings, open_]
