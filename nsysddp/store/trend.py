"""Did a metric change over runs, when, and together with what: medians, intervals, change points.

Runs are the independent units: change points and their sizes come from one value a run. A run's own
interval comes from its steps, which follow each other and are alike, so they are resampled in blocks; it
says how well that run was measured and nothing about the next one. Ranks are never averaged: a run stands
for its worst rank, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nsysddp.model.errors import EvidenceError
from nsysddp.questions.changes import SHORTEST_SERIES, find_changes
from nsysddp.render.trend import ChangePoint, Trend, TrendPoint, Unlike
from nsysddp.store.database import StoredRun, metric_values, runs
from nsysddp.store.likeness import unknown, unlike

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000
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
    order = sorted(
        medians, key=lambda median: (medians[median] if higher_is_better else -medians[median], median)
    )
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
