"""Why was each GPU idle, instant by instant?

Definitions, ``idle = |W - P - C - M - G|``. An idle gap ends with an event; walking back from that event along the
binding predecessors of ``graph`` until the gap's start tells what it hung on at each instant, so the pieces of a gap
tile it, and those of all gaps tile the idle time (asserted)::

    host           [launch]   host gap   [launch e]
    GPU   ████████│                                 │██ e ██
                   gap: host gap, call, launch latency       all ``launch_late``

Causes:

    launch_late         the event was launched late: a call, the host between two calls (``host_gap``), or the latency
                        of the launch itself
    event_wait          latency behind a CUDA event that it waited for, or the event ran on another rank of the process
    communication_wait  the same, or a synchronising call, where what was awaited is communication
    memory_copy         the same where it is a copy or memset, or a call that copies and blocks
    synchronisation     the host was in, or came back from, a call that waits for the GPU
    allocation          the host was in, or came back from, a call that allocates or frees memory
    stream_latency      from one event to the next in its queue
    other_process       the event had been launched and had all it needs, and another process ran on the same GPU
    unexplained         the same, and nothing that the capture shows ran: not the start-up of a kernel
    end_of_work         nothing came any more
    unknown             before the rank's first recorded call, without launch row, or inside a CUDA graph

**Consequences.** A call that waits for the GPU takes the host's lead away: the launches after it come late until the
host is ahead again. So late launches after such a call are its consequence, not a cause of their own, as long as no
event since had to wait for the GPU for more than 10 us, and at most for as long as the call had blocked the host
(without it the host would have been that much earlier). A single host piece longer than ``LONG_HOST_NS`` keeps its own
name: a sleep or a data loader is a cause whatever preceded it. Memory that is allocated or freed, and copies of
pageable memory, hold the host for as long as their call takes, whether or not it is known to have waited for the GPU.

**Start-up or not.** A device that is free starts what is ready within ``START_UP_NS``, and what is launched within
``LAUNCH_NS``. What takes longer is neither latency nor a matter of many short kernels. Where another rank of the trace
ran on the same physical GPU in that time it is the other process, else it is unexplained: a process that was not
captured, preemption, or a wait that is not recorded. A host that launches late stays the cause of a gap, whoever used
the GPU meanwhile.

**Launch queue.** Depth = events launched (the call returned) and not yet started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS, LAUNCH_NS, START_UP_NS, Edge, Graph
from nsysddp.dependencies.host import Blocking, blocking_kind
from nsysddp.join.sharing import ranks_of_one_gpu
from nsysddp.model import schema
from nsysddp.model.errors import AnalysisError
from nsysddp.model.intervals import Intervals
from nsysddp.model.result import Result
from nsysddp.model.units import NS_PER_MS
from nsysddp.questions.api_calls import is_allocation
from nsysddp.questions.gaps import Gaps, Pieces, assert_tiling, cut_where, length_of_runs, pieces_of
from nsysddp.questions.idle.launch_queue import launch_queue
from nsysddp.questions.idle.tables import IDLE, IDLE_CAUSES, IDLE_STEP, LAUNCH_QUEUE, LAUNCH_QUEUE_STEP
from nsysddp.questions.idle.words import findings_of, warnings_of
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

LONG_HOST_NS = NS_PER_MS
"""A single host piece longer than this is a cause of its own."""

CAUSE = pl.Enum(list(IDLE_CAUSES))


def idle(context: Context) -> Result:
    """Why was each GPU idle, instant by instant, and how deep was its launch queue?

    Args:
        context: of a trace loaded with ``host_calls=True``; without, most gaps are ``unknown``.

    Returns:
        The tables ``idle``, ``idle_step``, ``launch_queue`` and ``launch_queue_step``.

    Raises:
        AnalysisError: the pieces do not tile the idle time.
    """
    graph = context.graph
    gaps = _gaps(context)
    pieces = pieces_of(graph, gaps)
    waits = ~pieces.ran & (pieces.node >= 0) & (pieces.node < graph.events)
    pieces, shared = cut_where(gaps, pieces, _other_processes(context.trace), waits)
    assert_tiling(gaps, pieces)
    named = _named(context, graph, gaps, pieces, shared)
    queue, queue_step = launch_queue(context, _window_frame(context))
    frames = {
        "idle": IDLE.check(named),
        "idle_step": _per_window(context, named),
        "launch_queue": queue,
        "launch_queue_step": queue_step,
    }
    return Result(
        context.trace,
        frames,
        findings=findings_of(frames["idle_step"]),
        assumptions=(
            "late launches after a call that waited for the GPU are its consequence, up to the time that it had "
            "blocked the host",
            "profiling itself lengthens host pieces",
        ),
        warnings=warnings_of(context.trace, named),
    )


# --- gaps -----------------------------------------------------------------------------------------------------


def _gaps(context: Context) -> Gaps:
    """``W - P - C - M - G`` of every window, as intervals with the event that ended each."""
    trace = context.trace
    parts: list[list[Ints]] = []
    for rank in trace.rank_numbers:
        numbers = np.array(
            [n for n, window in enumerate(context.windows.windows) if window.rank == rank], dtype=np.int64
        )
        windows = [context.windows.windows[number] for number in numbers]
        opens = np.array([window.start for window in windows], dtype=np.int64)
        closes = np.array([window.end for window in windows], dtype=np.int64)
        if not opens.size:
            continue
        busy = trace.union(rank, schema.CLASSES)
        free = busy.complement(int(opens[0]), int(closes[-1]))
        cut = Intervals(opens, closes) & free  # touching windows stay apart
        real = cut.end > cut.start
        start, end = cut.start[real], cut.end[real]
        first, last = trace.rows_of(rank)
        following = first + np.searchsorted(trace.events_of(rank)["start_ns"].to_numpy(), end, side="left")
        parts.append(
            [
                np.full(start.size, rank),
                numbers[np.searchsorted(opens, start, side="right") - 1],
                start,
                end,
                np.where(following < last, following, -1),
            ]
        )
    columns = (
        [np.concatenate(column) for column in zip(*parts, strict=True)]
        if parts
        else [np.empty(0, np.int64)] * 5
    )
    return Gaps(*columns)


def _other_processes(trace: Trace) -> dict[int, Intervals]:
    """Per rank when other ranks ran on its GPU; without ranks whose clocks are in doubt, or that share with nobody."""
    known = trace.ranks.filter(pl.col("clock_residual_ns").fill_null(0) <= trace.clock_tolerance_ns)
    ran: dict[int, Intervals] = {}
    for group in ranks_of_one_gpu(known):
        for rank in group:
            ran[rank] = Intervals.empty()
            for other in group:
                ran[rank] = ran[rank] if other == rank else ran[rank] | trace.union(other, schema.CLASSES)
    return ran


# --- causes -----------------------------------------------------------------------------------------------------

_ACTIVITIES = ("nothing", "latency", "host_gap", "call", "sync", "other_rank")
_NOTHING, _LATENCY, _HOST_GAP, _CALL, _SYNC, _OTHER_RANK = range(len(_ACTIVITIES))
_LAUNCH, _EVENT, _COMM, _MEMORY, _SYNCHRONISED, _STREAM, _ALLOCATED, _SHARED, _UNEXPLAINED, _END, _UNKNOWN = (
    range(len(IDLE_CAUSES))
)


def _named(context: Context, graph: Graph, gaps: Gaps, pieces: Pieces, shared: Flags) -> pl.DataFrame:
    """The rows of ``IDLE``; ``shared``: another process ran on the GPU in the piece."""
    trace = context.trace
    node = pieces.node
    is_event = (node >= 0) & (node < graph.events)
    is_call = node >= graph.events
    edge = np.where(node >= 0, graph.edge[node], Edge.NONE)
    line = np.full(node.size, -1, dtype=np.int64)
    line[is_call] = graph.line_of(node[is_call])

    activity = np.select(
        [
            is_event & pieces.ran,
            is_call & pieces.ran & (edge == Edge.SYNC),
            is_call & pieces.ran,
            is_call & (edge != Edge.NONE),
            is_event & (edge != Edge.NONE),
        ],
        [_OTHER_RANK, _SYNC, _CALL, _HOST_GAP, _LATENCY],
        _NOTHING,
    )
    event = np.where(is_event, node, 0)
    activity[is_event & graph.queues.inside_graph[event] & ~pieces.ran] = _NOTHING
    # Latency is short: where it is not, the event was still being launched, or nothing says when it was.
    waited = length_of_runs(pieces)
    long = (activity == _LATENCY) & (edge != Edge.LAUNCH) & (waited > LATENCY_NS)
    launcher = graph.lines.launcher[event]
    launching = long & (launcher >= 0)
    launching[launching] = graph.lines.end[launcher[launching]] > graph.begin[event[launching]]
    activity[launching] = _CALL
    line[launching] = launcher[launching]
    activity[long & (launcher < 0)] = _NOTHING
    by_event = activity == _LATENCY
    cause = np.select(
        [
            node < 0,
            activity == _NOTHING,
            (activity == _OTHER_RANK) | (by_event & (edge == Edge.EVENT)),
            activity == _SYNC,
            by_event & (edge == Edge.STREAM),
        ],
        [_END, _UNKNOWN, _EVENT, _SYNCHRONISED, _STREAM],
        _LAUNCH,
    )

    # Nor does a free device take long to start what is ready: then something else kept it.
    longest = np.where(edge == Edge.LAUNCH, LAUNCH_NS, START_UP_NS)
    of_graph = trace.events["in_graph"].fill_null(False) | (trace.events["class"] == "graph")
    kept = by_event & (waited > longest) & ~of_graph.to_numpy()[event]
    cause[kept & shared] = _SHARED
    cause[kept & ~shared & (length_of_runs(pieces, shared) > longest)] = _UNEXPLAINED

    # Calls that hold the host by themselves: no matter what they also waited for, and how long.
    allocates, copies = _allocating_and_copying(graph)
    holds = (allocates | copies) & (graph.lines.end[:] - graph.lines.start[:] > LAUNCH_NS)
    calling = np.flatnonzero(((activity == _CALL) | (activity == _SYNC)) & (line >= 0))
    cause[calling[allocates[line[calling]]]] = _ALLOCATED
    cause[calling[(copies & holds)[line[calling]] & (cause[calling] == _LAUNCH)]] = _MEMORY

    awaited = np.full(node.size, -1, dtype=np.int64)
    hung = (cause == _EVENT) & by_event | (cause == _SYNCHRONISED)
    awaited[hung] = graph.before[node[hung]]
    awaited[activity == _OTHER_RANK] = node[activity == _OTHER_RANK]

    # Which synchronising call a late launch is the consequence of, in whole or in part.
    held = (activity == _SYNC) | (cause == _ALLOCATED) | (cause == _MEMORY)
    source = np.where(held, line, -1)
    blamed, share = _consequences(graph, gaps, pieces, cause, activity, line, allocates, holds)
    part, source, consequence, start, end = _split(pieces, source, blamed, share)
    cause, activity, node, line, awaited = (a[part] for a in (cause, activity, node, line, awaited))
    blame = np.flatnonzero(consequence)
    awaited[blame] = graph.lines.awaited[source[blame]]
    cause[blame] = np.where(allocates[source[blame]], _ALLOCATED, _SYNCHRONISED)
    awaited[cause == _ALLOCATED] = -1
    cause = _by_what_was_awaited(trace, graph, cause, awaited, source)

    return _frame(
        context,
        graph,
        gaps,
        pieces.gap[part],
        start,
        end,
        cause,
        activity,
        node,
        line,
        awaited,
        source,
        consequence,
    )


def _allocating_and_copying(graph: Graph) -> tuple[Flags, Flags]:
    """Which calls of the lines allocate or free memory out of the order of any stream, and which copy?"""
    if graph.trace.calls is None:
        nothing = np.empty(0, dtype=bool)
        return nothing, nothing
    rows = graph.lines.row
    copies = graph.trace.calls_named(lambda name: blocking_kind(name) >= Blocking.COPY)
    return graph.trace.calls_named(lambda name: bool(is_allocation(pl.Series([name]))[0]))[rows], copies[rows]


def _by_what_was_awaited(trace: Trace, graph: Graph, cause: Ints, awaited: Ints, source: Ints) -> Ints:
    """Waiting for communication or for a copy has a cause of its own."""
    kinds = trace.events["class"].gather(np.maximum(awaited, 0))
    waits = ((cause == _EVENT) | (cause == _SYNCHRONISED)) & (awaited >= 0)
    called = np.zeros(cause.size, dtype=bool)
    known = np.flatnonzero(source >= 0)
    if known.size:
        copies = trace.calls_named(lambda name: blocking_kind(name) >= Blocking.COPY)
        called[known] = copies[graph.lines.row[source[known]]]
    memory = (waits & (kinds == "memory").to_numpy()) | ((cause == _SYNCHRONISED) & called)
    return np.select([waits & (kinds == "communication").to_numpy(), memory], [_COMM, _MEMORY], cause)


def _consequences(
    graph: Graph,
    gaps: Gaps,
    pieces: Pieces,
    cause: Ints,
    activity: Ints,
    line: Ints,
    allocates: Flags,
    holds: Flags,
) -> tuple[Ints, Ints]:
    """For each piece the call that held the host (position in ``lines``) that it follows from, and for how long.

    Args:
        graph: the dependency graph.
        gaps: the gaps.
        pieces: the pieces of the gaps.
        cause: of each piece so far.
        activity: of each piece.
        line: position in ``lines`` of the call of each piece, -1 if none.
        allocates: calls of the lines that allocate or free memory.
        holds: calls of the lines that held the host by themselves, whether or not they waited for an event.

    Returns:
        position, -1 if none; and how much of the piece (from its start) is the call's consequence, in ns.
    """
    blamed, share = np.full(line.size, -1, dtype=np.int64), np.zeros(line.size, dtype=np.int64)
    lines = graph.lines
    if not lines.start.size:
        return blamed, share
    position = np.arange(lines.start.size)
    waits = np.zeros(position.size, dtype=bool)
    waits[lines.awaited.at] = True
    waited = _last_in_line(lines.rank, np.where(waits | holds, position, -1))
    events = np.flatnonzero(lines.launcher >= 0)
    launcher = lines.launcher[events]
    # An event that was launched and had to wait for the GPU: the host was ahead.
    is_ahead = graph.begin[events] - lines.end[launcher] > LATENCY_NS
    ahead = np.full(position.size, -1, dtype=np.int64)
    ahead[launcher[is_ahead]] = launcher[is_ahead]
    ahead = _last_in_line(lines.rank, ahead)

    late = np.flatnonzero(
        (cause == _LAUNCH) & ((activity == _LATENCY) | (pieces.end - pieces.start <= LONG_HOST_NS))
    )
    at = np.where(
        activity[late] == _LATENCY,
        lines.launcher[np.minimum(pieces.node[late], graph.events - 1)],
        line[late],
    )
    previous = at - 1
    usable = (at > 0) & (lines.rank[np.maximum(previous, 0)] == gaps.rank[pieces.gap[late]])
    call = np.where(usable, waited[np.maximum(previous, 0)], -1)
    held = call >= 0
    held &= call > np.where(usable, ahead[np.maximum(previous, 0)], -1)
    late, call = late[held], call[held]

    # The lead that the call took: it blocked from its start to the end of what it waited for, or by itself.
    until = np.where((waits & ~allocates)[call], graph.ends(lines.awaited[call]), lines.end[call])
    budget = until - lines.start[call]
    length = pieces.end[late] - pieces.start[late]
    order = np.lexsort((pieces.start[late], call))
    late, call, budget, length = late[order], call[order], budget[order], length[order]
    total = np.cumsum(length) - length
    heads = np.concatenate([[True], call[1:] != call[:-1]]) if call.size else np.empty(0, dtype=bool)
    spent = total - np.maximum.accumulate(np.where(heads, total, 0)) if call.size else total
    taken = np.clip(budget - spent, 0, length)
    blamed[late[taken > 0]], share[late] = call[taken > 0], taken
    return blamed, share


def _last_in_line(rank: NDArray[np.int32], position: Ints) -> Ints:
    """At each place of the lines the last position so far that is not -1, within the line of its rank."""
    last = np.maximum.accumulate(position)
    return np.where((last >= 0) & (rank[np.maximum(last, 0)] == rank), last, -1)


def _split(pieces: Pieces, source: Ints, blamed: Ints, share: Ints) -> tuple[Ints, Ints, Flags, Ints, Ints]:
    """Cut pieces that are the consequence of a call only at first.

    Returns:
        piece, position of the call (-1: none), whether it is a consequence, start, end; in order of time.
    """
    length = pieces.end - pieces.start
    whole = np.arange(length.size)
    rest = np.flatnonzero((share > 0) & (share < length))
    piece = np.concatenate([whole, rest])
    is_rest = np.concatenate([np.zeros(whole.size, dtype=bool), np.ones(rest.size, dtype=bool)])
    consequence = (blamed[piece] >= 0) & ~is_rest
    cut = pieces.start + share
    start = np.where(is_rest, cut[piece], pieces.start[piece])
    end = np.where(consequence, cut[piece], pieces.end[piece])
    call = np.where(consequence, blamed[piece], np.where(is_rest, -1, source[piece]))
    order = np.lexsort((start, pieces.gap[piece]))
    return piece[order], call[order], consequence[order], start[order], end[order]


def _frame(
    context: Context,
    graph: Graph,
    gaps: Gaps,
    gap: Ints,
    start: Ints,
    end: Ints,
    cause: Ints,
    activity: Ints,
    node: Ints,
    line: Ints,
    awaited: Ints,
    source: Ints,
    consequence: Flags,
) -> pl.DataFrame:
    """Everything by its name."""
    trace = context.trace
    names = trace.names["text"]
    step_names = dict(context.attribution.steps.select("step_index", "name").iter_rows())
    windows = context.windows.windows
    step = np.array([window.step for window in windows], dtype=np.int64)[gaps.window[gap]]
    index = pl.Series(step).replace(-1, None)
    event = _or_null(gaps.event[gap])
    other = activity == _OTHER_RANK
    api = trace.calls["name"] if trace.calls is not None else pl.Series(dtype=pl.String)
    row, thread, opened = (pl.Series(a) for a in (graph.lines.row, graph.lines.thread, graph.lines.start[:]))
    at, called_from = _or_null(line), _or_null(source)
    awaited_rows = _or_null(awaited)
    last = _or_null(graph.last[awaited])
    foreign = trace.events["rank"].gather(last).cast(pl.Int64)
    matched = pl.Series(graph.matched).gather(awaited_rows).fill_null(False)
    return pl.DataFrame(
        {
            "rank": gaps.rank[gap],
            "step": index.replace_strict(step_names, default=None, return_dtype=pl.String)
            if step_names
            else pl.repeat(None, gap.size, dtype=pl.String, eager=True),
            "step_index": index,
            "gap": _numbered(gaps.rank)[gap],
            "start_ns": start,
            "end_ns": end,
            "cause": pl.Series(IDLE_CAUSES, dtype=CAUSE).gather(cause),
            "activity": pl.Series(_ACTIVITIES).gather(activity),
            "thread": thread.gather(at),
            "delayed_event": event,
            "delayed_name": names.gather(trace.events["name"].gather(event)),
            "phase": context.attribution.phase_names(event.fill_null(-1).to_numpy()),
            "awaited_event": awaited_rows,
            "awaited_name": names.gather(trace.events["name"].gather(awaited_rows)),
            "call": api.gather(row.gather(called_from)),
            "call_start_ns": opened.gather(called_from),
            "consequence": consequence,
            "called": api.gather(row.gather(at)),
            "ran": names.gather(trace.events["name"].gather(_or_null(np.where(other, node, -1)))),
            "foreign": foreign,
            "told": matched | pl.Series(other),
        }
    ).with_columns(
        name=pl.coalesce("called", "ran"),
        waits_for=pl.when("told").then("foreign"),
    )


def _or_null(rows: Ints) -> pl.Series:
    """Row numbers with -1 as null, to gather with."""
    made: pl.Series = pl.Series(rows).replace(-1, None)
    return made


def _numbered(rank: Ints) -> Ints:
    """Number of each gap within its rank (the ranks are in order)."""
    place = np.arange(rank.size)
    heads = np.concatenate([[True], rank[1:] != rank[:-1]]) if rank.size else np.empty(0, dtype=bool)
    return place - np.maximum.accumulate(np.where(heads, place, 0)) if rank.size else place


# --- by window --------------------------------------------------------------------------------------------------


def _window_frame(context: Context) -> pl.DataFrame:
    """rank, step, step_index, is_warmup, start_ns, end_ns of every window."""
    names = dict(context.attribution.steps.select("step_index", "name").iter_rows())
    return pl.DataFrame(
        [
            (
                window.rank,
                names.get(window.step),
                window.step if window.step >= 0 else None,
                window.is_warmup,
                window.start,
                window.end,
            )
            for window in context.windows.windows
        ],
        schema={
            "rank": pl.Int64,
            "step": pl.String,
            "step_index": pl.Int64,
            "is_warmup": pl.Boolean,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
        },
        orient="row",
    )


def _per_window(context: Context, pieces: pl.DataFrame) -> pl.DataFrame:
    """Sum of every cause in every window (``IDLE_STEP``); asserts that they are the window's idle time."""
    windows = _window_frame(context)
    duration = pl.col("end_ns") - pl.col("start_ns")
    key = ["rank", "step_index"]
    sums = pieces.group_by([*key, "cause"]).agg(
        idle_ns=duration.sum(), pieces=pl.len().cast(pl.Int64), longest_ns=duration.max()
    )
    idle_ns = np.zeros(windows.height, dtype=np.int64)
    for rank in context.trace.rank_numbers:
        rows = np.flatnonzero((windows["rank"] == rank).to_numpy())
        busy = context.trace.union(rank, schema.CLASSES)
        start, end = windows["start_ns"].to_numpy()[rows], windows["end_ns"].to_numpy()[rows]
        idle_ns[rows] = end - start - busy.length_within(start, end)
    told = windows.with_columns(idle=pl.Series(idle_ns)).join(
        sums.group_by(key).agg(pl.col("idle_ns").sum()), on=key, how="left", nulls_equal=True
    )
    if (told["idle"] != told["idle_ns"].fill_null(0)).any():
        raise AnalysisError("the causes of a window do not add up to its idle time")
    return IDLE_STEP.check(
        windows.join(sums, on=key, how="inner", nulls_equal=True, maintain_order="left")
        .with_columns(window_ratio=pl.col("idle_ns") / duration)
        .sort("rank", "step_index", "idle_ns", "cause", descending=[False, False, True, False])
    )


QUESTION = Question(
    name="idle",
    ask="Why was each GPU idle, instant by instant?",
    more="Causes tile the idle time; what follows from an earlier cause is counted with it.",
    tables=(IDLE, IDLE_STEP, LAUNCH_QUEUE, LAUNCH_QUEUE_STEP),
    run=lambda context, _: context.idle,
    shown="idle_step",
    reads=frozenset({"launches", "host_calls", "shapes", "metrics"}),
    examples=("report.sqlite", "report.sqlite --per capture"),
    findings={"idle": "how long a rank idles in a step, and the causes"},
    warnings={
        "idle_without_calls": "host calls are missing: late launches cannot be told from other idle time",
        "idle_unknown": "idle pieces of which nothing in the capture says what they waited for",
        "idle_unexplained": "idle pieces in which work was launched and, as far as is seen, ready, and did not run",
    },
)
