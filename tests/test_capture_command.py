"""Command lines of a capture, presets, provenance: everything that runs nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import ROOT

from nsysddp.capture import command, presets, provenance
from nsysddp.capture.command import Settings
from nsysddp.model.errors import UsageError

TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "4", "train.py", "--lr", "0.1"]


def recorder(settings: Settings, *, options: tuple[str, ...] = ()) -> list[str]:
    return command.recorder_argv("nsys", settings, Path("out/report"), options=options)


def test_gpu_capture_waits_for_the_profiler_range_and_traces_graph_nodes() -> None:
    argv = command.profile_argv(recorder(Settings()), Settings(), TORCHRUN, python="python3")
    assert argv == [
        "nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--output=out/report",
        *TORCHRUN,
    ]


def test_cpu_capture_asks_nsys_for_nothing_that_needs_a_gpu() -> None:
    argv = recorder(Settings(backend="gloo"))
    assert "--trace=nvtx" in argv
    assert not any(word.startswith(("--cuda", "--capture-range", "--gpu")) for word in argv)


def test_whole_program_is_recorded_without_a_capture_range() -> None:
    assert not any(word.startswith("--capture-range") for word in recorder(Settings(capture_range="none")))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (("--gpu-metrics-device",), "--gpu-metrics-device=all"),
        (("--gpu-metrics-devices",), "--gpu-metrics-devices=all"),
        ((), "--gpu-metrics-devices=all"),
    ],
)
def test_gpu_metrics_option_is_spelled_as_this_nsys_spells_it(known: tuple[str, ...], expected: str) -> None:
    assert expected in recorder(Settings(gpu_metrics=True), options=known)


@pytest.mark.parametrize(
    ("launch", "launcher", "options", "rank", "nproc"),
    [
        (["torchrun", "t.py"], 1, [], ["t.py"], 1),
        (["/v/bin/torchrun", "--nproc_per_node=8", "t.py", "-x"], 1, ["--nproc_per_node=8"], ["t.py", "-x"], 8),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "t.py"], 3,
         ["--nproc-per-node", "2"], ["t.py"], 2),
        (["torchrun", "--nproc-per-node", "gpu", "-m", "pkg.train", "a"], 1,
         ["--nproc-per-node", "gpu", "-m"], ["pkg.train", "a"], None),
        (["torchrun", "--standalone", "--tee", "3", "--no-python", "bash", "go.sh"], 1,
         ["--standalone", "--tee", "3", "--no-python"], ["bash", "go.sh"], 1),
    ],
)  # fmt: skip
def test_torchrun_is_taken_apart(
    launch: list[str], launcher: int, options: list[str], rank: list[str], nproc: int | None
) -> None:
    parts = command.parse_torchrun(launch)
    assert parts is not None
    assert list(parts.launcher) == launch[:launcher]
    assert (list(parts.options), list(parts.rank), parts.nproc) == (options, rank, nproc)


def test_other_launchers_are_left_alone() -> None:
    assert command.parse_torchrun(["srun", "-n", "2", "python", "train.py"]) is None
    assert command.parse_torchrun(["python", "train.py"]) is None


@pytest.mark.parametrize("launch", [["torchrun"], ["torchrun", "--nproc-per-node", "2"]])
def test_torchrun_without_a_script_is_refused(launch: list[str]) -> None:
    with pytest.raises(UsageError, match="no script"):
        command.parse_torchrun(launch)


@pytest.mark.parametrize(
    ("launch", "rank"),
    [
        (["torchrun", "--nproc-per-node=2", "t.py", "--lr", "1"], ["py", "-u", "t.py", "--lr", "1"]),
        (["torchrun", "--nproc-per-node=2", "-m", "pkg.t", "-v"], ["py", "-u", "-m", "pkg.t", "-v"]),
        (["torchrun", "--nproc-per-node=2", "--no-python", "./go"], ["./go"]),
    ],
)
def test_per_rank_puts_each_rank_under_its_own_nsys(launch: list[str], rank: list[str]) -> None:
    settings = Settings(per_rank=True)
    prefix = recorder(settings)
    assert prefix[-1] == "--output=out/report_rank%q{RANK}"
    argv = command.profile_argv(prefix, settings, launch, python="py")
    assert argv == ["torchrun", "--nproc-per-node=2", "--no-python", *prefix, *rank]


def test_per_rank_refuses_launchers_whose_ranks_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="torchrun"):
        command.wrap_ranks(["srun", "python", "t.py"], ["nsys"], python="python")


def test_export_keeps_message_sizes_where_nsys_can() -> None:
    new = command.export_argv("nsys", Path("a.nsys-rep"), Path("a.sqlite"))
    old = command.export_argv("nsys", Path("a.nsys-rep"), Path("a.sqlite"), blobs=False)
    assert "--include-blobs=true" in new
    assert [word for word in new if word not in old] == ["--include-blobs=true"]


def test_public_command_holds_no_secret_and_no_private_path(tmp_path: Path) -> None:
    argv = [
        "/home/eve/venv/bin/python",
        str(tmp_path / "sub" / "train.py"),
        "--api-key",
        "s3cret-1",
        "--hf-token=s3cret-2",
        "WANDB_API_KEY=s3cret-3",
        "--data=/home/eve/private/set",
        "--store",
        "postgresql://eve:s3cret-4@db/x",
        "--auth-token",
        "--lr",
        "0.1",
    ]
    shown = command.public_argv(argv, base=tmp_path)
    assert "s3cret" not in " ".join(shown)
    assert "eve" not in " ".join(shown)
    assert shown[:2] == ["python", "sub/train.py"]
    assert shown[-2:] == ["--lr", "0.1"]


def test_environment_enters_by_allow_list_only() -> None:
    environment = {
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_COMM_ID": "10.0.0.1:5000",
        "NCCL_DEBUG_FILE": "/home/eve/x",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "NCCL_PROTO": "s3cret/with/path",
        "HOSTNAME": "machine",
    }
    assert provenance.public_environment(environment) == {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert not [
        name for name in provenance.ENVIRONMENT if re.search("HOST|ADDR|IFNAME|FILE|COMM_ID|KEY", name)
    ]


def test_every_preset_names_a_workload_that_exists_and_takes_its_arguments() -> None:
    for preset in presets.PRESETS.values():
        path = presets.workload_path(preset.script)
        assert path.is_file()
        if "--config" in preset.arguments:
            assert f'"{preset.arguments[1]}"' in path.read_text()


def test_preset_launch_follows_the_workload_contract() -> None:
    settings = Settings(nproc=4, steps=7, warmup=3, capture_steps=2, seed=5, backend="gloo")
    argv = command.workload_argv(presets.PRESETS["delay_cap4"], settings, python="py", out=Path("o"))
    text = " ".join(argv)
    assert text.startswith("py -m torch.distributed.run --standalone --nproc-per-node=4 ")
    assert text.endswith(
        "ddp_branches.py --config delay_cap4 --steps 7 --warmup 3 --capture-steps 2 --out o --backend gloo --seed 5"
    )


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="delay_cap4"):
        presets.find_preset("delay_cap5")


def test_git_state_of_a_checkout_and_of_no_checkout(tmp_path: Path) -> None:
    state = provenance.git_state(ROOT)
    if (ROOT / ".git").exists():
        assert state is not None
        assert re.fullmatch("[0-9a-f]{40}", state["commit"])
        assert isinstance(state["changed"], bool)
    assert provenance.git_state(tmp_path) is None


def test_hashes_cover_every_file_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"abc")
    assert provenance.hash_files(tmp_path) == {
        "sub/a": {
            "bytes": 3,
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        }
    }


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    provenance.write_json(target, {"a": 1})
    with pytest.raises(TypeError):
        provenance.write_json(target, {"a": object()})
    assert json.loads(target.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
