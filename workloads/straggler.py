r"""One rank late in every step: communication time that is waiting, not transfer.

    torchrun --nproc-per-node 2 workloads/straggler.py --late-rank 1 --out runs/straggler
    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop -o straggler \
        torchrun --nproc-per-node 2 workloads/straggler.py --late-rank 1 --out runs/straggler

A small GPT under DDP. In every step the late rank spins 40,000,000 cycles on its GPU before its forward
pass (on CPU ranks its host sleeps instead); the other ranks reach their first bucket that much earlier.

What the analysis must say (NCCL):

* the late rank's spin kernel is on the critical path of every step, and the late rank is named;
* the late rank is the last to arrive at every collective; every other rank's wait in a step is about the spin's
  duration, and the late rank's next to nothing;
* the others' overlap is waiting, without hidden transfer, while the late rank hides some; what each rank transfers in a
  step is about the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import common
import gpt
import gpt_ddp
import torch


class Lateness:
    """One CPU rank of several on a host is late.

    What must follow is order and no duration, since a busy host lengthens any of these: its forward ends last, and
    before that no rank has its gradients.

    Args:
        delay_s: how much later this rank is.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._forward_ns: list[int] = []
        self._reduced_ns: list[int] = []

    def around(self, loss_of: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The loss of this rank, late if it is the late one."""
        time.sleep(self._delay_s)
        loss = loss_of()
        self._forward_ns.append(time.monotonic_ns())
        return loss

    def reduced(self, *_: object) -> None:
        """The gradients of a step are there: called before the optimizer's step."""
        self._reduced_ns.append(time.monotonic_ns())

    def seen(self) -> tuple[int, bool]:
        """Whose forward ended last in most steps, and had no rank its gradients before the last forward ended?"""
        everyone = common.gathered((self._forward_ns, self._reduced_ns))
        ends = list(zip(*(forward for forward, _ in everyone), strict=True))
        last = [max(range(len(step)), key=step.__getitem__) for step in ends]
        waited = all(
            at > max(step) for _, reduced in everyone for at, step in zip(reduced, ends, strict=True)
        )
        return max(set(last), key=last.count), waited


def main() -> int:
    """Train with one rank late, and check that its own step is what makes every step long."""
    options = common.parser(__doc__)
    options.add_argument("--model", choices=list(gpt.SIZES), help="default: small, on CPU ranks tiny")
    options.add_argument("--late-rank", type=int, default=1)
    options.add_argument("--spin-cycles", type=int, default=40_000_000, help="GPU ranks: how late")
    options.add_argument("--host-delay-ms", type=float, default=20.0, help="CPU ranks: how late")
    with common.joined(options) as job:
        if not 0 <= job.args.late_rank < job.world_size:
            options.error(f"--late-rank {job.args.late_rank}: there are {job.world_size} ranks")
        folder = common.folder_for(job, job.args.out)
        _, size = gpt.size_of(job, "small")
        ddp, optimizer, loss_of = gpt_ddp.build(job, size, cap_mib=25)
        late = job.rank == job.args.late_rank
        lateness = Lateness(job.args.host_delay_ms / 1000 if late else 0.0)

        def late_loss() -> torch.Tensor:
            if job.on_gpu and late:
                torch.cuda._sleep(job.args.spin_cycles)
            return loss_of() if job.on_gpu else lateness.around(loss_of)

        optimizer.register_step_pre_hook(lateness.reduced)
        recorder = common.Recorder(job, "straggler")
        common.train(recorder, ddp, optimizer, late_loss, buckets_from_logger=True)

        # A late forward is seen on the late rank alone; every rank's step is as long as the late one's.
        if job.on_gpu:
            median = {(f["name"], f["clock"]): f["median_ns"] for f in common.figures(recorder)}
            everyone = common.gathered((median["forward", "cuda_event"], median["step", "cuda_event"]))
            forward, steps = [f for f, _ in everyone], [s for _, s in everyone]
            slowest, long = forward.index(max(forward)), min(steps) > max(forward)
        else:
            slowest, long = lateness.seen()
        replicas = common.gathered(common.digest(ddp))
        checks = [
            common.check("slowest forward", job.args.late_rank, slowest),
            common.check("all steps are long", True, long),
            common.check("replicas equal", 1, len(set(replicas))),
        ]
        ok = common.write(
            recorder,
            folder,
            {
                "figures": common.figures(recorder),
                "throughput": common.throughput(recorder, size.tokens, "tokens"),
                "replica": replicas[job.rank],
                "checks": checks,
            },
            late_rank=job.args.late_rank,
            layout_bytes=common.layout(ddp)[0],
        )
        return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
