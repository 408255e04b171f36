"""In which step and phase was each GPU event launched?

Attribution is by launch: the step (phase) whose host range contains the start of the launch call, on the launching
thread first, else on exactly one other thread of the process, because autograd launches backward kernels from a thread
of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model import large
from nsysddp.model.errors import UsageError
from nsysddp.questions.host_ranges import Timeline
from nsysddp.questions.window import rank_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions.window import Window

    Times = NDArray[np.int64]


@dataclass(frozen=True)
class Numbered:
    """The steps of a run in order, and the ranges that are steps and phases.

    Attributes:
        steps: step_index, name, ordered by index.
        ranges: process, thread, start_ns, end_ns, name, step_index: the host ranges of the steps.
        phases: process, thread, phase, step_index (-1: none), start_ns, end_ns: phase ranges, ordered by process.
        truncated: step ranges left out because the profiler's stop cut them off.
    """

    steps: pl.DataFrame
    ranges: pl.DataFrame
    phases: pl.DataFrame
    truncated: int

    def of(self, processes: Iterable[int]) -> Numbered:
        """The same steps, with the ranges of some processes."""
        mine = pl.col("process").is_in(list(processes))
        return replace(self, ranges=self.ranges.filter(mine), phases=self.phases.filter(mine))


def numbered(trace: Trace) -> Numbered:
    """Which ranges are the steps of the run, and which its phases? Told by the ranges of all processes together."""
    ranges, truncated = _step_ranges(trace)
    steps = (
        ranges.group_by("step_index").agg(pl.col("name").first()).sort("step_index")
        if ranges.height
        else ranges.select("step_index", "name")
    )
    return Numbered(steps, ranges, _phase_ranges(trace, ranges), truncated)


@dataclass(frozen=True)
class Attribution(Numbered):
    """What every event was launched in, of the steps of the run.

    Attributes:
        step: index of the step of each event, row by row with the events; -1 if none.
        phase_range: row of ``phases`` of each event; -1 if none.
        launched: whether a launch row decided.
        by_time: events without a launch row, placed by time instead.
    """

    step: NDArray[np.int32]
    phase_range: NDArray[np.int32]
    launched: NDArray[np.bool_]
    by_time: int

    def phase_names(self, events: NDArray[Any] | slice = slice(None)) -> pl.Series:
        """Phase of each event (or of some; of event -1 none) as text; null if none."""
        of = self.phase_range[events]
        return _named_or_null(
            self.phases["phase"], of if isinstance(events, slice) else np.where(events >= 0, of, -1)
        )

    def in_phase(self, name: str) -> NDArray[np.bool_]:
        """Which events were launched in this phase?"""
        flags = np.append((self.phases["phase"] == name).fill_null(False).to_numpy(), False)
        found: NDArray[np.bool_] = flags[self.phase_range]  # -1 is the last
        return found

    def step_names(self, events: NDArray[Any] | slice = slice(None)) -> pl.Series:
        """Step name of each event (or of some); null if none."""
        return _named_or_null(self.steps["name"], self.step[events])


def _named_or_null(names: pl.Series, rows: NDArray[Any]) -> pl.Series:
    """The names in these rows; null where a row is -1."""
    return names.extend_constant(None, 1).gather(np.where(rows >= 0, rows, names.len()))


def attribute(trace: Trace, found: Numbered | None = None) -> Attribution:
    """In which step and phase was each GPU event launched?

    Events without a launch row are placed by time: in the window that contains their start; they are counted.

    Args:
        trace: the run, or some ranks of it.
        found: the steps and phases, where the trace is not all that they are told by.
    """
    found = found or numbered(trace)
    ranges, phases = found.ranges, found.phases
    size = trace.events.height
    if trace.launches is None:  # nothing tells what was launched in which range
        nowhere, never = np.broadcast_to(np.int32(-1), size), np.broadcast_to(np.False_, size)
        return Attribution(**vars(found), step=nowhere, phase_range=nowhere, launched=never, by_time=0)
    step, phase = (large.filled(size, -1, np.int32) for _ in range(2))
    launches = trace.launches
    launched = launches["launch_ns"].is_not_null().to_numpy()
    process_of_range, process_of_phase = ranges["process"].to_numpy(), phases["process"].to_numpy()
    numbered_phases = phases.with_row_index("row")

    def of_rank(rank: int) -> int:
        """Fill the rank's slices; returns how many events were placed by time."""
        first, last = trace.rows_of(rank)
        process = trace.process_of_rank[rank]
        of_process = ranges[np.flatnonzero(process_of_range == process)]
        known = np.flatnonzero(launched[first:last])
        if known.size:
            own = launches.slice(first, last - first)
            if known.size < last - first:
                own = own[known]
            at, thread = own["launch_ns"].to_numpy(), own["thread"].to_numpy()
            step[first:last][known] = _find(of_process, "step_index", thread, at, outermost=True)
            mine = numbered_phases[np.flatnonzero(process_of_phase == process)]
            phase[first:last][known] = _find(mine, "row", thread, at, outermost=False)
        missing = last - first - known.size
        if not of_process.height or not missing:
            return 0
        made = rank_windows(trace, rank, step)
        if not made:
            return 0
        rest = np.flatnonzero(~launched[first:last]) + first
        step[rest] = _by_time(made, trace.events["start_ns"].gather(rest).to_numpy())
        return missing

    by_time = sum(trace.each_rank(of_rank))
    return Attribution(**vars(found), step=step, phase_range=phase, launched=launched, by_time=by_time)


