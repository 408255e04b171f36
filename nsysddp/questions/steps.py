"""When does each training step happen on each GPU, and which events were launched in it?

Definitions, "Step window". Attribution is by launch: the step (phase) whose host range contains the start of the
launch call, on the launching thread first, else on exactly one other thread of the process, because autograd launches
backward kernels from a thread of its own. Windows are time, they tile, and every event is clipped to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.errors import NoGpuEvents, UsageError
from nsysddp.model.markers import ASKED_PHASES
from nsysddp.model.names import ranks_text
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Times = NDArray[np.int64]

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

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


class Timeline:
    """Which host range holds an instant, on one thread or over the threads of a process.

    Args:
        thread: thread of each range.
        start, end: bounds of each range in ns.
        outermost: of nested ranges the outermost counts (steps), else the innermost (phases).
    """

    def __init__(self, thread: Times, start: Times, end: Times, *, outermost: bool) -> None:
        self._threads: dict[int, tuple[Times, NDArray[np.int64]]] = {}
        for number in np.unique(thread).tolist():
            rows = np.flatnonzero(thread == number)
            self._threads[int(number)] = _segments(rows, start[rows], end[rows], outermost)
        self._any = self._over_threads()

    def _over_threads(self) -> tuple[Times, NDArray[np.int64]]:
        """Segments over all threads: the range if exactly one thread is in one, else -1."""
        cuts = np.unique(
            np.concatenate([edges for edges, _ in self._threads.values()] or [np.empty(0, np.int64)])
        )
        count = np.zeros(cuts.size, dtype=np.int64)
        holder = np.full(cuts.size, -1, dtype=np.int64)
        for edges, ranges in self._threads.values():
            here = _at(edges, ranges, cuts)
            count += here >= 0
            holder = np.where(here >= 0, here, holder)
        return cuts, np.where(count == 1, holder, -1)

    def own(self, thread: int, at: Times) -> NDArray[np.int64]:
        """Range row on this thread that contains each instant; -1 if none."""
        if thread not in self._threads:
            return np.full(at.shape, -1, dtype=np.int64)
        return _at(*self._threads[thread], at)

    def find(self, thread: NDArray[Any], at: Times) -> NDArray[np.int64]:
        """Range row for each instant: the thread's own first, else of exactly one other thread."""
        found = np.full(at.shape, -1, dtype=np.int64)
        for number in self._threads:
            mine = np.flatnonzero(thread == number)
            found[mine] = self.own(number, at[mine])
        rest = np.flatnonzero(found < 0)
        found[rest] = _at(*self._any, at[rest])
        return found


def _at(edges: Times, ranges: NDArray[np.int64], at: Times) -> NDArray[np.int64]:
    # Before the first edge is no range.
    return np.append(np.int64(-1), ranges)[np.searchsorted(edges, at, side="right")]


def _segments(
    rows: NDArray[Any], start: Times, end: Times, outermost: bool
) -> tuple[Times, NDArray[np.int64]]:
    """Cut one thread's ranges into segments, each held by one range or none (-1)."""
    order = np.lexsort((rows, -end, start))
    rows, start, end = rows[order], start[order], end[order]
    if outermost and rows.size:
        reach = np.maximum.accumulate(end)
        outer = np.ones(rows.size, dtype=bool)
        outer[1:] = end[1:] > reach[:-1]
        rows, start, end = rows[outer], start[outer], end[outer]
    edges: list[int] = []
    holders: list[int] = []
    # End and row in order of opening; what is closed leaves when it comes to the top. Ends of all as a heap.
    opened: list[tuple[int, int]] = []
    ends: list[int] = []

    def mark(at: int, holder: int) -> None:
        if edges and edges[-1] == at:
            holders[-1] = holder
        else:
            edges.append(at)
            holders.append(holder)

    def close_until(limit: int) -> None:
        while ends and ends[0] <= limit:
            at = heappop(ends)
            while opened and opened[-1][0] <= at:
                opened.pop()
            mark(at, opened[-1][1] if opened else -1)

    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        close_until(first)
        opened.append((last, row))
        heappush(ends, last)
        mark(first, row)
    close_until(np.iinfo(np.int64).max)
    return np.asarray(edges, dtype=np.int64), np.asarray(holders, dtype=np.int64)


