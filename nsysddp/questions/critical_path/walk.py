"""Where a path begins and ends, the walk back from its end, and the pieces that it leaves."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS, Edge, Graph
from nsysddp.model.errors import AnalysisError, UsageError
from nsysddp.model.markers import parse_bucket_mark
from nsysddp.model.schema import CLASSES
from nsysddp.model.trace import in_parallel
from nsysddp.model.units import NS_PER_US
from nsysddp.questions.attribution import Attribution
from nsysddp.questions.critical_path.tables import (
    CAUSE,
    COMMUNICATION_KINDS,
    KEY,
    KIND,
    PATH,
    RECORDED_KINDS,
    VIA,
    VIAS,
)
from nsysddp.questions.steps import WARM_UP_RATIO

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]

Per = Literal["step", "capture"]

TIE_NS = 50 * NS_PER_US
"""Ranks whose last events end this close together are tied."""

# --- windows: where a path begins and with which event it ends ------------------------------------------------


@dataclass(frozen=True)
class Walks:
    """The paths to walk, one row each: step (-1: capture), rank, last event, start and end of the window, tie."""

    step: Ints
    rank: Ints
    event: Ints
    start: Ints
    end: Ints
    tied: NDArray[np.bool_]


def windows_of(
    trace: Trace, launched: Attribution, per: Per, chosen: tuple[int, int | None], *, across: bool
) -> Walks:
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
    return Walks(
        step=paths["step"].to_numpy(),
        rank=paths["rank"].cast(pl.Int64).to_numpy(),
        event=paths["event"].to_numpy(),
        start=paths["begin"].to_numpy(),
        end=paths["end_ns"].to_numpy(),
        tied=tied.to_numpy(),
    )


# --- the walk, and the pieces that it leaves ------------------------------------------------------------------


def _walk(graph: Graph, walks: Walks, *, across: bool) -> tuple[Rows, Ints]:
    """Nodes along every path in order of time, and the path of each.

    A path begins with the node that is the last to begin at or before its window, or that has no predecessor. This
    is the only loop over nodes in the analysis, and it visits only those on paths.
    """
    begin, before = memoryview(graph.begin.data), memoryview(graph.before.data)
    leaves = _leaves(graph) if across else {}
    nodes = array("i")
    lengths: list[int] = []
    for node, stop in zip(reversed(walks.event.tolist()), reversed(walks.start.tolist()), strict=True):
        size = len(nodes)
        at = node
        while at >= 0:
            nodes.append(at)
            if at in leaves:
                ready, last = leaves[at]
                if ready <= stop:
                    break
                at = last
            else:
                if begin[at] <= stop:
                    break
                at = before[at]
            if len(nodes) - size > len(begin):
                raise AnalysisError("the dependency graph has a cycle")
        lengths.append(len(nodes) - size)
    lengths.reverse()
    return np.frombuffer(nodes, dtype=np.int32)[::-1], np.repeat(np.arange(len(lengths)), lengths)


def _leaves(graph: Graph) -> dict[int, tuple[int, int]]:
    """The events at which a path over all ranks leaves the rank: since when, and to which event."""
    event, last = graph.last.at, graph.last.value
    leaves = last != event
    return dict(
        zip(
            event[leaves].tolist(),
            zip(graph.ready.value[leaves].tolist(), last[leaves].tolist(), strict=True),
            strict=True,
        )
    )


_GAP, _WAIT, _ACTIVITY = 0, 1, 2
"""The up to three pieces of a node, in order of time: waiting to begin, waiting for peers, and what it did."""


_NODES_AT_A_TIME = 1 << 17
"""Nodes of paths that become pieces together: what is known of each takes ten times its memory."""


class Found(NamedTuple):
    """Of some paths the pieces, and per path: sums, what it consists of by kind and by cause."""

    pieces: pl.DataFrame
    steps: pl.DataFrame
    kinds: pl.DataFrame
    causes: pl.DataFrame


def paths_along(graph: Graph, launched: Attribution, walks: Walks, *, across: bool) -> Found:
    """Everything about the paths; what it consists of is not yet in order."""
    nodes, path = _walk(graph, walks, across=across)
    ends = np.append(np.flatnonzero(path[1:] != path[:-1]) + 1, path.size)
    # Where the first path ends that reaches the next multiple: paths stay whole.
    wanted = np.arange(_NODES_AT_A_TIME, path.size + _NODES_AT_A_TIME, _NODES_AT_A_TIME)
    cuts = np.unique(ends[np.minimum(np.searchsorted(ends, wanted), ends.size - 1)]).tolist()

    def between(bounds: tuple[int, int]) -> Found:
        here = slice(*bounds)
        return _pieces(graph, launched, walks, nodes[here], path[here], across=across)

    parts = in_parallel(pairwise([0, *(cuts or [0])]), between, events=path.size)
    together = Found(*(pl.concat(frames) for frames in zip(*parts, strict=True)))
    return together._replace(steps=_summarise(together.steps, walks, launched.steps))


def _pieces(
    graph: Graph, launched: Attribution, walks: Walks, nodes: Rows, path: Ints, *, across: bool
) -> Found:
    """``PATH`` of some whole paths, their sums (see ``_sums``), and what they consist of."""
    begin, edge = graph.at(nodes, across=across)
    is_event = nodes < graph.events
    stop, top = walks.start[path], walks.end[path]
    is_tail = np.ones(nodes.size, dtype=bool)  # the last event of its path
    is_tail[:-1] = path[1:] != path[:-1]
    is_head = np.roll(is_tail, 1)

    # A node's time is cut where its successor began, and at the window's edges.
    closed = np.minimum(graph.ends(nodes), np.where(is_tail, top, np.roll(begin, -1)))
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
        lasting.group_by([*KEY, *by]).agg(pl.col("duration_ns").sum(), pieces=pl.len().cast(pl.Int64))
        for by in (["kind"], CAUSE)
    )
    return Found(PATH.check(pieces), _sums(facts, pieces), kinds, causes)


def _assert_tiling(walks: Walks, paths: Ints, path: Ints, start: Ints, end: Ints) -> None:
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
    hung = edge.astype(np.int64)
    return (
        pl.concat(parts, how="diagonal")[place]
        .with_columns(
            hangs_on_nothing=hung == Edge.NONE,
            via=pl.Series(hung),
            launched_step=pl.Series(np.where(led_to >= 0, launched.step[led_to], -1))
            .cast(pl.Int64)
            .replace(-1, None),
            phase=launched.phase_names(led_to),
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


def _summarise(sums: pl.DataFrame, walks: Walks, names: pl.DataFrame) -> pl.DataFrame:
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


def _warm_up(walks: Walks) -> list[int]:
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
