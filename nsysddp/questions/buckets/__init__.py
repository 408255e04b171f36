"""When was each bucket ready, launched, held, sent?

    host   hook──launch──╮                           hook  our range around the bucket's communication hook
    compute  ██ producer ██│╮                        ready    end of the work that produced its data
    NCCL                    ╰ queued ╭─wait─┬transfer─╮        started ... ended

    launch_late = max(0, launched - ready)                       the GPU was ready, the host was not
    queued      = min(started, end of the kernel ahead) - max(ready, launched)      the link was busy with another one
    pending     = started - max(ready, launched) - queued       latency, or compute left no room on the GPU
    started - ready = launch_late + queued + pending
    tail        = |[started, ended) after the last backward compute|

**Which communication is a bucket.** A launch inside an ``nsysddp:bucket=`` range belongs to that bucket (source
``annotation``). In a process without such ranges the all-reduces launched in backward are taken for buckets, numbered
in order of launch (``inferred``): other all-reduces in backward (tensor parallelism, bitmaps of unused parameters)
cannot be told apart from them. All-gathers before and in backward, and reduce-scatters in backward, are the units of
FSDP.

**Ready.** NCCL's stream waits for CUDA events that are recorded where the data is produced. Of what these stand for,
and of the computation ahead in the bucket's own queue, the latest end counts: usually that of the kernel that puts the
last gradient into the bucket, or of a reduce-scatter on another stream. The collective ahead in the *same* queue
produced nothing: waiting for it is being queued. Without event records it is the last compute that the rank had
launched before (``launch_order``), which is what PyTorch records.

**Head of line.** DDP launches buckets in order: one that is complete waits until all before it are. When nothing but
communication was launched on the rank between two buckets, the second was complete when the first was let go, so the
first of such a run held the others. Since when cannot be seen. Which parameter held the first is not in a trace
either: ``producer`` names the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import Graph
from nsysddp.dependencies.queues import running_latest
from nsysddp.model import schema
from nsysddp.model.intervals import grouped_union
from nsysddp.model.markers import parse_bucket_mark
from nsysddp.model.result import Result
from nsysddp.questions.buckets.tables import BUCKET
from nsysddp.questions.buckets.words import findings_of, warnings_of
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]

GRADIENTS, GATHER_FORWARD, GATHER_BACKWARD, REDUCE_SCATTER = (
    "gradients",
    "gather_forward",
    "gather_backward",
    "reduce_scatter",
)
ANNOTATION, INFERRED = "annotation", "inferred"


def buckets(context: Context) -> Result:
    """What happened to every bucket of every step on every rank?

    Args:
        context: of a trace loaded with ``host_calls=True``; without, ``ready`` rests on the order of launches.

    Returns:
        The table ``bucket``, in order of rank, step and launch.
    """
    trace = context.trace
    graph = context.graph
    kernels = _kernels(context)
    if kernels.is_empty():
        frame = BUCKET.empty()
        return Result(trace, {"bucket": frame}, warnings=warnings_of(frame))
    kernels = kernels.with_columns(_ready(context, graph, kernels))
    rows = _rows(context, kernels)
    rows = rows.with_columns(*_queued(graph, rows), _tails(context, rows))
    rows = rows.with_columns(_held(context, rows))
    rows = rows.join(_consumers(trace, graph, rows), on="row", how="left", maintain_order="left")
    frame = BUCKET.check(rows)
    return Result(
        trace,
        {"bucket": frame},
        findings=findings_of(frame),
        assumptions=(
            "a bucket with nothing but communication launched since the one before it was complete and waited its turn",
        ),
        warnings=warnings_of(frame),
    )


# --- which communication belongs to which bucket ---------------------------------------------------------------------


def _marks(trace: Trace) -> pl.DataFrame:
    """One row per bucket range of ours: mark (number), process, thread, hook_ns, hook_end_ns and what it says."""
    found = trace.ranges.filter(pl.col("text").str.starts_with("nsysddp:bucket="))
    known = {text: parse_bucket_mark(text) for text in found["text"].unique().to_list()}
    parsed = {text: mark for text, mark in known.items() if mark is not None}
    said = pl.DataFrame(
        [(text, *mark) for text, mark in parsed.items()],
        schema={
            "text": pl.String,
            "marked": pl.Int64,
            "marked_bytes": pl.Int64,
            "parameters": pl.Int64,
            "marked_last": pl.Boolean,
        },
        orient="row",
    )
    return (
        found.join(said, on="text", how="inner")
        .sort("start_ns")
        .select(
            pl.col("process").cast(pl.Int64),
            pl.col("thread").cast(pl.Int64),
            hook_ns="start_ns",
            hook_end_ns="end_ns",
            marked="marked",
            marked_bytes="marked_bytes",
            parameters="parameters",
            marked_last="marked_last",
        )
        .with_row_index("mark")
        .with_columns(pl.col("mark").cast(pl.Int64))
    )


def _kernels(context: Context) -> pl.DataFrame:
    """The communication events of all buckets with role, place in the step and the bucket range of their launch."""
    trace, attribution = context.trace, context.attribution
    timed = context.timed
    event = timed["event"].to_numpy()
    process = pl.Series(list(trace.process_of_rank.values()), dtype=pl.Int64).gather(
        timed["rank"].replace_strict(
            {rank: place for place, rank in enumerate(trace.process_of_rank)}, return_dtype=pl.Int64
        )
    )
    launches = trace.launches if trace.launches is not None else schema.LAUNCHES.empty()
    missing = pl.repeat(None, timed.height, dtype=pl.Int64, eager=True)
    has_launches = launches.height == trace.events.height
    frame = timed.with_columns(
        process=process,
        launched_ns=launches["launch_ns"].gather(event) if has_launches else missing,
        thread=launches["thread"].gather(event).cast(pl.Int64) if has_launches else missing,
        step_index=pl.Series(attribution.step[event]).cast(pl.Int64).replace(-1, None),
        phase_range=pl.Series(attribution.phase_range[event]).cast(pl.Int64).replace(-1, None),
        phase=attribution.phase_names(event),
    ).filter(pl.Series(context.keep[event], dtype=pl.Boolean))
    marks = _marks(trace)
    placed = (
        frame.filter(pl.col("launched_ns").is_not_null())
        .sort("launched_ns")
        .join_asof(
            marks,
            left_on="launched_ns",
            right_on="hook_ns",
            by=["process", "thread"],
            strategy="backward",
            check_sortedness=False,
            coalesce=False,
        )
        .filter(pl.col("launched_ns") < pl.col("hook_end_ns"))
        .select(
            "event", "mark", "hook_ns", "hook_end_ns", "marked", "marked_bytes", "parameters", "marked_last"
        )
    )
    frame = frame.join(placed, on="event", how="left", maintain_order="left")
    annotated = pl.col("process").is_in(marks["process"].unique().implode())
    in_backward = pl.col("phase") == "backward"
    before = (pl.col("phase").is_null() & pl.col("step_index").is_not_null()) | pl.col("phase").is_in(
        ["forward", "data"]
    )
    role = (
        pl.when(pl.col("mark").is_not_null() | (~annotated & in_backward & (pl.col("kind") == "all_reduce")))
        .then(pl.lit(GRADIENTS))
        .when(in_backward & (pl.col("kind") == "all_gather"))
        .then(pl.lit(GATHER_BACKWARD))
        .when(before & (pl.col("kind") == "all_gather"))
        .then(pl.lit(GATHER_FORWARD))
        .when(in_backward & (pl.col("kind") == "reduce_scatter"))
        .then(pl.lit(REDUCE_SCATTER))
    )
    return frame.with_columns(role=role).filter(pl.col("role").is_not_null())


# --- when it was ready -----------------------------------------------------------------------------------------------


def _ready(context: Context, graph: Graph, kernels: pl.DataFrame) -> list[pl.Series]:
    """``produced_by`` (row of the event that a kernel waited for, null if unknown) and ``ready_source``."""
    trace = context.trace
    event = kernels["event"].to_numpy()
    end, start = trace.events["end_ns"].to_numpy(), trace.events["start_ns"].to_numpy()
    awaited, worked = graph.queues.awaited[event], graph.queues.worked[event]
    newest = np.where((awaited >= 0) & (worked >= 0), end[worked] > end[awaited], awaited < 0)
    producer = np.where(newest, worked, awaited)
    recorded = producer >= 0
    computes = trace.events["class"].is_in(["compute", "spin", "memory"]).to_numpy()
    ranks = kernels["rank"].to_numpy()
    launched = kernels["launched_ns"].fill_null(-1).to_numpy()
    for rank in trace.rank_numbers if trace.launches is not None else []:
        mine = np.flatnonzero((ranks == rank) & ~recorded & (launched >= 0))
        first, last = trace.rows_of(rank)
        launch = (
            trace.launches["launch_ns"].slice(first, last - first) if trace.launches is not None else None
        )
        assert launch is not None
        rows = first + np.flatnonzero(computes[first:last] & launch.is_not_null().to_numpy())
        if not mine.size or not rows.size:
            continue
        at = launch.gather(rows - first).to_numpy()
        order = np.argsort(at, kind="stable")
        latest = rows[order][running_latest(end[rows[order]])]
        place = np.searchsorted(at[order], launched[mine], side="left") - 1
        producer[mine] = np.where(place >= 0, latest[np.maximum(place, 0)], -1)
    # It cannot have waited for what had not ended when it started.
    known = (producer >= 0) & (end[np.maximum(producer, 0)] <= start[event])
    source = np.select([known & recorded, known], ["event", "launch_order"], "")
    return [
        pl.Series("produced_by", np.where(known, producer, -1)).replace(-1, None),
        pl.Series("ready_source", source, dtype=pl.String).replace("", None),
    ]


# --- one row a bucket ------------------------------------------------------------------------------------------------


def _rows(context: Context, kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per bucket: what its kernels say together."""
    trace = context.trace
    # One row per bucket range, or per kernel where there is none.
    kernels = kernels.with_columns(
        own=pl.when(pl.col("mark").is_not_null()).then("mark").otherwise(-1 - pl.col("event"))
    ).with_columns(row=pl.struct("rank", "own").rank("dense").cast(pl.Int64) - 1)
    spans = kernels.with_columns(_skew(context.timed, kernels["collective_id"]))
    by_start = pl.col("start_ns")
    first = [
        "rank",
        "process",
        "step_index",
        "phase_range",
        "role",
        "mark",
        "marked",
        "marked_bytes",
        "marked_last",
        "parameters",
        "hook_ns",
        "hook_end_ns",
        "collective_id",
        "communicator",
        "stream",
        "event",
        "launched_ns",
        "produced_by",
        "ready_source",
        "arrival_skew_ns",
        "last_rank",
    ]
    transfer_start = pl.col("transfer_start_ns")
    known = transfer_start.is_not_null().all()
    rows = (
        spans.group_by("row", maintain_order=True)
        .agg(
            *(pl.col(name).sort_by(by_start, "event").first() for name in first),
            events=pl.len().cast(pl.Int64),
            message=pl.when(pl.col("bytes").is_not_null().all()).then(pl.col("bytes").sum()),
            started_ns=pl.col("start_ns").min(),
            ended_ns=pl.col("end_ns").max(),
            wait_ns=pl.when(known).then((transfer_start - pl.col("start_ns")).sum()),
            transfer_ns=pl.when(known).then((pl.col("end_ns") - transfer_start).sum()),
        )
        .sort("row")
    )
    whole = _beside_compute(trace, spans["row"], spans["start_ns"], spans["end_ns"], rows)
    split = spans.filter(transfer_start.is_not_null())
    moving = _beside_compute(trace, split["row"], split["transfer_start_ns"], split["end_ns"], rows)
    rows = rows.with_columns(
        hidden_ns=pl.Series(whole[0]),
        exposed_ns=pl.Series(whole[1]),
        hidden_transfer_ns=pl.when(pl.col("transfer_ns").is_not_null()).then(pl.lit(pl.Series(moving[0]))),
        exposed_transfer_ns=pl.when(pl.col("transfer_ns").is_not_null()).then(pl.lit(pl.Series(moving[1]))),
    )
    rows = rows.join(_micro_steps(context), on="phase_range", how="left", maintain_order="left")
    warm = pl.DataFrame(
        [(window.rank, window.step) for window in context.every_window.windows if window.is_warmup],
        schema={"rank": pl.Int64, "step_index": pl.Int64},
        orient="row",
    ).with_columns(is_warmup=pl.lit(True))
    names = context.attribution.steps.select("step_index", step="name")
    order = ["rank", "step_index", "micro_step", "launched_ns", "started_ns", "event"]
    run = ["rank", "step_index", "phase_range", "role"]
    place = pl.int_range(pl.len()).over(run).cast(pl.Int64)
    rows = (
        rows.join(warm, on=["rank", "step_index"], how="left", maintain_order="left")
        .join(names, on="step_index", how="left", maintain_order="left")
        .sort(order, nulls_last=True)
    )
    producer = rows["produced_by"]
    return rows.with_columns(
        is_warmup=pl.col("is_warmup").fill_null(False),
        source=pl.when(pl.col("mark").is_not_null()).then(pl.lit(ANNOTATION)).otherwise(pl.lit(INFERRED)),
        bucket=pl.coalesce("marked", place),
        is_last=pl.coalesce("marked_last", place == pl.len().over(run) - 1),
        bytes=pl.coalesce("marked_bytes", "message"),
        ready_ns=trace.events["end_ns"].gather(producer),
        producer=trace.names["text"].gather(trace.events["name"].gather(producer)),
    ).with_columns(launch_late_ns=(pl.col("launched_ns") - pl.col("ready_ns")).clip(lower_bound=0))


