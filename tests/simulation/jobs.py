"""Training jobs as plain data, and what the host of each rank does in them.

Kinds: ``dp`` (DDP's buckets), ``hsdp`` (all-gather and reduce-scatter in shard groups, all-reduce in
replicate groups), ``tp`` (tensor parallel groups under data parallel ones), ``pp`` (a pipeline, one forward
and one backward in turn, under data parallel groups) and ``ep`` (all-to-all in expert groups under data
parallel ones).

What is planted changes the job in one place, so the job without it is the same job with the same jitter:
jitter is looked up by what an operation is, not drawn in order.
"""

from __future__ import annotations

import gc
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from .engine import (
    COPY,
    KERNEL,
    RECORD,
    WAIT,
    Busy,
    Call,
    Collective,
    Engine,
    Item,
    Op,
    Pop,
    Preemption,
    Push,
    Range,
)

US, MS, KIB, MIB = 1_000, 1_000_000, 1 << 10, 1 << 20
MAIN, AUTOGRAD = 0, 1
COMPUTE, BATCH, DDP, TENSOR, GATHER, SCATTER, REPLICATE, EXPERT, PIPE = 7, 13, 17, 18, 21, 22, 23, 24, 30
NORM = 25
FIRST_CAP = MIB  # of DDP's first bucket, where bucket_cap_mb is not given
COPY_GBPS = 1500.0  # of a gradient into its bucket

_NORMAL = [NormalDist().inv_cdf((place + 0.5) / 4096) for place in range(4096)]
random.Random(0).shuffle(_NORMAL)

FORWARD_KERNELS = (("gemm_forward", 0.45), ("attention_forward", 0.35), ("norm_forward", 0.2))
BACKWARD_KERNELS = (
    ("norm_backward", 0.15),
    ("gemm_backward_data", 0.25),
    ("attention_backward", 0.35),
    ("gemm_backward_weight", 0.25),
)
SYNCS = ("item", "stream", "free", "pageable")


@dataclass(frozen=True)
class Planted:
    """The one thing that is wrong with a job; ``without_cause`` takes it out.

    Attributes:
        cause: slow_rank, slow_host, pause_one, pause_all, slow_link, slow_pair, small_buckets, one_bucket,
            late_launch, no_prefetch, serialised, contention, peer_copies or preemption.
        size: how much of it: a factor (slow_*, contention, late_launch: ns), ns (pauses, copies,
            preemption), or a cap.
        rank: on which rank, where it is one.
        phase: in which phase; None in all.
        how: pause_*: ``sleep`` or one of ``SYNCS``; preemption: ``stretch`` or ``gap``.
        pair: slow_pair: the two ranks.
    """

    cause: str
    size: float = 1.0
    rank: int | None = None
    phase: str | None = None
    how: str = "sleep"
    pair: tuple[int, int] | None = None


