"""Fixtures: where the shared real traces are, unpacked copies of them, and what a skip may mean."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# A planted mistake need not be made small, which can take minutes.
_PHASES = (Phase.explicit, Phase.generate) if "NSYSDDP_PLANTED" in os.environ else tuple(Phase)
# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("nsysddp", deadline=None, print_blob=True, phases=_PHASES)
settings.load_profile("nsysddp")

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"


FULL_ONLY = {
    "test_action.py": "starts the action's shell script and git",
    "test_annotate.py": "torch",
    "test_capture_real.py": "torch and nsys",
    "test_capture_run.py": "starts and ends captures",
    "test_causes_simulated.py": "simulates jobs",
    "test_corruption.py": "thousands of damaged reports",
    "test_ending.py": "starts commands and ends them by signals",
    "test_baseline.py": "makes captures, with every question",
    "test_clocks.py": "drawn clocks",
    "test_evidence.py": "makes bundles",
    "test_evidence_forged.py": "makes bundles, and forges every value of one",
    "test_examples.py": "runs every example of every command",
    "test_execute.py": "worker processes, and a cluster",
    "test_folders.py": "every question on exports in all forms",
    "test_hostile.py": "reports without end",
    "test_html_browser.py": "a browser",
    "test_many_reports.py": "jobs of many reports",
    "test_notebooks.py": "Jupyter",
    "test_planted_mistakes.py": "copies the project",
    "test_properties.py": "drawn reports against a slow oracle",
    "test_redact.py": "copies every kind of report",
    "test_reducer_ddp.py": "torch",
    "test_sides.py": "makes captures and bundles",
    "test_simulation.py": "simulates jobs",
    "test_stragglers.py": "simulates jobs",
    "test_store_database.py": "a real server, and writers that are killed",
    "test_workload_claims.py": "real captures, with every question",
    "test_workloads.py": "torch",
}
"""Files that `make quick` (pytest --quick) leaves out, and why: what starts other programs, or takes long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--quick``: only what needs neither torch nor a browser and is done within two minutes."""
    parser.addoption("--quick", action="store_true", help="Leave out the files of conftest.FULL_ONLY.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not even import what the quick tests leave out."""
    return True if config.getoption("--quick") and collection_path.name in FULL_ONLY else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nor what is marked as slow."""
    if config.getoption("--quick"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def require(component: str, present: bool) -> None:
    """Skip a test whose component is missing here; fail it where everything must be there (CI)."""
    if present:
        return
    message = f"{component} is not available on this machine"
    if os.environ.get("NSYSDDP_REQUIRE_ALL") == "1":
        pytest.fail(f"{message}, and NSYSDDP_REQUIRE_ALL=1 forbids skipping")
    pytest.skip(message)


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of shared real exports (``h200/``, ``public/``); tests that need it are skipped without it."""
    folder = Path(os.environ.get("NSYSDDP_SHARED", ROOT.parent / "shared")) / "traces"
    if not folder.is_dir():
        pytest.skip("the shared traces are not beside this checkout (set NSYSDDP_SHARED)")
    return folder


@pytest.fixture(scope="session")
def unpacked(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``unpacked("h200/tp")`` or ``unpacked("public/r2021...")``: path of the unpacked export (do not write to it)."""
    folder = tmp_path_factory.mktemp("traces")

    def unpack(name: str) -> Path:
        target = folder / f"{Path(name).name}.sqlite"
        if not target.exists():
            with gzip.open(shared_traces / f"{name}.sqlite.gz") as packed, target.open("wb") as out:
                shutil.copyfileobj(packed, out)
        return target

    return unpack


def unpack_fixture(packed: Path, folder: Path) -> Path:
    """A copy of a packed export that a test may change."""
    target = folder / packed.name.removesuffix(".gz")
    with gzip.open(packed) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)
    return target