def _skew(timed: pl.DataFrame, wanted: pl.Series) -> pl.Series:
    """Latest minus earliest start over the ranks of each wanted collective; null where unmatched."""
    spread = (
        timed.filter(pl.col("ready_ns").is_not_null(), pl.col("ready_peers").is_null())
        .group_by("collective_id")
        .agg(arrival_skew_ns=pl.col("start_ns").max() - pl.col("start_ns").min())
    )
    joined = wanted.to_frame("collective_id").join(
        spread, on="collective_id", how="left", maintain_order="left"
    )
    return joined["arrival_skew_ns"]


def _beside_compute(
    trace: Trace, row: pl.Series, start: pl.Series, end: pl.Series, rows: pl.DataFrame
) -> tuple[Ints, Ints]:
    """Time of each bucket's union of intervals under compute, and under none."""
    group, first, last = grouped_union(row.to_numpy(), start.to_numpy(), end.to_numpy())
    ranks = rows["rank"].to_numpy()[group]
    beside = np.zeros(group.size, dtype=np.int64)
    for rank in trace.rank_numbers:
        mine = np.flatnonzero(ranks == rank)
        beside[mine] = trace.union(rank, ("compute", "spin")).length_within(first[mine], last[mine])
    hidden = np.bincount(group, weights=beside, minlength=rows.height).astype(np.int64)
    total = np.bincount(group, weights=last - first, minlength=rows.height).astype(np.int64)
    return hidden, total - hidden


