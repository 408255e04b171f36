"""Sets of half-open time intervals ``[start_ns, end_ns)``: union, intersection, subtraction, lengths.

An ``Intervals`` is always disjoint, ordered and free of empty members, so that a length is a plain sum and
every operation is linear after one sort. Two intervals that touch are one: ``[0,1) + [1,2) = [0,2)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Intervals:
    """A set of instants as disjoint, ordered, non-empty, non-touching intervals.

    Attributes:
        start: starts in ns, strictly increasing, shape (n,).
        end: ends in ns, ``start < end``, each before the next start, shape (n,).
    """

    start: Times
    end: Times

    @classmethod
    def empty(cls) -> Intervals:
        """The set without an instant."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(nothing, nothing)

    @classmethod
    def union_of(cls, start: ArrayLike, end: ArrayLike, *, is_sorted: bool = False) -> Intervals:
        """The union of any intervals; empty and inverted ones hold no instant and drop out.

        Args:
            start: starts in ns, any order unless ``is_sorted``.
            end: ends in ns, same length.
            is_sorted: the caller knows that the starts ascend.
        """
        first = np.asarray(start, dtype=np.int64)
        last = np.asarray(end, dtype=np.int64)
        real = last > first
        if not real.all():
            first, last = first[real], last[real]
        if first.size == 0:
            return cls.empty()
        if not is_sorted and np.any(first[1:] < first[:-1]):
            order = np.argsort(first, kind="stable")
            first, last = first[order], last[order]
        reach = np.maximum.accumulate(last)
        opens = np.empty(first.size, dtype=bool)
        opens[0] = True
        np.greater(first[1:], reach[:-1], out=opens[1:])
        heads = np.flatnonzero(opens)
        tails = np.append(heads[1:] - 1, first.size - 1)
        return cls(first[heads], reach[tails])

    @classmethod
    def span(cls, start: int, end: int) -> Intervals:
        """The one interval ``[start, end)``; empty if ``end <= start``."""
        return cls.union_of([start], [end])

    def __len__(self) -> int:
        return int(self.start.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    def __repr__(self) -> str:
        shown = " ".join(f"[{a},{b})" for a, b in zip(self.start[:8], self.end[:8], strict=True))
        return f"Intervals({shown}{' ...' if len(self) > 8 else ''})"

    @property
    def length_ns(self) -> int:
        """``|X|``: the total time covered."""
        return int((self.end - self.start).sum())

    def __or__(self, other: Intervals) -> Intervals:
        """Union."""
        return Intervals.union_of(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def __and__(self, other: Intervals) -> Intervals:
        """Intersection, by one sweep over both boundary lists (linear).

        Each member of ``self`` meets the contiguous run of members of ``other`` that end after its start and
        start before its end; every such pair gives one piece.
        """
        if not len(self) or not len(other):
            return Intervals.empty()
        first = np.searchsorted(other.end, self.start, side="right")
        last = np.searchsorted(other.start, self.end, side="left")
        meets = np.maximum(last - first, 0)
        total = int(meets.sum())
        if not total:
            return Intervals.empty()
        mine = np.repeat(np.arange(len(self)), meets)
        offset = np.arange(total) - np.repeat(np.cumsum(meets) - meets, meets)
        theirs = np.repeat(first, meets) + offset
        return Intervals(
            np.maximum(self.start[mine], other.start[theirs]),
            np.minimum(self.end[mine], other.end[theirs]),
        )

    def __sub__(self, other: Intervals) -> Intervals:
        """The instants of ``self`` that ``other`` does not hold."""
        if not len(self) or not len(other):
            return self
        return self & other.complement(int(self.start[0]), int(self.end[-1]))

    def complement(self, start: int, end: int) -> Intervals:
        """The gaps inside ``[start, end)``."""
        return Intervals.union_of(
            np.append(np.int64(start), np.clip(self.end, start, end)),
            np.append(np.clip(self.start, start, end), np.int64(end)),
            is_sorted=True,
        )

    @cached_property
    def _cumulative(self) -> Times:
        """Time covered before each member, shape (n + 1,)."""
        return np.concatenate([[np.int64(0)], np.cumsum(self.end - self.start)])

    def covered_before(self, at: ArrayLike) -> Times:
        """Time covered before each instant, in ns; the primitive behind every clipped length."""
        times = np.asarray(at, dtype=np.int64)
        if not len(self):
            return np.zeros(times.shape, dtype=np.int64)
        index = np.searchsorted(self.start, times, side="right") - 1
        inside = np.minimum(times, self.end[np.maximum(index, 0)]) - self.start[np.maximum(index, 0)]
        covered: Times = np.where(index < 0, 0, self._cumulative[np.maximum(index, 0)] + inside)
        return covered

    def length_within(self, start: ArrayLike, end: ArrayLike) -> Times:
        """``|X & [start, end)|`` for each pair of bounds, in ns; 0 where ``end <= start``."""
        inside: Times = np.maximum(self.covered_before(end) - self.covered_before(start), 0)
        return inside

    def clip(self, start: int, end: int) -> Intervals:
        """The part inside ``[start, end)``."""
        return self & Intervals.span(start, end)


def grouped_union(
    group: ArrayLike, start: ArrayLike, end: ArrayLike
) -> tuple[NDArray[np.int64], Times, Times]:
    """The union of the intervals of each group, as pieces ordered by (group, start).

    Args:
        group: group number of each interval, >= 0.
        start: starts in ns.
        end: ends in ns.

    Returns:
        group, start and end of each piece; within a group the pieces are disjoint and do not touch.
    """
    groups = np.asarray(group, dtype=np.int64)
    first = np.asarray(start, dtype=np.int64)
    last = np.asarray(end, dtype=np.int64)
    real = last > first
    groups, first, last = groups[real], first[real], last[real]
    if not groups.size:
        return groups, first, last
    order = np.lexsort((first, groups))
    groups, first, last = groups[order], first[order], last[order]
    # A running maximum that starts anew in each group: ends become their places among all ends, so that
    # (group, place) is one ascending number that cannot overflow.
    places, ends = np.unique(last, return_inverse=True)
    running = np.maximum.accumulate(groups * places.size + ends.ravel())
    reach = places[running % places.size]
    opens = np.ones(groups.size, dtype=bool)
    opens[1:] = (groups[1:] != groups[:-1]) | (first[1:] > reach[:-1])
    heads = np.flatnonzero(opens)
    tails = np.append(heads[1:] - 1, groups.size - 1)
    return groups[heads], first[heads], reach[tails]
