"""What makes the step this long, cause by cause, and what to change first?

Every instant of the critical path over all ranks is given to at most one cause, so what causes cost at most can never
add up to more than the step, nor a cause to more than the critical path allows (both asserted)::

    path_ns = computation + sum over causes of cost + unresolved

    cost(cause, step) = min over the tied paths of the step of the path time given to the cause
    cost(cause)       = mean over the steady steps of cost(cause, step)

The minimum over tied paths: where several ranks end together, what only one of them suffers from saves nothing.
An instant of the path is given to the first of these that holds it:

1. *straggler*: the path runs on the rank that arrived last, within what made it late, and does not transfer (lateness:
   behind the median of the other ranks; sought first in the long pauses of the rank's host, then just before the
   arrival; what the others had no chance to wait for yet is carried on to the next collective and counts once);
2. *transfer*: on the compute stream, beside another communicator, slowed down by computation (by the measured ratio),
   latency of small messages (by the fitted link), a backward's only bucket, its last bucket, or communication itself;
3. *host*: waiting for the GPU and what follows from it, between pieces of compiled backward, between a bucket's being
   ready and its launch, one long call or pause, or launching at all;
4. *compute* beside communication, by the measured ratio; start-up gaps, queueing and copies.

"At most", since without the cause something else becomes critical: ``whatif`` asks what is left then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import LATENCY_NS, Edge, Graph, build
from nsysddp.dependencies.queues import NEVER, event_queues
from nsysddp.model.errors import AnalysisError
from nsysddp.model.intervals import Intervals
from nsysddp.model.names import visible
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import BYTES_PER_MIB, NS_PER_MS, ms
from nsysddp.questions import buckets as bucket_analysis
from nsysddp.questions import contention as contention_analysis
from nsysddp.questions.causes import BY_CODE, Cause, link_reference_gbps
from nsysddp.questions.collectives import bandwidth, on_compute_streams
from nsysddp.questions.critical_path import COMMUNICATION_KINDS, critical_path
from nsysddp.questions.link import Link, fit_link
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

COMPUTATION, UNRESOLVED = "computation", "unresolved"
"""What the path holds beside causes: work that the step is there for, and what the trace cannot tell."""

LONG_HOST_NS = NS_PER_MS
"""A single host piece longer than this is a cause of its own, whatever synchronisation preceded it (as in ``idle``)."""

LARGE_BYTES = 8 * BYTES_PER_MIB
"""From this size on a collective should reach the bandwidth of its link."""

SLOW_LINK = 0.5
"""Below this share of the link's reference, busbw of large messages is called low."""

STEADY_SPREAD = 1.25
"""Steady steps differ by less than this, longest over shortest."""

_LINK_METRICS = r"(?i)pcie|nvlink|\bnic\b|infiniband"
_INDUCTOR = r"^triton_(poi|red|per|tem|for)_"
_HOST = ("host", "host_gap", "sync")

DIAGNOSIS = Table(
    "diagnosis",
    "one cause, the costliest first; faults have no cost and come last",
    (
        Column("place", INT, "1 for the costliest"),
        Column("cause", TEXT, "stable name of the cause"),
        Column("cost_ns", INT, "what it costs at most per steady step; null for a fault, which has no cost"),
        Column("step_ratio", FLOAT, "cost_ns / mean critical path of the steady steps"),
        Column("confidence", TEXT, "high, medium or low"),
        Column("doubt", TEXT, "why the confidence is not high; null if it is"),
        Column("steps", INT, "steady steps in which it costs anything"),
        Column("of_steps", INT, "steady steps"),
        Column("rank", INT, "rank on which most of it happened; null if it is spread"),
        Column("phase", TEXT, "phase in which most of it happened; null if it is spread"),
        Column("claim", TEXT, "what was found, one sentence"),
        Column("try_next", TEXT, "one change"),
        Column("refuted_by", TEXT, "what would show that it is not the cause"),
    ),
)

DIAGNOSIS_STEP = Table(
    "diagnosis_step",
    "one cause (or computation, or unresolved) in one step",
    (
        Column("step", TEXT, "name of the step; null for the whole capture"),
        Column("step_index", INT, "0-based order of the step; null for the whole capture"),
        Column("cause", TEXT, "stable name of the cause, computation or unresolved"),
        Column("cost_ns", INT, "path time given to it, the least of the step's tied paths"),
        Column("path_ns", INT, "critical path of the step, the shortest of the tied ones"),
    ),
)

DIAGNOSIS_EVIDENCE = Table(
    "diagnosis_evidence",
    "one part of a cause: path time by rank, phase, kind and name, the largest first",
    (
        Column("cause", TEXT, "stable name of the cause"),
        Column("kind", TEXT, "kind of the pieces of the critical path"),
        Column("rank", INT, "rank on which they happened"),
        Column("phase", TEXT, "phase in which they were launched"),
        Column("name", TEXT, "kernel, copy or API name"),
        Column(
            "host_phase",
            TEXT,
            "host pieces above 1 ms: phase range in which the host spent most of it; null if in none",
        ),
        Column("cost_ns", INT, "path time per steady step, mean over all paths of the step"),
        Column("pieces", INT, "pieces of the critical path"),
    ),
)

DIAGNOSIS_UNJUDGED = Table(
    "diagnosis_unjudged",
    "one cause of which this capture says nothing",
    (
        Column("cause", TEXT, "stable name of the cause"),
        Column("reason", TEXT, "what is missing"),
        Column("capture", TEXT, "what to capture next time"),
    ),
)

TABLES = (DIAGNOSIS, DIAGNOSIS_STEP, DIAGNOSIS_EVIDENCE, DIAGNOSIS_UNJUDGED)
"""The tables of `nsysddp diagnose`, in order."""


def diagnose(context: Context, *, graph: Graph | None = None, paths: Result | None = None) -> Result:
    """Which causes make the steady steps long, what does each cost at most, and what to change first?

    Args:
        context: of a trace loaded with ``host_calls=True``, ``shapes=True`` and ``metrics=True`` for all causes;
            what is missing is listed in ``diagnosis_unjudged``.
        graph: the dependency graph, if it has been built.
        paths: the answer of ``critical_path`` for the same steps, if it is known.

    Returns:
        The tables ``diagnosis``, ``diagnosis_step``, ``diagnosis_evidence`` and ``diagnosis_unjudged``, with one
        finding per cause.

    Raises:
        AnalysisError: if causes add up to more than a step.
    """
    trace = context.trace
    graph = build(trace) if graph is None else graph
    if paths is None:
        chosen = context.selection
        paths = critical_path(
            trace,
            "step" if context.windows.per == "step" else "capture",
            first_step=max(chosen.first_step or 0, chosen.skip_warmup),
            last_step=chosen.last_step,
            graph=graph,
            attribution=context.attribution,
        )
    facts = _Facts.of(context, graph)
    pieces = _pieces(context, paths)
    parts = _classified(context, graph, facts, _cut(context, graph, pieces))
    per_step = _per_step(parts, paths)
    _assert_bounds(per_step)
    evidence = _evidence(parts)
    rows = [*_costs(per_step, evidence, paths, facts), *_faults(context, graph, paths)]
    frames = {
        "diagnosis": DIAGNOSIS.frame(
            [row | {"place": number} for number, row in enumerate(rows, start=1)],
        ),
        "diagnosis_step": DIAGNOSIS_STEP.check(per_step),
        "diagnosis_evidence": DIAGNOSIS_EVIDENCE.check(evidence),
        "diagnosis_unjudged": DIAGNOSIS_UNJUDGED.frame(_unjudged(context, facts, paths)),
    }
    return Result(
        trace,
        frames,
        findings=_findings(frames),
        assumptions=(
            "each instant of the critical path is given to one cause, so costs add up; without a cause something else "
            "may become critical, so each is what it costs at most",
            *paths.assumptions,
        ),
        warnings=paths.warnings,
    )


