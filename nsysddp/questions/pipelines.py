"""How long does each pipeline stage stand in a bubble, and do experts wait for load or for late ranks?

A stage is in a bubble while a send or receive of it waits for another stage and it computes nothing. A step of a rank
falls into warm-up (before its first backward kernel), cool-down (after its last forward kernel) and steady between,
where the capture marks these passes::

    bubble = |wait of its sends and receives - P|      micro-batches = messages from the stage ahead (or to the next)

An all-to-all that waits for a rank which received more than the waiting one in the exchange ahead waits for load (that
rank had more to compute), else for lateness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.model.names import counted
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import ms
from nsysddp.questions.communicators.pairs import activations_of, edges_of
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsysddp.questions.communicators import Known
    from nsysddp.questions.context import Context
    from nsysddp.questions.window import Window

PIPELINE_STAGE = Table(
    "pipeline_stage",
    "one rank of a pipeline in one step",
    (
        Column("rank", INT, "rank"),
        Column("stage", INT, "0-based stage, by the way that activations go in forward"),
        Column("step", TEXT, "name of the step"),
        Column("step_index", INT, "0-based order of the step"),
        Column(
            "micro_batches",
            INT,
            "messages from the stage ahead (of the first stage: to the next), activations",
        ),
        Column("window_ns", INT, "|W|"),
        Column("bubble_ns", INT, "sum of the three parts"),
        Column("warm_up_ns", INT, "bubble before its first backward kernel; null where no passes are marked"),
        Column("steady_ns", INT, "bubble between; null where no passes are marked"),
        Column("cool_down_ns", INT, "bubble after its last forward kernel; null where no passes are marked"),
        Column("exposed_transfer_ns", INT, "transfer of its sends and receives under no compute"),
        Column("bubble_ratio", FLOAT, "bubble / window; null when the window is empty"),
    ),
)

EXPERT_WAIT = Table(
    "expert_wait",
    "one rank in the all-to-alls of one group, summed over the steps used",
    (
        Column("group", INT, "number of the group (communicators)"),
        Column("rank", INT, "rank"),
        Column("exchanges", INT, "all-to-alls"),
        Column("wait_ns", INT, "wait of their kernels"),
        Column(
            "by_load_ns",
            INT,
            "for a rank that received more in the exchange ahead; null where sizes are unknown",
        ),
        Column("by_lateness_ns", INT, "the rest; null where sizes are unknown"),
    ),
)

_MORE = 1.05
"""A rank has more load if it received at least so many times what the waiting one did."""


def pipelines(context: Context) -> Result:
    """The answer (see ``QUESTION``)."""
    known = context.groups
    stages = _stages(known)
    tables = {PIPELINE_STAGE.name: _stage_table(context, stages), EXPERT_WAIT.name: _expert_table(known)}
    return Result(
        context.trace,
        tables,
        findings=tuple(_findings(tables, len(context.used_steps), _why_none(context))),
        warnings=context.windows.warnings,
        assumptions=context.windows.assumptions,
    )


def _stages(known: Known) -> dict[int, int]:
    """Stage of each rank: the longest way that activations have come; empty without a pipeline."""
    numbers = [number for number, role in known.role_of.items() if role == "pipeline"]
    messages = known.messages.filter(pl.col("group").is_in(numbers))
    edges = sorted(edges_of(activations_of(messages, phases=known.groups.marks_passes)))
    stage = {rank: 0 for edge in edges for rank in edge}
    for _ in range(len(stage)):  # they go in no circle: see the role
        moved = {
            receiver: stage[sender] + 1 for sender, receiver in edges if stage[receiver] <= stage[sender]
        }
        if not moved:
            break
        stage |= moved
    return stage


# --- stages ----------------------------------------------------------------------------------------------------------


def _stage_table(context: Context, stages: dict[int, int]) -> pl.DataFrame:
    named = dict(context.attribution.steps.select("step_index", "name").iter_rows())
    micro = _micro_batches(context.groups, stages)
    rows = []
    for rank, stage in sorted(stages.items()):
        windows = [window for window in context.windows.windows if window.rank == rank and window.step >= 0]
        for row in _of_rank(context, rank, windows):
            rows.append(
                row
                | {
                    "rank": rank,
                    "stage": stage,
                    "step": named[row["step_index"]],
                    "micro_batches": micro.get((rank, row["step_index"])),
                }
            )
    return PIPELINE_STAGE.frame(rows)


def _micro_batches(known: Known, stages: dict[int, int]) -> dict[tuple[int, int], int]:
    """Activations of each rank and step: they go to later stages, gradients come back."""
    stage_of = pl.DataFrame(
        {"rank": list(stages), "stage": list(stages.values())}, schema={"rank": pl.Int64, "stage": pl.Int64}
    )
    messages = (
        known.messages.filter(pl.col("kind") == "send_recv")
        .with_columns(pl.col("rank").cast(pl.Int64))
        .join(stage_of, on="rank")
        .join(stage_of.select(peer="rank", other="stage"), on="peer")
        .filter(pl.col("sends") == (pl.col("other") > pl.col("stage")))
    )
    counts = messages.group_by("rank", "step").agg(
        received=(~pl.col("sends")).sum().cast(pl.Int64), sent=pl.col("sends").sum().cast(pl.Int64)
    )
    most = counts.with_columns(most=pl.when(pl.col("received") > 0).then("received").otherwise("sent"))
    return {(rank, step): many for rank, step, many in most.select("rank", "step", "most").iter_rows()}


def _of_rank(context: Context, rank: int, windows: list[Window]) -> Iterator[dict[str, Any]]:
    """Bubbles of a rank in each of its windows."""
    trace = context.trace
    mine = context.groups.groups.events.filter((pl.col("rank") == rank) & (pl.col("role") == "pipeline"))
    matched = mine.filter(pl.col("ready_ns").is_not_null())
    start, middle, end = (matched[name].to_numpy() for name in ("start_ns", "transfer_start_ns", "end_ns"))
    computing = trace.union(rank, ["compute", "spin"])
    transfer = Intervals.union_of(middle, end)
    wait = (Intervals.union_of(start, middle) - transfer) - computing
    transfer = transfer - computing
    first_backward, last_forward = _turns(context, rank)
    marked = context.groups.groups.marks_passes
    for window in windows:
        if context.used_steps and window.step not in context.used_steps:
            continue
        begin, finish = window.start, window.end
        turn = min(max(first_backward.get(window.step, finish), begin), finish)
        after = min(max(last_forward.get(window.step, turn), turn), finish)
        edges = ((begin, turn), (turn, after), (after, finish))
        parts = [int(wait.length_within([a], [b])[0]) for a, b in edges]
        yield {
            "step_index": window.step,
            "window_ns": finish - begin,
            "bubble_ns": sum(parts),
            "warm_up_ns": parts[0] if marked else None,
            "steady_ns": parts[1] if marked else None,
            "cool_down_ns": parts[2] if marked else None,
            "exposed_transfer_ns": int(transfer.length_within([begin], [finish])[0]),
            "bubble_ratio": sum(parts) / (finish - begin) if finish > begin else None,
        }


def _turns(context: Context, rank: int) -> tuple[dict[int, int], dict[int, int]]:
    """Of each step the start of the rank's first backward kernel and the end of its last forward kernel."""
    trace = context.trace
    first, last = trace.rows_of(rank)
    rows = np.arange(first, last)[trace.is_class(rank, ["compute", "spin"])]
    frame = pl.DataFrame(
        {
            "step": context.attribution.step[rows].astype(np.int64),
            "phase": context.attribution.phase_names(rows),
            "start_ns": trace.events["start_ns"].to_numpy()[rows],
            "end_ns": trace.events["end_ns"].to_numpy()[rows],
        }
    )
    backward = frame.filter(pl.col("phase") == "backward").group_by("step").agg(pl.col("start_ns").min())
    forward = frame.filter(pl.col("phase") == "forward").group_by("step").agg(pl.col("end_ns").max())
    return dict(backward.iter_rows()), dict(forward.iter_rows())


