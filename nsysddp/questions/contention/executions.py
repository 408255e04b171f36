"""What is compared: executions of kernels, and transfers, with their group and their time beside the other side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from nsysddp.dependencies.queues import ahead_in_queue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Executions:
    """Executions of one rank and side; all shape (executions,).

    Attributes:
        row: where it stands what each is.
        group: equal for the same work.
        start: start, ns.
        duration: duration, ns.
        beside: time beside the other side, ns.
        steady: launched in no warm-up step?
    """

    row: Ints
    group: Ints
    start: Ints
    duration: Ints
    beside: Ints
    steady: NDArray[np.bool_]

    def __getitem__(self, part: slice) -> Executions:
        """Some of them that follow each other."""
        return Executions(**{name: values[part] for name, values in vars(self).items()})


def executions(context: Context) -> pl.DataFrame:
    """Every steady compute and spin kernel: ``rank``, ``duration_ns``, ``beside_ns`` communication, what it is.

    ``same`` is a number for what it is, over all ranks: name, grid, block, phase and the kernel ahead; ``shape`` for
    name, grid and block. Of millions of rows all numbers are small.
    """
    work, trace = Work.of(context), context.trace

    def of_rank(rank: int) -> tuple[pl.DataFrame, Ints]:
        """The numbers, with the group instead of what it is; and an execution of each group."""
        kernels = kernels_of(context, rank, work)
        first = np.zeros(int(kernels.group.max(initial=-1)) + 1, dtype=np.int64)
        first[kernels.group[::-1]] = kernels.row[::-1]
        longest = int(kernels.duration.max(initial=0))
        small = np.int32 if longest < 1 << 31 else np.int64
        numbers = {
            "rank": np.full(np.count_nonzero(kernels.steady), rank, dtype=np.int32),
            "duration_ns": kernels.duration[kernels.steady].astype(small),
            "beside_ns": kernels.beside[kernels.steady].astype(small),
            "group": kernels.group[kernels.steady].astype(np.int32),
        }
        return pl.DataFrame(numbers), first

    parts = trace.each_rank(of_rank)
    # Millions of rows of few groups: a group is described once.
    columns = work.columns(context.attribution.phase_range, np.concatenate([first for _, first in parts]))
    kinds = [dense(combined(*some)).astype(np.int32) for some in (columns, columns[:3])]
    before = np.cumsum([0, *(first.size for _, first in parts)]).tolist()
    return pl.concat(
        (
            kernels.drop("group").with_columns(
                pl.Series(name, of_group[base : base + first.size][kernels["group"].to_numpy()])
                for name, of_group in zip(("same", "shape"), kinds, strict=True)
            )
            for (kernels, first), base in zip(parts, before, strict=False)
        ),
        how="vertical_relaxed",
    )


class Coded(NamedTuple):
    """Texts as small numbers: that of a row is ``number[place[row]]``, 0 for null."""

    place: NDArray[Any]
    number: NDArray[np.int32]

    @classmethod
    def of(cls, texts: pl.Series) -> Coded:
        """The texts of a column of categories, in the order of the texts."""
        distinct = texts.unique().drop_nulls().cast(pl.String).sort()
        place = distinct.cast(pl.Categorical).to_physical().to_numpy()
        number = np.zeros(int(place.max(initial=0)) + 2, dtype=np.int32)
        number[place] = np.arange(1, place.size + 1)
        return cls(texts.to_physical().fill_null(number.size - 1).to_numpy(), number)

    def of_rows(self, rows: Ints | slice) -> NDArray[np.int32]:
        """The numbers of some rows."""
        numbers: NDArray[np.int32] = self.number[self.place[rows]]
        return numbers


@dataclass(frozen=True)
class Work:
    """What the work of kernels is.

    Attributes:
        name: of every event the row of its name.
        text: of every name a number that tells its text.
        grid, block: of every event, in numbers.
        ahead: of every event the one ahead of it in its queue.
        phase: of every phase range a number that tells its phase; the last is for events in none.
    """

    name: NDArray[np.int32]
    text: NDArray[Any]
    grid: Coded
    block: Coded
    ahead: NDArray[np.int32]
    phase: NDArray[Any]

    @classmethod
    def of(cls, context: Context) -> Work:
        """The work of a trace loaded with shapes."""
        trace = context.trace
        assert trace.shapes is not None
        return cls(
            trace.events["name"].to_numpy(),
            codes(trace.names["text"]),
            Coded.of(trace.shapes["grid"]),
            Coded.of(trace.shapes["block"]),
            ahead_in_queue(trace),
            np.append(codes(context.attribution.phases["phase"]), 0),
        )

    def columns(self, phase_range: NDArray[np.int32], rows: Ints) -> tuple[NDArray[Any], ...]:
        """Of some events name, grid, block, phase and the name ahead as numbers, the same for the same texts."""
        ahead = self.ahead[rows]
        after = np.where(ahead >= 0, self.text[self.name[ahead]], 0)
        phase = self.phase[phase_range[rows]]
        return self.text[self.name[rows]], self.grid.of_rows(rows), self.block.of_rows(rows), phase, after

    def shape(self, rows: Ints) -> Ints:
        """Of some events the place of name, grid and block among the distinct ones."""
        return dense(combined(self.name[rows], self.grid.of_rows(rows), self.block.of_rows(rows)))


def kernels_of(context: Context, rank: int, work: Work) -> Executions:
    """Every compute and spin kernel of a rank, with its time beside communication; ``row`` is its event."""
    trace = context.trace
    first, last = trace.rows_of(rank)
    events, here = trace.events_of(rank), slice(first, last)
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    chosen = trace.is_class(rank, ["compute", "spin"]) & (end > start) & context.keep[here]
    within = np.flatnonzero(chosen)
    rows = first + within
    ahead = work.ahead[rows]
    shape, after = np.split(work.shape(np.concatenate([rows, ahead])), 2)
    phase = work.phase[context.attribution.phase_range[rows]]
    group = dense(combined(phase, shape, np.where(ahead >= 0, after + 1, 0)))
    start, duration = start[within], (end - start)[within]
    beside = trace.union(rank, ["communication"]).length_within_each(start, start + duration)
    return Executions(rows, group, start, duration, beside, ~_warm(context, rank)[within])


def described(context: Context, rows: Ints, work: Work) -> pl.DataFrame:
    """What kernels in these rows are: ``rank``, ``phase``, ``name``, ``grid``, ``block``, ``after``, ``bytes``."""
    trace = context.trace
    assert trace.shapes is not None
    name, text = trace.events["name"].to_numpy(), trace.names["text"]
    ahead = work.ahead[rows]
    after = np.where(ahead >= 0, name[ahead], -1)
    return pl.DataFrame(
        {
            "rank": trace.events["rank"].gather(rows).cast(pl.Int64),
            "phase": context.attribution.phase_names(rows),
            "name": text.gather(name[rows]),
            "grid": trace.shapes["grid"].gather(rows).cast(pl.String),
            "block": trace.shapes["block"].gather(rows).cast(pl.String),
            "after": text.gather(pl.Series(after).replace(-1, None)),
            "bytes": pl.repeat(None, rows.size, dtype=pl.Int64, eager=True),
        }
    )


def transfers_of(context: Context) -> tuple[dict[int, Executions], pl.DataFrame]:
    """The transfers of each rank's matched communication events, and what each is, by its ``row``."""
    trace = context.trace
    known = context.timed.filter(
        pl.col("ready_ns").is_not_null(), pl.col("end_ns") > pl.col("transfer_start_ns")
    )
    known = known.filter(pl.Series(context.keep[known["event"].to_numpy()], dtype=pl.Boolean))
    rows = known["event"].to_numpy()
    start, end = known["transfer_start_ns"].to_numpy(), known["end_ns"].to_numpy()
    phase = context.attribution.phase_names(rows)
    # The same collective: kind, size and group; its kernel tells algorithm and protocol.
    same = known.select(
        pl.struct("rank", "kind", "bytes", "group_size", "name", phase=phase).rank("dense").cast(pl.Int64)
    )
    beside = _beside(trace, rows, start, end, ("compute", "spin"))
    steady = ~np.concatenate([_warm(context, rank) for rank in trace.rank_numbers])[rows]
    every = Executions(np.arange(rows.size), same.to_series().to_numpy(), start, end - start, beside, steady)
    bounds = np.searchsorted(known["rank"].to_numpy(), [*trace.rank_numbers, np.iinfo(np.int32).max])
    of_ranks = {
        rank: every[first:last]
        for rank, first, last in zip(trace.rank_numbers, bounds[:-1], bounds[1:], strict=True)
    }
    nothing = pl.lit(None, pl.String)
    what = known.select(
        "rank", "bytes", phase=phase, name=pl.col("kind"), grid=nothing, block=nothing, after=nothing
    )
    return of_ranks, what


