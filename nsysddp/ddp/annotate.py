"""What must a training loop say so that the analyzer can tell steps, phases, ranks and buckets apart?

A few lines in any loop (DDP, FSDP, one process):

    from nsysddp import annotate

    annotate.register_comm_hook(ddp)                      # optional: one range a DDP bucket
    with annotate.capture_window(start=20, steps=3, model=ddp) as window:
        for number, batch in enumerate(loader):
            with window.step(number):
                with annotate.phase("forward"):
                    loss = ddp(batch)
                with annotate.phase("backward"):
                    loss.backward()
                with annotate.phase("optimizer"):
                    optimizer.step()

run under ``nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop``. With gradient
accumulation a step holds several forward and backward ranges (those under ``no_sync`` launch no bucket).

A process counts as profiled when nsys started it (``NSYS_PROFILING_SESSION_ID`` in its environment);
``NSYSDDP_ANNOTATE=1`` or ``0`` overrides. In a process that is not profiled every function here returns at
once, a comm hook is left as it is, and DDP keeps its built-in all-reduce. Ranges go through
``torch.cuda.nvtx``, on builds of torch without CUDA through the PyPI package ``nvtx``, and without either
nowhere.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, NamedTuple

from nsysddp.model import markers
from nsysddp.model.errors import CaptureError, UsageError

_NOTHING: AbstractContextManager[None] = nullcontext()


@functools.cache
def profiling() -> bool:
    """Is this process being profiled? Decided once per process, so that later calls cost nothing."""
    forced = os.environ.get("NSYSDDP_ANNOTATE")
    if forced is not None:
        if forced not in ("0", "1"):
            raise UsageError(f"NSYSDDP_ANNOTATE is {forced!r}", do="set it to 1 or 0, or unset it")
        return forced == "1"
    return "NSYS_PROFILING_SESSION_ID" in os.environ


class _Nvtx(NamedTuple):
    push: Callable[[str], object]
    pop: Callable[[], object]
    mark: Callable[[str], object]


@functools.cache
def _nvtx() -> _Nvtx:
    """How this process emits NVTX; three no-ops where nothing can."""
    with suppress(ImportError):
        import torch

        if torch.version.cuda is not None:
            return _Nvtx(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop, torch.cuda.nvtx.mark)
    with suppress(ImportError):
        import nvtx

        return _Nvtx(nvtx.push_range, nvtx.pop_range, nvtx.mark)
    return _Nvtx(lambda _: None, lambda: None, lambda _: None)


class _Range:
    """A push/pop range on the calling thread."""

    __slots__ = ("_name", "_nvtx")

    def __init__(self, name: str) -> None:
        self._name = name
        self._nvtx = _nvtx()

    def __enter__(self) -> None:
        self._nvtx.push(self._name)

    def __exit__(self, *_: object) -> None:
        self._nvtx.pop()


def step(number: int) -> AbstractContextManager[None]:
    """The range around training step ``number`` (where no :func:`capture_window` is used)."""
    return _Range(markers.step_name(number)) if profiling() else _NOTHING


def phase(name: str) -> AbstractContextManager[None]:
    """The range around one phase of a step.

    Raises:
        UsageError: ``name`` is not one of ``data``, ``forward``, ``backward``, ``optimizer``; the analyzer
            would not see it.
    """
    if name not in markers.PHASES:
        raise UsageError(f"{name!r} is not a phase", do=f"use one of {', '.join(markers.PHASES)}")
    return _Range(name) if profiling() else _NOTHING


def mark_rank() -> None:
    """Write into the trace which rank this process is (rank, world size, local rank, CUDA ordinal).

    :func:`capture_window` does this itself; call it only inside a capture that is opened otherwise.
    """
    if profiling():
        _nvtx().mark(markers.rank_mark(_who_am_i()))


def mark_groups() -> None:
    """Write into the trace what the process groups of this rank are called, and which ranks are in them.

    The name is that of ``group_desc`` (``mesh_dp``, ``TENSOR_MODEL_PARALLEL_GROUP``), else the group's own name.
    :func:`capture_window` does this itself; call it only inside a capture that is opened otherwise, once all groups
    are made.
    """
    if not profiling() or not _distributed():
        return
    import torch.distributed as dist

    # There is no public list of all groups.
    every: Any = getattr(dist.distributed_c10d._world, "pg_group_ranks", {})
    for group, members in every.items():
        described = str(getattr(group, "group_desc", "") or "")
        name = described if described not in ("", "undefined") else str(getattr(group, "group_name", ""))
        _nvtx().mark(markers.group_mark(markers.GroupMark(name, tuple(members))))


def _who_am_i() -> markers.RankMark:
    import torch
    import torch.distributed as dist

    rank, world = (dist.get_rank(), dist.get_world_size()) if _distributed() else (0, 1)
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    return markers.RankMark(rank, world, int(os.environ.get("LOCAL_RANK", device)), device)


def _distributed() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


# --- buckets --------------------------------------------------------------------------------------------


def bucket_ranges(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a DDP communication hook so that each bucket's launch is a range in the trace.

    The hook's arguments, its future and its signature (which DDP checks) are passed on untouched, and a
    process that is not profiled gets ``hook`` itself back: ``ddp.register_comm_hook(state,
    bucket_ranges(hook))``.
    """
    if not profiling():
        return hook

    @functools.wraps(hook)
    def marked(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses string annotations here
        buffer = bucket.buffer()
        mark = markers.BucketMark(
            index=bucket.index(),
            bytes=buffer.numel() * buffer.element_size(),
            parameters=len(bucket.parameters()),
            is_last=bucket.is_last(),
        )
        with _Range(markers.bucket_mark(mark)):
            return hook(state, bucket)

    return marked


def register_comm_hook(ddp: Any, state: Any = None, hook: Callable[..., Any] | None = None) -> None:
    """``ddp.register_comm_hook(state, hook)`` with bucket ranges; without ``hook``, DDP's own all-reduce.

    DDP's built-in all-reduce is C++ and no Python runs in it, so to mark its buckets a profiled process
    registers PyTorch's ``allreduce_hook``, which computes the same average. Two differences remain. DDP
    predivides while it copies a gradient into its bucket; the hook divides the whole bucket afterwards, one
    small kernel more. And ``g * (1/n)`` and ``g / n`` can differ in the last bit unless the world size is a
    power of two. A process that is not profiled keeps the built-in one.

    Raises:
        UsageError: ``ddp`` is not a DistributedDataParallel module (FSDP has no buckets to mark), or
            ``state`` comes without the hook that it belongs to, or ``ddp`` has a hook already.
    """
    if hook is None and state is not None:
        raise UsageError("a communication hook's state came without the hook", do="pass both or neither")
    if hook is None and not profiling():
        return
    if not _is_ddp(ddp):
        raise UsageError(
            f"bucket ranges need a DistributedDataParallel module, not {type(ddp).__name__}",
            do="leave this call out; steps and phases work with any module",
        )
    if ddp._comm_hooks:
        raise UsageError(
            "this module has a communication hook already, and DDP takes one",
            do="register yours through this call, as register_comm_hook(ddp, state, hook)",
        )
    if hook is None:
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        # The hook's state is the group to reduce over: the module's own, which need not be the default one.
        state, hook = ddp.process_group or dist.group.WORLD, allreduce_hook
    ddp.register_comm_hook(state, bucket_ranges(hook))


def _is_ddp(module: object) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(module, DistributedDataParallel)


# --- the captured window --------------------------------------------------------------------------------


class capture_window:  # noqa: N801  reads as a verb where it is used, like contextlib's
    """Which steps does the profiler see? Those from ``start`` on, ``steps`` of them, the same on every rank.

    One nsys session over all ranks obeys only the first cudaProfilerStart and the first Stop of any of them.
    So opening is barrier, Start, barrier (no rank works before collection runs), and closing is barrier, Stop,
    barrier (no rank stops it while another still works, and none begins the next step while it is still on).
    The barriers wait for the GPU too, and lie outside every step range.

    Construct it on every rank after ``init_process_group``: one small all-reduce finds out whether any rank
    is profiled, so that profiling a single rank cannot hang the others in a barrier.

    Args:
        start: number of the first captured step, as given to :meth:`step`.
        steps: how many steps to capture, at least one.
        model: the module being trained; if it is, or contains, a DDP module, opening the window before DDP
            has rebuilt its buckets is refused, since such steps do not look like the rest of the training.

    Raises:
        UsageError: ``start`` is negative or ``steps`` is not positive.
    """

    def __init__(self, start: int, steps: int, *, model: Any = None) -> None:
        if start < 0 or steps < 1:
            raise UsageError(
                f"a capture window of {steps} steps from step {start}", do="give start >= 0, steps >= 1"
            )
        self._first, self._last = start, start + steps - 1
        self._model = model
        self._armed = _any_rank_is_profiled()
        self._open = False
        self._done = False

    def step(self, number: int) -> AbstractContextManager[None]:
        """The range around step ``number``; opens the window at its first step, closes it after its last.

        Raises:
            CaptureError: the window would open before DDP has rebuilt its buckets (on entering the context).
        """
        # After the window nsys can still be collecting for a moment: a step cut short there would look like a step.
        return _Step(self, number) if self._armed and not self._done else _NOTHING

    def close(self) -> None:
        """Close the window early, on every rank alike; without effect if it is not open."""
        if self._open:
            _barrier()
            self._stop()
            _barrier()

    def __enter__(self) -> capture_window:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # Other ranks may never reach a barrier now.
            if self._open:
                self._stop()
        elif self._armed and not self._open and not self._done:
            raise CaptureError(
                f"the loop ended before step {self._first}, so nothing was captured",
                do="start the window at a step that the loop reaches",
            )
        else:
            self.close()

    def _before(self, number: int) -> None:
        if number != self._first or self._done:
            return
        _refuse_before_rebuild(self._model, number)
        _barrier()
        _profiler("cudaProfilerStart")
        self._open = True
        _barrier()
        mark_rank()
        mark_groups()

    def _after(self, number: int) -> None:
        if number == self._last:
            self.close()

    def _stop(self) -> None:
        _profiler("cudaProfilerStop")
        self._open, self._done = False, True


class _Step:
    """One step of a profiled job: the range, and the window's edges outside it."""

    __slots__ = ("_number", "_range", "_window")

    def __init__(self, window: capture_window, number: int) -> None:
        self._window, self._number, self._range = window, number, step(number)

    def __enter__(self) -> None:
        self._window._before(self._number)
        self._range.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._range.__exit__(kind, error, trace)
        if kind is None:
            self._window._after(self._number)


def _any_rank_is_profiled() -> bool:
    import torch
    import torch.distributed as dist

    if not _distributed():
        return profiling()
    on_gpu = dist.get_backend() == "nccl"
    flag = torch.tensor(int(profiling()), device="cuda" if on_gpu else "cpu")
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def _refuse_before_rebuild(model: Any, number: int) -> None:
    for module in model.modules() if model is not None else ():
        if not _is_ddp(module):
            continue
        # With find_unused_parameters DDP keeps its first layout for good (reducer: should_rebuild_buckets).
        rebuilds = module.static_graph or not module.find_unused_parameters
        if rebuilds and not module._has_rebuilt_buckets:
            raise CaptureError(
                f"DDP has not rebuilt its buckets before step {number}, so this step is not a steady one",
                do="start the capture window later (DDP rebuilds in its second forward, with static_graph in its "
                "third, counted without accumulation: from the third, or fourth, step on)",
            )


def _barrier() -> None:
    """Wait until every rank is here with its GPU work done."""
    import torch
    import torch.distributed as dist

    if _distributed():
        on_gpu = dist.get_backend() == "nccl"
        dist.barrier(device_ids=[torch.cuda.current_device()] if on_gpu else None)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _profiler(call: str) -> None:
    """Call ``cudaProfilerStart`` or ``cudaProfilerStop``; without a GPU nsys obeys neither."""
    import torch

    if profiling() and torch.cuda.is_available():
        runtime: Any = torch.cuda.cudart
        torch.cuda.check_error(getattr(runtime(), call)())