def _find(
    ranges: pl.DataFrame, value: str, thread: NDArray[Any], at: Times, *, outermost: bool
) -> NDArray[Any]:
    if not ranges.height:
        return np.full(at.shape, -1, dtype=np.int64)
    timeline = Timeline(
        ranges["thread"].to_numpy(),
        ranges["start_ns"].to_numpy(),
        ranges["end_ns"].to_numpy(),
        outermost=outermost,
    )
    found = timeline.find(thread, at)
    return np.append(ranges[value].to_numpy().astype(np.int64), -1)[found]


def _by_time(windows_of_rank: Sequence[Window], start: Times) -> NDArray[Any]:
    """Step whose window, made from the launched events, contains each event's start."""
    edges = np.array([window.start for window in windows_of_rank])
    place = np.searchsorted(edges, start, side="right") - 1
    index = np.array([window.step for window in windows_of_rank])
    closes = np.array([window.end for window in windows_of_rank])
    inside = (place >= 0) & (start < closes[np.maximum(place, 0)])
    return np.where(inside, index[np.maximum(place, 0)], -1)


def _named(trace: Trace, pattern: str) -> pl.DataFrame:
    """Ranges whose whole name matches; an open range ends where the next of its kind on its thread starts."""
    try:
        wanted = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"bad regular expression {pattern!r}: {error}") from error
    texts = trace.ranges["text"].unique().to_list()
    chosen = [text for text in texts if wanted.fullmatch(text)]
    return trace.ranges.filter(pl.col("text").is_in(chosen) & (pl.col("style") != "mark"))


