"""The README says what the code says."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from command import run
from readme import README, filled

from nsysddp import samples


def test_generated_parts_are_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert filled(text) == text, "run `make readme`"


def test_the_example_is_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = tmp_path / "delay_cap4.sqlite"
    report.write_bytes(gzip.decompress(samples.path(samples.TWELVE_BUCKETS).read_bytes()))
    ran = run("analyze", report)
    lines = [line.rstrip() for line in ran.out.splitlines()]
    shown = "\n".join(lines[: lines.index("Read with care")]).rstrip()
    example = (
        README.read_text(encoding="utf-8").split("$ nsysddp analyze delay_cap4.sqlite\n")[1].split("\n```")[0]
    )
    assert example == shown