# --- experts ---------------------------------------------------------------------------------------------------------


def _expert_table(known: Known) -> pl.DataFrame:
    events = known.groups.events.filter(
        (pl.col("kind") == "all_to_all") & pl.col("ready_ns").is_not_null() & (pl.col("group") >= 0)
    ).with_columns(wait=pl.col("transfer_start_ns") - pl.col("start_ns"))
    received = (
        known.messages.filter(~pl.col("sends") & (pl.col("peer") != pl.col("rank")))
        .group_by("event")
        .agg(received=pl.when(pl.col("bytes").null_count() == 0).then(pl.col("bytes").sum()))
    )
    ordered = (
        events.join(received, on="event", how="left")
        .sort("rank", "group", "start_ns")
        .with_columns(ahead=pl.col("received").shift().over("rank", "group", "step"))
    )
    of_last = ordered.select("collective_id", last_rank="rank", load="ahead")
    by_load = pl.col("load") >= _MORE * pl.col("ahead")
    judged = ordered.join(of_last, on=["collective_id", "last_rank"], how="left").with_columns(
        by_load=pl.when(by_load.fill_null(False)).then("wait").otherwise(0)
    )
    made = judged.group_by("group", "rank").agg(
        exchanges=pl.len().cast(pl.Int64),
        wait_ns=pl.col("wait").sum(),
        unknown=pl.col("received").null_count(),
        by_load_ns=pl.col("by_load").sum(),
    )
    known_sizes = pl.col("unknown") == 0
    made = made.with_columns(
        by_lateness_ns=pl.when(known_sizes).then(pl.col("wait_ns") - pl.col("by_load_ns")),
        by_load_ns=pl.when(known_sizes).then("by_load_ns"),
    )
    return EXPERT_WAIT.check(made.sort("group", "rank"))


