"""Which host range holds an instant, on one thread or over the threads of a process?"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


class Timeline:
    """Which host range holds an instant, on one thread or over the threads of a process.

    Args:
        thread: thread of each range.
        start, end: bounds of each range in ns.
        outermost: of nested ranges the outermost counts (steps), else the innermost (phases).
    """

    def __init__(self, thread: Times, start: Times, end: Times, *, outermost: bool) -> None:
        self._threads: dict[int, tuple[Times, NDArray[np.int64]]] = {}
        for number in np.unique(thread).tolist():
            rows = np.flatnonzero(thread == number)
            self._threads[int(number)] = _segments(rows, start[rows], end[rows], outermost)
        self._any = self._over_threads()

    def _over_threads(self) -> tuple[Times, NDArray[np.int64]]:
        """Segments over all threads: the range if exactly one thread is in one, else -1."""
        cuts = np.unique(
            np.concatenate([edges for edges, _ in self._threads.values()] or [np.empty(0, np.int64)])
        )
        count = np.zeros(cuts.size, dtype=np.int64)
        holder = np.full(cuts.size, -1, dtype=np.int64)
        for edges, ranges in self._threads.values():
            here = _at(edges, ranges, cuts)
            count += here >= 0
            holder = np.where(here >= 0, here, holder)
        return cuts, np.where(count == 1, holder, -1)

    def own(self, thread: int, at: Times) -> NDArray[np.int64]:
        """Range row on this thread that contains each instant; -1 if none."""
        if thread not in self._threads:
            return np.full(at.shape, -1, dtype=np.int64)
        return _at(*self._threads[thread], at)

    def find(self, thread: NDArray[Any], at: Times) -> NDArray[np.int64]:
        """Range row for each instant: the thread's own first, else of exactly one other thread."""
        found = np.full(at.shape, -1, dtype=np.int64)
        for number in self._threads:
            mine = np.flatnonzero(thread == number)
            found[mine] = self.own(number, at[mine])
        rest = np.flatnonzero(found < 0)
        found[rest] = _at(*self._any, at[rest])
        return found


def _at(edges: Times, ranges: NDArray[np.int64], at: Times) -> NDArray[np.int64]:
    # Before the first edge is no range.
    return np.append(np.int64(-1), ranges)[np.searchsorted(edges, at, side="right")]


def _segments(
    rows: NDArray[Any], start: Times, end: Times, outermost: bool
) -> tuple[Times, NDArray[np.int64]]:
    """Cut one thread's ranges into segments, each held by one range or none (-1)."""
    order = np.lexsort((rows, -end, start))
    rows, start, end = rows[order], start[order], end[order]
    if outermost and rows.size:
        reach = np.maximum.accumulate(end)
        outer = np.ones(rows.size, dtype=bool)
        outer[1:] = end[1:] > reach[:-1]
        rows, start, end = rows[outer], start[outer], end[outer]
    edges: list[int] = []
    holders: list[int] = []
    # End and row in order of opening; what is closed leaves when it comes to the top. Ends of all as a heap.
    opened: list[tuple[int, int]] = []
    ends: list[int] = []

    def mark(at: int, holder: int) -> None:
        if edges and edges[-1] == at:
            holders[-1] = holder
        else:
            edges.append(at)
            holders.append(holder)

    def close_until(limit: int) -> None:
        while ends and ends[0] <= limit:
            at = heappop(ends)
            while opened and opened[-1][0] <= at:
                opened.pop()
            mark(at, opened[-1][1] if opened else -1)

    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        close_until(first)
        opened.append((last, row))
        heappush(ends, last)
        mark(first, row)
    close_until(np.iinfo(np.int64).max)
    return np.asarray(edges, dtype=np.int64), np.asarray(holders, dtype=np.int64)
