r"""A small GPT under DDP in bf16 autocast: communication of a real backward pass.

    torchrun --nproc-per-node 2 workloads/gpt_ddp.py --out runs/gpt_ddp
    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop -o gpt_ddp \
        torchrun --nproc-per-node 2 workloads/gpt_ddp.py --out runs/gpt_ddp

Parameters and gradients are float32. Several --bucket-cap values run in turn, the whole series --repeat times
(interleaved, so that a drift of the machine touches every value alike), each into its own folder.

What the analysis must say (NCCL, medium model, 2 ranks):

* as many bucket all-reduces a rank and step as ``layout_bytes`` in summary.json has entries, with those message
  sizes in that order; they sum to 4 bytes a parameter (``parameters`` in summary.json);
* transfer is hidden behind backward on every rank; the last bucket holds the embedding, whose gradient is the last
  to exist: it is exposed, and is the tail;
* where a profiled host cannot keep its GPU busy, its rank hides less, the others wait for it, and the host is on the
  critical path: what nsys adds to each launch, not the network;
* forward and optimizer launch no communication (the model has no buffers to broadcast).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import gpt
import hooks
import torch
from torch.nn.parallel import DistributedDataParallel


def build(
    job: common.Job, size: gpt.Size, cap_mib: float, *, view: bool = True
) -> tuple[DistributedDataParallel, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """The model, its optimizer, and a function that computes the loss of this rank's batch."""
    torch.manual_seed(job.args.seed)
    with job.device:
        model = gpt.GPT(size)
    ddp = DistributedDataParallel(
        model,
        device_ids=[job.device] if job.on_gpu else None,
        bucket_cap_mb=cap_mib,
        gradient_as_bucket_view=view,
    )
    tokens = gpt.tokens_for(job, size)

    def loss_of() -> torch.Tensor:
        with torch.autocast(job.device.type, torch.bfloat16):
            return ddp(tokens)

    return ddp, torch.optim.AdamW(ddp.parameters(), lr=1e-4, fused=job.on_gpu), loss_of


def run(job: common.Job, size: gpt.Size, cap_mib: float, folder: common.Path) -> bool:
    """Train with one bucket cap; returns whether the run's checks held."""
    recorder = common.Recorder(job, f"gpt_ddp_cap{cap_mib:g}")
    ddp, optimizer, loss_of = build(job, size, cap_mib)
    watched = recorder.watch_ready_order(ddp.module)
    contract = hooks.install(recorder, ddp, job.args.comm_hook)

    def after_step(number: int) -> None:
        if contract:
            contract.verify(number)
        if number == job.args.warmup - 1:
            # The order is the same in every step; measured steps do without 150 Python callbacks.
            for handle in watched:
                handle.remove()

    common.train(
        recorder, ddp, optimizer, loss_of, buckets_from_logger=contract is None, after_step=after_step
    )
    layout, counts = common.layout(ddp)
    parameters = sum(p.numel() for p in ddp.parameters())
    replicas = common.gathered(common.digest(ddp))
    losses = [row["value"] for row in recorder.select("value")]
    orders = recorder.per_iteration("ready", "index", "warmup")
    checks = [
        common.check("has_rebuilt", 1, common.has_rebuilt(ddp)),
        common.check("gradient bytes", 4 * parameters, sum(layout)),
        common.check("parameters in buckets", len(list(ddp.parameters())), sum(c or 0 for c in counts)),
        common.check("bucket records", job.args.steps * len(layout), len(recorder.select("bucket"))),
        common.check("loss falls", True, losses[-1] < recorder.select("value", "warmup")[0]["value"]),
        common.check("replicas equal", 1, len(set(replicas))),
    ]
    mine = {
        "figures": common.figures(recorder),
        "throughput": common.throughput(recorder, size.tokens, "tokens"),
        "memory": memory(job, size, cap_mib) if job.args.memory else None,
        "replica": replicas[job.rank],
        "checks": checks,
    }
    return common.write(
        recorder,
        folder,
        mine,
        bucket_cap_mib=cap_mib,
        parameters=parameters,
        layout_bytes=layout,
        layout_parameters=counts,
        ready_order=orders[max(orders)],
        has_rebuilt=common.has_rebuilt(ddp),
        hook_largest_relative_error=contract.largest_error if contract else None,
    )


def memory(job: common.Job, size: gpt.Size, cap_mib: float) -> dict[str, Any]:
    """Memory of a few further steps with and without ``gradient_as_bucket_view``."""

    def train_once(view: bool) -> tuple[Callable[[], object], Callable[[], object]]:
        _, optimizer, loss_of = build(job, size, cap_mib, view=view)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return lambda: loss_of().backward(), update

    return common.peak_memory(job, train_once)


def main() -> int:
    """Train with each bucket cap asked for."""
    options = common.parser(__doc__)
    options.add_argument("--model", choices=list(gpt.SIZES), help="default: medium, on CPU ranks tiny")
    options.add_argument("--bucket-cap", type=float, nargs="+", default=[25], metavar="MIB")
    options.add_argument("--repeat", type=int, default=1, metavar="R")
    options.add_argument("--comm-hook", choices=hooks.NAMES, default="allreduce")
    options.add_argument(
        "--memory", action="store_true", help="also compare peak memory without bucket views"
    )
    with common.joined(options) as job:
        _, size = gpt.size_of(job, "medium")
        plan = [(repeat, cap) for repeat in range(job.args.repeat) for cap in job.args.bucket_cap]
        ok = True
        for repeat, cap in plan:
            name = f"cap{cap:g}" if job.args.repeat == 1 else f"cap{cap:g}_repeat{repeat}"
            folder = common.folder_for(job, job.args.out if len(plan) == 1 else job.args.out / name)
            ok &= run(job, size, cap, folder)
        return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
