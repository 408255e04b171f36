"""Which kept runs can be held beside each other: asked alike, on like hardware, captured alike?"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nsysddp.model.units import NS_PER_US, ms
from nsysddp.questions.compare.facts import REFUSED, facts_of
from nsysddp.store.database import StoredRun

_SPELLED = {
    "question": "question",
    "per": "--per",
    "from_ns": "--from",
    "to_ns": "--to",
    "first_step": "--steps from",
    "last_step": "--steps up to",
    "skip_warmup": "--skip-warmup",
    "step_pattern": "--step-pattern",
    "phase_patterns": "--phase-pattern",
    "rules_sha256": "--rules (hash)",
    "clock_tolerance_ns": "--clock-tolerance",
    "options": "options",
}
"""What of a request shapes a number, by the names of its options."""


def unlike(run: StoredRun, newest: StoredRun) -> str | None:
    """In what two runs are unlike, so that a number of one says nothing about the other; None if in nothing.

    What the captures of both say has to be alike in what a comparison refuses; what only one of them says does not
    speak against it (``unknown``). A request that is not recorded is like no other.
    """
    facts, wanted = _facts(run), _facts(newest)
    if (run.request is None) != (newest.request is None):
        older = run if run.request is None else newest
        return f"what was asked of run {older.run_id} is not recorded"
    differing = [name for name in wanted if name in facts and facts[name] != wanted[name]]
    if "question" in differing:
        differing = ["question"]
    return ", ".join(f"{name} differs ({facts[name]}; {wanted[name]})" for name in differing) or None


def unknown(kept: Sequence[StoredRun]) -> str | None:
    """What some of the runs do not say, though it has to be alike; None if all say the same things."""
    recorded = [_captured(run) for run in kept]
    names = [name for name in REFUSED if any(name in fact for fact in recorded)]
    lacking = {
        name: [run.run_id for run, one in zip(kept, recorded, strict=True) if name not in one]
        for name in names
    }
    open_ = [name for name, without in lacking.items() if without]
    if not open_:
        return None
    numbers = sorted({number for name in open_ for number in lacking[name]})
    return f"It is not known whether {', '.join(open_)} was alike: not kept of run {', '.join(map(str, numbers))}"


def _facts(run: StoredRun) -> dict[str, str]:
    hardware = (
        {}
        if not run.ranks
        else {
            "GPU": ", ".join(sorted({str(row["gpu_name"]) for row in run.ranks if row["gpu_name"]}))
            or "unknown",
            "number of ranks": str(len(run.ranks)),
        }
    )
    asked = (
        {}
        if run.request is None
        else {words: _value(name, run.request[name]) for name, words in _SPELLED.items()}
    )
    return {**asked, **hardware, **_captured(run)}


def _captured(run: StoredRun) -> dict[str, str]:
    """What the capture says of what a comparison refuses."""
    return {name: value for name, value in facts_of(run.capture or {}).items() if name in REFUSED}


def _value(name: str, value: object) -> str:
    if value is None:
        return "none"
    if name == "clock_tolerance_ns" and isinstance(value, int):
        return f"{value / NS_PER_US:g} us"
    if name.endswith("_ns") and isinstance(value, int):
        return f"{ms(value):g} ms"
    if name == "rules_sha256":
        return str(value)[:12]
    return json.dumps(value, ensure_ascii=False, sort_keys=True) if isinstance(value, dict) else str(value)
