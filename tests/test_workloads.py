"""The workloads really run on two gloo ranks, and their own checks can fail."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import ROOT, require

from nsysddp.capture import records
from nsysddp.model.errors import CaptureError

HAS_TORCH = importlib.util.find_spec("torch") is not None
WORKLOADS = ROOT / "workloads"
MIB = 1 << 20
STEPS = 2

COUNTS = {
    "fine1_cap4": 12,
    "coarse4_cap4": 12,
    "coarse4_cap16": 3,
    "coarse4_cap64": 1,
    "delay_cap4": 12,
    "delay_cap64": 1,
    "dynamic_unused": 4,
    "static_unused": 4,
}
"""Bucket records an iteration and rank: 49 in all."""


def launch(*arguments: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    require("torch", HAS_TORCH)
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", *arguments),
        ],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{WORKLOADS}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


SHORT = ("--steps", str(STEPS), "--warmup", "3", "--capture-steps", "1", "--backend", "gloo")


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("matrix")
    script = str(WORKLOADS / "ddp_branches.py")
    done = launch(script, *SHORT, "--out", str(out), "--config", "all", "--host-delay-ms", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return out


OTHERS = {
    "caps": ("gpt_ddp", "--bucket-cap", "0.1", "25", "--repeat", "2", "--comm-hook", "none", "--memory"),
    "bf16": ("gpt_ddp", "--comm-hook", "bf16"),
    "fp16": ("gpt_ddp", "--comm-hook", "fp16"),
    "fsdp": ("gpt_fsdp",),
    "straggler": ("straggler", "--late-rank", "0", "--host-delay-ms", "200"),
    "host_gap": ("host_gap", "--slow-rank", "0", "--sleep-ms", "20"),
    "no_overlap": ("no_overlap",),
}
"""Folder to workload and its options."""

IN_TURN = """
    import importlib, json, sys
    import torch.distributed as dist

    dist.init_process_group("gloo")
    leave, dist.destroy_process_group = dist.destroy_process_group, lambda: None
    dist.init_process_group = lambda *_, **__: None
    for folder, workload, *words in json.loads(sys.argv[1]):
        sys.argv = [workload, "--out", folder, *words]
        if importlib.import_module(workload).main():
            sys.exit(f"{workload} {words} failed")
    leave()
"""


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their ``main`` in one launch, since importing torch is what takes long."""
    out = tmp_path_factory.mktemp("others")
    job = out / "job.py"
    job.write_text(textwrap.dedent(IN_TURN))
    plan = [[str(out / folder), workload, *SHORT, *words] for folder, (workload, *words) in OTHERS.items()]
    done = launch(str(job), json.dumps(plan))
    assert done.returncode == 0, done.stdout + done.stderr
    return out


# --- the nine configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNTS)
def test_a_configuration_gives_its_known_layout(matrix: Path, name: str) -> None:
    found = summary(matrix / name)
    assert found["ok"]
    assert not found["failed_checks"]
    assert len(found["layout_bytes"]) == COUNTS[name]
    assert sum(found["layout_bytes"]) == (52 if "unused" in name else 48) * MIB
    assert found["ready_order"] == list(range(48 if name.startswith("fine") else 12))[::-1]
    assert found["has_rebuilt"] == (name != "dynamic_unused")
    assert found["ranks"][0]["replica"] == found["ranks"][1]["replica"]
    frame = records.read_records(matrix / name)
    buckets = frame.filter(pl.col("record") == "bucket", pl.col("stage") == "measured")
    assert len(buckets) == COUNTS[name] * STEPS * 2
    assert buckets.group_by("rank", "iteration").agg(pl.col("is_last").sum())[
        "is_last"
    ].unique().to_list() == [1]
    for (_, _), step in buckets.group_by("rank", "iteration", maintain_order=True):
        assert step["bytes"].to_list() == found["layout_bytes"]
        assert step["time_ns"].is_sorted()


def test_all_configurations_together_give_49_records_an_iteration_and_rank(matrix: Path) -> None:
    found = json.loads((matrix / "matrix.json").read_text())
    assert found["ok"]
    assert found["found"] == 49 * STEPS * 2
    assert sum(COUNTS.values()) == 49


def test_the_undetected_unused_parameter_fails_on_every_rank_as_expected(matrix: Path) -> None:
    found = summary(matrix / "undetected_unused")
    assert found["expected_failure"] is True
    assert len(found["ranks"]) == 2
    for rank in found["ranks"]:
        assert rank["error"].startswith("Expected to have finished reduction in the prior iteration")


def test_a_delay_is_seen_by_the_hooks(matrix: Path) -> None:
    """With 12 buckets the first is launched 11 delays before the last; with one there is nothing between."""
    buckets = records.read_records(matrix / "delay_cap4").filter(
        pl.col("record") == "bucket", pl.col("stage") == "measured"
    )
    for _, step in buckets.group_by("rank", "iteration"):
        assert step["time_ns"].max() - step["time_ns"].min() > 11e6


