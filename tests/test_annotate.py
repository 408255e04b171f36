"""Annotation: what a trace is told, when nothing is told, and that training stays what it was."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, require

import nsysddp.ddp.annotate as inside
from nsysddp import annotate
from nsysddp.model import markers
from nsysddp.model.errors import CaptureError, UsageError

HAS_TORCH = importlib.util.find_spec("torch") is not None
NSYS = shutil.which("nsys") or next(
    (str(p) for p in [Path("/opt/nsys/target-linux-x64/nsys")] if p.exists()), None
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test decides anew whether it is profiled."""
    monkeypatch.delenv("NSYSDDP_ANNOTATE", raising=False)
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    caches = (inside.profiling, inside._nvtx)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A profiled process; everything that it emits, in order."""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    lines: list[str] = []
    emitter = inside._Nvtx(
        push=lambda name: lines.append(f"push {name}"),
        pop=lambda: lines.append("pop"),
        mark=lambda name: lines.append(f"mark {name}"),
    )
    monkeypatch.setattr(inside, "_nvtx", lambda: emitter)
    monkeypatch.setattr(inside, "_profiler", lambda call: lines.append(call))
    monkeypatch.setattr(inside, "_barrier", lambda: lines.append("barrier"))
    return lines


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    """A process group of one gloo rank, in this process."""
    require("torch", HAS_TORCH)
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(body))
    return str(path)


def torchrun(path: str, ranks: int, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- costs nothing --------------------------------------------------------------------------------------


def test_importing_imports_neither_torch_nor_the_analyzer() -> None:
    code = "import sys, nsysddp.annotate; print([m for m in ('torch', 'polars', 'numpy', 'nvtx') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_process_that_is_not_profiled_emits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "_nvtx", lambda: pytest.fail("emitted"))
    with annotate.step(3), annotate.phase("forward"):
        annotate.mark_rank()

    def hook(state: object, bucket: object) -> None: ...

    assert annotate.bucket_ranges(hook) is hook
    annotate.register_comm_hook(object())  # would refuse a module that is no DDP


def test_a_range_of_a_process_that_is_not_profiled_makes_few_calls_and_nothing_new() -> None:
    """How long that takes is measured by bench/annotate.py; here is why it is short on any machine."""
    annotate.phase("forward")  # whether this process is profiled is decided once
    called: list[str] = []
    kept = gc.isenabled()
    gc.disable()
    try:
        blocks = sys.getallocatedblocks()
        for _ in range(1000):
            with annotate.phase("forward"):
                pass
        grown = sys.getallocatedblocks() - blocks
        sys.setprofile(lambda _frame, event, _argument: called.append(event) if "call" in event else None)
        with annotate.phase("forward"):
            pass
        sys.setprofile(None)
    finally:
        sys.setprofile(None)
        if kept:
            gc.enable()
    assert len(called) <= 6, called
    assert grown < 100, "a thousand ranges leave nothing behind"
    assert annotate.phase("forward") is annotate.phase("backward")


@pytest.mark.parametrize(
    ("forced", "session", "expected"),
    [(None, None, False), (None, "7", True), ("0", "7", False), ("1", None, True)],
)
def test_profiled_means_started_by_nsys_unless_said_otherwise(
    monkeypatch: pytest.MonkeyPatch, forced: str | None, session: str | None, expected: bool
) -> None:
    for name, value in (("NSYSDDP_ANNOTATE", forced), ("NSYS_PROFILING_SESSION_ID", session)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert annotate.profiling() is expected


def test_a_meaningless_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYSDDP_ANNOTATE", "yes")
    with pytest.raises(UsageError, match="set it to 1 or 0"):
        annotate.profiling()


def test_without_torch_and_nvtx_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYSDDP_ANNOTATE", "1")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with annotate.step(0), annotate.phase("data"):
        inside._nvtx().mark("x")


# --- what is said ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fwd", "Forward", "", "step"])
@pytest.mark.parametrize("profiled", ["0", "1"])
def test_a_phase_that_the_analyzer_does_not_know_is_refused_profiled_or_not(
    monkeypatch: pytest.MonkeyPatch, name: str, profiled: str
) -> None:
    monkeypatch.setenv("NSYSDDP_ANNOTATE", profiled)
    with pytest.raises(UsageError, match="use one of data, forward, backward, optimizer"):
        annotate.phase(name)


def test_the_window_is_opened_between_barriers_and_closed_between_barriers(said: list[str]) -> None:
    require("torch", HAS_TORCH)
    with annotate.capture_window(start=1, steps=2) as window:
        for number in range(4):
            with window.step(number), annotate.phase("forward"):
                said.append("work")
    step = [[f"push step {n}", "push forward", "work", "pop", "pop"] for n in range(4)]
    who = "mark " + markers.rank_mark(inside._who_am_i())
    assert said == [
        *step[0],
        *("barrier", "cudaProfilerStart", "barrier", who),
        *step[1],
        *step[2],
        *("barrier", "cudaProfilerStop", "barrier"),
        # nsys can still collect for a moment: a step cut short there must not look like a step
        *("push forward", "work", "pop"),
    ]


def test_a_loop_that_ends_inside_the_window_closes_it(said: list[str]) -> None:
    require("torch", HAS_TORCH)
    with annotate.capture_window(start=1, steps=5) as window:
        for number in range(3):
            with window.step(number):
                pass
    assert said[-3:] == ["barrier", "cudaProfilerStop", "barrier"]


def test_a_loop_that_never_reaches_the_window_is_an_error(said: list[str]) -> None:
    require("torch", HAS_TORCH)
    with (
        pytest.raises(CaptureError, match="before step 5, so nothing was captured"),
        annotate.capture_window(start=5, steps=1) as window,
        window.step(0),
    ):
        pass
    assert "cudaProfilerStart" not in said


def test_a_step_that_fails_stops_the_profiler_without_a_barrier(said: list[str]) -> None:
    require("torch", HAS_TORCH)
    with (
        pytest.raises(ZeroDivisionError),
        annotate.capture_window(start=0, steps=3) as window,
        window.step(0),
    ):
        raise ZeroDivisionError
    assert said[-2:] == ["pop", "cudaProfilerStop"]


@pytest.mark.parametrize(("start", "steps"), [(-1, 1), (0, 0)])
def test_a_window_of_no_steps_is_refused(start: int, steps: int) -> None:
    with pytest.raises(UsageError):
        annotate.capture_window(start, steps)


# --- DDP ------------------------------------------------------------------------------------------------


def _train(model: Any, window: Any, steps: int) -> None:
    import torch

    for number in range(steps):
        with window.step(number):
            model(torch.ones(2, 4)).sum().backward()


def test_a_window_before_the_rebuild_is_refused(said: list[str], alone: Any) -> None:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    model = nn.Sequential(DistributedDataParallel(nn.Linear(4, 4)))
    with (
        pytest.raises(CaptureError, match="not rebuilt its buckets before step 1"),
        annotate.capture_window(start=1, steps=1, model=model) as window,
    ):
        _train(model, window, 3)
    assert "cudaProfilerStart" not in said
    with annotate.capture_window(start=1, steps=1, model=model) as window:
        _train(model, window, 2)  # its second forward of all is over by then
    assert "cudaProfilerStart" in said


def test_ddp_that_never_rebuilds_is_not_waited_for(said: list[str], alone: Any) -> None:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Linear(4, 4), find_unused_parameters=True)
    with annotate.capture_window(start=0, steps=1, model=model) as window:
        _train(model, window, 1)
    assert "cudaProfilerStart" in said


def test_accumulation_marks_buckets_only_where_gradients_are_synchronised(
    said: list[str], alone: Any
) -> None:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(nn.Linear(4, 4))
    annotate.register_comm_hook(ddp)
    with annotate.step(0):
        for micro in range(3):
            with ddp.no_sync() if micro < 2 else annotate.phase("data"):
                with annotate.phase("forward"):
                    loss = ddp(torch.ones(2, 4)).sum()
                with annotate.phase("backward"):
                    loss.backward()
    bucket = markers.bucket_mark(markers.BucketMark(index=0, bytes=80, parameters=2, is_last=True))
    micro_step = ["push forward", "pop", "push backward"]
    assert said == [
        *("push step 0", *micro_step, "pop", *micro_step, "pop"),
        *("push data", *micro_step, f"push {bucket}", "pop", "pop", "pop", "pop"),
    ]


def test_a_hook_is_kept_with_its_state(said: list[str], alone: Any) -> None:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def negate(state: list[int], bucket: Any) -> Any:
        state.append(bucket.index())
        future: Any = torch.futures.Future()
        future.set_result(-bucket.buffer())
        return future

    negate.__annotations__.clear()  # DDP refuses string annotations
    ddp, state = DistributedDataParallel(nn.Linear(4, 1, bias=False)), []
    annotate.register_comm_hook(ddp, state, negate)
    ddp(torch.ones(1, 4)).sum().backward()
    assert state == [0]
    assert ddp.module.weight.grad.tolist() == [[-1.0] * 4]
    assert ddp._comm_hooks[0][0].__qualname__ == negate.__qualname__


def test_what_has_no_buckets_or_a_hook_already_is_refused(said: list[str], alone: Any) -> None:
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    with pytest.raises(UsageError, match="not Linear; leave this call out"):
        annotate.register_comm_hook(nn.Linear(4, 4))
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    with pytest.raises(UsageError, match="state came without the hook"):
        annotate.register_comm_hook(ddp, state=object())
    ddp.register_comm_hook(None, allreduce_hook)
    with pytest.raises(UsageError, match="has a communication hook already"):
        annotate.register_comm_hook(ddp)


TRAIN = """
    import os, torch, torch.distributed as dist
    # One rank of the job is profiled, the others are not: nobody may hang, and all must train alike.
    os.environ["NSYSDDP_ANNOTATE"] = str(int(os.environ["RANK"] == "0"))
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from nsysddp import annotate

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    def trained(annotated, view):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.01, gradient_as_bucket_view=view)
        if annotated:
            annotate.register_comm_hook(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        data = torch.randn(8, 64, generator=torch.Generator().manual_seed(dist.get_rank() + 1))
        with annotate.capture_window(3, 2, model=ddp) as window:
            for number in range(6):
                with window.step(number):
                    ddp(data).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=not view)
        return torch.cat([p.detach().flatten() for p in ddp.parameters()])

    for view in (False, True):
        plain, marked = trained(False, view), trained(True, view)
        if EXACT:
            assert torch.equal(plain, marked), (plain - marked).abs().max()
        else:
            torch.testing.assert_close(plain, marked, rtol=1e-5, atol=1e-6)
    dist.destroy_process_group()
    print("alike", flush=True)
    os._exit(0)  # on a busy machine threads of torch outlive the interpreter and abort it, which is not what is tested
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranges_change_no_gradient(tmp_path: Path, ranks: int) -> None:
    """Bit by bit for two ranks; for three, dividing and multiplying by the inverse may differ in the last bit."""
    require("torch", HAS_TORCH)
    body = TRAIN.replace("EXACT", str(ranks == 2))
    assert torchrun(script(tmp_path, body), ranks).count("alike") == ranks


def test_a_real_nsys_records_what_a_plain_loop_says(tmp_path: Path) -> None:
    require("nsys", NSYS is not None)
    require("nvtx", importlib.util.find_spec("nvtx") is not None)
    loop = """
        from nsysddp import annotate
        for number in range(2):
            with annotate.step(number), annotate.phase("forward"):
                pass
        annotate.mark_rank()
    """
    report = tmp_path / "loop"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in (
        [
            NSYS,
            "profile",
            "--trace=nvtx",
            "--sample=none",
            f"--output={report}",
            sys.executable,
            script(tmp_path, loop),
        ],
        [NSYS, "export", "--type=sqlite", f"--output={report}.sqlite", f"{report}.nsys-rep"],
    ):
        subprocess.run(command, env=environment, capture_output=True, timeout=90, check=True)
    with sqlite3.connect(f"{report}.sqlite") as connection:
        rows = connection.execute(
            "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
            " WHERE eventType IN (59, 34) ORDER BY start"
        ).fetchall()
    mark = markers.rank_mark(markers.RankMark(0, 1, 0, 0))
    assert [row[0] for row in rows] == ["step 0", "forward", "step 1", "forward", mark]
