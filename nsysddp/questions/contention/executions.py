"""What is compared: executions of kernels, and transfers, with their group and their time beside the other side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.queues import ahead_in_queue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]


def executions(context: Context) -> pl.DataFrame:
    """Every compute and spin kernel: ``rank``, what it is, ``duration_ns``, ``beside_ns`` communication, ``steady``."""
    work = Work.of(context.trace)
    parts: list[pl.DataFrame] = []
    for rank in context.trace.rank_numbers:
        kernels = kernels_of(context, rank, work)
        group = kernels["group"].to_numpy()
        # Millions of rows of few groups: a group is described once.
        groups, first = np.unique(group, return_index=True)
        texts = ["phase", "name", "grid", "block", "after"]
        of_group = described(context, kernels[first], work).select(pl.col(texts).cast(pl.Categorical))
        numbers = kernels.select(pl.col("rank").cast(pl.Int32), "duration_ns", "beside_ns", "steady")
        parts.append(pl.concat([numbers, of_group[np.searchsorted(groups, group)]], how="horizontal"))
    return pl.concat(parts)


@dataclass(frozen=True)
class Work:
    """Of every event a number that tells name, grid and block apart, and the event ahead of it in its queue."""

    shape: Ints
    ahead: NDArray[np.int32]

    @classmethod
    def of(cls, trace: Trace) -> Work:
        """The work of a trace loaded with shapes."""
        assert trace.shapes is not None
        grid, block = codes(trace.shapes["grid"]), codes(trace.shapes["block"])
        return cls(combined(trace.events["name"].to_numpy(), grid, block), ahead_in_queue(trace))


def kernels_of(context: Context, rank: int, work: Work) -> pl.DataFrame:
    """Every compute and spin kernel of a rank with its group, duration and time beside communication."""
    trace = context.trace
    first, last = trace.rows_of(rank)
    events, here = trace.events_of(rank), slice(first, last)
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    chosen = trace.is_class(rank, ["compute", "spin"]) & (end > start) & context.keep[here]
    within = np.flatnonzero(chosen)
    rows = first + within
    ahead = work.ahead[rows]
    shape, after = np.split(dense(work.shape[np.concatenate([rows, ahead])]), 2)
    phase = np.append(codes(context.attribution.phases["phase"]), 0)[context.attribution.phase_range[rows]]
    group = dense(combined(phase, shape, np.where(ahead >= 0, after + 1, 0)))
    start, duration = start[within], (end - start)[within]
    return pl.DataFrame(
        {
            "rank": np.full(rows.size, rank, dtype=np.int64),
            "row": rows,
            "group": group,
            "start_ns": start,
            "duration_ns": duration,
            "beside_ns": trace.union(rank, ["communication"]).length_within(start, start + duration),
            "steady": ~_warm(context, rank)[within],
        }
    )


def described(context: Context, kernels: pl.DataFrame, work: Work) -> pl.DataFrame:
    """What some kernels are: ``rank``, ``phase``, ``name``, ``grid``, ``block``, ``after``, ``bytes``."""
    trace = context.trace
    assert trace.shapes is not None
    rows = kernels["row"].to_numpy()
    name, text = trace.events["name"].to_numpy(), trace.names["text"]
    ahead = work.ahead[rows]
    after = np.where(ahead >= 0, name[ahead], -1)
    return pl.DataFrame(
        {
            "rank": kernels["rank"],
            "phase": context.attribution.phase_names(rows),
            "name": text.gather(name[rows]),
            "grid": trace.shapes["grid"].gather(rows).cast(pl.String),
            "block": trace.shapes["block"].gather(rows).cast(pl.String),
            "after": text.gather(pl.Series(after).replace(-1, None)),
            "bytes": pl.repeat(None, rows.size, dtype=pl.Int64, eager=True),
        }
    )


def transfers_of(context: Context) -> pl.DataFrame:
    """The transfer of every matched communication event, with its group and its time beside compute."""
    trace = context.trace
    known = context.timed.filter(
        pl.col("ready_ns").is_not_null(), pl.col("end_ns") > pl.col("transfer_start_ns")
    )
    known = known.filter(pl.Series(context.keep[known["event"].to_numpy()], dtype=pl.Boolean))
    rows = known["event"].to_numpy()
    start, end = known["transfer_start_ns"].to_numpy(), known["end_ns"].to_numpy()
    phase = context.attribution.phase_names(rows)
    # The same collective: kind, size and group; its kernel tells algorithm and protocol.
    group = known.select(
        pl.struct("rank", "kind", "bytes", "group_size", "name", phase=phase).rank("dense").cast(pl.Int64)
    ).to_series()
    return pl.DataFrame(
        {
            "rank": known["rank"],
            "row": rows,
            "group": group,
            "start_ns": start,
            "duration_ns": end - start,
            "beside_ns": _beside(trace, rows, start, end, ("compute", "spin")),
            "steady": ~np.concatenate([_warm(context, rank) for rank in trace.rank_numbers])[rows],
        }
    ).with_columns(
        phase=phase,
        name=known["kind"],
        grid=pl.lit(None, pl.String),
        block=pl.lit(None, pl.String),
        after=pl.lit(None, pl.String),
        bytes=known["bytes"],
    )


def codes(texts: pl.Series) -> NDArray[Any]:
    """A small number per distinct text, 0 for null; the same for the same texts, since draws go by it."""
    distinct = texts.unique().drop_nulls().cast(pl.String).sort()
    if texts.dtype == pl.Categorical:
        place = distinct.cast(pl.Categorical).to_physical().to_numpy()
        table = np.zeros(int(place.max(initial=0)) + 2, dtype=np.int32)
        table[place] = np.arange(1, place.size + 1)
        numbers: NDArray[Any] = table[texts.to_physical().fill_null(table.size - 1).to_numpy()]
        return numbers
    codes = texts.cast(pl.Enum(distinct)).to_physical().cast(pl.Int64) + 1
    numbers_of: NDArray[Any] = codes.fill_null(0).to_numpy()
    return numbers_of


def dense(values: Ints) -> Ints:
    """The place of each value among the distinct ones."""
    distinct = np.sort(pl.Series(values).unique().to_numpy())
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
