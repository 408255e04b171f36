"""What bounds each step: the chain of work, transfer and host time that its end hung on

    critical_path(trace)            the path of every step over all ranks; tied ranks each get theirs
    rank_paths(trace)               the path of every step within each rank, its waits named after the rank waited for

A path is walked back from the last event along the binding predecessors of ``graph`` and cut into pieces that tile
its window exactly:

    path_ns = compute + spin + memory + graph + transfer + unmatched_communication + wait
              + host + host_gap + sync + gap + queued + unknown                     (wait = 0 over all ranks)

    critical_communication_ns = transfer + unmatched_communication        (the pieces on the path over all ranks)

It differs from ``exposed`` (communication without compute beside it, on one rank: it contains waiting for others, and
may be off the path when another rank or the host is later) and from ``tail`` (what is left after backward: a span).
Source: ``docs/definitions.md``, critical path.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import EVIDENCE, LATENCY_NS, Edge, Graph, build
from nsysddp.model.errors import AnalysisError, UsageError
from nsysddp.model.markers import parse_bucket_mark
from nsysddp.model.names import visible
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import CLASSES, FLAG, FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import NS_PER_US, ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.attribution import Attribution, attribute
from nsysddp.questions.question import Option, Question
from nsysddp.questions.steps import WARM_UP_RATIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions.context import Context

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Per = Literal["step", "capture"]

TIE_NS = 50 * NS_PER_US
"""Ranks whose last events end this close together are tied."""

KINDS = (
    "compute",
    "spin",
    "memory",
    "graph",
    "transfer",
    "unmatched_communication",
    "wait",
    "host",
    "sync",
    "host_gap",
    "gap",
    "queued",
    "unknown",
)
"""What a piece of a path can be; up to ``sync`` it is something that was recorded, from ``host_gap`` on inferred."""

KIND_WORDS = {
    "spin": "delay kernels",
    "memory": "copies",
    "graph": "CUDA graphs",
    "unmatched_communication": "communication without a match",
    "wait": "waiting for other ranks",
    "sync": "host waiting for the GPU",
    "host_gap": "host between calls",
    "gap": "start-up",
}
"""What a kind is called in sentences, where that is not its name."""

RECORDED_KINDS = KINDS[: KINDS.index("host_gap")]
COMMUNICATION_KINDS = ("transfer", "unmatched_communication")
KIND = pl.Enum(list(KINDS))
VIAS = ("stream", "event", "launch", "host", "arrival")
VIA = pl.Enum(list(VIAS))
GRADES = {
    "full": "host calls, CUDA events and streams were recorded",
    "no_events": "CUDA event records are missing: dependencies between streams are unknown, so a wait for another "
    "stream shows as a gap (capture with --cuda-event-trace=true)",
    "gpu_only": "host calls are missing: only the order in streams and collectives is known, so what the host did "
    "shows as a gap (capture with --trace=cuda)",
}
"""How much a path may rest on, best first."""

_STEP = Column("step", TEXT, "name of the step whose window this is; null for the whole capture")
_INDEX = Column("step_index", INT, "0-based order of the step; null for the whole capture")
_PATH = Column("path_rank", INT, "rank with whose last event the path ends; tied ranks have a path each")

PATH = Table(
    "critical_path",
    "one piece of a path, in order of time; the pieces of one (step, path_rank) tile its window",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("start_ns", INT, "start of the piece"),
        Column("end_ns", INT, "end of the piece"),
        Column("kind", KIND, "what the piece is"),
        Column("via", VIA, "gaps: what the delayed event or call hung on; null otherwise"),
        Column("rank", INT, "rank on which it happened; null before the rank's first call in the capture"),
        Column("stream", INT, "CUDA stream of the event (that ran, or that the gap delayed); null for calls"),
        Column("thread", INT, "thread of the call (that ran, or that the gap delayed); null for events"),
        Column("name", TEXT, "kernel, copy or API name (that ran, or that the gap delayed)"),
        Column("event", INT, "row of the trace's events; null for calls"),
        Column(
            "launched_step",
            INT,
            "step_index in which the event was launched; calls: of the event launched next",
        ),
        Column("phase", TEXT, "phase in which the event was launched; calls: of the event launched next"),
        Column("bucket", INT, "DDP bucket of the communication, from the annotation; null without"),
        Column("waits_for", INT, "wait: the rank that arrived last; null otherwise"),
    ),
)

PATH_STEP = Table(
    "critical_path_step",
    "one path: a step (or the capture), and the rank with whose last event the path ends",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("is_warmup", FLAG, "a leading step longer than 1.5 x the median of the rest"),
        Column("tied", FLAG, "other ranks' last events end within 50 us: no rank may be named as the last"),
        Column("window_start_ns", INT, "start of the window: end of the previous step's last event"),
        Column("window_end_ns", INT, "end of the path's last event"),
        Column("path_ns", INT, "window_end_ns - window_start_ns, the sum of the pieces"),
        Column("critical_communication_ns", INT, "transfer and unmatched communication on the path"),
        Column("recorded_ns", INT, "pieces that are recorded activity rather than inferred gaps"),
        Column("recorded_ratio", FLOAT, "recorded_ns / path_ns; null when the window is empty"),
        Column("rank_changes", INT, "times that the path moves to a rank that arrived later"),
        Column("thread_hops", INT, "inferred steps from a call to a call of another thread"),
        Column("ambiguous_launches", INT, "events of which launch and predecessor cannot be told apart"),
        Column("unmatched_communication", INT, "communication pieces without a usable match"),
        Column("grade", TEXT, "what the path could rest on: full, no_events or gpu_only"),
    ),
)

PATH_KIND = Table(
    "critical_path_kind",
    "one kind of piece of one path",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("kind", KIND, "what the pieces are"),
        Column("duration_ns", INT, "sum of the pieces, which do not overlap"),
        Column("pieces", INT, "number of pieces"),
        Column("path_ratio", FLOAT, "duration_ns / path_ns"),
    ),
)

PATH_CAUSE = Table(
    "critical_path_cause",
    "one thing that a path consists of: pieces of one kind, rank, phase and name",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("kind", KIND, "what the pieces are"),
        Column("rank", INT, "rank on which they happened; null before its first call in the capture"),
        Column("phase", TEXT, "phase; null if none"),
        Column("name", TEXT, "kernel, copy or API name"),
        Column("waits_for", INT, "wait: the rank that arrived last"),
        Column("duration_ns", INT, "sum of the pieces, which do not overlap"),
        Column("pieces", INT, "number of pieces"),
    ),
)

PATH_COMMUNICATION = Table(
    "critical_path_communication",
    "communication of one rank in one path's step, by three measures that answer three questions",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("rank", INT, "rank"),
        Column(
            "critical_communication_ns", INT, "pieces on the critical path that are this rank's communication"
        ),
        Column("exposed_communication_ns", INT, "communication of the rank under no compute; contains wait"),
        Column("exposed_wait_ns", INT, "the part of exposed that is waiting for later ranks: never critical"),
        Column("tail_communication_ns", INT, "communication after the rank's last backward compute, a span"),
    ),
)

PATH_EVIDENCE = Table(
    "critical_path_evidence",
    "one count of what the graph of the whole capture rests on or could not resolve",
    (
        Column("name", TEXT, "what is counted"),
        Column("count", INT, "how many"),
        Column("meaning", TEXT, "in words"),
    ),
)


_DOUBTS = (
    "unresolved_waits",
    "late_waits",
    "negative_launches",
    "ambiguous_launches",
    "unmatched_communication",
    "ended_before_arrival",
    "unresolved_calls",
)
"""Counts of the graph that are a warning where they are not 0."""

WARNINGS = {
    **{f"critical_path_{grade}": why for grade, why in GRADES.items() if grade != "full"},
    **{f"critical_path_{name}": EVIDENCE[name] for name in _DOUBTS},
    "critical_path_tied": "windows in which several ranks end within 50 us: all are given",
}
"""Warnings about paths, which the diagnosis repeats."""

TABLES = (PATH, PATH_STEP, PATH_KIND, PATH_CAUSE, PATH_COMMUNICATION, PATH_EVIDENCE)
"""The tables of `nsysddp critical-path`, in order."""


def critical_path(
    trace: Trace,
    per: Per = "step",
    *,
    first_step: int = 0,
    last_step: int | None = None,
    graph: Graph | None = None,
    attribution: Attribution | None = None,
) -> Result:
    """What bounds each step: the path over all ranks that ends with the step's last event.

    Step *k* runs from the end of the last event of step *k-1* over all ranks to the end of its own last event. If
    the last events of several ranks end within 50 us of each other, each of them gets its path and the step is tied.

    Args:
        trace: loaded with ``host_calls=True`` for the full grade.
        per: ``step``, or ``capture`` for one path through the whole capture (another question).
        first_step: index of the first step to answer for.
        last_step: one past the last; None is all.
        graph: the dependency graph, if it has been built.
        attribution: the step and phase of every event, if they are known.

    Returns:
        The tables ``critical_path``, ``critical_path_step``, ``critical_path_kind``, ``critical_path_cause`` and
        ``critical_path_evidence``.

    Raises:
        UsageError: if ``per`` is neither, or no step is left.
        AnalysisError: if pieces do not tile a window.
    """
    return _answer(trace, per, (first_step, last_step), graph, attribution, across=True)


def rank_paths(
    trace: Trace,
    per: Per = "step",
    *,
    first_step: int = 0,
    last_step: int | None = None,
    graph: Graph | None = None,
    attribution: Attribution | None = None,
) -> Result:
    """What bounds each step on each rank by itself: waiting for other ranks stays on the path, under their names.

    A rank's step *k* runs from the end of its own last event of step *k-1* to the end of its last event of *k*.
    Arguments, tables and errors as for ``critical_path``; ``path_rank`` is the rank.
    """
    return _answer(trace, per, (first_step, last_step), graph, attribution, across=False)


def _answer(
    trace: Trace,
    per: Per,
    chosen: tuple[int, int | None],
    graph: Graph | None,
    attribution: Attribution | None,
    *,
    across: bool,
) -> Result:
    if per not in ("step", "capture"):
        raise UsageError(f"a critical path is per step or per capture, not per {per!r}")
    graph = build(trace) if graph is None else graph
    launched = attribute(trace) if attribution is None else attribution
    walks = _windows(trace, launched, per, chosen, across=across)
    found = _paths(graph, launched, walks, across=across)
    grade = _grade(trace)
    steps = found.steps.with_columns(grade=pl.lit(grade))
    kinds = (
        found.kinds.join(steps.select(*_KEY, "path_ns"), on=_KEY, how="left", nulls_equal=True)
        .with_columns(path_ratio=pl.col("duration_ns") / pl.col("path_ns"))
        .sort("step_index", "path_rank", "kind")
    )
    causes = found.causes.sort(
        "step_index",
        "path_rank",
        "duration_ns",
        *_CAUSE,
        descending=[False, False, True, *[False] * len(_CAUSE)],
    )
    evidence = PATH_EVIDENCE.frame(
        [{"name": name, "count": graph.counts[name], "meaning": text} for name, text in EVIDENCE.items()]
    )
    tables = {
        "critical_path": found.pieces,
        "critical_path_step": PATH_STEP.check(steps),
        "critical_path_kind": PATH_KIND.check(kinds),
        "critical_path_cause": PATH_CAUSE.check(causes),
        "critical_path_evidence": evidence,
    }
    return Result(
        trace=trace,
        tables=tables,
        findings=_findings(tables) if across else (),
        assumptions=(
            "profiling itself lengthens host pieces; a host piece does not say that the GPU was idle",
            "hops between threads of a rank are inferred from the order of their calls",
        ),
        warnings=_warnings(graph, grade, steps, per, launched),
    )


def communication_beside(paths: Result, overlap: pl.DataFrame) -> pl.DataFrame:
    """Why is critical communication not what is exposed or in the tail? The three beside each other.

    Args:
        paths: an answer of ``critical_path``.
        overlap: ``overlap.OVERLAP`` of the same trace and windows.

    Returns:
        ``PATH_COMMUNICATION``: one row per path and rank of its step.
    """
    key = ["step", "step_index", "path_rank"]
    critical = (
        paths["critical_path_cause"]
        .filter(pl.col("kind").is_in(COMMUNICATION_KINDS))
        .group_by(*key, "rank")
        .agg(critical_communication_ns=pl.col("duration_ns").sum())
    )
    rows = (
        paths["critical_path_step"]
        .select(key)
        .join(
            overlap.drop("step"), on="step_index", how="inner", nulls_equal=True, maintain_order="left_right"
        )
        .join(critical, on=[*key, "rank"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("critical_communication_ns").fill_null(0))
    )
    return PATH_COMMUNICATION.check(rows)


# --- windows: where a path begins and with which event it ends ------------------------------------------------


@dataclass(frozen=True)
class _Walks:
    """The paths to walk, one row each: step (-1: capture), rank, last event, start and end of the window, tie."""

    step: Ints
    rank: Ints
    event: Ints
    start: Ints
    end: Ints
    tied: NDArray[np.bool_]


def _windows(
    trace: Trace, launched: Attribution, per: Per, chosen: tuple[int, int | None], *, across: bool
) -> _Walks:
    """Windows and last events: of all ranks together, or of each rank by itself."""
    by_step = per == "step" and bool((launched.step >= 0).any())
    lasts = (
        trace.events.lazy()
        .select("rank", "start_ns", "end_ns")
        .with_row_index("event")
        .with_columns(step=pl.Series(launched.step).cast(pl.Int64) if by_step else pl.lit(-1, pl.Int64))
        .filter(pl.col("step") >= (0 if by_step else -1))
        .group_by("rank", "step")
        .agg(
            pl.col("event").sort_by("end_ns", "event").last().cast(pl.Int64),
            pl.col("end_ns").max(),
        )
        .collect()
    )
    first = trace.events.group_by("rank").agg(first=pl.col("start_ns").min())
    scope = [] if across else ["rank"]
    windows = lasts.group_by([*scope, "step"]).agg(latest=pl.col("end_ns").max()).sort([*scope, "step"])
    if across:
        windows = windows.with_columns(first=pl.lit(first["first"].min(), pl.Int64))
    else:
        windows = windows.join(first, on="rank", how="left", maintain_order="left")

    def within(expression: pl.Expr) -> pl.Expr:
        return expression.over(scope) if scope else expression

    windows = windows.with_columns(finish=within(pl.col("latest").cum_max())).with_columns(
        begin=within(pl.col("finish").shift(1)).fill_null(pl.col("first"))
    )
    paths = (
        lasts.join(windows, on=[*scope, "step"], how="inner")
        .filter(pl.col("end_ns") > pl.col("begin"), pl.col("end_ns") >= pl.col("finish") - TIE_NS)
        .sort("step", "rank")
    )
    if by_step:
        first_step, last_step = chosen
        paths = paths.filter(pl.col("step").is_between(first_step, (last_step or launched.steps.height) - 1))
        if paths.is_empty():
            raise UsageError(
                f"no step is left of {launched.steps.height} (0:{launched.steps.height})",
                do="choose another range",
            )
    tied = (
        paths.select(pl.len().over("step") > 1).to_series()
        if across
        else pl.repeat(False, paths.height, eager=True)
    )
    return _Walks(
        step=paths["step"].to_numpy(),
        rank=paths["rank"].cast(pl.Int64).to_numpy(),
        event=paths["event"].to_numpy(),
        start=paths["begin"].to_numpy(),
        end=paths["end_ns"].to_numpy(),
        tied=tied.to_numpy(),
    )


# --- the walk, and the pieces that it leaves ------------------------------------------------------------------


def _walk(graph: Graph, walks: _Walks, *, across: bool) -> tuple[Rows, Ints]:
    """Nodes along every path in order of time, and the path of each.

    A path begins with the node that is the last to begin at or before its window, or that has no predecessor. This
    is the only loop over nodes in the analysis, and it visits only those on paths.
    """
    begin, ready = memoryview(graph.begin.data), memoryview(graph.ready.data)
    before, last = memoryview(graph.before.data), memoryview(graph.last.data)
    events = graph.events if across else 0  # of these a path over all ranks may leave the rank
    nodes = array("i")
    lengths: list[int] = []
    for node, stop in zip(reversed(walks.event.tolist()), reversed(walks.start.tolist()), strict=True):
        size = len(nodes)
        at = node
        while at >= 0:
            nodes.append(at)
            if at < events and last[at] != at:
                if ready[at] <= stop:
                    break
                at = last[at]
            else:
                if begin[at] <= stop:
                    break
                at = before[at]
            if len(nodes) - size > len(begin):
                raise AnalysisError("the dependency graph has a cycle")
        lengths.append(len(nodes) - size)
    lengths.reverse()
    return np.frombuffer(nodes, dtype=np.int32)[::-1], np.repeat(np.arange(len(lengths)), lengths)


_GAP, _WAIT, _ACTIVITY = 0, 1, 2
"""The up to three pieces of a node, in order of time: waiting to begin, waiting for peers, and what it did."""


_NODES_AT_A_TIME = 1 << 18
"""Nodes of paths that become pieces together: what is known of each takes ten times its memory."""


_KEY = ["step", "step_index", "path_rank"]
_CAUSE = ["kind", "rank", "phase", "name", "waits_for"]


class _Found(NamedTuple):
    """Of some paths the pieces, and per path: sums, what it consists of by kind and by cause."""

    pieces: pl.DataFrame
    steps: pl.DataFrame
    kinds: pl.DataFrame
    causes: pl.DataFrame


def _paths(graph: Graph, launched: Attribution, walks: _Walks, *, across: bool) -> _Found:
    """Everything about the paths; what it consists of is not yet in order."""
    nodes, path = _walk(graph, walks, across=across)
    ends = np.append(np.flatnonzero(path[1:] != path[:-1]) + 1, path.size)
    # Where the first path ends that reaches the next multiple: paths stay whole.
    wanted = np.arange(_NODES_AT_A_TIME, path.size + _NODES_AT_A_TIME, _NODES_AT_A_TIME)
    cuts = np.unique(ends[np.minimum(np.searchsorted(ends, wanted), ends.size - 1)]).tolist()
    parts = [
        _pieces(graph, launched, walks, nodes[first:last], path[first:last], across=across)
        for first, last in pairwise([0, *(cuts or [0])])
    ]
    together = _Found(*(pl.concat(frames) for frames in zip(*parts, strict=True)))
    return together._replace(steps=_summarise(together.steps, walks, launched.steps))


def _pieces(
    graph: Graph, launched: Attribution, walks: _Walks, nodes: Rows, path: Ints, *, across: bool
) -> _Found:
    """``PATH`` of some whole paths, their sums (see ``_sums``), and what they consist of."""
    begin, edge = graph.at(nodes, across=across)
    is_event = nodes < graph.events
    stop, top = walks.start[path], walks.end[path]
    is_tail = np.ones(nodes.size, dtype=bool)  # the last event of its path
    is_tail[:-1] = path[1:] != path[:-1]
    is_head = np.roll(is_tail, 1)

    # A node's time is cut where its successor began, and at the window's edges.
    closed = np.minimum(graph.end[nodes], np.where(is_tail, top, np.roll(begin, -1)))
    opened, closed = np.maximum(begin, stop), np.maximum(closed, stop)
    split = opened.copy()
    split[is_event] = np.clip(graph.ready[nodes[is_event]], opened[is_event], closed[is_event])
    idle_from = np.where(is_head, stop, np.minimum(np.roll(closed, 1), opened))

    low = np.stack([idle_from, opened, split], axis=1)
    high = np.stack([opened, split, closed], axis=1)
    node_at, slot = np.nonzero(high > low)
    start, end = low[node_at, slot], high[node_at, slot]
    _assert_tiling(walks, path[is_tail], path[node_at], start, end)

    facts = _facts(graph, launched, nodes, edge).with_columns(path=path)
    hops = (
        (pl.col("via") == "host")
        & (pl.col("thread") != pl.col("thread").shift(1))
        & ~pl.lit(pl.Series(is_head))
    )
    facts = facts.with_columns(is_hop=hops)
    pieces = (
        facts[node_at]
        .with_columns(start_ns=start, end_ns=end, slot=slot)
        .with_columns(kind=_kind(), via=pl.when(pl.col("slot") == _GAP).then("via"))
    )
    pieces = _queued(trace=graph.trace, pieces=pieces)
    nowhere = (pl.col("slot") == _GAP) & pl.col("hangs_on_nothing")  # never blamed on a rank
    pieces = pieces.with_columns(
        *(pl.when(~nowhere).then(name).alias(name) for name in _PLACE),
        waits_for=pl.when(pl.col("slot") == _WAIT).then("waits_for"),
    )
    pieces = pieces.with_columns(
        path_rank=walks.rank[path[node_at]], step_index=walks.step[path[node_at]]
    ).with_columns(_named_step(launched.steps))
    lasting = pieces.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    kinds, causes = (
        lasting.group_by([*_KEY, *by]).agg(pl.col("duration_ns").sum(), pieces=pl.len().cast(pl.Int64))
        for by in (["kind"], _CAUSE)
    )
    return _Found(PATH.check(pieces), _sums(facts, pieces), kinds, causes)


def _assert_tiling(walks: _Walks, paths: Ints, path: Ints, start: Ints, end: Ints) -> None:
    """The pieces of each of these paths follow each other without gap or overlap from its window's start to its end."""
    same = path[1:] == path[:-1]
    heads = np.flatnonzero(np.concatenate([[True], ~same])) if path.size else path
    tails = np.append(heads[1:], path.size) - 1 if path.size else path
    if (
        not np.array_equal(path[heads], paths)
        or np.any(end[:-1][same] != start[1:][same])
        or np.any(start[heads] != walks.start[path[heads]])
        or np.any(end[tails] != walks.end[path[tails]])
    ):
        raise AnalysisError("the pieces of a critical path do not tile its window")


