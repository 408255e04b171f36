"""What the questions of one request share, of a run in shares: tables of ranks are made where their reports lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.questions import collectives, steps
from nsysddp.questions.attribution import Numbered, attribute, numbered
from nsysddp.questions.context import Context, context_of
from nsysddp.questions.rankwise import TABLES
from nsysddp.questions.steps import Selection
from nsysddp.questions.window import Window, Windows

if TYPE_CHECKING:
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
        whole_trace=run.whole,
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
        found, timed = joined
        ranks = [int(lane.rank or 0) for lane in share.lanes]
        return Task(
            share,
            found.of(lane.process for lane in share.lanes),
            timed.filter(pl.col("rank").is_in(ranks)),
            selection,
            per,
        )

    return run.map(tell, known, task)


def _windows(told: list[Told]) -> tuple[Window, ...]:
    """Of all ranks, in order; those of a rank stay together."""
    return tuple(
        sorted((window for part in told for window in part.of_steps), key=lambda window: window.rank)
    )


def tell(task: Task) -> Told:
    """What is told of the ranks of a share: done where its parts lie."""
    trace, selection = task.share.trace(), task.selection
    attribution = attribute(trace, task.found)
    event = trace.collectives["event"]
    timed = task.timed.with_columns(event, trace.events["name"].gather(event))
    of_steps = steps.step_windows(trace, attribution)
    of_steps = of_steps if task.per == "step" else ()
    asked = steps.kept(of_steps, selection) if task.per == "step" else steps.capture_windows(trace, selection)
    context = Context(
        trace=trace,
        selection=selection,
        attribution=attribution,
        windows=Windows(asked, task.per),
        every_window=Windows(of_steps, task.per),
        timed=timed,
        splits=collectives.splits(trace, timed),
        keep=collectives.selected_events(trace, attribution, task.per, selection),
    )
    tables = {name: make(context) for name, make in TABLES.items()}
    return Told(tables, of_steps, attribution.by_time)
