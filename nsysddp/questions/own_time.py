"""How much longer does each rank take than the others for the same piece of work?

A rank's *own line* is all that it runs but communication, in order of start. Each event of it has two parts, which
tile the line: the gap ahead of it, and what it adds to the line. Of the gap only that counts which the rank did not
spend waiting for communication: neither waiting for others nor a slow transfer is a rank's own time::

    own line  ██ a ██|      gap      |██ b ██        gap of b = its length - waiting for communication
    waiting             ░░░░░░░

    longer(event, part) = own time of the part - median of its peers' for the same part

Peers run the same program: at least half of their events are alike. The same part: the n-th event of that name in the
step; if names differ between ranks (kernels chosen by trying) but not how many events there are, the n-th event. What a
peer does not run at all took it no time. A collective that waits slows down the kernels beside it, so a rank is not
faster than peers that were waiting for it meanwhile. What every rank does alike is no rank's lateness, and neither
clocks nor the time at which a rank got what it needed take part.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS
from nsysddp.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution
    from nsysddp.questions.collectives import Split

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_FIRST_SHARE = 0.1
"""A phase with at least this share of a step's lateness is where the rank fell behind."""

_ALIKE = 0.5
"""Ranks with at least this share of their events alike run the same program."""

OWN = ("compute", "spin", "memory", "graph")
"""Classes of events that are a rank's own work."""


def longer_than_others(
    trace: Trace,
    attribution: Attribution,
    waiting: Mapping[int, Intervals],
    spinning: Mapping[int, Intervals],
) -> pl.DataFrame:
    """Both parts of every event of the own lines, against the median of the peers.

    Args:
        trace: the run.
        attribution: step of every event.
        waiting: per rank when it waited for communication (``waiting_in_gaps``, or its exposed communication).
        spinning: per rank when kernels of its collectives waited for other ranks.

    Returns:
        One row per event and part, ordered by rank and time: ``rank``, ``event``, ``is_gap``, ``start_ns``,
        ``end_ns``, ``own_ns`` and ``longer_ns``, which is null for a rank without peers.
    """
    lines = [_line(trace, rank, waiting[rank], spinning[rank]) for rank in trace.rank_numbers]
    programs = _programs(trace, lines)
    steps = np.concatenate([attribution.step[line["event"].to_numpy()] for line in lines])
    counts = np.bincount(steps + 1, minlength=1)
    parts: list[list[pl.DataFrame]] = [[] for _ in lines]
    for low, high in _together(counts):
        some = [line.filter(_in_steps(attribution, line, low - 1, high - 1)) for line in lines]
        for kept, longer in zip(parts, _longer(trace, attribution, some, programs), strict=True):
            kept.append(longer)
    return pl.concat(
        pl.concat(of_rank).sort("end_ns", "start_ns", "event", maintain_order=True) for of_rank in parts
    )


_EVENTS_AT_A_TIME = 500_000
"""Events of whole steps that are compared together: their keys take ten times their memory."""