_PLACE = ("rank", "stream", "thread", "name", "event", "launched_step", "phase", "bucket")


def _facts(graph: Graph, launched: Attribution, nodes: Rows, edge: NDArray[np.uint8]) -> pl.DataFrame:
    """What is known of each node along the paths, one row per node: rank, place, name, step, phase, bucket."""
    trace = graph.trace
    is_event = nodes < graph.events
    event, call = nodes[is_event], graph.line_of(nodes[~is_event])
    happened = trace.events[event].select(
        pl.col("rank").cast(pl.Int64),
        pl.col("stream").cast(pl.Int64),
        "class",
        name=trace.names["text"].gather(trace.events["name"].gather(event)),
        event=event,
        matched=graph.matched[event],
        ambiguous=graph.ambiguous[event],
        inside_graph=graph.queues.inside_graph[event],
        unlaunched=graph.lines.launcher[event] < 0,
        waits_for=trace.events["rank"].gather(graph.last[event]).cast(pl.Int64),
        bucket=_buckets(trace, event),
    )
    parts = [happened]
    if trace.calls is not None and call.size:
        parts.append(
            pl.DataFrame(
                {
                    "rank": graph.lines.ranks_of(call).astype(np.int64),
                    "thread": graph.lines.threads_of(call).astype(np.int64),
                    "name": trace.call_names(graph.lines.row[call]),
                    "synchronised": (graph.edge[nodes[~is_event]] == Edge.SYNC),
                }
            )
        )
    else:
        parts.append(pl.DataFrame(schema={"thread": pl.Int64, "synchronised": pl.Boolean}))
    place = np.empty(nodes.size, dtype=np.int64)
    place[np.concatenate([np.flatnonzero(is_event), np.flatnonzero(~is_event)])] = np.arange(nodes.size)
    # A call belongs to the step and phase of the event that the line launched next.
    led_to = nodes.copy()
    led_to[~is_event] = graph.lines.leads_to[call]
    led_to = pl.Series(led_to).replace(-1, None)
    hung = edge.astype(np.int64)
    return (
        pl.concat(parts, how="diagonal")[place]
        .with_columns(
            hangs_on_nothing=hung == Edge.NONE,
            via=pl.Series(hung),
            launched_step=pl.Series(launched.step).gather(led_to).cast(pl.Int64).replace(-1, None),
            phase=launched.phase_names().gather(led_to),
        )
        .with_columns(via=pl.col("via").replace_strict(_VIA_OF_EDGE, default=None, return_dtype=VIA))
    )


