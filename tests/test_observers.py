"""Variables of the captured environment that change what is measured: said by name, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Export
from command import run

import nsysddp
from nsysddp.ingest.observers import EFFECTS
from nsysddp.model.trace import Trace


def loaded(tmp_path: Path, *variables: str) -> Trace:
    export = Export()
    export.lanes('rank 0 | host "step 0"[0,100)   s7 g[0,50)')
    for variable in variables:
        export.capture("PROCESS_0:ENVIRONMENT_VARIABLE", variable)
    return nsysddp.load(export.write(tmp_path / "a.sqlite"))


def said(trace: Trace) -> list[str]:
    return [one.message for one in trace.warnings if one.code == "observer_effect"]


@pytest.mark.parametrize(
    "variable",
    [
        "CUDA_LAUNCH_BLOCKING=1",
        'CUDA_LAUNCH_BLOCKING="1"',
        "NCCL_DEBUG=INFO",
        "NCCL_DEBUG=trace",
        'CUBLAS_WORKSPACE_CONFIG=":4096:8"',
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "TORCH_NCCL_ENABLE_TIMING=1",
        "TORCH_NCCL_BLOCKING_WAIT=true",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
        "FLASH_ATTENTION_DETERMINISTIC=1",
        "TF_DETERMINISTIC_OPS=1",
        "XLA_FLAGS=--xla_dump_to=/tmp/x --xla_gpu_deterministic_ops=true",
        "XLA_FLAGS=--xla_gpu_deterministic_ops",
        "TORCH_NCCL_NAN_CHECK=1",
        "NCCL_PROFILER_PLUGIN=/opt/secret/plugin.so",
    ],
)
def test_a_variable_that_changes_the_measurement_is_named(variable: str, tmp_path: Path) -> None:
    name = variable.partition("=")[0]
    assert said(loaded(tmp_path, variable)) == [
        f"the environment changes what is measured: {name} is set ({EFFECTS[name]})"
    ]


@pytest.mark.parametrize(
    "variable",
    [
        "CUDA_LAUNCH_BLOCKING=0",
        "CUDA_LAUNCH_BLOCKING=",
        "NCCL_DEBUG=WARN",
        "CUDA_DEVICE_MAX_CONNECTIONS=8",
        "TORCH_DISTRIBUTED_DEBUG=INFO",
        "MY_CUDA_LAUNCH_BLOCKING=1",
        "TORCH_NCCL_ENABLE_TIMING=false",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO=1",
        "XLA_FLAGS=--xla_gpu_deterministic_ops=false",
        "XLA_FLAGS=--xla_dump_to=/tmp/x",
        "NCCL_PROFILER_PLUGIN=",
    ],
)
def test_one_that_does_not_is_not(variable: str, tmp_path: Path) -> None:
    assert said(loaded(tmp_path, variable)) == []


def test_no_value_of_the_environment_is_shown(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        "NCCL_BLOCKING_WAIT=s3cret",
        "API_TOKEN=s3cret",
        "NCCL_DEBUG=INFO",
        "NCCL_PROFILER_PLUGIN=/s3cret.so",
    )
    assert "s3cret" not in repr(trace.warnings)
    for form in ("text", "json"):
        ran = run("analyze", tmp_path / "a.sqlite", "--format", form)
        assert "NCCL_BLOCKING_WAIT is set" in " ".join(ran.out.split())
        assert "s3cret" not in ran.out + ran.err


def test_every_variable_that_the_query_knows_has_its_words() -> None:
    text = (Path(__file__).parent.parent / "queries" / "observing_environment.sql").read_text(
        encoding="utf-8"
    )
    assert all(f"'{name}'" in text for name in EFFECTS)
