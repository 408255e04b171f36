"""docs/results says what its data say, and the data say what was to be shown on real GPUs."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import polars as pl
import pytest
from conftest import ROOT

HOME = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_make", HOME / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["results_make"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(make: ModuleType) -> None:
    text = make.README.read_text(encoding="utf-8")
    assert make.filled(text) == text, "run `python docs/results/make.py`"


def test_every_layout_and_every_replica_is_as_expected(make: ModuleType) -> None:
    runs = make.runs()
    assert [make.correct(runs[name], name) for name in make.MATRIX] == [True] * 8
    assert sum(runs[name]["bucket_records"] for name in make.MATRIX) == 49 * 80
    assert runs[make.FAILING]["expected_failure"]
    assert len(set(runs[make.FAILING]["errors"])) == 1
    assert len(runs[make.FAILING]["errors"]) == 2
    for name in make.MATRIX:
        assert runs[name]["has_rebuilt"] == (name != "dynamic_unused")
        assert runs[name]["ready_order"] == list(range(48 if name.startswith("fine") else 12))[::-1]


def test_forty_iterations_of_two_ranks_stand_behind_every_step(make: ModuleType) -> None:
    counts = (
        make.measured()
        .filter(pl.col("run").is_in(make.MATRIX))
        .group_by("run", "rank", "name", "clock")
        .len()
    )
    assert counts.height == 8 * 2 * 4 * 2  # configurations, ranks, step and phases, clocks
    assert set(counts["len"]) == {40}


def test_overlap_is_above_zero_on_every_rank_with_twelve_buckets_and_zero_with_one(make: ModuleType) -> None:
    twelve, one = (make.overlap(name)["hidden_communication_ns"] for name in ("delay_cap4", "delay_cap64"))
    assert len(twelve) == len(one) == 6
    assert twelve.min() > 0
    assert one.to_list() == [0] * 6


def test_no_sentence_outlives_the_data(make: ModuleType) -> None:
    """The figures that the page's own words repeat."""
    overlap = make.overlap("delay_cap4").sort("rank", "step_index")
    first = {row["rank"]: row for row in overlap.iter_rows(named=True) if row["step"] == "step 10"}
    assert round(first[1]["hidden_communication_ns"] / first[0]["hidden_communication_ns"]) == 11
    assert round(first[1]["hidden_wait_ns"] / 1e6, 2) == 2.65
    assert round(first[1]["hidden_transfer_ns"] / 1e6, 2) == 0.37
    spin = overlap["spin_ns"].median() / 12
    assert round(spin / 1e6, 3) == 5.051
    assert round(10_000_000 / spin, 2) == 1.98
    step = {
        name: make.quantile(make._times(make.measured(), name, 0, "step", "cuda_event"), 0.5)
        for name in make.MATRIX
    }
    assert round((step["delay_cap64"] - step["delay_cap4"]) / 1e6, 2) == 0.16
    gradients = make.runs()["memory_gpt"]["parameters"] * 4
    assert round(gradients / 1e6, 1) == 877.3
    words = (HOME / "README.md").read_text(encoding="utf-8")
    for figure in (
        "a factor of 11",
        "2.65 ms",
        "0.37 and 0.28 ms",
        "5.051 ms",
        "1.98 GHz",
        "0.16 ms",
        "877.3 MB",
    ):
        assert figure in words


def test_views_save_the_memory_of_the_gradients_and_nothing_at_the_peak(make: ModuleType) -> None:
    runs = make.runs()
    for name, gradients in (
        ("memory_coarse4_cap4", 48 << 20),
        ("memory_delay_cap4", 48 << 20),
        ("memory_gpt", 4 * runs["memory_gpt"]["parameters"]),
    ):
        for rank in runs[name]["memory"]:
            saved = rank["without_view_after_backward_bytes"] - rank["with_view_after_backward_bytes"]
            assert saved == pytest.approx(gradients, rel=1e-3)
            assert rank["without_view_peak_bytes"] == pytest.approx(rank["with_view_peak_bytes"], rel=1e-3)


def test_the_sweep_claims_no_winner_that_its_runs_do_not_carry(make: ModuleType) -> None:
    (best,) = [cap for cap in make.json.loads(make.SWEEP.read_text())["caps"] if cap["is_best"]]
    assert best["cap_mib"] == 64
    for cap in make.json.loads(make.SWEEP.read_text())["caps"]:
        assert cap["is_best"] or (cap["low_ns"] < 0 < cap["high_ns"] and cap["is_tied"])