def _micro_steps(context: Context) -> pl.DataFrame:
    """Number of each phase range among those of its process, phase and step."""
    return (
        context.attribution.phases.with_row_index("phase_range")
        .sort("start_ns")
        .with_columns(
            pl.col("phase_range").cast(pl.Int64),
            micro_step=pl.int_range(pl.len()).over("process", "phase", "step_index").cast(pl.Int64),
        )
        .select("phase_range", "micro_step")
    )


# --- what held it ----------------------------------------------------------------------------------------------------


def _queued(graph: Graph, rows: pl.DataFrame) -> list[pl.Series]:
    """How long each bucket, ready and launched, stood behind the event ahead in its queue, and how long after it."""
    ahead = graph.queues.before[rows["event"].to_numpy()]
    ahead_end = pl.Series(np.where(ahead >= 0, graph.ends(ahead), -1)).replace(-1, None)
    since = rows.select(pl.max_horizontal("ready_ns", "launched_ns")).to_series()
    table = rows.select("started_ns", "ready_ns", "launched_ns").with_columns(
        since=since, ahead_end=ahead_end
    )
    queued = pl.min_horizontal("started_ns", "ahead_end") - pl.col("since")
    known = pl.col("ready_ns").is_not_null() & pl.col("launched_ns").is_not_null()
    waited = table.select(
        queued_ns=pl.when(known).then(
            pl.when(pl.col("ahead_end").is_null()).then(0).otherwise(queued.clip(lower_bound=0))
        )
    )["queued_ns"]
    pending = table.select(
        pending_ns=pl.when(known).then(pl.col("started_ns") - pl.col("since") - pl.lit(waited))
    )
    behind = pl.select(
        queued_behind=pl.when(pl.lit(waited) > 0).then(pl.lit(pl.Series(ahead).replace(-1, None)))
    )["queued_behind"]
    return [waited, behind, pending["pending_ns"]]


