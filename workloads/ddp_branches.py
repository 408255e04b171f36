r"""DDP over independent parameter branches: bucket layouts and overlap that are known in advance.

    torchrun --nproc-per-node 2 workloads/ddp_branches.py --config delay_cap4 --out runs/delay_cap4
    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop -o delay_cap4 \
        torchrun --nproc-per-node 2 workloads/ddp_branches.py --config delay_cap4 --out runs/delay_cap4

Every branch is one parameter with its own loss term, so its gradient depends on no other; backward visits the
branches in reverse, so gradients become ready as 11, 10, ... 0. 48 MiB of gradients a rank. The delay
configurations spin 10,000,000 cycles in each branch's backward before its gradient exists (on CPU ranks the
host sleeps instead). Several names after --config, or ``all``, run one after the other, and then the run
checks that the configurations of one iteration and rank add up to 49 bucket records.

    configuration      parameters       cap     buckets in launch order (MiB)          has_rebuilt
    fine1_cap4         48 x 1 MiB        4      12 x 4                                 1
    coarse4_cap4       12 x 4 MiB        4      12 x 4                                 1
    coarse4_cap16      12 x 4 MiB       16      16, 16, 16                             1
    coarse4_cap64      12 x 4 MiB       64      48                                     1
    delay_cap4         12 x 4 MiB        4      12 x 4                                 1
    delay_cap64        12 x 4 MiB       64      48                                     1
    dynamic_unused     13 x 4 MiB       16      4, 16, 16, 16 (find_unused_parameters) 0
    static_unused      13 x 4 MiB       16      16, 16, 16, 4 (static_graph)           1
    undetected_unused  13 x 4 MiB       16      fails in the second forward, on every rank, as it should

What the analysis must say (NCCL):

* delay_cap4: 12 bucket all-reduces and 12 spin kernels a rank and step; hidden transfer > 0 on every rank; each of
  the first 11 is hidden in part behind the next branch's spin (its start is exposed, until that spin begins), and
  the last one not at all: it is the tail.
* delay_cap64: one bucket all-reduce a step; overlap exactly 0 on every rank; all of it is tail.
* the others: the bucket counts above. dynamic_unused has one small all-reduce more a step (5, not 4), over the map of
  used parameters: 4 bytes each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import common
import hooks
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20


@dataclass(frozen=True)
class Config:
    """One configuration and what DDP must do with it."""

    parameters: int
    parameter_mib: int
    cap_mib: int
    buckets_mib: tuple[int, ...]
    delayed: bool = False
    unused: int = 0
    find_unused_parameters: bool = False
    static_graph: bool = False

    @property
    def rebuilds(self) -> int:
        """Whether DDP replaces its first buckets: not while it looks for unused parameters anew each time."""
        return int(self.static_graph or not self.find_unused_parameters)

    @property
    def first_mib(self) -> tuple[int, ...]:
        """The layout before: everything in one bucket, except where it is never rebuilt."""
        return (self.parameters * self.parameter_mib,) if self.rebuilds else self.buckets_mib


CONFIGS = {
    "fine1_cap4": Config(48, 1, 4, (4,) * 12),
    "coarse4_cap4": Config(12, 4, 4, (4,) * 12),
    "coarse4_cap16": Config(12, 4, 16, (16,) * 3),
    "coarse4_cap64": Config(12, 4, 64, (48,)),
    "delay_cap4": Config(12, 4, 4, (4,) * 12, delayed=True),
    "delay_cap64": Config(12, 4, 64, (48,), delayed=True),
    "dynamic_unused": Config(13, 4, 16, (4, 16, 16, 16), unused=1, find_unused_parameters=True),
    "static_unused": Config(13, 4, 16, (16, 16, 16, 4), unused=1, static_graph=True),
}
UNDETECTED = "undetected_unused"
UNDETECTED_CONFIG = Config(13, 4, 16, (), unused=1)
EXPECTED_ERROR = "Expected to have finished reduction in the prior iteration before starting a new one"
RECORDS_PER_ITERATION = sum(len(config.buckets_mib) for config in CONFIGS.values())
assert RECORDS_PER_ITERATION == 49


class Delayed(torch.autograd.Function):
    """The identity, whose backward takes a while before the gradient exists."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, delay: Callable[[], None]) -> torch.Tensor:
        """Keep the delay for backward."""
        ctx.delay = delay
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Delay, then pass the gradient on."""
        ctx.delay()
        return gradient, None


class Branches(nn.Module):
    """Independent branches: the loss is the sum over used parameters of the squared distance to the data."""

    def __init__(self, config: Config, delay: Callable[[], None] | None) -> None:
        super().__init__()
        side = config.parameter_mib * MIB // 4 // 1024  # float32 rows of 1024
        self.branches = nn.ParameterList(torch.randn(side, 1024) for _ in range(config.parameters))
        self.used = config.parameters - config.unused
        self.delay = delay

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """The loss over ``data``, of one parameter's shape."""
        losses = []
        for parameter in list(self.branches)[: self.used]:
            value = parameter if self.delay is None else Delayed.apply(parameter, self.delay)
            losses.append((value - data).square().sum() / 1024)  # keeps gradients in fp16's range
        return torch.stack(losses).sum()


def build(
    job: common.Job, config: Config, *, view: bool = True
) -> tuple[DistributedDataParallel, torch.optim.Optimizer, torch.Tensor]:
    """The model, its optimizer, and this rank's own data."""
    model = Branches(config, delay_of(job) if config.delayed else None).to(job.device)
    ddp = DistributedDataParallel(
        model,
        device_ids=[job.device] if job.on_gpu else None,
        bucket_cap_mb=config.cap_mib,
        gradient_as_bucket_view=view,
        find_unused_parameters=config.find_unused_parameters,
        static_graph=config.static_graph,
    )
    random = torch.Generator().manual_seed(job.args.seed * 1000 + job.rank + 1)
    data = torch.randn(model.branches[0].shape, generator=random).to(job.device)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=50.0), data


