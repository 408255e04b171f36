"""How much longer does each rank take than the others for the same piece of work?

A rank's *own line* is all that it runs but communication, in order of start. Each event of it has two parts, which
tile the line: the gap ahead of it, and what it adds to the line. Of the gap only that counts which the rank did not
spend waiting for communication: neither waiting for others nor a slow transfer is a rank's own time::

    own line  ██ a ██|      gap      |██ b ██        gap of b = its length - waiting for communication
    waiting             ░░░░░░░

    longer(event, part) = own time of the part - median of its peers' for the same part

Peers and the same part: see ``peers``. A collective that waits slows down the kernels beside it: what they lose to
that, as far as it is known, is not their own, and a rank is not faster than peers that were waiting for it meanwhile.
What every rank does alike is no rank's lateness, and neither clocks nor the time at which a rank got what it needed
take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS
from nsysddp.model.intervals import Intervals
from nsysddp.model.trace import in_parallel
from nsysddp.questions.overlap import joined
from nsysddp.questions.peers import OWN, Measured, Parts, by_steps, how_often, median_of_others, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution, Numbered
    from nsysddp.questions.collectives import Split
    from nsysddp.questions.peers import Compared

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Steps = NDArray[np.int32]
    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_FIRST_SHARE = 0.1
"""A phase with at least this share of a step's lateness is where the rank fell behind."""


@dataclass(frozen=True)
class Line:
    """The own line of a rank: its events by step and start, and how far the line had got ahead of each."""

    rank: int
    event: Rows
    ahead: Ints

    def __getitem__(self, part: slice | Flags | NDArray[Any]) -> Line:
        """A part of the line."""
        return Line(self.rank, self.event[part], self.ahead[part])


@dataclass(frozen=True)
class Longer:
    """Some events of the own line of a rank with peers: by how much more than theirs each part lasted.

    Attributes:
        line: the events.
        gap: of the gap ahead of each, ns.
        run: of what each adds to the line, ns.
    """

    line: Line
    gap: Ints
    run: Ints


def longer_than_others(
    trace: Trace,
    attribution: Attribution,
    waiting: Mapping[int, Intervals],
    spinning: Mapping[int, Intervals],
    lost: Mapping[int, Floats] | None = None,
    only: Sequence[int] | None = None,
) -> Iterator[Longer]:
    """Both parts of every event of the own lines, against the median of the peers.

    Args:
        trace: the run.
        attribution: step of every event.
        waiting: per rank when it waited for communication (``waiting_in_gaps``, or its exposed communication).
        spinning: per rank when kernels of its collectives waited for other ranks.
        lost: per rank the share of their time beside communication that kernels lose to it; shape (1 + steps,), the
            first of what is in no step.
        only: steps that are asked for; None: all.

    Yields:
        Some steps of one rank at a time, since those of all ranks are too many; none of ranks without peers.
    """
    lines = _Lines(trace, attribution, waiting, spinning, lost or {}, only)
    own = trace.each_rank(lines.of)
    for same in by_steps(in_parallel(own, lines.measured, events=trace.events.height)):
        gaps, runs = ([np.empty(rows.size, dtype=np.int64) for rows in same.rows] for _ in range(2))

        def keep(compared: Compared, gaps: list[Ints] = gaps, runs: list[Ints] = runs) -> None:
            for number, (rows, gap, run) in enumerate(zip(*vars(compared).values(), strict=True)):
                gaps[number][rows], runs[number][rows] = gap, run

        same.each(keep)
        for place, first, gap, run in zip(same.places, same.first, gaps, runs, strict=True):
            yield Longer(own[place].line[first : first + gap.size], gap, run)


def _flags(steps: Sequence[int], size: int) -> Flags:
    """Is each step from -1 on one of these? Shape (size,)."""
    flags = np.zeros(size, dtype=np.bool_)
    flags[np.asarray(steps, dtype=np.int64) + 1] = True
    return flags


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
    only = sorted({step for steps in steady.values() for step in steps})
    return lateness_of(own_lines(trace, attribution, splits, only), steady)


