r"""Each collective directly after its producer and before its consumer: nothing can overlap.

    torchrun --nproc-per-node 2 workloads/no_overlap.py --out runs/no_overlap
    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop -o no_overlap \
        torchrun --nproc-per-node 2 workloads/no_overlap.py --out runs/no_overlap

Tensor parallelism in its plainest form: every layer multiplies by this rank's slice of the weights and sums
the partial products over the ranks before the next layer may start. There is no backward.

What the analysis must say (NCCL):

* ``layers`` (8) all-reduces a rank and step, each of rows x width x 2 bytes (bf16);
* overlap exactly 0 on every rank, all communication exposed; since a collective that is waited for at once (no
  ``async_op``) runs on the compute stream itself, that is also what the findings name;
* the critical path alternates between compute and transfer; the tail is null (no backward range).
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from torch.nn import functional


def main() -> int:
    """Run the layers, and check the result against the same network on one rank."""
    options = common.parser(__doc__)
    options.add_argument("--layers", type=int, default=8)
    options.add_argument(
        "--width", type=int, help="default 4096, on CPU ranks 64; divisible by the world size"
    )
    with common.joined(options) as job:
        width = job.args.width or (4096 if job.on_gpu else 64)
        if width % job.world_size:
            options.error(f"--width {width} does not divide among {job.world_size} ranks")
        folder = common.folder_for(job, job.args.out)
        random = torch.Generator().manual_seed(job.args.seed)
        x = torch.randn(width, width, generator=random).to(job.device, torch.bfloat16)
        weights = [
            (torch.randn(width, width, generator=random) / width**0.5).to(job.device, torch.bfloat16)
            for _ in range(job.args.layers)
        ]
        share = slice(job.rank * width // job.world_size, (job.rank + 1) * width // job.world_size)
        mine = [weight[share].contiguous() for weight in weights]

        recorder = common.Recorder(job, "no_overlap")
        result = x
        with torch.no_grad():
            for _ in common.steps(recorder, None):
                with recorder.phase("forward"):
                    result = x
                    for weight in mine:
                        partial = result[:, share] @ weight
                        dist.all_reduce(partial)
                        result = functional.normalize(partial, dim=1)
            reference = x
            for weight in weights:
                reference = functional.normalize(reference @ weight, dim=1)
        error = float((result - reference).float().norm() / reference.float().norm())
        checks = [common.check("as on one rank, up to bf16 rounding", True, error < 0.05)]
        ok = common.write(
            recorder,
            folder,
            {
                "figures": common.figures(recorder),
                "throughput": common.throughput(recorder, width, "rows"),
                "relative_error": error,
                "checks": checks,
            },
            layers=job.args.layers,
            message_bytes=width * width * 2,
        )
        return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
