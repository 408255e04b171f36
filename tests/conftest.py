"""Fixtures: where the shared real traces are, unpacked copies of them, and what a skip may mean."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("nsysddp", deadline=None, print_blob=True)
settings.load_profile("nsysddp")

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"


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