def codes(texts: pl.Series) -> NDArray[Any]:
    """A small number per distinct text, 0 for null; the same for the same texts, since draws go by it."""
    if texts.dtype == pl.Categorical:
        return Coded.of(texts).of_rows(slice(None))
    distinct = texts.unique().drop_nulls().cast(pl.String).sort()
    codes = texts.cast(pl.Enum(distinct)).to_physical().cast(pl.Int64) + 1
    numbers_of: NDArray[Any] = codes.fill_null(0).to_numpy()
    return numbers_of


_MANY = 1 << 15
"""From so many values on those that are distinct are found faster by hashing than by sorting."""

_LOW = 1 << 20
"""Values below this are looked up in a table."""


def dense(values: Ints) -> Ints:
    """The place of each value, which is not below 0, among the distinct ones."""
    highest = int(values.max(initial=0))
    if highest < _LOW and values.size >= _MANY:
        is_there = np.zeros(highest + 1, dtype=bool)
        is_there[values] = True
        places: Ints = (np.cumsum(is_there) - 1)[values]
        return places
    distinct = np.unique(values) if values.size < _MANY else np.sort(pl.Series(values).unique().to_numpy())
    return np.searchsorted(distinct, values).astype(np.int64)


def combined(*columns: NDArray[Any]) -> Ints:
    """One number per distinct combination of columns of small numbers from 0."""
    number = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        number = number * (int(column.max(initial=0)) + 1) + column
    return number


def _beside(trace: Trace, rows: Ints, start: Ints, end: Ints, classes: tuple[str, ...]) -> Ints:
    """Time that each interval of each row's rank shares with the given classes."""
    beside = np.zeros(rows.size, dtype=np.int64)
    ranks = trace.events["rank"].to_numpy()[rows]
    for rank in trace.rank_numbers:
        mine = np.flatnonzero(ranks == rank)
        beside[mine] = trace.union(rank, classes).length_within(start[mine], end[mine])
    return beside


def _warm(context: Context, rank: int) -> NDArray[np.bool_]:
    """Was the event launched in a warm-up step, of each event of a rank?"""
    warm = {w.step for w in context.every_window.of(rank) if w.is_warmup}
    first, last = context.trace.rows_of(rank)
    flags: NDArray[np.bool_] = np.isin(context.attribution.step[first:last], list(warm))
    return flags
