"""The README says what the code says."""

from __future__ import annotations

from readme import README, filled


def test_generated_parts_are_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert filled(text) == text, "run `make readme`"