# --- what the other analyses say -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Facts:
    """What decides between causes.

    Attributes:
        buckets: ``schema.BUCKET`` rows.
        link: fitted link; None where no size is known.
        slower: per (rank, step): share of the time beside communication that contention cost, where its interval
            excludes 0; for step -1 of the whole capture.
        slower_transfer: per rank: the same of transfers beside computation.
        compute_streams: (rank, context, stream) of the queues that do most of the computing.
        compiled: ranks with kernels of a compiled backward.
        busbw_ratio: median busbw of large collectives over the link's reference; None if either is unknown.
        busbw_gbps, reference_gbps: the two.
        has_shapes: contention could be judged.
        has_metrics: GPU metrics were sampled.
        excess: what a rank computed for longer than the median of the others, see ``_excess``.
        link_activity: sampled PCIe, NVLink and NIC metrics beside computation and without, in words.
    """

    buckets: pl.DataFrame
    link: Link | None
    slower: dict[tuple[int, int], float]
    slower_transfer: dict[int, float]
    compute_streams: set[tuple[int, int, int]]
    compiled: list[int]
    busbw_ratio: float | None
    busbw_gbps: float | None
    reference_gbps: float | None
    has_shapes: bool
    has_metrics: bool
    excess: pl.DataFrame
    link_activity: tuple[str, ...]

    @classmethod
    def of(cls, context: Context, graph: Graph) -> _Facts:
        """Ask the other analyses."""
        trace = context.trace
        found = None if trace.shapes is None else contention_analysis.contention(context)
        slower, slower_transfer = slowdowns(found)
        large = context.timed.filter(pl.col("bytes") >= LARGE_BYTES, pl.col("ready_ns").is_not_null()).unique(
            "collective_id"
        )
        rates = [
            rate
            for kind, size, shortest, group in large.select(
                "kind", "bytes", "shortest_ns", "group_size"
            ).iter_rows()
            if (rate := bandwidth(kind, size, shortest, group)[1]) is not None
        ]
        rate = float(np.median(rates)) if rates else None
        references = {link_reference_gbps(name) for name in trace.ranks["gpu_name"].to_list()}
        reference = references.pop() if len(references) == 1 else None
        return cls(
            buckets=bucket_analysis.buckets(context, graph=graph)["bucket"],
            link=fit_link(context.timed),
            slower=slower,
            slower_transfer=slower_transfer,
            compute_streams=set(
                on_compute_streams(trace, context.attribution).select("rank", "context", "stream").iter_rows()
            ),
            compiled=_compiled(context),
            busbw_ratio=None if rate is None or reference is None else rate / reference,
            busbw_gbps=rate,
            reference_gbps=reference,
            has_shapes=trace.shapes is not None,
            has_metrics=trace.metrics is not None and not trace.metrics.is_empty(),
            excess=_excess(context),
            link_activity=_link_activity(found),
        )


def slowdowns(found: Result | None) -> tuple[dict[tuple[int, int], float], dict[int, float]]:
    """By how much are kernels slower beside communication, and transfers beside computation?

    Args:
        found: the answer of ``contention.contention``; None without launch shapes.

    Returns:
        Per (rank, step; -1 for the whole capture) the share of the time beside communication that contention cost, and
        per rank the share of transfer time beside computation that was lost to it; only where the interval excludes 0.
    """
    slower: dict[tuple[int, int], float] = {}
    transfers: dict[int, float] = {}
    if found is None:
        return slower, transfers
    known = found["contention_step"].filter(
        pl.col("contention_low_ns") > 0, pl.col("hidden_communication_ns") > 0
    )
    for rank, step, cost, beside in known.select(
        "rank", "step_index", "contention_ns", "hidden_communication_ns"
    ).iter_rows():
        slower[(rank, -1 if step is None else step)] = min(cost / beside, 1.0)
    reverse = found["contention"].filter(
        pl.col("side") == "communication", pl.col("ratio_low") > 1, pl.col("beside_ns") > 0
    )
    lost = ((1 - 1 / pl.col("ratio")) * pl.col("beside_ns")).sum() / pl.col("beside_ns").sum()
    for rank, mean in reverse.group_by("rank").agg(lost).iter_rows():
        transfers[rank] = mean
    return slower, transfers


def _link_activity(found: Result | None) -> tuple[str, ...]:
    """Sampled activity of the links while communication ran beside computation and alone, the busiest first."""
    if found is None or found["contention_metric"].is_empty():
        return ()
    table = (
        found["contention_metric"]
        .filter(pl.col("metric").str.contains(_LINK_METRICS))
        .pivot(on="situation", index="metric", values="mean_value", aggregate_function="max")
    )
    if not {"both", "communication_alone"} <= set(table.columns):
        return ()
    busy = table.filter(pl.col("both").is_not_null()).sort("both", "metric", descending=[True, False]).head(3)
    return tuple(
        f"{visible(metric)} {both:.1f} beside computation"
        + ("" if alone is None else f", {alone:.1f} without")
        for metric, both, alone in busy.select("metric", "both", "communication_alone").iter_rows()
    )