@dataclass(frozen=True)
class Attribution:
    """What every event was launched in.

    Attributes:
        step: index of the step of each event, row by row with the events; -1 if none.
        phase_range: row of ``phases`` of each event; -1 if none.
        steps: step_index, name, occurrence, ordered by index.
        ranges: step_index, process, start_ns, end_ns: the host ranges of the steps.
        phases: process, thread, phase, step_index (-1: none), start_ns, end_ns: phase ranges.
        launched: whether a launch row decided.
        by_time: events without a launch row, placed by time instead.
        truncated: step ranges left out because the profiler's stop cut them off.
    """

    step: NDArray[np.int32]
    phase_range: NDArray[np.int32]
    steps: pl.DataFrame
    ranges: pl.DataFrame
    phases: pl.DataFrame
    launched: NDArray[np.bool_]
    by_time: int
    truncated: int = 0

    def phase_names(self, events: NDArray[Any] | slice = slice(None)) -> pl.Series:
        """Phase of each event (or of some) as text; null if none."""
        return _named_or_null(self.phases["phase"], self.phase_range[events])

    def step_names(self, events: NDArray[Any] | slice = slice(None)) -> pl.Series:
        """Step name of each event (or of some); null if none."""
        return _named_or_null(self.steps["name"], self.step[events])


def _named_or_null(names: pl.Series, rows: NDArray[Any]) -> pl.Series:
    """The names in these rows; null where a row is -1."""
    return names.extend_constant(None, 1).gather(np.where(rows >= 0, rows, names.len()))


def attribute(trace: Trace) -> Attribution:
    """In which step and phase was each GPU event launched?

    Events without a launch row are placed by time: in the window that contains their start; they are counted.
    """
    ranges, truncated = _step_ranges(trace)
    phases = _phase_ranges(trace, ranges)
    steps = (
        ranges.group_by("step_index").agg(pl.col("name").first()).sort("step_index")
        if ranges.height
        else ranges.select("step_index", "name")
    )
    size = trace.events.height
    if trace.launches is None:  # nothing tells what was launched in which range
        nowhere, never = np.broadcast_to(np.int32(-1), size), np.broadcast_to(np.False_, size)
        return Attribution(nowhere, nowhere, steps, ranges, phases, never, 0, truncated)
    step = np.full(size, -1, dtype=np.int32)
    phase = np.full(size, -1, dtype=np.int32)
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
        made = _rank_windows(trace, rank, step)
        if not made:
            return 0
        rest = np.flatnonzero(~launched[first:last]) + first
        step[rest] = _by_time(made, trace.events["start_ns"].gather(rest).to_numpy())
        return missing

    by_time = sum(trace.each_rank(of_rank))
    return Attribution(step, phase, steps, ranges, phases, launched, by_time, truncated)


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


@dataclass(frozen=True)
class Window:
    """One window of one rank: ``[start, end)`` in ns, and the step it belongs to (-1: whole capture)."""

    rank: int
    step: int
    start: int
    end: int
    is_warmup: bool = False


@dataclass(frozen=True)
class Windows:
    """The windows that were asked for, and why fewer or others if so."""

    windows: tuple[Window, ...]
    per: str
    warnings: tuple[Warning, ...] = ()
    assumptions: tuple[str, ...] = ()


def _rank_windows(trace: Trace, rank: int, step: NDArray[Any]) -> list[Window]:
    """Tiling windows of one rank's steps (definitions, "Windows are time")."""
    first, last = trace.rows_of(rank)
    mine = step[first:last]
    if not (mine >= 0).any():
        return []
    events = trace.events_of(rank)
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    computes = trace.is_class(rank, ["compute", "spin"]) & (end > start)
    # Events that follow each other are mostly of one step: runs of them are few, and quickly grouped.
    heads = np.flatnonzero(np.diff(mine, prepend=mine[0] - 1))
    of_run, size = mine[heads], int(mine.max()) + 1

    def earliest(times: Times) -> Times:
        found = np.full(size + 1, _LATEST)  # the last place is for events in no step, which have step -1
        np.minimum.at(found, of_run, np.minimum.reduceat(times, heads))
        return found

    def latest(times: Times) -> Times:
        found = np.full(size + 1, _EARLIEST)
        np.maximum.at(found, of_run, np.maximum.reduceat(times, heads))
        return found

    opens, closes = earliest(start), latest(end)
    compute_opens = earliest(np.where(computes, start, _LATEST))
    compute_closes = latest(np.where(computes, end, _EARLIEST))
    numbers = np.flatnonzero(closes[:size] > _EARLIEST).tolist()
    starts: list[int] = []
    for place, number in enumerate(numbers):
        begin = int(opens[number])
        if (
            place
        ):  # a step without compute computes first at _LATEST and last at _EARLIEST, which bound nothing
            begin = max(begin, int(compute_closes[numbers[place - 1]]))
            begin = max(min(begin, int(compute_opens[number])), starts[-1])
        starts.append(begin)
    # A window ends where the next step begins; it does not stretch over steps in which the rank launched nothing.
    own = [max(int(closes[number]), begin) for number, begin in zip(numbers, starts, strict=True)]
    follows = [after == number + 1 for number, after in pairwise(numbers)]
    ends = [
        after if is_next else min(after, mine)
        for after, is_next, mine in zip(starts[1:], follows, own[:-1], strict=True)
    ] + [own[-1]]
    return [Window(rank, number, a, b) for number, a, b in zip(numbers, starts, ends, strict=True)]


