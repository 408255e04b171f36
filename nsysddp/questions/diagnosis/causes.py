"""What can make a step long: the causes that a diagnosis knows, what to try against each, and what would refute it.

Text only; ``diagnosis`` decides from the trace which of them hold and what each costs at most.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One cause.

    Attributes:
        code: stable name.
        title: what it is, a few words.
        try_next: one change.
        refuted_by: the observation that would show that it is not the cause.
        is_fault: something wrong, rather than a cost: it has no milliseconds.
    """

    code: str
    title: str
    try_next: str
    refuted_by: str
    is_fault: bool = False


CAUSES: tuple[Cause, ...] = (
    Cause(
        "straggler",
        "a rank arrives late",
        "look at what that rank alone does in that phase (input, logging, clocks), and give its work to all",
        "the lateness stays on the same GPU when ranks and GPUs are swapped, or moves to another rank in every run",
    ),
    Cause(
        "slow_communication",
        "communication itself takes long",
        "send less: reduce gradients in bf16 (bf16_compress_hook), or every n-th micro-step (no_sync)",
        "the step is as long with half the bytes, or busbw is at what nccl-tests reaches for this size",
    ),
    Cause(
        "compute_tail",
        "the last bucket can only start when backward is over",
        "make the last bucket smaller: lower bucket_cap_mb, or DDP_SET_LAST_BUCKET_CAP=1 where torch has it",
        "the tail is as long with a last bucket of half the size",
    ),
    Cause(
        "single_bucket",
        "all gradients go in one bucket, after backward",
        "lower bucket_cap_mb so that a step has several buckets",
        "with several buckets the exposed transfer stays the same",
    ),
    Cause(
        "small_buckets",
        "buckets so small that the latency of each collective dominates",
        "raise bucket_cap_mb",
        "with half as many buckets the time on the critical path stays the same",
    ),
    Cause(
        "message_latency",
        "collectives of few bytes: their latency decides, not bandwidth",
        "make them fewer: fuse several into one, do them less often or asynchronously (async_op=True, and read the "
        "value a step later), or over fewer hops (within a host first)",
        "with half as many of them the step is as long, or with half the bytes each takes half as long",
    ),
    Cause(
        "bucket_scheduling",
        "a bucket is ready on the GPU, but launched late",
        "launch earlier: less host work in hooks, or gradient_as_bucket_view=True; if an earlier bucket holds it, let "
        "DDP rebuild its buckets (no find_unused_parameters)",
        "the time between ready and launched stays when the hook does nothing but all-reduce",
    ),
    Cause(
        "compute_stream",
        "collectives run on the stream that computes",
        "issue them asynchronously on a stream of their own (async_op=True, or DDP and FSDP as they are)",
        "on a stream of their own the collectives still wait for the same kernels",
    ),
    Cause(
        "no_prefetch",
        "parameters are gathered only when the computation ahead has ended",
        "gather the next layer's parameters ahead (FSDP: forward_prefetch=True, backward_prefetch=BACKWARD_PRE, or "
        "set_modules_to_forward_prefetch)",
        "with prefetching the same gathers are exposed for as long",
    ),
    Cause(
        "held_behind_compute",
        "what is ready is held behind computation launched before it: all streams share one hardware queue "
        "(CUDA_DEVICE_MAX_CONNECTIONS=1)",
        "raise or leave out CUDA_DEVICE_MAX_CONNECTIONS, or launch the collective before that computation",
        "with CUDA_DEVICE_MAX_CONNECTIONS=8 or more the same events start as late",
    ),
    Cause(
        "process_groups",
        "collectives of several process groups compete for the link",
        "run the groups' collectives one after the other, or let one of them run under computation",
        "alone, the same collectives take as long",
    ),
    Cause(
        "link_contention",
        "transfers are slower beside computation and copies",
        "keep host copies and other traffic off the link while gradients are reduced",
        "the same collectives take as long with nothing beside them",
    ),
    Cause(
        "contention",
        "kernels run slower beside communication",
        "give NCCL fewer SMs (NCCL_MAX_CTAS, or NCCL_NVLS_ENABLE where the switch reduces)",
        "with fewer channels the kernels take as long, or the step gets longer",
    ),
    Cause(
        "synchronisation",
        "the host waits for the GPU, and launches late afterwards",
        "leave out the synchronising call inside the step (.item(), .cpu(), print of a loss, empty_cache)",
        "without the call the step is as long",
    ),
    Cause(
        "allocation",
        "memory is allocated or freed inside the step, and the host waits for that",
        "keep memory: let the caching allocator hold it (no empty_cache(), expandable_segments:True), and allocate "
        "before the loop",
        "without the call the step is as long",
    ),
    Cause(
        "graph_breaks",
        "a compiled model comes in several pieces, with host time between them",
        "look for graph breaks (TORCH_LOGS=graph_breaks), or compile each layer by itself",
        "TORCH_LOGS=graph_breaks names none, and the gaps stay with compilation off",
    ),
    Cause(
        "host_stall",
        "the host stops for long between two calls, or in one",
        "look at what the host does there (data loading, logging, checkpoints, garbage collection, a slow call), and "
        "take it off the training loop",
        "the pause is still there when that work is left out",
    ),
    Cause(
        "host_bound",
        "the host launches too slowly",
        "give the GPU more work a launch: torch.compile, CUDA graphs, a fused optimizer, or a larger batch",
        "the step without the profiler is shorter by as much: then it was the profiler's own time",
    ),
    Cause(
        "kernel_latency",
        "many short kernels in a row, with the GPU's start-up time between them",
        "fuse them: torch.compile, CUDA graphs, a fused optimizer",
        "with half as many kernels the gaps stay",
    ),
    Cause(
        "queued",
        "kernels were ready while the device ran other work",
        "look at what ran there: the piece names the rank, and `nsysddp timeline` draws it",
        "the piece is there when the other work is not",
    ),
    Cause(
        "other_process",
        "another process ran on the same GPU",
        "give each process a GPU of its own, or share it by MPS or MIG knowingly",
        "alone on the GPU the same kernels take as long, and the gaps stay",
    ),
    Cause(
        "unexplained",
        "the GPU did not run what was launched and ready",
        "look for what the capture does not show: another process on this GPU (nvidia-smi pmon), preemption by a "
        "display or a debugger, clocks and power",
        "the gaps stay when nothing else is on the GPU",
    ),
    Cause(
        "copies",
        "copies and memsets that the step waits for",
        "copy input ahead on another stream from pinned memory (non_blocking=True)",
        "with input that is on the GPU already the step is as long",
    ),
    Cause(
        "peer_copies",
        "copies between GPUs that the step waits for",
        "copy on a stream of its own ahead of the use, or let a collective move the data",
        "without the copies the step is as long",
    ),
    Cause(
        "race",
        "the optimizer does not wait for the reduced gradients",
        "let the optimizer's stream wait for the collective (work.wait() or an event) before it steps",
        "an event or synchronisation between the two that the capture missed (--cuda-event-trace=true)",
        is_fault=True,
    ),
    Cause(
        "not_steady",
        "the capture is not steady",
        "capture later: leave out the first iterations (compilation, autotuning, the rebuild of DDP's buckets)",
        "later steps of the same run spread as much",
        is_fault=True,
    ),
)

BY_CODE = {cause.code: cause for cause in CAUSES}
