"""The planted mistakes still fit the code, and the judge tells one that is noticed from one that is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import planted_mistakes
import pytest
from conftest import ROOT
from planted_mistakes import MISTAKES, survives


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.what)
def test_a_mistake_fits_the_code(mistake: planted_mistakes.Mistake) -> None:
    """When the code changes its words, the mistake must be planted anew, not forgotten."""
    text = (ROOT / "nsysddp" / mistake.file).read_text(encoding="utf-8")
    assert text.count(mistake.right) == 1
    assert mistake.wrong != mistake.right


def test_they_are_spread_over_the_core() -> None:
    files = {mistake.file for mistake in MISTAKES}
    assert len(MISTAKES) >= 16
    assert files >= {
        "model/intervals.py",
        "model/classify.py",
        "questions/overlap.py",
        "questions/collectives.py",
        "questions/steps.py",
        "join/match.py",
        "join/clocks.py",
        "join/identity.py",
    }


def test_a_harmless_edit_is_not_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = next(one for one in MISTAKES if one.file == "model/classify.py")
    harmless = replace(sound, wrong=f"({sound.right})")
    monkeypatch.setattr(planted_mistakes, "MISTAKES", (sound, harmless))
    assert survives(sound, tmp_path) is None
    told = survives(harmless, tmp_path)
    assert told is not None
    assert "ended with 0" in told
    gone = replace(sound, right="no such text")
    monkeypatch.setattr(planted_mistakes, "MISTAKES", (gone,))
    assert "0 places" in (survives(gone, tmp_path) or "")