_VIA_OF_EDGE = {int(edge): edge.name.lower() for edge in Edge if edge.name.lower() in VIAS}


def _kind() -> pl.Expr:
    """Kind of a piece by the facts of its node and its slot; ``queued`` is found afterwards.

    Where the trace is silent about what an event waited for, its gap is ``unknown``: inside a CUDA graph, and of an
    event without a launch call (page migration, a lost row) as soon as it is longer than a start takes.
    """
    is_call = pl.col("event").is_null()
    long = pl.col("end_ns") - pl.col("start_ns") > LATENCY_NS
    gap = (
        pl.when(
            pl.col("hangs_on_nothing")
            | pl.col("inside_graph").fill_null(False)
            | (pl.col("unlaunched") & long).fill_null(False)
        )
        .then(pl.lit("unknown"))
        .when(is_call)
        .then(pl.lit("host_gap"))
        .otherwise(pl.lit("gap"))
    )
    activity = (
        pl.when(is_call & pl.col("synchronised"))
        .then(pl.lit("sync"))
        .when(is_call)
        .then(pl.lit("host"))
        .when(pl.col("class") != "communication")
        .then(pl.col("class").cast(pl.String))
        .when("matched")
        .then(pl.lit("transfer"))
        .otherwise(pl.lit("unmatched_communication"))
    )
    return (
        pl.when(pl.col("slot") == _GAP)
        .then(gap)
        .when(pl.col("slot") == _WAIT)
        .then(pl.lit("wait"))
        .otherwise(activity)
        .cast(KIND)
    )


