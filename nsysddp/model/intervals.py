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
        if opens.all():  # nothing overlaps, as on one stream
            return cls(first, last)
        closes = np.append(opens[1:], True)
        return cls(first[opens], reach[closes])

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
    def bounds(self) -> tuple[int, int]:
        """First start and last end; (0, 0) of the empty set."""
        return (int(self.start[0]), int(self.end[-1])) if len(self) else (0, 0)

    @property
    def length_ns(self) -> int:
        """``|X|``: the total time covered."""
        return int((self.end - self.start).sum())

    def __or__(self, other: Intervals) -> Intervals:
        """Union."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return Intervals.union_of(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def __and__(self, other: Intervals) -> Intervals:
        """Intersection: every pair of members that meet gives one piece."""
        if len(self) > len(other):
            return other & self
        mine, theirs = self._meetings(other)
        return Intervals(
            np.maximum(self.start[mine], other.start[theirs]),
            np.minimum(self.end[mine], other.end[theirs]),
        )

    def _meetings(self, other: Intervals) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs of a member of ``self`` and a member of ``other`` that meet, in order.

        Each member of ``self`` meets the contiguous run of members of ``other`` that end after its start and
        start before its end. What it costs depends on the members of ``self`` and the pairs, not on ``other``.
        """
        first = np.searchsorted(other.end, self.start, side="right")
        last = np.searchsorted(other.start, self.end, side="left")
        meets = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(len(self)), meets)
        offset = np.arange(mine.size) - np.repeat(np.cumsum(meets) - meets, meets)
        return mine, np.repeat(first, meets) + offset

    def __sub__(self, other: Intervals) -> Intervals:
        """The instants of ``self`` that ``other`` does not hold."""
        if not len(self) or not len(other):
            return self
        return self & other.complement(*self.bounds)

    def complement(self, start: int, end: int) -> Intervals:
        """The gaps inside ``[start, end)``."""
        first, last = np.searchsorted(self.end, start), np.searchsorted(self.start, end, side="right")
        opens = np.concatenate([[np.int64(start)], self.end[first:last]])
        closes = np.concatenate([self.start[first:last], [np.int64(end)]])
        # Members do not touch, so only the outermost gaps can be empty.
        a, b = int(opens[0] >= closes[0]), opens.size - int(opens[-1] >= closes[-1])
        return Intervals(opens[a:b], closes[a:b])

    @cached_property
    def _cumulative(self) -> Times:
        """Time covered before each member, shape (n + 1,)."""
        return _running_sum(self.end - self.start)

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

    def length_within_each(self, start: Times, end: Times) -> Times:
        """As ``length_within`` for many bounds whose starts ascend, as those of events do.

        Each bound meets first the first member that ends after its start, which one sweep finds for all of them; only
        the few bounds that reach beyond that member have to be looked up. Where starts do not ascend, all are.
        """
        if len(self) >= start.size or (start[1:] < start[:-1]).any():
            return self.length_within(start, end)
        bounds = np.diff(np.searchsorted(start, self.end), prepend=0, append=start.size)
        never = end.max()
        member_start = np.repeat(np.append(self.start, never), bounds)
        member_end = np.repeat(np.append(self.end, never), bounds)
        length: Times = np.minimum(end, member_end)
        length -= np.maximum(start, member_start, out=member_start)
        np.maximum(length, 0, out=length)
        beyond = np.flatnonzero(end > member_end)
        length[beyond] = self.length_within(start[beyond], end[beyond])
        return length

    def shared_before(self, other: Intervals, at: ArrayLike) -> Times:
        """``|X & Y & (-inf, at)|`` for each instant, in ns, without making the intersection.

        Args:
            other: Y; the larger of the two sets, because each member of ``self`` is looked up in it.
            at: instants in ns.
        """
        times = np.asarray(at, dtype=np.int64)
        if not len(self):
            return np.zeros(times.shape, dtype=np.int64)
        before = _running_sum(other.length_within(self.start, self.end))
        index = np.searchsorted(self.start, times, side="right")
        last = np.maximum(index - 1, 0)
        begun = other.length_within(self.start[last], np.minimum(times, self.end[last]))
        shared: Times = np.where(index > 0, before[last] + begun, 0)
        return shared

    def clip(self, start: int, end: int) -> Intervals:
        """The part inside ``[start, end)``; the set itself where that is all of it."""
        first = int(np.searchsorted(self.end, start, side="right"))
        last = int(np.searchsorted(self.start, end, side="left"))
        if last <= first or end <= start:
            return Intervals.empty()
        opens, closes = self.start[first:last], self.end[first:last]
        if opens[0] < start:
            opens = np.append(np.int64(start), opens[1:])
        if closes[-1] > end:
            closes = np.append(closes[:-1], np.int64(end))
        return Intervals(opens, closes)


def _running_sum(values: Times) -> Times:
    """Sum of the values before each place, shape (n + 1,)."""
    sums = np.zeros(values.size + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


class GroupedAxis:
    """(group, value) as one number with the same order: the groups are laid behind each other on one axis.

    Sorting, searching and running extremes of such numbers start anew in each group.

    Args:
        values: all values that will be placed.
        groups: how many groups there are; they are numbered from 0.
    """

    def __init__(self, values: ArrayLike, groups: int) -> None:
        known = np.asarray(values, dtype=np.int64)
        self._low = int(known.min()) if known.size else 0
        self._width = (int(known.max()) if known.size else 0) - self._low + 1
        # On too long an axis values are their places among all values.
        self._places: Times | None = None
        if self._width * groups >= 1 << 62:
            self._places = np.unique(known)
            self._low, self._width = 0, self._places.size

    def place(self, group: ArrayLike, value: ArrayLike) -> Times:
        """The number of each value in its group."""
        values = np.asarray(value, dtype=np.int64)
        if self._places is not None:
            values = np.searchsorted(self._places, values)
        places: Times = np.asarray(group, dtype=np.int64) * self._width + (values - self._low)
        return places

    def value(self, place: Times, group: ArrayLike) -> Times:
        """The value at each number, whose group is known."""
        values: Times = place - (np.asarray(group, dtype=np.int64) * self._width - self._low)
        return values if self._places is None else self._places[values]


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
    if (np.diff(groups) < 0).any() or (first[1:] < first[:-1]).any():
        order = np.lexsort((first, groups))
        groups, first, last = groups[order], first[order], last[order]
    axis = GroupedAxis(last, int(groups[-1]) + 1)
    reach = axis.value(np.maximum.accumulate(axis.place(groups, last)), groups)
    opens = np.ones(groups.size, dtype=bool)
    opens[1:] = (groups[1:] != groups[:-1]) | (first[1:] > reach[:-1])
    heads = np.flatnonzero(opens)
    tails = np.append(heads[1:] - 1, groups.size - 1)
    return groups[heads], first[heads], reach[tails]
