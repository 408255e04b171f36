"""What is wrong with the run or the capture, and of which causes does the capture say nothing?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import Graph
from nsysddp.dependencies.queues import event_queues
from nsysddp.model.result import Result
from nsysddp.model.units import ms
from nsysddp.questions.diagnosis.causes import BY_CODE
from nsysddp.questions.diagnosis.claims import short
from nsysddp.questions.diagnosis.device import sharing_ranks
from nsysddp.questions.diagnosis.facts import Facts
from nsysddp.questions.verdict import own_lateness_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


_WORTH_SAYING = 0.02
"""Share of the path from which on it is said that it could not be matched."""

_LATE = 0.03
"""Share of a step by which a rank takes longer than its peers from which on it is named."""

STEADY_SPREAD = 1.25
"""Steady steps differ by less than this, longest over shortest."""


def faults(context: Context, graph: Graph, paths: Result) -> list[dict[str, Any]]:
    """Rows of ``diagnosis`` for what is wrong: they have no cost."""
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
            f"on rank {rank} in {step} {short(name)} of the optimizer started {ms(ahead_ns):.3f} ms before a "
            "gradient reduction of the same step had ended"
            if observed
            else f"on rank {rank} in {step} no recorded dependency leads from {short(name)} of the optimizer to the "
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
    computes = trace.events["class"].is_in(["compute", "spin"]).to_numpy()
    optimizer = attribution.in_phase("optimizer") & computes
    reducing = np.zeros(trace.events.height, dtype=bool)
    kinds = context.timed["kind"].is_in(["all_reduce", "reduce_scatter"]).fill_null(False).to_numpy()
    reducing[context.timed["event"].to_numpy()[kinds]] = True
    reducing &= attribution.in_phase("backward")
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


def _unmatched_share(paths: Result) -> float:
    """Share of the steady steps' paths that is communication without a match."""
    kinds = paths["critical_path_kind"]
    steady = (
        paths["critical_path_step"].filter(~pl.col("is_warmup")).select("step_index", "path_rank", "path_ns")
    )
    own = kinds.join(steady, on=["step_index", "path_rank"], how="semi", nulls_equal=True)
    unmatched = own.filter(pl.col("kind").cast(pl.String) == "unmatched_communication")["duration_ns"].sum()
    return float(unmatched) / max(int(steady["path_ns"].sum()), 1)


def _whom_they_wait_for(context: Context, unmatched: float) -> Iterator[tuple[str, str, str]]:
    """That lateness is no cause of what could not be matched, and which rank takes longer than its peers all the same.

    A rank's own time needs no match: what it does besides communication is there to be compared.
    """
    if len(context.trace.rank_numbers) < 2:
        return
    reason = (
        f"whom ranks wait for in {unmatched:.0%} of the critical path, which could not be matched, is unknown"
    )
    longer = own_lateness_of(context)
    rank = max(longer, key=lambda rank: longer[rank], default=None)
    if rank is not None and longer[rank] >= _LATE * _mean_window(context, rank):
        reason += f"; of its own work rank {rank} has {ms(longer[rank]):.3f} ms a step more than its peers"
    yield "straggler", reason, "all ranks, exported with --include-blobs=true"


def _mean_window(context: Context, rank: int) -> float:
    windows = [window for window in context.windows.of(rank) if not window.is_warmup]
    return sum(window.end - window.start for window in windows) / max(len(windows), 1)


def unjudged(context: Context, facts: Facts, paths: Result) -> list[dict[str, str]]:
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
    unmatched = _unmatched_share(paths)
    if unmatched > _WORTH_SAYING:
        made.append(
            (
                "slow_communication",
                f"{unmatched:.0%} of the critical path is communication that could not be matched over ranks, so "
                "waiting and transfer are not told apart",
                "all ranks, exported with --include-blobs=true",
            )
        )
        made += _whom_they_wait_for(context, unmatched)
    if not facts.has_shapes:
        made.append(
            ("contention", "kernels of one shape were not compared", "read the report with launch shapes")
        )
    elif not facts.slowing.is_judged:
        made.append(
            (
                "contention",
                "kernels ran beside communication for about the same share of their time in all executions, so none "
                "can be compared with itself",
                "more steps, and steps without communication (no_sync)",
            )
        )
    if facts.link is None:
        made.append(("small_buckets", "message sizes are unknown", "export with --include-blobs=true"))
    elif not facts.link.has_latency and not facts.merging.is_cause:
        few = (
            "all messages have one size"
            if facts.link.sizes == 1
            else f"{facts.link.sizes} message sizes, too close to each other to tell latency from bandwidth"
        )
        made.append(("small_buckets", few, "capture a second bucket_cap_mb too"))
    if not facts.has_metrics and not facts.slower_transfer:
        made.append(
            (
                "link_contention",
                "PCIe, NVLink and NIC were not sampled",
                "--gpu-metrics-devices=all, --nic-metrics=true",
            )
        )
    if facts.uneven is not None and not sharing_ranks(context.trace):
        rank, name, shortest, longest = facts.uneven
        made.append(
            (
                "other_process",
                f"on rank {rank} {short(name)} takes {ms(shortest):.3f} to {ms(longest):.3f} ms in one place of the "
                "step, with no communication beside it: another process on the GPU, or its clocks",
                "watch the GPU during the run (nvidia-smi pmon, nvidia-smi -q -d CLOCK)",
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
