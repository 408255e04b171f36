"""What every workload shares: joining the job, timing steps on named clocks, records, and the summary.

A workload writes into its output folder

* ``records_rank{R}.jsonl``: one JSON object a figure, with the clock that it was read from. ``record`` says
  what it is: ``time`` (a step or phase), ``bucket`` (handed to its hook), ``ready`` (a gradient was
  accumulated), ``ddp_logger`` (a field of DDP's own logging data), ``value`` (the loss).
* ``summary.json``: written by rank 0, medians and tails of every rank, checks with expected and found.

Clocks: ``cuda_event`` (GPU, between two events on the compute stream), ``host`` (``perf_counter`` around the
host's calls), ``hook`` (``perf_counter`` in a callback, since the step's start: when the host scheduled) and
``ddp_logger`` (DDP's own timers). None of them is evidence of overlap; that is the trace's to say.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nsysddp import annotate

STAGES = ("warmup", "window", "measured")
"""Steps before the capture window, inside it, after it. Only the last are summarised."""

LOGGER_TIMES = tuple(
    f"{prefix}{name}"
    for prefix in ("", "avg_")
    for name in (
        "forward_compute_time",
        "backward_compute_time",
        "backward_comm_time",
        "backward_compute_comm_overlap_time",
    )
)
"""Fields of DDP's logging data in ns. DDP refreshes them in its first ten iterations, then each hundredth."""

MIN_SAMPLES = 40
"""Fewer measured steps than this leave P95 and P99 to chance; the summary says so."""


# --- joining the job ------------------------------------------------------------------------------------


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options that every workload has; ``doc`` is the script's docstring, shown by ``--help``."""
    options = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("--steps", type=int, default=40, metavar="K", help="measured steps (default 40)")
    options.add_argument(
        "--warmup", type=int, default=10, metavar="W", help="steps before (default 10, >= 3)"
    )
    options.add_argument(
        "--capture-steps", type=int, default=3, metavar="C", help="steps in the profiler's window"
    )
    options.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for records and summary"
    )
    options.add_argument("--force", action="store_true", help="overwrite the records in DIR")
    options.add_argument("--backend", choices=("nccl", "gloo"), help="default: nccl where there are GPUs")
    options.add_argument("--seed", type=int, default=0)
    return options


@dataclass(frozen=True)
class Job:
    """This process's place in the job, and its options."""

    rank: int
    world_size: int
    backend: str
    device: torch.device
    args: argparse.Namespace

    @property
    def on_gpu(self) -> bool:
        """Whether tensors live on a GPU; else there are no CUDA events and no spin kernel."""
        return self.device.type == "cuda"


