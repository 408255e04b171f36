r"""A host that reads the loss in every step and then waits for its data: GPUs idle, and no network to blame.

    torchrun --nproc-per-node 2 workloads/host_gap.py --out runs/host_gap
    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop -o host_gap \
        torchrun --nproc-per-node 2 workloads/host_gap.py --out runs/host_gap

A small GPT under DDP. Every rank ends its step with ``loss.item()``, which waits until the GPU has nothing left to do;
then the slow rank sleeps for 10 ms, as if its data loader were late.

What the analysis must say (NCCL):

* the critical path of every step holds exactly one host gap of the sleep's length, on the slow rank, between
  ``.item()`` and the first call of its forward pass, and one synchronising call: ``.item()``;
* the other rank waits for the slow one in its first collective; that waiting is not on the path, whatever the share of
  it that is "overlapped";
* between two steps the slow rank's GPU is idle because of a late launch, held up by the host between two calls;
* the diagnosis names the slow rank, and that its host spent the pause in ``data``.
"""

from __future__ import annotations

import time

import common
import gpt
import gpt_ddp


def main() -> int:
    """Train with a host that stops between two steps, and check that every step lasts at least as long."""
    options = common.parser(__doc__)
    options.add_argument("--model", choices=list(gpt.SIZES), help="default: small, on CPU ranks tiny")
    options.add_argument("--slow-rank", type=int, default=1)
    options.add_argument("--sleep-ms", type=float, default=10.0, help="how long its data take")
    with common.joined(options) as job:
        if not 0 <= job.args.slow_rank < job.world_size:
            options.error(f"--slow-rank {job.args.slow_rank}: there are {job.world_size} ranks")
        folder = common.folder_for(job, job.args.out)
        _, size = gpt.size_of(job, "small")
        ddp, optimizer, loss_of = gpt_ddp.build(job, size, cap_mib=25)
        sleep_s = job.args.sleep_ms / 1000 if job.rank == job.args.slow_rank else 0.0

        recorder = common.Recorder(job, "host_gap")
        losses = []
        for _ in common.steps(recorder, ddp, after_step=lambda _: recorder.ddp_logger(ddp, buckets=True)):
            with recorder.phase("data"):
                time.sleep(sleep_s)
            losses.append(common.update(recorder, optimizer, loss_of).item())

        steps = common.gathered(min(row["time_ns"] for row in _steps(recorder)))
        replicas = common.gathered(common.digest(ddp))
        checks = [
            common.check("all steps are long", True, min(steps) >= job.args.sleep_ms * 1e6),
            common.check("loss falls", True, losses[-1] < losses[0]),
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
            slow_rank=job.args.slow_rank,
            layout_bytes=common.layout(ddp)[0],
        )
        return 0 if ok else 1


def _steps(recorder: common.Recorder) -> list[dict[str, int]]:
    """Measured steps on the host's clock; ``.item()`` makes the host wait for the GPU."""
    return [r for r in recorder.select("time") if r["name"] == "step" and r["clock"] == "host"]


if __name__ == "__main__":
    raise SystemExit(main())
