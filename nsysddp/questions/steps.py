"""Which windows does a question ask about, and why are there fewer or others?

Definitions, "Step window". Windows are time, they tile, and every event is clipped to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.errors import NoGpuEvents, UsageError
from nsysddp.model.markers import ASKED_PHASES
from nsysddp.model.names import ranks_text
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.window import Window, Windows, rank_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution, Numbered


_THREADLESS = ("ranges_without_thread", "calls_without_thread")

WARM_UP_RATIO = 1.5
"""Leading steps longer than this times the median of the rest are warm-up."""


@dataclass(frozen=True)
class Selection:
    """Which part of the run is asked for.

    Attributes:
        per: ``step`` or ``capture``.
        from_ns, to_ns: cut on the common axis; None is open.
        first_step, last_step: half-open range of ``step_index``; None is open.
        skip_warmup: leading steps left out.
    """

    per: str = "step"
    from_ns: int | None = None
    to_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    skip_warmup: int = 0

    @property
    def by_number(self) -> bool:
        """Are steps chosen by their number?"""
        return self.first_step is not None or self.last_step is not None or self.skip_warmup > 0


def step_windows(trace: Trace, attribution: Attribution) -> tuple[Window, ...]:
    """The window of every step of every rank."""
    # Events without a launch were put into the windows, so they must not move them.
    by_launch = np.where(attribution.launched, attribution.step, -1)
    of_ranks = trace.each_rank(lambda rank: _with_warm_up(rank_windows(trace, rank, by_launch)))
    return tuple(window for mine in of_ranks for window in mine)


def capture_windows(trace: Trace, selection: Selection) -> tuple[Window, ...]:
    """Of every rank: first event start to last event end; bounds that were given count exactly."""
    low, high = selection.from_ns, selection.to_ns
    made = []
    for rank, first, last in trace.ranks.select("rank", "first_ns", "last_ns").iter_rows():
        start, end = first if low is None else low, last if high is None else high
        made.append(Window(rank, -1, start, max(start, end)))
    return tuple(made)


def kept(of_steps: Iterable[Window], selection: Selection) -> tuple[Window, ...]:
    """Those of all windows of steps that are asked for, cut to the time that is."""
    return tuple(
        cut for window in of_steps if _chosen(window, selection) and (cut := _cut(window, selection))
    )


def windows(
    trace: Trace, found: Numbered, selection: Selection, of_steps: Sequence[Window], by_time: int = 0
) -> Windows:
    """The windows of every rank that the selection asks for.

    Args:
        trace: the run; of its events nothing is asked.
        found: its steps.
        selection: which windows.
        of_steps: every window of a step.
        by_time: events that were placed in steps by time.

    Raises:
        UsageError: no step or no time is left.
        NoGpuEvents: the time range holds no GPU event of any rank.
    """
    check(trace, selection)
    if selection.per == "capture":
        return Windows(capture_windows(trace, selection), "capture")
    if not of_steps:
        if selection.by_number:
            (why,) = _no_steps(trace, found)
            raise UsageError(
                f"there are no steps to choose from: {why.message.partition(';')[0]}",
                do="leave out --steps and --skip-warmup",
            )
        return Windows(capture_windows(trace, selection), "capture", _no_steps(trace, found))
    warnings: list[Warning] = []
    named = found.ranges.select("process", "step_index").unique()["process"].value_counts()
    steps_of = dict(named.iter_rows())
    empty = sum(steps_of.get(trace.process_of_rank[rank], 0) for rank in trace.rank_numbers) - len(of_steps)
    if empty:
        warnings.append(
            Warning(
                "steps_without_gpu_events",
                empty,
                "step ranges in which a rank launched nothing have no window",
            )
        )
    if found.truncated:
        warnings.append(
            Warning(
                "truncated_step",
                found.truncated,
                "a last step that was still running when the profiler stopped is left out",
            )
        )
    warnings.extend(_missing_phases(trace, found))
    if by_time:
        warnings.append(
            Warning(
                "events_without_launch",
                by_time,
                "GPU events without a launch row were placed in the step window that contains their start",
            )
        )
    asked = kept(of_steps, selection)
    if not asked:
        raise UsageError(
            f"no step is left of {found.steps.height} (0:{found.steps.height})",
            do="choose another range with --steps, --skip-warmup, --from or --to",
        )
    warnings.extend(_without_window(trace, {window.rank for window in asked}, {w.rank for w in of_steps}))
    return Windows(asked, "step", tuple(warnings))


def _without_window(trace: Trace, shown: set[int], with_steps: set[int]) -> Iterator[Warning]:
    """Ranks of which the windows tell nothing: the steps of others are not theirs."""
    missing = [rank for rank in trace.rank_numbers if rank not in shown]
    if missing:
        why = (
            "no step lies in the part asked for"
            if with_steps.issuperset(missing)
            else "nothing was launched inside a step range of the process (mark steps on every rank, or use "
            "--per capture)"
        )
        yield Warning("rank_without_window", len(missing), f"no figures of {ranks_text(missing)}: {why}")


def steady(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of windows (``rank``, ``is_warmup``) without warm-up; of a rank that shows nothing else, all of its rows."""
    return frame.filter(~pl.col("is_warmup") | pl.col("is_warmup").all().over("rank"))


