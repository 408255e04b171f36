"""Which cap is best, and what cannot be told apart: interleaving, records, bootstrap, table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysddp.capture import sweep
from nsysddp.capture.command import Settings
from nsysddp.capture.plan import Plan
from nsysddp.capture.run import Captured
from nsysddp.capture.sweep import CapSteps
from nsysddp.cli.sweep import command as sweep_command
from nsysddp.join.load import load
from nsysddp.model.errors import AnalysisError
from nsysddp.questions import analyze

MS = 1_000_000


def drawn(
    cap: float, center_ms: float, *, rounds: int = 5, steps: int = 40, drift_ms: float = 0.0, seed: int = 0
) -> CapSteps:
    """Steps around a center; round i is later by i x drift and every step by noise of 0.05 ms."""
    random = np.random.default_rng([seed, int(cap * 100)])
    return CapSteps(
        cap,
        tuple(
            ((center_ms + turn * drift_ms + 0.05 * random.standard_normal(steps)) * MS).astype(np.int64)
            for turn in range(rounds)
        ),
    )


def test_rounds_take_every_cap_once_and_start_elsewhere_each_time() -> None:
    order = sweep.interleaved([1, 4, 25], 3)
    assert [cap for _, cap in order] == [1, 4, 25, 4, 25, 1, 25, 1, 4]
    assert [turn for turn, _ in order] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@given(st.lists(st.floats(0.5, 64), min_size=1, max_size=7, unique=True), st.integers(1, 5))
@settings(max_examples=30)
def test_every_cap_runs_once_a_round(caps: list[float], repeat: int) -> None:
    order = sweep.interleaved(caps, repeat)
    assert sorted(order) == sorted((turn, cap) for turn in range(1, repeat + 1) for cap in caps)


def test_clear_difference_is_told_and_a_small_one_is_not() -> None:
    verdicts = {v.cap_mib: v for v in sweep.compare_caps([drawn(1, 6.0), drawn(4, 5.0), drawn(16, 5.001)])}
    best = min(verdicts.values(), key=lambda verdict: verdict.median_ns)
    assert best.is_best
    assert {best.cap_mib} <= {4, 16}
    assert verdicts[4].is_tied
    assert verdicts[16].is_tied
    assert verdicts[1].is_tied is False
    assert verdicts[1].low_ns is not None
    assert 0.9 * MS < verdicts[1].low_ns <= verdicts[1].difference_ns <= (verdicts[1].high_ns or 0) < 1.1 * MS


def test_drift_that_touches_all_caps_alike_hides_no_difference() -> None:
    """Each round is 2 ms slower than the one before; caps differ by 0.3 ms within every round."""
    slow, fast = drawn(1, 5.3, drift_ms=2.0), drawn(4, 5.0, drift_ms=2.0)
    verdicts = sweep.compare_caps([slow, fast])
    assert verdicts[1].is_best
    assert verdicts[0].is_tied is False


def test_difference_between_runs_counts_not_only_noise_within_them() -> None:
    """Every run of a cap has its own level, 1 ms apart: 0.1 ms between two caps cannot be told."""
    random = np.random.default_rng(3)

    def wandering(cap: float, center: float) -> CapSteps:
        levels = center + random.standard_normal(6)
        return CapSteps(
            cap,
            tuple(((level + 0.001 * random.standard_normal(200)) * MS).astype(np.int64) for level in levels),
        )

    verdicts = sweep.compare_caps([wandering(1, 20.0), wandering(4, 20.1)])
    assert all(verdict.is_tied for verdict in verdicts)


def test_equal_caps_are_seldom_told_apart() -> None:
    """Joint level 95 %: of 300 sweeps over 5 equal caps with runs that differ, 15 may claim something."""
    wrong = 0
    for trial in range(300):
        random = np.random.default_rng(trial)
        caps = [
            CapSteps(
                cap,
                tuple(
                    ((10 + 0.2 * random.standard_normal() + 0.1 * random.standard_normal(20)) * MS).astype(
                        np.int64
                    )
                    for _ in range(4)
                ),
            )
            for cap in range(1, 6)
        ]
        verdicts = sweep.compare_caps(caps)
        wrong += any(verdict.is_tied is False for verdict in verdicts)
    assert wrong <= 25


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_rounds_name_a_smallest_median_and_no_winner(rounds: int) -> None:
    verdicts = sweep.compare_caps([drawn(1, 6.0, rounds=rounds), drawn(4, 5.0, rounds=rounds)])
    assert [verdict.is_tied for verdict in verdicts] == [None, None]
    assert [verdict.low_ns for verdict in verdicts] == [None, None]
    outcome = sweep.Sweep(tuple(verdicts), (), {1: True, 4: True}, rounds)
    assert "smallest median at 4 MiB" in outcome.conclusion
    assert "--repeat 3" in outcome.conclusion


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 4, 2.7764),
        (0.975, 9, 2.2622),
        (0.995, 10, 3.1693),
        (0.999, 5, 5.8934),
        (0.975, 1000, 1.9623),
    ],
)
def test_student_quantiles_of_the_printed_tables(probability: float, freedom: int, expected: float) -> None:
    assert sweep.student_quantile(probability, freedom) == pytest.approx(expected, abs=1e-4)


def test_unequal_rounds_and_empty_runs_are_refused() -> None:
    with pytest.raises(AnalysisError):
        sweep.compare_caps([drawn(1, 5, rounds=3), drawn(4, 5, rounds=4)])
    with pytest.raises(AnalysisError):
        sweep.compare_caps([CapSteps(1, (np.array([], dtype=np.int64),))])


def records(
    folder: Path, rank: int, steps: list[int], *, clock: str = "cuda_event", stage: str = "measured"
) -> None:
    rows = [
        {
            "rank": rank,
            "iteration": at,
            "stage": stage,
            "record": "time",
            "name": "step",
            "clock": clock,
            "time_ns": t,
        }
        for at, t in enumerate(steps)
    ]
    with (folder / f"records_rank{rank}.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_step_of_the_job_is_that_of_its_slowest_rank(tmp_path: Path) -> None:
    records(tmp_path, 0, [5, 9, 5])
    records(tmp_path, 1, [6, 6, 6])
    records(tmp_path, 0, [999, 999, 999], clock="host")
    records(tmp_path, 1, [999, 999, 999], clock="host")
    records(tmp_path, 1, [777], stage="warmup")
    assert sweep.job_steps(tmp_path).tolist() == [6, 9, 6]


def test_host_clock_is_used_for_all_ranks_where_one_has_no_gpu_clock(tmp_path: Path) -> None:
    records(tmp_path, 0, [1, 1])
    records(tmp_path, 0, [20, 21], clock="host")
    records(tmp_path, 1, [30, 10], clock="host")
    assert sweep.job_steps(tmp_path).tolist() == [30, 21]


def test_ranks_with_different_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError):
        sweep.job_steps(tmp_path)
    records(tmp_path, 0, [1, 2])
    records(tmp_path, 1, [1])
    with pytest.raises(AnalysisError):
        sweep.job_steps(tmp_path)


def test_table_document_and_conclusion_say_the_same() -> None:
    verdicts = tuple(sweep.compare_caps([drawn(1, 6.0), drawn(4, 5.0), drawn(25, 5.0)]))
    figures = dict.fromkeys(sweep.GPU_COLUMNS, 1_500_000) | {"hidden_wait_ns": None, "kernels": 88}
    outcome = sweep.Sweep(verdicts, (sweep.CapRank(1, 0, figures),), {1: True, 4: False, 25: True}, 5)
    text, document = outcome.text(), outcome.document()
    assert document["conclusion"] == outcome.conclusion
    assert outcome.conclusion in text
    assert json.loads(json.dumps(document)) == document
    best = next(cap for cap in document["caps"] if cap["is_best"])
    tied = next(cap for cap in document["caps"] if cap["is_tied"] and not cap["is_best"])
    assert (
        f"best bucket cap {best['cap_mib']:g} MiB; cannot be told apart from it: {tied['cap_mib']:g} MiB"
        in text
    )
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()[:1].isdecimal()}
    assert "NO" in lines["4"]
    row = next(line for line in text.splitlines() if line.split()[:2] == ["1", "0"])
    assert "88" in row
    assert "1.500" in row
    assert " - " in row


def test_plans_are_interleaved_and_carry_their_cap(tmp_path: Path) -> None:
    plans = sweep.plan_sweep([1, 2.5], Settings(), out=tmp_path, repeat=2, nsys=None, python="py")
    assert [plan.folder.name for plan in plans] == ["cap1-1", "cap2.5-1", "cap2.5-2", "cap1-2"]
    for plan in plans:
        at = plan.target.index("--bucket-cap")
        assert float(plan.target[at + 1]) == plan.variables["bucket_cap_mib"]


def test_captures_of_gpus_become_a_row_a_rank(tmp_path: Path, unpacked: Callable[[str], Path]) -> None:
    """The two delay captures stand in for caps 4 and 64: overlap with 12 buckets, none with one."""
    captured = []
    for cap, name in ((64.0, "delay_cap64"), (4.0, "delay_cap4")):
        folder = tmp_path / name
        folder.mkdir()
        for rank in (0, 1):
            records(folder, rank, [int(cap) * MS] * 3)
        plan = Plan(name, 1, folder, ("torchrun", "t.py"), Settings(), None, None, {"bucket_cap_mib": cap})
        result = analyze(load(unpacked(f"h200/{name}")))
        captured.append((cap, Captured(plan, "", (), result, {"ok": cap == 64.0, "failed_checks": []})))
    outcome = sweep.summarise(captured)
    assert [(row.cap_mib, row.rank) for row in outcome.ranks] == [(4, 0), (4, 1), (64, 0), (64, 1)]
    hidden = [row.figures["hidden_transfer_ns"] for row in outcome.ranks]
    assert hidden[0] == 337_118
    assert hidden[2:] == [0, 0]
    assert outcome.correct == {64.0: True, 4.0: False}
    assert [verdict.median_ns for verdict in outcome.verdicts] == [4 * MS, 64 * MS]
    assert "NO" in outcome.text()


@pytest.mark.parametrize("caps", ["1,x", "0,4", "4,4", ""])
def test_nonsense_caps_are_refused(caps: str) -> None:
    result = CliRunner().invoke(sweep_command, ["--bucket-cap", caps, "--dry-run"])
    assert result.exit_code == 2
    assert "--bucket-cap" in result.output
