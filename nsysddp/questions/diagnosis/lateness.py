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
from nsysddp.questions.diagnosis.slowing import Slowing
from nsysddp.questions.diagnosis.stopped import stopped_ranks, sums_of
from nsysddp.questions.own_time import Longer, longer_than_others, waiting_in_gaps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]

Part = tuple["Ints", "Ints", "Rows", "Ints"]
"""End, start, event and difference of some parts of an own line."""

Spans = tuple["Ints", "Ints", "Ints", "Ints"]
"""Path, start, end and what it says, of each span."""


@dataclass(frozen=True)
class OwnTime:
    """What ranks take for the same work, against their peers; without ranks on a shared GPU, whose times are mixed.

    Attributes:
        waiting: per rank when what came next on its own line hung on communication.
        longer: of each rank the parts of its own line (``own_time``) that were longer or shorter than its peers': their
            ends in order, and by how much, ns.
        stopped: ranks whose GPU was stopped now and then.
    """

    waiting: dict[int, Intervals]
    longer: dict[int, tuple[Ints, Ints]]
    stopped: list[int]

    @classmethod
    def of(cls, context: Context, slowing: Slowing) -> OwnTime:
        """Compare the ranks."""
        trace = context.trace
        start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
        waiting = waiting_in_gaps(context.graph)
        spinning = {rank: split.wait for rank, split in context.splits.items()}
        shared = sharing_ranks(trace)
        lost = {
            rank: slowing.lost_by_step(rank, context.attribution.steps.height) for rank in trace.rank_numbers
        }
        parts: dict[int, list[Part]] = {}
        sums = [sums_of(pl.DataFrame(schema={"rank": pl.Int32, "own_ns": pl.Int64, "longer_ns": pl.Int64}))]
        for longer in longer_than_others(trace, context.attribution, waiting, spinning, lost):
            event, rank = longer.line.event, longer.line.rank
            if rank in shared:
                continue
            runs = pl.DataFrame({"own_ns": end[event] - start[event], "longer_ns": longer.run})
            sums.append(sums_of(runs.with_columns(rank=pl.lit(rank, pl.Int32))))
            parts.setdefault(rank, []).extend(_uneven(longer, start[event], end[event]))
        in_time = {rank: _in_time(parts.pop(rank)) for rank in list(parts)}
        return cls(waiting, in_time, stopped_ranks(pl.concat(sums)))


def _uneven(longer: Longer, start: Ints, end: Ints) -> Iterator[Part]:
    """End, start, event and difference of those parts that have one."""
    ahead = longer.line.ahead
    for begin, finish, value in (
        (np.minimum(ahead, start), start, longer.gap),
        (np.clip(ahead, start, end), end, longer.run),
    ):
        real = np.flatnonzero(value)
        yield finish[real], begin[real], longer.line.event[real], value[real]


def _in_time(parts: list[Part]) -> tuple[Ints, Ints]:
    """Ends and differences of the parts of one rank, by end, start and event."""
    end, start, event, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(end, kind="stable")  # which makes use of what is in order already
    tied = np.flatnonzero(np.diff(end[order]) == 0)
    tied = np.union1d(tied, tied + 1)
    these = order[tied]
    order[tied] = these[np.lexsort((event[these], start[these], end[these]))]
    return end[order], value[order]


def lateness(own: OwnTime, pieces: pl.DataFrame) -> Spans:
    """The spans of each path in which its rank was late; what they say is the rank."""
    waiting = own.waiting
    stays = _stays(pieces)
    stay, end, value = _parts_of(stays, own.longer)
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


def _parts_of(stays: pl.DataFrame, longer: Mapping[int, tuple[Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """For each part that ends within a stay on its rank: the stay, its end and difference, in order of stay and end."""
    on, opened, closed = (stays[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    none = np.empty(0, dtype=np.int64)
    found: list[tuple[Ints, Ints, Ints]] = [(none, none, none)]
    for number in np.unique(on).tolist():
        mine = np.flatnonzero(on == number)
        end, value = longer.get(number, (none, none))
        first = np.searchsorted(end, opened[mine], side="right")
        size = np.searchsorted(end, closed[mine], side="right") - first
        part = np.arange(size.sum()) + np.repeat(first - np.cumsum(size) + size, size)
        found.append((np.repeat(mine, size), end[part], value[part]))
    stay, end, value = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(stay, kind="stable")
    return stay[order], end[order], value[order]


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
