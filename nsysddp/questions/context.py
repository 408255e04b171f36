"""What the questions of one request share: the part of the run that is asked for, and answers that others need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.questions import collectives, steps
from nsysddp.questions.attribution import Attribution, attribute
from nsysddp.questions.steps import Selection
from nsysddp.questions.window import Windows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.model.result import Result
    from nsysddp.model.trace import Trace
    from nsysddp.questions.communicators import Known


@dataclass(frozen=True)
class Context:
    """What the questions of one request share, each part computed once and only if asked for.

    Attributes:
        trace: the run.
        selection: the part asked for.
        attribution: step and phase of every event.
        windows: the windows asked for.
        every_window: all windows of the run, whatever was asked for.
        timed: matched communication events with their times.
        splits: transfer, wait and unsplit time of each rank.
        keep: which events belong to the part asked for.
        compare_own: ``own_time.own_lateness`` by the steps of each rank that count, where the trace has only events
            that communicate (``questions.apart``).
        made: tables of ``questions.rankwise`` that are made already.
    """

    trace: Trace
    selection: Selection
    attribution: Attribution
    windows: Windows
    every_window: Windows
    timed: pl.DataFrame
    splits: Mapping[int, collectives.Split]
    keep: NDArray[np.bool_]
    compare_own: Callable[[Mapping[int, Sequence[int]]], dict[int, float]] | None = None
    made: dict[str, pl.DataFrame] = field(default_factory=dict)

    def of_ranks(self, name: str) -> pl.DataFrame:
        """A table that every rank's own events tell (``questions.rankwise``)."""
        if name not in self.made:
            from nsysddp.questions.rankwise import TABLES

            self.made[name] = TABLES[name](self)
        return self.made[name]

    @cached_property
    def used_steps(self) -> list[int]:
        """Steps that count, of those asked for: no warm-up on any rank, or all if nothing else; none without steps."""
        windows = [window for window in self.windows.windows if window.step >= 0]
        warm = {window.step for window in windows if window.is_warmup}
        every = {window.step for window in windows}
        return sorted(every - warm or every)

    @cached_property
    def graph(self) -> Graph:
        """The dependency graph; of a trace loaded with ``host_calls=True`` it knows the host's part."""
        from nsysddp.dependencies.graph import build

        return build(self.trace)

    def let_go_of_graph(self) -> None:
        """Keep the graph no longer, which takes much memory; whoever asks for it again has it made anew."""
        vars(self).pop("graph", None)

    @cached_property
    def paths(self) -> Result:
        """The critical path over all ranks of the steps asked for (see ``questions.critical_path``)."""
        from nsysddp.questions.critical_path import paths_of

        return paths_of(self)

    @property
    def decomposition(self) -> pl.DataFrame:
        """The table ``overlap``: the time of each rank and window, decomposed."""
        return self.of_ranks("overlap")

    @cached_property
    def analysis(self) -> Result:
        """The answer of ``questions.analysis``."""
        from nsysddp.questions.analysis import answer

        return answer(self)

    @cached_property
    def buckets(self) -> Result:
        """The answer of ``questions.buckets``."""
        from nsysddp.questions.buckets import buckets

        return buckets(self)

    @cached_property
    def contention(self) -> Result:
        """The answer of ``questions.contention``; of a trace loaded with ``shapes=True``."""
        from nsysddp.questions.contention import contention

        return contention(self)

    @cached_property
    def groups(self) -> Known:
        """The groups of ranks that communicate, with their roles and messages."""
        from nsysddp.questions.communicators import known_groups

        return known_groups(self)

    @cached_property
    def deciding(self) -> pl.DataFrame:
        """What decides how long each collective takes, latency or bytes (see ``questions.latency``)."""
        from nsysddp.questions.latency import what_decides

        return what_decides(self)

    @cached_property
    def idle(self) -> Result:
        """The answer of ``questions.idle``."""
        from nsysddp.questions.idle import idle

        return idle(self)

    @cached_property
    def diagnosis(self) -> Result:
        """The answer of ``questions.diagnosis``."""
        from nsysddp.questions.diagnosis import diagnose

        return diagnose(self)


def context_of(trace: Trace, selection: Selection | None = None) -> Context:
    """Everything the analyses share: attribution, windows, split communication.

    Raises:
        UsageError: the selection leaves nothing; NoGpuEvents: it holds no GPU event.
    """
    chosen = selection or Selection()
    attribution = attribute(trace)
    of_steps = steps.step_windows(trace, attribution)
    windows, every = (
        steps.windows(trace, attribution, asked, of_steps, attribution.by_time)
        for asked in (chosen, Selection(per=chosen.per))
    )
    timed = collectives.timed(trace)
    return Context(
        trace=trace,
        selection=chosen,
        attribution=attribution,
        windows=windows,
        every_window=every,
        timed=timed,
        splits=collectives.splits(trace, timed),
        keep=collectives.selected_events(trace, attribution, windows.per, chosen),
    )
