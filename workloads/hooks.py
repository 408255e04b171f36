"""Communication hooks to choose from, and the contract that each must keep.

The contract (``DistributedDataParallel.register_comm_hook``): the hook returns a Future of one tensor of the
bucket's shape and dtype that holds the *average* of the bucket over the ranks. DDP does not check it, and a
hook that forgets to divide trains with gradients ``world_size`` times too large without any error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from common import Job, Recorder, gathered
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from nsysddp import annotate

Hook = Callable[[Any, dist.GradBucket], "torch.futures.Future[torch.Tensor]"]

NAMES = ("none", "allreduce", "bf16", "fp16", "powersgd")
"""``none`` is DDP's built-in all-reduce (C++); the others are Python hooks of PyTorch."""

CHECKED_STEPS = 3
"""The first layout, the rebuilt layout, and PowerSGD's first compressed step."""

TOLERANCE = {"allreduce": 1e-6, "bf16": 1e-2, "fp16": 2e-3, "powersgd": 1e-6}
"""Largest relative error |average - reference| / |reference|: rounding to 24, 8 and 11 bits. PowerSGD is
held to it in the steps before it compresses; a low-rank step has no reference, so there only agreement over
ranks is checked."""

SMALLEST = {"fp16": 2.0**-24}
"""Spacing of the smallest numbers of a compressed format: below 2^-14 fp16 rounds to multiples of it, whatever the
relative error. Gradients of a GPT lie there (seen: 1e-2 of a bucket's norm lost), which is why fp16 training scales its
loss. bf16 has float32's range, and a spacing of no consequence."""


class HookContractError(Exception):
    """A communication hook does not return the average of its bucket."""


def install(recorder: Recorder, ddp: DistributedDataParallel, name: str) -> Contract | None:
    """Register the hook ``name`` on ``ddp``: recorded, checked in the first steps, marked in the trace.

    Returns:
        The contract to call ``verify`` on after each step; None for ``none``, which is DDP's own.
    """
    if name == "none":
        return None
    if name == "powersgd" and recorder.job.backend == "gloo":
        # It launches collectives from futures' callbacks. NCCL's run where the hook runs; gloo's run on worker
        # threads, so two buckets' collectives start in another order on each rank and never match.
        raise SystemExit("--comm-hook powersgd needs --backend nccl: on gloo its collectives mix up buckets")
    hooks = {
        "allreduce": default_hooks.allreduce_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "powersgd": powerSGD_hook.powerSGD_hook,
    }
    state: Any = dist.group.WORLD
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=CHECKED_STEPS - 1
        )
    contract = Contract(recorder.job, hooks[name], name)

    # Not functools.wraps: DDP refuses the bf16 hook *by name* on CPU ranks, where gloo does reduce bf16.
    def recorded_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses string annotations
        recorder.bucket(bucket)
        return contract(state, bucket)

    annotate.register_comm_hook(ddp, state, recorded_hook)
    return contract


class Contract:
    """A hook that is compared with a reference average while its first steps run, and is itself afterwards.

    Args:
        job: this process's place in the job.
        hook: the hook to check.
        name: which of NAMES it is, for its tolerance.
    """

    def __init__(self, job: Job, hook: Hook, name: str) -> None:
        self._job = job
        self._hook = hook
        self._name = name
        self._step = 0
        self._results: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.largest_error = 0.0

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Run the hook; in a checked step keep its result beside the reference."""
        if self._step >= CHECKED_STEPS:
            return self._hook(state, bucket)
        reference = bucket.buffer().clone()
        dist.all_reduce(reference)
        reference /= self._job.world_size
        index = bucket.index()
        future = self._hook(state, bucket)
        # What a process group's work returns is the C++ class, of which torch.futures.Future is a subclass.
        if not isinstance(future, torch._C.Future):
            raise HookContractError(f"{self._name}: returned {type(future).__name__}, not a Future")

        def keep(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            value = done.value()
            # DDP goes on to use the bucket's memory, so the value must be copied now. Callbacks may run in another
            # order on each rank.
            self._results[index] = (reference, value.clone())
            return value

        return future.then(keep)

    def verify(self, step: int) -> None:
        """Compare what the hook returned in ``step`` with the reference; to be called after every step.

        Raises:
            HookContractError: another shape or dtype, an average that is none, or ranks that disagree.
        """
        self._step = step + 1
        if not self._results:
            return
        low_rank = self._name == "powersgd" and step >= CHECKED_STEPS - 1
        results = [self._results[index] for index in sorted(self._results)]
        problems = [p for pair in results if (p := self._problem(*pair, low_rank=low_rank))]
        agreed = [float(value.double().sum()) for _, value in results]
        self._results.clear()
        everyone = gathered((problems, agreed))
        for rank, (found, _) in enumerate(everyone):
            if found:
                raise HookContractError(f"{self._name}: step {step}, rank {rank}: {found[0]}")
        if any(sums != agreed for _, sums in everyone):
            raise HookContractError(f"{self._name}: step {step}: ranks got different averages of one bucket")

    def _problem(self, reference: torch.Tensor, value: torch.Tensor, *, low_rank: bool) -> str | None:
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return (
                f"returned {value.dtype} of shape {tuple(value.shape)} for a bucket of "
                f"{reference.dtype} of shape {tuple(reference.shape)}"
            )
        if low_rank:
            return None if bool(value.isfinite().all()) else "returned values that are not finite"
        size = float(reference.norm().clamp_min(1e-30))
        error = float((value - reference).norm()) / size
        self.largest_error = max(self.largest_error, error)
        # Half a spacing is lost where each rank casts, and another where it divides.
        lost = (self._job.world_size + 1) * SMALLEST.get(self._name, 0.0) / 2 * reference.numel() ** 0.5
        tolerance = TOLERANCE[self._name] + lost / size
        if tolerance > 0.5:
            return f"gradients are too small for {self._name}: rounding may take {tolerance:.0%} of a bucket's norm"
        if error <= tolerance:
            return None
        ratio = float((value * reference).sum() / (reference * reference).sum().clamp_min(1e-30))
        hint = (
            "; the division by the world size is missing" if round(ratio, 1) == self._job.world_size else ""
        )
        return f"returned {ratio:.3f} times the average (relative error {error:.1e}){hint}"