def _queued(trace: Trace, pieces: pl.DataFrame) -> pl.DataFrame:
    """Gaps of over 10 us in which the device was busy with other work but for 10 us: the event was queued."""
    kind = pieces["kind"].cast(pl.String).to_numpy().copy()
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    long = np.flatnonzero((kind == "gap") & (end - start > LATENCY_NS))
    ranks = pieces["rank"].gather(long).to_numpy()
    queued = np.zeros(kind.size, dtype=bool)
    for rank in np.unique(ranks):
        mine = long[ranks == rank]
        busy = trace.union(int(rank), CLASSES).length_within(start[mine], end[mine])
        queued[mine] = end[mine] - start[mine] - busy <= LATENCY_NS
    return pieces.with_columns(kind=pl.when(pl.Series(queued)).then(pl.lit("queued", KIND)).otherwise("kind"))


def _buckets(trace: Trace, event: Rows) -> pl.Series:
    """DDP bucket of each communication event: the bucket range of its launching thread around its launch."""
    found = np.full(event.size, -1, dtype=np.int64)
    marks = [
        (process, thread, start, end, mark.index)
        for process, thread, start, end, text in trace.ranges.filter(
            pl.col("text").str.starts_with("nsysddp:bucket=")
        )
        .select("process", "thread", "start_ns", "end_ns", "text")
        .sort("process", "thread", "start_ns")
        .iter_rows()
        if (mark := parse_bucket_mark(text)) is not None
    ]
    chosen = np.flatnonzero((trace.events["class"].gather(event) == "communication").to_numpy())
    if marks and chosen.size and trace.launches is not None:
        rows = event[chosen]
        launches = trace.launches[rows]
        at = launches["launch_ns"].fill_null(-1).to_numpy()
        thread = launches["thread"].fill_null(-1).to_numpy()
        ranks = trace.events["rank"].gather(rows).to_list()
        process = np.asarray([trace.process_of_rank[rank] for rank in ranks], dtype=np.int64)
        table = np.asarray(marks, dtype=np.int64)
        for owner, number in {(mark[0], mark[1]) for mark in marks}:
            own = table[(table[:, 0] == owner) & (table[:, 1] == number)]
            mine = np.flatnonzero((process == owner) & (thread == number))
            place = np.searchsorted(own[:, 2], at[mine], side="right") - 1
            inside = (place >= 0) & (at[mine] < own[place, 3])
            found[chosen[mine[inside]]] = own[place[inside], 4]
    return pl.select(pl.when(pl.lit(pl.Series(found)) >= 0).then(pl.lit(pl.Series(found)))).to_series()