def _held(context: Context, rows: pl.DataFrame) -> pl.Series:
    """The bucket at the head of each run of buckets between which nothing but communication was launched."""
    trace = context.trace
    if trace.launches is None:
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True).alias("held_by")
    other = (trace.events["class"] != "communication").to_numpy()
    launch = trace.launches["launch_ns"]
    known = launch.is_not_null().to_numpy()
    # From the end of the hook of one to the hook of the next: a hook launches kernels of its own.
    opens = rows.select(pl.coalesce("hook_ns", "launched_ns")).to_series().fill_null(-1).to_numpy()
    closes = rows.select(pl.coalesce("hook_end_ns", "launched_ns")).to_series().fill_null(-1).to_numpy()
    ranks = rows["rank"].to_numpy()
    until_open, until_close = np.zeros(rows.height, dtype=np.int64), np.zeros(rows.height, dtype=np.int64)
    for rank in trace.rank_numbers:
        first, last = trace.rows_of(rank)
        chosen = first + np.flatnonzero(other[first:last] & known[first:last])
        times = np.sort(launch.gather(chosen).to_numpy())
        mine = np.flatnonzero(ranks == rank)
        until_open[mine] = np.searchsorted(times, opens[mine], side="left")
        until_close[mine] = np.searchsorted(times, closes[mine], side="left")
    run = ["rank", "step_index", "phase_range", "role"]
    table = rows.select(*run, "bucket").with_columns(
        opened=pl.Series(until_open), closed=pl.Series(until_close), launched=pl.Series(opens >= 0)
    )
    held = (
        (pl.col("role") == GRADIENTS)
        & pl.col("launched")
        & pl.col("launched").shift(1).over(run)
        & (pl.col("opened") == pl.col("closed").shift(1).over(run))
    ).fill_null(False)
    return (
        table.with_columns(held=held)
        .with_columns(head=pl.when(~pl.col("held")).then("bucket").forward_fill().over(run))
        .select(held_by=pl.when("held").then("head"))
        .to_series()
    )