def _together(counts: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of places whose counts come to about as many events as are compared at a time."""
    first = total = 0
    for place, count in enumerate(counts.tolist(), start=1):
        total += count
        if total >= _EVENTS_AT_A_TIME or place == counts.size:
            yield first, place
            first, total = place, 0


def _in_steps(attribution: Attribution, line: pl.DataFrame, first: int, last: int) -> pl.Series:
    """Which events of a line were launched in these steps (-1: in none)?"""
    step = attribution.step[line["event"].to_numpy()]
    return pl.Series((step >= first) & (step < last))


def _longer(
    trace: Trace, attribution: Attribution, lines: Sequence[pl.DataFrame], programs: pl.DataFrame
) -> list[pl.DataFrame]:
    """Both parts of the events of some steps, rank by rank, as ``longer_than_others`` gives them."""
    table = pl.concat(lines)
    event = table["event"].to_numpy()
    start, end = (trace.events[name].to_numpy()[event] for name in ("start_ns", "end_ns"))
    ahead = table["ahead"].to_numpy()
    run_start = np.clip(ahead, start, end)
    keyed = _with_same(
        table.select(
            "rank",
            "event",
            step=attribution.step[event].astype(np.int64),
            name=trace.events["name"].to_numpy()[event].astype(np.int64),
        ),
        programs,
    )
    same, peers = keyed["same"].to_numpy(), keyed["peers"].to_numpy()
    spun = table["spun"].to_numpy()
    slowed = np.bincount(same, spun)[same] - spun > spun if same.size else same > 0
    parts = []
    for is_gap, own, begin, finish in (
        (True, table["gap"].to_numpy(), np.minimum(ahead, start), start),
        (False, end - run_start, run_start, end),
    ):
        longer = own - median_of_others(same, own, peers)
        if not is_gap:
            longer = np.where((longer < 0) & slowed, 0.0, longer)
        parts.append(
            table.select(
                "rank",
                "event",
                is_gap=pl.lit(is_gap),
                start_ns=begin,
                end_ns=finish,
                own_ns=own,
                longer_ns=pl.Series(longer).fill_nan(None).round().cast(pl.Int64),
            )
        )
    firsts = np.cumsum([0, *(line.height for line in lines)]).tolist()
    return [pl.concat(part[a:b] for part in parts) for a, b in pairwise(firsts)]


def own_lateness(
    trace: Trace, attribution: Attribution, splits: Mapping[int, Split], steady: Mapping[int, Sequence[int]]
) -> dict[int, float]:
    """How much longer than its peers' is each rank's own time in a steady step?

    Args:
        trace: the run.
        attribution: step of every event.
        splits: communication of every rank.
        steady: steps of every rank that count; -1 of events outside steps.

    Returns:
        Mean ns a step; ranks without peers are left out.
    """
    exposed = {
        rank: (split.transfer | split.wait | split.unsplit) - trace.union(rank, OWN)
        for rank, split in splits.items()
    }
    longer = longer_than_others(
        trace, attribution, exposed, {rank: split.wait for rank, split in splits.items()}
    )
    step = attribution.step[longer["event"].to_numpy()]
    rank = longer["rank"].to_numpy()
    value = longer["longer_ns"]
    known = value.is_not_null().to_numpy()
    made = {}
    for number, steps in steady.items():
        mine = (rank == number) & known & np.isin(step, np.asarray(steps, dtype=np.int64))
        if mine.any():
            made[number] = float(value.to_numpy()[mine].sum()) / max(len(steps), 1)
    return made


def _with_same(lines: pl.DataFrame, programs: pl.DataFrame) -> pl.DataFrame:
    """Own lines with what is the same part on several ranks: ``same``, and how many ``peers`` there are.

    Args:
        lines: ``rank``, ``event``, ``step`` and ``name`` of whole steps.
        programs: ``rank``, ``program``, and its ``size``.
    """
    size = programs.select("program", "size").unique()
    lines = lines.join(programs, on="rank", how="left", maintain_order="left")
    counts = lines.group_by("program", "step", "name", "rank").len()
    alike = (
        counts.group_by("program", "step", "name")
        .agg(is_alike=pl.col("len").n_unique() == 1, ranks=pl.len())
        .join(size, on="program")
        .group_by("program", "step")
        .agg(is_alike=(pl.col("is_alike") & (pl.col("ranks") == pl.col("size"))).all())
    )
    as_many = (
        counts.group_by("program", "step", "rank")
        .agg(pl.col("len").sum())
        .join(size, on="program")
        .group_by("program", "step")
        .agg(is_as_many=(pl.col("len").n_unique() == 1) & (pl.len() == pl.col("size").first()))
    )
    key = ["program", "step"]
    lines = lines.join(alike, on=key, how="left", maintain_order="left")
    lines = lines.join(as_many, on=key, how="left", maintain_order="left")
    by_place = pl.col("is_as_many") & ~pl.col("is_alike")
    return (
        lines.with_columns(name=pl.when(by_place).then(-1).otherwise("name"))
        .with_columns(place=pl.col("event").cum_count().over("rank", "step", "name"))
        .with_columns(
            same=pl.struct("program", "step", "name", "place").rank("dense").cast(pl.Int64) - 1,
            peers=pl.col("size") - 1,
        )
    )


def _programs(trace: Trace, lines: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Which ranks run the same program: a number for each rank with a line, and how many ranks run it."""
    names = trace.events["name"].to_numpy()
    counts = pl.concat(
        line.select("rank", name=names[line["event"].to_numpy()]).group_by("rank", "name").len()
        for line in lines
    )
    return _alike(counts)


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


def _line(trace: Trace, rank: int, waiting: Intervals, spinning: Intervals) -> pl.DataFrame:
    """The own line of a rank: ``event``, how far it had got ``ahead`` of it, own time of the ``gap``, and ``spun``."""
    first, _ = trace.rows_of(rank)
    rows, start, end, ahead = _ordered(trace, rank)
    gap_start = np.minimum(ahead, start)
    return pl.DataFrame(
        {
            "rank": np.full(rows.size, rank, dtype=np.int32),
            "event": (first + rows).astype(np.int32),
            "ahead": ahead,
            "gap": start - gap_start - waiting.length_within(gap_start, start),
            "spun": spinning.length_within(np.clip(ahead, start, end), end),
        }
    )


def _ordered(trace: Trace, rank: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Rows, start and end of the events of a rank's own line, and how far it had got ahead of each.

    It begins with the first call of the rank's process, or without calls with its first event.
    """
    events = trace.events_of(rank)
    rows = np.flatnonzero(trace.is_class(rank, OWN))
    start, end = events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows]
    order = np.lexsort((end, start))
    rows, start, end = rows[order], start[order], end[order]
    if not rows.size:
        return rows, start, end, start
    begin = start[0]
    if trace.calls is not None:
        calls = trace.calls.filter(pl.col("process") == trace.process_of_rank[rank])["start_ns"]
        begin = min(begin, calls.min()) if calls.len() else begin
    return rows, start, end, np.append(begin, np.maximum.accumulate(end)[:-1])


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


def phases_behind(trace: Trace, attribution: Attribution, splits: Mapping[int, Split]) -> pl.DataFrame:
    """The first phase of each rank and step in which it took longer than the others, in own time.

    A phase lasts from the end of the work of those before it to the end of its own work; communication that nothing ran
    beside is taken off. It counts from 10 us and a tenth of the step's lateness on.

    Returns:
        ``rank``, ``step`` (its name) and ``phase``; no row for a rank that did not fall behind.
    """
    empty = pl.DataFrame(schema={"rank": pl.Int64, "step": pl.String, "phase": pl.String})
    phases = (
        trace.events.lazy()
        .select(pl.col("rank").cast(pl.Int64), "class", "start_ns", "end_ns")
        .with_columns(step=pl.Series(attribution.step), phase=attribution.phase_names())
        .filter(
            pl.col("class").cast(pl.String).is_in(OWN) & pl.col("phase").is_not_null() & (pl.col("step") >= 0)
        )
        .group_by("rank", "step", "phase")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("rank", "start_ns", "phase")
        .with_columns(
            ahead=pl.min_horizontal(
                pl.col("end_ns").cum_max().shift().over("rank").fill_null(pl.col("start_ns")), "end_ns"
            )
        )
        .collect()
    )
    if phases["rank"].n_unique() < 2:
        return empty
    own = np.zeros(phases.height, dtype=np.int64)
    rank, begin, end = (phases[name].to_numpy() for name in ("rank", "ahead", "end_ns"))
    for number in np.unique(rank):
        mine = np.flatnonzero(rank == number)
        split = splits[int(number)]
        exposed = (split.transfer | split.wait | split.unsplit) - trace.union(int(number), OWN)
        own[mine] = end[mine] - begin[mine] - exposed.length_within(begin[mine], end[mine])
    same = phases.select(pl.struct("step", "phase").rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    longer = own - median_of_others(same, own, np.bincount(same)[same] - 1)
    behind = pl.col("longer").clip(lower_bound=0)
    return (
        phases.with_columns(longer=pl.Series(longer).fill_nan(0))
        .filter(pl.col("longer") > LATENCY_NS, behind >= _FIRST_SHARE * behind.sum().over("rank", "step"))
        .with_columns(step=_named(attribution, pl.col("step")))
        .group_by("rank", "step", maintain_order=True)
        .agg(pl.col("phase").first())
    )


def _named(attribution: Attribution, step: pl.Expr) -> pl.Expr:
    names = dict(attribution.steps.select("step_index", "name").iter_rows())
    return step.replace_strict(names, default=None, return_dtype=pl.String)


def waiting_in_gaps(graph: Graph) -> dict[int, Intervals]:
    """Per rank: when, in the gaps of its own line, what came next hung on communication.

    Not whenever communication ran then: a host that launches late is late beside a collective too.
    """
    from nsysddp.questions.gaps import Gaps, pieces_of

    trace = graph.trace
    made = {}
    for rank in trace.rank_numbers:
        first, _ = trace.rows_of(rank)
        rows, start, _, ahead = _ordered(trace, rank)
        real = np.flatnonzero(start > ahead)
        gaps = Gaps(
            rank=np.full(real.size, rank),
            window=np.zeros(real.size, dtype=np.int64),
            start=ahead[real],
            end=start[real],
            event=first + rows[real],
        )
        pieces = pieces_of(graph, gaps)
        node = np.clip(pieces.node, 0, graph.events - 1)
        communicates = (trace.events["class"] == "communication").to_numpy()
        waits = pieces.ran & (pieces.node >= 0) & (pieces.node < graph.events) & communicates[node]
        made[rank] = Intervals.union_of(pieces.start[waits], pieces.end[waits])
    return made
