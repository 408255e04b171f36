"""How much longer does each rank take than the others for the same piece of work?

A rank's *own line* is all that it runs but communication, in order of start. Each event of it has two parts, which
tile the line: the gap ahead of it, and what it adds to the line. Of the gap only that counts which the rank did not
spend waiting for communication: neither waiting for others nor a slow transfer is a rank's own time::

    own line  ██ a ██|      gap      |██ b ██        gap of b = its length - waiting for communication
    waiting             ░░░░░░░

    longer(event, part) = own time of the part - median of its peers' for the same part

Peers run the same program: at least half of their events are alike. The same part: the n-th event of that name in the
step; if names differ between ranks (kernels chosen by trying) but not how many events there are, the n-th event. What a
peer does not run at all took it no time. A collective that waits slows down the kernels beside it: what they lose to
that, as far as it is known, is not their own, and a rank is not faster than peers that were waiting for it meanwhile.
What every rank does alike is no rank's lateness, and neither clocks nor the time at which a rank got what it needed
take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS
from nsysddp.model.intervals import Intervals
from nsysddp.model.trace import in_parallel
from nsysddp.questions.overlap import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution, Numbered
    from nsysddp.questions.collectives import Split

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Steps = NDArray[np.int32]
    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_FIRST_SHARE = 0.1
"""A phase with at least this share of a step's lateness is where the rank fell behind."""

_ALIKE = 0.5
"""Ranks with at least this share of their events alike run the same program."""

OWN = ("compute", "spin", "memory", "graph")
"""Classes of events that are a rank's own work."""


@dataclass(frozen=True)
class Line:
    """The own line of a rank: its events by step and start, and how far the line had got ahead of each."""

    rank: int
    event: Rows
    ahead: Ints

    def __getitem__(self, part: slice | Flags) -> Line:
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
    lines = _lines(trace, attribution, only)
    measured = _measured(trace, attribution, lines, waiting, spinning, lost or {})
    for place, part, _, gap, run in _compared(measured):
        yield Longer(lines[place].line[part], gap, run)


@dataclass(frozen=True)
class Parts:
    """Both parts of some events of an own line, before they are compared; all shape (events,).

    Attributes:
        step, name: of each event.
        gap: own time of the gap ahead of it, ns.
        run: own time that it adds to the line, ns.
        spun: how long kernels of collectives waited beside that, ns.
    """

    step: Steps
    name: Rows
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
        parts: of the events from one place to another; they are ordered by step.
    """

    rank: int
    names: tuple[Rows, Ints]
    counts: Ints
    parts: Callable[[int, int], Parts]


def _compared(lines: Sequence[Measured]) -> Iterator[tuple[int, slice, Parts, Ints, Ints]]:
    """Place and part of a line, with by how much more than the peers' its gaps and events took; see ``Longer``."""
    programs = [program for program in _programs(lines) if len(program) > 1]
    counts = np.stack([line.counts for line in lines])
    begin = np.concatenate([np.zeros((len(lines), 1), dtype=np.int64), counts.cumsum(axis=1)], axis=1)
    for first, last in _together(counts.sum(axis=0)):
        for program in programs:
            some = [slice(begin[place, first], begin[place, last]) for place in program]
            parts = in_parallel(
                zip(program, some, strict=True),
                lambda of: lines[of[0]].parts(int(of[1].start), int(of[1].stop)),
                events=sum(part.stop - part.start for part in some),
            )
            yield from zip(program, some, parts, *_longer(parts), strict=True)


def _flags(steps: Sequence[int], size: int) -> Flags:
    """Is each step from -1 on one of these? Shape (size,)."""
    flags = np.zeros(size, dtype=np.bool_)
    flags[np.asarray(steps, dtype=np.int64) + 1] = True
    return flags


_EVENTS_AT_A_TIME = 500_000
"""Events of whole steps that are compared together: what is known of them takes ten times their memory."""