# --- in words --------------------------------------------------------------------------------------------------------


def _why_none(context: Context) -> str:
    """Why no pipeline can be known although something is sent and received; empty if nothing is."""
    sent = context.timed.filter(pl.col("kind") == "send_recv", pl.col("communicator").is_null()).height
    return f": {counted(sent, 'kernel')} sent and received, but who to whom is not recorded" if sent else ""


def _findings(tables: dict[str, pl.DataFrame], steps: int, why_none: str) -> Iterator[Finding]:
    stages, experts = tables[PIPELINE_STAGE.name], tables[EXPERT_WAIT.name]
    if not stages.height and not experts.height:
        capture = " (export with --include-blobs=true)" if why_none else ""
        message = f"No pipeline and no all-to-all is known in this run{why_none}{capture}."
        yield Finding("no_pipeline", message, value=0, unit="count")
    if stages.height:
        yield _of_stages(stages)
    judged = experts.filter(pl.col("by_load_ns").is_not_null() & (pl.col("wait_ns") > 0))
    if judged.height:
        row = judged.sort("wait_ns", "rank", descending=[True, False]).row(0, named=True)
        each = max(steps, 1)
        yield Finding(
            "expert_wait",
            f"All-to-alls of rank {row['rank']} wait {ms(row['wait_ns'] / each):.2f} ms a step: "
            f"{ms(row['by_load_ns'] / each):.2f} for ranks with more load, "
            f"{ms(row['by_lateness_ns'] / each):.2f} for late ones.",
            rank=row["rank"],
            value=row["wait_ns"],
            unit="ns",
            rows=({"table": EXPERT_WAIT.name, "group": row["group"], "rank": row["rank"]},),
        )


def _of_stages(stages: pl.DataFrame) -> Finding:
    """The stage with the largest bubble, and how many there are."""
    parts = ["bubble_ns", "warm_up_ns", "steady_ns", "cool_down_ns", "window_ns"]
    mean = stages.group_by("rank", "stage").agg(pl.col(parts).mean(), pl.col("micro_batches").max())
    row = mean.sort("bubble_ns", "rank", descending=[True, False]).row(0, named=True)
    count = int(stages["stage"].n_unique())
    return Finding(
        "pipeline_bubble",
        f"{counted(count, 'stage')}, {row['micro_batches']} micro-batches: rank {row['rank']} (stage {row['stage']}) "
        f"stands in bubbles for {ms(row['bubble_ns']):.2f} of {ms(row['window_ns']):.2f} ms a step "
        f"({_in_parts(row)}), the most of all ranks.",
        rank=row["rank"],
        value=row["bubble_ns"],
        unit="ns",
        rows=({"table": PIPELINE_STAGE.name, "rank": row["rank"]},),
    )


def _in_parts(row: dict[str, Any]) -> str:
    if row["warm_up_ns"] is None:
        return "in which part of it no range of forward and backward tells"
    return (
        f"{ms(row['warm_up_ns']):.2f} warm-up, {ms(row['steady_ns']):.2f} steady, "
        f"{ms(row['cool_down_ns']):.2f} cool-down"
    )


QUESTION = Question(
    name="pipelines",
    ask=(__doc__ or "").partition("\n")[0],
    more="Bubbles of every stage in warm-up, steady state and cool-down, micro-batches, and waits of all-to-alls by "
    "load and by lateness. Needs payloads (--include-blobs=true); ranges of forward and backward tell the parts.",
    tables=(PIPELINE_STAGE, EXPERT_WAIT),
    run=lambda context, _: pipelines(context),
    shown=PIPELINE_STAGE.name,
    reads=frozenset({"launches"}),
    whole_steps=True,
    examples=("report.sqlite", "node0.sqlite node1.sqlite --table expert_wait"),
    findings={
        "pipeline_bubble": "the stage that stands in bubbles longest, and in which part of the step",
        "expert_wait": "what all-to-alls wait for: ranks with more load, or late ones",
        "no_pipeline": "no pipeline and no all-to-all is known",
    },
)
