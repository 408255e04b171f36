"""Runs under fake nsys programs: every class of failure, what is kept of it, and that nothing survives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from builder import Export
from click.testing import CliRunner
from conftest import ROOT
from folders import as_folder

from nsysddp.capture import failures, folder, provenance, run, tool
from nsysddp.capture.command import Settings
from nsysddp.capture.failures import Failure
from nsysddp.capture.plan import Plan
from nsysddp.cli.capture import command as capture_command
from nsysddp.ingest.columnar import is_export
from nsysddp.model.errors import AnalysisError, NsysddpError, UsageError

VERSION = "2025.3.1.90-253135822126v0"
PROFILE_OPTIONS = (
    "--trace --sample --cpuctxsw --cuda-graph-trace --capture-range --capture-range-end --output "
    "--gpu-metrics-devices"
)

FAKE = """\
#!/bin/sh
# profile: run the program, then do as PROFILE says; export: do as EXPORT says
case "$1" in
  --version) echo "NVIDIA Nsight Systems version {version}"; exit ;;
esac
if [ "$2" = --help ]; then
  [ "$1" = profile ] && for option in {profile_options}; do echo "	$option="; done
  [ "$1" = export ] && echo "	-t, --type=" && echo "	--include-blobs="
  exit
fi
mode=$1; shift; out=
for word in "$@"; do case "$word" in --output=*) out=${{word#--output=}} ;; esac; done
if [ "$mode" = profile ]; then
  while :; do case "$1" in --*) shift ;; *) break ;; esac; done
  {profile_before}
  "$@"; code=$?
  {profile_after}
  exit $code
fi
{export}
"""

WRITES_REPORT = 'echo recorded > "$out.nsys-rep"; echo "Generated: $out.nsys-rep"'


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., str]:
    """Write a fake nsys with the given behaviour; by default a good one whose export is ``export.sqlite``."""
    export = tmp_path / "export.sqlite"
    drawing = Export(unit="ms")
    for device in (0, 1):
        rank = drawing.process(pid=100 + device, device=device)
        rank.range("step 0", 0, 100)
        rank.kernel("sgemm", stream=7, at=(0, 50))
        rank.nccl("AllReduce", stream=17, at=(20, 60), bytes=4 << 20, communicator=0xABC)
    drawing.write(export)

    def write(
        *,
        version: str = VERSION,
        profile_options: str = PROFILE_OPTIONS,
        before: str = "",
        after: str = WRITES_REPORT,
        export_does: str = f'cp "{export}" "$out"',
    ) -> str:
        path = tmp_path / "nsys"
        path.write_text(
            FAKE.format(
                version=version,
                profile_options=profile_options,
                profile_before=before,
                profile_after=after,
                export=export_does,
            )
        )
        path.chmod(0o755)
        return str(path)

    return write


MACHINE = provenance.Machine(
    {"python": "3", "torch": "2", "cuda": None, "nccl": None, "driver": None}, (), None
)


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Plan]:
    """A capture of a small Python program under the given nsys."""

    def make(nsys: str | None, program: str, *, settings: Settings | None = None, ranks: int = 1) -> Plan:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(program))
        launcher = (
            tmp_path / "torchrun"
        )  # named so that its options are understood; starts ranks, waits for all
        launcher.write_text(LAUNCHER.format(python=sys.executable))
        launcher.chmod(0o755)
        target = (str(launcher), f"--nproc-per-node={ranks}", str(script))
        found = tool.inspect_nsys(nsys) if nsys else None
        folder = tmp_path / "captures" / "train-1"
        return Plan("train", 1, folder, target, settings or Settings(backend="gloo"), None, found)

    return make


LAUNCHER = """\
#!{python}
import os, subprocess, sys, time
ranks = int(sys.argv[1].split("=")[1])
started = [
    subprocess.Popen([{python!r}, *sys.argv[2:]], env=dict(os.environ, RANK=str(rank))) for rank in range(ranks)
]
while None in (codes := [one.poll() for one in started]) and not any(codes):
    time.sleep(0.02)
for rank, code in enumerate(codes):
    if code:
        [one.kill() for one in started]
        print("E1129 18:41:16.553000 9751 torch/distributed/elastic/multiprocessing/api.py:984] failed", flush=True)
        print("Root Cause (first observed failure):\\n[0]:\\n  host      : secret-host\\n"
              f"  rank      : {{rank}} (local_rank: {{rank}})\\n  exitcode  : {{code}} (pid: 17)", flush=True)
        sys.exit(1)
