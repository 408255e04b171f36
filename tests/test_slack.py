"""How much later a collective could have ended: exactly, in the replay and in the simulated job run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builder import Export
from command import run
from simulation import engine, jobs, truth
from simulation.engine import Collective
from simulation.export import write
from simulation.jobs import MIB, MS, US, Group, Job, simulate

import nsysddp
from nsysddp.dependencies import replay
from nsysddp.model.result import Result
from nsysddp.questions.context import context_of
from nsysddp.questions.slack import Model


def job(kind: str, ranks: int, group: int = 1, **changes: Any) -> Job:
    return Job(kind=kind, ranks=ranks, group=group, steps=3, layers=3, micro_batches=3, **changes)


def asked(made: Job, folder: Path, **options: Any) -> Result:
    paths = write(simulate(made), folder, payload=options.pop("payload", True))
    return nsysddp.ask(nsysddp.load(paths, host_calls=True), "slack", **options)


SHAPES = [("dp", 2, 1), ("dp", 4, 1), ("hsdp", 4, 2), ("tp", 4, 2), ("pp", 4, 2), ("ep", 4, 2)]
LARGE = [
    ("ep", 8, 4),
    ("pp", 12, 3),
    ("tp", 16, 4),
    ("hsdp", 32, 8),
    ("dp", 64, 1),
    ("pp", 64, 8),
    ("tp", 64, 8),
]


# --- in the replay, exactly ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "ranks", "group"), SHAPES)
@pytest.mark.parametrize("seed", [3, 4])
def test_later_by_the_slack_no_step_of_the_replay_is_longer_and_later_by_more_one_is(
    kind: str, ranks: int, group: int, seed: int, tmp_path: Path
) -> None:
    made = job(kind, ranks, group, seed=seed, jitter=0.1)
    model = Model.of(context_of(nsysddp.load(write(simulate(made), tmp_path), host_calls=True)))
    table = model.context.trace.collectives.drop_nulls("collective_id")
    room = replay.slack(model.program, model.schedule, model.steps)
    seen = 0
    for (_,), part in list(table.group_by("collective_id", maintain_order=True))[::3]:
        nodes = part["event"].to_numpy()
        least = float(room[nodes].min())

        def lengths(more: float, nodes: Any = nodes) -> Any:
            duration = model.program.duration.copy()
            duration[nodes] += more
            return model.steps.lengths(replay.run(model.program.having(duration=duration)).end)

        assert np.allclose(lengths(least), model.unchanged, atol=1)
        ends_later = np.cumsum(lengths(least + 10 * US) - model.unchanged)
        assert ends_later.max() == pytest.approx(10 * US, abs=2)
        seen += least > 100 * US
    assert seen  # some of them had room


# --- in the job simulated again --------------------------------------------------------------------------------------


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Job, int, int, int], list[int]]:
    """Step lengths of a job of which one collective (communicator, number) takes longer; links are not shared."""
    monkeypatch.setattr(engine.Engine, "_sharing", lambda *_: 1)
    original = jobs.Group._make
    planted: dict[tuple[int, int], int] = {}

    def make(group: Group, number: int, kind: str, size: int, root: int | None) -> Collective:
        one = original(group, number, kind, size, root)
        return replace(one, length=one.length + planted.get((group.communicator, number), 0))

    monkeypatch.setattr(jobs.Group, "_make", make)

    def lengths(made: Job, communicator: int, number: int, more: int) -> list[int]:
        planted.clear()
        planted[communicator, number] = more
        return truth.steps(simulate(made))

    return lengths


@pytest.mark.parametrize(("kind", "ranks", "group"), SHAPES + LARGE)
def test_a_collective_that_takes_its_slack_longer_lengthens_no_simulated_step(
    kind: str,
    ranks: int,
    group: int,
    longer: Callable[[Job, int, int, int], list[int]],
    tmp_path: Path,
) -> None:
    made = job(kind, ranks, group, seed=9)
    trace = nsysddp.load(write(simulate(made), tmp_path), host_calls=True)
    result = nsysddp.ask(trace, "slack", first_step=1)
    numbers = trace.collectives.drop_nulls("collective_id").select(
        "collective_id", "communicator", number=pl.col("sequence").rank("dense").over("communicator") - 1
    )
    known = result["slack"].join(numbers.unique("collective_id"), on="collective_id")
    before = np.array(truth.steps(simulate(made)))
    near = 15 * US  # latencies are replayed as means
    some = known.sort("slack_ns").gather(
        np.linspace(0, known.height - 1, 8 if ranks < 8 else 3).astype(int).tolist()
    )
    assert some["slack_ns"].max() > 200 * US  # type: ignore[operator]
    for row in some.iter_rows(named=True):
        one = (int(row["communicator"], 16), row["number"])
        within = np.array(longer(made, *one, max(row["slack_ns"] - near, 0)))
        assert (within - before).max() <= near, row
        beyond = np.array(longer(made, *one, row["slack_ns"] + 300 * US))
        assert 300 * US - near <= (beyond - before).max() <= 300 * US + near, row


def test_a_role_slowed_down_as_far_as_is_said_lengthens_no_simulated_step(tmp_path: Path) -> None:
    made = job("dp", 3, layer_bytes=2 * MIB, cap=2 * MIB, buffers=True)
    row = asked(made, tmp_path, first_step=1)["slack_role"].row(0, named=True)
    truly = truth.mean(truth.lengths(made))
    no = truth.mean(truth.lengths(replace(made, communication=0.0)))
    assert row["costs_ns"] == pytest.approx(truly - no, abs=0.02 * truly)
    half = truth.mean(truth.lengths(replace(made, communication=1 / row["faster_ratio"])))
    assert row["left_ns"] == pytest.approx(half - no, abs=0.02 * truly)


@pytest.mark.parametrize("factor", [0.97, 1.15])
def test_what_costs_nothing_can_be_slower_as_far_as_is_said(factor: float, tmp_path: Path) -> None:
    """Gathers with much room: the last one of a forward hides under two layers."""
    made = replace(job("hsdp", 2, 2, layer_bytes=6 * MIB, optimizer_ns=3 * MS), latency_ns=1)
    result = asked(made, tmp_path, first_step=1)
    row = result["slack_role"].row(0, named=True)
    assert row["role"] == "shard"
    truly = truth.mean(truth.lengths(made))
    slower = truth.mean(truth.lengths(replace(made, communication=row["slower_ratio"] * factor)))
    if factor < 1:
        assert slower / truly - 1 < 0.003
    else:
        assert slower > truly


# --- what is said ----------------------------------------------------------------------------------------------------


def test_the_sufficient_bandwidth_is_that_of_transfer_and_slack_together(tmp_path: Path) -> None:
    table = asked(job("hsdp", 4, 2), tmp_path)["slack"]
    for row in table.iter_rows(named=True):
        longer_by = (row["transfer_ns"] + row["slack_ns"]) / row["transfer_ns"]
        assert row["sufficient_gbps"] == pytest.approx(row["busbw_gbps"] / longer_by)


def test_the_last_bucket_has_no_slack_and_the_first_has(tmp_path: Path) -> None:
    table = asked(job("dp", 2), tmp_path)["slack"]
    for (_,), part in table.group_by("step_index"):
        ordered = part.sort("start_ns")["slack_ns"].to_list()
        assert ordered[-1] < 5 * US
        assert ordered[0] > 500 * US


def test_without_payloads_there_is_slack_but_no_bandwidth(tmp_path: Path) -> None:
    result = asked(job("dp", 2), tmp_path, payload=False)
    assert result["slack"]["slack_ns"].null_count() == 0
    assert result["slack"]["sufficient_gbps"].null_count() == result["slack"].height
    assert "GB/s" not in " ".join(one.message for one in result.findings)


def test_without_host_calls_there_is_no_slack_and_the_flag_is_named(tmp_path: Path) -> None:
    paths = write(simulate(job("dp", 2)), tmp_path)
    result = nsysddp.ask(nsysddp.load(paths), "slack")
    assert result["slack"]["slack_ns"].null_count() == result["slack"].height > 0
    assert "--trace=cuda" in " ".join(one.message for one in result.warnings)


def test_a_run_without_collectives_says_so(tmp_path: Path) -> None:
    export = Export()
    export.lanes('rank 0 | host "step 0"[0,100)   s7 g[0,50)')
    ran = run("slack", export.write(tmp_path / "a.sqlite"))
    assert ran.code == 0, ran.err
    assert "No matched collective" in ran.out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_each_role_is_one_sentence_on_the_screen(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = run("slack", *write(simulate(job("tp", 4, 2)), tmp_path))
    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())
    assert "tensor: exposed " in said
    assert " ms of a step at " in said
    assert max(map(len, ran.out.splitlines())) <= int(columns)