def _together(counts: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of places whose counts come to about as many events as are compared at a time."""
    first = total = 0
    for place, count in enumerate(counts.tolist(), start=1):
        total += count
        if total >= _EVENTS_AT_A_TIME or place == counts.size:
            yield first, place
            first, total = place, 0


def _longer(parts: Sequence[Parts]) -> tuple[list[Ints], list[Ints]]:
    """Gaps and runs of events of the same steps of ranks of one program, beyond the peers'."""
    same = _same([part.step for part in parts], [part.name for part in parts])
    shape = len(parts), 1 + max(int(groups.max(initial=-1)) for groups in same)
    gap, run, spun = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for row, (part, groups) in enumerate(zip(parts, same, strict=True)):
        gap[row, groups], run[row, groups], spun[row, groups] = part.gap, part.run, part.spun

    def compare(first: int) -> None:
        part = np.s_[:, first : first + _GROUPS_AT_A_TIME]
        slowed = spun[part].sum(axis=0) - spun[part] > spun[part]
        longer = _beyond_others(run[part])
        run[part] = np.where((longer < 0) & slowed, 0, longer)
        gap[part] = _beyond_others(gap[part])

    events = sum(part.step.size for part in parts)
    in_parallel(range(0, shape[1], _GROUPS_AT_A_TIME), compare, events=events)
    return tuple([times[row, groups] for row, groups in enumerate(same)] for times in (gap, run))  # type: ignore[return-value]


_GROUPS_AT_A_TIME = 1 << 15
"""Of what is the same on several ranks: a capture without steps is one step, whose copies would take all memory."""


def _whole(value: Floats) -> Ints:
    return np.rint(value).astype(np.int64)


def _beyond_others(value: Ints) -> Ints:
    """By how much each value is above the median of the others in its column; of two rows at least."""
    ordered, others = np.sort(value, axis=0), len(value) - 1

    def at(middle: int) -> Ints:  # without one of the values that are there, those not below it move down
        found: Ints = np.where(value > ordered[middle], ordered[middle], ordered[middle + 1])
        return found

    return _whole(value - (at((others - 1) // 2) + at(others // 2)) / 2)


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
    exposed = {
        rank: (split.transfer | split.wait | split.unsplit) - trace.fresh_union(rank, OWN)
        for rank, split in splits.items()
    }
    spinning = {rank: split.wait for rank, split in splits.items()}
    return _measured(trace, attribution, _lines(trace, attribution, only), exposed, spinning, {})


def lateness_of(lines: Sequence[Measured], steady: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """``own_lateness``, from the own lines of all ranks in the steps that count."""
    total: dict[int, int] = {}
    counted = {rank: _flags(steps, lines[0].counts.size) for rank, steps in steady.items()}
    for place, _, part, gap, run in _compared(lines):
        rank = lines[place].rank
        if rank not in counted:
            continue
        counts = counted[rank][part.step + 1]
        if counts.any():
            total[rank] = total.get(rank, 0) + int(gap[counts].sum() + run[counts].sum())
    return {rank: float(total[rank]) / len(steady[rank]) for rank in steady if rank in total}


def _same(steps: Sequence[Steps], names: Sequence[Rows]) -> list[Ints]:
    """What is the same part on several ranks of one program: a number for each event of each rank.

    Args:
        steps: of each rank the steps of its events; all of whole steps.
        names: of each rank the names of its events.
    """
    low = min(int(step.min(initial=0)) for step in steps)
    width = 1 + max(int(name.max(initial=0)) for name in names)
    work = [(step - low).astype(np.int64) * width + name for step, name in zip(steps, names, strict=True)]
    size = sum(codes.size for codes in work)
    found = in_parallel(work, _counted, events=size)
    code, count = _side_by_side(found)
    of_step = np.flatnonzero(np.diff(code // width, prepend=-1)) if code.size else code
    differ = (count != count[0]).any(axis=0)
    events = np.add.reduceat(count, of_step, axis=1) if code.size else count
    by_place = np.logical_or.reduceat(differ, of_step) if code.size else differ
    by_place &= (events == events[0]).all(axis=0)
    if by_place.any():
        steps_by_place = code[of_step[by_place]] // width
        work = [
            np.where(np.isin(codes // width, steps_by_place), codes // width * width, codes) for codes in work
        ]
        code, count = _side_by_side(in_parallel(work, _counted, events=size))
    first = np.cumsum(count.max(axis=0, initial=0)) - count.max(axis=0, initial=0)
    return in_parallel(work, lambda codes: _in_turn(codes, code, first), events=size)


def _counted(codes: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    code, count = np.unique(codes, return_counts=True)
    return code, count


def _side_by_side(found: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """The codes of all ranks, ascending, and how often each rank has each; shape (ranks, codes)."""
    code = np.unique(np.concatenate([codes for codes, _ in found]))
    count = np.zeros((len(found), code.size), dtype=np.int64)
    for row, (codes, counts) in enumerate(found):
        count[row, np.searchsorted(code, codes)] = counts
    return code, count


def _in_turn(codes: Ints, code: Ints, first: Ints) -> Ints:
    """The n-th event of each code gets the n-th number of it."""
    place = np.searchsorted(code, codes)
    order = np.argsort(
        place.astype(np.uint16) if code.size <= 1 << 16 else place, kind="stable"
    )  # radix sort
    count = np.bincount(place, minlength=code.size)
    made = np.empty(codes.size, dtype=np.int64)
    made[order] = np.repeat(first - np.cumsum(count) + count, count) + np.arange(codes.size)
    return made


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


@dataclass(frozen=True)
class _Own:
    """The own line of a rank, and the names (and how often each) of all of it, whatever steps are asked for."""

    line: Line
    names: tuple[Rows, Ints]
    counts: Ints


def _lines(trace: Trace, attribution: Attribution, only: Sequence[int] | None) -> list[_Own]:
    """The own lines, of some steps (None: all)."""
    step, name = attribution.step, trace.events["name"].to_numpy()
    size = attribution.steps.height + 1  # -1 is a step too
    wanted = None if only is None else _flags(only, size)

    def of_rank(rank: int) -> _Own:
        first, _ = trace.rows_of(rank)
        rows, _, _, ahead = _ordered(trace, rank)
        event = (first + rows).astype(np.int32)
        order = np.argsort(step[event], kind="stable")  # nearly in order, which a stable sort makes use of
        line = Line(rank, event[order], ahead[order])
        names = _counted(name[event])
        line = line if wanted is None else line[wanted[step[line.event] + 1]]
        return _Own(line, names, np.bincount(step[line.event] + 1, minlength=size))

    return in_parallel(trace.rank_numbers, of_rank, events=trace.events.height)


def _measured(
    trace: Trace,
    attribution: Attribution,
    lines: Sequence[_Own],
    waiting: Mapping[int, Intervals],
    spinning: Mapping[int, Intervals],
    lost: Mapping[int, Floats],
) -> list[Measured]:
    """The own lines by their parts; arguments as of ``longer_than_others``."""
    start, end, name = (trace.events[column].to_numpy() for column in ("start_ns", "end_ns", "name"))

    def parts(line: Line) -> Parts:
        begin, finish, step = start[line.event], end[line.event], attribution.step[line.event]
        gap_start, run_start = np.minimum(line.ahead, begin), np.clip(line.ahead, begin, finish)
        gap = begin - gap_start - waiting[line.rank].length_within(gap_start, begin)
        run, spun = finish - run_start, spinning[line.rank].length_within(run_start, finish)
        if line.rank in lost:
            computes = (trace.events["class"].gather(line.event) == "compute").to_numpy()
            run -= _whole(computes * lost[line.rank][step + 1] * spun)
        return Parts(step, name[line.event], gap, run, spun)

    def of_line(own: _Own) -> Measured:
        return Measured(own.line.rank, own.names, own.counts, lambda first, last: parts(own.line[first:last]))

    return [of_line(own) for own in lines]


def _ordered(trace: Trace, rank: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Rows, start and end of the events of a rank's own line, and how far it had got ahead of each.

    It begins with the first call of the rank's process, or without calls with its first event.
    """
    events = trace.events_of(rank)
    rows = np.flatnonzero(trace.is_class(rank, OWN))
    start, end = events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows]
    if ((start[1:] < start[:-1]) | (start[1:] == start[:-1]) & (end[1:] < end[:-1])).any():
        order = np.lexsort((end, start))
        rows, start, end = rows[order], start[order], end[order]
    if not rows.size:
        return rows, start, end, start
    begin = start[0]
    begin = min(begin, trace.first_calls.get(trace.process_of_rank[rank], begin))
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
        rows, start, _, ahead = _ordered(trace, rank)
        real = np.flatnonzero(start > ahead)
        gaps = Gaps(
            rank=np.full(real.size, rank),
            window=np.zeros(real.size, dtype=np.int64),
            start=ahead[real],
            end=start[real],
            event=first + rows[real],
        )
        pieces = pieces_of(graph, gaps, ends)
        node = np.clip(pieces.node, 0, graph.events - 1)
        waits = pieces.ran & (pieces.node >= 0) & (pieces.node < graph.events) & communicates[node]
        made[rank] = Intervals.union_of(pieces.start[waits], pieces.end[waits])
    return made
