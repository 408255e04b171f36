"""Many large reports -> shares: what communicates is joined, everything else stays with its report.

What a rank waited for depends on the others only by the arrivals at its collectives. So the join needs of every report
the events that may communicate (``ingest.brief``); with what it finds, each report's events can be put on the axis of
the run wherever its part lies, a few reports at a time: a *share*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl

from nsysddp.execute.executor import Executor, Lost
from nsysddp.ingest.brief import brief, may_communicate
from nsysddp.ingest.part import Notes, Part
from nsysddp.ingest.reading import Source, taken
from nsysddp.join.events import Events
from nsysddp.join.load import Asked, Run, asked_for, load_together
from nsysddp.join.parts import lost, read_apart, sorted_out
from nsysddp.join.ranks import Lanes
from nsysddp.join.sharing import ranks_of_one_gpu
from nsysddp.model import schema
from nsysddp.model.errors import ReportError
from nsysddp.model.scratch import scratch_folder
from nsysddp.model.trace import Missing, Trace

if TYPE_CHECKING:
    from nsysddp.ingest.part import Wanted
    from nsysddp.join.drift import Line
    from nsysddp.join.identity import Lane

K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")

_MOST_KERNELS = 1_000_000
"""Reports of a share have no more together, unless one alone has."""

_FEWEST_KERNELS, _SHARES = 100_000, 8
"""Shares are as many as this, so that several workers are busy, unless they would be smaller than that."""


@dataclass(frozen=True)
class Share:
    """Some reports of a run, and what all reports together tell of them; can be sent to another process.

    Attributes:
        sources: their parts.
        places: of each its first process, clock and shift (``Part``).
        lanes: their ranks, in order.
        lines: the corrections of the clocks of the ranks.
        wanted: what was read.
        brief: the run with only the ranks of these reports and only the events that may communicate, without ranges.
    """

    sources: tuple[Source, ...]
    places: tuple[tuple[int, int, int], ...]
    lanes: tuple[Lane, ...]
    lines: dict[int, Line]
    wanted: Wanted
    brief: Trace

    def trace(self) -> Trace:
        """The run with only these ranks, and all their events; steps and phases are told beside it.

        Raises:
            ReportError: a report had to be read again and cannot be, or is another one now.
        """
        parts = [source.part() for source in self.sources]
        for part, (first, clock, shift) in zip(parts, self.places, strict=True):
            part.first_process, part.clock, part.shift = first, clock, shift
        events = Events(parts, Lanes(self.lanes), self.wanted.rules, Notes())
        names = zip(events.names["group"], events.names["text"], strict=True)
        rows = np.flatnonzero(may_communicate(names, self.wanted.rules)[events.columns["name"]])
        if rows.size != self.brief.events.height:
            raise ReportError("changed while it was read", file=self.sources[0].task.path)
        events.class_code[rows] = self.brief.events["class"].to_physical().to_numpy()
        events.move(self.lines)
        known = {name: number for number, name in enumerate(self.brief.names.select("group", "text").rows())}
        code = np.array([known[name] for name in events.names.select("group", "text").rows()], dtype=np.int32)
        events.columns["name"] = code[events.columns["name"]]
        row = rows[self.brief.collectives["event"].to_numpy()]
        return replace(
            self.brief,
            events=events.frame(),
            launches=events.launch_frame(self.lines),
            collectives=self.brief.collectives.with_columns(event=pl.Series(row, dtype=pl.Int64)),
            _cache={},
        )


@dataclass
class Shares:
    """A run in shares.

    Attributes:
        asked: what was asked for.
        executor: who reads reports, and works on shares.
        sources: the parts, in order of the reports.
        missing: reports that could not be read, or whose share was lost.
    """

    asked: Asked
    executor: Executor
    sources: Sequence[Source]
    missing: tuple[Missing, ...]
    _run: Run = field(init=False)

    def __post_init__(self) -> None:
        self._join()

    def _join(self) -> None:
        rules = self.asked.wanted.rules
        self._run = self._run_of(
            [
                taken(source.brief, source.task.path) if source.brief else brief(source.part(), rules)
                for source in self.sources
            ]
        )
        assert self.trace.events.height
        for part in self._run.parts:  # joined: what is left is who and where
            part.ranges = part.operations = part.launches = None
        self.sources = [replace(source, brief=b"") for source in self.sources]

    def _run_of(self, parts: list[Part]) -> Run:
        return Run(parts, self.missing, self.asked.wanted, Notes(), self.asked.clock_tolerance_ns)

    @property
    def trace(self) -> Trace:
        """The run with only the events that may communicate; all else is of all events."""
        return self._run.trace

    def whole(self) -> Trace:
        """The run with all its events, in this process."""
        return self._run_of([source.part() for source in self.sources]).trace

    def map(
        self, work: Callable[[S], T], known: Callable[[Trace], K], task: Callable[[Share, K], S]
    ) -> tuple[list[T], K]:
        """The result of ``work`` for each share, in order of the reports.

        Where a share is lost, its reports are missing: the rest is joined anew and worked on again.

        Args:
            work: a function of a module.
            known: what the run tells that tasks are made with.
            task: what is to be worked on.

        Returns:
            The results, and what was known of the run as it was then.

        Raises:
            ReportError: a share is lost, and none of the run may be missing.
        """
        while True:
            shares, told = self._shares(), known(self.trace)
            tasks = [task(share, told) for share in shares]
            made = self.executor.map(work, tasks, _nothing)
            found = [
                lost(result, source.task.path) if isinstance(result, Lost) else source
                for result, share in zip(made, shares, strict=True)
                for source in share.sources
            ]
            paths = [source.task.path for source in self.sources]
            left, gone = sorted_out(paths, found, self.asked.strict)
            if not gone:
                return [result for result in made if not isinstance(result, Lost)], told
            kept = {source.task.number for source in left}
            self.sources = [source for source in self.sources if source.task.number in kept]
            self.missing += gone
            self._join()

    def each(self, work: Callable[[S], T], task: Callable[[Share], S]) -> list[T]:
        """The result of ``work`` for each share, in order of the reports, none of which may be lost.

        Raises:
            ReportError: one is.
        """
        shares, made = self._shares(), []
        for share, result in zip(
            shares, self.executor.map(work, [task(share) for share in shares], _nothing), strict=True
        ):
            if isinstance(result, Lost):
                raise lost(result, share.sources[0].task.path)
            made.append(result)
        return made

    @contextmanager
    def folder(self) -> Iterator[Path | None]:
        """A folder that workers see too, which goes away; None if none is known."""
        if self.asked.cache is None and self.asked.place.scheduler is not None:
            yield None
            return
        with scratch_folder(self.asked.cache) as found:
            yield found.absolute()

    def _shares(self) -> list[Share]:
        trace, ranks = self.trace, self._run.ranks
        kernels = [sum(part.events.kernels) for part in self._run.parts]
        most = min(max(sum(kernels) // _SHARES, _FEWEST_KERNELS), _MOST_KERNELS)
        share_of, size = np.zeros(len(kernels), dtype=np.int64), 0
        for number, count in enumerate(kernels):
            begins = number > 0 and size + count > most
            size = count if begins else size + count
            share_of[number] = share_of[number - 1] + begins if number else 0
        bounds = np.searchsorted(share_of, np.arange(int(share_of[-1]) + 2))
        lanes: list[list[Lane]] = [[] for _ in bounds[1:]]
        for lane in ranks.lanes:
            lanes[share_of[lane.report]].append(lane)
        shares = []
        for first, last, mine in zip(bounds[:-1].tolist(), bounds[1:].tolist(), lanes, strict=True):
            parts = self._run.parts[first:last]
            numbers = [int(lane.rank or 0) for lane in mine]
            shares.append(
                Share(
                    sources=tuple(self.sources[first:last]),
                    places=tuple((part.first_process, part.clock, part.shift) for part in parts),
                    lanes=tuple(replace(lane, report=lane.report - first) for lane in mine),
                    lines={number: self._run.line_of_rank[number] for number in numbers},
                    wanted=self.asked.wanted,
                    brief=_of_ranks(trace, numbers, [lane.process for lane in mine]),
                )
            )
        return shares


def _nothing(_: object) -> None:
    """Of shares no progress is shown: they take less than reading."""


def _of_ranks(trace: Trace, ranks: Sequence[int], processes: Sequence[int]) -> Trace:
    """Some ranks of a run, without ranges and NCCL's calls: the join has used them up."""
    mine = np.isin(trace.events["rank"].to_numpy(), ranks)
    event = trace.collectives["event"].to_numpy()
    chosen = np.flatnonzero(mine[event])
    place = np.cumsum(mine) - 1
    of_process = pl.col("process").is_in(list(processes))
    return replace(
        trace,
        ranks=trace.ranks.filter(pl.col("rank").is_in(list(ranks))),
        processes=trace.processes.filter(of_process),
        events=trace.events[np.flatnonzero(mine)],
        ranges=trace.ranges.clear(),
        operations=trace.operations.clear(),
        collectives=trace.collectives[chosen].with_columns(
            event=pl.Series(place[event[chosen]], dtype=pl.Int64),
            ready_peers=pl.lit(None, dtype=schema.COLLECTIVES.dtypes["ready_peers"]),
        ),
        launches=None,
        inputs=(),
        warnings=(),
        assumptions=(),
        missing=(),
        process_of_rank={rank: trace.process_of_rank[rank] for rank in ranks},
        _cache={},
    )


@contextmanager
def load_apart(*reports: Any, **how: Any) -> Iterator[Trace | Shares]:
    """A run, in shares where its reports are many or large; arguments as of ``load``.

    Ranks of one GPU are compared event by event, so that a run with such is no run in shares.
    """
    asked = asked_for(*reports, **how)
    if not asked.place.is_much(asked.paths):
        yield load_together(asked)
        return
    with ExitStack() as stack:
        needs_folder = asked.cache is None and asked.place.scheduler is None
        executor = stack.enter_context(asked.place.executor())
        sources, missing = read_apart(
            asked.paths,
            asked.wanted,
            executor,
            stack.enter_context(scratch_folder()) if needs_folder else None,
            cache=asked.cache,
            strict=asked.strict,
            progress=asked.progress,
        )
        shares = Shares(asked, executor, sources, missing)
        yield shares.whole() if ranks_of_one_gpu(shares.trace.ranks) else shares
