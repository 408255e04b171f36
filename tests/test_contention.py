"""Contention: drawn kernels of known slowdown, every figure against a slow oracle, the bootstrap against resampling."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from builder import Export
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsysddp.join.load import load
from nsysddp.model.errors import AnalysisError
from nsysddp.model.result import Result
from nsysddp.questions import context_of
from nsysddp.questions.contention import REASONS, _Samples, contention
from nsysddp.questions.contention.tables import CONTENTION_STEP
from nsysddp.questions.steps import Selection


def answer(path: Path, selection: Selection | None = None) -> Result:
    return contention(context_of(load(path, host_calls=True, shapes=True, metrics=True), selection))


def two_ranks(path: Path, *, alone: int = 6, beside: int = 6, slow: float = 20, share: float = 1.0) -> Path:
    """Per rank and step ``alone`` kernels of 10 us, then ``beside`` of ``slow`` us, partly under a collective each."""
    export = Export(unit="us")
    for rank in (0, 1):
        process = export.process(pid=100 + rank, device=rank)
        for step in (0, 1):
            length = 10 * alone + (slow + 1) * beside
            at = step * length
            process.range(f"step {step}", at, at + length)
            for _ in range(alone):
                process.kernel("gemm", at=(at, at + 10))
                at += 10
            for _ in range(beside):
                process.kernel("gemm", at=(at, at + slow))
                process.nccl(stream=17, at=(at, at + slow * share))
                at += slow + 1
    return export.write(path)


# --- what is compared -----------------------------------------------------------------------------------------


def test_rows_are_in_one_order_however_many_ranks_are_sorted_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_ranks(tmp_path / "a.sqlite", share=0.7)
    whole = answer(path)["contention"]
    monkeypatch.setattr("nsysddp.questions.contention._RANKS_AT_A_TIME", 1)
    assert answer(path)["contention"].equals(whole)
    assert set(whole["side"]) == {"compute", "communication"}
    assert whole["rank"].n_unique() == 2


def test_ratio_cost_and_net_gain_of_a_known_slowdown(tmp_path: Path) -> None:
    result = answer(two_ranks(tmp_path / "a.sqlite"))
    row = (
        result["contention"]
        .filter(pl.col("side") == "compute", pl.col("after").is_not_null())
        .row(0, named=True)
    )
    assert (row["alone"], row["accompanied"], row["partial"]) == (
        11,
        12,
        0,
    )  # the very first follows no kernel
    assert (row["alone_median_ns"], row["accompanied_median_ns"]) == (10_000, 20_000)
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (2.0, 2.0, 2.0)
    assert row["cost_per_step_ns"] == 6 * 10_000
    steps = result["contention_step"]
    assert steps["hidden_transfer_ns"].to_list() == [120_000] * 4
    assert steps["contention_ns"].to_list() == [60_000] * 4
    assert steps["net_overlap_gain_ns"].to_list() == [60_000] * 4
    assert steps["measured_ratio"].to_list() == [1.0] * 4
    assert steps["reason"].null_count() == 4
    assert {finding.value for finding in result.findings} == {60_000}


def test_a_median_over_some_steps_says_over_how_many(tmp_path: Path) -> None:
    """In the third step another kernel runs beside communication, which never runs alone."""
    export = Export(unit="us")
    for rank in (0, 1):
        process = export.process(pid=100 + rank, device=rank)
        at = 0.0
        for step, name in enumerate(("gemm", "gemm", "other")):
            begin = at
            for _ in range(6):
                process.kernel("gemm", at=(at, at + 10))
                at += 10
            for _ in range(6):
                process.kernel(name, at=(at, at + 20))
                process.nccl(stream=17, at=(at, at + 20))
                at += 21
            process.range(f"step {step}", begin, at)
    result = answer(export.write(tmp_path / "a.sqlite"))
    assert result["contention_step"]["contention_ns"].null_count() == 2  # one window of each rank
    assert len(result.findings) == 2
    for finding in result.findings:
        assert finding.value == 60_000
        assert "known in 2 of 3 steps" in finding.message


@pytest.mark.parametrize(("share", "accompanied", "partial"), [(0.5, 12, 0), (0.49, 0, 12), (1.0, 12, 0)])
def test_accompanied_from_half_of_its_time_on(
    tmp_path: Path, share: float, accompanied: int, partial: int
) -> None:
    table = answer(two_ranks(tmp_path / "a.sqlite", share=share))["contention"]
    row = table.filter(pl.col("side") == "compute").row(0, named=True)
    assert (row["accompanied"], row["partial"]) == (accompanied, partial)
    if partial:
        assert (row["ratio"], row["reason"]) == (None, "too_few_accompanied")


def test_partial_executions_are_charged_for_the_time_beside_communication(tmp_path: Path) -> None:
    """Four fifths of 20 us is beside: 12 x 16 us x (1 - 1/2) over two steps."""
    row = answer(two_ranks(tmp_path / "a.sqlite", share=0.8))["contention"].row(0, named=True)
    assert (row["beside_ns"], row["cost_per_step_ns"]) == (12 * 16_000, 6 * 8_000)


def test_too_few_alone_gives_null_and_says_what_to_capture(tmp_path: Path) -> None:
    result = answer(two_ranks(tmp_path / "a.sqlite", alone=2))
    row = result["contention"].filter(pl.col("side") == "compute").row(0, named=True)
    assert (row["ratio"], row["cost_per_step_ns"], row["reason"]) == (None, None, "too_few_alone")
    steps = result["contention_step"]
    assert steps["net_overlap_gain_ns"].null_count() == 4
    assert steps["hidden_transfer_ns"].null_count() == 0
    assert set(steps["reason"]) == {REASONS["unmeasured"]}
    assert "no_sync" in REASONS["unmeasured"]
    assert not result.findings


def test_one_shape_in_two_places_is_two_kernels_and_mixed_work_is_none(tmp_path: Path) -> None:
    """After ``a`` the gemm takes 10 us, after ``b`` 40; compared as one it would look four times slower."""
    export = Export(unit="us")
    process = export.process(pid=100)
    at = 0.0
    for name, length, count in (("a", 10.0, 12), ("b", 40.0, 12)):
        for number in range(count):
            process.kernel(name, at=(at, at + 1))
            slowed = length * (1.5 if (number % 2) else 1)
            process.kernel("gemm", at=(at + 1, at + 1 + slowed))
            if number % 2:
                process.nccl(stream=17, at=(at + 1, at + 1 + slowed))
            at += 100
    rows = answer(export.write(tmp_path / "a.sqlite"))["contention"].filter(pl.col("name") == "gemm")
    assert sorted(rows.select("after", "ratio").rows()) == [("a", 1.5), ("b", 1.5)]

    for number in range(12):
        process.kernel("c", at=(at, at + 1))
        length = 10.0 if number % 4 < 2 else 40.0
        process.kernel("gemm", at=(at + 1, at + 1 + length))
        if number % 2:
            process.nccl(stream=17, at=(at + 1, at + 1 + length))
        at += 100
    rows = answer(export.write(tmp_path / "b.sqlite"))["contention"].filter(pl.col("after") == "c")
    assert rows.select("ratio", "reason").rows() == [(None, "mixed_work")]


def test_other_shapes_phases_and_ranks_are_other_kernels(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = export.process(pid=100)
    process.range("step 0", 0, 1000)
    process.range("backward", 500, 1000)
    for at, grid in ((10, 1), (30, 2), (510, 1)):
        process.kernel("gemm", at=(at, at + 5), gridX=grid)
        process.nccl(stream=17, at=(at, at + 5))
    rows = answer(export.write(tmp_path / "a.sqlite"))["contention"].filter(pl.col("side") == "compute")
    assert sorted(rows.select("phase", "grid").rows(), key=str) == [
        ("backward", "1x1x1"),
        (None, "1x1x1"),
        (None, "2x1x1"),
    ]


def test_the_other_way_round_transfer_beside_compute(tmp_path: Path) -> None:
    """Alone the same collective transfers in 10 us, under compute in 15; waiting is no part of it."""
    export = Export(unit="us")
    for rank in (0, 1):
        process = export.process(pid=100 + rank, device=rank)
        for number in range(12):
            at = 100.0 * number
            length = 15 if number % 2 else 10
            early = 20 if rank == 0 else 0  # rank 0 arrives first and waits
            process.nccl(stream=17, at=(at + 20 - early, at + 20 + length))
            if number % 2:
                process.kernel("gemm", at=(at + 20, at + 20 + length))
    rows = answer(export.write(tmp_path / "a.sqlite"))["contention"].filter(pl.col("side") == "communication")
    assert rows.select("rank", "name", "bytes", "alone", "accompanied", "ratio").rows() == [
        (rank, "all_reduce", 4 << 20, 6, 6, 1.5) for rank in (0, 1)
    ]


def test_warm_up_steps_are_not_compared_but_get_their_cost(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = export.process(pid=100)
    for step in range(4):
        base = 10_000.0 * step
        process.range(f"step {step}", base, base + 9_000)
        slow = 5 if step == 0 else 1  # the first step is five times as long
        for number in range(6):
            at = base + number * 1_000
            process.kernel("gemm", at=(at, at + 100 * slow))
            process.kernel("gemm", at=(at + 500, at + 500 + 80 * slow))
            process.nccl(stream=17, at=(at, at + 100 * slow))
    context = context_of(load(export.write(tmp_path / "a.sqlite"), shapes=True))
    windows = replace(
        context.windows,
        windows=tuple(replace(window, is_warmup=window.step == 0) for window in context.windows.windows),
    )
    result = contention(replace(context, windows=windows, every_window=windows))
    row = (
        result["contention"]
        .filter(pl.col("side") == "compute", pl.col("beside_ns") > 100_000)
        .row(0, named=True)
    )
    assert (row["alone_median_ns"], row["accompanied_median_ns"]) == (80_000, 100_000)
    assert result["contention_step"]["contention_ns"].null_count() == 0


def test_without_overlap_there_is_no_cost_and_without_a_match_no_gain(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = export.process(pid=100)
    process.kernel("gemm", at=(0, 10))
    process.nccl(stream=17, at=(20, 30))
    row = answer(export.write(tmp_path / "a.sqlite"))["contention_step"].row(0, named=True)
    assert (row["contention_ns"], row["net_overlap_gain_ns"], row["reason"]) == (0, 0, None)

    for number in range(12):
        process.kernel("gemm", at=(100 + 20 * number, 110 + 20 * number))
        if number % 2:
            process.nccl(stream=17, at=(100 + 20 * number, 110 + 20 * number))
    row = answer(export.write(tmp_path / "b.sqlite"))["contention_step"].row(0, named=True)
    assert (row["contention_ns"], row["net_overlap_gain_ns"], row["reason"]) == (
        0,
        None,
        REASONS["unmatched"],
    )


def test_shapes_must_have_been_read(tmp_path: Path) -> None:
    context = context_of(load(two_ranks(tmp_path / "a.sqlite")))
    with pytest.raises(AnalysisError, match="shapes=True"):
        contention(context)


# --- every figure against a slow oracle -------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_random_runs_equal_a_slow_oracle(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    export = Export(unit="ns")
    process = export.process(pid=100)
    kernels: list[tuple[str, str | None, int, int]] = []
    at, before = 0, None
    for _ in range(rng.randint(5, 60)):
        at += rng.choice([0, 3, 50])
        name, length = rng.choice("ab"), rng.randint(8, 12)
        process.kernel(name, at=(at, at + length))
        kernels.append((name, before, at, at + length))
        at, before = at + length, name
    sent: set[int] = set()
    reach = 0
    for _ in range(rng.randint(1, 12)):
        reach += rng.randint(1, 60)
        end = reach + rng.randint(1, 40)
        process.nccl(stream=17, at=(reach, end))
        sent.update(range(reach, end))
        reach = end
    result = answer(export.write(tmp_path / "a.sqlite"))
    table = result["contention"].filter(pl.col("side") == "compute")
    groups: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for name, after, start, end in kernels:
        groups.setdefault((name, after), []).append((end - start, len(sent & set(range(start, end)))))
    expected = {}
    losses: list[tuple[int, float]] = []
    for key, runs in groups.items():
        if not sum(beside for _, beside in runs):
            continue
        alone = sorted(length for length, beside in runs if not beside)
        together = sorted(length for length, beside in runs if beside and beside >= length / 2)
        partial = sum(1 for length, beside in runs if beside and beside < length / 2)
        total = sum(beside for _, beside in runs)
        measured = len(alone) >= 5 and len(together) >= 5
        if measured:
            low, high = (alone[math.ceil(share * len(alone)) - 1] for share in (0.1, 0.9))
            measured = high <= 1.5 * low
        ratio = statistics.median(together) / statistics.median(alone) if measured else None
        expected[key] = (len(alone), len(together), partial, total, ratio)
        if ratio is not None:
            losses.append((total, 1 - 1 / ratio))
    told = {
        (name, after): (alone, together, partial, total, ratio)
        for name, after, alone, together, partial, total, ratio in table.select(
            "name", "after", "alone", "accompanied", "partial", "beside_ns", "ratio"
        ).iter_rows()
    }
    assert told == expected
    row = result["contention_step"].row(0, named=True)
    hidden = len(sent & {instant for _, _, start, end in kernels for instant in range(start, end)})
    assert row["hidden_communication_ns"] == hidden
    known = sum(total for total, _ in losses)
    if hidden == 0:
        assert row["contention_ns"] == 0
    elif known < hidden / 2:
        assert row["contention_ns"] is None
    else:  # kernels of one stream do not overlap, so the time beside communication is the hidden time
        assert row["measured_ratio"] == pytest.approx(known / hidden)
        cost = hidden * sum(total * loss for total, loss in losses) / known
        assert row["contention_ns"] == pytest.approx(cost, abs=1)
        assert row["contention_low_ns"] <= row["contention_high_ns"]


@pytest.mark.parametrize("count", [5, 6, 40, 41])
def test_the_bootstrap_is_that_of_resampled_medians(count: int) -> None:
    """Same distribution as drawing n of n values with replacement and taking the median of each draw."""
    rng = np.random.default_rng(count)
    values = rng.integers(1_000, 9_000, count)
    samples = _Samples.of(np.zeros(count, dtype=np.int64), values, 1)
    direct = np.median(rng.choice(values, size=(40_000, count)), axis=1)
    ours = samples.bootstrap(np.array([0]), np.random.default_rng(1), 40_000)[0]
    ordered, theirs = np.sort(ours), np.sort(direct)
    grid = np.unique(np.concatenate([ordered, theirs]))
    difference = np.abs(
        np.searchsorted(ordered, grid, side="right") - np.searchsorted(theirs, grid, side="right")
    )
    assert difference.max() / 40_000 < 0.012  # Kolmogorov-Smirnov at 40,000 draws: 0.0096 at 5 %


def test_the_same_seed_gives_the_same_interval_and_it_holds_the_truth(tmp_path: Path) -> None:
    """Of 40 runs with a true ratio of 1.5 about 38 intervals hold it; none may be lost to the draw's order."""
    rng = random.Random(7)
    export = Export(unit="ns")
    process = export.process(pid=100)
    at = 0
    for group in range(40):
        for number in range(42):
            length = round(rng.gauss(15_000 if number % 2 else 10_000, 900))
            process.kernel(f"k{group}", at=(at, at + length), launched=None)
            if number % 2:
                process.nccl(stream=17, at=(at, at + length), launched=None)
            at += length + 10
    path = export.write(tmp_path / "a.sqlite")
    first, again = answer(path), answer(path)
    assert first["contention"].equals(again["contention"])
    rows = first["contention"].filter(pl.col("side") == "compute", pl.col("ratio").is_not_null())
    assert rows.height == 40
    held = rows.filter(pl.col("ratio_low") <= 1.5, pl.col("ratio_high") >= 1.5).height
    assert 33 <= held <= 40