def _tails(context: Context, rows: pl.DataFrame) -> pl.Series:
    """The part of each bucket after the last backward compute of its step (definitions, "Tail"); null without."""
    finish = _backward_finish(context)
    joined = rows.select("rank", "step_index", "started_ns", "ended_ns").join(
        finish, on=["rank", "step_index"], how="left", maintain_order="left", nulls_equal=True
    )
    late = pl.col("ended_ns") - pl.max_horizontal("started_ns", "finish")
    return joined.select(
        tail_ns=pl.when(pl.col("finish").is_not_null()).then(late.clip(lower_bound=0))
    ).to_series()


def _backward_finish(context: Context) -> pl.DataFrame:
    """The end of the last compute of each step's last backward, as columns rank, step_index, finish.

    Of the compute launched no later than the backward's last communication event: what a hook launches after it is
    not backward.
    """
    trace, attribution = context.trace, context.attribution
    if trace.launches is None:
        return pl.DataFrame(schema={"rank": pl.Int64, "step_index": pl.Int64, "finish": pl.Int64})
    last = (
        attribution.phases.with_row_index("range")
        .filter(pl.col("phase") == "backward", pl.col("step_index") >= 0)
        .sort("start_ns", "range")
        .group_by("process", "step_index", maintain_order=True)
        .agg(pl.col("range").last().cast(pl.Int64))["range"]
    )
    is_last = np.zeros(attribution.phases.height + 1, dtype=bool)
    is_last[last.to_numpy()] = True
    return pl.concat(_finish_of(context, rank, is_last) for rank in trace.rank_numbers)