@contextmanager
def joined(options: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> Iterator[Job]:
    """Parse the command line, join the process group that torchrun set up, leave it at the end."""
    args = options.parse_args(argv)
    if args.warmup < 3:
        options.error(
            "--warmup must be at least 3: DDP rebuilds its buckets in the second step, a static graph in the third"
        )
    if args.steps < 1 or args.capture_steps < 1:
        options.error("--steps and --capture-steps must be at least 1")
    if "RANK" not in os.environ:
        options.error("start this with torchrun (see its first lines)")
    gpus = torch.cuda.device_count()
    backend = args.backend or ("nccl" if gpus else "gloo")
    device = torch.device("cpu")
    if backend == "nccl":
        if not gpus:
            options.error("--backend nccl needs a GPU a rank and there is none; use --backend gloo")
        # Each rank may have been given one GPU of its own, which it then sees as device 0.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    torch.manual_seed(args.seed)  # the same model on every rank; data are drawn with per-rank generators
    try:
        yield Job(dist.get_rank(), dist.get_world_size(), backend, device, args)
    finally:
        gc.collect()  # a DDP module outlives its frame in cycles; one that outlives its group can abort the process
        dist.destroy_process_group()


# --- records --------------------------------------------------------------------------------------------


class Recorder:
    """What one rank measured, row by row.

    Args:
        job: this process's place in the job.
        config: name of what is run, repeated in every row.
    """

    def __init__(self, job: Job, config: str) -> None:
        self.job = job
        self.config = config
        self.iteration = -1
        self.stage = STAGES[0]
        self.rows: list[dict[str, Any]] = []
        self._buckets = 0
        self._ready = 0
        self._start_ns = 0
        self._unread: list[Callable[[], None]] = []

    def add(self, record: str, **fields: Any) -> None:
        """One row of the current step; fields that are None are left out."""
        row = {
            "config": self.config,
            "rank": self.job.rank,
            "world_size": self.job.world_size,
            "iteration": self.iteration,
            "stage": self.stage,
            "record": record,
            **fields,
        }
        self.rows.append({name: value for name, value in row.items() if value is not None})

    @contextmanager
    def step(self, iteration: int, stage: str) -> Iterator[None]:
        """Time one step."""
        self.iteration, self.stage, self._buckets, self._ready = iteration, stage, 0, 0
        with self._timed("step"):
            yield

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase of a step, and mark it in the trace."""
        with annotate.phase(name), self._timed(name):
            yield

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.job.on_gpu else None
        start_ns = time.perf_counter_ns()
        if name == "step":
            self._start_ns = start_ns
        if events:
            events[0].record()
        yield
        if events:
            events[1].record()
            iteration, stage = self.iteration, self.stage
            # Reading an event waits for the GPU; that must not happen inside the loop.
            self._unread.append(lambda: self._read_events(name, iteration, stage, *events))
        self.add("time", name=name, clock="host", time_ns=time.perf_counter_ns() - start_ns)

    def _read_events(
        self, name: str, iteration: int, stage: str, start: torch.cuda.Event, end: torch.cuda.Event
    ) -> None:
        self.iteration, self.stage = iteration, stage
        self.add("time", name=name, clock="cuda_event", time_ns=round(start.elapsed_time(end) * 1e6))

    def bucket(self, bucket: dist.GradBucket) -> None:
        """A bucket was handed to the communication hook just now."""
        buffer = bucket.buffer()
        self.add(
            "bucket",
            clock="hook",
            time_ns=time.perf_counter_ns() - self._start_ns,
            position=self._buckets,
            index=bucket.index(),
            bytes=buffer.numel() * buffer.element_size(),
            parameters=len(bucket.parameters()),
            is_last=bucket.is_last(),
        )
        self._buckets += 1

    def watch_ready_order(self, model: nn.Module) -> list[Any]:
        """Record when each parameter's gradient is accumulated, until the returned handles are removed."""

        def hook(index: int, name: str) -> Callable[[torch.Tensor], None]:
            def ready(_: torch.Tensor) -> None:
                since = time.perf_counter_ns() - self._start_ns
                self.add("ready", name=name, clock="hook", time_ns=since, index=index, position=self._ready)
                self._ready += 1

            return ready

        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return [
            p.register_post_accumulate_grad_hook(hook(index, name)) for index, (name, p) in enumerate(trained)
        ]

    def ddp_logger(self, ddp: DistributedDataParallel, *, buckets: bool) -> None:
        """What DDP's own logging data says after this step; ``buckets``: no hook has seen the buckets."""
        data = ddp._get_ddp_logging_data()
        self.add("ddp_logger", name="has_rebuilt_buckets", value=has_rebuilt(ddp))
        for name in LOGGER_TIMES:
            if name in data:
                self.add("ddp_logger", name=name, clock="ddp_logger", time_ns=data[name])
        if buckets:
            sizes, counts = layout(ddp)
            for index, (size, count) in enumerate(zip(sizes, counts, strict=True)):
                self.add(
                    "bucket",
                    clock="ddp_logger",
                    position=index,
                    index=index,
                    bytes=size,
                    parameters=count,
                    is_last=index == len(sizes) - 1,
                )

    def loss(self, loss: torch.Tensor) -> None:
        """The step's loss; its value is read after the loop."""
        iteration, stage, kept = self.iteration, self.stage, loss.detach()

        def read() -> None:
            self.iteration, self.stage = iteration, stage
            self.add("value", name="loss", value=kept.item())

        self._unread.append(read)

    def finish(self) -> None:
        """Read what the GPU still owes."""
        if self.job.on_gpu:
            torch.cuda.synchronize()
        for read in self._unread:
            read()
        self._unread.clear()

    def select(self, record: str, stage: str = "measured") -> list[dict[str, Any]]:
        """The rows of one kind in one stage, in the order in which they were added."""
        return [row for row in self.rows if row["record"] == record and row["stage"] == stage]

    def per_iteration(self, record: str, field: str, stage: str = "measured") -> dict[int, list[Any]]:
        """One field of the rows of one kind, as a list for each iteration."""
        lists: dict[int, list[Any]] = {}
        for row in self.select(record, stage):
            lists.setdefault(row["iteration"], []).append(row[field])
        return lists


# --- training -------------------------------------------------------------------------------------------


def train(
    recorder: Recorder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[], torch.Tensor],
    *,
    buckets_from_logger: bool = False,
    after_step: Callable[[int], None] = lambda _: None,
) -> None:
    """Warm-up, the profiler's window, measured steps: the same loop for every model.

    Args:
        recorder: keeps the figures.
        model: the (wrapped) module.
        optimizer: over its parameters.
        loss_of: one forward pass, returning the loss.
        buckets_from_logger: take the bucket records from DDP's logging data, where no hook sees them.
        after_step: called outside the timed step with the number of the step just done.
    """

    def look(number: int) -> None:
        if isinstance(model, DistributedDataParallel):
            recorder.ddp_logger(model, buckets=buckets_from_logger)
        after_step(number)

    for _ in steps(recorder, model, after_step=look):
        recorder.loss(update(recorder, optimizer, loss_of))