def _step_ranges(trace: Trace) -> tuple[pl.DataFrame, int]:
    """process, thread, start_ns, end_ns, name, step_index of every whole step range; how many others were left out.

    Steps match over ranks by name; a name that comes again later in a process is another step. The same name at the
    same time on another thread is the same step.
    """
    named = _named(trace, trace.step_pattern)
    cut_off = _cut_off(trace, named)
    found = named.filter(~cut_off).sort("process", "text", "start_ns", "end_ns")
    occurrence = np.zeros(found.height, dtype=np.int64)
    texts = found.select("process", "text").to_struct("key").rle_id().to_numpy()
    thread, start, end = (found[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    for rows in np.split(np.arange(found.height), np.flatnonzero(np.diff(texts)) + 1):
        occurrence[rows] = _occurrences(thread[rows], start[rows], end[rows])
    counted = found.rename({"text": "name"}).with_columns(occurrence=occurrence)
    outer = _without_nested(counted)
    order = (
        outer.group_by("name", "occurrence")
        .agg(pl.col("start_ns").min())
        .sort("start_ns", "name", "occurrence")
        .with_row_index("step_index")
        .select("name", "occurrence", pl.col("step_index").cast(pl.Int64))
    )
    numbered = outer.join(order, on=["name", "occurrence"], how="left", maintain_order="left").select(
        "process", "thread", "start_ns", "end_ns", "name", "step_index"
    )
    return numbered, int(cut_off.sum())


def _occurrences(thread: NDArray[Any], start: Times, end: Times) -> NDArray[np.int64]:
    """Which occurrence of its name is each range of one process, in order of start?

    Ranges that overlap on one thread are one occurrence. Where several threads name their steps alike (one drives each
    GPU) the thread with the most of them leads: ranges of another thread are its occurrences one by one if they are as
    many and overlap so, else each is the one that it overlaps most; what overlaps none is an occurrence of its own.
    """
    blocks: dict[int, list[tuple[int, int]]] = {}  # of each thread: start, end of what overlaps
    block = np.empty(thread.size, dtype=np.int64)
    for row, (number, first, last) in enumerate(
        zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)
    ):
        mine = blocks.setdefault(number, [])
        if mine and first < mine[-1][1]:
            mine[-1] = (mine[-1][0], max(mine[-1][1], last))
        else:
            mine.append((first, last))
        block[row] = len(mine) - 1
    leading = max(blocks.values(), key=lambda mine: (len(mine), -mine[0][0]), default=[])
    begins = np.array([first for first, _ in leading])
    chosen: dict[tuple[int, int], tuple[int, int]] = {}
    for number, mine in blocks.items():
        one_by_one = len(mine) == len(leading) and all(map(_overlap, mine, leading))
        for place, (first, last) in enumerate(mine):
            low = max(int(np.searchsorted(begins, first, side="right")) - 1, 0)
            high = int(np.searchsorted(begins, last, side="left"))
            near = [span for span in leading[low:high] if _overlap(span, (first, last))]
            chosen[number, place] = (
                leading[place]
                if one_by_one
                else max(
                    near, key=lambda span: min(last, span[1]) - max(first, span[0]), default=(first, last)
                )
            )
    order = {span: place for place, span in enumerate(sorted(set(chosen.values())))}
    return np.array(
        [order[chosen[number, place]] for number, place in zip(thread.tolist(), block.tolist(), strict=True)],
        dtype=np.int64,
    )


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _cut_off(trace: Trace, steps: pl.DataFrame) -> pl.Series:
    """Which step ranges did the end of the capture cut off?

    nsys gives every range that is open when it stops the time of the stop as its end. So a step is cut off if a phase
    inside it ends at the very same nanosecond, and nothing of the process ends later; two calls that close ranges
    never take no time. Where they do, since earlier steps end with a range inside them too, the end tells nothing. The
    only step of a process is kept: there is nothing better.
    """
    others = trace.ranges.filter(pl.col("style") != "mark").join(
        steps, on=["process", "thread", "start_ns", "end_ns", "text"], how="anti"
    )
    ends = others.group_by("process", "thread", "end_ns").agg(pl.col("start_ns").max().alias("inner_ns"))
    latest = others.group_by("process").agg(pl.col("end_ns").max().alias("latest_ns"))
    return (
        steps.join(ends, on=["process", "thread", "end_ns"], how="left", maintain_order="left")
        .join(latest, on="process", how="left", maintain_order="left")
        .with_columns(at_once=(pl.col("inner_ns") >= pl.col("start_ns")).fill_null(False))
        .select(
            pl.col("at_once")
            & (pl.col("at_once").sum().over("process") == 1)
            & (pl.col("end_ns") == pl.max_horizontal("latest_ns", pl.col("end_ns").max()).over("process"))
            & (pl.col("start_ns") > pl.col("start_ns").min().over("process"))
        )
        .to_series()
    )


def _without_nested(ranges: pl.DataFrame) -> pl.DataFrame:
    """Step ranges that no other step range of their thread contains."""
    ordered = ranges.sort("process", "thread", "start_ns", "end_ns", descending=[False, False, False, True])
    reach = pl.col("end_ns").cum_max().shift(1).over("process", "thread")
    return ordered.filter(reach.is_null() | (pl.col("end_ns") > reach))


def _phase_ranges(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    made = []
    for name, pattern in trace.phase_patterns.items():
        made.append(_named(trace, pattern).with_columns(pl.lit(name).alias("phase")))
    phases = (
        pl.concat(made) if made else trace.ranges.clear().with_columns(pl.lit(None, pl.String).alias("phase"))
    ).sort("process", "start_ns", "end_ns", "phase")
    step = np.full(phases.height, -1, dtype=np.int64)
    process = phases["process"].to_numpy()
    for number in np.unique(process).tolist():
        rows = np.flatnonzero(process == number)
        mine = phases[rows]
        step[rows] = _find(
            steps.filter(pl.col("process") == number),
            "step_index",
            mine["thread"].to_numpy(),
            mine["start_ns"].to_numpy(),
            outermost=True,
        )
    return phases.with_columns(pl.Series("step_index", step)).select(
        "process", "thread", "phase", "step_index", "start_ns", "end_ns"
    )
