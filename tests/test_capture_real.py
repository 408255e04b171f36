"""The true path on CPU ranks: a real nsys, real torch and gloo, real NVTX ranges. No fake anywhere."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from conftest import ROOT, require


def real_nsys() -> str:
    """nsys from PATH, or from where ``.ci/install-nsys.sh`` puts it."""
    installed = Path("/opt/nsys/target-linux-x64/nsys")
    found = shutil.which("nsys") or (str(installed) if installed.exists() else None)
    require("nsys", found is not None)
    require("torch", importlib.util.find_spec("torch") is not None)
    require("nvtx", importlib.util.find_spec("nvtx") is not None)
    assert found is not None
    return found


def nsysddp(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    return subprocess.run(
        [sys.executable, "-c", "from nsysddp.cli import main; main()", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SOME_TOKEN": "s3cret-env"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def step_ranges(export: Path) -> dict[int, set[str]]:
    """Names of the step ranges of each process, by process."""
    with closing(sqlite3.connect(export)) as connection:
        events = connection.execute(
            "SELECT globalTid >> 24, coalesce(text, value) FROM NVTX_EVENTS "
            "LEFT JOIN StringIds ON StringIds.id = textId WHERE eventType = 59"
        ).fetchall()
    found: dict[int, set[str]] = {}
    for process, text in events:
        if text.startswith("step "):
            found.setdefault(process, set()).add(text)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("per_rank", [False, True])
def test_gloo_ranks_under_real_nsys(tmp_path: Path, per_rank: bool) -> None:
    words = ["delay_cap4", "--backend", "gloo", "--nproc", "2", "--steps", "2", "--warmup", "3"]
    words += ["--capture-steps", "2", "--nsys", real_nsys(), *(["--per-rank"] if per_rank else [])]
    done = nsysddp("capture", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Overlap cannot be proved on CPU" in done.stdout

    folder = tmp_path / "captures" / "delay_cap4-1"
    exports = sorted(folder.glob("report*.sqlite"))
    assert [path.stem for path in exports] == (["report_rank0", "report_rank1"] if per_rank else ["report"])
    ranges = {process: names for path in exports for process, names in step_ranges(path).items()}
    assert len(ranges) == 2
    assert all({"step 3", "step 4"} <= names for names in ranges.values()), (
        "the window's steps, on both ranks"
    )

    text = (folder / "run.json").read_text()
    content = json.loads(text)
    assert content["outcome"]["kind"] == "cpu_only"
    assert content["workload"]["ok"] is True
    assert content["workload"]["layout_bytes"] == [4 << 20] * 12
    assert content["versions"]["torch"]
    assert content["versions"]["nsys"][:4].isdecimal()
    assert "s3cret" not in text
    assert set(content["files"]) >= {"summary.json", "records_rank0.jsonl", "records_rank1.jsonl", "log.txt"}


@pytest.mark.slow
def test_rank_that_hangs_in_a_collective_under_real_nsys(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(
        "import time\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "def oversleep():\n"
        "    time.sleep(1000)\n"
        "oversleep() if dist.get_rank() == 1 else dist.barrier()\n"
    )
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    options = ["--backend", "gloo", "--timeout", "20", "--nsys", real_nsys()]
    done = nsysddp("capture", *options, "--", *launch, cwd=tmp_path)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert "2 of 2 ranks still ran after 20 s" in line
    assert "rank 1 in oversleep (stuck.py:5)" in line
    assert "rank 0 in barrier" in line
    assert not list((tmp_path / "captures" / "stuck-1").glob("report*"))
    family = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(script) not in family


@pytest.mark.slow
def test_real_nsys_and_a_program_that_fails(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('loss is nan')\n")
    options = ["--backend", "gloo", "--nsys", real_nsys()]
    done = nsysddp("capture", *options, "--", sys.executable, str(script), cwd=tmp_path)
    assert done.returncode == 1
    assert "the workload ended with exit code 1: ValueError: loss is nan" in done.stderr


@pytest.mark.slow
def test_sweep_on_cpu_ranks_compares_steps_and_claims_nothing_about_gpus(tmp_path: Path) -> None:
    words = ["--bucket-cap", "1,25", "--repeat", "1", "--backend", "gloo", "--steps", "3", "--warmup", "3"]
    done = nsysddp("sweep", *words, "--capture-steps", "1", "--nsys", real_nsys(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no GPU events" in done.stdout
    document = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [cap["cap_mib"] for cap in document["caps"]] == [1, 25]
    assert all(cap["correct"] and cap["is_tied"] is None and cap["median_ns"] > 0 for cap in document["caps"])
    assert document["ranks"] == []
    assert "--repeat 3" in document["conclusion"]
    again = nsysddp("sweep", *words, "--nsys", real_nsys(), cwd=tmp_path)
    assert again.returncode == 2
    assert "--force" in again.stderr