# --- sampled metrics ---------------------------------------------------------------------------------------------


def test_metrics_in_the_four_situations(tmp_path: Path) -> None:
    """Compute 0-450 us, communication 200-600 us, sampled every 100 us; a sample over an edge counts for none."""
    export = Export(unit="us")
    process = export.process(pid=100)
    process.kernel("gemm", at=(0, 450))
    process.nccl(stream=17, at=(200, 600))
    process.kernel("gemm", at=(900, 901))
    export.gpu_metric(
        "SMs Active [Throughput %]", {100: 10, 200: 12, 300: 90, 400: 92, 500: 50, 600: 30, 700: 1, 800: 3}
    )
    table = answer(export.write(tmp_path / "a.sqlite"))["contention_metric"]
    assert sorted(table.select("situation", "samples", "mean_value").rows()) == [
        ("both", 2, 91.0),
        ("communication_alone", 1, 30.0),
        ("compute_alone", 2, 11.0),
        ("neither", 2, 2.0),
    ]


def test_no_metrics_is_said(tmp_path: Path) -> None:
    result = answer(two_ranks(tmp_path / "a.sqlite"))
    assert result["contention_metric"].is_empty()
    assert "no_gpu_metrics" in {warning.code for warning in result.warnings}


# --- real captures ------------------------------------------------------------------------------------------------