@dataclass(frozen=True)
class Job:
    """One training job. Sizes in bytes, times in ns.

    ``group`` is the size of the inner groups: shards, tensor parallel ranks, pipeline stages or experts. ``side``
    says whether NCCL's side stream is led around before each launch, or is told after it. ``communication`` is a
    factor of every transfer; with 0 nothing is transferred and nobody waits. ``marked``: buckets are annotated.
    ``norm_bytes``: all ranks of the job reduce so much ahead of the optimizer (4: the norm of the gradients).
    """

    kind: str = "dp"
    ranks: int = 4
    group: int = 1
    per_host: int = 8
    steps: int = 4
    layers: int = 8
    layer_ns: int = 900 * US
    optimizer_ns: int = 800 * US
    layer_bytes: int = 24 * MIB
    layer_parameters: int = 3
    activation_bytes: int = 8 * MIB
    cap: int = 25 * MIB
    small_first: bool = False
    reverse: bool = False
    micro_batches: int = 4
    launch_ns: int = 6 * US
    gap_ns: int = 12 * US
    latency_ns: int = 12 * US
    gbps: float = 100.0
    far_latency_ns: int = 25 * US
    far_gbps: float = 40.0
    communication: float = 1.0
    contention: float = 1.0
    link_contention: float = 1.0
    jitter: float = 0.01
    side: str = "after"
    on_compute_stream: bool = False
    item_each_step: bool = False
    marked: bool = False
    buffers: bool = False
    norm_bytes: int = 0
    seed: int = 0
    planted: Planted | None = None

    def without_cause(self) -> Job:
        """The same job with nothing planted."""
        return replace(self, planted=None)

    def planted_size(self, cause: str, otherwise: float) -> float:
        """Size of what is planted, if it is this."""
        return self.planted.size if self.planted is not None and self.planted.cause == cause else otherwise

    def has(self, cause: str) -> bool:
        """Is this planted?"""
        return self.planted is not None and self.planted.cause == cause

    def normal(self, *key: object) -> float:
        """A number of the standard normal distribution that belongs to this key."""
        return _NORMAL[zlib.crc32(repr((self.seed, *key)).encode()) & 4095]

    def vary(self, value: float, *key: object, by: float | None = None) -> int:
        """The value with its jitter."""
        spread = self.jitter if by is None else by
        return max(1, round(value * max(0.2, 1 + spread * self.normal(*key))))

    @property
    def bucket_cap(self) -> int:
        """DDP's cap with what is planted."""
        return round(self.planted_size("small_buckets", self.planted_size("one_bucket", self.cap)))

    @property
    def replicas(self) -> int:
        """Ranks that hold the same part of the model."""
        return self.ranks // self.group if self.kind in ("hsdp", "tp", "pp") else self.ranks

    @property
    def parameters(self) -> tuple[int, ...]:
        """Bytes of the parameters in the order in which their gradients get ready."""
        shares = [1 + number % 3 for number in range(self.layer_parameters)]
        layer = [4 * max(1, self.layer_bytes * share // sum(shares) // 4) for share in shares]
        return tuple(layer * self.layers)


@dataclass
class Group:
    """The ranks of a communicator, and the collectives that it has had."""

    job: Job
    members: tuple[int, ...]
    communicator: int
    made: list[Collective] = field(default_factory=list)
    _next: dict[int, int] = field(default_factory=dict)

    def next(self, rank: int, kind: str, size: int, root: int | None = None) -> Collective:
        """The next collective of this rank; ``size`` is the payload, as NCCL counts it for this kind."""
        number = self._next.get(rank, 0)
        self._next[rank] = number + 1
        if number == len(self.made):
            self.made.append(self._make(number, kind, size, root))
        one = self.made[number]
        assert (one.kind, one.bytes, one.root) == (kind, size, root), "members disagree"
        return one

    def _make(self, number: int, kind: str, size: int, root: int | None) -> Collective:
        job, count = self.job, len(self.members)
        edges = list(zip(self.members, self.members[1:] + self.members[:1], strict=True))
        latency = bandwidth = 0.0
        slowest = min(self._gbps(a, b) for a, b in edges) if count > 1 else job.gbps
        far = any(a // job.per_host != b // job.per_host for a, b in edges)
        latency = job.far_latency_ns if far else job.latency_ns
        rounds, share = {
            "AllReduce": (2 * (count - 1), 2 * (count - 1) / count),
            "AllGather": (count - 1, count - 1),
            "ReduceScatter": (count - 1, count - 1),
            "AllToAll": (1, (count - 1) / count),
            "SendRecv": (1, 1.0),
            "Broadcast": (1, 1.0),
        }[kind]
        bandwidth = slowest  # GB/s is bytes per ns
        latency *= 1 + 0.15 * (rounds - 1)
        length = (latency + size * share / bandwidth) * job.communication
        links = frozenset((a, "far" if a // job.per_host != b // job.per_host else "near") for a, b in edges)
        skews = {
            rank: max(
                0,
                round(
                    job.communication
                    * (3 * US + 2 * US * job.normal("skew", self.communicator, number, rank))
                ),
            )
            for rank in self.members
        }
        return Collective(
            kind=kind,
            communicator=self.communicator,
            sequence=number,
            members=self.members,
            bytes=size,
            length=job.vary(length, "transfer", self.communicator, number),
            links=links,
            root=root,
            skews=skews,
        )

    def _gbps(self, a: int, b: int) -> float:
        job = self.job
        speed = job.far_gbps if a // job.per_host != b // job.per_host else job.gbps
        if job.has("slow_link"):
            speed /= job.planted_size("slow_link", 1)
        if job.has("slow_pair") and job.planted is not None and job.planted.pair in ((a, b), (b, a)):
            speed /= job.planted.size
        return speed


class Groups:
    """All communicators of a job, by their members and purpose."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.all: dict[tuple[str, tuple[int, ...]], Group] = {}

    def of(self, purpose: str, members: Sequence[int]) -> Group:
        """The communicator of these ranks for this purpose."""
        key = (purpose, tuple(members))
        if key not in self.all:
            self.all[key] = Group(
                self.job, tuple(members), 0xC0FFEE00 + 7919 * zlib.crc32(repr(key).encode())
            )
        return self.all[key]


class Host:
    """What the host of one rank does, written down operation by operation."""

    def __init__(self, job: Job, rank: int, groups: Groups) -> None:
        self.job, self.rank, self.groups = job, rank, groups
        self.line: list[Op] = []
        self.thread = MAIN
        self.step, self.phase = -1, ""
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._open: list[Range] = []
        self._begun: set[str] = set()

    # What a host does

    def start_step(self, step: int) -> None:
        """What is counted by step begins anew."""
        self.step, self.phase = step, ""
        self._counts.clear()
        self._begun.clear()

    def key(self, *what: object) -> tuple[object, ...]:
        """Names an operation for its jitter: the n-th of its name in the step, whatever else the job does."""
        self._counts[what] += 1
        return (self.rank, self.step, *what, self._counts[what])

    def push(self, name: str, payload: dict[str, int] | None = None) -> None:
        """Begin a range."""
        self._open.append(Range(name, self.thread, payload))
        self.line.append(Push(self._open[-1]))

    def pop(self) -> None:
        """End the range begun last."""
        self.line.append(Pop(self._open.pop()))

    def begin(self, phase: str) -> None:
        """Begin a phase."""
        self.push(phase)
        is_first = phase not in self._begun
        self._begun.add(phase)
        self.phase = phase
        planted = self.job.planted
        if not is_first or planted is None or planted.phase != phase or planted.rank not in (None, self.rank):
            return
        if planted.cause in ("pause_one", "pause_all"):
            self.pause(planted.how, round(planted.size))

    def busy(self, ns: float) -> None:
        """Host time."""
        self.line.append(Busy(self.thread, round(ns * self._host_factor())))

    def _host_factor(self) -> float:
        planted = self.job.planted
        slow = planted is not None and planted.cause == "slow_host" and planted.rank == self.rank
        return planted.size if slow and planted.phase in (None, self.phase) else 1.0

    def call(self, api: str, ns: float, item: Item | None = None, **waits: object) -> Call:
        """A CUDA call."""
        cost = round(self.job.vary(ns, *self.key(api), by=0.15) * self._host_factor())
        made = Call(api, self.thread, cost, item, **waits)
        self.line.append(made)
        return made

    def kernel(self, name: str, ns: float, stream: int = COMPUTE) -> Item:
        """Launch a kernel."""
        job, planted = self.job, self.job.planted
        key = self.key(name)
        if planted is not None and planted.cause == "slow_rank" and planted.rank == self.rank:
            ns *= planted.size if planted.phase in (None, self.phase) else 1
        self.busy(job.vary(job.gap_ns, "gap", *key, by=0.2))
        item = Item(
            KERNEL, stream, self.rank, name, job.vary(ns, "kernel", *key), step=self.step, phase=self.phase
        )
        self.call("cudaLaunchKernel_v7000", job.launch_ns, item)
        return item

    def copy(self, kind: str, ns: float, stream: int, size: int, *, waits: bool = False) -> Item:
        """Launch a copy; one from pageable memory ``waits`` for its end."""
        item = Item(COPY, stream, self.rank, kind, round(ns), step=self.step, phase=self.phase, bytes=size)
        self.call("cudaMemcpyAsync_v3020", 5 * US, item, awaits="item" if waits else None)
        return item

    def record(self, stream: int) -> Item:
        """Record an event."""
        item = Item(RECORD, stream, self.rank)
        self.call("cudaEventRecord_v3020", 1.5 * US, item)
        return item

    def wait(self, stream: int, record: Item | None, *, own: bool = False) -> None:
        """Let a stream wait for a recorded event."""
        if record is not None:
            item = Item(WAIT, stream, self.rank, awaited=record, is_own=own)
            self.call("cudaStreamWaitEvent_v3020", 1.2 * US, item)

    def pause(self, how: str, ns: int) -> None:
        """The host stops: it sleeps, or synchronises and then needs as long."""
        if how == "sleep":
            self.line.append(Busy(self.thread, ns))
        elif how == "item":
            self.copy("DtoH", 2 * US, COMPUTE, 4)
            self.call("cudaStreamSynchronize_v3020", 4 * US, awaits="stream", on=COMPUTE)
            self.line.append(Busy(self.thread, ns))
        elif how == "stream":
            self.call("cudaStreamSynchronize_v3020", 4 * US, awaits="stream", on=COMPUTE)
            self.line.append(Busy(self.thread, ns))
        elif how == "free":
            self.call("cudaFree_v3020", 4 * US, awaits="device", after=ns)
        else:
            self.copy("HtoD", ns, COMPUTE, ns * 10, waits=True)

    def nccl(
        self,
        group: Group,
        kind: str,
        size: int,
        stream: int,
        after: Sequence[int | Item | None],
        *,
        purpose: str = "",
        held_by: int | None = None,
        root: int | None = None,
        call: str = "",
    ) -> Item | None:
        """A collective as PyTorch and NCCL launch it; returns the event at its end.

        The stream waits for what comes before (an event, or what is in a stream by now), and through NCCL's
        side stream for its own work. ``call`` names NCCL's range where it is not the kind (Send, Recv).
        """
        if len(group.members) < 2:
            return None
        for other in after:
            if other != stream:
                self.wait(stream, self.record(other) if isinstance(other, int) else other)
        item = Item(KERNEL, stream, self.rank, kind, step=self.step, phase=self.phase, bytes=size)
        item.purpose, item.held_by = purpose, held_by
        if self.job.communication:
            item.collective = group.next(self.rank, kind, size, root)
        side = 100 + stream
        if self.job.side == "around":
            self.wait(side, self.record(stream))
        payload = {"bytes": size, "communicator": group.communicator}
        if kind == "SendRecv":
            payload["peer"] = 1 - group.members.index(self.rank)
        elif kind == "AllToAll":
            payload["members"] = len(group.members)
        self.push(call or kind, payload)
        self.wait(stream, self.record(side), own=True)
        self.call("cuLaunchKernelEx", self.job.launch_ns + 4 * US, item)
        if self.job.side == "after":
            self.wait(side, self.record(stream))
        self.pop()
        return self.record(stream)

    def layer(self, kernels: Sequence[tuple[str, float]], ns: float) -> None:
        """The kernels of a layer."""
        for name, part in kernels:
            self.kernel(name, ns * part)


# --- what the kinds of job do in a step ---------------------------------------------------------------------


def layout(
    sizes: Sequence[int], cap: int, *, small_first: bool = False, reverse: bool = False
) -> list[list[int]]:
    """DDP's buckets: lists of parameters (numbers in ready order)."""
    order = list(range(len(sizes)))
    made: list[list[int]] = []
    bucket: list[int] = []
    for number in reversed(order) if reverse else order:
        bucket.append(number)
        if sum(sizes[n] for n in bucket) >= (min(cap, FIRST_CAP) if small_first and not made else cap):
            made.append(bucket)
            bucket = []
    return [*made, bucket] if bucket else made


class Buckets:
    """DDP's reducer in one backward: launches a bucket when it and all before it are complete."""

    def __init__(self, host: Host, group: Group, streams: Sequence[int] = (COMPUTE,)) -> None:
        job = host.job
        self.host, self.group, self.after = host, group, streams
        self.sizes = job.parameters
        small_first = job.small_first and job.bucket_cap == job.cap
        self.buckets = layout(self.sizes, job.bucket_cap, small_first=small_first, reverse=job.reverse)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.owner = {number: at for at, bucket in enumerate(self.buckets) for number in bucket}
        self.sent = 0
        self.ends: list[Item | None] = []

    def is_ready(self, parameter: int) -> None:
        """A gradient is there: it is copied into its bucket, and complete buckets are sent in their order."""
        host, job = self.host, self.host.job
        host.kernel("copy_to_bucket", 2 * US + self.sizes[parameter] / COPY_GBPS)
        self.missing[self.owner[parameter]] -= 1
        first = self.sent
        while self.sent < len(self.buckets) and not self.missing[self.sent]:
            number, bucket = self.sent, self.buckets[self.sent]
            size = sum(self.sizes[n] for n in bucket)
            last = number == len(self.buckets) - 1
            if job.marked:
                host.push(f"nsysddp:bucket={number} bytes={size} parameters={len(bucket)} last={int(last)}")
            host.line.append(Busy(host.thread, round(job.planted_size("late_launch", 0))))
            host.busy(15 * US)
            stream = COMPUTE if job.has("serialised") else DDP
            held = None if number == first else first
            self.ends.append(
                host.nccl(
                    self.group, "AllReduce", size, stream, self.after, purpose="gradients", held_by=held
                )
            )
            if job.marked:
                host.pop()
            self.sent += 1

    def layer(self, number: int, ns: float, between: Callable[[], None] = lambda: None) -> None:
        """The backward of a layer (0: the first to be done), and what gets ready in it."""
        count, done = self.host.job.layer_parameters, 0
        for place, (name, part) in enumerate(BACKWARD_KERNELS):
            if place == 2:
                between()
            self.host.kernel(name, ns * part)
            until = count * place // (len(BACKWARD_KERNELS) - 1)
            for parameter in range(done, until):
                self.is_ready(number * count + parameter)
            done = until

    def finish(self) -> None:
        """The compute stream waits for every bucket."""
        for end in self.ends:
            self.host.wait(COMPUTE, end)


def _data_parallel(host: Host) -> Group:
    """The ranks that hold the same part of the model as this one."""
    job = host.job
    if job.kind == "pp":
        width = job.ranks // job.group
        return host.groups.of("dp", range(host.rank // width * width, host.rank // width * width + width))
    if job.kind in ("hsdp", "tp"):
        return host.groups.of("dp", range(host.rank % job.group, job.ranks, job.group))
    return host.groups.of("dp", range(job.ranks))


def _inner(host: Host) -> Group:
    """The ranks of a shard, a tensor parallel or an expert group."""
    first = host.rank // host.job.group * host.job.group
    return host.groups.of(host.job.kind, range(first, first + host.job.group))


def _step_dp(host: Host) -> None:
    """DDP, with tensor parallel all-reduces (``tp``) or all-to-alls of experts (``ep``) in each layer."""
    job = host.job
    host.begin("forward")
    if job.buffers:
        host.wait(COMPUTE, host.nccl(_data_parallel(host), "Broadcast", 4096, DDP, [COMPUTE], root=0))
    for _ in range(job.layers):
        _talk(host)
        host.layer(FORWARD_KERNELS[:2], job.layer_ns)
        _talk(host)
        host.layer(FORWARD_KERNELS[2:], job.layer_ns)
    host.kernel("loss", 30 * US)
    host.pop()
    host.begin("backward")
    host.thread = AUTOGRAD
    buckets = Buckets(host, _data_parallel(host))
    for number in range(job.layers):
        _talk(host)
        buckets.layer(number, 2 * job.layer_ns, between=lambda: _talk(host))
    buckets.finish()
    host.thread = MAIN
    host.pop()


def _talk(host: Host) -> None:
    """What a layer exchanges within its inner group, if it has one, and waits for."""
    job = host.job
    if job.kind == "tp":
        stream = COMPUTE if job.on_compute_stream else TENSOR
        host.wait(COMPUTE, host.nccl(_inner(host), "AllReduce", job.activation_bytes, stream, [COMPUTE]))
    elif job.kind == "ep":
        host.wait(COMPUTE, host.nccl(_inner(host), "AllToAll", job.activation_bytes, EXPERT, [COMPUTE]))


def _step_hsdp(host: Host) -> None:
    """Parameters are gathered for a layer (two in flight), gradients scattered, and reduced over replicas."""
    job = host.job
    shard, replicas, part = _inner(host), _data_parallel(host), host.job.layer_bytes // host.job.group
    ends: list[Item | None] = [host.record(COMPUTE)] * 2

    def gather(purpose: str) -> Item | None:
        return host.nccl(
            shard, "AllGather", part, GATHER, [ends[-1 if job.has("no_prefetch") else -2]], purpose=purpose
        )

    host.begin("forward")
    for _ in range(job.layers):
        host.wait(COMPUTE, gather("gather_forward"))
        host.layer(FORWARD_KERNELS, job.layer_ns)
        ends.append(host.record(COMPUTE))
    host.kernel("loss", 30 * US)
    host.pop()
    host.begin("backward")
    host.thread = AUTOGRAD
    scattered = reduced = None
    ends += [host.record(COMPUTE)]
    gathered = gather("gather_backward")
    for number in range(job.layers):
        host.wait(COMPUTE, gathered)
        if number < job.layers - 1 and not job.has("no_prefetch"):
            gathered = gather("gather_backward")
        host.layer(BACKWARD_KERNELS, 2 * job.layer_ns)
        host.wait(COMPUTE, scattered)  # its input may be freed
        ends.append(host.record(COMPUTE))
        if number < job.layers - 1 and job.has("no_prefetch"):
            gathered = gather("gather_backward")
        scattered = host.nccl(shard, "ReduceScatter", part, SCATTER, [COMPUTE], purpose="reduce_scatter")
        reduced = host.nccl(replicas, "AllReduce", part, REPLICATE, [SCATTER], purpose="gradients")
    host.wait(COMPUTE, scattered)
    host.wait(COMPUTE, reduced)
    host.thread = MAIN
    host.pop()


def _step_pp(host: Host) -> None:
    """One forward and one backward in turn, after a warm-up of forwards; DDP in the last backward."""
    job = host.job
    width = job.ranks // job.group
    stage = host.rank // width
    before, behind = (host.rank - width, host.rank), (host.rank, host.rank + width)
    last = stage == job.group - 1
    warm = min(job.group - stage - 1, job.micro_batches)

    def move(
        purpose: str, call: str, stream: int, members: tuple[int, int], after: Sequence[int]
    ) -> Item | None:
        group = host.groups.of(purpose, members)
        return host.nccl(group, "SendRecv", job.activation_bytes, stream, after, call=call)

    def forward() -> None:
        host.begin("forward")
        if stage:
            host.wait(COMPUTE, move("activations", "Recv", PIPE, before, [COMPUTE]))
        for _ in range(job.layers):
            host.layer(FORWARD_KERNELS, job.layer_ns)
        if not last:
            move("activations", "Send", PIPE + 1, behind, [COMPUTE])
        host.pop()

    def backward(number: int) -> None:
        host.begin("backward")
        host.thread = AUTOGRAD
        if not last:
            host.wait(COMPUTE, move("gradients", "Recv", PIPE + 2, behind, [COMPUTE]))
        if number == job.micro_batches - 1:
            buckets = Buckets(host, _data_parallel(host))
            for layer in range(job.layers):
                buckets.layer(layer, 2 * job.layer_ns)
        else:
            for _ in range(job.layers):
                host.layer(BACKWARD_KERNELS, 2 * job.layer_ns)
        if stage:
            move("gradients", "Send", PIPE + 3, before, [COMPUTE])
        if number == job.micro_batches - 1:
            buckets.finish()
        host.thread = MAIN
        host.pop()

    for _ in range(warm):
        forward()
    for number in range(job.micro_batches):
        if warm + number < job.micro_batches:
            forward()
        backward(number)


KINDS: dict[str, Callable[[Host], None]] = {
    "dp": _step_dp,
    "tp": _step_dp,
    "ep": _step_dp,
    "hsdp": _step_hsdp,
    "pp": _step_pp,
}


def _step(host: Host, step: int) -> None:
    job = host.job
    host.start_step(step)
    host.push(f"step {step}")
    host.begin("data")
    host.busy(40 * US)
    host.copy("HtoD", 60 * US, BATCH, 4 * MIB)
    host.wait(COMPUTE, host.record(BATCH))
    host.pop()
    if job.has("peer_copies"):
        host.copy("PtoP", job.planted_size("peer_copies", 0), COMPUTE, 64 * MIB)
    KINDS[job.kind](host)
    host.begin("optimizer")
    if job.norm_bytes:
        world = host.groups.of("world", range(job.ranks))
        host.wait(COMPUTE, host.nccl(world, "AllReduce", job.norm_bytes, NORM, [COMPUTE]))
    for number in range(4):
        host.kernel(f"multi_tensor_{number % 2}", job.optimizer_ns / 4)
    host.pop()
    if job.item_each_step:
        host.copy("DtoH", 2 * US, COMPUTE, 4)
        host.call("cudaStreamSynchronize_v3020", 4 * US, awaits="stream", on=COMPUTE)
    host.pop()


@dataclass
class Run:
    """A simulated job: the host line of every rank with the times of all that happened, and the
    collectives.
    """

    job: Job
    lines: list[list[Op]]
    groups: Groups

    def items(self, rank: int) -> list[Item]:
        """Everything that the rank put into streams, in order of launch."""
        return [op.item for op in self.lines[rank] if isinstance(op, Call) and op.item is not None]


def simulate(job: Job) -> Run:
    """Run the job."""
    collects = gc.isenabled()
    gc.disable()  # nothing can be freed before the end, and a quarter of the time would be spent on looking
    try:
        return _simulated(job)
    finally:
        if collects:
            gc.enable()


def _simulated(job: Job) -> Run:
    groups = Groups(job)
    hosts = [Host(job, rank, groups) for rank in range(job.ranks)]
    for host in hosts:
        start = 500 * US + round(20 * US * job.normal("start", host.rank))
        host.line.append(Busy(MAIN, start))
        for step in range(job.steps):
            _step(host, step)
    preemption = None
    if job.planted is not None and job.planted.cause == "preemption":
        one = job.planted
        preemption = Preemption(one.rank or 0, 2 * MS, 10 * MS, round(one.size), one.how == "stretch")
    Engine(
        [host.line for host in hosts],
        contention=job.planted_size("contention", job.contention),
        link_contention=job.link_contention,
        preemption=preemption,
        one_queue=job.has("one_queue"),
    ).run()
    return Run(job, [host.line for host in hosts], groups)
