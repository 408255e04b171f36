"""A cause in words: how sure, what was found, what to change."""

from __future__ import annotations

import polars as pl

from nsysddp.model.names import visible
from nsysddp.model.result import Result
from nsysddp.model.units import ms
from nsysddp.questions.diagnosis.causes import Cause
from nsysddp.questions.diagnosis.facts import SLOW_LINK, Facts
from nsysddp.questions.diagnosis.rules import HOST_KINDS


def confidence_of(
    code: str, found: int, steps: int, rank: int | None, paths: Result, facts: Facts
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


def claim_of(
    cause: Cause,
    cost: int,
    ratio: float,
    parts: pl.DataFrame,
    rank: int | None,
    phase: str | None,
    facts: Facts,
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
                text += f", {short(kernel)} alone {ms(part):.3f} ms longer"
    if parts.height and (cause.code != "straggler" or parts["kind"][0] in HOST_KINDS):
        largest = parts.row(0, named=True)
        if largest["name"] is not None:
            said = "before " if largest["kind"] in ("gap", "host_gap", "queued") else ""
            spent = "" if largest["host_phase"] is None else f", spent in {visible(largest['host_phase'])}"
            text += f"; largest part: {said}{short(largest['name'])} ({ms(largest['cost_ns']):.3f} ms{spent})"
    return text[0].upper() + text[1:] + "."


def advice_of(cause: Cause, facts: Facts) -> str:
    """What to change first against a cause."""
    if cause.code == "slow_communication" and facts.busbw_ratio is not None and facts.busbw_ratio < SLOW_LINK:
        return "find out why the link is slow: `nvidia-smi topo -m`, NCCL_DEBUG=INFO (P2P, NVLS, NIC), nccl-tests"
    return cause.try_next


def short(name: str, most: int = 60) -> str:
    """A name in at most so many characters."""
    text = visible(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."