def update(
    recorder: Recorder, optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """One update of the parameters, phase by phase; returns the loss."""
    with recorder.phase("forward"):
        loss = loss_of()
    with recorder.phase("backward"):
        loss.backward()
    with recorder.phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss


def steps(
    recorder: Recorder, model: nn.Module | None, *, after_step: Callable[[int], None] = lambda _: None
) -> Iterator[int]:
    """Number the steps of a run, each inside its range and its timing; yields once a step."""
    args = recorder.job.args
    counts = (args.warmup, args.capture_steps, args.steps)
    stages = [stage for stage, count in zip(STAGES, counts, strict=True) for _ in range(count)]
    with annotate.capture_window(args.warmup, args.capture_steps, model=model) as window:
        for number, stage in enumerate(stages):
            with window.step(number), recorder.step(number, stage):
                yield number
            after_step(number)
    recorder.finish()


def layout(ddp: DistributedDataParallel) -> tuple[list[int], list[int | None]]:
    """Bucket sizes in bytes, in launch order, and parameter counts (None where DDP does not say)."""
    data = ddp._get_ddp_logging_data()
    rebuilt = data.get("rebuilt_bucket_sizes") or ""
    sizes = [int(size) for size in (rebuilt or data["bucket_sizes"]).split(",")]
    if not rebuilt:
        return sizes, [None] * len(sizes)
    return sizes, [len(b.split()) for b in data["rebuilt_per_bucket_param_indices"].split(",")]


def has_rebuilt(ddp: DistributedDataParallel) -> int:
    """1 if DDP has replaced its first buckets by ones in the order of readiness, else 0."""
    return int(ddp._has_rebuilt_buckets)


SETTLE_S = 0.5
"""NCCL's watchdog looks every 100 ms for collectives that are done."""


def peak_memory(
    job: Job, train_once: Callable[[bool], tuple[Callable[[], object], Callable[[], object]]]
) -> dict[str, Any]:
    """GPU memory of steady steps with and without ``gradient_as_bucket_view``, in bytes.

    Beyond what was allocated before the model was built. ``peak`` is the largest in a step, wherever it occurs;
    ``after_backward`` what is held when all gradients exist, where a view saves the gradients' own memory.

    Args:
        job: this process's place in the job.
        train_once: given the flag, builds a model and returns what runs a step up to its gradients, and the rest.
    """
    names = [f"{name}_{what}_bytes" for name in _VIEWS for what in ("peak", "after_backward")]
    if not job.on_gpu:
        return {**dict.fromkeys(names), "reason": "no CUDA allocator on a CPU run"}
    found = []
    for view in _VIEWS.values():
        _settle(job)
        before = torch.cuda.memory_allocated()
        backward, update = train_once(view)
        for _ in range(3):
            backward()
            update()
        _settle(job)  # the rebuild held old and new buckets at once, with views or without
        torch.cuda.reset_peak_memory_stats()
        held = 0
        for _ in range(3):
            backward()
            held = max(held, torch.cuda.memory_allocated())
            update()
        torch.cuda.synchronize()
        found += [torch.cuda.max_memory_allocated() - before, held - before]
        del backward, update
    return dict(zip(names, found, strict=True))


_VIEWS = {"with_view": True, "without_view": False}


def _settle(job: Job) -> None:
    """Wait until nothing of earlier steps is held any more.

    A DDP module is a cycle. And torch's NCCL backend keeps a collective's tensors until its watchdog has seen it done
    *and* the next collective is called: without one, the last model's buckets count as the next one's start.
    """
    torch.cuda.synchronize()
    time.sleep(SETTLE_S)
    dist.all_reduce(torch.zeros(1, device=job.device))
    torch.cuda.synchronize()
    gc.collect()


# --- the summary ----------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the sorted values lie, linear between neighbours (as numpy does)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def figures(recorder: Recorder) -> list[dict[str, Any]]:
    """Median and tails of this rank's measured times, one entry for each name and clock."""
    times: dict[tuple[str, str], list[int]] = {}
    for row in recorder.select("time"):
        times.setdefault((row["name"], row["clock"]), []).append(row["time_ns"])
    return [
        {
            "name": name,
            "clock": clock,
            "count": len(values),
            "median_ns": round(percentile(values, 0.50)),
            "p95_ns": round(percentile(values, 0.95)),
            "p99_ns": round(percentile(values, 0.99)),
            "min_ns": min(values),
            "max_ns": max(values),
        }
        for (name, clock), values in sorted(times.items())
    ]


def digest(model: nn.Module) -> str:
    """A hash of every parameter's bytes, to compare replicas with."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def gathered(mine: Any) -> list[Any]:
    """``mine`` of every rank, in rank order, on every rank."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def check(name: str, expected: Any, found: Any) -> dict[str, Any]:
    """One thing the run itself verifies."""
    return {"name": name, "ok": expected == found, "expected": expected, "found": found}


def folder_for(job: Job, folder: Path) -> Path:
    """Make the output folder; refuse one that holds an earlier run.

    Raises:
        SystemExit: the folder has records already and ``--force`` was not given (on every rank).
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = any(gathered(any(folder.glob("records_rank*.jsonl")) or (folder / "summary.json").exists()))
    if held and not job.args.force:
        raise SystemExit(
            f"{folder.name}: holds the records of an earlier run; choose another --out or add --force"
        )
    return folder


def write(recorder: Recorder, folder: Path, mine: dict[str, Any], **shared: Any) -> bool:
    """Write this rank's records and, on rank 0, the summary of all ranks.

    Args:
        recorder: this rank's rows.
        folder: where to.
        mine: this rank's part of the summary; its ``checks`` decide the run's.
        shared: fields of the summary that are the same on every rank.

    Returns:
        Whether every check of every rank held (the same answer on every rank).
    """
    job = recorder.job
    replace(
        folder / f"records_rank{job.rank}.jsonl",
        "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in recorder.rows),
    )
    ranks = gathered({"rank": job.rank, **mine})
    failed = [f"rank {r['rank']}: {c['name']}" for r in ranks for c in r["checks"] if not c["ok"]]
    summary = {
        "workload": recorder.config,
        "world_size": job.world_size,
        "backend": job.backend,
        "device": torch.cuda.get_device_name(job.device) if job.on_gpu else "cpu",
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if job.on_gpu else None,
        "options": {k: v for k, v in sorted(vars(job.args).items()) if k not in ("out", "force")},
        "profiled": annotate.profiling(),
        "enough_samples": job.args.steps >= MIN_SAMPLES,
        **shared,
        "ranks": ranks,
        "failed_checks": failed,
        "ok": not failed,
    }
    if job.rank == 0:
        replace(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        for line in failed:
            print(f"{recorder.config}: check failed: {line}", flush=True)
        print(f"{recorder.config}: {'ok' if not failed else 'FAILED'}; {_headline(ranks)}", flush=True)
    return not failed


def replace(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written."""
    beside = path.with_name(path.name + ".partial")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def throughput(recorder: Recorder, per_step: int, unit: str) -> dict[str, Any]:
    """Samples or tokens per second of this rank, from its median measured step."""
    clock = "cuda_event" if recorder.job.on_gpu else "host"
    times = [r["time_ns"] for r in recorder.select("time") if r["name"] == "step" and r["clock"] == clock]
    return {"unit": f"{unit}/s", "clock": clock, "per_rank": per_step * 1e9 / percentile(times, 0.5)}


def _headline(ranks: list[dict[str, Any]]) -> str:
    """Step medians of the ranks, in words; an expected failure has none."""
    medians = [
        f"rank {r['rank']} {figure['median_ns'] / 1e6:.3f} ms ({figure['clock']})"
        for r in ranks
        for figure in r.get("figures", ())
        if figure["name"] == "step"
    ]
    return "step median " + ", ".join(medians) if medians else "no step was measured"
