"""At which offset do the sequences of two ranks of a communicator fit together?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest.attribute import KIND_OF_CALL
from nsysddp.join.drift import spread
from nsysddp.join.kernels import IS_SYNCHRONISING, NONE
from nsysddp.model.units import NS_PER_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.join.kernels import Kernels

    Column = NDArray[Any]


_MAX_OFFSET = 4096
_NEAR_ANCHOR = 64
_FEW = 16
"""Kernels that are looked at first: most offsets of a repeated step are out of the question by these."""

_ANCHOR_NS = 10 * NS_PER_MS
"""By so much session starts of two hosts can be wrong without further notice."""

SHARE_APART = 0.1
"""Of the shorter of two kernels: over a slow link ranks end a collective that far apart, and more than the clocks
tolerate. Another collective of the communicator ends a whole kernel away, so it is not taken for this one."""


def numbers_in_sequence(operations: pl.DataFrame) -> Column:
    """Number of each operation in its process and communicator, in host order; transfers are counted apart."""
    counted = operations.with_row_index("row").filter(pl.col("call").is_in(list(KIND_OF_CALL)))
    transfers = pl.col("call").is_in(["ncclSend", "ncclRecv"])
    ordered = counted.sort("process", "start_ns", "row").with_columns(
        pl.int_range(pl.len()).over("process", "communicator", transfers).alias("number")
    )
    numbers = np.full(operations.height, NONE, dtype=np.int64)
    numbers[ordered["row"].to_numpy()] = ordered["number"].to_numpy()
    return numbers


class NumberedKernels:
    """One rank's kernels of a communicator, by sequence number."""

    def __init__(self, kernels: Kernels, rows: Column) -> None:
        self.sequence = kernels.sequence[rows]
        self.kind = kernels.kind[rows]
        self.payload = kernels.payload[rows]
        self.end = kernels.end[rows]
        self.duration = self.end - kernels.start[rows]
        self.synchronising = IS_SYNCHRONISING[self.kind]
        self.clock = int(kernels.clock[rows[0]])
        self.first = int(self.sequence[0])
        self.span = int(self.sequence[-1]) - self.first + 1

    def offset_of(self, other: NumberedKernels, tolerance: int) -> int | None:
        """What to add to the other line's sequence numbers; None if no offset fits.

        At the right offset kinds and sizes agree everywhere and the ends of synchronising collectives lie together:
        on a shared clock absolutely, between clocks up to one constant. Training repeats itself, so kind and size
        alone cannot tell one step from the next.
        """
        shared = self.clock == other.clock
        if shared:
            score = self._score(other, 0, shared)
            if score is not None and score[0] <= tolerance:
                return 0
        reach = min(_MAX_OFFSET, max(self.span, other.span))
        middle = self.first - other.first
        near_anchor = np.arange(middle - _NEAR_ANCHOR, middle + _NEAR_ANCHOR + 1)
        candidates = self._possible(other, np.union1d(np.arange(-reach, reach + 1), near_anchor))
        fits = [
            (*score, offset)
            for offset in sorted(candidates.tolist(), key=lambda number: (abs(number), number))
            if (score := self._score(other, offset, shared)) is not None
        ]
        if not fits or min(fits)[0] > tolerance:
            return None
        near = [fit for fit in fits if fit[0] <= max(2 * min(fits)[0], tolerance / 5)]
        # Of buckets of one size in a row the median cannot tell one from the next: only at the right offset do the gaps
        # between steps fit too, which the mean shows. Steps are hardly as alike as the ends of one collective are
        # close, so a shift by a whole step, which a wrong anchor can make look nearer, has a larger mean too.
        closest = min(near, key=lambda fit: fit[1])
        most = max(2 * closest[1], tolerance / 100)
        # Of one collective a step on hundreds of ranks the steps can be as alike as the ends are close, and some offset
        # of fewer of them lie closer by chance: then it is no evidence against one at which more of them meet.
        fits = [fit for fit in near if fit[1] <= most or (fit[3] > closest[3] and fit[1] <= tolerance / 20)]
        # Steps as alike as that: ranks are captured over the same ones, as far as their anchors allow it.
        best = min(fits, key=lambda fit: (max(fit[2], _ANCHOR_NS), -fit[3], fit[2], abs(fit[4])))
        return int(best[4])

    def _possible(self, other: NumberedKernels, offsets: Column) -> Column:
        """The offsets that a few kernels do not speak against, by kind or size of those that they would meet."""
        few = np.unique(np.linspace(0, other.sequence.size - 1, _FEW).astype(np.int64))
        wanted = other.sequence[few] + offsets[:, np.newaxis]
        at = np.minimum(np.searchsorted(self.sequence, wanted), self.sequence.size - 1)
        unlike = (self.kind[at] != other.kind[few]) | (self.payload[at] != other.payload[few])
        possible: Column = offsets[~(unlike & (self.sequence[at] == wanted)).any(axis=1)]
        return possible

    def _score(
        self, other: NumberedKernels, offset: int, shared_clock: bool
    ) -> tuple[float, float, float, int] | None:
        """Median and (over the share that meets) mean spread of the differences of ends, their size, how many meet.

        None if kinds or sizes disagree.
        """
        at = np.minimum(np.searchsorted(self.sequence, other.sequence + offset), self.sequence.size - 1)
        same = self.sequence[at] == other.sequence + offset
        at = at[same]
        if (
            not at.size
            or (self.kind[at] != other.kind[same]).any()
            or (self.payload[at] != other.payload[same]).any()
        ):
            return None
        usable = self.synchronising[at]
        if not usable.any():
            return 0.0, 0.0, float(abs(offset)), 0
        times = other.end[same][usable]
        difference = (times - self.end[at[usable]]).astype(np.float64)
        middle = float(np.median(difference))
        if shared_clock:
            shorter = np.minimum(other.duration[same][usable], self.duration[at[usable]])
            away = np.maximum(np.abs(difference) - SHARE_APART * shorter, 0.0)
            return float(np.median(away)), float(np.mean(away)), abs(middle), 0
        # A pair or two have hardly a spread: they are no evidence where more could have met. Of a few out of many some
        # fit by chance, so a mean counts the more the more of them meet.
        met, could = int(usable.sum()), min(self.sequence.size, other.sequence.size)
        away = spread(times, difference)
        median = float(np.median(away)) + (1e18 if met < min(3, could) else 0.0)
        return median, float(np.mean(away)) * could / met, abs(middle), met
