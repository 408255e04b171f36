"""How others name and number things: ranks of launchers, steps and phases of frameworks, kernels of new libraries."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from builder import Export
from command import document, run

from nsysddp.model.classify import load_rules, looks_collective

MS = 1_000_000


def warned(made: dict, code: str) -> str:
    return " ".join(one["message"] for one in made["warnings"] if one["code"] == code)


def one_rank(folder: Path, name: str, *variables: str) -> Path:
    export = Export(host=name)
    export.process(100).kernel("sgemm", 7, (0, 10))
    for variable in variables:
        export.capture("ENVIRONMENT_VARIABLE", variable)
    return export.write(folder / name)


@pytest.mark.parametrize(
    "variable",
    [
        "SLURM_PROCID",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
        "MV2_COMM_WORLD_RANK",
        "FLUX_TASK_RANK",
        "RANK",
    ],
)
def test_a_launcher_tells_the_rank(variable: str, tmp_path: Path) -> None:
    paths = [one_rank(tmp_path, f"run_name.{n + 1}.sqlite", f"{variable}={1 - n}") for n in range(2)]
    rows = document(*paths, "--per", "capture")["tables"]["rank"]
    assert [(row["rank"], row["report"], row["rank_source"]) for row in rows] == [
        (0, "run_name.2.sqlite", "environment"),
        (1, "run_name.1.sqlite", "environment"),
    ]


def test_torchrun_counts_first_and_others_that_disagree_are_said(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "a.sqlite", "RANK=3", "WORLD_SIZE=8", "SLURM_PROCID=0", "SLURM_NTASKS=2")
    made = document(path, "--per", "capture")
    assert [(row["rank"], row["world_size"]) for row in made["tables"]["rank"]] == [(3, 8)]
    assert "RANK=3 and SLURM_PROCID=0" in warned(made, "rank_sources_differ")


def test_the_reports_of_inferred_ranks_are_named(tmp_path: Path) -> None:
    paths = [one_rank(tmp_path, f"{name}.sqlite") for name in ("x", "y")]
    text = " ".join(run("analyze", *paths, "--per", "capture").out.split())
    assert "0: x.sqlite; 1: y.sqlite" in text


@pytest.mark.parametrize(
    "table", ["TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "META_DATA_CAPTURE", "DIAGNOSTIC_EVENT"]
)
def test_a_table_of_facts_of_another_form_is_no_error(table: str, tmp_path: Path) -> None:
    path = one_rank(tmp_path, "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE TABLE {table} (vmId INTEGER, deviceId INTEGER, label TEXT)")
        connection.execute(f"INSERT INTO {table} VALUES (1, 0, 'Tesla V100')")
    made = document(path, "--per", "capture")
    assert made["tables"]["overlap"][0]["compute_ns"] == 10 * MS
    assert run("doctor", path).code == 0


# --- steps and phases ----------------------------------------------------------------------------------------------


def loop(folder: Path, step: str, phases: tuple[str, ...] = (), steps: int = 4) -> Path:
    export = Export()
    process = export.process(100)
    for number in range(steps):
        at = 100 * number
        process.range(step.format(number + 12), at, at + 90)
        process.kernel("sgemm", 7, (at + 10, at + 60), launched=at + 1)
        for place, phase in enumerate(phases):
            process.range(phase, at + 2 + 20 * place, at + 20 + 20 * place)
            process.kernel("relu", 7, (at + 62 + place, at + 63 + place), launched=at + 5 + 20 * place)
    return export.write(folder / "a.sqlite")


@pytest.mark.parametrize(
    "step",
    [
        "step {}",
        "training_step_{}",
        "[pl][profile]run_training_batch",
        "train_batch {}",
        "DeepSpeedEngine.train_batch",
        "train-step",
        "Training Iteration {}",
        "global_step={}",
        "batch {}",
        "train",
        "train_step",
    ],
)
def test_steps_by_the_names_in_use(step: str, tmp_path: Path) -> None:
    rows = document(loop(tmp_path, step))["tables"]["overlap"]
    assert [row["step_index"] for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("forward", "DeepSpeedEngine.forward"),
        ("forward", "forward-compute"),
        ("forward", "[pl][profile][Strategy]DDPStrategy.training_step"),
        ("backward", "backward-compute"),
        ("backward", "[pl][profile][Strategy]DDPStrategy.backward"),
        ("backward", "DeepSpeedEngine.backward"),
        ("optimizer", "optimizer_step"),
        ("optimizer", "DeepSpeedEngine.step"),
        ("optimizer", "optimizer-inner-step"),
        ("optimizer", "[pl][profile][LightningModule]Net.optimizer_step"),
        ("optimizer", "Optimizer.step#AdamW.step"),
    ],
)
def test_phases_by_the_names_in_use(phase: str, name: str, tmp_path: Path) -> None:
    rows = document(loop(tmp_path, "step {}", (name,)))["tables"]["phase"]
    assert {row["phase"] for row in rows} == {phase}


def test_the_default_form_of_a_step_counts_before_others(tmp_path: Path) -> None:
    export = Export()
    process = export.process(100)
    process.range("train", 0, 500)
    for number in range(3):
        process.range(f"batch {number}", 100 * number, 100 * number + 5)
        process.range(f"step {number}", 100 * number + 5, 100 * number + 90)
        process.kernel("sgemm", 7, (100 * number + 10, 100 * number + 60), launched=100 * number + 6)
    rows = document(export.write(tmp_path / "a.sqlite"))["tables"]["overlap"]
    assert [row["step"] for row in rows] == ["step 0", "step 1", "step 2"]


def test_ranges_that_repeat_are_offered_where_no_step_is_known(tmp_path: Path) -> None:
    path = loop(tmp_path, "Epoch.1/work unit {}".replace("/", " "), ("compute grads",))
    said = warned(document(path), "no_steps")
    pattern = r"Epoch\.\d+ work unit \d+"
    assert f"'{pattern}' (4 ranges of 90 ms)" in said
    assert "--step-pattern" in said
    assert pattern in " ".join(run("doctor", path).out.split())
    rows = document(path, "--step-pattern", pattern)["tables"]["overlap"]
    assert len(rows) == 4


def test_missing_phases_are_said_with_candidates(tmp_path: Path) -> None:
    said = warned(document(loop(tmp_path, "step {}", ("forward", "compute grads"))), "missing_phases")
    assert "backward or optimizer" in said
    assert "'compute grads' (4 ranges of 18 ms)" in said
    assert "--phase-pattern" in said


def test_no_path_or_address_is_offered_as_a_name(tmp_path: Path) -> None:
    path = loop(tmp_path, "/home/somebody/train.py:{}", ("someone@example.org",))
    everything = json_text(path) + run("doctor", path).out
    assert "somebody" not in everything
    assert "example.org" not in everything


def json_text(path: Path) -> str:
    return run("analyze", path, "--format", "json").out


# --- kernels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void nccl_ep::hybrid::dispatch_kernel<4, true>(nccl_ep::Params)", "all_to_all"),
        ("nccl_ep::ll::combine<float>(int*)", "all_to_all"),
        ("ubx_kernel_a2a_v2", "all_to_all"),
        ("ubx_kernel_allreduce_oneshot", "all_reduce"),
        ("ubx_kernel_barrierless", "unknown"),
        ("lsa_ring_alltoall_kernel", "all_to_all"),
        ("lsa_allgather_kernel", "all_gather"),
        ("oneshot_mc_allreduce_kernel", "all_reduce"),
        ("reshardKernelUserWindow", "unknown"),
    ],
)
def test_kernels_of_new_libraries_communicate(name: str, kind: str) -> None:
    verdict = load_rules().kernel(name)
    assert (verdict.class_, verdict.kind) == ("communication", kind)


@pytest.mark.parametrize(
    "name",
    [
        "my_norm_a2a_kernel",
        "fused_moe_dispatch_v3",
        "nvls_push",
        "foo_reshard",
        "custom_sendrecv",
        "x_allreduce_gemm",
    ],
)
def test_a_name_that_reads_like_a_collective_is_never_silent_compute(name: str) -> None:
    verdict = load_rules().kernel(name)
    assert verdict.class_ == "communication" or (verdict.rule == "unclassified" and looks_collective(name))


@pytest.mark.parametrize(
    "name",
    [
        "embedding_dense_backward",
        "index_put_kernel",
        "nvjet_hsh_128x128",
        "scatter_add",
        "splitKreduce_kernel",
    ],
)
def test_computation_stays_computation(name: str) -> None:
    verdict = load_rules().kernel(name)
    assert verdict.class_ == "compute"
    assert verdict.rule != "unclassified"


# --- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("skew_ms", "said"), [(7, True), (0.5, False)])
def test_a_clock_that_was_corrected_by_much_is_said(skew_ms: float, said: bool, tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        export = Export(host=f"node{rank}", utc_epoch_ns=1_700_000_000_000_000_000 + int(rank * skew_ms * MS))
        process = export.process(100 + rank, gpu=rank)
        for at in (0, 37, 111, 160, 222):
            process.nccl("AllReduce", 17, (at, at + 5), bytes=64)
        paths.append(export.write(tmp_path / f"rank{rank}.sqlite"))
    message = warned(document(*paths, "--per", "capture"), "clock_corrected")
    assert bool(message) == said
    if said:
        assert "rank1.sqlite, by -7.000 ms" in message