"""
LAUNCHER = LAUNCHER.replace("{python!r}", "'{python}'")


def capture(plan: Plan, *, timeout_s: float = 60, force: bool = False) -> run.Captured:
    return run.capture(plan, MACHINE, timeout_s=timeout_s, force=force)


def failure(plan: Plan, *, timeout_s: float = 60) -> Failure:
    """The failure of a capture; it is one line, of a known class, says what to do, and run.json agrees."""
    with pytest.raises(Failure) as caught:
        capture(plan, timeout_s=timeout_s)
    found = caught.value
    assert found.kind in failures.KINDS
    assert "\n" not in str(found)
    assert found.do
    assert not list(plan.folder.parent.rglob("*.sqlite")), "a half or stale export is left"
    if plan.folder.exists():
        assert record(plan)["outcome"]["kind"] == found.kind
    return found


def record(plan: Plan) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((plan.folder / "run.json").read_text())
    return content


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


# --- a run that goes well -----------------------------------------------------------------------------------


def test_good_cpu_capture_is_exported_and_says_that_overlap_is_not_proved(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    made = plan(fake(), "print('trained')", ranks=2)
    captured = capture(made)
    assert captured.result is None
    assert "cannot be proved on CPU" in captured.verdict
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "README.md",
        "log.txt",
        "report.nsys-rep",
        "report.sqlite",
        "run.json",
    ]
    content = record(made)
    assert content["outcome"]["kind"] == "cpu_only"
    assert [step["exit_code"] for step in content["outcome"]["exit_states"]] == [0, 0]
    assert set(content["files"]) == {"README.md", "log.txt", "report.nsys-rep", "report.sqlite"}
    assert "cannot be proved on CPU" in (made.folder / "README.md").read_text()
    assert (made.folder / "log.txt").read_text().count("trained") == 2


def test_an_export_can_be_a_folder_of_parquet_files(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    fake()
    as_folder(tmp_path / "export.sqlite", tmp_path / "export_pqtdir")
    settings = Settings(backend="gloo", export="parquetdir")
    made = plan(fake(export_does=f'cp -r "{tmp_path}/export_pqtdir" "$out"'), "", settings=settings)
    captured = capture(made)
    assert [path.name for path in captured.exports] == ["report_pqtdir"]
    assert is_export(made.folder / "report_pqtdir")
    assert [path.name for path in made.folder.iterdir() if path.name.startswith(".")] == []
    assert "report_pqtdir/StringIds.parquet" in record(made)["files"]
    assert any("--type=parquetdir" in word for argv in record(made)["command"]["export"] for word in argv)
    assert "nsysddp analyze report_pqtdir" in (made.folder / "README.md").read_text()
    assert [path.name for path in capture(made, force=True).exports] == ["report_pqtdir"]  # replaces its own


def test_an_unfinished_folder_is_removed(fake: Callable[..., str], plan: Callable[..., Plan]) -> None:
    settings = Settings(backend="gloo", export="parquetdir")
    broken = 'mkdir "$out"; echo half > "$out/StringIds.parquet"; echo no space; exit 1'
    made = plan(fake(export_does=broken), "", settings=settings)
    assert failure_keeping_export(made).kind == "export_failed"
    assert not [path for path in made.folder.iterdir() if path.is_dir()]


def test_run_json_keeps_the_environment_and_the_output_of_the_program_out(
    fake: Callable[..., str], plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret-env")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    made = plan(fake(), "import sys; print('s3cret-out'); sys.exit('s3cret-err')")
    made = replace(made, target=(*made.target, "--token", "s3cret-arg"))
    failure(made)
    text = (made.folder / "run.json").read_text()
    assert "s3cret" not in text
    assert "secret-host" not in text
    assert record(made)["environment"]["NCCL_ALGO"] == "Ring"


def test_without_nsys_a_cpu_run_says_that_nothing_was_captured(plan: Callable[..., Plan]) -> None:
    captured = capture(plan(None, "print('trained')"))
    assert "nothing was captured" in captured.verdict
    assert captured.exports == ()


# --- each class of failure ----------------------------------------------------------------------------------


def test_nsys_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="neither on PATH") as caught:
        tool.find_nsys(None, root=tmp_path)
    assert caught.value.kind == "nsys_missing"
    with pytest.raises(Failure, match="not a program"):
        tool.find_nsys(str(tmp_path / "nsys"))


def test_nsys_is_found_where_its_installers_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: Callable[..., str]
) -> None:
    monkeypatch.setenv("PATH", "")
    for release in ("2024.1.1", "2025.3.1"):
        place = tmp_path / f"opt/nvidia/nsight-systems/{release}/bin"
        place.mkdir(parents=True)
        Path(fake()).rename(place / "nsys")
    assert "2025.3.1" in tool.find_nsys(None, root=tmp_path)


@pytest.mark.parametrize(("version", "age"), [("2020.1.1.65-085319d", "old"), ("2031.1.1.7-abc", "new")])
def test_nsys_too_old_or_too_new(fake: Callable[..., str], version: str, age: str) -> None:
    nsys = tool.inspect_nsys(fake(version=version, profile_options="--trace --sample --output"))
    argv = ["nsys", "profile", "--trace=cuda", "--cuda-graph-trace=node"]
    with pytest.raises(Failure, match=f"too {age}: it does not know --cuda-graph-trace") as caught:
        nsys.require(argv)
    assert caught.value.kind == f"nsys_too_{age}"


def test_newer_nsys_that_knows_all_options_is_used(fake: Callable[..., str]) -> None:
    nsys = tool.inspect_nsys(fake(version="2031.1.1.7-abc"))
    nsys.require(["--trace=cuda", "--cuda-graph-trace=node"])
    assert nsys.exports_blobs


def test_another_program_called_nsys_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "nsys"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    with pytest.raises(Failure) as caught:
        tool.inspect_nsys(str(other))
    assert caught.value.kind == "nsys_missing"


def test_torch_missing_no_gpu_and_too_few_gpus() -> None:
    gpus = ({"name": "H200"}, {"name": "H200"})
    with_torch = {"torch": "2.11"}
    for machine, ranks, kind in (
        (provenance.Machine({"torch": None}, (), None), 1, "torch_missing"),
        (provenance.Machine(with_torch, (), None), 1, "no_gpu"),
        (provenance.Machine(with_torch, gpus, None), 3, "too_few_gpus"),
    ):
        with pytest.raises(Failure) as caught:
            provenance.require_gpus(machine, ranks)
        assert caught.value.kind == kind
        assert caught.value.do
    provenance.require_gpus(provenance.Machine(with_torch, gpus, None), 2)
    provenance.require_gpus(provenance.Machine(with_torch, gpus, None), None)


def test_python_without_torch_is_noticed_before_anything_runs(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    machine = provenance.inspect_machine(str(bare))
    assert machine.versions["torch"] is None
    assert machine.versions["python"]
    with pytest.raises(Failure, match="torch"):
        provenance.require_gpus(machine, 1)


def test_python_that_does_not_run_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="torch"):
        provenance.inspect_machine(str(tmp_path / "nowhere"))


def test_workload_failed_names_the_rank_and_its_last_words(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    made = plan(
        fake(),
        """
        import os
        print("rank", os.environ["RANK"], "starts", flush=True)
        if os.environ["RANK"] == "1":
            raise ValueError("loss is nan")
        """,
        ranks=2,
    )
    found = failure(made)
    assert found.kind == "workload_failed"
    assert "rank 1 of the workload ended with exit code 1: ValueError: loss is nan" in str(found)
    assert found.ranks == (1,)
    assert record(made)["outcome"]["ranks"] == [1]
    assert any("Traceback" in line for line in found.details)
    assert not any("elastic" in line for line in found.details)


def test_rank_ended_by_a_signal_is_told_from_an_exit_code(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    found = failure(plan(fake(), "import os; os.kill(os.getpid(), 9)"))
    assert "rank 0 of the workload was ended by signal 9" in str(found)


def test_marked_lines_of_the_failed_rank_come_before_the_others() -> None:
    log = "\n".join(
        [
            "[rank0]: RuntimeError: peer closed the connection",
            "[rank1]: Traceback (most recent call last):",
            "[rank1]: KeyError: 'x'",
            "[rank0]: more of rank 0",
            "E1129 18:41:16.553000 9751 torch/distributed/elastic/x.py:984] failed",
            "Root Cause (first observed failure):",
            "  rank      : 1 (local_rank: 1)",
            "  exitcode  : 1 (pid: 5)",
        ]
    )
    found = failures.workload_failure(log, 1)
    assert "rank 1" in str(found)
    assert "KeyError: 'x'" in str(found)
    assert all(line.startswith("[rank1]:") for line in found.details)


def test_lines_of_torchrun_and_nsys_are_not_taken_for_the_programs_last_words() -> None:
    log = "\n".join(
        [
            "W1129 18:41:16.553000 9751 torch/distributed/run.py:874] Setting OMP_NUM_THREADS to 1",
            "Traceback (most recent call last):",
            "ValueError: loss is nan",
            "E1129 18:41:17.553000 9751 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)",
            "Traceback (most recent call last):",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "Root Cause (first observed failure):",
            "  rank      : 0 (local_rank: 0)",
            "  exitcode  : 1 (pid: 5)",
            "Generating '/tmp/nsys-report-1.qdstrm'",
            "[1/1] [0%                          ] report.nsys-rep\r[1/1] [=====100%] report.nsys-rep",
            "Generated:",
            "    /tmp/captures/report.nsys-rep",
        ]
    )
    found = failures.workload_failure(log, 1)
    assert found.details == ("Traceback (most recent call last):", "ValueError: loss is nan")
    assert "rank 0 of the workload ended with exit code 1: ValueError: loss is nan" in str(found)


def test_missing_torch_inside_the_launch_is_its_own_class() -> None:
    log = "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'torch'\n"
    assert failures.workload_failure(log, 1).kind == "torch_missing"


def test_hang_names_the_stuck_ranks_with_their_stacks_and_ends_everything(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    daemon = f"setsid sh -c 'trap \"\" TERM HUP; echo $$ >> {pids}; while :; do sleep 0.1; done' & "
    made = plan(
        fake(before=daemon),
        f"""
        import os, time
        with open({str(pids)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")

        def wait_for_peer():
            time.sleep(1000)

        wait_for_peer() if os.environ["RANK"] == "0" else time.sleep(1000)
        """,
        ranks=2,
    )
    found = failure(made, timeout_s=2)
    assert found.kind == "hang"
    assert found.ranks == (0, 1)
    assert (
        "2 of 2 ranks still ran after 2 s: rank 0 in wait_for_peer (train.py:7); rank 1 in <module>"
        in str(found)
    )
    stacks = (made.folder / "stacks.txt").read_text()
    assert stacks.count("most recent call first") >= 2
    assert not list(made.folder.glob("report*"))
    started = [int(word) for word in pids.read_text().split()]
    assert len(started) == 3
    assert not [pid for pid in started if alive(pid)]


def test_rank_that_ended_is_not_called_stuck(fake: Callable[..., str], plan: Callable[..., Plan]) -> None:
    program = "import os, time\nif os.environ['RANK'] == '1': time.sleep(1000)"
    found = failure(plan(fake(), program, ranks=2), timeout_s=2)
    assert found.ranks == (1,)
    assert "1 of 2 ranks" in str(found)


def test_processes_that_a_good_run_leaves_behind_are_ended(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    daemon = f"setsid sh -c 'echo $$ > {pids}; exec sleep 1000' & while [ ! -s {pids} ]; do sleep 0.02; done"
    capture(plan(fake(before=daemon), ""))
    assert not alive(int(pids.read_text()))


def test_other_children_of_the_caller_are_left_alone(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        try:
            capture(plan(fake(), ""))
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_empty_capture_range_is_told_from_a_failed_run(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    found = failure(plan(fake(after="echo Generated:"), "", settings=Settings(backend="nccl")))
    assert found.kind == "empty_capture"
    assert "cudaProfilerStart" in str(found)
    assert "capture_window" in str(found)


def test_capture_without_a_single_range_on_cpu_is_empty(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    empty = Export(unit="ms")
    empty.process(pid=100, device=0).kernel("sgemm", stream=7, at=(0, 50))
    empty.write(tmp_path / "empty.sqlite")
    found = failure_keeping_export(plan(fake(export_does=f'cp "{tmp_path}/empty.sqlite" "$out"'), ""))
    assert found.kind == "empty_capture"
    assert "not one NVTX range" in str(found)


def failure_keeping_export(plan: Plan) -> Failure:
    """A failure that is found in a finished export, which stays."""
    with pytest.raises(Failure) as caught:
        capture(plan)
    assert record(plan)["outcome"]["kind"] == caught.value.kind
    return caught.value


def test_missing_report_of_a_rank_is_incomplete(fake: Callable[..., str], plan: Callable[..., Plan]) -> None:
    settings = Settings(backend="gloo", per_rank=True)
    made = plan(
        fake(after='[ "$RANK" = 0 ] && echo x > "${out%%%*}0.nsys-rep"'), "", ranks=2, settings=settings
    )
    launcher = Path(made.target[0])
    launcher.write_text(launcher.read_text().replace("sys.argv[2:]", "sys.argv[3:]").replace(
        f"['{sys.executable}', *", "[*"
    ))  # fmt: skip
    found = failure(made)
    assert found.kind == "incomplete_report"
    assert "report_rank1.nsys-rep" in str(found)


def test_importer_that_fails_after_a_good_recording_keeps_the_recording(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    broken = (
        'echo raw > "$TMPDIR/nsys-report-1.qdstrm"; echo "Importer error status: libdw.so.1 missing"; code=1'
    )
    made = plan(fake(after=broken), "")
    found = failure(made)
    assert found.kind == "importer_failed"
    assert "libdw.so.1 missing" in str(found)
    assert "QdstrmImporter" in str(found)
    assert (made.folder / "report.qdstrm").read_text() == "raw\n"
    assert "report.qdstrm" in record(made)["files"]


@pytest.mark.parametrize("ending", ["exit 1", "exit 0"])
def test_export_that_fails_leaves_no_half_export(
    fake: Callable[..., str], plan: Callable[..., Plan], ending: str
) -> None:
    half = f'echo half > "$out"; echo "Failed to export: bad event"; {ending}'
    if ending == "exit 0":
        half = "echo 'Failed to export: bad event'; exit 0"
    made = plan(fake(export_does=half), "")
    found = failure(made)
    assert found.kind == "export_failed"
    assert "bad event" in str(found)
    assert (made.folder / "report.nsys-rep").exists()
    assert not [path for path in made.folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("foreign", ["not SQLite at all", ""])
def test_export_that_cannot_be_read_is_incomplete(
    fake: Callable[..., str], plan: Callable[..., Plan], foreign: str
) -> None:
    found = failure_keeping_export(plan(fake(export_does=f'printf "%s" "{foreign}" > "$out"'), ""))
    assert found.kind == "incomplete_report"


@pytest.mark.parametrize("where", ["profile", "export"])
def test_disk_full_leaves_nothing(fake: Callable[..., str], plan: Callable[..., Plan], where: str) -> None:
    full = 'echo half > "$out"; echo "write failed: No space left on device"; exit 1'
    nsys = fake(after=full) if where == "profile" else fake(export_does=full)
    made = plan(nsys, "")
    found = failure(made)
    assert found.kind == "disk_full"
    assert "--out" in str(found)
    assert not made.folder.exists()


def test_disk_full_in_our_own_writing_is_the_same_class(
    fake: Callable[..., str], plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(provenance, "write_json", no_space)
    made = plan(fake(), "")
    assert failure(made).kind == "disk_full"
    assert not made.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_no_orphan_and_no_files(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path, number: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    daemon = f"setsid sh -c 'trap \"\" TERM; echo $$ >> {pids}; while :; do sleep 0.1; done' & "
    made = plan(
        fake(before=daemon),
        f"import os, time\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(1000)",
        ranks=2,
    )
    driver = """
        import signal, sys
        from nsysddp.cli.capture import command
        from nsysddp.model.errors import NsysddpError
        # A shell that starts the tests in the background has SIGINT ignored, and so has everything they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            command.main(sys.argv[1:], standalone_mode=False)
        except NsysddpError as error:
            sys.exit(f"{error.kind}: {error}")
    """
    words = ["--backend", "gloo", "--nsys", str(tmp_path / "nsys"), "--out", str(tmp_path / "captures")]
    running = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(driver), *words, "--", *made.target],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 3, 60)
    running.send_signal(number)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "interrupted: interrupted while capturing train" in errors
    assert "Traceback" not in errors
    assert not [pid for pid in map(int, pids.read_text().split()) if alive(pid)]
    assert not made.folder.exists()


def test_program_that_does_not_exist_is_one_line(plan: Callable[..., Plan]) -> None:
    made = replace(plan(None, ""), target=("no-such-program", "x"))
    found = failure(made)
    assert found.kind == "refused"
    assert "no-such-program" in str(found)
    assert not made.folder.exists()


def test_place_that_cannot_be_written_is_one_line(plan: Callable[..., Plan], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = failure(replace(plan(None, ""), folder=tmp_path / "file" / "train-1"))
    assert found.kind == "refused"
    assert "--out" in str(found)


# --- what is there already ----------------------------------------------------------------------------------


def test_finished_capture_is_replaced_only_with_force(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    made = plan(fake(), "")
    capture(made)
    before = (made.folder / "run.json").read_bytes()
    with pytest.raises(UsageError, match="--force"):
        capture(made)
    assert (made.folder / "run.json").read_bytes() == before
    (made.folder / "report.sqlite").write_text("old")
    capture(made, force=True)
    assert (made.folder / "report.sqlite").read_bytes() != b"old"
    (made.folder / "notes").write_text("mine")
    with pytest.raises(UsageError, match="notes, which is not of the capture"):
        capture(made, force=True)
    assert (made.folder / "notes").read_text() == "mine"


def test_interrupt_before_anything_starts_removes_nothing(
    fake: Callable[..., str], plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(fake(), "")
    capture(made)

    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "_recorded_outcome", interrupted)
    with pytest.raises(KeyboardInterrupt):
        capture(made)
    assert (made.folder / "report.sqlite").exists()


def test_failed_capture_is_replaced_and_that_is_said(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    failure(plan(fake(), "import sys; sys.exit(3)"))
    said: list[str] = []
    run.capture(plan(fake(), ""), MACHINE, timeout_s=60, say=said.append)
    assert any("replacing" in line and "failed" in line for line in said)


@pytest.mark.parametrize("force", [False, True])
def test_folder_that_holds_something_else_is_never_touched(
    fake: Callable[..., str], plan: Callable[..., Plan], force: bool
) -> None:
    made = plan(fake(), "")
    made.folder.mkdir(parents=True)
    (made.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds no capture"):
        capture(made, force=force)
    assert (made.folder / "thesis.tex").read_text() == "years of work"


def test_capture_that_still_runs_or_was_killed_is_not_replaced_by_itself(
    fake: Callable[..., str], plan: Callable[..., Plan]
) -> None:
    made = plan(fake(), "")
    made.folder.mkdir(parents=True)
    provenance.write_json(made.folder / "run.json", {"outcome": {"kind": "running"}})
    with pytest.raises(UsageError, match="running or was killed"):
        capture(made)


# --- the command --------------------------------------------------------------------------------------------


def invoke(*words: str) -> tuple[str, str, BaseException | None]:
    result = CliRunner().invoke(capture_command, words, standalone_mode=False)
    return result.stdout, result.stderr, result.exception


def test_dry_run_prints_every_command_line_and_runs_nothing(tmp_path: Path, fake: Callable[..., str]) -> None:
    out = tmp_path / "captures"
    words = ["--dry-run", "--repeat", "2", "--nsys", fake(), "--out", str(out)]
    stdout, _, error = invoke("delay_cap4", "delay_cap64", *words)
    assert error is None
    lines = stdout.splitlines()
    assert [line for line in lines if "ddp_branches.py" in line] == lines[::2]
    assert [name for line in lines[::2] for name in ("delay_cap4-", "delay_cap64-") if name in line] == [
        "delay_cap4-",
        "delay_cap64-",
    ] * 2
    assert all("nsys export" in line for line in lines[1::2])
    assert not out.exists()


def test_dry_run_of_a_program_keeps_its_own_options(fake: Callable[..., str]) -> None:
    stdout, _, error = invoke(
        "--dry-run",
        "--per-rank",
        "--nsys",
        fake(),
        "--",
        "torchrun",
        "--nproc-per-node",
        "2",
        "t.py",
        "--out",
        "x",
    )
    assert error is None
    first, *exports = stdout.splitlines()
    assert first.endswith("t.py --out x")
    assert "report_rank%q{RANK}" in first
    assert len(exports) == 2


def test_dry_run_needs_no_nsys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    stdout, _, error = invoke("delay_cap4", "--dry-run")
    assert error is None
    assert " profile --trace=cuda,nvtx" in stdout


@pytest.mark.parametrize(
    "words", [[], ["delay_cap4", "--", "torchrun", "t.py"], ["nonsense"], ["a", "--", ""]]
)
def test_contradicting_requests_are_refused(words: list[str]) -> None:
    _, _, error = invoke(*words)
    assert isinstance(error, UsageError)


def test_presets_are_listed_with_what_they_show() -> None:
    stdout, _, error = invoke("--list")
    assert error is None
    assert "delay_cap64" in stdout
    assert "overlap exactly 0" in stdout


def test_no_gpu_is_one_line_with_the_way_out(
    fake: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytest.importorskip("torch")
    _, _, error = invoke("delay_cap4", "--nsys", fake(), "--out", str(tmp_path / "o"))
    assert isinstance(error, Failure)
    assert error.kind == "no_gpu"
    assert "--backend gloo" in str(error)
    assert not (tmp_path / "o").exists()


def test_details_of_a_failure_go_to_stderr_before_the_one_line(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    made = plan(fake(), "raise ValueError('loss is nan')")
    words = ["--backend", "gloo", "--nsys", str(tmp_path / "nsys"), "--out", str(tmp_path / "o")]
    stdout, stderr, error = invoke(*words, "--", *made.target)
    assert isinstance(error, NsysddpError)
    assert stdout == ""
    assert "  | ValueError: loss is nan" in stderr


# --- captures of GPUs: the export of a real one stands in for nsys's -----------------------------------------


def gpu_plan(plan: Callable[..., Plan], nsys: str) -> Plan:
    made = plan(nsys, "", settings=Settings(backend="nccl"), ranks=2)
    assert made.settings.waits_for_profiler_start
    return made


def test_gpu_capture_is_analysed_and_the_verdict_is_kept(
    fake: Callable[..., str], plan: Callable[..., Plan], unpacked: Callable[[str], Path]
) -> None:
    real = unpacked("h200/delay_cap4")
    made = gpu_plan(plan, fake(export_does=f'cp "{real}" "$out"'))
    captured = capture(made)
    assert captured.result is not None
    hidden = captured.result["overlap"].group_by("rank").agg(pl.col("hidden_communication_ns").sum())
    assert (hidden["hidden_communication_ns"] > 0).all()
    indented = "\n".join(f"    {line}".rstrip() for line in captured.verdict.strip().splitlines())
    assert indented in (made.folder / "README.md").read_text()
    assert record(made)["outcome"]["kind"] == "ok"


def test_capture_is_kept_whole_where_its_analysis_fails(
    fake: Callable[..., str], plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise AnalysisError("books do not balance")

    monkeypatch.setattr("nsysddp.questions.analyze", fails)
    made = gpu_plan(plan, fake())
    with pytest.raises(AnalysisError, match="balance"):
        capture(made)
    assert record(made)["outcome"]["kind"] == "analysis_failed"
    assert (made.folder / "report.sqlite").exists()
    assert "report.sqlite" in record(made)["files"]
    with pytest.raises(UsageError, match="--force"):
        capture(made)


def test_gpu_capture_without_gpu_events_is_empty(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    ranges = Export(unit="ms")
    ranges.process(pid=100, device=0).range("step 0", 0, 100)
    ranges.write(tmp_path / "ranges.sqlite")
    made = gpu_plan(plan, fake(export_does=f'cp "{tmp_path}/ranges.sqlite" "$out"'))
    found = failure_keeping_export(made)
    assert found.kind == "empty_capture"
    assert "no GPU event" in str(found)


def test_report_of_which_nsys_says_that_it_lost_events_is_incomplete(
    fake: Callable[..., str], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    export = tmp_path / "lossy.sqlite"
    drawing = Export(unit="ms")
    drawing.process(pid=100, device=0).kernel("sgemm", stream=7, at=(0, 50))
    drawing.row(
        "DIAGNOSTIC_EVENT",
        timestamp=0,
        timestampType=0,
        source=1,
        severity=3,
        text="Event buffer of alice overflowed.",
    )
    drawing.write(export)
    made = gpu_plan(plan, fake(export_does=f'cp "{export}" "$out"'))
    found = failure_keeping_export(made)
    assert found.kind == "incomplete_report"
    assert found.details == ("Event buffer of alice overflowed.",)
    assert "alice" not in str(found)
    assert record(made)["diagnostics"] == ["<message withheld>"]
