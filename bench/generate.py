"""Generate a realistic nsys export of a DDP run, of any size, together with the right answers.

One report of one host: a process per rank, each on its own GPU. In every step the main thread launches the
forward pass and the optimizer, the autograd thread the backward pass and one all-reduce per bucket on NCCL's
stream; a collective starts when its bucket is ready and ends after the last rank has arrived. The host runs
ahead of the GPU; the next batch is copied before its step's first kernel. The same arguments give the same
file.

The truth beside it (``NAME.truth.json``) comes from an integer sweep over this file's own arrays. It shares
no code with nsysddp.

    python bench/generate.py /tmp/bench/1m.sqlite --kernels 1000000
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from builder import SCHEMA, Export, Process, global_tid, nccl_blob

Ints = NDArray[np.int64]

US, MS = 1_000, 1_000_000
HOST_LEAD = 2 * MS  # how far the host runs ahead of the GPU
COMPUTE_STREAM, NCCL_STREAM, COPY_STREAM = 7, 17, 13
CORRELATION_GAP = 12  # ids are dense per process but not contiguous: 6.7 ids a row in a real capture
FLUSH_ROWS = 20_000  # CUPTI hands records over in buffers; an export keeps their order
BATCH = 200_000
COMMUNICATOR = 0xEF70F98B928CA22C
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"

#: short name and full name of compute kernels, as PyTorch runs them
COMPUTE_NAMES = [
    *[
        (f"nvjet_sm90_tst_{a}x{b}_64x{c}_2x1_v_bz_coopA_{t}",) * 2
        for a in (64, 128)
        for b in (128, 256)
        for c in (4, 6)
        for t in ("NTN", "TNT", "NNT")
    ],
    *[
        (
            "vectorized_elementwise_kernel",
            f"void at::native::vectorized_elementwise_kernel<{width}, at::native::{op}>(int, T2, T3)",
        )
        for width in (2, 4, 8)
        for op in ("CUDAFunctor_add<c10::BFloat16>", "MulFunctor<float>", "FillFunctor<int>", "gelu_kernel")
    ],
    *[
        (
            "multi_tensor_apply_kernel",
            f"void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<{lists}>>",
        )
        for lists in (2, 3, 4)
    ],
    ("reduce_kernel", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps>>"),
    ("vectorized_layer_norm_kernel", "void at::native::vectorized_layer_norm_kernel<float, float>(int)"),
    ("flash_fwd_kernel", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>"),
    ("flash_bwd_kernel", "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<traits<64>>"),
    ("softmax_warp_forward", "void softmax_warp_forward<float, float, float, 10, false>(float *, int)"),
    ("embedding_backward_kernel", "void at::native::embedding_backward_kernel<float, int>(int *, float *)"),
]
CALLS = [
    "cudaLaunchKernel_v7000",
    "cuLaunchKernelEx",
    "cudaEventRecord_v3020",
    "cudaStreamWaitEvent_v3020",
    "cudaMemcpyAsync_v3020",
    "cudaMemsetAsync_v3020",
    "cudaStreamIsCapturing_v10000",
    "cuKernelGetName",
]
LAUNCH, LAUNCH_EX, RECORD, WAIT, COPY, SET, CAPTURING, GET_NAME = range(len(CALLS))


@dataclass(frozen=True)
class Size:
    """What to generate."""

    kernels: int
    ranks: int = 8
    kernels_per_step: int = 1000
    buckets: int = 12
    seed: int = 0
    payload: bool = True
    ranges_per_launch: int = 0
    row_order: str = "flush"

    @property
    def steps(self) -> int:
        """Steps that give about as many kernels as asked for."""
        return max(1, self.kernels // (self.ranks * self.kernels_per_step))


@dataclass
class Rank:
    """GPU events and host calls of one rank; the first axis of every two-dimensional array is the step."""

    compute_start: Ints
    compute_end: Ints
    collective_start: Ints
    collective_end: Ints
    copy_start: Ints  # the batch
    copy_end: Ints
    loss_start: Ints  # a small copy to the host after the optimizer
    loss_end: Ints
    memset_start: Ints
    memset_end: Ints


@dataclass(frozen=True)
class Phases:
    """How the compute kernels of a step are divided, and after which one each bucket is ready."""

    forward: int
    backward: int
    optimizer: int
    ready_after: Ints

    @classmethod
    def of(cls, size: Size) -> Phases:
        """Divide the compute kernels of a step 3 : 6 : 1."""
        compute = size.kernels_per_step - size.buckets
        forward, optimizer = compute * 3 // 10, compute // 10
        backward = compute - forward - optimizer
        bucket = np.arange(1, size.buckets + 1)
        return cls(forward, backward, optimizer, forward + bucket * backward // size.buckets - 1)


def simulate(size: Size) -> list[Rank]:
    """When every GPU event of every rank runs, in ns."""
    phases = Phases.of(size)
    starts, ends, rngs = [], [], []
    steps, compute = size.steps, size.kernels_per_step - size.buckets
    before_optimizer = phases.forward + phases.backward
    for rank in range(size.ranks):
        rng = np.random.default_rng([size.seed, rank])
        slow = 1.05 if rank == 3 % size.ranks else 1.0
        length = (3 * US + rng.lognormal(1.6, 1.0, (steps, compute)) * US * slow).astype(np.int64)
        gap = 1500 + (rng.random((steps, compute)) < 0.02) * rng.integers(5 * US, 40 * US, (steps, compute))
        end = np.cumsum(length + gap, axis=1) + rng.integers(0, 300 * US, (steps, 1))
        starts.append(end - length)
        ends.append(end)
        rngs.append(rng)

    # Collectives, relative to the step: bucket by bucket, since NCCL's stream runs them in order.
    job = np.random.default_rng([size.seed, 1 << 20])
    ready = np.stack([end[:, phases.ready_after] for end in ends]) + 3 * US  # rank, step, bucket
    begin, finish = np.empty_like(ready), np.empty_like(ready)
    for bucket in range(size.buckets):
        earliest = finish[:, :, bucket - 1] + 2 * US if bucket else ready[:, :, 0]
        begin[:, :, bucket] = np.maximum(ready[:, :, bucket], earliest)
        transfer = job.integers(150 * US, 450 * US, steps)
        protocol = job.integers(0, 8 * US, (size.ranks, steps))
        finish[:, :, bucket] = begin[:, :, bucket].max(axis=0) + transfer + protocol

    ranks, lengths = [], np.zeros(steps, np.int64)
    for rank, rng in enumerate(rngs):
        start, end = starts[rank], ends[rank]
        delay = (
            np.maximum(finish[rank, :, -1], end[:, before_optimizer - 1])
            + 10 * US
            - start[:, before_optimizer]
        )
        start[:, before_optimizer:] += delay[:, None]
        end[:, before_optimizer:] += delay[:, None]
        early = rng.integers(20 * US, 500 * US, steps)
        loss = end[:, -1] + 1 * US
        ranks.append(
            Rank(
                start,
                end,
                begin[rank],
                finish[rank],
                start[:, 0] - early,
                start[:, 0] - early + 15 * US,
                loss,
                loss + 1500,
                start[:, before_optimizer] - 4 * US,
                start[:, before_optimizer] - 2 * US,
            )
        )
        lengths = np.maximum(lengths, loss + 2 * US)
    base = 10 * MS + np.concatenate(([0], np.cumsum(lengths[:-1] + 60 * US)))
    for one in ranks:
        for array in vars(one).values():
            array += base if array.ndim == 1 else base[:, None]
    return ranks


# The right answers


def sweep(
    compute: tuple[Ints, Ints],
    communication: tuple[Ints, Ints],
    transfer: tuple[Ints, Ints],
    memory: tuple[Ints, Ints],
    edges: Ints,
) -> dict[str, Ints]:
    """Decompose the time between consecutive ``edges`` by which kinds of event run at each instant.

    Counts open intervals per kind at every boundary of an interval or a window: no unions, no intersections.
    """
    kinds = (compute, communication, transfer, memory)
    times = np.concatenate([np.concatenate(kind) for kind in kinds] + [edges])
    order = np.argsort(times, kind="stable")
    times = times[order]
    open_now = []
    offset = 0
    for start, end in kinds:
        delta = np.zeros(len(order), np.int32)
        delta[offset : offset + len(start)] = 1
        delta[offset + len(start) : offset + len(start) + len(end)] = -1
        offset += len(start) + len(end)
        open_now.append(np.cumsum(delta[order])[:-1] > 0)
    p, c, t, m = open_now
    length = np.diff(times)
    window = np.searchsorted(edges, times[:-1], side="right") - 1
    inside = (window >= 0) & (window < len(edges) - 1)

    def total(mask: NDArray[np.bool_]) -> Ints:
        keep = mask & inside & (length > 0)
        sums = np.bincount(window[keep], weights=length[keep].astype(np.float64), minlength=len(edges) - 1)
        if sums.max(initial=0) >= 2**53:
            raise OverflowError("a sum is too long for the sweep to be exact")
        return sums.astype(np.int64)

    return {
        "window_ns": np.diff(edges),
        "compute_ns": total(p),
        "communication_ns": total(c),
        "hidden_communication_ns": total(c & p),
        "exposed_communication_ns": total(c & ~p),
        "hidden_transfer_ns": total(c & t & p),
        "hidden_wait_ns": total(c & ~t & p),
        "exposed_transfer_ns": total(c & t & ~p),
        "exposed_wait_ns": total(c & ~t & ~p),
        "exposed_memory_ns": total(m & ~p & ~c),
        "idle_ns": total(~p & ~c & ~m),
    }


def truth(size: Size, ranks: Sequence[Rank]) -> dict[str, Any]:
    """The decomposition of every rank, over the capture and by step."""
    ready = np.max([rank.collective_start for rank in ranks], axis=0)
    capture, by_step = [], []
    for number, rank in enumerate(ranks):
        memory_start = np.concatenate((rank.copy_start, rank.loss_start, rank.memset_start))
        memory_end = np.concatenate((rank.copy_end, rank.loss_end, rank.memset_end))
        kinds = (
            (rank.compute_start.ravel(), rank.compute_end.ravel()),
            (rank.collective_start.ravel(), rank.collective_end.ravel()),
            (np.minimum(ready, rank.collective_end).ravel(), rank.collective_end.ravel()),
            (memory_start, memory_end),
        )
        first = int(min(rank.compute_start.min(), rank.collective_start.min(), memory_start.min()))
        last = int(max(rank.compute_end.max(), rank.collective_end.max(), memory_end.max()))
        whole = sweep(*kinds, np.array([first, last]))
        kernels = rank.compute_start.shape[1] + size.buckets
        capture.append(
            {
                "rank": number,
                "step": None,
                "step_index": None,
                **{k: int(v[0]) for k, v in whole.items()},
                "kernels": kernels * size.steps,
                "collectives": size.buckets * size.steps,
            }
        )

        # Windows: see "Step window" in the definitions; every event below is launched in its own step.
        first_compute, last_compute = rank.compute_start.min(axis=1), rank.compute_end.max(axis=1)
        first_event = np.minimum(
            np.minimum(rank.copy_start, first_compute),
            np.minimum(rank.memset_start, rank.collective_start.min(axis=1)),
        )
        edges = np.empty(size.steps + 1, np.int64)
        edges[0] = first_event[0]
        edges[1:-1] = np.minimum(first_compute[1:], np.maximum(first_event[1:], last_compute[:-1]))
        edges[-1] = max(
            rank.compute_end[-1].max(),
            rank.collective_end[-1].max(),
            rank.loss_end[-1],
            rank.memset_end[-1],
            rank.copy_end[-1],
        )
        edges = np.maximum.accumulate(edges)
        columns = sweep(*kinds, edges)
        by_step += [
            {
                "rank": number,
                "step": f"step {step}",
                "step_index": step,
                **{k: int(v[step]) for k, v in columns.items()},
                "kernels": kernels,
                "collectives": size.buckets,
            }
            for step in range(size.steps)
        ]
    return {"size": asdict(size), "steps": size.steps, "capture": capture, "step": by_step}


# The file


class Place(NamedTuple):
    """Where the ranks of one report ran, and when its session began."""

    first_rank: int = 0
    host: str = "bench-node"
    first_device: int = 0
    utc_ns: int = 1_795_972_367_577_878_054


class Some(NamedTuple):
    """Calls of one purpose, one per launched event, in the order of the events."""

    purpose: str
    kind: Ints | int
    start: Ints
    length: int
    thread: Ints


class Calls(NamedTuple):
    """All API calls of one process in time order."""

    start: Ints
    end: Ints
    kind: Ints
    thread: Ints
    correlation: Ints


def host(
    size: Size, rank: Rank, rng: np.random.Generator, main: int, autograd: int
) -> tuple[Calls, dict[str, Ints]]:
    """Calls of one process, and the correlation ids of what they launched, by purpose."""
    phases = Phases.of(size)
    steps, compute = rank.compute_start.shape
    launch = rank.compute_start - HOST_LEAD
    index = np.arange(compute)
    backward = (index >= phases.forward) & (index < phases.forward + phases.backward)
    thread = np.broadcast_to(np.where(backward, autograd, main), launch.shape).ravel()
    bucket = launch[:, phases.ready_after].ravel()
    in_backward, in_main = np.full(len(bucket), autograd), np.full(steps, main)
    kind = np.where(rng.random(launch.size) < 0.75, LAUNCH, LAUNCH_EX)

    # Two kernels, hence two launches, are at least 4.5 us apart: what follows fits between them.
    calls = [
        Some("compute", kind, launch.ravel(), 1500, thread),
        Some("record_bucket", RECORD, bucket + 1550, 150, in_backward),
        Some("wait_bucket", WAIT, bucket + 1750, 100, in_backward),
        Some("collective", LAUNCH_EX, bucket + 1900, 600, in_backward),
        Some("record_done", RECORD, bucket + 2600, 100, in_backward),
        Some("copy", COPY, launch[:, 0] - 3000, 800, in_main),
        Some("memset", SET, launch[:, phases.forward + phases.backward] - 2500, 500, in_main),
        Some("loss", COPY, launch[:, -1] + 2000, 700, in_main),
    ]
    other = max(0, steps * size.kernels_per_step * 3 // 2 - sum(len(call.start) for call in calls))
    which = np.sort(rng.permutation(launch.size)[:other])
    kind = np.where(rng.random(len(which)) < 0.5, CAPTURING, GET_NAME)
    calls.append(Some("other", kind, launch.ravel()[which] - 900, 600, thread[which]))

    start = np.concatenate([call.start for call in calls])
    end = np.concatenate([call.start + call.length for call in calls])
    kind = np.concatenate([np.broadcast_to(call.kind, len(call.start)) for call in calls])
    by = np.concatenate([call.thread for call in calls])
    order = np.argsort(start, kind="stable")
    correlation = np.empty(len(start), np.int64)
    correlation[order] = np.cumsum(rng.integers(1, CORRELATION_GAP + 1, len(start)))
    edges = np.cumsum([len(call.start) for call in calls])[:-1]
    ids = {call.purpose: part for call, part in zip(calls, np.split(correlation, edges), strict=True)}
    return Calls(start[order], end[order], kind[order], by[order], correlation[order]), ids


def rows_in_order(
    columns: list[list[Any]], start: list[Ints], end: list[Ints], row_order: str
) -> Iterator[list[Any]]:
    """Column batches with the processes' rows interleaved: by start, or in flushed buffers (each by end).

    ``columns[i]`` holds, per process, one array a column.
    """
    process = np.concatenate([np.full(len(s), i) for i, s in enumerate(start)])
    if row_order == "start":
        order = np.argsort(np.concatenate(start), kind="stable")
    else:
        local, flushed = [], []
        offset = 0
        for ends in end:
            by_end = np.argsort(ends, kind="stable")
            chunk = np.arange(len(ends)) // FLUSH_ROWS
            last = np.minimum((chunk + 1) * FLUSH_ROWS, len(ends)) - 1
            local.append(by_end + offset)
            flushed.append(ends[by_end][last])
            offset += len(ends)
        rows = np.concatenate(local)
        order = rows[np.lexsort((process, np.concatenate(flushed)))]
    merged = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    for begin in range(0, len(order), BATCH):
        part = order[begin : begin + BATCH]
        yield [column[part].tolist() for column in merged]


def insert(
    connection: sqlite3.Connection,
    table: str,
    constants: dict[str, int | None],
    names: Sequence[str],
    batches: Iterator[list[Any]],
) -> None:
    """Append batches of the columns ``names``; columns that are equal in all rows are written as literals."""
    declared = ", ".join(f'"{name}" {kind}' for name, kind in SCHEMA[table].items())
    connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({declared})')
    listed = ", ".join(f'"{name}"' for name in (*constants, *names))
    literal = ["NULL" if value is None else str(int(value)) for value in constants.values()]
    statement = f'INSERT INTO "{table}" ({listed}) VALUES ({", ".join([*literal, *["?"] * len(names)])})'
    for batch in batches:
        connection.executemany(statement, zip(*batch, strict=True))


def write(path: Path, size: Size, ranks: Sequence[Rank], place: Place | None = None) -> None:
    """Write the export of these ranks."""
    phases, place = Phases.of(size), place or Place()
    export = Export("ns", host=place.host, utc_epoch_ns=place.utc_ns)
    calls = np.array([export.string(name) for name in CALLS])
    short = np.array([export.string(name) for name, _ in COMPUTE_NAMES])
    full = np.array([export.string(name) for _, name in COMPUTE_NAMES])
    nccl = (export.string(NCCL_KERNEL), export.string(f"{NCCL_KERNEL}(ncclDevKernelArgsStorage<4096ul>)"))
    for row in export.rows["StringIds"][::7]:  # strings that nothing of interest refers to
        export.string(f"/usr/lib/module-{row['id']}.so")
    export.diagnostic("Common injection library initialized successfully.", severity=1)
    processes = [
        export.process(pid=4000 + 7 * (place.first_rank + rank), device=place.first_device + rank)
        for rank in range(size.ranks)
    ]
    for process in processes:
        process.domain("NCCL")
    all_reduce = export.string("ncclAllReduce")
    path.parent.mkdir(parents=True, exist_ok=True)
    export.write(path)

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("BEGIN")
    hosts = []
    for number, (rank, process) in enumerate(zip(ranks, processes, strict=True)):
        rng = np.random.default_rng([size.seed, place.first_rank + number, 1])
        threads = (global_tid(process.pid, process.pid), global_tid(process.pid, process.pid + 34))
        hosts.append((*host(size, rank, rng, *threads), threads, rng))

    kernel_columns, starts, ends = [], [], []
    for rank, process, (_, ids, _, rng) in zip(ranks, processes, hosts, strict=True):
        start = np.concatenate((rank.compute_start.ravel(), rank.collective_start.ravel()))
        end = np.concatenate((rank.compute_end.ravel(), rank.collective_end.ravel()))
        compute, collective = rank.compute_start.size, rank.collective_start.size
        steps = rank.compute_start.shape[0]
        names = np.tile(rng.integers(0, len(COMPUTE_NAMES), rank.compute_start.shape[1]), steps)
        grid = np.tile(rng.integers(1, 4096, rank.compute_start.shape[1]), steps)
        kernel_columns.append(
            [
                start,
                end,
                np.full(len(start), process.device),
                np.repeat([COMPUTE_STREAM, NCCL_STREAM], [compute, collective]),
                np.concatenate((ids["compute"], ids["collective"])),
                np.full(len(start), process.global_pid),
                np.concatenate((full[names], np.full(collective, nccl[1]))),
                np.concatenate((short[names], np.full(collective, nccl[0]))),
                np.concatenate((grid, np.full(collective, 24))),
                np.arange(1, len(start) + 1),
            ]
        )
        starts.append(start)
        ends.append(end)
    insert(
        connection,
        "CUPTI_ACTIVITY_KIND_KERNEL",
        {
            "contextId": 1,
            "greenContextId": 0,
            "mangledName": None,
            "launchType": 1,
            "cacheConfig": 1,
            "registersPerThread": 64,
            "gridY": 1,
            "gridZ": 1,
            "blockX": 256,
            "blockY": 1,
            "blockZ": 1,
            "staticSharedMemory": 16384,
            "dynamicSharedMemory": 0,
            "localMemoryPerThread": 0,
            "localMemoryTotal": 250871808,
            "sharedMemoryExecuted": 32768,
            "graphNodeId": None,
            "sharedMemoryLimitConfig": 0,
        },
        [
            *("start", "end", "deviceId", "streamId", "correlationId", "globalPid"),
            *("demangledName", "shortName", "gridX", "gridId"),
        ],
        rows_in_order(kernel_columns, starts, ends, size.row_order),
    )
    del kernel_columns, starts, ends

    driver = np.array([0 if name.startswith("cuda") else 1 for name in CALLS])
    insert(
        connection,
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        {"returnValue": 0, "callchainId": None},
        ["start", "end", "eventClass", "globalTid", "correlationId", "nameId"],
        rows_in_order(
            [[c.start, c.end, driver[c.kind], c.thread, c.correlation, calls[c.kind]] for c, *_ in hosts],
            [c.start for c, *_ in hosts],
            [c.end for c, *_ in hosts],
            size.row_order,
        ),
    )
    for rank, process, (_, ids, threads, rng) in zip(ranks, processes, hosts, strict=True):
        _small_tables(connection, size, phases, rank, process, ids, threads, rng, all_reduce)
    connection.execute("COMMIT")
    connection.close()


def _small_tables(
    connection: sqlite3.Connection,
    size: Size,
    phases: Phases,
    rank: Rank,
    process: Process,
    ids: dict[str, Ints],
    threads: tuple[int, int],
    rng: np.random.Generator,
    all_reduce: int,
) -> None:
    """Copies, memsets, stream order and NVTX of one process."""
    steps = rank.compute_start.shape[0]
    gpu: dict[str, int | None] = {
        "deviceId": process.device,
        "contextId": 1,
        "greenContextId": 0,
        "globalPid": process.global_pid,
    }
    timed = ["start", "end", "correlationId"]
    for name, stream, copy_kind, size_bytes in (
        ("copy", COPY_STREAM, 1, 16 << 20),
        ("loss", COMPUTE_STREAM, 2, 4),
    ):
        constants = {**gpu, "streamId": stream, "bytes": size_bytes, "copyKind": copy_kind, "copyCount": 1}
        arrays = [getattr(rank, f"{name}_start"), getattr(rank, f"{name}_end"), ids[name]]
        batch = [array.tolist() for array in arrays]
        insert(connection, "CUPTI_ACTIVITY_KIND_MEMCPY", constants, timed, iter([batch]))
    batch = [array.tolist() for array in (rank.memset_start, rank.memset_end, ids["memset"])]
    constants = {**gpu, "streamId": COMPUTE_STREAM, "value": 0, "bytes": 4, "memKind": 2}
    insert(connection, "CUPTI_ACTIVITY_KIND_MEMSET", constants, timed, iter([batch]))

    collectives = rank.collective_start.size
    sync = np.arange(1, 2 * collectives + 1)
    for name, stream, odd in (("record_bucket", COMPUTE_STREAM, 0), ("record_done", NCCL_STREAM, 1)):
        batch = [ids[name].tolist(), sync[odd::2].tolist(), (1 + (np.arange(collectives) % 64)).tolist()]
        insert(
            connection,
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            {**gpu, "streamId": stream},
            ["correlationId", "eventSyncId", "eventId"],
            iter([batch]),
        )
    launch = rank.compute_start - HOST_LEAD
    bucket_launch = launch[:, phases.ready_after].ravel()
    waits = [
        (bucket_launch + 1750).tolist(),
        (bucket_launch + 1850).tolist(),
        ids["wait_bucket"].tolist(),
        sync[0::2].tolist(),
        (1 + (np.arange(collectives) % 64)).tolist(),
    ]
    insert(
        connection,
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        {**gpu, "deviceId": 0, "greenContextId": None, "streamId": NCCL_STREAM, "syncType": 2},
        [*timed, "eventSyncId", "eventId"],
        iter([waits]),
    )

    after_backward = phases.forward + phases.backward
    ranges = {
        "step {}": (launch[:, 0] - 4000, launch[:, -1] + 3000),
        "forward": (launch[:, 0] - 2000, launch[:, phases.forward - 1] + 1600),
        "backward": (launch[:, phases.forward] - 1000, launch[:, after_backward - 1] + 2900),
        "optimizer": (launch[:, after_backward] - 2700, launch[:, -1] + 1600),
    }
    for name, (start, end) in ranges.items():
        batch = [start.tolist(), end.tolist(), [name.format(step) for step in range(steps)]]
        insert(
            connection,
            "NVTX_EVENTS",
            {"eventType": 59, "globalTid": threads[0], "domainId": 0},
            ["start", "end", "text"],
            iter([batch]),
        )
    if size.ranges_per_launch:
        _operator_ranges(connection, size, phases, launch, threads, rng)
    message = np.tile((25 << 20) + 4096 * np.arange(size.buckets), steps)
    blobs = {
        b: nccl_blob("AllReduce", bytes=b, communicator=COMMUNICATOR, op="Avg")
        for b in map(int, np.unique(message))
    }
    batch = [
        (bucket_launch + 1870).tolist(),
        (bucket_launch + 2550).tolist(),
        [blobs[b] if size.payload else None for b in message.tolist()],
    ]
    insert(
        connection,
        "NVTX_EVENTS",
        {"eventType": 59, "globalTid": threads[1], "domainId": 1, "textId": all_reduce},
        ["start", "end", "binaryData"],
        iter([batch]),
    )


def _operator_ranges(
    connection: sqlite3.Connection,
    size: Size,
    phases: Phases,
    launch: Ints,
    threads: tuple[int, int],
    rng: np.random.Generator,
) -> None:
    """Nested ranges of operators around every compute launch, as torch.autograd.profiler.emit_nvtx pushes them."""
    names = [f"aten::{name}" for name in ("mm", "addmm", "add_", "mul", "gelu", "native_layer_norm", "copy_")]
    last = phases.forward + phases.backward
    for thread, part in (
        (threads[0], launch[:, : phases.forward]),
        (threads[1], launch[:, phases.forward : last]),
        (threads[0], launch[:, last:]),
    ):
        start = part.ravel()
        for depth in range(size.ranges_per_launch):
            picked = [names[i] for i in rng.integers(0, len(names), len(start)).tolist()]
            batch = [(start - 1000 + 5 * depth).tolist(), (start + 1540 - 5 * depth).tolist(), picked]
            insert(
                connection,
                "NVTX_EVENTS",
                {"eventType": 59, "globalTid": thread, "domainId": 0},
                ["start", "end", "text"],
                iter([batch]),
            )


def generate(path: Path, size: Size) -> dict[str, Any]:
    """Write ``path`` and its truth beside it; returns the truth."""
    ranks = simulate(size)
    right = truth(size, ranks)
    write(path, size, ranks)
    truth_path(path).write_text(json.dumps(right))
    return right


def truth_path(path: Path) -> Path:
    """Where the right answers for an export lie."""
    return path.with_suffix(".truth.json")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--kernels-per-step", type=int, help="default: 1000, fewer in a small export")
    parser.add_argument("--buckets", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-payload", dest="payload", action="store_false", help="as without --include-blobs"
    )
    parser.add_argument("--ranges-per-launch", type=int, default=0, help="nested NVTX ranges of operators")
    parser.add_argument("--row-order", choices=("flush", "start"), default="flush")
    arguments = vars(parser.parse_args())
    path = arguments.pop("path")
    if arguments["kernels_per_step"] is None:
        arguments["kernels_per_step"] = min(1000, arguments["kernels"] // (4 * arguments["ranks"]))
    begin = time.monotonic()
    right = generate(path, Size(**arguments))
    took = time.monotonic() - begin
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB, {right['steps']} steps, {took:.1f} s")


if __name__ == "__main__":
    main()
