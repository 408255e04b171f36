"""How long does a collective of another size take? Times by size from the fitted link, as far as the capture says.

Between the sizes seen the fitted line holds. Outside of them nothing was seen, and what is possible makes the band:

* **Smaller than any gradient message.** Transfer time over size bends downwards (large messages use the link better),
  so the time lies between the line, drawn on to smaller sizes, and the chord from a small message (a barrier, which
  knows the latency) to the line's smallest size. With one size of gradients the chord is the line.
* **No small message and one size**: the latency is assumed, between none and the most of
  ``_MOST_LATENCY_NS`` a doubling of ranks (a tree) and ``_MOST_HOP_NS`` a hop (a ring). Where that decides about much,
  there is no prediction.
* **Larger than any message**: large messages are pipelined and can run without computation beside them, so the rest
  beyond the largest size can be faster by ``_FASTER`` than the line, or slower by ``_SLOWER``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model.units import NS_PER_US
from nsysddp.questions.link import Link, fit_link

if TYPE_CHECKING:
    from nsysddp.questions import Context

_SMALL = 0.1
"""Messages up to this share of the smallest bucket are small."""

_LEAST_LINK_ERROR = 0.05
"""A fit on a few sizes can be closer than the link is steady."""

_MOST_LATENCY_NS = 50 * NS_PER_US
_MOST_HOP_NS = 20 * NS_PER_US
_FASTER, _SLOWER = 0.3, 0.1
_BEYOND = 1.05
"""Messages larger than the largest seen by less than this are no extrapolation."""

Time = Callable[[float], float]


@dataclass(frozen=True)
class Wire:
    """The fitted line of the gradients' collectives, and the typical message smaller than any of them.

    Attributes:
        line: the fit; with one size of gradients through the small message.
        small_bytes, small_ns: the small message; None where there was none.
        latency_ns: the latency that is assumed where nothing says it, at most; 0 where something does.
    """

    line: Link
    small_bytes: int | None
    small_ns: float | None
    latency_ns: float

    @classmethod
    def of(cls, context: Context, ours: pl.DataFrame) -> Wire | None:
        """The wire of the gradients' collectives; None if no size is known."""
        kinds = ours["kind"].drop_nulls().mode().sort() if ours.height else pl.Series([], dtype=pl.String)
        line = fit_link(ours, kinds[0]) if kinds.len() else None
        if line is None:
            return None
        small = fit_link(
            context.timed.filter(pl.col("bytes") <= line.smallest_bytes * _SMALL), line.kind, line.group_size
        )
        if small is None:
            unknown = 0.0 if line.has_latency else _most_latency(line.group_size or 2)
            return cls(line, None, None, min(unknown, line.transfer_ns(line.smallest_bytes)))
        size = (small.smallest_bytes + small.largest_bytes) // 2
        time = float(small.transfer_ns(size))
        if not line.has_latency:
            line = _through(line, size, time)
        return cls(line, size, time, 0.0)

    def times(self) -> list[Time]:
        """Transfer times by size that the capture allows; the first is the fit."""
        line = self.line
        off = max(line.error_ratio, _LEAST_LINK_ERROR)
        made = [
            self._with(line.latency_ns, line.ns_per_byte),
            self._with(line.latency_ns, (1 + off) * line.ns_per_byte),
            self._with((1 + off) * line.latency_ns, line.ns_per_byte),
            self._with(line.latency_ns, line.ns_per_byte, beyond=1 - _FASTER),
            self._with(line.latency_ns, line.ns_per_byte, beyond=1 + _SLOWER),
        ]
        if self.latency_ns:  # the same time of the size that was seen, with another part of latency
            whole = line.transfer_ns(line.smallest_bytes)
            made += [
                self._with(latency, (whole - latency) / line.smallest_bytes)
                for latency in (self.latency_ns / 4, self.latency_ns)
            ]
        if self.small_bytes is not None:
            made.append(self._along_chord)
        return made

    @property
    def likely(self) -> list[int]:
        """Which of the times a prediction is the middle of: the fit, and below the smallest size the chord."""
        if self.small_bytes is not None:
            return [0, len(self.times()) - 1]
        return [5] if self.latency_ns else [0]

    @property
    def latencies(self) -> list[int]:
        """Which of the times differ by the latency that is assumed: none, a quarter of the most, the most."""
        return [0, 5, 6]

    def is_beyond(self, size: float) -> bool:
        """Is a message larger than any that was seen?"""
        return size > _BEYOND * self.line.largest_bytes

    def _with(self, latency: float, slope: float, beyond: float = 1.0) -> Time:
        largest = _BEYOND * self.line.largest_bytes

        def time(size: float) -> float:
            return latency + slope * (min(size, largest) + beyond * max(0.0, size - largest))

        return time

    def _along_chord(self, size: float) -> float:
        assert self.small_bytes is not None
        assert self.small_ns is not None
        smallest = self.line.smallest_bytes
        if size >= smallest:
            return self.line.latency_ns + self.line.ns_per_byte * size
        rise = self.line.transfer_ns(smallest) - self.small_ns
        return self.small_ns + rise * (size - self.small_bytes) / (smallest - self.small_bytes)


def _most_latency(ranks: int) -> float:
    return max(_MOST_LATENCY_NS * (1 + log2(ranks)), _MOST_HOP_NS * 2 * (ranks - 1))


def _through(line: Link, size: int, time: float) -> Link:
    """The line of one size, through a small message."""
    whole = line.transfer_ns(line.smallest_bytes)
    if whole <= time:
        return replace(line, latency_ns=float(whole), ns_per_byte=0.0, has_latency=True)
    slope = (whole - time) / (line.smallest_bytes - size)
    return replace(line, latency_ns=max(0.0, time - slope * size), ns_per_byte=slope, has_latency=True)
