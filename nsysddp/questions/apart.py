"""What the questions of one request share, of a run in shares: tables of ranks are made where their reports lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.questions import collectives, steps
from nsysddp.questions.attribution import Numbered, attribute, numbered
from nsysddp.questions.context import Context, context_of
from nsysddp.questions.own_time import lateness_of, own_lines
from nsysddp.questions.peers import Measured, Parts
from nsysddp.questions.rankwise import TABLES
from nsysddp.questions.steps import Selection
from nsysddp.questions.window import Window, Windows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.join.apart import Share, Shares
    from nsysddp.model.trace import Trace


@dataclass(frozen=True)
class Task:
    """A share with what only all ranks together tell.

    Attributes:
        share: some ranks.
        found: the steps of the run, and the ranges of these ranks.
        timed: their rows of ``collectives.timed``, row by row with the collectives of the share.
        selection: the part asked for.
        per: are its windows steps, or the capture?
    """

    share: Share
    found: Numbered
    timed: pl.DataFrame
    selection: Selection
    per: str


@dataclass(frozen=True)
class Told:
    """What is told of the ranks of a share.

    Attributes:
        tables: those of ``rankwise``.
        of_steps: the windows of all their steps.
        by_time: events placed in steps by time.
    """

    tables: dict[str, pl.DataFrame]
    of_steps: tuple[Window, ...]
    by_time: int


def context_of_run(run: Trace | Shares, selection: Selection) -> Context:
    """As ``context_of``, of a run that may be in shares: then ``rankwise`` tables are made share by share.

    The trace of such a context has only the events that may communicate.

    Raises:
        UsageError: the selection leaves nothing; NoGpuEvents: it holds no GPU event; ReportError: a share was lost.
    """
    from nsysddp.model.trace import Trace

    if isinstance(run, Trace):
        return context_of(run, selection)
    steps.check(run.trace, selection)
    told, (found, timed) = _told(run, selection, selection.per)
    of_steps = _windows(told)
    if selection.per == "step" and not of_steps and not selection.by_number:
        told, (found, timed) = _told(run, selection, "capture")
    trace = run.trace
    attribution = attribute(trace, found)
    windows, every = (
        steps.windows(trace, found, asked, of_steps, sum(part.by_time for part in told))
        for asked in (selection, Selection(per=selection.per))
    )
    return Context(
        trace=trace,
        selection=selection,
        attribution=attribution,
        windows=windows,
        every_window=every,
        timed=timed,
        splits=collectives.splits(trace, timed),
        keep=collectives.selected_events(trace, attribution, windows.per, selection),
        compare_own=partial(_compare_own, run, selection, windows.per, (found, timed)),
        made={
            name: pl.concat(part.tables[name] for part in told).sort("rank", maintain_order=True)
            for name in TABLES
        },
    )


_Known = tuple[Numbered, pl.DataFrame]
"""The steps of a run, and its ``collectives.timed``."""


def _told(run: Shares, selection: Selection, per: str) -> tuple[list[Told], _Known]:
    def known(trace: Trace) -> _Known:
        return numbered(trace), collectives.timed(trace)

    def task(share: Share, joined: _Known) -> Task:
        return _task(share, joined, selection, per)

    return run.map(tell, known, task)


def _task(share: Share, joined: _Known, selection: Selection, per: str) -> Task:
    found, timed = joined
    mine = pl.col("rank").is_in([int(lane.rank or 0) for lane in share.lanes])
    return Task(share, found.of(lane.process for lane in share.lanes), timed.filter(mine), selection, per)


def _windows(told: list[Told]) -> tuple[Window, ...]:
    """Of all ranks, in order; those of a rank stay together."""
    return tuple(
        sorted((window for part in told for window in part.of_steps), key=lambda window: window.rank)
    )


def tell(task: Task) -> Told:
    """What is told of the ranks of a share: done where its parts lie."""
    context = _context(task)
    tables = {name: make(context) for name, make in TABLES.items()}
    of_steps = context.every_window.windows if task.per == "step" else ()
    return Told(tables, of_steps, context.attribution.by_time)


def _context(task: Task) -> Context:
    """Of the ranks of a share."""
    trace, selection = task.share.trace(), task.selection
    attribution = attribute(trace, task.found)
    event = trace.collectives["event"]
    timed = task.timed.with_columns(event, trace.events["name"].gather(event))
    of_steps = steps.step_windows(trace, attribution)
    of_steps = of_steps if task.per == "step" else ()
    asked = steps.kept(of_steps, selection) if task.per == "step" else steps.capture_windows(trace, selection)
    return Context(
        trace=trace,
        selection=selection,
        attribution=attribution,
        windows=Windows(asked, task.per),
        every_window=Windows(of_steps, task.per),
        timed=timed,
        splits=collectives.splits(trace, timed),
        keep=collectives.selected_events(trace, attribution, task.per, selection),
    )


@dataclass(frozen=True)
class Lines:
    """A task: the own lines of the ranks of a share.

    Attributes:
        task: the share.
        only: steps that count.
        folder: where their parts are written to, for whoever asks to read; None: they are sent.
    """

    task: Task
    only: tuple[int, ...]
    folder: Path | None


@dataclass(frozen=True)
class Line:
    """The own line of a rank, of which the parts lie in a file, or here.

    Attributes:
        rank, names, counts: as of ``peers.Measured``.
        parts: the file, or an array: step, name and the columns of ``Parts``, shape (5, events).
    """

    rank: int
    names: tuple[NDArray[np.int32], NDArray[np.int64]]
    counts: NDArray[np.int64]
    parts: Path | NDArray[np.int64]

    def measured(self) -> Measured:
        """The line."""
        return Measured(self.rank, self.names, self.counts, self._work, self._parts)

    def _work(self, first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        step, name = self._table()[:2, first:last].astype(np.int32)
        return step, name

    def _parts(self, rows: NDArray[np.int32]) -> Parts:
        return Parts(*self._table()[2:, rows])

    def _table(self) -> NDArray[np.int64]:
        """All columns; those in a file are mapped for as long as they are looked at, so as not to fill memory."""
        if isinstance(self.parts, Path):
            size = int(self.counts.sum())
            return (
                np.memmap(self.parts, np.int64, "r", shape=(5, size)) if size else np.empty((5, 0), np.int64)
            )
        return self.parts


def measure(lines: Lines) -> list[Line]:
    """The own lines of the ranks of a share: done where its parts lie."""
    context = _context(lines.task)
    made = []
    for line in own_lines(context.trace, context.attribution, context.splits, lines.only):
        size = int(line.counts.sum())
        parts = np.stack(
            [*line.work(0, size), *vars(line.parts(np.arange(size, dtype=np.int32))).values()]
        ).astype(np.int64)
        where: Path | NDArray[np.int64] = parts
        if lines.folder is not None:
            where = lines.folder / f"{line.rank}.own"
            parts.tofile(where)
        made.append(Line(line.rank, line.names, line.counts, where))
    return made


def _compare_own(
    run: Shares, selection: Selection, per: str, joined: _Known, steady: Mapping[int, Sequence[int]]
) -> dict[int, float]:
    """``own_time.own_lateness``, of a run in shares.

    Raises:
        ReportError: a share was lost.
    """
    only = tuple(sorted({step for steps in steady.values() for step in steps}))
    with run.folder() as folder:
        made = run.each(measure, lambda share: Lines(_task(share, joined, selection, per), only, folder))
        lines = sorted((line for part in made for line in part), key=lambda line: line.rank)
        return lateness_of([line.measured() for line in lines], steady)