def windows(trace: Trace, attribution: Attribution, selection: Selection) -> Windows:
    """The windows of every rank that the selection asks for.

    Raises:
        UsageError: no step or no time is left.
        NoGpuEvents: the time range holds no GPU event of any rank.
    """
    _check_range(trace, selection)
    by_number = selection.first_step is not None or selection.last_step is not None or selection.skip_warmup
    if selection.per == "capture":
        if by_number:
            raise UsageError(
                "the whole capture has no steps to choose from",
                do="leave out --per capture, or give --from and --to instead of --steps and --skip-warmup",
            )
        return Windows(
            tuple(_capture_window(trace, rank, selection) for rank in trace.rank_numbers), "capture"
        )
    if not attribution.steps.height or not (attribution.step >= 0).any():
        if by_number:
            (why,) = _no_steps(trace, attribution)
            raise UsageError(
                f"there are no steps to choose from: {why.message.partition(';')[0]}",
                do="leave out --steps and --skip-warmup",
            )
        made = tuple(_capture_window(trace, rank, selection) for rank in trace.rank_numbers)
        return Windows(made, "capture", _no_steps(trace, attribution))
    # Events without a launch were put into the windows, so they must not move them.
    by_launch = np.where(attribution.launched, attribution.step, -1)
    made_all: list[Window] = []
    warnings: list[Warning] = []
    empty = 0
    process_of_range, step_of_range = (
        attribution.ranges[name].to_numpy() for name in ("process", "step_index")
    )
    of_ranks = trace.each_rank(lambda rank: _with_warm_up(_rank_windows(trace, rank, by_launch)))
    for rank, mine in zip(trace.rank_numbers, of_ranks, strict=True):
        named = np.unique(step_of_range[process_of_range == trace.process_of_rank[rank]])
        empty += named.size - len(mine)
        made_all.extend(mine)
    if empty:
        warnings.append(
            Warning(
                "steps_without_gpu_events",
                empty,
                "step ranges in which a rank launched nothing have no window",
            )
        )
    if attribution.truncated:
        warnings.append(
            Warning(
                "truncated_step",
                attribution.truncated,
                "a last step that was still running when the profiler stopped is left out",
            )
        )
    warnings.extend(_missing_phases(trace, attribution))
    if attribution.by_time:
        warnings.append(
            Warning(
                "events_without_launch",
                attribution.by_time,
                "GPU events without a launch row were placed in the step window that contains their start",
            )
        )
    kept = [cut for window in made_all if _chosen(window, selection) and (cut := _cut(window, selection))]
    if not kept:
        raise UsageError(
            f"no step is left of {attribution.steps.height} (0:{attribution.steps.height})",
            do="choose another range with --steps, --skip-warmup, --from or --to",
        )
    warnings.extend(_without_window(trace, {window.rank for window in kept}, {w.rank for w in made_all}))
    return Windows(tuple(kept), "step", tuple(warnings))


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


def _missing_phases(trace: Trace, attribution: Attribution) -> tuple[Warning, ...]:
    """Phases of which no range is named, where there are steps."""
    named = set(attribution.phases["phase"].unique().to_list())
    missing = [name for name in ASKED_PHASES if name not in named]
    if not missing:
        return ()
    what = f"no range is named like {' or '.join(missing)}{_others(trace, '--phase-pattern NAME=REGEX')}"
    return (Warning("missing_phases", len(missing), what),)


def _no_steps(trace: Trace, attribution: Attribution) -> tuple[Warning, ...]:
    if trace.launches is None:
        reason = (
            "the report holds no launch calls (capture with --trace=cuda), so events cannot be put into steps"
        )
    elif untold := [one.message for one in trace.warnings if one.code in _THREADLESS]:
        reason = "; ".join(untold)
    elif attribution.steps.height:
        reason = "no GPU event was launched inside a step range"
    elif not any("nvtx" in one.capabilities for one in trace.inputs):
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


def _capture_window(trace: Trace, rank: int, selection: Selection) -> Window:
    """First event start to last event end of the rank; bounds that were given count exactly."""
    events = trace.events_of(rank)
    start = int(events["start_ns"].min()) if selection.from_ns is None else selection.from_ns  # type: ignore[arg-type]
    end = int(events["end_ns"].max()) if selection.to_ns is None else selection.to_ns  # type: ignore[arg-type]
    return Window(rank, -1, start, max(start, end))


def _check_range(trace: Trace, selection: Selection) -> None:
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
