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

import common
import gpt
import gpt_ddp
import torch


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

        def late_loss() -> torch.Tensor:
            if late and job.on_gpu:
                torch.cuda._sleep(job.args.spin_cycles)
            elif late:
                time.sleep(job.args.host_delay_ms / 1000)
            return loss_of()

        recorder = common.Recorder(job, "straggler")
        common.train(recorder, ddp, optimizer, late_loss, buckets_from_logger=True)

        # A late forward is seen on the late rank alone; every rank's step is as long as the late one's.
        clock = "cuda_event" if job.on_gpu else "host"
        median = {(f["name"], f["clock"]): f["median_ns"] for f in common.figures(recorder)}
        everyone = common.gathered((median["forward", clock], median["step", clock]))
        forward, steps = [f for f, _ in everyone], [s for _, s in everyone]
        replicas = common.gathered(common.digest(ddp))
        checks = [
            common.check("slowest forward", job.args.late_rank, forward.index(max(forward))),
            common.check("all steps are long", True, min(steps) > max(forward)),
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
