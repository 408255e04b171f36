"""Random jobs with one thing planted in each, large enough to be what matters most."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from . import truth
from .jobs import MIB, MS, US, Job, Planted

DUE_SHARE, DUE_OVER_RIVALS = 0.03, 1.25
ON_ONE_RANK = ("slow_rank", "slow_host", "pause_one", "preemption")

#: ranks and size of the inner groups
SHAPES: dict[str, list[tuple[int, int]]] = {
    "dp": [(ranks, 1) for ranks in (2, 2, 2, 3, 3, 4, 4, 4, 5, 6, 8, 8, 8, 16, 16, 32)],
    "hsdp": [*[(2, 2), (4, 4), (4, 2), (6, 3), (8, 4), (8, 2), (8, 8)] * 2, (16, 8), (32, 8), (64, 8)],
    "tp": [(4, 2), (4, 2), (6, 2), (8, 2), (8, 4), (12, 4), (16, 4), (16, 8)],
    "pp": [(2, 2), (4, 2), (4, 4), (6, 3), (8, 2), (8, 4), (16, 4)],
    "ep": [(2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 4)],
}


@dataclass(frozen=True)
class Trial:
    """One job to judge, how it is written down, and by how much its cause counts."""

    seed: int
    number: int
    job: Job
    per_rank: bool
    payload: bool
    saving_share: float
    is_due: bool

    @property
    def cause(self) -> str:
        """What is planted, in a word."""
        one = self.job.planted
        return "clean" if one is None else one.cause + (f":{one.how}" if one.how != "sleep" else "")


CLEAN_SHARE = 0.12
"""Of the jobs, beside those that draw it as one of the causes."""

COMMON = (
    *("clean", "slow_rank", "slow_host", "pause_one", "pause_all"),
    *("slow_link", "preemption"),
)
CAUSES: dict[str, tuple[str, ...]] = {
    "dp": (*COMMON, "contention", "small_buckets", "one_bucket", "late_launch", "serialised", "peer_copies"),
    "hsdp": (*COMMON, "contention", "no_prefetch", "one_queue", "slow_pair", "peer_copies"),
    "tp": (*COMMON, "slow_pair", "late_launch", "peer_copies"),
    "pp": (*COMMON, "slow_pair"),
    "ep": (*COMMON, "slow_pair", "peer_copies"),
}


def draw(seed: int, number: int, kinds: Iterable[str], causes: Iterable[str] | None = None) -> Trial:
    """Random job ``number`` of this seed."""
    rng = random.Random(f"{seed}/{number}")
    kind = rng.choice(sorted(kinds))
    possible = [cause for cause in CAUSES[kind] if causes is None or cause in causes]
    clean = "clean" if "clean" in possible or not possible else possible[0]
    cause = clean if rng.random() < CLEAN_SHARE else rng.choice(possible or [clean])
    job = _plain(rng, kind, cause, rng.randrange(1 << 30))
    step_ns = truth.mean(truth.lengths(job))
    if cause != "clean":
        job = replace(job, planted=_plant(rng, job, cause, step_ns))
    share, due = 0.0, False
    if cause != "clean":
        job, share, due = _grown(job)
    payload = rng.random() < 0.85
    due &= payload or (kind == "dp" and cause != "small_buckets")  # else groups or sizes are not to be seen
    return Trial(seed, number, job, rng.random() < 0.3, payload, share, due)


def _plain(rng: random.Random, kind: str, cause: str, seed: int) -> Job:
    ranks, group = rng.choice(SHAPES[kind])
    layers = rng.randint(2, 4) if kind == "pp" else rng.randint(4, 12 if ranks < 16 else 6)
    layer_ns = rng.uniform(0.4, 1.5) * MS
    if cause in ("slow_host", "small_buckets"):  # a GPU that is not far slower than the host, or the latency
        layer_ns /= 3
    job = Job(
        kind=kind,
        ranks=ranks,
        group=group,
        per_host=rng.choice([4, 8]),
        steps=rng.randint(4, 6) if ranks < 16 else 4,
        micro_batches=rng.choice([group, 2 * group]) if kind == "pp" else 1,
        on_compute_stream=rng.random() < 0.5,
        layers=layers,
        layer_ns=round(layer_ns),
        optimizer_ns=round(rng.uniform(0.05, 0.15) * layers * layer_ns),
        layer_bytes=rng.randint(8, 60) * MIB,
        layer_parameters=rng.randint(2, 8),
        cap=rng.choice([10, 25, 25, 50]) * MIB,
        small_first=rng.random() < 0.5,
        launch_ns=rng.randint(4, 8) * US,
        gap_ns=rng.randint(5, 14) * US,
        latency_ns=rng.randint(8, 20) * US,
        contention=rng.choice([1.0, rng.uniform(1.0, 1.08)]),
        jitter=rng.uniform(0.003, 0.015),
        side=rng.choice(["after", "around"]),
        item_each_step=rng.random() < 0.25,
        marked=kind == "tp" or rng.random() < 0.4,
        buffers=kind == "dp" and rng.random() < 0.2,
        seed=seed,
    )
    if cause == "small_buckets":  # many small parameters, and a link on which latency counts
        job = replace(job, layer_bytes=rng.randint(2, 5) * MIB, layer_parameters=rng.randint(8, 16))
        job = replace(job, latency_ns=rng.randint(30, 60) * US, far_latency_ns=60 * US)
    hidden = {
        "contention": (0.6, 0.85),
        "one_bucket": (0.35, 0.7),
        "serialised": (0.35, 0.7),
        "small_buckets": (0.1, 0.3),
    }
    job = _with_link(job, rng.uniform(*hidden.get(cause, (0.15, 0.6))))
    exchanged = rng.uniform(*((0.05, 0.12) if cause in ("slow_link", "slow_pair") else (0.02, 0.08)))
    return replace(
        job,
        activation_bytes=round(exchanged * job.layer_ns * job.gbps),
        far_gbps=job.gbps * rng.choice([1.0, 1.0, 0.6]),
    )


def _with_link(job: Job, share: float) -> Job:
    """The job with links on which its gradients take this share of its backward (and gathers of its
    forward).
    """
    size = sum(job.parameters)
    if job.kind == "hsdp":  # a gather and a scatter of the layer in backward, and a reduction of its shard
        replicas = job.ranks // job.group
        moved = size * (2 * (job.group - 1) / job.group + 2 * (replicas - 1) / replicas / job.group)
    else:
        count = job.ranks if job.kind in ("dp", "ep") else job.ranks // job.group
        moved = 2 * max(1, count - 1) / max(2, count) * size
    gbps = moved / (share * 2 * job.layers * job.layer_ns)
    return replace(job, gbps=gbps, far_gbps=gbps)


def _plant(rng: random.Random, job: Job, cause: str, step_ns: float) -> Planted:
    rank = rng.randrange(job.ranks) if cause in ON_ONE_RANK else None
    phase = None
    how = "sleep"
    if cause in ("slow_rank", "slow_host", "pause_one", "pause_all"):
        phase = rng.choice(
            ["forward", "backward", "optimizer"] if cause.startswith("pause") else ["forward", "backward"]
        )
    if cause == "slow_rank":
        phase = rng.choice(["forward", "backward", None])
    if cause == "pause_all":
        how = rng.choice(["sleep", "item", "stream", "free", "pageable"])
    if cause == "preemption":
        how = rng.choice(["stretch", "gap"])
    pair = None
    if cause == "slow_pair":
        first = rng.randrange(job.ranks // job.group) * job.group + rng.randrange(job.group - 1 or 1)
        pair = (first, first + 1)
        if job.kind == "pp":
            first = rng.randrange(job.ranks - job.ranks // job.group)
            pair = (first, first + job.ranks // job.group)
    size = {
        "slow_rank": rng.uniform(1.1, 1.4),
        "slow_host": rng.uniform(2, 5),
        "pause_one": rng.uniform(0.06, 0.2) * step_ns,
        "pause_all": rng.uniform(0.06, 0.2) * step_ns,
        "slow_link": rng.uniform(1.5, 4),
        "slow_pair": rng.uniform(1.5, 4),
        "small_buckets": 0.25 * MIB,
        "one_bucket": 1e6 * MIB,
        "late_launch": rng.uniform(0.3, 1.0) * MS,
        "contention": rng.uniform(1.15, 1.5),
        "peer_copies": rng.uniform(0.06, 0.15) * step_ns,
        "preemption": rng.uniform(0.8, 2.5) * MS,
    }.get(cause, 1.0)
    return Planted(cause, size, rank, phase, how, pair)


LARGEST = {"slow_rank": 2.5, "slow_host": 12, "slow_link": 8, "slow_pair": 10, "contention": 2.2}
"""Beyond that a cause is no longer one that is seen in practice."""

LARGEST_LATENCY_NS = 120 * US


def _grown(job: Job) -> tuple[Job, float, bool]:
    """The job with its cause large enough to be due, if it gets there; the share of the step that it costs,
    and whether.
    """
    share, due = 0.0, False
    for _ in range(9):
        short = replace(job, steps=3)
        saving = truth.saving(short)
        share = saving / truth.mean(truth.lengths(short))
        due = share >= DUE_SHARE and saving >= DUE_OVER_RIVALS * truth.rivals(short)
        one = job.planted
        assert one is not None
        if due or one.size > LARGEST.get(one.cause, one.size) or job.latency_ns > LARGEST_LATENCY_NS:
            break
        if one.cause == "small_buckets":
            job = replace(
                job, latency_ns=round(job.latency_ns * 1.3), far_latency_ns=round(job.far_latency_ns * 1.3)
            )
        elif one.cause in ("one_bucket", "serialised", "no_prefetch", "one_queue"):
            job = replace(job, gbps=job.gbps / 1.15, far_gbps=job.far_gbps / 1.15)
        elif one.cause in ("slow_rank", "slow_host", "slow_link", "slow_pair", "contention"):
            job = replace(job, planted=replace(one, size=1 + (one.size - 1) * 1.4))
        elif one.cause == "preemption":
            job = replace(job, planted=replace(one, size=min(8 * MS, one.size * 1.3)))
        else:
            job = replace(job, planted=replace(one, size=one.size * 1.4))
    return job, truth.saving(job) / truth.mean(truth.lengths(job)), due
