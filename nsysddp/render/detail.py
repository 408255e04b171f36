"""How much of a timeline can a page hold? Bars, columns, numbers and ticks that stay legible at any size of a trace.

Interval sets are drawn in one of two ways:

* *bars*: every interval, one pixel wide at least, merged where two (nearly) touch;
* *columns*, where bars would claim much more time than the events took: one column a pixel, as high as the share of
  its time that is covered.

So the number of shapes depends on the page, never on the number of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.model.intervals import Intervals
from nsysddp.model.units import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Points = NDArray[np.float64]

PIXELS_PER_IN = 100
"""What a picture calls a pixel is 0.01 inch."""

CHARACTER_IN = 0.0088
"""Mean width of a character of DejaVu Sans, inches per point of its size."""

MOST_INFLATION = 0.02
"""Share of the view that bars of a lane may claim beyond what its events took."""

_MOST_TICKS = 14


@dataclass(frozen=True)
class View:
    """The part of time that a plot shows, ``[start, end)`` in ns, not empty, and how wide the plot is in inches."""

    start: int
    end: int
    width_in: float

    @property
    def span(self) -> int:
        """Its length in ns, at least 1."""
        return self.end - self.start

    @property
    def pixel(self) -> int:
        """Length of one column in ns, at least 1."""
        return max(1, -(-self.span // round(self.width_in * PIXELS_PER_IN)))

    def x(self, times: Any) -> Any:
        """Instants as inches from the left of the plot; differences are taken in whole ns first."""
        return (np.asarray(times, dtype=np.int64) - self.start) * (self.width_in / self.span)

    def columns(self) -> NDArray[np.int64]:
        """Edges of the columns in ns; the last column can reach over the end of the view."""
        return self.start + np.arange(-(-self.span // self.pixel) + 1, dtype=np.int64) * self.pixel


def as_bars(some: Intervals, view: View) -> Intervals:
    """The intervals inside the view, one pixel long at least and merged where two then come near to touching."""
    inside = some.clip(view.start, view.end)
    brief = inside.end - inside.start < view.pixel
    start = np.where(
        brief, np.maximum(np.minimum(inside.start, view.end - view.pixel), view.start), inside.start
    )
    end = np.minimum(np.maximum(inside.end, start + view.pixel), view.end)
    # A gap that no page can show would be a hairline in some viewers and nothing in others.
    hairline = view.pixel // 8
    near = Intervals.union_of(start, end + hairline)
    return Intervals(near.start, near.end - hairline)


def as_columns(some: Intervals, view: View) -> Points:
    """The share of each column's time that the intervals cover, 0 to 1, shape (columns,)."""
    edges = view.columns()
    return some.length_within(edges[:-1], edges[1:]) / view.pixel


def claimed_ns(some: Sequence[Intervals], view: View) -> int:
    """How much more time than the intervals cover would their bars claim?"""
    return sum(as_bars(spans, view).length_ns - spans.clip(view.start, view.end).length_ns for spans in some)


def clusters(
    middles: Points, numbers: Sequence[int], steps: Sequence[int], size: float
) -> list[tuple[float, str]]:
    """Places and labels of numbers that stay apart: neighbours too near to each other share one, such as ``3–7``.

    Args:
        middles: places in inches, ascending.
        numbers: number at each place.
        steps: step of each; a label that would reach over steps tells how many there are instead, such as ``(12)``.
        size: font size in points.
    """
    groups: list[list[int]] = []

    def label(group: list[int]) -> str:
        mine = [numbers[place] for place in group]
        if len({steps[place] for place in group}) > 1:
            return f"({len(group)})"
        return str(mine[0]) if len(mine) == 1 else f"{min(mine)}–{max(mine)}"

    def middle(group: list[int]) -> float:
        return float(middles[group[0]] + middles[group[-1]]) / 2

    def near(one: list[int], two: list[int]) -> bool:
        room = (len(label(one)) + len(label(two)) + 1.2) / 2 * CHARACTER_IN * size
        return middle(two) - middle(one) < room

    for place in range(len(numbers)):
        groups.append([place])
        while len(groups) > 1 and near(groups[-2], groups[-1]):
            tail = groups.pop()
            groups[-1].extend(tail)
    return [(middle(group), label(group)) for group in groups]


def ticks(view: View, size: float) -> list[tuple[int, str]]:
    """Round instants in the view, in ns, with labels in ms that stay apart at this font size."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            distance = factor * scale
            first, last = -(-view.start // distance), view.end // distance
            if last - first >= _MOST_TICKS:
                continue
            digits = max(0, 6 - (len(str(scale)) - 1))
            made = [
                (number * distance, f"{number * distance / NS_PER_MS:,.{digits}f}".replace("-", "−"))
                for number in range(first, last + 1)
            ]
            longest = max((len(label) for _, label in made), default=0)
            room = distance * view.width_in / view.span
            if len(made) <= 1 or (longest + 2) * CHARACTER_IN * size <= room:
                return made
        scale *= 10


def duration(ns: int) -> str:
    """A length of time for people, three figures: ``38 µs``, ``1.25 ms``."""
    for unit, divisor in (("s", NS_PER_S), ("ms", NS_PER_MS), ("µs", NS_PER_US)):
        if ns >= divisor:
            value = ns / divisor
            text = f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
    return f"{ns} ns"


def ranges_of(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: ``0, 2-5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