# --- the other workloads --------------------------------------------------------------------------------


def test_gpt_ddp_runs_caps_in_turn_and_takes_buckets_from_ddp(others: Path) -> None:
    out = others / "caps"
    folders = sorted(f.name for f in out.iterdir())
    assert folders == ["cap0.1_repeat0", "cap0.1_repeat1", "cap25_repeat0", "cap25_repeat1"]
    small, large = summary(out / "cap0.1_repeat0"), summary(out / "cap25_repeat1")
    assert small["ok"]
    assert large["ok"]
    assert len(small["layout_bytes"]) > len(large["layout_bytes"]) == 1
    assert sum(small["layout_bytes"]) == 4 * small["parameters"]
    assert small["ranks"][0]["replica"] == summary(out / "cap0.1_repeat1")["ranks"][0]["replica"]
    assert small["ranks"][0]["memory"]["with_view_peak_bytes"] is None  # no GPU here, and no figure made up
    assert small["ranks"][0]["throughput"]["unit"] == "tokens/s"
    frame = records.read_records(out / "cap0.1_repeat0")
    clocks = frame.filter(pl.col("record") == "bucket")["clock"].unique().to_list()
    assert clocks == ["ddp_logger"]
    assert not frame.filter(pl.col("record") == "ready", pl.col("stage") == "measured").height


def test_gpt_fsdp_keeps_a_share_on_each_rank(others: Path) -> None:
    found = summary(others / "fsdp")
    assert found["ok"]
    assert sum(rank["shard_parameters"] for rank in found["ranks"]) == found["parameters"]


def test_straggler_names_the_late_rank(others: Path) -> None:
    found = summary(others / "straggler")
    assert found["ok"]
    assert found["late_rank"] == 0


def test_a_host_gap_makes_every_step_as_long(others: Path) -> None:
    found = summary(others / "host_gap")
    assert found["ok"]
    for rank in found["ranks"]:
        (step,) = [f for f in rank["figures"] if (f["name"], f["clock"]) == ("step", "host")]
        assert step["min_ns"] >= 20e6


def test_no_overlap_computes_what_one_rank_computes(others: Path) -> None:
    assert summary(others / "no_overlap")["ok"]


@pytest.mark.parametrize("held", ["records_rank1.jsonl", "summary.json"])
def test_an_earlier_run_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    require("torch", HAS_TORCH)
    monkeypatch.syspath_prepend(str(WORKLOADS))
    import common

    monkeypatch.setattr(common, "gathered", lambda mine: [mine])
    job: Any = SimpleNamespace(args=SimpleNamespace(force=False))
    assert common.folder_for(job, tmp_path / "new").is_dir()
    (tmp_path / held).write_text("")
    with pytest.raises(SystemExit, match="holds the records of an earlier run"):
        common.folder_for(job, tmp_path)
    job.args.force = True
    assert common.folder_for(job, tmp_path) == tmp_path


@pytest.mark.parametrize(
    "name", ["ddp_branches", "gpt_ddp", "gpt_fsdp", "straggler", "host_gap", "no_overlap"]
)
def test_each_states_its_launch_line_and_the_right_answer(name: str) -> None:
    text = (WORKLOADS / f"{name}.py").read_text()
    top = text.split('"""')[1]
    assert f"torchrun --nproc-per-node 2 workloads/{name}.py" in top
    assert "nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi" in top
    assert "What the analysis must say" in top
    imported = set(re.findall(r"^(?:from|import) (nsysddp\S*)", text, re.MULTILINE))
    assert imported <= {"nsysddp"}


# --- hooks ----------------------------------------------------------------------------------------------

BROKEN = """
    import torch, torch.distributed as dist
    import common, hooks
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from types import SimpleNamespace

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = SimpleNamespace(rank=rank, world_size=dist.get_world_size(), backend="gloo", on_gpu=False)

    def right(state, bucket):
        future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])
    def undivided(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])
    def own(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    def double(state, bucket):
        return right(state, bucket).then(lambda done: done.value().double())
    def shorter(state, bucket):
        return right(state, bucket).then(lambda done: done.value()[:-1])
    def tensor(state, bucket):
        return bucket.buffer()

    for hook in (right, undivided, own, double, shorter, tensor):
        ddp = DistributedDataParallel(nn.Linear(8, 8))
        contract = hooks.Contract(job, hook, "allreduce")
        def through(state, bucket):
            return contract(state, bucket)
        ddp.register_comm_hook(None, through)
        said = "kept"
        try:
            try:
                ddp(torch.full((2, 8), rank + 1.0)).sum().backward()
            except hooks.HookContractError:
                raise
            except RuntimeError:
                pass  # DDP itself stumbles over some of these after the contract has seen them
            contract.verify(0)
        except hooks.HookContractError as error:
            said = str(error)
        if rank == 0:
            print(f"{hook.__name__}: {said}", flush=True)
    dist.barrier()
    import os; os._exit(0)  # reducers left in the middle of a step have no orderly end
"""