def _finish_of(context: Context, rank: int, is_last: NDArray[np.bool_]) -> pl.DataFrame:
    """The rows of a rank; ``is_last``: the phase range is the last backward of its step (-1: none)."""
    trace, attribution = context.trace, context.attribution
    assert trace.launches is not None
    first, _ = trace.rows_of(rank)
    event = first + np.flatnonzero(is_last[attribution.phase_range[slice(*trace.rows_of(rank))]])
    events = trace.events.select("rank", "class", "end_ns")[event].with_columns(
        launch_ns=trace.launches["launch_ns"].gather(event),
        range=pl.Series(attribution.phase_range[event]),
        step_index=pl.Series(attribution.step[event]),
    )
    key = ["rank", "step_index"]
    finish = (
        events.filter(pl.col("class") == "communication")
        .sort("end_ns", "launch_ns")
        .group_by(key)
        .agg(pl.col("launch_ns").last().alias("last_launch"))
    )
    return (
        events.filter(pl.col("class").is_in(["compute", "spin"]))
        .join(finish, on=key)
        .filter(pl.col("launch_ns") <= pl.col("last_launch"))
        .group_by(key)
        .agg(finish=pl.col("end_ns").max())
        .with_columns(pl.col(key).cast(pl.Int64))
    )


# --- who waited for a gather -----------------------------------------------------------------------------------------


def _consumers(trace: Trace, graph: Graph, rows: pl.DataFrame) -> pl.DataFrame:
    """row, consumer_ns, slack_ns and prefetch_distance of the gathers."""
    gathers = rows.filter(pl.col("role").is_in([GATHER_FORWARD, GATHER_BACKWARD]))
    awaited = graph.queues.awaited
    waiting = awaited.at[np.isin(awaited.value, gathers["event"].to_numpy())]
    waiting = waiting[(trace.events["class"].gather(waiting) != "communication").to_numpy()]
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    ahead = graph.queues.before[waiting]
    launch = (
        trace.launches["launch_ns"].gather(waiting)
        if trace.launches is not None
        else pl.repeat(None, waiting.size, dtype=pl.Int64, eager=True)
    )
    consumers = (
        pl.DataFrame(
            {
                "event": awaited[waiting],
                "consumer_ns": start[waiting],
                "free_ns": pl.Series(end).gather(pl.Series(ahead).replace(-1, None)),
                "consumer_launch": launch,
            }
        )
        .sort("consumer_ns")
        .unique("event", keep="first", maintain_order=True)
    )
    joined = gathers.join(consumers, on="event", how="left", maintain_order="left")
    made: list[pl.DataFrame] = [joined.clear().with_columns(prefetch_distance=pl.lit(None, pl.Int64))]
    run = ["rank", "step_index", "phase_range", "role"]
    for part in joined.partition_by(run, maintain_order=True):
        launched = part["launched_ns"].fill_null(-1).to_numpy()
        taken = part["consumer_launch"]
        unknown = np.cumsum(taken.is_null().to_numpy() | (launched < 0)) > 0
        before = np.searchsorted(np.sort(taken.drop_nulls().to_numpy()), launched, side="left")
        distance = np.where(unknown, -1, np.arange(part.height) - before)
        made.append(part.with_columns(prefetch_distance=pl.Series(distance).replace(-1, None)))
    return pl.concat(made).select(
        "row", "consumer_ns", "prefetch_distance", slack_ns=pl.col("free_ns") - pl.col("ended_ns")
    )


QUESTION = Question(
    name="buckets",
    ask="When was each bucket ready, launched, held, sent?",
    more="DDP buckets by annotation, else inferred from the all-reduces of backward; FSDP units with their prefetch "
    "distance.",
    tables=(BUCKET,),
    run=lambda context, _: context.buckets,
    shown="bucket",
    reads=frozenset({"launches", "host_calls", "shapes", "metrics"}),
    examples=("report.sqlite", "report.sqlite --skip-warmup 1 --format markdown"),
    findings={"buckets": "how many buckets a rank has in a step, and what the last one leaves exposed"},
    warnings={
        "no_buckets": "no bucket ranges, and no collective launched in a backward range",
        "buckets_inferred": "buckets known by the order of all-reduces in backward only; parameters are unknown",
        "buckets_several_communicators": "all-reduces of several communicators in backward: not all need be buckets",
        "buckets_ready_unknown": "buckets of which nothing says what they waited for",
        "buckets_ready_by_launch_order": "buckets taken to be ready when the compute launched before them had ended",
    },
)
