"""How long does work last that is slower while something else runs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.intervals import Intervals

    Floats = NDArray[np.float64]


def lasting(start: Floats, work: Floats, beside: Intervals, share: float) -> Floats:
    """Durations of work that begins at ``start`` and loses ``share`` of the time beside: its progress is the rest."""
    if not len(beside):
        return work
    edges = np.stack([beside.start, beside.end], axis=1).ravel().astype(np.float64)
    covered = np.cumsum(np.stack([np.zeros(len(beside)), beside.end - beside.start], axis=1).ravel())
    lost = share * np.interp(start, edges, covered, left=0, right=covered[-1])
    goal = start - lost + work
    progress = edges - share * covered
    after = np.interp(goal, progress, share * covered, left=0, right=share * covered[-1])
    durations: Floats = goal + after - start
    return durations