def _excess(context: Context) -> pl.DataFrame:
    """By how much does each phase of a rank last longer than the median of the others, and its longest kernel?

    One row per rank and phase, the largest first: ``longer_ns`` of the phase's computing span per step, and the kernel
    whose total differs most, with ``kernel_longer_ns`` per step.
    """
    trace, attribution = context.trace, context.attribution
    events = (
        trace.events.lazy()
        .select("rank", "class", "start_ns", "end_ns", "name")
        .with_columns(step=pl.Series(attribution.step), phase=attribution.phase_names())
        .filter(
            pl.col("class").is_in(["compute", "spin"]), pl.col("step") >= 0, pl.col("phase").is_not_null()
        )
    )
    spans = events.group_by("rank", "step", "phase").agg(
        longer_ns=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    kernels = (
        events.group_by("rank", "step", "phase", "name")
        .agg(total=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .group_by("rank", "phase", "name")
        .agg(kernel_longer_ns=pl.col("total").median())
    )
    phases = spans.group_by("rank", "phase").agg(pl.col("longer_ns").median())

    def against_others(frame: pl.LazyFrame, value: str, by: list[str]) -> pl.DataFrame:
        table = frame.collect()
        pairs = table.join(table.rename({"rank": "other", value: "theirs"}), on=by, how="inner").filter(
            pl.col("rank") != pl.col("other")
        )
        return (
            pairs.group_by("rank", *by)
            .agg(pl.col(value).first() - pl.col("theirs").median())
            .with_columns(pl.col(value).cast(pl.Int64))
        )

    most = (
        against_others(kernels, "kernel_longer_ns", ["phase", "name"])
        .sort("kernel_longer_ns", "name", descending=[True, False])
        .unique(["rank", "phase"], keep="first", maintain_order=True)
    )
    most = most.with_columns(name=trace.names["text"].gather(most["name"]))
    return (
        against_others(phases, "longer_ns", ["phase"])
        .join(most, on=["rank", "phase"], how="left")
        .sort("longer_ns", "rank", "phase", descending=[True, False, False])
        .with_columns(pl.col("rank").cast(pl.Int64))
    )


def _compiled(context: Context) -> list[int]:
    """Ranks that ran kernels of torch.compile in backward."""
    trace = context.trace
    rows = np.flatnonzero(trace.names["text"].str.contains(_INDUCTOR).fill_null(False).to_numpy())
    if not rows.size:
        return []
    events = np.flatnonzero(np.isin(trace.events["name"].to_numpy(), rows))
    phases = context.attribution.phase_names().gather(events)
    ranks = trace.events["rank"].gather(events).filter(phases == "backward")
    return sorted({int(rank) for rank in ranks.unique().to_list()})


# --- pieces of the path, cut where a cause begins or ends -----------------------------------------------------------


def _pieces(context: Context, paths: Result) -> pl.DataFrame:
    """The pieces of the steady steps' paths in order.

    With the number of their path (``path``), whether they are one long piece of host time (``is_long``), and in which
    phase the host spent that (``host_phase``).
    """
    key = ["step_index", "path_rank"]
    steady = paths["critical_path_step"].filter(~pl.col("is_warmup"))
    if steady.is_empty():
        steady = paths["critical_path_step"]
    numbered = steady.select(*key, "step").with_row_index("path").with_columns(pl.col("path").cast(pl.Int64))
    pieces = (
        paths["critical_path"]
        .drop("step")
        .join(numbered, on=key, how="inner", nulls_equal=True, maintain_order="left")
        .sort("path", "start_ns", maintain_order=True)
        .with_columns(
            is_long=pl.col("kind").is_in(["host", "host_gap"])
            & (pl.col("end_ns") - pl.col("start_ns") > LONG_HOST_NS)
        )
    )
    return pieces.with_columns(host_phase=_host_phases(context, pieces))


def _host_phases(context: Context, pieces: pl.DataFrame) -> pl.Series:
    """In which phase's range did the host spend most of each long piece?

    A piece carries the phase of what was launched next; what held the host up lies before that.
    """
    phases = context.attribution.phases
    found: list[str | None] = [None] * pieces.height
    long = pieces.with_row_index("at").filter("is_long")
    for at, rank, start, end in long.select("at", "rank", "start_ns", "end_ns").iter_rows():
        mine = phases.filter(pl.col("process") == context.trace.process_of_rank[rank])
        within = pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(start))
        spent = mine.select("phase", within=within).filter(pl.col("within") > (end - start) / 2)
        found[at] = spent.sort("within", descending=True)["phase"].to_list()[0] if spent.height else None
    return pl.Series("host_phase", found, dtype=pl.String)


def _cut(context: Context, graph: Graph, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces, cut at the edges of lateness and of late launches.

    ``late``: whether the part lies in the lateness of its own rank. ``unlaunched``: the row of the collective that was
    ready on the GPU then, and not launched, -1 if none.
    """
    path = pieces["path"].to_numpy()
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    collective = pieces.filter(pl.col("kind") == "transfer")
    arriver = graph.last[collective["event"].to_numpy()]
    spans = [
        _lateness(context, graph, pieces),
        _late_launches(graph, arriver, collective["path"].to_numpy()),
    ]
    # Cut points become parts of their pieces; (path, time) is one ascending number, since paths follow each other.
    low, high = int(start.min(initial=0)), int(end.max(initial=0))
    width = high - low + 1

    def place(of: Ints, time: Ints) -> Ints:
        return np.asarray(of * width + np.clip(time - low, 0, width - 1), dtype=np.int64)

    begins, ends = place(path, start), place(path, end)
    points = np.concatenate([begins, *(place(span[0], edge) for span in spans for edge in span[1:3])])
    points = np.unique(points)
    owner = np.searchsorted(begins, points, side="right") - 1
    inside = (owner >= 0) & (points < ends[np.maximum(owner, 0)])
    points, owner = points[inside], owner[inside]
    tops = np.minimum(np.append(points[1:], np.iinfo(np.int64).max), ends[owner])
    late, unlaunched = ([place(of, first), place(of, last), what] for of, first, last, what in spans)
    rank = pieces["rank"].fill_null(-1).to_numpy()[owner]
    return (
        pieces[owner]
        .with_columns(start_ns=points - path[owner] * width + low, end_ns=tops - path[owner] * width + low)
        .with_columns(
            late=_covered_by_own(points, rank, *late),
            unlaunched=_covered(points, *unlaunched),
            is_first=np.append(True, owner[1:] != owner[:-1])[: owner.size],
        )
    )


_Spans = tuple["Ints", "Ints", "Ints", "Ints"]
"""Path, start, end and what it says, of each span."""


def _lateness(context: Context, graph: Graph, pieces: pl.DataFrame) -> _Spans:
    """What made a path's rank late for every collective at whose last arrival the path is on that rank.

    Lateness is behind the others' arrival (their median), which is when they had launched the collective and its data
    was ready, not its start: a collective that queues behind one which itself waited for the late rank would hide the
    lateness. Until the others' data come from work that waited for the rank, they are ahead of it by the lateness of
    before, so that only what is added counts; and a waiting collective slows their kernels, so lateness never shrinks.
    """
    trace = context.trace
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    members = context.timed.filter(pl.col("ready_ns").is_not_null(), pl.col("ready_peers").is_null())
    member = members["event"].to_numpy()
    communication = (trace.events["class"] == "communication").to_numpy()
    ahead = graph.queues.before[member]
    ahead = np.where(communication[ahead], -1, ahead)
    call = graph.lines.launcher[member]
    ready = np.full(member.size, -1, dtype=np.int64)
    for row, times in ((graph.queues.awaited[member], end), (ahead, end), (call, graph.lines.end)):
        if times.size:
            ready = np.maximum(ready, np.where(row >= 0, times[np.maximum(row, 0)], -1))
    behind = np.full(member.size, NEVER, dtype=np.int64)
    for row in (graph.queues.awaited[member], ahead):
        behind = np.maximum(behind, np.where(row >= 0, graph.queues.behind_ns[np.maximum(row, 0)], NEVER))
    # What a node of a CUDA graph waited for is not known.
    known = (ready >= 0) & ~trace.events["in_graph"].gather(member).fill_null(False).to_numpy()
    arrival = np.where(known, np.minimum(ready, start[member]), start[member])
    arriver = graph.last[member]
    turn = ("last_rank", "step")
    others = (
        members.with_columns(
            arrival=arrival,
            behind=behind,
            arriver=arriver,
            step=context.attribution.step[arriver],
            ready=start[arriver],
        )
        .filter(pl.col("event") != pl.col("arriver"))
        .group_by("arriver", "last_rank", "step", "ready")
        .agg(
            skew=pl.col("ready").first() - pl.col("arrival").median().cast(pl.Int64),
            behind=pl.col("behind").max(),
        )
        .sort("last_rank", "step", "ready", "arriver")
        .with_columns(earlier=pl.col("ready").shift().over(turn).fill_null(NEVER))
        .with_columns(chain=(pl.col("behind") >= pl.col("earlier")).cum_sum().over(turn))
        .with_columns(
            most=pl.col("skew").cum_max().over(*turn, "chain"),
            since=pl.col("earlier").first().over(*turn, "chain"),
        )
        .with_columns(lateness=pl.col("most") - pl.col("most").shift(fill_value=0).over(*turn, "chain"))
        .filter(pl.col("skew") > LATENCY_NS, pl.col("lateness") > 0)
        .cast({"last_rank": pl.Int64})
    )
    met = _met(pieces, others)
    pauses: dict[tuple[int, int], list[list[int]]] = {}
    for on, rank, first, last in (
        pieces.filter("is_long").select("path", "rank", "start_ns", "end_ns").iter_rows()
    ):
        pauses.setdefault((on, rank), []).append([first, last, last])
    spans = [
        (on, *span, rank)
        for on, rank, since, ready, lateness in met.select(
            "path", "last_rank", "since", "ready", "lateness"
        ).iter_rows()
        for span in _made_in(pauses.get((on, rank), []), since, ready, lateness)
    ]
    table = np.array(spans, dtype=np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _met(pieces: pl.DataFrame, arrivals: pl.DataFrame) -> pl.DataFrame:
    """The arrivals (``ready``, ``last_rank``) at which a path is on the rank that arrives, with that ``path``."""
    path, start = pieces["path"].to_numpy(), pieces["start_ns"].to_numpy()
    rank = pieces["rank"].fill_null(-1).to_numpy()
    firsts = np.flatnonzero(np.append(True, path[1:] != path[:-1])) if path.size else path
    lasts = np.append(firsts, path.size)[1:] - 1
    arrivals = arrivals.sort("ready", "arriver")
    ready = arrivals["ready"].to_numpy()
    low = np.searchsorted(ready, start[firsts], side="right")
    count = np.searchsorted(ready, pieces["end_ns"].to_numpy()[lasts], side="right") - low
    on = np.repeat(np.arange(firsts.size), count)
    row = np.arange(on.size) + np.repeat(low - np.cumsum(count) + count, count)
    # (path, time) is one ascending number, since paths follow each other.
    zero = int(min(start.min(initial=0), ready.min(initial=0)))
    width = int(max(start.max(initial=0), ready.max(initial=0))) - zero + 1
    begins = np.repeat(np.arange(firsts.size), lasts - firsts + 1) * width + (start - zero)
    piece = np.searchsorted(begins, on * width + (ready[row] - zero), side="left") - 1
    here = np.flatnonzero(rank[piece] == arrivals["last_rank"].to_numpy()[row])
    met: pl.DataFrame = arrivals[row[here]].with_columns(path=pl.Series(path[firsts][on[here]]))
    return met


def _made_in(pauses: list[list[int]], since: int, ready: int, lateness: int) -> Iterator[tuple[int, int]]:
    """Where a rank was held up before ``ready``: in its host's long pauses, the latest first, then just before.

    ``pauses``: start, end and end of what is left of each; what is taken is cut off, for the next lateness.
    """
    before = [pause for pause in reversed(pauses) if since < pause[1] <= ready]
    for pause in before:
        taken = min(lateness, pause[2] - pause[0])
        if taken:
            yield pause[2] - taken, pause[2]
            pause[2] -= taken
            lateness -= taken
    held_up = ready - lateness
    for first, last, _ in before:
        if last > held_up:
            held_up -= last - first
    if lateness:
        yield held_up, ready


def _late_launches(graph: Graph, event: Ints, path: Ints) -> _Spans:
    """From the end of what a collective on a path waited for to its start, where it was its launch that came last."""
    trace = graph.trace
    producer = graph.queues.awaited[event]
    late = (producer >= 0) & (graph.edge[event] == Edge.LAUNCH)
    event, path, producer = event[late], path[late], producer[late]
    first, last = trace.events["end_ns"].to_numpy()[producer], trace.events["start_ns"].to_numpy()[event]
    long = last - first > LATENCY_NS
    return path[long], first[long], last[long], event[long]


def _covered(points: Ints, start: Ints, end: Ints, value: Ints) -> Ints:
    """For each point the value of the last span that begins at or before it and holds it, -1 if none does."""
    found = np.full(points.size, -1, dtype=np.int64)
    for which in np.argsort(start, kind="stable"):
        first, last = np.searchsorted(points, (start[which], end[which]))
        found[first:last] = value[which]
    return found


def _covered_by_own(points: Ints, rank: Ints, start: Ints, end: Ints, owner: Ints) -> NDArray[np.bool_]:
    """For each point, which lies on a rank: does any span of that rank hold it?"""
    held = np.zeros(points.size, dtype=bool)
    for one in np.unique(owner):
        mine = owner == one
        covered = Intervals.union_of(start[mine], end[mine]).length_within(points, points + 1) > 0
        held |= covered & (rank == one)
    return held


# --- to which cause each part is given --------------------------------------------------------------------------------


def _classified(context: Context, graph: Graph, facts: _Facts, cut: pl.DataFrame) -> pl.DataFrame:
    """One row per part of a piece and cause: path, step, cause, kind, rank, phase, name, cost_ns."""
    trace = context.trace
    duration = (cut["end_ns"] - cut["start_ns"]).to_numpy()
    kind = cut["kind"].cast(pl.String).to_numpy()
    rank = cut["rank"].fill_null(-1).to_numpy()
    event = cut["event"].fill_null(-1).to_numpy()
    phase = cut["phase"]
    cause = np.full(cut.height, UNRESOLVED, dtype=object)
    cause[np.isin(kind, ["compute", "spin"])] = COMPUTATION
    cause[kind == "memory"] = "copies"
    cause[kind == "queued"] = "queued"
    cause[kind == "gap"] = "kernel_latency"
    launched_late = (kind == "gap") & (cut["via"].cast(pl.String) == "launch").fill_null(False).to_numpy()
    host = np.isin(kind, _HOST) | launched_late
    cause[host] = "host_bound"
    cause[host & cut["is_long"].to_numpy()] = "host_stall"

    early = (cut["unlaunched"] >= 0).to_numpy() & host
    cause[early] = "bucket_scheduling"
    if facts.link is not None and facts.link.has_latency and early.any():
        sizes = _bytes_of(context)
        size = sizes[cut["unlaunched"].to_numpy()[early]]
        small = np.array([of > 0 and facts.link.latency_ratio(of) > SLOW_LINK for of in size], dtype=bool)
        cause[np.flatnonzero(early)[small]] = "small_buckets"
    backward = (phase == "backward").fill_null(False).to_numpy()
    cause[host & backward & np.isin(rank, facts.compiled) & (duration > LATENCY_NS)] = "graph_breaks"
    cause[_after_synchronisation(graph, cut, kind, host)] = "synchronisation"

    transfer = kind == "transfer"
    cause[transfer] = _transfer_causes(context, facts, event[transfer], rank[transfer])
    cause[cut["late"].to_numpy() & ~np.isin(kind, COMMUNICATION_KINDS)] = "straggler"

    shares = _shares(context, facts, cut, duration, kind, rank, event)
    base = cut.select(
        "path", "step", "step_index", "path_rank", "kind", "rank", "phase", "name", "host_phase", "is_first"
    ).with_columns(pl.col("kind").cast(pl.String))
    rows = [base.with_columns(cause=pl.Series(cause, dtype=pl.String))]
    left = duration.astype(np.int64).copy()
    costs: list[Ints] = []
    for other, part, allowed in shares:
        taken = np.where(np.isin(cause, allowed), np.minimum(np.rint(part).astype(np.int64), left), 0)
        left -= taken
        rows.append(base.with_columns(cause=pl.lit(other), is_first=pl.lit(False)))
        costs.append(taken)
    assert trace is graph.trace
    whole = pl.concat(
        [
            frame.with_columns(cost_ns=pl.Series(cost))
            for frame, cost in zip(rows, [left, *costs], strict=True)
        ]
    ).filter(pl.col("cost_ns") > 0)
    assert int(whole["cost_ns"].sum() or 0) == int(duration.sum())
    return whole


def _after_synchronisation(
    graph: Graph, cut: pl.DataFrame, kind: Any, host: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Host time in a synchronising call, and after it until the path leaves the host.

    At most for as long as the call had blocked the host: without it, the host would have been that much earlier. A long
    piece is a cause of its own.
    """
    size = kind.size
    synchronises: NDArray[np.bool_] = kind == "sync"
    if not synchronises.any():
        return synchronises
    path, duration = cut["path"].to_numpy(), (cut["end_ns"] - cut["start_ns"]).to_numpy()
    fresh = np.ones(size, dtype=bool)
    fresh[1:] = ~(host[1:] & host[:-1] & (path[1:] == path[:-1]))
    run_start = np.maximum.accumulate(np.where(fresh, np.arange(size), 0))
    last_sync = np.maximum.accumulate(np.where(synchronises, np.arange(size), -1))
    elapsed = np.cumsum(duration) - duration
    since = elapsed - elapsed[last_sync] - duration[last_sync]
    lost = _blocked(graph, cut, np.flatnonzero(synchronises))
    follows = host & (last_sync >= run_start) & (since < lost[last_sync]) & ~cut["is_long"].to_numpy()
    kept: NDArray[np.bool_] = synchronises | follows
    return kept


def _blocked(graph: Graph, cut: pl.DataFrame, places: Ints) -> Ints:
    """How long each synchronising call had blocked the host, at the place of its piece; 0 elsewhere, shape (parts,)."""
    lines = graph.lines
    lost = np.zeros(cut.height, dtype=np.int64)
    ranks = cut["rank"].to_numpy()[places]
    until = cut["end_ns"].to_numpy()[places]
    for rank in np.unique(ranks):
        calls = np.flatnonzero((lines.rank == rank) & (lines.awaited >= 0))
        calls = calls[np.argsort(lines.end[calls], kind="stable")]
        mine = places[ranks == rank]
        found = np.searchsorted(lines.end[calls], until[ranks == rank], side="left").clip(max=calls.size - 1)
        lost[mine] = (lines.end - lines.start)[calls[found]]
    return lost


def _bytes_of(context: Context) -> Ints:
    """Message size of each event, 0 where it is unknown or none; shape (events,)."""
    size = np.zeros(context.trace.events.height, dtype=np.int64)
    size[context.timed["event"].to_numpy()] = context.timed["bytes"].fill_null(0).to_numpy()
    return size


def _transfer_causes(context: Context, facts: _Facts, event: Ints, rank: Ints) -> list[str]:
    """Why each transfer on the path is there: its stream, or its place among the buckets of its backward."""
    trace = context.trace
    gradients = facts.buckets.filter(pl.col("role") == "gradients")
    run = ["rank", "step_index", "micro_step"]
    gradients = gradients.with_columns(
        count=pl.len().over(run), final=pl.col("launched_ns") == pl.col("launched_ns").max().over(run)
    )
    place = {
        (collective, owner): (count, final)
        for collective, owner, count, final in gradients.filter(pl.col("collective_id").is_not_null())
        .select("collective_id", "rank", "count", "final")
        .iter_rows()
    }
    ids = np.full(trace.events.height, -1, dtype=np.int64)
    ids[context.timed["event"].to_numpy()] = context.timed["collective_id"].fill_null(-1).to_numpy()
    queues = trace.events[event].select("rank", "context", "stream")
    graph_nodes = trace.events["in_graph"].gather(event).fill_null(False).to_list()
    made = []
    for number, owner, queue, node in zip(
        ids[event].tolist(), rank.tolist(), queues.iter_rows(), graph_nodes, strict=True
    ):
        count, final = place.get((number, owner), (0, False))
        if queue in facts.compute_streams and not node:
            made.append("compute_stream")
        elif count == 1:
            made.append("single_bucket")
        elif final:
            made.append("compute_tail")
        else:
            made.append("slow_communication")
    return made


def _shares(
    context: Context, facts: _Facts, cut: pl.DataFrame, duration: Ints, kind: Any, rank: Ints, event: Ints
) -> Iterator[tuple[str, Floats, tuple[str, ...]]]:
    """Causes that hold a share of a part: the cause, ns of each part, and the causes from which it is taken."""
    trace = context.trace
    start, end = cut["start_ns"].to_numpy(), cut["end_ns"].to_numpy()
    transfer = kind == "transfer"
    moving = ("slow_communication", "compute_tail", "single_bucket", "compute_stream")
    competing = np.zeros(cut.height)
    slowed = np.zeros(cut.height)
    contended = np.zeros(cut.height)
    communicators = _other_communicators(context, transfer)
    step = cut["step_index"].fill_null(-1).to_numpy()
    for owner in trace.rank_numbers:
        mine = rank == owner
        beside = np.flatnonzero(mine & (kind == "compute"))
        communication = trace.union(owner, ["communication"])
        share = np.array([facts.slower.get((owner, int(number)), 0.0) for number in step[beside]])
        contended[beside] = share * communication.length_within(start[beside], end[beside])
        rows = np.flatnonzero(mine & transfer)
        if owner in facts.slower_transfer and rows.size:
            computing = trace.union(owner, ["compute", "spin"]).length_within(start[rows], end[rows])
            slowed[rows] = facts.slower_transfer[owner] * computing
        for communicator, others in communicators.get(owner, {}).items():
            own = rows[_communicators(context, event[rows]) == communicator]
            competing[own] = others.length_within(start[own], end[own])
    yield "process_groups", competing, moving
    yield "link_contention", slowed, moving
    if facts.link is not None and facts.link.has_latency:
        sizes = _bytes_of(context)
        size = np.where(event >= 0, sizes[event], 0)
        whole = facts.link.latency_ns + facts.link.ns_per_byte * size
        latency = np.where(
            transfer & (size > 0) & (whole > 0), facts.link.latency_ns / np.maximum(whole, 1), 0.0
        )
        # Latency is there for every message; it is the cause only where it dominates.
        yield "small_buckets", np.where(latency > SLOW_LINK, latency, 0.0) * duration, ("slow_communication",)
    yield "contention", contended, (COMPUTATION,)


def _communicators(context: Context, event: Ints) -> Any:
    """Communicator of each event, the empty text where it is unknown; shape as given."""
    found = pl.DataFrame({"event": event}).join(
        context.timed.select("event", "communicator"), on="event", how="left", maintain_order="left"
    )
    return found["communicator"].fill_null("").to_numpy()


def _other_communicators(context: Context, transfer: NDArray[np.bool_]) -> dict[int, dict[str, Intervals]]:
    """For each rank and communicator of a transfer on the path: when other communicators of the rank transferred."""
    known = context.timed.filter(
        pl.col("communicator").is_not_null(), pl.col("transfer_start_ns").is_not_null()
    )
    if known["communicator"].n_unique() < 2 or not transfer.any():
        return {}
    made: dict[int, dict[str, Intervals]] = {}
    for rank in context.trace.rank_numbers:
        mine = known.filter(pl.col("rank") == rank)
        for communicator in mine["communicator"].unique().to_list():
            others = mine.filter(pl.col("communicator") != communicator)
            made.setdefault(rank, {})[communicator] = Intervals.union_of(
                others["transfer_start_ns"].to_numpy(), others["end_ns"].to_numpy()
            )
    return made


# --- per step, and over the steady steps --------------------------------------------------------------------------


def _per_step(parts: pl.DataFrame, paths: Result) -> pl.DataFrame:
    """Cost of each cause in each step: the least over the step's paths; what only some paths have costs nothing."""
    steps = paths["critical_path_step"].select("step", "step_index", "path_ns")
    count = parts.group_by("step_index").agg(paths=pl.col("path").n_unique())
    shortest = steps.group_by("step_index").agg(pl.col("path_ns").min())
    return (
        parts.group_by("step", "step_index", "path", "cause")
        .agg(pl.col("cost_ns").sum())
        .group_by("step", "step_index", "cause")
        .agg(pl.col("cost_ns").min(), having=pl.len())
        .join(count, on="step_index", how="left", nulls_equal=True)
        .filter(pl.col("having") == pl.col("paths"))
        .join(shortest, on="step_index", how="left", nulls_equal=True)
        .sort("step_index", "cost_ns", "cause", descending=[False, True, False])
    )


def _assert_bounds(per_step: pl.DataFrame) -> None:
    """Causes never add up to more than the step, so no cause is more than the critical path allows."""
    sums = per_step.group_by("step_index").agg(pl.col("cost_ns").sum(), pl.col("path_ns").first())
    if (sums["cost_ns"] > sums["path_ns"]).any() or (per_step["cost_ns"] < 0).any():
        raise AnalysisError("the causes of a step add up to more than its critical path")


def _evidence(parts: pl.DataFrame) -> pl.DataFrame:
    """Path time by cause and place, per steady step: the mean over the paths of a step."""
    steps = max(1, parts["step_index"].n_unique())
    weight = parts.group_by("step_index").agg(paths=pl.col("path").n_unique())
    by = ["cause", "kind", "rank", "phase", "name", "host_phase"]
    return (
        parts.filter(pl.col("cause").is_in(list(BY_CODE)))
        .join(weight, on="step_index", how="left", nulls_equal=True)
        .group_by(by)
        .agg(
            cost_ns=((pl.col("cost_ns") / pl.col("paths")).sum() / steps).round().cast(pl.Int64),
            pieces=pl.col("is_first").sum().cast(pl.Int64),
        )
        .filter(pl.col("cost_ns") > 0)
        .sort("cause", "cost_ns", *by[1:], descending=[False, True, *[False] * 5], nulls_last=True)
    )


_SPREAD_OUT = 0.6
"""A rank (phase) with at least this share of a cause is named."""


def _costs(
    per_step: pl.DataFrame, evidence: pl.DataFrame, paths: Result, facts: _Facts
) -> list[dict[str, Any]]:
    """One row per cause that costs anything, the costliest first."""
    steady = per_step.group_by("step_index").agg(pl.col("path_ns").first())
    steps, path = steady.height, int(steady["path_ns"].sum() or 0)
    if not steps:
        return []
    rows = []
    sums = per_step.group_by("cause").agg(pl.col("cost_ns").sum(), found=pl.len())
    for code, total, found in sums.sort("cost_ns", "cause", descending=[True, False]).iter_rows():
        cost = round(total / steps)
        if code not in BY_CODE or not cost:
            continue
        parts = evidence.filter(pl.col("cause") == code)
        rank, phase = _mostly(parts, "rank"), _mostly(parts, "phase")
        longer = facts.excess.filter(pl.col("rank").eq_missing(rank), pl.col("longer_ns") > cost / 2).head(1)
        if code == "straggler":  # lateness is made before it shows: the phase is where the rank takes longer
            phase = longer["phase"][0] if longer.height else None
        confidence, doubt = _confidence(code, found, steps, rank, paths, facts)
        rows.append(
            {
                "cause": code,
                "cost_ns": cost,
                "step_ratio": total / path,
                "confidence": confidence,
                "doubt": doubt,
                "steps": found,
                "of_steps": steps,
                "rank": rank,
                "phase": phase,
                "claim": _claim(BY_CODE[code], cost, total / path, parts, rank, phase, facts),
                "try_next": _advice(BY_CODE[code], facts),
                "refuted_by": BY_CODE[code].refuted_by,
            }
        )
    return rows


def _mostly(parts: pl.DataFrame, column: str) -> Any:
    """The value with most of the cost, if it has at least ``_SPREAD_OUT`` of it."""
    if parts.is_empty():
        return None
    sums = (
        parts.group_by(column).agg(pl.col("cost_ns").sum()).sort("cost_ns", column, descending=[True, False])
    )
    return sums[column][0] if sums["cost_ns"][0] >= _SPREAD_OUT * int(sums["cost_ns"].sum()) else None


def _confidence(
    code: str, found: int, steps: int, rank: int | None, paths: Result, facts: _Facts
) -> tuple[str, str | None]:
    """How sure, and why not more."""
    grade = paths["critical_path_step"]["grade"][0]
    if code == "graph_breaks":
        return "low", "host time between compiled kernels: a graph break is one of several reasons"
    if grade != "full":
        return "low", "the critical path rests on a lower grade of evidence"
    if code == "straggler" and rank is None:
        return "low", "the late rank changes: jitter rather than one straggler"
    if found < 0.5 * steps:
        return "low", f"in {found} of {steps} steady steps only"
    if code in ("host_bound", "host_stall", "bucket_scheduling", "synchronisation"):
        return "medium", "the profiler itself lengthens host time"
    if code == "slow_communication" and facts.busbw_ratio is None:
        return "medium", "no message size or link reference to compare the bandwidth with"
    if code in ("contention", "link_contention"):
        return "medium", "a comparison of like kernels, not an experiment"
    if code == "small_buckets" and facts.link is not None and facts.link.spread_ratio > SLOW_LINK:
        return "medium", f"the fitted latency leaves deviations of {facts.link.spread_ratio:.0%}"
    if steps < 2:
        return "medium", "one steady step only"
    return "high", None


def _claim(
    cause: Cause,
    cost: int,
    ratio: float,
    parts: pl.DataFrame,
    rank: int | None,
    phase: str | None,
    facts: _Facts,
) -> str:
    """One sentence: what, where, how much at most, with the largest part."""
    where = ", ".join([*([] if rank is None else [f"rank {rank}"]), *([] if phase is None else [phase])])
    text = f"{cause.title}{where and f' ({where})'}: at most {ms(cost):.3f} ms a step, {ratio:.1%} of it"
    if cause.code == "slow_communication" and facts.busbw_gbps is not None:
        text += f"; busbw of messages from 8 MiB is {facts.busbw_gbps:.0f} GB/s"
        if facts.reference_gbps is not None:
            verdict = "low" if (facts.busbw_ratio or 0) < SLOW_LINK else "as the link allows"
            share = facts.busbw_gbps / facts.reference_gbps
            text += f", {share:.0%} of the link's {facts.reference_gbps:.0f}: {verdict}"
    if cause.code == "link_contention" and facts.link_activity:
        text += f"; sampled: {'; '.join(facts.link_activity)}"
    if cause.code == "bucket_scheduling":
        held = facts.buckets.filter(pl.col("held_by").is_not_null()).height
        if held:
            text += f"; {held} of {facts.buckets.height} buckets had to wait for an earlier one"
    if cause.code == "straggler":
        longer = facts.excess.filter(pl.col("rank").eq_missing(rank), pl.col("phase").eq_missing(phase)).head(
            1
        )
        for span, kernel, part in longer.select("longer_ns", "name", "kernel_longer_ns").iter_rows():
            text += f"; its {phase} lasts {ms(span):.3f} ms longer than the others'"
            if kernel is not None and part > span / 2:
                text += f", {_short(kernel)} alone {ms(part):.3f} ms longer"
    if parts.height and (cause.code != "straggler" or parts["kind"][0] in _HOST):
        largest = parts.row(0, named=True)
        if largest["name"] is not None:
            said = "before " if largest["kind"] in ("gap", "host_gap", "queued") else ""
            spent = "" if largest["host_phase"] is None else f", spent in {visible(largest['host_phase'])}"
            text += (
                f"; largest part: {said}{_short(largest['name'])} ({ms(largest['cost_ns']):.3f} ms{spent})"
            )
    return text[0].upper() + text[1:] + "."


def _advice(cause: Cause, facts: _Facts) -> str:
    if cause.code == "slow_communication" and facts.busbw_ratio is not None and facts.busbw_ratio < SLOW_LINK:
        return "find out why the link is slow: `nvidia-smi topo -m`, NCCL_DEBUG=INFO (P2P, NVLS, NIC), nccl-tests"
    return cause.try_next


def _short(name: str, most: int = 60) -> str:
    text = visible(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."


# --- faults, and what cannot be judged ----------------------------------------------------------------------------


def _faults(context: Context, graph: Graph, paths: Result) -> list[dict[str, Any]]:
    rows = []
    steps = (
        paths["critical_path_step"]
        .group_by("step_index")
        .agg(pl.col("path_ns").min(), pl.col("is_warmup").first())
    )
    if steps["step_index"].null_count() == 0 and steps.height > 1:
        warm, steady = steps.filter("is_warmup"), steps.filter(~pl.col("is_warmup"))
        lengths = steady["path_ns"].to_list()
        longest, shortest = max(lengths), min(lengths)
        spread = longest / shortest if shortest else 1.0
        if warm.height or spread > STEADY_SPREAD:
            parts = []
            if warm.height:
                many = f"first {warm.height} steps are" if warm.height > 1 else "first step is"
                parts.append(f"the {many} warm-up")
            if spread > STEADY_SPREAD:
                parts.append(f"steady steps last {ms(shortest):.3f} to {ms(longest):.3f} ms")
            rows.append(_fault("not_steady", "; ".join(parts), "high", None, steady.height))
    for rank, step, name, ahead_ns, observed in _races(context, graph):
        what = (
            f"on rank {rank} in {step} {_short(name)} of the optimizer started {ms(ahead_ns):.3f} ms before a "
            "gradient reduction of the same step had ended"
            if observed
            else f"on rank {rank} in {step} no recorded dependency leads from {_short(name)} of the optimizer to the "
            "gradient reductions of the step"
        )
        rows.append(
            _fault(
                "race",
                what,
                "high" if observed else "low",
                None if observed else "waits may be unrecorded",
                1,
            )
            | {"rank": rank, "phase": "optimizer"}
        )
        break  # the first stands for all: every step of a loop has the same dependencies
    return rows


def _fault(code: str, what: str, confidence: str, doubt: str | None, steps: int) -> dict[str, Any]:
    cause = BY_CODE[code]
    claim = f"{cause.title}: {what}"
    return {
        "cause": code,
        "confidence": confidence,
        "doubt": doubt,
        "of_steps": steps,
        "claim": claim[0].upper() + claim[1:] + ".",
        "try_next": cause.try_next,
        "refuted_by": cause.refuted_by,
    }


def _races(context: Context, graph: Graph) -> Iterator[tuple[int, str, str, int, bool]]:
    """Optimizer kernels on other streams than the compute stream that do not wait for the gradients.

    Yields rank, step, kernel, how long before the end of the reduction it started, and whether that was observed (it
    ran before the end) or follows from the absence of a recorded dependency.
    """
    trace, attribution = context.trace, context.attribution
    if trace.launches is None:
        return
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    names = trace.names["text"]
    phases = attribution.phase_names()
    classes = trace.events["class"].cast(pl.String).to_numpy()
    optimizer = (phases == "optimizer").fill_null(False).to_numpy() & np.isin(classes, ["compute", "spin"])
    reducing = np.zeros(trace.events.height, dtype=bool)
    kinds = context.timed["kind"].is_in(["all_reduce", "reduce_scatter"]).fill_null(False).to_numpy()
    reducing[context.timed["event"].to_numpy()[kinds]] = True
    reducing &= (phases == "backward").fill_null(False).to_numpy()
    queue = event_queues(trace)
    complete = graph.counts["waits"] > 0 and graph.counts["unresolved_waits"] == 0
    steps = attribution.steps["name"]
    ranks = trace.events["rank"].to_numpy()
    wanted = np.flatnonzero(optimizer | reducing)
    keys = np.stack([attribution.step[wanted], ranks[wanted]], axis=1)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    wanted, keys = wanted[order], keys[order]
    edges = np.flatnonzero(np.any(keys[1:] != keys[:-1], axis=1)) + 1
    for mine in np.split(wanted, edges):
        sent = mine[reducing[mine]]
        stepping = mine[optimizer[mine]]
        if not sent.size or not stepping.size or attribution.step[mine[0]] < 0:
            continue
        last = sent[np.argmax(end[sent])]
        for number in np.unique(queue[stepping]):
            group = stepping[queue[stepping] == number]
            first = int(group[np.argmin(start[group])])
            step = steps[int(attribution.step[first])]
            if start[first] < end[last] and first not in sent:
                yield (
                    int(ranks[first]),
                    step,
                    names[int(trace.events["name"][first])],
                    int(end[last] - start[first]),
                    True,
                )
            elif complete and queue[last] != number and not _waited_for(graph, first, int(last), end):
                yield int(ranks[first]), step, names[int(trace.events["name"][first])], 0, False


def _waited_for(graph: Graph, event: int, collective: int, end: Ints) -> bool:
    """Does any recorded dependency of the event, or of what is ahead of it, reach the end of the collective?"""
    lines = graph.lines
    at = event
    while at >= 0 and end[at] >= end[collective]:  # work ahead in its own queue may have done the waiting
        awaited = int(graph.queues.awaited[at])
        if awaited >= 0 and end[awaited] >= end[collective]:
            return True
        call = int(lines.launcher[at])
        if call < 0:
            return True  # without its launch nothing can be said
        at = int(graph.queues.before[at])
    call = int(lines.launcher[event])
    while call >= 0 and lines.end[call] >= end[collective]:
        awaited = int(lines.awaited[call])
        if awaited >= 0 and end[awaited] >= end[collective]:
            return True
        call = int(lines.before[call])
    return False


def _unjudged(context: Context, facts: _Facts, paths: Result) -> list[dict[str, str]]:
    """Causes of which this capture says nothing, and what to capture for them."""
    trace = context.trace
    grade = paths["critical_path_step"]["grade"][0] if paths["critical_path_step"].height else "gpu_only"
    phases = context.attribution.phases["phase"].unique().to_list()
    made: list[tuple[str, str, str]] = []
    if len(trace.rank_numbers) < 2:
        made.append(("straggler", "one rank only", "capture all ranks"))
    elif not context.timed["ready_ns"].is_not_null().any():
        made.append(
            ("straggler", "no collective could be matched over ranks", "export with --include-blobs=true")
        )
    if not facts.slower and not facts.has_shapes:
        made.append(
            ("contention", "kernels of one shape were not compared", "read the report with launch shapes")
        )
    elif not facts.slower:
        made.append(
            (
                "contention",
                "too few kernels ran with and without communication beside them to show a difference",
                "more steps, and steps without communication (no_sync)",
            )
        )
    if facts.link is None:
        made.append(("small_buckets", "message sizes are unknown", "export with --include-blobs=true"))
    elif not facts.link.has_latency:
        made.append(("small_buckets", "all messages have one size", "capture a second bucket_cap_mb too"))
    if not facts.has_metrics:
        made.append(
            (
                "link_contention",
                "PCIe, NVLink and NIC were not sampled",
                "--gpu-metrics-devices=all, --nic-metrics=true",
            )
        )
    if grade == "gpu_only":
        made.append(("host_bound", "no host calls", "--trace=cuda,nvtx"))
    if grade != "full":
        made.append(("race", "no CUDA event records", "--cuda-event-trace=true"))
    elif "optimizer" not in phases or "backward" not in phases:
        made.append(("race", "no ranges named backward and optimizer", "mark phases with NVTX"))
    if "backward" not in phases:
        made.append(("compute_tail", "no range named backward", "mark phases with NVTX"))
    return [{"cause": cause, "reason": reason, "capture": capture} for cause, reason, capture in made]


def _split(per_step: pl.DataFrame) -> Finding:
    """The mean critical path of a steady step: how much of it is computation, causes, and unknown."""
    if per_step.is_empty():
        return Finding("critical_path_split", "No steady step.", severity=1.0)
    windows = per_step["step_index"].n_unique()
    path = int(per_step.unique("step_index")["path_ns"].sum())
    known = {
        name: int(per_step.filter(pl.col("cause") == name)["cost_ns"].sum())
        for name in (COMPUTATION, UNRESOLVED)
    }
    given = int(per_step["cost_ns"].sum())
    parts = {
        "computation": known[COMPUTATION],
        "causes below": given - sum(known.values()),
        "unresolved": known[UNRESOLVED],
        "different on tied ranks": path - given,
    }
    listed = ", ".join(f"{name} {ms(value / windows):.3f}" for name, value in parts.items() if value)
    return Finding(
        "critical_path_split",
        f"Critical path {ms(path / windows):.3f} ms a step: {listed}.",
        value=path / windows,
        unit="ns",
        rows=({"table": "diagnosis_step"},),
        severity=1.0,
    )


def _findings(frames: dict[str, pl.DataFrame]) -> tuple[Finding, ...]:
    """Where the step goes, then one finding per row of the diagnosis, with the rows that carry it."""
    made = [_split(frames["diagnosis_step"])]
    for row in frames["diagnosis"].iter_rows(named=True):
        parts = frames["diagnosis_evidence"].filter(pl.col("cause") == row["cause"]).head(3)
        rows = tuple(
            {
                "table": "critical_path_cause",
                **{name: part[name] for name in ("kind", "rank", "phase", "name")},
            }
            for part in parts.iter_rows(named=True)
        )
        made.append(
            Finding(
                code=row["cause"],
                message=row["claim"],
                rank=row["rank"],
                value=row["cost_ns"],
                unit=None if row["cost_ns"] is None else "ns",
                rows=rows,
                severity=row["step_ratio"] or 0.0,
            )
        )
    return tuple(made)


QUESTION = Question(
    name="diagnosis",
    ask="What makes the step this long, cause by cause, and what to change first?",
    more="Each cause comes with the milliseconds per step that it costs at most (together never more than the step), "
    "how sure that is, one change to try, and what would refute it. Costs are of the steady steps' critical path.",
    tables=TABLES,
    run=lambda context, _: context.diagnosis,
    shown=DIAGNOSIS.name,
    reads=frozenset({"launches", "host_calls", "shapes", "metrics"}),
    whole_steps=True,
)