def _others(trace: Trace, option: str) -> str:
    """How other ranges are named that repeat, and the option that takes such a name."""
    if not trace.other_ranges:
        return f" (give {option})"
    return f" (ranges that repeat: {', '.join(trace.other_ranges)}; give one with {option})"


def _missing_phases(trace: Trace, found: Numbered) -> tuple[Warning, ...]:
    """Phases of which no range is named, where there are steps."""
    named = set(found.phases["phase"].unique().to_list())
    missing = [name for name in ASKED_PHASES if name not in named]
    if not missing:
        return ()
    what = f"no range is named like {' or '.join(missing)}{_others(trace, '--phase-pattern NAME=REGEX')}"
    return (Warning("missing_phases", len(missing), what),)


def _no_steps(trace: Trace, found: Numbered) -> tuple[Warning, ...]:
    if trace.launches is None:
        reason = (
            "the report holds no launch calls (capture with --trace=cuda), so events cannot be put into steps"
        )
    elif untold := [warning.message for warning in trace.warnings if warning.code in _THREADLESS]:
        reason = "; ".join(untold)
    elif found.steps.height:
        reason = "no GPU event was launched inside a step range"
    elif not any("nvtx" in report.capabilities for report in trace.inputs):
        reason = "the report holds no NVTX ranges (capture with --trace=cuda,nvtx and mark steps)"
    else:
        reason = f"no NVTX range is named like a step{_others(trace, '--step-pattern')}"
    return (Warning("no_steps", 1, f"{reason}; the whole capture is one window"),)


def _chosen(window: Window, selection: Selection) -> bool:
    first = max(selection.first_step or 0, selection.skip_warmup)
    return window.step >= first and (selection.last_step is None or window.step < selection.last_step)


def _cut(window: Window, selection: Selection) -> Window | None:
    start = window.start if selection.from_ns is None else max(window.start, selection.from_ns)
    end = window.end if selection.to_ns is None else min(window.end, selection.to_ns)
    if end <= start and not (window.start == window.end == start == end):
        return None
    return Window(window.rank, window.step, start, end, window.is_warmup)


def _with_warm_up(windows_of_rank: Sequence[Window]) -> list[Window]:
    """Name the leading steps that are longer than 1.5 x the median of the rest."""
    lengths = [window.end - window.start for window in windows_of_rank]
    warm = 0
    while warm < len(lengths) - 1 and lengths[warm] > WARM_UP_RATIO * float(np.median(lengths[warm + 1 :])):
        warm += 1
    return [
        Window(window.rank, window.step, window.start, window.end, number < warm)
        for number, window in enumerate(windows_of_rank)
    ]


def check(trace: Trace, selection: Selection) -> None:
    """Refuse what no run can be asked, and a time in which this one has no event.

    Raises:
        UsageError: steps of the capture, or no time; NoGpuEvents: no GPU event of any rank lies in it.
    """
    if selection.per == "capture" and selection.by_number:
        raise UsageError(
            "the whole capture has no steps to choose from",
            do="leave out --per capture, or give --from and --to instead of --steps and --skip-warmup",
        )
    low, high = selection.from_ns, selection.to_ns
    if low is not None and high is not None and high <= low:
        raise UsageError(
            f"the time range {ms(low):g} to {ms(high):g} ms is empty", do="give --from smaller than --to"
        )
    first = int(trace.ranks["first_ns"].min())  # type: ignore[arg-type]
    last = int(trace.ranks["last_ns"].max())  # type: ignore[arg-type]
    if (low is not None and low >= last) or (high is not None and high <= first):
        shown = (
            f"{'start' if low is None else f'{ms(low):g}'} to {'end' if high is None else f'{ms(high):g}'} ms"
        )
        raise NoGpuEvents(
            f"there is no GPU event in {shown}; the capture has events from {ms(first):.3f} to {ms(last):.3f} ms",
            do="choose --from and --to inside that range",
        )
