"""What is true of a simulated run: the steps, the buckets, and the same job with something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .engine import Item
from .export import Clock
from .jobs import Job, Run, layout, simulate


def steps(run: Run) -> list[int]:
    """Length of every step in ns: from the end of all before it to the end of its last work, over all
    ranks.
    """
    work = [item for rank in range(run.job.ranks) for item in run.items(rank) if item.start is not None]
    at = min(item.start for item in work if item.start is not None)
    lengths = []
    for step in range(run.job.steps):
        end = max(at, *(item.end for item in work if item.step == step and item.end is not None))
        lengths.append(end - at)
        at = end
    return lengths


@dataclass(frozen=True)
class Bucket:
    """A gradient bucket, or a unit's gather or scatter, of one step on one rank, in times as its report
    shows them.

    ``role`` is gradients, gather_forward, gather_backward or reduce_scatter; ``number`` counts within step
    and role.
    """

    rank: int
    step: int
    role: str
    number: int
    bytes: int
    ready_ns: int
    launched_ns: int
    queued_ns: int
    started_ns: int
    ended_ns: int
    held_by: int | None


def buckets(run: Run) -> list[Bucket]:
    """Every bucket in order of rank, step and launch."""
    made = []
    for rank in range(run.job.ranks):
        clock = Clock.of(run.job, rank)
        numbers: Counter[tuple[int, str]] = Counter()
        for item in run.items(rank):
            if item.purpose:
                made.append(_bucket(rank, numbers[item.step, item.purpose], item, clock))
                numbers[item.step, item.purpose] += 1
    return made


def _bucket(rank: int, number: int, item: Item, clock: Clock) -> Bucket:
    assert item.start is not None
    assert item.end is not None
    assert item.ready is not None
    assert item.call is not None
    ready, start = clock.gpu(item.ready), clock.gpu(item.start)
    launched = clock.host(item.call.start)
    since = max(ready, launched)
    ahead = since if item.ahead_end is None else clock.gpu(item.ahead_end)
    return Bucket(
        rank=rank,
        step=item.step,
        role=item.purpose,
        number=number,
        bytes=item.bytes,
        ready_ns=ready,
        launched_ns=launched,
        queued_ns=max(0, min(start, ahead) - since),
        started_ns=start,
        ended_ns=clock.gpu(item.end),
        held_by=item.held_by,
    )


def mean(lengths: Sequence[int], used: Sequence[int] | None = None) -> float:
    """Mean of the steps ``used``; without, of all but the first."""
    chosen = range(1, len(lengths)) if used is None else used
    return sum(lengths[step] for step in chosen) / len(chosen)


def scenarios(job: Job, caps: tuple[float, ...], factors: tuple[float, ...]) -> dict[str, Job]:
    """The job behind each scenario of a what-if question, by the names that they have there."""
    one = job.planted
    even = job if one is None or one.rank is None else job.without_cause()
    made = {
        "no_communication": replace(job, communication=0.0),
        "no_straggler": even,
        "no_contention": _without(replace(job, contention=1.0), "contention"),
    }
    for factor in factors:
        made[f"faster_{factor:g}"] = replace(job, communication=job.communication / factor)
    alike: dict[str, Job] = {}  # caps of one layout are one job, simulated once
    for cap in caps:
        other = _without(job, "small_buckets", "one_bucket")
        capped = replace(other, cap=round(cap * (1 << 20)), small_first=False)
        made[f"cap_{cap:g}"] = alike.setdefault(str(_layout(capped)), capped)
    largest = max(sum(job.parameters[n] for n in one) for one in _layout(job))
    made["order_reverse"] = replace(
        _without(job, "small_buckets", "one_bucket"), reverse=True, cap=largest, small_first=False
    )
    return made


def _layout(job: Job) -> list[list[int]]:
    return layout(job.parameters, job.bucket_cap, small_first=job.small_first and job.bucket_cap == job.cap)


def _without(job: Job, *causes: str) -> Job:
    return job.without_cause() if job.planted is not None and job.planted.cause in causes else job


@lru_cache(maxsize=256)
def lengths(job: Job) -> tuple[int, ...]:
    """Length of every step of a job, simulated once."""
    return tuple(steps(simulate(job)))


def saving(job: Job, used: Sequence[int] | None = None) -> float:
    """By how much is a step shorter without what is planted, ns?"""
    return mean(lengths(job), used) - mean(lengths(job.without_cause()), used)


def rivals(job: Job) -> float:
    """The most that a step of the job without its cause would save by anything else that can be removed,
    ns.
    """
    clean = job.without_cause()
    others = (
        replace(clean, communication=0.0),
        replace(clean, contention=1.0),
        replace(clean, launch_ns=0, gap_ns=0, item_each_step=False),
    )
    return mean(lengths(clean)) - min(mean(lengths(other)) for other in others)
