"""The judgement as a page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]
BUCKET_FAULTS = ("ready", "launched", "queued", "held", "missing", "extra")


def page(rows: Sequence[Row], title: str, command: str = "") -> str:
    """The result as markdown: against what is wanted, and by kind, cause and scenario."""
    done = [row for row in rows if "error" not in row]
    parts = [
        f"# {title}",
        f"{len(rows)} jobs{command and f' (`{command}`)'}, {len(rows) - len(done)} without an answer. What "
        "is judged, and by which rules: [tests/simulation/judge.py](../../tests/simulation/judge.py).",
        _table(("criterion", "result", "wanted"), _criteria(done)),
        "## Causes",
        "named: an accepted cause is somewhere in the answer. over: what the accepted causes are said to cost "
        "at most, less what the planted one costs, of the step (5 %, median, 95 %).",
        _table(
            (
                *("kind", "planted", "jobs", "due", "first right", "its cause right", "named"),
                *("wrong, high", "at most holds", "over", "said instead, or false alarms"),
            ),
            _causes(done),
        ),
        "## What-if",
        "error: predicted over simulated - 1 (5 %, median, 95 %); band: its half, median",
        _table(
            ("kind", "scenario", "predictions", "within 5 %", "in the band", "error", "band"), _whatif(done)
        ),
        "## Buckets",
        _table(("kind", "buckets", *(f"{fault} wrong" for fault in BUCKET_FAULTS)), _buckets(done)),
    ]
    failed = [row for row in rows if "error" in row]
    if failed:
        parts += ["## No answer", _table(("job", "kind", "planted", "error"), map(_failed, failed))]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows))


def _share(values: Iterable[bool]) -> str:
    listed = list(values)
    return f"{sum(listed)} of {len(listed)} ({sum(listed) / len(listed):.1%})" if listed else "-"


def _spread(values: Iterable[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "-"
    at = [ordered[round(share * (len(ordered) - 1))] for share in (0.05, 0.5, 0.95)]
    return ", ".join(f"{value:+.1%}" for value in at)


def _criteria(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    due = [row for row in rows if row["is_due"]]
    guesses = [guess for row in rows for guess in row["whatif"]]
    equal = (not any(row["buckets"][fault] for fault in BUCKET_FAULTS) for row in rows if row["buckets"])
    alarms = (bool(row["false_alarms"]) for row in rows if row["planted"] is None)
    bounded = (row["at_most_holds"] for row in rows if row["at_most_holds"] is not None)
    yield (
        "the first cause is the planted one (cause, rank, phase)",
        _share(r["first_right"] for r in due),
        "95 %",
    )
    yield "... its cause alone", _share(row["first_cause_right"] for row in due), ""
    yield "a wrong cause with confidence high", sum(row["wrong_high"] for row in rows), "0"
    yield "at most: not below the saving by more than 2 % of the step", _share(bounded), "all"
    yield "what-if within 5 %", _share(guess["is_close"] for guess in guesses), "90 %"
    yield "what-if: the truth is in the band", _share(guess["in_band"] for guess in guesses), "90 %"
    yield "jobs all of whose buckets are equal", _share(equal), "all"
    yield "clean jobs with a false alarm", _share(alarms), "below 5 %"


def _by(rows: Iterable[Row], *names: str) -> list[tuple[tuple[str, ...], list[Row]]]:
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return sorted(found.items())


def _causes(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    for (kind, cause), group in _by(rows, "kind", "cause"):
        due = [row for row in group if row["is_due"]]
        wrong = Counter(_first(row) for row in due if not row["first_right"])
        wrong.update(alarm["cause"] for row in group for alarm in row["false_alarms"])
        yield (
            *(kind, cause, len(group), len(due)),
            *(_share(row[name] for row in due) for name in ("first_right", "first_cause_right", "is_named")),
            sum(row["wrong_high"] for row in group),
            _share(row["at_most_holds"] for row in group if row["at_most_holds"] is not None),
            _spread(row["over"] for row in group if row["over"] is not None),
            ", ".join(f"{name} {count}" for name, count in wrong.most_common(4)),
        )


def _first(row: Row) -> str:
    if not row["said"]:
        return "nothing"
    first = row["said"][0]
    return (
        f"{first['cause']} (rank {first['rank']}, {first['phase']})"
        if row["first_cause_right"]
        else first["cause"]
    )


def _whatif(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    guesses = [guess | {"kind": row["kind"]} for row in rows for guess in row["whatif"]]
    for (kind, scenario), group in _by(guesses, "kind", "scenario"):
        yield (
            *(kind, scenario, len(group)),
            *(_share(guess[name] for guess in group) for name in ("is_close", "in_band")),
            _spread(guess["error"] for guess in group),
            f"{sorted(guess['band'] for guess in group)[len(group) // 2]:.1%}",
        )


def _buckets(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    for (kind,), group in _by((row for row in rows if row["buckets"]), "kind"):
        total: Counter[str] = Counter()
        for row in group:
            total.update(row["buckets"])
        yield (kind, total["buckets"], *(total[fault] for fault in BUCKET_FAULTS))


def _failed(row: Row) -> Sequence[object]:
    return row["job"], row["kind"], row["cause"], row["error"]