def test_a_broken_hook_is_caught(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(BROKEN))
    done = launch(str(job))
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said["right"] == "kept"
    assert "2.000 times the average" in said["undivided"]
    assert "the division by the world size is missing" in said["undivided"]
    assert "relative error" in said["own"]
    assert "returned torch.float64" in said["double"]
    assert "of shape (71,) for a bucket of torch.float32 of shape (72,)" in said["shorter"]
    assert "returned Tensor, not a Future" in said["tensor"]


@pytest.mark.parametrize("hook", ["bf16", "fp16"])
def test_a_compressing_hook_averages_up_to_its_rounding(others: Path, hook: str) -> None:
    found = summary(others / hook)
    assert found["ok"]
    assert 1e-5 < found["hook_largest_relative_error"] < 1e-2


def test_fp16_may_round_small_gradients_but_not_lose_the_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 2^-14 fp16 has a fixed spacing, so its relative error grows with smaller gradients."""
    require("torch", HAS_TORCH)
    monkeypatch.syspath_prepend(str(WORKLOADS))
    import hooks
    import torch

    job: Any = SimpleNamespace(world_size=2)
    contract = hooks.Contract(job, lambda *_: None, "fp16")  # type: ignore[arg-type,return-value]
    average = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 3e-6
    # What the hook does: every rank casts and divides, then the ranks add up.
    halves = [(2 * average * share).half() / 2 for share in (0.25, 0.75)]
    rounded = (halves[0] + halves[1]).float()
    assert float((rounded - average).norm() / average.norm()) > hooks.TOLERANCE["fp16"]
    assert contract._problem(average, rounded, low_rank=False) is None
    undivided = contract._problem(average, 2 * rounded, low_rank=False)
    assert undivided is not None
    assert "the division by the world size is missing" in undivided
    tiny = contract._problem(average / 100, rounded / 100, low_rank=False)
    assert tiny is not None
    assert "too small for fp16" in tiny


def test_powersgd_on_gloo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch", HAS_TORCH)
    monkeypatch.syspath_prepend(str(WORKLOADS))
    import hooks

    recorder: Any = SimpleNamespace(job=SimpleNamespace(backend="gloo"))
    with pytest.raises(SystemExit, match="needs --backend nccl"):
        hooks.install(recorder, SimpleNamespace(), "powersgd")  # type: ignore[arg-type]


def test_percentiles_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch", HAS_TORCH)
    monkeypatch.syspath_prepend(str(WORKLOADS))
    import common

    values = np.random.default_rng(0).integers(0, 1000, 41).tolist()
    for share in (0.0, 0.5, 0.95, 0.99, 1.0):
        assert common.percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))


# --- records as a frame ---------------------------------------------------------------------------------


def test_the_summary_and_the_frame_agree(matrix: Path, tmp_path: Path) -> None:
    folder = matrix / "coarse4_cap4"
    out = records.to_parquet(folder, tmp_path / "records.parquet")
    frame = pl.read_parquet(out)
    assert frame.schema == pl.Schema(records.SCHEMA)
    assert frame.equals(records.read_records(folder))
    table = records.summarize(frame)
    told = [{"rank": r["rank"], **figure} for r in summary(folder)["ranks"] for figure in r["figures"]]
    assert len(told) == len(table) == 8  # two ranks, a step and three phases, the host's clock
    for row, figure in zip(table.iter_rows(named=True), told, strict=True):
        assert all(
            row[key] == pytest.approx(value, abs=1) for key, value in figure.items() if key[-3:] == "_ns"
        )
        assert {key: row[key] for key in ("rank", "name", "clock", "count")} == {
            key: figure[key] for key in ("rank", "name", "clock", "count")
        }


ROW = {"config": "c", "rank": 0, "world_size": 1, "iteration": 0, "stage": "measured", "record": "time"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("records_rank0.jsonl", "not json\n", "not a file of JSON lines"),
        ("records_rank0.jsonl", '{"rank":0,"iterat', "not a file of JSON lines"),
        ("records_rank0.jsonl", "", "not a file of JSON lines"),
        ("records_rank0.jsonl", json.dumps({**ROW, "speed": 1}), "unknown fields speed"),
        ("records_rank0.jsonl", json.dumps({"rank": 0}), "records without config"),
        ("records_rank0.jsonl", json.dumps({**ROW, "time_ns": "fast"}), "time_ns is String, not Int64"),
        ("records_rank0.jsonl", json.dumps({**ROW, "clock": "sundial"}), "clock sundial"),
        ("records_rank1.jsonl", json.dumps(ROW), "another rank than its name says"),
        (
            "records_rank0.jsonl",
            json.dumps({**ROW, "world_size": 2}),
            "ranks [0] in 1 files, of a world of 2",
        ),
        ("other.jsonl", "", "no records_rank*.jsonl"),
    ],
)
def test_records_that_are_none_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CaptureError, match=re.escape(message)):
        records.to_parquet(tmp_path)
    assert not list(tmp_path.glob("*.parquet*"))
