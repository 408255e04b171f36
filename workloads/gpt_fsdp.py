r"""A small GPT under FSDP (fully_shard): parameters gathered before use, gradients scattered after.

    torchrun --nproc-per-node 2 workloads/gpt_fsdp.py --out runs/gpt_fsdp
    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop -o gpt_fsdp \
        torchrun --nproc-per-node 2 workloads/gpt_fsdp.py --out runs/gpt_fsdp

Each block is a shard group, the rest (embeddings, last norm, head) is the root's. bf16 parameters and float32
reduction.

What the analysis must say (NCCL, L blocks; medium L = 12):

* 2L + 1 all-gathers a rank and step: L + 1 in forward, L in backward (the root is not resharded after forward);
* L + 1 reduce-scatters a rank and step, all in backward; no all-reduce inside a step;
* some transfer is hidden on every rank, more where the host runs ahead of its GPU; the root's all-gather, the first
  and largest in forward, is exposed.
"""

from __future__ import annotations

import common
import gpt
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> int:
    """Train, and check that each rank keeps its share of the parameters."""
    options = common.parser(__doc__)
    options.add_argument("--model", choices=list(gpt.SIZES), help="default: medium, on CPU ranks tiny")
    with common.joined(options) as job:
        folder = common.folder_for(job, job.args.out)
        _, size = gpt.size_of(job, "medium")
        with job.device:
            model = gpt.GPT(size)
        total = sum(p.numel() for p in model.parameters())
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=job.on_gpu)
        tokens = gpt.tokens_for(job, size)

        recorder = common.Recorder(job, "gpt_fsdp")
        common.train(recorder, model, optimizer, lambda: model(tokens))

        mine = sum(p.to_local().numel() for p in model.parameters())
        shards = common.gathered(mine)
        losses = [row["value"] for row in recorder.select("value")]
        checks = [
            common.check("shards sum to the model", total, sum(shards)),
            common.check("no rank holds the model", True, mine < total or job.world_size == 1),
            common.check("loss falls", True, losses[-1] < recorder.select("value", "warmup")[0]["value"]),
        ]
        ok = common.write(
            recorder,
            folder,
            {
                "figures": common.figures(recorder),
                "throughput": common.throughput(recorder, size.tokens, "tokens"),
                "shard_parameters": mine,
                "checks": checks,
            },
            parameters=total,
            blocks=size.layers,
        )
        return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
