"""The house keeps its measures: files that a reader can hold in mind."""

from __future__ import annotations

from conftest import ROOT

MOST_LINES = 600
REASON = "longer than 600 lines"
"""What the first lines of a file say where there is a reason."""


def test_no_file_is_long_without_a_reason_on_its_top() -> None:
    files = [*ROOT.glob("nsysddp/**/*.py"), *ROOT.glob("nsysddp/**/*.mjs"), *ROOT.glob("queries/**/*.sql")]
    assert len(files) > 200
    long = []
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()
        if len(lines) > MOST_LINES and REASON not in " ".join(lines[:12]).lower():
            long.append(f"{file.relative_to(ROOT)}: {len(lines)}")
    assert long == [], f"split at a real seam, or say on the first lines why it is {REASON}"
