"""Who is late: single ranks, or hosts of which all ranks are?

Hosts are asked first, and what they explain is taken off their ranks: a host is late if it is late against the ranks of
all others, and three quarters of its ranks are at least half as late. So one late rank makes no late host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsysddp.questions.stragglers.kinds import Late, find_late

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions.stragglers.matrix import Matrix

    Floats = NDArray[np.float64]

LEAST_SHARE = 0.004
"""Lateness below this share of the step is of no account."""

_OF_ITS_RANKS = 0.75
_AS_LATE = 0.5
_OF_NORMAL, _MEDIAN_COSTS = 1.4826, 1.2533


@dataclass(frozen=True)
class Straggler:
    """Ranks that are late together, or one that is.

    Attributes:
        rows: rows of the matrix.
        host: the host, if it is all of one; else None.
        late: in what way.
        lateness_ns: mean over the late steps, the median of the rows.
        part: compute, host (the GPU had nothing to do), or both.
    """

    rows: tuple[int, ...]
    host: str | None
    late: Late
    lateness_ns: float
    part: str


def stragglers_of(matrix: Matrix) -> list[Straggler]:
    """All stragglers, the costliest first."""
    relative = matrix.relative
    share = float(np.nanmedian(matrix.own)) / float(np.median(matrix.window))
    least = LEAST_SHARE / max(share, 1e-3)
    found = []
    for host, rows, late in _late_hosts(matrix, least):
        relative[rows] -= late.fitted
        found.append(_straggler(matrix, rows, host, late))
    found += [_straggler(matrix, np.array([late.row]), None, late) for late in find_late(relative, least)]
    return sorted(
        found, key=lambda candidate: (-candidate.lateness_ns * candidate.late.late.sum(), candidate.rows)
    )


def _late_hosts(matrix: Matrix, least: float) -> list[tuple[str, NDArray[np.int64], Late]]:
    names, owner, sizes = np.unique(matrix.hosts, return_inverse=True, return_counts=True)
    if names.size < 2 or sizes.min() < 2:
        return []
    values = matrix.centred
    series = np.empty((names.size, values.shape[1]))
    inside = []
    for number in range(names.size):
        mine = owner == number
        series[number] = np.nanmedian(values[mine], axis=0) - np.nanmedian(values[~mine], axis=0)
        level = np.nanmedian(values[mine], axis=1)
        inside += np.abs(level - np.nanmedian(level)).tolist()
    if np.isnan(series).all():
        return []
    differ = _OF_NORMAL * float(np.nanmedian(inside)) * _MEDIAN_COSTS / math.sqrt(int(sizes.min()))
    made = []
    for late in find_late(series, least, differ):
        rows = np.flatnonzero(owner == late.row)
        others = np.nanmedian(values[owner != late.row], axis=0)
        each = np.nanmean((values[rows] - others)[:, late.late], axis=1)
        if np.mean(each >= _AS_LATE * late.lateness) >= _OF_ITS_RANKS:
            made.append((str(names[late.row]), rows, late))
    return made


def _straggler(matrix: Matrix, rows: NDArray[np.int64], host: str | None, late: Late) -> Straggler:
    def mean(values: Floats) -> float:
        return float(np.nanmedian(np.nanmean(values[rows][:, late.late], axis=1)))

    compute, idle = max(mean(matrix.compute), 0.0), max(mean(matrix.idle), 0.0)
    whole = compute + idle
    part = "both"
    if whole and compute >= _MOSTLY * whole:
        part = "compute"
    elif whole and idle >= _MOSTLY * whole:
        part = "host"
    return Straggler(
        rows=tuple(rows.tolist()),
        host=host,
        late=late,
        lateness_ns=late.lateness * float(np.nanmedian(matrix.own[rows][:, late.late])),
        part=part,
    )


_MOSTLY = 0.7
