"""Which events of several ranks are the same part of one program, and by how much is each longer than its peers'?

Peers run the same program: at least half of their events are alike. The same part: the n-th event of that name in the
step; if names differ between ranks (kernels chosen by trying) but not how many events there are, the n-th event. What a
peer does not run at all took it no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl

from nsysddp.model.trace import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Steps = NDArray[np.int32]
    Floats = NDArray[np.float64]

T = TypeVar("T")

_ALIKE = 0.5
"""Ranks with at least this share of their events alike run the same program."""

OWN = ("compute", "spin", "memory", "graph")
"""Classes of events that are a rank's own work."""


@dataclass(frozen=True)
class Parts:
    """Both parts of some events of an own line, before they are compared; all shape (events,).

    Attributes:
        gap: own time of the gap ahead of it, ns.
        run: own time that it adds to the line, ns.
        spun: how long kernels of collectives waited beside that, ns.
    """

    gap: Ints
    run: Ints
    spun: Ints


@dataclass(frozen=True)
class Measured:
    """An own line by its parts, which need not lie in memory.

    Attributes:
        rank: whose it is.
        names: names of all that the rank runs of its own, and how often.
        counts: events of each step from -1 on, shape (1 + steps,).
        work: step and name of the events from one place to another; they are ordered by step.
        parts: of the events in these places.
    """

    rank: int
    names: tuple[Rows, Ints]
    counts: Ints
    work: Callable[[int, int], tuple[Steps, Rows]]
    parts: Callable[[Rows], Parts]


@dataclass(frozen=True)
class Compared:
    """Some events of each rank of a program: by how much more than its peers' their parts lasted.

    Attributes:
        rows: of each rank the events, counted from its first of these steps.
        gap, run: as of ``Longer``.
    """

    rows: list[Rows]
    gap: list[Ints]
    run: list[Ints]


