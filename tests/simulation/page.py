"""The judgement as a page: what is wanted, and distributions by kind of job, planted cause and scenario."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]
BUCKET_FAULTS = ("ready", "launched", "queued", "held", "missing", "extra")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1)
WORST = 12
WANTED_GUESS = 0.9
_Z = 1.959964


def page(rows: Sequence[Row], title: str, command: str = "") -> str:
    """The result as markdown."""
    done = [row for row in rows if "error" not in row]
    guesses = [
        guess | {name: row[name] for name in ("seed", "job", "kind", "cause", "payload")}
        for row in done
        for guess in row["whatif"]
    ]
    shares = ("predictions", "within 5 %", "95 % interval", "in the band", "95 % interval", "wanted")
    parts = [
        f"# {title}",
        f"{len(rows)} jobs{command and f' (`{command}`)'}, {len(rows) - len(done)} without an answer. What "
        "is judged, and by which rules: [tests/simulation/judge.py](../../tests/simulation/judge.py). Intervals "
        "are Wilson's, of 95 %. A job is named `seed/number`: `python -m tests.simulation.judge --seed SEED "
        "--job NUMBER --keep DIR` runs it again.",
        _table(("criterion", "result", "95 % interval", "wanted"), _criteria(rows, done, guesses)),
        "## Causes",
        "named: an accepted cause is somewhere in the answer. over: what the accepted causes are said to cost "
        "at most, less what the planted one costs, of the step (5 %, 25 %, median, 75 %, 95 %).",
        _table(
            (
                *(
                    "kind",
                    "planted",
                    "jobs",
                    "due",
                    "first right",
                    "95 % interval",
                    "its cause right",
                    "named",
                ),
                *("wrong, high", "at most holds", "over", "said instead, or false alarms"),
            ),
            _causes(done),
        ),
        *_listed("Jobs whose first cause is not the planted one", _JOB_HEAD, _missed(done)),
        *_listed("Costs at most that are below the saving", _JOB_HEAD, _too_low(done)),
        *_listed("First sentences that do not hold", (*_JOB_HEAD[:-1], "sentence"), _false_sentences(done)),
        "## What-if",
        "Each prediction beside the same job simulated again. error: predicted over simulated - 1 "
        "(5 %, 25 %, median, 75 %, 95 %); band: half of it over the prediction, median; silent: a scenario "
        "without a prediction, which has a reason; wanted: both shares at least 90 %.",
        "### By kind of job and scenario",
        _table(
            ("kind", "scenario", *shares, "error", "band", "silent"),
            _whatif(guesses, done, "kind", "scenario"),
        ),
        "### By kind of job and what is planted",
        _table(
            ("kind", "planted", *shares, "error", "band", "silent"), _whatif(guesses, done, "kind", "cause")
        ),
        "### How large the errors are",
        _table(
            ("scenario", "predictions", *(f"up to {bound:.1%}" for bound in BOUNDS), "largest"),
            _distribution(guesses),
        ),
        *_listed(
            f"The {WORST} largest errors",
            ("job", "kind", "planted", "scenario", "error", "band"),
            _worst(guesses, lambda guess: abs(guess["error"])),
        ),
        *_listed(
            f"The truth farthest outside of the band ({WORST})",
            ("job", "kind", "planted", "scenario", "error", "band"),
            _worst([guess for guess in guesses if not guess["in_band"]], lambda guess: guess["outside"]),
        ),
        *_listed("Why scenarios are silent", ("kind", "scenario", "jobs", "reason"), _silent(done)),
        "## Buckets",
        _table(("kind", "jobs", "buckets", *(f"{fault} wrong" for fault in BUCKET_FAULTS)), _buckets(done)),
        *_listed("Jobs with wrong buckets", ("job", "kind", "planted", "wrong"), _wrong_buckets(done)),
        *_listed(
            "No answer",
            ("job", "kind", "planted", "error"),
            ((_name(row), row["kind"], row["cause"], row["error"]) for row in rows if "error" in row),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def wilson(good: int, total: int) -> tuple[float, float]:
    """The interval of 95 % in which a share lies of which ``good`` of ``total`` were seen (Wilson's score)."""
    if not total:
        return 0.0, 1.0
    share, square = good / total, _Z**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total**2)) / (1 + square / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def quantiles(values: Iterable[float], at: Sequence[float] = QUANTILES) -> list[float]:
    """The nearest values at these shares; empty without values."""
    ordered = sorted(values)
    return [ordered[round(share * (len(ordered) - 1))] for share in at] if ordered else []


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows))