def own_lines(
    trace: Trace, attribution: Attribution, splits: Mapping[int, Split], only: Sequence[int]
) -> list[Measured]:
    """The own line of every rank in some steps, of which exposed communication is no part; as of ``own_lateness``."""
    # In the gaps of a line nothing of its own runs: all communication there is exposed.
    talking = {rank: split.transfer | split.wait | split.unsplit for rank, split in splits.items()}
    spinning = {rank: split.wait for rank, split in splits.items()}
    lines = _Lines(trace, attribution, talking, spinning, {}, only)
    return trace.each_rank(lambda rank: lines.measured(lines.of(rank)))


def lateness_of(lines: Sequence[Measured], steady: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """``own_lateness``, from the own lines of all ranks in the steps that count."""
    total: dict[int, int] = {}
    counted = {rank: _flags(steps, lines[0].counts.size) for rank, steps in steady.items()}
    for same in by_steps(lines):
        counts = [
            counted[line.rank][line.work(first, first + rows.size)[0] + 1] if line.rank in counted else None
            for line, first, rows in zip(same.lines, same.first, same.rows, strict=True)
        ]

        def sums(compared: Compared, counts: list[Flags | None] = counts) -> list[int]:
            return [
                0 if flags is None else int((gap + run)[flags[rows]].sum())
                for flags, rows, gap, run in zip(counts, *vars(compared).values(), strict=True)
            ]

        found = same.each(sums)
        for line, flags, *longer in zip(same.lines, counts, *found, strict=True):
            if flags is not None and flags.any():
                total[line.rank] = total.get(line.rank, 0) + sum(longer)
    return {rank: float(total[rank]) / len(steady[rank]) for rank in steady if rank in total}


@dataclass(frozen=True)
class _Own:
    """The own line of a rank, and the names (and how often each) of all of it, whatever steps are asked for."""

    line: Line
    names: tuple[Rows, Ints]
    counts: Ints


@dataclass(frozen=True)
class _Lines:
    """What own lines are made from; attributes as the arguments of ``longer_than_others``."""

    trace: Trace
    attribution: Attribution
    waiting: Mapping[int, Intervals]
    spinning: Mapping[int, Intervals]
    lost: Mapping[int, Floats]
    only: Sequence[int] | None

    @cached_property
    def _columns(self) -> tuple[Ints, Ints, Rows]:
        start, end, name = (self.trace.events[column].to_numpy() for column in ("start_ns", "end_ns", "name"))
        return start, end, name

    def of(self, rank: int) -> _Own:
        """The own line of a rank, of the steps asked for."""
        step, name = self.attribution.step, self._columns[2]
        size = self.attribution.steps.height + 1  # -1 is a step too
        first, _ = self.trace.rows_of(rank)
        rows = _own_rows(self.trace, rank)
        line = Line(rank, rows + np.int32(first), _ahead(self.trace, rank, rows))
        steps = step[line.event]
        if (steps[1:] < steps[:-1]).any():
            line = line[np.argsort(steps, kind="stable")]  # nearly in order, which a stable sort makes use of
        names = how_often(name[line.event])
        if self.only is not None and not (wanted := _flags(self.only, size)).all():
            line = line[wanted[step[line.event] + 1]]
        return _Own(line, names, np.bincount(step[line.event] + 1, minlength=size))

    def measured(self, own: _Own) -> Measured:
        """An own line by its parts."""
        line, step, name = own.line, self.attribution.step, self._columns[2]
        event = line.event
        gap, run, spun = (_Small(event.size) for _ in range(3))
        for first in range(0, event.size, _AT_A_TIME):
            here = slice(first, first + _AT_A_TIME)
            parts = self._parts(line[here])
            for kept, values in ((gap, parts.gap), (run, parts.run), (spun, parts.spun)):
                kept.put(here, values)
        return Measured(
            line.rank,
            own.names,
            own.counts,
            lambda first, last: (step[event[first:last]], name[event[first:last]]),
            lambda rows: Parts(*(kept.values[rows] for kept in (gap, run, spun))),
        )

    def _parts(self, line: Line) -> Parts:
        start, end, _ = self._columns
        begin, finish = start[line.event], end[line.event]
        gap_start, run_start = np.minimum(line.ahead, begin), np.maximum(line.ahead, begin)
        finish = np.maximum(finish, run_start)  # what ends before the line had got there adds nothing
        gap = begin - gap_start - self.waiting[line.rank].length_within_each(gap_start, begin)
        run, spun = finish - run_start, self.spinning[line.rank].length_within_each(run_start, finish)
        if line.rank in self.lost:
            step = self.attribution.step[line.event]
            computes = (self.trace.events["class"].gather(line.event) == "compute").to_numpy()
            run -= whole(computes * self.lost[line.rank][step + 1] * spun)
        return Parts(gap, run, spun)


_AT_A_TIME = 1 << 16
"""Events of a line that are measured together: what is made of them stays near the processor."""


class _Small:
    """Times in ns, shape (size,), in half the memory where none is longer than two seconds."""

    def __init__(self, size: int) -> None:
        self.values: NDArray[Any] = np.empty(size, dtype=np.int32)

    def put(self, here: slice, values: Ints) -> None:
        """Write some of them."""
        if self.values.itemsize < values.itemsize and values.max(initial=0) >= 1 << 31:
            self.values = self.values.astype(np.int64)
        self.values[here] = values


def _own_rows(trace: Trace, rank: int) -> Rows:
    """Rows, among the rank's events, of those of its own line, in order of start and end."""
    events = trace.events_of(rank)
    rows = np.flatnonzero(trace.is_class(rank, OWN)).astype(np.int32)
    start, end = (events[name].to_numpy() for name in ("start_ns", "end_ns"))
    begun = start[rows]
    tied = np.flatnonzero(begun[1:] <= begun[:-1])
    if (begun[tied + 1] < begun[tied]).any() or (end[rows[tied + 1]] < end[rows[tied]]).any():
        rows = rows[np.lexsort((end[rows], begun))]
    return rows


def _ahead(trace: Trace, rank: int, rows: Rows) -> Ints:
    """How far the own line had got ahead of each of its events.

    It begins with the first call of the rank's process, or without calls with its first event.
    """
    events = trace.events_of(rank)
    ahead = np.empty(rows.size, dtype=np.int64)
    if rows.size:
        begin = int(events["start_ns"][int(rows[0])])
        ahead[0] = min(begin, trace.first_calls.get(trace.process_of_rank[rank], begin))
        np.maximum.accumulate(events["end_ns"].to_numpy()[rows[:-1]], out=ahead[1:])
    return ahead


def own_phases(trace: Trace, attribution: Attribution, splits: Mapping[int, Split]) -> pl.DataFrame:
    """How long did each rank take for each phase of each step, of its own time?

    A phase lasts from the end of the work of those before it to the end of its own work; communication that nothing ran
    beside is taken off.

    Returns:
        ``rank``, ``step`` (its index) and ``phase``, in the order in which they began, with ``own_ns``.
    """
    pieces = pl.DataFrame(joined(trace.each_rank(lambda rank: _pieces_of_phases(trace, attribution, rank))))
    phases = (
        pieces.with_columns(attribution.phases["phase"].gather(pieces["range"]))
        .group_by("rank", "step", "phase")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("rank", "start_ns", "phase", "step")
        .with_columns(
            ahead=pl.min_horizontal(
                pl.col("end_ns").cum_max().shift().over("rank").fill_null(pl.col("start_ns")), "end_ns"
            )
        )
    )
    own = np.zeros(phases.height, dtype=np.int64)
    rank, begin, end = (phases[name].to_numpy() for name in ("rank", "ahead", "end_ns"))
    heads = np.flatnonzero(np.diff(rank, prepend=-1))
    for number, first, last in zip(rank[heads].tolist(), heads, np.append(heads, rank.size)[1:], strict=True):
        mine, split = slice(first, last), splits[number]
        exposed = (split.transfer | split.wait | split.unsplit) - trace.union(number, OWN)
        own[mine] = end[mine] - begin[mine] - exposed.length_within(begin[mine], end[mine])
    return phases.select("rank", "step", "phase", own_ns=pl.Series(own))


def _pieces_of_phases(trace: Trace, attribution: Attribution, rank: int) -> dict[str, NDArray[Any]]:
    """Step, row of its phase range, first start and last end of events of a rank's own work that follow each other."""
    here = slice(*trace.rows_of(rank))
    events, step, phase = trace.events_of(rank), attribution.step[here], attribution.phase_range[here]
    rows = np.flatnonzero(trace.is_class(rank, OWN) & (step >= 0) & (phase >= 0))
    step, phase = step[rows], phase[rows]
    changes = (np.diff(step, prepend=-1) != 0) | (np.diff(phase, prepend=-1) != 0)
    heads = np.flatnonzero(changes)
    end = events["end_ns"].to_numpy()[rows]
    return {
        "rank": np.full(heads.size, rank, dtype=np.int64),
        "step": step[heads],
        "range": phase[heads],
        "start_ns": events["start_ns"].to_numpy()[rows[heads]],
        "end_ns": np.maximum.reduceat(end, heads) if heads.size else end,
    }


def phases_behind(phases: pl.DataFrame, found: Numbered) -> pl.DataFrame:
    """The first phase of each rank and step in which it took longer than the others, in own time.

    It counts from 10 us and a tenth of the step's lateness on.

    Args:
        phases: as ``own_phases`` tells of all ranks.
        found: the steps.

    Returns:
        ``rank``, ``step`` (its name) and ``phase``; no row for a rank that did not fall behind.
    """
    if phases["rank"].n_unique() < 2:
        return pl.DataFrame(schema={"rank": pl.Int64, "step": pl.String, "phase": pl.String})
    same = phases.select(pl.struct("step", "phase").rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    own = phases["own_ns"].to_numpy()
    longer = own - median_of_others(same, own, np.bincount(same)[same] - 1)
    behind = pl.col("longer").clip(lower_bound=0)
    return (
        phases.with_columns(longer=pl.Series(longer).fill_nan(0))
        .filter(pl.col("longer") > LATENCY_NS, behind >= _FIRST_SHARE * behind.sum().over("rank", "step"))
        .with_columns(_named(found, pl.col("step")))
        .group_by("rank", "step", maintain_order=True)
        .agg(pl.col("phase").first())
    )


def _named(found: Numbered, step: pl.Expr) -> pl.Expr:
    names = dict(found.steps.select("step_index", "name").iter_rows())
    return step.replace_strict(names, default=None, return_dtype=pl.String)


def waiting_in_gaps(graph: Graph) -> dict[int, Intervals]:
    """Per rank: when, in the gaps of its own line, what came next hung on communication.

    Not whenever communication ran then: a host that launches late is late beside a collective too.
    """
    from nsysddp.questions.gaps import Gaps, ends_of, pieces_of

    trace = graph.trace
    communicates = (trace.events["class"] == "communication").to_numpy()
    made, ends = {}, ends_of(graph)
    for rank in trace.rank_numbers:
        first, _ = trace.rows_of(rank)
        rows = _own_rows(trace, rank)
        start, ahead = trace.events_of(rank)["start_ns"].to_numpy()[rows], _ahead(trace, rank, rows)
        real = np.flatnonzero(start > ahead)
        gaps = Gaps(
            rank=np.full(real.size, rank),
            window=np.zeros(real.size, dtype=np.int64),
            start=ahead[real],
            end=start[real],
            event=first + rows[real].astype(np.int64),
        )
        pieces = pieces_of(graph, gaps, ends)
        node = np.clip(pieces.node, 0, graph.events - 1)
        waits = pieces.ran & (pieces.node >= 0) & (pieces.node < graph.events) & communicates[node]
        made[rank] = Intervals.union_of(pieces.start[waits], pieces.end[waits])
    return made
