"""Where on the critical path does a rank take longer than the others?

A *stay* is a run of the path on one rank between transfers and changes of rank. In a stay the rank was not waiting, so
all of it is own time (``own_time``); what it takes longer than the others there is its lateness. Being faster later in
the same stay takes lateness back: of the sum so far only that counts which is not lost again before the stay ends::

    longer, part by part      +4  -1  +2  -3  +1
    sum                        4   3   5   2   3
    least from there on        2   2   2   2   3        lateness: 2 in the first part, 1 in the last

Each stay counts by itself and stays do not overlap, so a delay is counted once, where it arose, however many
collectives it held up; and what a rank did off the path counts nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.intervals import GroupedAxis, Intervals
from nsysddp.questions.critical_path import COMMUNICATION_KINDS
from nsysddp.questions.diagnosis.device import sharing_ranks
from nsysddp.questions.own_time import longer_than_others, waiting_in_gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]

Spans = tuple["Ints", "Ints", "Ints", "Ints"]
"""Path, start, end and what it says, of each span."""


@dataclass(frozen=True)
class OwnTime:
    """What ranks take for the same work, against their peers.

    Attributes:
        waiting: per rank when what came next on its own line hung on communication.
        longer: of ``own_time.longer_than_others``; no rows of ranks on a shared GPU, whose lengths include each other.
    """

    waiting: dict[int, Intervals]
    longer: pl.DataFrame

    @classmethod
    def of(cls, context: Context) -> OwnTime:
        """Compare the ranks."""
        waiting = waiting_in_gaps(context.graph)
        spinning = {rank: split.wait for rank, split in context.splits.items()}
        longer = longer_than_others(context.trace, context.attribution, waiting, spinning)
        return cls(waiting, longer.filter(~pl.col("rank").is_in(list(sharing_ranks(context.trace)))))


def lateness(own: OwnTime, pieces: pl.DataFrame) -> Spans:
    """The spans of each path in which its rank was late; what they say is the rank."""
    waiting = own.waiting
    longer = own.longer.filter(pl.col("longer_ns").is_not_null() & (pl.col("longer_ns") != 0))
    stays = _stays(pieces)
    stay, part = _parts_of(stays, longer)
    value = longer["longer_ns"].to_numpy()[part]
    end = longer["end_ns"].to_numpy()[part]
    kept = _kept(stay, value)
    real = np.flatnonzero(kept > 0)
    stay, end, kept = stay[real], end[real], kept[real]
    low, high = stays["start_ns"].to_numpy()[stay], stays["end_ns"].to_numpy()[stay]
    rank = stays["rank"].to_numpy()[stay]
    start = np.empty(end.size, dtype=np.int64)
    for number in np.unique(rank):
        mine = rank == number
        start[mine] = _before(waiting[int(number)], end[mine], kept[mine])
    return _spans(stays["path"].to_numpy()[stay], np.maximum(start, low), np.minimum(end, high), rank)


def _spans(path: Ints, start: Ints, end: Ints, value: Ints) -> Spans:
    return path, start, end, value


def _stays(pieces: pl.DataFrame) -> pl.DataFrame:
    """Path, rank, start and end of each stay, in order of path and time."""
    own = ~pl.col("kind").cast(pl.String).is_in(COMMUNICATION_KINDS) & pl.col("rank").is_not_null()
    return (
        pieces.with_columns(own=own)
        .with_columns(run=pl.struct("path", "rank", "own").rle_id())
        .filter("own")
        .group_by("run", maintain_order=True)
        .agg(pl.col("path", "rank", "start_ns").first(), pl.col("end_ns").last())
    )


def _parts_of(stays: pl.DataFrame, longer: pl.DataFrame) -> tuple[Ints, Ints]:
    """For each part that ends within a stay on its rank: the stay and the row of the part, in order of both."""
    rank = longer["rank"].to_numpy()
    end = longer["end_ns"].to_numpy()
    first = np.zeros(stays.height, dtype=np.int64)
    last = np.zeros(stays.height, dtype=np.int64)
    on, opened, closed = (stays[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    for number in np.unique(on):
        mine = np.flatnonzero(on == number)
        begin, stop = np.searchsorted(rank, (number, number + 1))
        first[mine] = begin + np.searchsorted(end[begin:stop], opened[mine], side="right")
        last[mine] = begin + np.searchsorted(end[begin:stop], closed[mine], side="right")
    size = last - first
    stay = np.repeat(np.arange(stays.height), size)
    part = np.arange(stay.size) + np.repeat(first - np.cumsum(size) + size, size)
    return stay, part


def _before(waiting: Intervals, end: Ints, own: Ints) -> Ints:
    """When there was so much own time left before each end: time without waiting."""
    at = waiting.start - waiting.covered_before(waiting.start)  # own time at which each waiting begins
    target = end - waiting.covered_before(end) - own
    ahead = np.searchsorted(at, target, side="left")
    length = np.append(0, np.cumsum(waiting.end - waiting.start))
    before: Ints = target + length[ahead]
    return before


def _kept(stay: Ints, value: Ints) -> Ints:
    """Of each value what is not taken back before its stay ends; see the module."""
    if not value.size:
        return value
    heads = np.append(True, stay[1:] != stay[:-1])
    before = np.cumsum(value) - value
    base = np.maximum.accumulate(np.where(heads, np.arange(value.size), 0))
    total = np.cumsum(value) - before[base]
    # The least from there on, within the stay.
    axis = GroupedAxis(total, int(stay[-1]) + 1)
    least = axis.value(np.minimum.accumulate(axis.place(stay, total)[::-1])[::-1], stay)
    least = np.maximum(least, 0)
    ahead = np.where(heads, 0, np.append(0, least[:-1]))
    kept: Ints = np.maximum(least - ahead, 0)
    return kept
