"""What goes wrong in training jobs: each with a run that has it, the same run without it, and what gives it away.

A side is the name of a capture in ``tests/fixtures/h200`` or a job of the simulator (``tests/simulation``), which is
simulated under several seeds. What is said here in numbers is computed from the runs; the rest is text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from nsysddp.evidence.sources import Loaded
from nsysddp.questions.question import question
from tests.simulation.jobs import MIB, MS, US, Job, Planted

Side = str | Job


@dataclass(frozen=True)
class Pathology:
    """One page of the gallery.

    Attributes:
        name: of its page.
        title: what is wrong, a few words.
        what: what happens, and why it is easily overlooked.
        before, after: the run with it, and without.
        number: from the first run of each side to the sentence with the number that gives it away.
        fix: one change.
        cause: that the diagnosis must name first; None where it is no cause.
        finding: code of a finding of ``analyze`` that must be there.
        command: whose first lines are shown.
        lookalike: what looks the same and is something else.
        afterwards: a sentence before the comparison.
        shortens: is the step shorter after the fix?
    """

    name: str
    title: str
    what: str
    before: Side
    after: Side
    number: Callable[[Loaded, Loaded], str]
    fix: str
    cause: str | None = None
    finding: str | None = None
    command: str = "diagnose"
    lookalike: str = ""
    afterwards: str = ""
    shortens: bool = True

    @property
    def source(self) -> str:
        """Where the runs come from."""
        if isinstance(self.before, Job):
            return (
                f"Simulated: {self.before.ranks} ranks, {self.before.steps} steps, three seeds a side "
                "(tests/simulation in the repository)."
            )
        gpus = "one H200" if self.before.startswith("one_gpu") else "2 x H200"
        return f"Captured on {gpus}: `{self.before}`, after the fix `{self.after}` (tests/fixtures/h200)."


# --- numbers ------------------------------------------------------------------------------------------------


def steady(run: Loaded, column: str, rank: int | None = None) -> float:
    """Median of a column of ``overlap`` over steady steps, in ms; of one rank or of all."""
    rows = run.result["overlap"].filter(~pl.col("is_warmup"))
    if rank is not None:
        rows = rows.filter(pl.col("rank") == rank)
    return float(rows[column].median() or 0) / MS  # type: ignore[arg-type]


def cost(run: Loaded, cause: str) -> float:
    """What a cause costs at most in a step, in ms; 0 where it is not named."""
    rows = question("diagnosis").answer(run.context)["diagnosis"].filter(pl.col("cause") == cause)
    return float(rows["cost_ns"].sum()) / MS


def bandwidth(run: Loaded, communicator: bool = False) -> dict[str, float]:
    """Median busbw of all-reduces in GB/s: of each pair of ranks with a communicator, or of all."""
    rows = run.result["collective"].filter(pl.col("kind") == "all_reduce", pl.col("busbw_gbps").is_not_null())
    if not communicator:
        return {"": float(rows["busbw_gbps"].median())}  # type: ignore[arg-type]
    made = {}
    for (_,), part in rows.filter(pl.col("group_size") == 2).group_by("communicator", maintain_order=True):
        members = sorted(part["rank"].unique().to_list())
        made[f"{members[0]} and {members[-1]}"] = float(part["busbw_gbps"].median())  # type: ignore[arg-type]
    return dict(sorted(made.items()))


def buckets(run: Loaded) -> int:
    """Buckets of a rank in a step."""
    rows = run.context.buckets["bucket"].filter(pl.col("role") == "gradients")
    return int(rows.group_by("rank", "step_index").len()["len"].median())  # type: ignore[arg-type]


# --- jobs ---------------------------------------------------------------------------------------------------

DDP = Job(ranks=4, steps=4, layers=5, layer_ns=700 * US)
SLOWER_LINK = replace(DDP, gbps=40)
SHARDED = replace(DDP, kind="hsdp", group=2, gbps=60)
SMALL_KERNELS = replace(DDP, ranks=2, layer_ns=300 * US)
TENSOR = replace(DDP, kind="tp", group=2)
EXPERTS = replace(DDP, kind="ep", group=4)
PIPELINE = replace(DDP, kind="pp", group=4, layers=2, layer_ns=1000 * US, micro_batches=4)
MANY_SMALL = replace(
    DDP,
    layers=6,
    layer_bytes=3 * MIB,
    layer_parameters=10,
    layer_ns=250 * US,
    latency_ns=90 * US,
    cap=6 * MIB,
)


def planted(job: Job, cause: str, size: float = 1.0, **more: object) -> Job:
    """The job with one thing wrong."""
    return replace(job, planted=Planted(cause, size, **more))  # type: ignore[arg-type]


PATHOLOGIES = (
    Pathology(
        name="late-rank",
        title="One rank is late",
        what="Rank 2 computes its backward 30 % longer than the others. Their NCCL kernels start, spin and "
        "wait for it, so "
        "they show *more* communication and *more* overlap than the rank that is the problem.",
        before=planted(DDP, "slow_rank", 1.3, rank=2, phase="backward"),
        after=DDP,
        cause="straggler",
        finding="late_rank",
        command="analyze",
        number=lambda before, _: (
            f"`exposed_wait_ns`: {steady(before, 'exposed_wait_ns', 0):.2f} ms a step on rank 0, "
            f"{steady(before, 'exposed_wait_ns', 2):.2f} on rank 2. Nobody waits on the rank that everybody "
            "waits for."
        ),
        fix="Look at what that rank alone does in that phase: input, logging, clocks, a neighbour on its "
        "GPU. Then give its "
        "work to all. Swap ranks and GPUs once: lateness that stays with the GPU is the machine, lateness "
        "that stays "
        "with the rank is the program.",
        lookalike="A slow network. There every rank's *transfer* is long, and the waits are short.",
    ),
    Pathology(
        name="expert-imbalance",
        title="One expert gets more than its share",
        what="A mixture of experts sends tokens to one GPU an expert. Rank 1's expert is chosen too often: "
        "it computes "
        "longer, and every all-to-all of the others ends only when it has come.",
        before=planted(EXPERTS, "slow_rank", 1.4, rank=1),
        after=EXPERTS,
        cause="straggler",
        finding="late_rank",
        command="analyze",
        number=lambda before, _: (
            f"`compute_ns`: {steady(before, 'compute_ns', 1):.2f} ms on rank 1, "
            f"{steady(before, 'compute_ns', 0):.2f} on "
            f"rank 0, which waits {steady(before, 'exposed_wait_ns', 0):.2f} ms a step."
        ),
        fix="Balance: an auxiliary loss, a capacity factor that drops what is too much, or experts placed "
        "anew. Then look "
        "again: the rank with the largest compute must change from step to step.",
        lookalike="A slow all-to-all. Then busbw is low for ranks that arrived together, and the waits are "
        "short.",
    ),
    Pathology(
        name="pipeline-bubble",
        title="A pipeline with too few micro-batches",
        what="Four stages and four micro-batches: the first stage waits for the last backward, the last "
        "stage for the first "
        "forward. Send and receive kernels fill the bubble, so a timeline looks busy with communication.",
        before=PIPELINE,
        after=replace(PIPELINE, micro_batches=16, layer_ns=250 * US),
        finding="bound_by_compute",
        command="analyze",
        number=lambda before, after: (
            f"`exposed_wait_ns`: {steady(before, 'exposed_wait_ns'):.1f} of "
            f"{steady(before, 'window_ns'):.1f} ms a step are "
            f"waiting for other stages, after the fix {steady(after, 'exposed_wait_ns'):.1f} of "
            f"{steady(after, 'window_ns'):.1f}."
        ),
        fix="More and smaller micro-batches for the same batch (here 16 of a quarter of the size), or an "
        "interleaved "
        "schedule. With p stages and m micro-batches (p - 1) / (m + p - 1) of the step is bubble.",
        lookalike="A slow link between stages: then transfer, not wait, is what is exposed.",
    ),
    Pathology(
        name="host-bound",
        title="The host launches too slowly",
        what="Kernels are short and the host needs 150 us for each: Python, many small operations, no "
        "graphs. The GPU runs "
        "dry between kernels. Utilisation as nvidia-smi shows it stays high, since *something* runs in every "
        "sample.",
        before=replace(SMALL_KERNELS, launch_ns=30 * US, gap_ns=120 * US),
        after=SMALL_KERNELS,
        cause="host_bound",
        number=lambda before, after: (
            f"`idle_ns`: {steady(before, 'idle_ns'):.2f} of {steady(before, 'window_ns'):.2f} ms a step, "
            "after the fix "
            f"{steady(after, 'idle_ns'):.2f}. `nsysddp idle` gives it to launches, and its table "
            "`launch_queue` shows a "
            "queue that is empty."
        ),
        fix="Give the GPU more work a launch: torch.compile, CUDA graphs, a fused optimizer, a larger batch.",
        lookalike="The profiler's own time. Compare with the step that your program measures without nsys: "
        "if that is "
        "shorter by as much, the host was slow only while it was watched.",
    ),
    Pathology(
        name="item-each-step",
        title="The loss is read in every step",
        what="`loss.item()` waits until the GPU has nothing left to do, and then the host logs for 10 ms. "
        "The call itself is "
        "cheap; that the queue is empty after it is not.",
        before="one_gpu_item_sleep",
        after="one_gpu_plain",
        cause="host_stall",
        number=lambda before, _: (
            f"{cost(before, 'host_stall'):.2f} ms a step lie *behind* the call, "
            f"{cost(before, 'synchronisation'):.2f} ms in it. "
            "Without the wait the same host work would run while the GPU has its queue full."
        ),
        fix="Log every n-th step, from a copy made with `non_blocking=True` and read a step later; keep the "
        "work off the "
        "training loop.",
        lookalike="A host that is slow everywhere (host-bound): there the gaps are small and many.",
        afterwards="One capture a side: a difference, but no verdict. It is smaller than what the wait cost, "
        "since the GPU's "
        "clocks were lower in the second capture: computation took longer there.",
    ),
    Pathology(
        name="one-bucket",
        title="All gradients in one bucket",
        what="With `bucket_cap_mb` above the size of the model DDP reduces everything at once, after "
        "backward. Nothing is left "
        "to hide it under.",
        before=planted(SLOWER_LINK, "one_bucket", 1e6 * MIB),
        after=SLOWER_LINK,
        cause="single_bucket",
        number=lambda before, after: (
            f"`hidden_transfer_ns` is {steady(before, 'hidden_transfer_ns'):.2f} ms: no overlap at all. "
            f"{buckets(before)} "
            f"bucket a step, {buckets(after)} after the fix, which hide "
            f"{steady(after, 'hidden_transfer_ns'):.2f} ms."
        ),
        fix="Lower `bucket_cap_mb` (the default is 25). `nsysddp whatif --bucket-cap 4,16,25,64` predicts "
        "the step for each.",
    ),
    Pathology(
        name="small-buckets",
        title="Buckets so small that latency dominates",
        what="With a cap of 0.25 MiB each collective carries little and pays the full latency. They queue up "
        "behind each "
        "other: more overlap in the picture, and a longer step.",
        before=planted(MANY_SMALL, "small_buckets", 0.25 * MIB),
        after=MANY_SMALL,
        cause="small_buckets",
        number=lambda before, after: (
            f"{buckets(before)} buckets a step at a median busbw of {bandwidth(before)['']:.1f} GB/s; "
            f"{buckets(after)} at "
            f"{bandwidth(after)['']:.1f} GB/s after the fix."
        ),
        fix="Raise `bucket_cap_mb`.",
        lookalike="A slow link, where large buckets are slow too.",
    ),
    Pathology(
        name="contention",
        title="Kernels slow each other down",
        what="NCCL's kernels take SMs and memory bandwidth from those that compute. Every kernel of backward "
        "is a bit longer "
        "than it would be alone: a loss that no bar in a timeline shows.",
        before=planted(replace(DDP, gbps=30), "contention", 1.5),
        after=replace(DDP, gbps=30),
        cause="contention",
        number=lambda before, after: (
            f"`compute_ns`: {steady(before, 'compute_ns'):.2f} ms beside communication, "
            f"{steady(after, 'compute_ns'):.2f} for "
            "the same kernels without that. `nsysddp contention` measures it in one run, by kernels of one "
            "shape with "
            "and without communication beside them."
        ),
        fix="Give NCCL fewer SMs (`NCCL_MAX_CTAS`), or let the switch reduce (`NCCL_NVLS_ENABLE`). Then "
        "check the step: "
        "fewer channels also mean slower transfers.",
        lookalike="Lower clocks: then kernels are slower without communication beside them too.",
    ),
    Pathology(
        name="no-prefetch",
        title="Parameters are gathered too late",
        what="A sharded model gathers each layer's parameters when the layer before has ended, so every "
        "gather is exposed.",
        before=planted(SHARDED, "no_prefetch"),
        after=SHARDED,
        cause="no_prefetch",
        number=lambda before, after: (
            f"`exposed_transfer_ns`: {steady(before, 'exposed_transfer_ns'):.2f} ms a step, "
            f"{steady(after, 'exposed_transfer_ns'):.2f} after the fix, at the same bandwidth."
        ),
        fix="FSDP: `forward_prefetch=True`, `backward_prefetch=BACKWARD_PRE`; FSDP2: "
        "`set_modules_to_forward_prefetch`. It "
        "costs the memory of one more layer.",
    ),
    Pathology(
        name="one-queue",
        title="All streams share one hardware queue",
        what="`CUDA_DEVICE_MAX_CONNECTIONS=1`, set for tensor parallelism, lets streams pass through one "
        "queue: a gather that "
        "is ready waits behind computation that was launched before it.",
        before=planted(SHARDED, "one_queue"),
        after=SHARDED,
        cause="held_behind_compute",
        number=lambda before, _: (
            f"{cost(before, 'held_behind_compute'):.2f} ms of the step's path are kernels that were launched "
            "and ready, on a "
            "stream with nothing before them, and did not start."
        ),
        fix="Leave `CUDA_DEVICE_MAX_CONNECTIONS` out (or at 8 or more), or launch the collective before that "
        "computation.",
        lookalike="Missing prefetch: there the collective is *launched* late, here it is launched in time.",
    ),
    Pathology(
        name="compute-stream",
        title="Communication on the stream that computes",
        what="A synchronous collective (or a stream context that leaked) puts the all-reduce in line with "
        "the kernels. On one "
        "stream nothing can overlap, however many buckets there are.",
        before=planted(replace(DDP, gbps=60), "serialised"),
        after=replace(DDP, gbps=60),
        cause="compute_stream",
        finding="communication_on_compute_stream",
        number=lambda before, after: (
            f"`hidden_transfer_ns` is {steady(before, 'hidden_transfer_ns'):.2f} ms with {buckets(before)} "
            "buckets a step, and "
            f"{steady(after, 'hidden_transfer_ns'):.2f} ms on a stream of their own."
        ),
        fix="`async_op=True` and `work.wait()` where the result is needed; DDP and FSDP as they are do so "
        "already.",
        lookalike="One bucket: there overlap is 0 because nothing is left to compute.",
    ),
    Pathology(
        name="hook-work",
        title="A hook that works before it sends",
        what="A communication hook does something on the host for each bucket (a Python loop, a print, a "
        "small copy). Each "
        "bucket was ready long before it is launched.",
        before=planted(replace(SMALL_KERNELS, item_each_step=True, gbps=60), "late_launch", 1.5 * MS),
        after=replace(SMALL_KERNELS, item_each_step=True, gbps=60),
        cause="host_stall",
        number=lambda before, _: (
            f"{cost(before, 'host_stall') + cost(before, 'bucket_scheduling'):.2f} ms of the path are host "
            "time in backward "
            "before NCCL's calls; `nsysddp buckets` shows each bucket ready, and launched that much later."
        ),
        fix="Launch first, work afterwards; keep hooks to tensor operations.",
    ),
    Pathology(
        name="slow-pair",
        title="One pair of GPUs has a slow link",
        what="Tensor parallel groups of two. Ranks 0 and 1 are connected through a slower path (a cable, a "
        "switch port, a PCIe "
        "bridge). Both groups take as long in the end, since data parallelism joins them: the timeline shows "
        "all "
        "ranks with the same step.",
        before=planted(TENSOR, "slow_pair", 4, pair=(0, 1)),
        after=TENSOR,
        cause="slow_communication",
        number=lambda before, _: (
            "Median busbw of the all-reduces of each pair: "
            + ", ".join(
                f"ranks {pair} {gbps:.0f} GB/s" for pair, gbps in bandwidth(before, communicator=True).items()
            )
            + "."
        ),
        fix="`nvidia-smi topo -m` and `nccl-tests` on that pair alone; move the group to GPUs with a direct "
        "link, or have "
        "the link repaired.",
        lookalike="A late rank: there the wait is long and the transfer as fast as everywhere.",
    ),
    Pathology(
        name="pageable-copies",
        title="Input is copied from pageable memory",
        what="Each step copies its batch from ordinary memory. The driver stages it through a buffer, the "
        "call returns only "
        "when that is done, and the GPU computes nothing meanwhile.",
        before="one_gpu_pageable",
        after="one_gpu_pinned",
        cause="copies",
        number=lambda before, after: (
            f"`exposed_memory_ns`: {steady(before, 'exposed_memory_ns'):.2f} ms a step, "
            f"{steady(after, 'exposed_memory_ns'):.2f} from pinned memory. The copies are named `HtoD "
            "(pageable)`."
        ),
        fix="`pin_memory=True` in the loader and `.to(device, non_blocking=True)`; on a stream of its own, "
        "one batch ahead, "
        "it costs nothing at all.",
        afterwards="One capture a side: a difference, but no verdict.",
    ),
    Pathology(
        name="allocation",
        title="Memory is freed inside the step",
        what="`empty_cache()`, or an allocator that runs out and gives back its blocks, ends in cudaFree, "
        "which waits for "
        "everything on the device and then takes its time.",
        before=planted(DDP, "pause_all", 1.5 * MS, phase="forward", how="free"),
        after=DDP,
        cause="allocation",
        number=lambda before, after: (
            f"{cost(before, 'allocation'):.2f} ms of each step lie in cudaFree; `idle_ns` is "
            f"{steady(before, 'idle_ns'):.2f} ms, {steady(after, 'idle_ns'):.2f} without it."
        ),
        fix="No `empty_cache()` in the loop; `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; allocate "
        "before the loop.",
        lookalike="`.item()`: there the call is a stream synchronisation, and the time lies behind it.",
    ),
    Pathology(
        name="periodic-pause",
        title="One GPU pauses every 10 ms",
        what="Every 10 ms one GPU runs nothing for 3 ms, though work is launched and ready: another process "
        "has its slice, or "
        "the board throttles. It falls into another phase each time, so no single step shows a pattern.",
        before=planted(replace(DDP, steps=5), "preemption", 3 * MS, rank=1, how="gap"),
        after=replace(DDP, steps=5),
        cause="unexplained",
        finding="late_rank",
        number=lambda before, _: (
            f"`idle_ns`: {steady(before, 'idle_ns', 1):.2f} ms a step on rank 1, "
            f"{steady(before, 'idle_ns', 0):.2f} on rank 0, "
            "with launches long done: what a trace of one process cannot explain, the tool calls "
            "*unexplained*."
        ),
        fix="`nvidia-smi pmon` for other processes, `nvidia-smi -q -d PERFORMANCE,CLOCK` for throttling; "
        "capture with "
        "`--gpuctxsw=true` as root to see the other's slices.",
        lookalike="A host that is late: there the launches come late, not the kernels.",
    ),
    Pathology(
        name="shared-gpu",
        title="Two processes share one GPU",
        what="Two jobs (or two ranks by mistake) landed on one device. Kernels of one are cut by slices of "
        "the other and look "
        "twice as long; no kernel name, shape or launch tells.",
        before="one_gpu_two",
        after="one_gpu_plain",
        cause="other_process",
        finding="shared_gpu",
        command="analyze",
        number=lambda before, after: (
            f"The step lasts {steady(before, 'window_ns'):.1f} ms, alone on the GPU "
            f"{steady(after, 'window_ns'):.1f}; "
            f"{cost(before, 'other_process'):.1f} ms a step are the other's."
        ),
        fix="One process a GPU (`CUDA_VISIBLE_DEVICES` from the local rank); where sharing is wanted, MPS or "
        "MIG.",
        afterwards="One capture a side, of one rank instead of two: a difference, but no verdict.",
        shortens=False,
    ),
    Pathology(
        name="graph-breaks",
        title="A compiled model in pieces",
        what="Each of six blocks has a graph break: forward and backward are compiled in seven pieces with "
        "Python between "
        "them, and on these short kernels the host cannot keep up.",
        before="one_gpu_compiled_breaks",
        after="one_gpu_compiled_whole",
        cause="host_bound",
        number=lambda before, after: (
            f"`idle_ns`: {steady(before, 'idle_ns'):.2f} of {steady(before, 'window_ns'):.2f} ms a step, "
            f"{steady(after, 'idle_ns'):.2f} after the fix. The second cause is `graph_breaks`, of low "
            "confidence: "
            f"{cost(before, 'graph_breaks'):.2f} ms between pieces of the compiled model. After the fix it is "
            "not named: the host launches all of backward without such pauses."
        ),
        fix="`TORCH_LOGS=graph_breaks` says whether there are any and names the lines; move prints, "
        "`.item()` and "
        "data-dependent branches out of the model, or compile each layer by itself.",
        lookalike="A host that is slow for other reasons: TORCH_LOGS then names no break.",
        afterwards="One capture a side: a difference, but no verdict.",
    ),
    Pathology(
        name="whole-graphs",
        title="CUDA graphs that hide what they hold",
        what="A replayed CUDA graph was traced as one span. Communication may be inside: any overlap figure "
        "from this capture "
        "would be invented, and none is given.",
        before="graph_graph",
        after="graph_node",
        finding="whole_graph",
        command="analyze",
        number=lambda before, after: (
            f"`graph_ns`: {steady(before, 'graph_ns'):.2f} of {steady(before, 'window_ns'):.2f} ms a step of "
            "unknown content. "
            f"Traced by node the same job shows {steady(after, 'communication_ns'):.2f} ms of communication, "
            f"{steady(after, 'exposed_communication_ns'):.2f} of them exposed."
        ),
        fix="Capture with `--cuda-graph-trace=node` (`nsysddp capture` does). It costs some time for each "
        "node.",
        afterwards="The capture changes, not the program: the step stays, and what is in it is known.",
        shortens=False,
    ),
)
