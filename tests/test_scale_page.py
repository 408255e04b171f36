"""docs/results/scale.md says what the committed benchmark measured, and no more."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    """The script that makes the page."""
    spec = importlib.util.spec_from_file_location("scale_page", ROOT / "docs/results/scale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_committed_results(scale: ModuleType) -> None:
    results = json.loads((ROOT / "bench/results.json").read_text())
    assert scale.page(results) == (ROOT / "docs/results/scale.md").read_text("utf-8"), (
        "run `python docs/results/scale.py`"
    )


def test_a_bound_without_figures_is_not_said_to_be_met(scale: ModuleType) -> None:
    assert scale.verdict(None, 2.0, 1_000) == "not measured"


@pytest.mark.parametrize(("ratio", "peak"), [(2.1, 900.0), (1.9, 1_001.0)])
def test_one_bound_that_is_exceeded_is_enough(scale: ModuleType, ratio: float, peak: float) -> None:
    assert scale.verdict({"ratio_to_raw": ratio, "peak_mb": peak}, 2.0, 1_000) == "**not met**"


def test_a_row_within_its_bounds_is_met(scale: ModuleType) -> None:
    assert scale.verdict({"ratio_to_raw": 2.0, "peak_mb": 5_000.0}, 2.0, None) == "met"