def _listed(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A section, left out where it has no rows."""
    made = list(rows)
    return [f"### {title}", _table(head, made)] if made else []


def _name(row: Row) -> str:
    return f"{row['seed']}/{row['job']}"


def _share(values: Iterable[bool]) -> str:
    listed = list(values)
    return f"{sum(listed)} of {len(listed)} ({sum(listed) / len(listed):.1%})" if listed else "-"


def _interval(values: Iterable[bool]) -> str:
    listed = list(values)
    if not listed:
        return "-"
    low, high = wilson(sum(listed), len(listed))
    return f"{low:.1%} to {high:.1%}"


def _spread(values: Iterable[float]) -> str:
    return ", ".join(f"{value:+.1%}" for value in quantiles(values)) or "-"


def _by(rows: Iterable[Row], *names: str) -> list[tuple[tuple[str, ...], list[Row]]]:
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return sorted(found.items())


# --- against what is wanted ---------------------------------------------------------------------------------


def _criteria(rows: Sequence[Row], done: Sequence[Row], guesses: Sequence[Row]) -> Iterator[Sequence[object]]:
    def criterion(what: str, values: Iterable[bool], wanted: str) -> Sequence[object]:
        listed = list(values)
        return what, _share(listed), _interval(listed), wanted

    due = [row for row in done if row["is_due"]]
    bounded = [row["at_most_holds"] for row in done if row["at_most_holds"] is not None]
    equal = [not _wrong(row) for row in done if row["buckets"]]
    alarms = [bool(row["false_alarms"]) for row in done if row["planted"] is None]
    yield "jobs without an answer", len(rows) - len(done), "", "0"
    yield criterion(
        "the first cause is the planted one (cause, rank, phase)", (r["first_right"] for r in due), "95 %"
    )
    yield criterion("... its cause alone", (row["first_cause_right"] for row in due), "")
    yield "a wrong cause with confidence high", sum(row["wrong_high"] for row in done), "", "0"
    yield criterion("at most: not below the saving by more than 2 % of the step", bounded, "all")
    open_ones = [row for row in done if row["over"] is not None and row["at_most_holds"] is None]
    yield "causes named with a cost that is said to be no bound", len(open_ones), "", ""
    yield criterion("what-if within 5 %", (guess["is_close"] for guess in guesses), "90 %")
    yield criterion("what-if: the truth is in the band", (guess["in_band"] for guess in guesses), "90 %")
    groups = [group for _, group in _by(guesses, "kind", "scenario")]
    yield criterion("... kinds of job x scenarios where both hold", map(_is_met, groups), "all")
    yield criterion("jobs all of whose buckets are equal", equal, "all")
    yield criterion("clean jobs with a false alarm", alarms, "below 5 %")
    verdicts = [row["verdict"] for row in done if row["verdict"]]
    late = (verdict["late_right"] for verdict in verdicts if verdict["late_due"])
    holds = (verdict["holds"] for verdict in verdicts if verdict["holds"] is not None)
    yield criterion("the first sentence names the rank that is late", late, "95 %")
    yield criterion("the first sentence holds", holds, "all")


def _is_met(guesses: Sequence[Row]) -> bool:
    return all(
        sum(guess[name] for guess in guesses) >= WANTED_GUESS * len(guesses)
        for name in ("is_close", "in_band")
    )


# --- causes -------------------------------------------------------------------------------------------------

_JOB_HEAD = ("job", "kind", "ranks", "planted", "payloads", "saving", "said")


def _causes(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    for (kind, cause), group in _by(rows, "kind", "cause"):
        due = [row for row in group if row["is_due"]]
        wrong = Counter(_first(row) for row in due if not row["first_right"])
        wrong.update(alarm["cause"] for row in group for alarm in row["false_alarms"])
        yield (
            *(kind, cause, len(group), len(due)),
            *(_share(row["first_right"] for row in due), _interval(row["first_right"] for row in due)),
            *(_share(row[name] for row in due) for name in ("first_cause_right", "is_named")),
            sum(row["wrong_high"] for row in group),
            _share(row["at_most_holds"] for row in group if row["at_most_holds"] is not None),
            _spread(row["over"] for row in group if row["over"] is not None),
            ", ".join(f"{name} {count}" for name, count in wrong.most_common(4)),
        )


def _first(row: Row) -> str:
    return _said(row["said"][0], with_place=row["first_cause_right"]) if row["said"] else "nothing"


def _said(said: Row, *, with_place: bool = True) -> str:
    place = f" (rank {said['rank']}, {said['phase']})" if with_place else ""
    return f"{said['cause']}{place}"


def _job(row: Row) -> Sequence[object]:
    said = "; ".join(f"{_said(one)} {one['share']:.1%} {one['confidence']}" for one in row["said"][:2])
    planted = row["planted"] or {}
    where = "".join(f" {planted[name]}" for name in ("rank", "phase") if planted.get(name) is not None)
    return (
        *(_name(row), row["kind"], row["ranks"], row["cause"] + where),
        *("yes" if row["payload"] else "no", f"{row['saving']:.1%}", said or "nothing"),
    )


def _missed(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    yield from (_job(row) for row in rows if row["is_due"] and not row["first_right"])


def _too_low(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    for row in sorted(rows, key=lambda row: row["over"] or 0.0):
        if row["at_most_holds"] is False:
            yield (*_job(row)[:-1], f"{row['over']:+.1%}: {_job(row)[-1]}")


def _false_sentences(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    for row in rows:
        verdict = row["verdict"]
        if verdict and (verdict["late_right"] is False or verdict["holds"] is False):
            yield (*_job(row)[:-1], f"{verdict['code']} (rank {verdict['rank']})")


# --- what-if ------------------------------------------------------------------------------------------------


def _whatif(guesses: Sequence[Row], rows: Sequence[Row], *names: str) -> Iterator[Sequence[object]]:
    silent = Counter(
        tuple((one | row)[name] for name in names) for row in rows for one in row.get("silent", ())
    )
    groups = dict(_by(guesses, *names))
    for key in sorted({*groups, *silent}):
        group = groups.get(key, [])
        close, inside = ([guess[name] for guess in group] for name in ("is_close", "in_band"))
        yield (
            *(*key, len(group), _percent(close), _interval(close), _percent(inside), _interval(inside)),
            ("met" if _is_met(group) else "**not met**") if group else "-",
            _spread(guess["error"] for guess in group),
            f"{quantiles((guess['band'] for guess in group), (0.5,))[0]:.1%}" if group else "-",
            silent[key] or "",
        )


def _percent(values: Sequence[bool]) -> str:
    return f"{sum(values) / len(values):.1%}" if values else "-"


def _distribution(guesses: Sequence[Row]) -> Iterator[Sequence[object]]:
    for (scenario,), group in _by(guesses, "scenario"):
        errors = [abs(guess["error"]) for guess in group]
        within = (sum(error <= bound for error in errors) / len(errors) for bound in BOUNDS)
        yield (scenario, len(group), *(f"{share:.1%}" for share in within), f"{max(errors):.1%}")


def _worst(guesses: Sequence[Row], by: Callable[[Row], float]) -> Iterator[Sequence[object]]:
    for guess in sorted(guesses, key=by, reverse=True)[:WORST]:
        planted = guess["cause"] + ("" if guess["payload"] else ", no payloads")
        band = f"{guess['low']:+.1%} to {guess['high']:+.1%} of the prediction"
        yield _name(guess), guess["kind"], planted, guess["scenario"], f"{guess['error']:+.1%}", band


def _silent(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    found = Counter(
        (row["kind"], one["scenario"], one["reason"]) for row in rows for one in row.get("silent", ())
    )
    for (kind, scenario, reason), count in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        yield kind, scenario, count, reason


# --- buckets ------------------------------------------------------------------------------------------------


def _wrong(row: Row) -> dict[str, int]:
    return {fault: row["buckets"][fault] for fault in BUCKET_FAULTS if row["buckets"][fault]}


def _buckets(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    for (kind,), group in _by((row for row in rows if row["buckets"]), "kind"):
        total: Counter[str] = Counter()
        for row in group:
            total.update(row["buckets"])
        yield (kind, len(group), total["buckets"], *(total[fault] for fault in BUCKET_FAULTS))


def _wrong_buckets(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    for row in rows:
        if row["buckets"] and (wrong := _wrong(row)):
            said = ", ".join(f"{fault} {count}" for fault, count in wrong.items())
            yield _name(row), row["kind"], row["cause"], f"{said} of {row['buckets']['buckets']}"