@dataclass(frozen=True)
class Same:
    """Ranks of one program in some steps, and which of their events are the same part of it.

    Attributes:
        places: of the ranks among the lines.
        lines: theirs.
        first: of each rank the place of its first event of these steps.
        rows: of each rank its events, counted from there, kind by kind.
        count: of each rank how many it has of each kind, shape (ranks, kinds); the n-th of a kind are the same part.
    """

    places: list[int]
    lines: list[Measured]
    first: list[int]
    rows: list[Rows]
    count: Ints

    def each(self, work: Callable[[Compared], T]) -> list[T]:
        """``work`` on the comparison of some parts at a time, several at once."""
        ends = np.cumsum(self.count.max(axis=0, initial=0))
        width = max(_VALUES_AT_A_TIME // len(self.lines), 1)
        return in_parallel(
            range(0, int(ends[-1]) if ends.size else 0, width),
            lambda low: work(self._compared(ends, low, min(low + width, int(ends[-1])))),
            events=sum(rows.size for rows in self.rows),
        )

    def _compared(self, ends: Ints, low: int, high: int) -> Compared:
        """The parts from one number to another; those of each kind end where ``ends`` says."""
        gap, run, spun = (np.zeros((len(self.lines), high - low), dtype=np.int64) for _ in range(3))
        some = slice(np.searchsorted(ends, low, side="right"), np.searchsorted(ends, high) + 1)
        begin = ends[some] - self.count[:, some].max(axis=0)
        found, columns = [], []
        for number, (line, first, rows, count) in enumerate(
            zip(self.lines, self.first, self.rows, self.count, strict=True)
        ):
            at, to = np.maximum(begin, low), np.minimum(begin + count[some], high)
            sizes = np.maximum(to - at, 0)
            column = np.repeat(at - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()) - low
            skipped = int(count[: some.start].sum() + min(max(low - begin[0], 0), count[some.start]))
            found.append(rows[skipped : skipped + column.size])
            columns.append(column)
            parts = line.parts(first + found[-1])
            for table, values in ((gap, parts.gap), (run, parts.run), (spun, parts.spun)):
                table[number, column] = values
        slowed = spun.sum(axis=0) - spun > spun
        longer = _beyond_others(run)
        longer[(longer < 0) & slowed] = 0
        more = _beyond_others(gap)
        return Compared(
            found,
            [more[row, here] for row, here in enumerate(columns)],
            [longer[row, here] for row, here in enumerate(columns)],
        )


_EVENTS_AT_A_TIME = 500_000
"""Events of whole steps of which is known what is the same at a time."""

_VALUES_AT_A_TIME = 1 << 17
"""Of a part on all ranks: a capture without steps is one step, and all of it at once would take all memory."""


def by_steps(lines: Sequence[Measured]) -> Iterator[Same]:
    """The ranks of each program that has several, some steps at a time."""
    programs = [program for program in _programs(lines) if len(program) > 1]
    counts = np.stack([line.counts for line in lines])
    begin = np.concatenate([np.zeros((len(lines), 1), dtype=np.int64), counts.cumsum(axis=1)], axis=1)
    for first, last in _together(counts.sum(axis=0)):
        for program in programs:
            mine = [lines[place] for place in program]
            spans = begin[program][:, [first, last]].tolist()
            yield Same(
                program, mine, [span[0] for span in spans], *_same(mine, spans, range(first - 1, last - 1))
            )


def _together(counts: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of places whose counts come to about as many events as are looked at a time."""
    first = total = 0
    for place, count in enumerate(counts.tolist(), start=1):
        total += count
        if total >= _EVENTS_AT_A_TIME or place == counts.size:
            yield first, place
            first, total = place, 0


def whole(value: Floats) -> Ints:
    """The nearest integers."""
    return np.rint(value).astype(np.int64)


def _beyond_others(value: Ints) -> Ints:
    """By how much each value is above the median of the others in its column; of two rows at least."""
    ordered, others = np.sort(value, axis=0), len(value) - 1

    def at(middle: int) -> Ints:  # without one of the values that are there, those not below it move down
        found: Ints = np.where(value > ordered[middle], ordered[middle], ordered[middle + 1])
        return found

    return whole(value - (at((others - 1) // 2) + at(others // 2)) / 2)


def _same(
    lines: Sequence[Measured], spans: Sequence[tuple[int, int]], steps: range
) -> tuple[list[Rows], Ints]:
    """Which events are the same part on several ranks of one program?

    Args:
        lines: of the ranks.
        spans: of each the places of its events in these steps.
        steps: all of them are looked at together.

    Returns:
        As ``Same``: ``rows`` and ``count``.
    """
    width = 1 + max(int(line.names[0].max(initial=0)) for line in lines)
    size = sum(last - first for first, last in spans)
    small = np.int32 if len(steps) * width < 1 << 31 else np.int64
    by_place = np.zeros(len(steps), dtype=np.bool_)

    def coded(number: int) -> NDArray[Any]:  # made anew each time: those of all ranks take much memory
        step, name = lines[number].work(*spans[number])
        step = step.astype(small) - small(steps.start)
        codes: NDArray[Any] = step * small(width)
        codes += np.where(by_place[step], 0, name) if by_place.any() else name
        return codes

    ranks = range(len(lines))
    code, count = _side_by_side(in_parallel(ranks, lambda number: how_often(coded(number)), events=size))
    of_step = code // width
    head = np.flatnonzero(np.diff(of_step, prepend=-1))
    if head.size:
        differ = np.logical_or.reduceat((count != count[0]).any(axis=0), head)
        events = np.add.reduceat(count, head, axis=1)
        by_place[of_step[head]] = differ & (events == events[0]).all(axis=0)
    if by_place.any():
        code, count = _side_by_side(in_parallel(ranks, lambda number: how_often(coded(number)), events=size))
    return in_parallel(ranks, lambda number: _by_code(coded(number), code), events=size), count


def how_often(codes: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The distinct codes, ascending, and how often each is there."""
    found = pl.Series("code", codes).to_frame().group_by("code").len().sort("code")
    return found["code"].to_numpy(), found["len"].cast(pl.Int64).to_numpy()


def _side_by_side(found: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """The codes of all ranks, ascending, and how often each rank has each; shape (ranks, codes)."""
    code = np.unique(np.concatenate([codes for codes, _ in found]))
    count = np.zeros((len(found), code.size), dtype=np.int64)
    for row, (codes, counts) in enumerate(found):
        count[row, np.searchsorted(code, codes)] = counts
    return code, count


def _by_code(codes: NDArray[Any], code: Ints) -> Rows:
    """The events by code, in turn; ``code`` are all there can be, ascending."""
    if code.size <= 1 << 16:  # which a radix sort can make use of
        if code[-1:].sum() >= 1 << 16:
            codes = np.searchsorted(code, codes)
        codes = codes.astype(np.uint16)
    return np.argsort(codes, kind="stable").astype(np.int32)


def _programs(lines: Sequence[Measured]) -> list[list[int]]:
    """Which lines are of ranks that run the same program? Places of lines with events."""
    counts = pl.concat(
        pl.DataFrame(dict(zip(("name", "len"), line.names, strict=True))).with_columns(
            rank=pl.lit(line.rank, pl.Int32)
        )
        for line in lines
    )
    place = {line.rank: number for number, line in enumerate(lines)}
    together = _alike(counts).group_by("program", maintain_order=True).agg("rank")
    return [[place[rank] for rank in ranks] for ranks in together["rank"].to_list()]


def programs_of(trace: Trace) -> pl.DataFrame:
    """Which ranks run the same program, by all that is their own work: ``rank`` and ``program``, a number."""
    events = trace.events.lazy().filter(pl.col("class").cast(pl.String).is_in(OWN))
    found = _alike(events.group_by("rank", "name").len().sort("rank", "name").collect())
    return found.select(pl.col("rank").cast(pl.Int64), "program")


def _alike(counts: pl.DataFrame) -> pl.DataFrame:
    counts = counts.pivot(on="rank", index="name", values="len").fill_null(0)
    ranks = [name for name in counts.columns if name != "name"]
    table = counts.select(ranks).to_numpy().astype(np.int64)
    program = np.full(len(ranks), -1, dtype=np.int64)
    for leader in range(len(ranks)):
        if program[leader] < 0:
            own = table[:, [leader]]
            alike = np.minimum(table, own).sum(axis=0) >= _ALIKE * np.maximum(table, own).sum(axis=0)
            program[alike & (program < 0)] = leader
            program[leader] = leader
    return pl.DataFrame({"rank": np.asarray(ranks, dtype=np.int32), "program": program}).with_columns(
        size=pl.len().over("program").cast(pl.Int64)
    )


def median_of_others(group: Ints, value: Ints, others: Ints) -> Floats:
    """For each value the median of the other values of its group, NaN where there are no others; shape (values,).

    Args:
        group: number of each value's group.
        value: the values.
        others: how many others there are; values that a group lacks are 0.
    """
    size = np.bincount(group) if group.size else group
    wanted = np.zeros(size.size, dtype=np.int64)
    wanted[group] = others + 1
    missing = np.maximum(wanted - size, 0)
    group = np.concatenate([group, np.repeat(np.arange(size.size), missing)])
    value = np.concatenate([value, np.zeros(int(missing.sum()), dtype=np.int64)])
    order = np.lexsort((value, group))
    ordered = value[order]
    size = size + missing
    head = np.repeat(np.cumsum(size) - size, size)
    rest = np.repeat(size, size) - 1
    place = np.arange(ordered.size) - head

    def at(middle: Ints) -> Ints:  # among the others: at and behind the value's own place it is one further
        middle = np.maximum(middle, 0)
        found: Ints = ordered[np.minimum(head + middle + (middle >= place), ordered.size - 1)]
        return found

    made = np.empty(ordered.size)
    made[order] = np.where(rest > 0, (at((rest - 1) // 2) + at(rest // 2)) / 2, np.nan)
    return made[: others.size]
