"""A clock against another: an offset, and a rate where the capture is long enough to show one.

Quartz clocks of hosts run apart by up to 100 ppm each, so over 10 s two of them can part by 2 ms. What is fitted is a
line through differences of times, robustly: its rate is the median slope between stretches of the capture, so that a
third of them may be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Column = NDArray[Any]

MOST_RATE = 200e-6
"""Two clocks of quartz do not run apart faster."""

_STRETCHES = 24
"""Parts of the capture whose medians are compared."""

_LEAST = 6
"""Differences that a rate needs."""

_CERTAIN = 6.0
"""A rate is believed from this many of its standard errors on."""

_ALIKE = 0.75
"""Each half of the capture shows the rate to within this share of it: transfers that got slower once do not."""

_WORTH_NS = 1_000
"""Clocks that part by less over the capture run alike."""


@dataclass(frozen=True)
class Line:
    """``offset_ns + rate * (time - origin_ns)``: what to add to a time.

    Attributes:
        offset_ns: at the origin.
        rate: ns per ns; 0 where no drift is shown.
        origin_ns: where the offset holds exactly.
    """

    offset_ns: int = 0
    rate: float = 0.0
    origin_ns: int = 0

    def at(self, times: Column) -> Column:
        """What to add to each time, in whole ns."""
        if not self.rate:
            return np.full(np.shape(times), self.offset_ns, dtype=np.int64)
        added: Column = np.rint((times - self.origin_ns) * self.rate).astype(np.int64) + self.offset_ns
        return added

    def move(self, time: pl.Expr) -> pl.Expr:
        """The corrected time."""
        if not self.rate:
            return time + self.offset_ns
        return (
            time + ((time - self.origin_ns) * self.rate).round(mode="half_to_even").cast(int) + self.offset_ns
        )


def level(differences: Column) -> Line:
    """The same correction at all times."""
    return Line(int(np.median(differences)))


def fit(times: Column, differences: Column) -> Line:
    """Offset, and rate if the differences show one beyond doubt.

    Args:
        times: in ns, shape (n,), n > 0.
        differences: what would correct each, in ns, shape (n,).
    """
    flat = level(differences)
    rate = slope(times, differences)
    reach = float(np.ptp(times))
    if differences.size < _LEAST or not reach or abs(rate) * reach < _WORTH_NS or abs(rate) > MOST_RATE:
        return flat
    origin = int(np.median(times))
    left = differences - rate * (times - origin)
    offset = int(np.median(left))
    noise = 1.4826 * float(np.median(np.abs(left - offset)))
    error = noise / (float(np.std(times)) * np.sqrt(differences.size))
    is_certain = abs(rate) >= _CERTAIN * error and _in_both_halves(rate, times, differences)
    return Line(offset, rate, origin) if is_certain else flat


def _in_both_halves(rate: float, times: Column, differences: Column) -> bool:
    """Do the clocks part all the time? What ends of transfers differ by for other reasons comes and goes."""
    halves = np.array_split(np.argsort(times, kind="stable"), 2)
    return all(abs(slope(times[half], differences[half]) - rate) <= _ALIKE * abs(rate) for half in halves)


def slope(times: Column, differences: Column) -> float:
    """Median slope between the medians of stretches with equally many differences; 0 for fewer than two."""
    order = np.argsort(times, kind="stable")
    stretches = min(_STRETCHES, max(1, times.size // 2))
    if stretches < 2:
        return 0.0
    x, y = (_medians(values[order], stretches) for values in (times, differences))
    one, other = np.triu_indices(x.size, 1)
    apart = x[other] - x[one]
    usable = apart > 0
    return float(np.median((y[other] - y[one])[usable] / apart[usable])) if usable.any() else 0.0


def _medians(values: Column, stretches: int) -> Column:
    """The median of each stretch; the first ones are one value longer where the values cannot be shared out evenly."""
    size, longer = divmod(values.size, stretches)
    head, rest = np.split(values, [longer * (size + 1)])
    return np.concatenate(
        [
            np.median(part.reshape(-1, length), axis=1)
            for part, length in ((head, size + 1), (rest, size))
            if part.size
        ]
    )


def spread(times: Column, differences: Column) -> Column:
    """How far each difference is from what two clocks that drift as clocks do would show, in ns, not below 0."""
    middle = float(np.median(differences))
    if float(np.ptp(times)) * MOST_RATE < _WORTH_NS:
        return np.abs(differences - middle)
    rate = float(np.clip(slope(times, differences), -MOST_RATE, MOST_RATE))
    left = differences - rate * (times - float(np.median(times)))
    return np.abs(left - np.median(left))