def _sums(facts: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """One row per path, from its nodes (``facts``) and its pieces."""
    duration = pl.col("end_ns") - pl.col("start_ns")
    own = pieces.group_by("path").agg(
        recorded_ns=duration.filter(pl.col("kind").is_in(RECORDED_KINDS)).sum(),
        critical_communication_ns=duration.filter(pl.col("kind").is_in(COMMUNICATION_KINDS)).sum(),
        unmatched_communication=(pl.col("kind") == "unmatched_communication").sum().cast(pl.Int64),
    )
    counts = facts.group_by("path").agg(
        rank_changes=(pl.col("via") == "arrival").sum().cast(pl.Int64),
        thread_hops=pl.col("is_hop").sum().cast(pl.Int64),
        ambiguous_launches=pl.col("ambiguous").fill_null(False).sum().cast(pl.Int64),
    )
    return own.join(counts, on="path", how="full", coalesce=True)


def _summarise(sums: pl.DataFrame, walks: _Walks, names: pl.DataFrame) -> pl.DataFrame:
    """One row per path."""
    return (
        pl.DataFrame(
            {
                "step_index": walks.step,
                "path_rank": walks.rank,
                "tied": walks.tied,
                "window_start_ns": walks.start,
                "window_end_ns": walks.end,
            }
        )
        .with_row_index("path")
        .with_columns(pl.col("path").cast(pl.Int64))
        .join(sums, on="path", how="left", maintain_order="left")
        .with_columns(
            path_ns=pl.col("window_end_ns") - pl.col("window_start_ns"),
        )
        .with_columns(
            recorded_ratio=pl.col("recorded_ns") / pl.col("path_ns"),
            is_warmup=pl.Series(walks.step).is_in(_warm_up(walks)),
        )
        .with_columns(_named_step(names))
    )


def _warm_up(walks: _Walks) -> list[int]:
    """Leading steps that are longer than 1.5 x the median of the rest (of several paths the longest counts)."""
    numbers = np.unique(walks.step)
    lengths = [int((walks.end - walks.start)[walks.step == number].max()) for number in numbers]
    warm = 0
    while warm < len(lengths) - 1 and lengths[warm] > WARM_UP_RATIO * float(np.median(lengths[warm + 1 :])):
        warm += 1
    return [int(number) for number in numbers[:warm]]


def _named_step(names: pl.DataFrame) -> list[pl.Expr]:
    """The columns ``step_index`` and ``step`` from an index that is -1 for the whole capture."""
    index = pl.when(pl.col("step_index") >= 0).then("step_index")
    known = dict(names.select("step_index", "name").iter_rows())
    name = (
        index.replace_strict(known, default=None, return_dtype=pl.String)
        if known
        else pl.lit(None, pl.String)
    )
    return [index.alias("step_index"), name.alias("step")]


# --- what it means ----------------------------------------------------------------------------------------------


def _grade(trace: Trace) -> str:
    """How much the path can rest on, from what the capture holds."""
    if trace.calls is None or trace.launches is None or trace.calls.is_empty():
        return "gpu_only"
    names = trace.calls["name"].unique().cast(pl.String)
    used = names.str.contains(r"^(cuda|cu)(StreamWaitEvent|EventRecord)").any()
    recorded = trace.records is not None and trace.records["sync_id"].is_not_null().any()
    return "no_events" if used and not recorded else "full"


def _warnings(
    graph: Graph, grade: str, steps: pl.DataFrame, per: Per, launched: Attribution
) -> tuple[Warning, ...]:
    """What is missing, inferred or unresolved, with how often."""
    counts = graph.counts
    found: list[tuple[str, int, str]] = []
    if grade != "full":
        found.append((f"critical_path_{grade}", 1, f"critical path at lower grade: {GRADES[grade]}"))
    if per == "step" and not (launched.step >= 0).any():
        found.append(("no_steps", 1, "no step ranges: the path is that of the whole capture"))
    for name in _DOUBTS:
        if counts[name]:
            found.append((f"critical_path_{name}", counts[name], EVIDENCE[name]))
    tied = int(steps.filter("tied").n_unique("step_index")) if steps.height else 0
    if tied:
        found.append(
            ("critical_path_tied", tied, "windows in which several ranks end within 50 us: all are given")
        )
    return tuple(Warning(*one) for one in found)


def _findings(tables: dict[str, pl.DataFrame], most: int = 6) -> tuple[Finding, ...]:
    """What the windows' paths consist of, in ns per steady window; of tied paths what all of them share."""
    steps = tables["critical_path_step"].filter(~pl.col("is_warmup"))
    windows = steps.group_by("step_index").agg(pl.col("path_ns").min(), paths=pl.len())
    if windows.is_empty():
        return ()
    total = int(windows["path_ns"].sum())
    noun = "capture" if steps["step_index"].null_count() else "step"
    tied = int((windows["paths"] > 1).sum())
    kinds = _shared(tables["critical_path_kind"], windows, ["kind"])
    shares = ", ".join(
        f"{_in_words(kind)} {duration / total:.1%}"
        for kind, duration in kinds.iter_rows()
        if duration >= _LEAST_SHOWN * total
    )
    each = total / windows.height
    headline = f"{ms(each):.3f} ms of critical path per {noun}: {shares}"
    if tied:
        headline += (
            f"; ranks end within 50 us of each other in {tied} of {windows.height}, so none is named as last"
        )
    found = [Finding("critical_path", headline, value=each, unit="ns", severity=1.0)]
    cause = ["kind", "rank", "phase", "name"]
    for kind, rank, phase, name, duration in (
        _shared(tables["critical_path_cause"], windows, cause).head(most).iter_rows()
    ):
        shown = None if name is None else _short(name)
        words = [_in_words(kind), f"before {shown}" if kind in _BEFORE_KINDS and shown else shown]
        words.append("before a rank's first call in the capture" if rank is None else f"on rank {rank}")
        words.append(f"in {phase}" if phase else None)
        found.append(
            Finding(
                code="critical_path_cause",
                message=f"{' '.join(word for word in words if word)}: {ms(duration / windows.height):.3f} ms per "
                f"{noun}, {duration / total:.1%} of the critical path",
                rank=rank,
                value=duration / windows.height,
                unit="ns",
                rows=(
                    {
                        "table": "critical_path_cause",
                        "kind": kind,
                        "rank": rank,
                        "phase": phase,
                        "name": name,
                    },
                ),
                severity=duration / total,
            )
        )
    return tuple(found)


_LEAST_SHOWN = 0.0005
"""Share of the path below which a kind is 0.0 %."""


def _in_words(kind: str) -> str:
    return KIND_WORDS.get(kind, kind)


_BEFORE_KINDS = ("host_gap", "gap", "queued", "unknown")


def _short(name: str, most: int = 60) -> str:
    """A kernel's name for a sentence: kernel names reach thousands of characters, and can hold anything."""
    text = visible(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _shared(parts: pl.DataFrame, windows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Sum over windows of what all paths of a window have of each part, the largest first."""
    return (
        parts.group_by("step_index", "path_rank", *by)
        .agg(pl.col("duration_ns").sum())
        .group_by("step_index", *by)
        .agg(pl.col("duration_ns").min(), having=pl.len())
        .join(windows, on="step_index", how="inner", nulls_equal=True)
        .filter(pl.col("having") == pl.col("paths"))
        .group_by(by)
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", *by, descending=[True] + [False] * len(by), nulls_last=True)
    )


def paths_of(context: Context, *, each_rank: bool = False) -> Result:
    """The paths of the steps that a request asks for, over all ranks or within each."""
    chosen = context.selection
    return _answer(
        context.trace,
        "step" if chosen.per == "step" else "capture",
        (max(chosen.first_step or 0, chosen.skip_warmup), chosen.last_step),
        context.graph,
        context.attribution,
        across=not each_rank,
    )


def _run(context: Context, options: Mapping[str, Any]) -> Result:
    if options["each_rank"]:
        result = paths_of(context, each_rank=True)
    else:
        beside = communication_beside(context.paths, context.decomposition)
        result = replace(context.paths, tables={**context.paths.tables, PATH_COMMUNICATION.name: beside})
    return replace(result, warnings=(*context.trace.warnings, *result.warnings))


QUESTION = Question(
    name="critical_path",
    ask="What bounds each step: the chain of work, transfer and host time that its end hung on",
    more="The path runs over all ranks: where a collective waited, it goes on at the rank that arrived last. A step's "
    "path and that of the capture (--per capture) are different questions.",
    tables=TABLES,
    run=_run,
    shown=PATH_KIND.name,
    reads=frozenset({"launches", "host_calls"}),
    options=(Option("each_rank", "The path within each rank; its waits stay on it, by name."),),
    whole_steps=True,
    examples=("report.sqlite", "report.sqlite --each-rank --steps 1:2"),
    findings={
        "critical_path": "how long the path of a step is, and what it is made of",
        "critical_path_cause": "one kind of piece of the path, with its rank, phase and kernel",
    },
    warnings=WARNINGS,
)
