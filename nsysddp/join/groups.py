"""Which ranks ran a sequence of collectives together, where no payload names the communicator?

One sequence on all ranks is no proof of one group: ranks of a job often run the same sequence in several groups in
lockstep (tensor parallel, HSDP). Ranks of one group end a synchronising collective together, after all of them have
started. So the ranks are one group only if nothing speaks against it::

    distance(i, j) = median over the collectives of |end_i - end_j|        infinite if i often began after j had ended

* all distances are within the tolerance, and no partition into groups of one size stands out: one group;
* a partition stands out and its groups are farther from each other than the tolerance: these groups;
* a partition stands out, but one group could explain the ends as well: not known.

A partition stands out if ends inside its groups lie much closer together than those of different groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.join.drift import fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[Any]

NEVER_TOGETHER = np.inf

_SAMPLE = 64
"""Collectives that are compared; more tell nothing new, and ranks are compared with ranks."""

_STANDS_OUT = 4.0
"""Groups stand out from this ratio on: nearest ends of different groups over farthest ends of one."""

_ALIKE_NS = 3_000
"""Ends nearer than this are equal: no partition stands out by less."""

_OFTEN = 0.2
"""Share of collectives that may contradict a pair: one that was cut off or matched wrongly is no other group."""


def groups_of(start: Times, end: Times, clock: Times, tolerance: int) -> list[NDArray[np.int64]] | None:
    """The groups of ranks that ran these collectives together.

    Args:
        start: start of each kernel in ns, shape (ranks, collectives), the n-th of each rank in column n.
        end: its end.
        clock: clock of each rank; ranks of different clocks are compared up to a constant.
        tolerance: how far in ns the ends of one collective may lie apart.

    Returns:
        Row numbers of the ranks of each group; None if it cannot be known.
    """
    ranks, count = start.shape
    everyone = [np.arange(ranks)]
    several_clocks = np.unique(clock).size > 1
    if several_clocks and count < 3:
        return everyone  # nothing that could speak against it
    columns = np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64))
    start, end = _on_one_clock(start[:, columns], end[:, columns], clock)
    distance = _distances(start, end)
    if ranks > 3:  # of three ranks or fewer no part but the whole is several groups
        groups = _standing_out(distance)
        if groups is not None:
            apart = min(
                float(distance[np.ix_(one, other)].min())
                for number, one in enumerate(groups)
                for other in groups[:number]
            )
            return groups if apart > tolerance else None
    return everyone if float(distance.max(initial=0.0)) <= tolerance else None


def _on_one_clock(start: Times, end: Times, clock: Times) -> tuple[Times, Times]:
    """Times moved by one line a clock, so that the ends of the clocks agree."""
    start, end, first = start.copy(), end.copy(), end[0].copy()
    for number in np.unique(clock[clock != clock[0]]):
        mine = clock == number
        line = fit(end[mine][0], first - end[mine][0])
        for times in (start, end):
            times[mine] += line.at(times[mine])
    return start, end


def _distances(start: Times, end: Times) -> NDArray[np.float64]:
    """Distance of every two ranks, shape (ranks, ranks)."""
    ranks, count = start.shape
    distance = np.zeros((ranks, ranks))
    allowed = _OFTEN * count if count >= 5 else 0
    for rank in range(ranks):
        apart = np.median(np.abs(end - end[rank]), axis=1)
        contradicted = ((start >= end[rank]) | (start[rank] >= end)).sum(axis=1) > allowed
        contradicted[rank] = False
        distance[rank] = np.where(contradicted, NEVER_TOGETHER, apart)
    return distance


def _standing_out(distance: NDArray[np.float64]) -> list[NDArray[np.int64]] | None:
    """The partition into several groups of one size, two ranks or more, that stands out; None if none does."""
    ranks = distance.shape[0]
    for threshold in np.unique(distance[np.isfinite(distance)]):
        label = _linked(distance <= threshold)
        sizes = np.bincount(label)
        if sizes.size == 1:
            return None
        if sizes.min() < 2 or sizes.min() != sizes.max():
            continue
        same = label[:, None] == label[None, :]
        inside, between = float(distance[same].max()), float(distance[~same].min())
        if between >= max(_STANDS_OUT * inside, _ALIKE_NS):
            return [np.flatnonzero(label == number) for number in range(sizes.size)]
    return None if ranks else []


def _linked(near: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number of the connected part of each rank, in order of first appearance."""
    label = np.full(near.shape[0], -1, dtype=np.int64)
    parts = 0
    for rank in range(near.shape[0]):
        if label[rank] >= 0:
            continue
        reached = np.zeros(near.shape[0], dtype=bool)
        reached[rank] = True
        while True:
            wider = near[reached].any(axis=0) | reached
            if (wider == reached).all():
                break
            reached = wider
        label[reached] = parts
        parts += 1
    return label