def delay_of(job: common.Job) -> Callable[[], None]:
    """What a delayed branch does in backward: spin on the GPU's stream, or make a CPU rank's host sleep."""
    if job.on_gpu:
        return lambda: torch.cuda._sleep(job.args.spin_cycles)
    return lambda: time.sleep(job.args.host_delay_ms / 1000)


def run(job: common.Job, name: str, folder: common.Path) -> tuple[bool, int]:
    """Run one configuration; returns whether its checks held and its bucket records over all ranks."""
    config = CONFIGS[name]
    recorder = common.Recorder(job, name)
    ddp, optimizer, data = build(job, config)
    first_bytes, _ = common.layout(ddp)
    recorder.watch_ready_order(ddp.module)
    contract = hooks.install(recorder, ddp, job.args.comm_hook)
    common.train(
        recorder,
        ddp,
        optimizer,
        lambda: ddp(data),
        buckets_from_logger=contract is None,
        after_step=contract.verify if contract else lambda _: None,
    )

    layouts = recorder.per_iteration("bucket", "bytes")
    orders = recorder.per_iteration("ready", "index")
    used = config.parameters - config.unused
    replicas = common.gathered(common.digest(ddp))
    records = len(recorder.select("bucket"))
    checks = [
        common.check("first layout", [mib * MIB for mib in config.first_mib], first_bytes),
        common.check(
            "layout of every measured step",
            [[mib * MIB for mib in config.buckets_mib]],
            distinct(layouts.values()),
        ),
        common.check("measured steps with bucket records", job.args.steps, len(layouts)),
        common.check("bucket records", job.args.steps * len(config.buckets_mib), records),
        common.check("ready order", [list(reversed(range(used)))], distinct(orders.values())),
        common.check("has_rebuilt", config.rebuilds, common.has_rebuilt(ddp)),
        common.check("replicas equal", 1, len(set(replicas))),
    ]
    mine = {
        "figures": common.figures(recorder),
        "throughput": common.throughput(recorder, 1, "samples"),
        "memory": memory(job, config),
        "replica": replicas[job.rank],
        "checks": checks,
    }
    ok = common.write(
        recorder,
        folder,
        mine,
        first_layout_bytes=first_bytes,
        layout_bytes=layouts[max(layouts)],
        ready_order=orders[max(orders)],
        has_rebuilt=common.has_rebuilt(ddp),
        hook_largest_relative_error=contract.largest_error if contract else None,
    )
    return ok, sum(common.gathered(records))


def distinct(lists: Any) -> list[list[int]]:
    """The different ones among lists."""
    return [list(values) for values in sorted({tuple(values) for values in lists})]


def memory(job: common.Job, config: Config) -> dict[str, Any]:
    """Memory of a few further steps with and without ``gradient_as_bucket_view``."""

    def train_once(view: bool) -> tuple[Callable[[], object], Callable[[], object]]:
        ddp, optimizer, data = build(job, config, view=view)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return lambda: ddp(data).backward(), update

    return common.peak_memory(job, train_once)


def run_undetected(job: common.Job, folder: common.Path) -> bool:
    """An unused parameter of which DDP was not told: the second forward must fail on every rank."""
    recorder = common.Recorder(job, UNDETECTED)
    ddp, _, data = build(job, UNDETECTED_CONFIG)
    ddp(data).backward()
    try:
        ddp(data)
        message = "no error"
    except RuntimeError as error:
        message = str(error).split(".")[0]
    messages = common.gathered(message)
    mine = {
        "error": message,
        "checks": [common.check("error in the second forward", EXPECTED_ERROR, message)],
    }
    common.write(recorder, folder, mine, expected_failure=all(m == EXPECTED_ERROR for m in messages))
    return all(m == EXPECTED_ERROR for m in messages)


def main() -> int:
    """Run the configurations asked for."""
    options = common.parser(__doc__)
    names = [*CONFIGS, UNDETECTED]
    options.add_argument("--config", nargs="+", required=True, choices=[*names, "all"], metavar="NAME")
    options.add_argument("--comm-hook", choices=hooks.NAMES, default="allreduce")
    options.add_argument("--spin-cycles", type=int, default=10_000_000, help="GPU ranks: a branch's delay")
    options.add_argument("--host-delay-ms", type=float, default=5.0, help="CPU ranks: a branch's delay")
    with common.joined(options) as job:
        chosen = names if "all" in job.args.config else list(dict.fromkeys(job.args.config))
        results, records = {}, {}
        for name in chosen:
            folder = common.folder_for(job, job.args.out if len(chosen) == 1 else job.args.out / name)
            if name == UNDETECTED:
                results[name] = run_undetected(job, folder)
            else:
                results[name], records[name] = run(job, name, folder)
        if set(CONFIGS) <= set(chosen):
            results["bucket records"] = check_total(job, records)
        return 0 if all(results.values()) else 1


def check_total(job: common.Job, records: dict[str, int]) -> bool:
    """Over the eight configurations that run through, 49 bucket records an iteration and rank."""
    found = common.check(
        "bucket records", RECORDS_PER_ITERATION * job.args.steps * job.world_size, sum(records.values())
    )
    if job.rank == 0:
        common.replace(
            job.args.out / "matrix.json",
            common.json.dumps(
                {"rank_iterations": job.args.steps * job.world_size, "records": records, **found}, indent=1
            ),
        )
        print(f"matrix: {found['found']} bucket records, {found['expected']} expected", flush=True)
    return bool(found["ok"])


if __name__ == "__main__":
    raise SystemExit(main())