def test_gemms_of_a_gpt_are_nearly_twice_as_slow_beside_communication(
    unpacked: Callable[[str], Path],
) -> None:
    """NCCL's blocks take SMs from matrix products that fill them in one wave: two waves instead."""
    result = answer(unpacked("h200/blobs_ddp"))
    gemms = result["contention"].filter(
        pl.col("name").str.starts_with("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"),
        pl.col("ratio").is_not_null(),
    )
    assert gemms.height == 4
    assert gemms["ratio"].min() > 1.75
    assert gemms["ratio"].max() < 1.95
    steps = result["contention_step"]
    assert steps.schema == pl.Schema(CONTENTION_STEP.dtypes)
    assert steps["measured_ratio"].min() > 0.95
    # The rank that waits long beside its own backward pays more than the transfer that it hides.
    worst = steps.sort("net_overlap_gain_ns").row(0, named=True)
    assert (worst["rank"], worst["step"]) == (0, "step 5")
    assert worst["net_overlap_gain_high_ns"] < 0


def test_spin_kernels_run_as_long_beside_communication(unpacked: Callable[[str], Path]) -> None:
    rows = answer(unpacked("h200/delay_cap4"))["contention"].filter(
        pl.col("name").str.contains("spin"), pl.col("ratio").is_not_null()
    )
    assert all(abs(ratio - 1) < 0.01 for ratio in rows["ratio"])


def test_serial_programs_and_whole_graphs(unpacked: Callable[[str], Path]) -> None:
    serial = answer(unpacked("h200/tp"))
    assert serial["contention_step"]["net_overlap_gain_ns"].to_list() == [0] * 6
    assert serial["contention"].is_empty()
    graphs = answer(unpacked("h200/graph_graph"))["contention_step"]
    assert REASONS["whole_graph"] in graphs["reason"].to_list()
    assert graphs.filter(pl.col("reason") == REASONS["whole_graph"])["contention_ns"].null_count() > 0
