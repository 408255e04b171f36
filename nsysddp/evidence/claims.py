"""Does what is claimed about a run hold? A small language, and an answer with numbers: pass, fail or undecidable.

Grammar (case does not matter; ``[...]`` may be left out)::

    claim      = overlap [":" condition] | condition | change
    overlap    = "overlap on" WHERE | "no overlap on any rank"
    condition  = METRIC [STATISTIC] COMPARATOR NUMBER[UNIT] ["on" WHERE]
    change     = METRIC ("improves" | "worsens") "by" COMPARATOR NUMBER "%" ["on" WHERE] ["with 95% confidence"]
    WHERE      = "every rank" | "any rank" | "rank" N
    STATISTIC  = median | mean | min | max | total | p95 | p99
    COMPARATOR = ">" | ">=" | "<" | "<=" | "==" | "!="
    UNIT       = ns | us | ms | s | %

Examples::

    overlap on every rank: hidden_transfer_ns > 0
    no overlap on any rank
    exposed_communication_ns p95 <= 2ms
    step improves by >= 3% with 95% confidence

``overlap on WHERE`` alone means ``hidden_transfer_ns > 0 on WHERE``, and ``no overlap on any rank`` means
``hidden_communication_ns == 0 on every rank``. A condition is about every rank unless it says otherwise, or about the
job where the metric is the job's. Without a statistic it is about the total of the steady steps if the number is 0,
else about their median step; repeats are pooled, and ranks never are. A change compares the given runs with a base.
``step improves`` is about the workload's own clock where every run recorded it, else about the profiled step. With
confidence a change holds if the whole 95 % interval does and fails if none of it does; without, it is about these very
runs.

Undecidable is no failure: the trace cannot tell. The answer then says why, and what to capture.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nsysddp.model.errors import UsageError
from nsysddp.model.inputs import read_text
from nsysddp.model.units import NS_PER_MS, NS_PER_S, NS_PER_US
from nsysddp.questions.compare import Comparison
from nsysddp.questions.compare.metrics import JOB_METRICS, LEAST_STEPS, METRICS, RANK_METRICS, percentile
from nsysddp.questions.statistics import runs_needed
from nsysddp.questions.steps import steady

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl

    from nsysddp.evidence.sources import Loaded

Outcome = Literal["pass", "fail", "undecidable"]
Floats = np.ndarray[Any, np.dtype[np.float64]]

UNITS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
COMPARATORS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
STATISTICS = ("median", "mean", "min", "max", "total", "p95", "p99")
_SHARES = {"p95": 0.95, "p99": 0.99}

_OVERLAP_METRICS = {
    "communication_ns": "lower",
    "hidden_communication_ns": "higher",
    "hidden_unsplit_ns": "lower",
    "exposed_unsplit_ns": "lower",
    "spin_ns": "neither",
    "graph_ns": "neither",
    "p2p_copy_ns": "neither",
    "tail_wait_ns": "lower",
    "tail_transfer_ns": "lower",
    "overlap_ratio": "higher",
    "collectives": "neither",
}
"""Columns of the overlap table that can be claimed about and are not compared."""

_ALIASES = {"step": "step_ns", "overlap": "overlap_ratio"}
_JOB = {metric.name for metric in JOB_METRICS}
_BETTER: dict[str, str] = {**{name: metric.better for name, metric in METRICS.items()}, **_OVERLAP_METRICS}
_UNSPLIT = {
    "hidden_transfer_ns": "hidden_unsplit_ns",
    "hidden_wait_ns": "hidden_unsplit_ns",
    "exposed_transfer_ns": "exposed_unsplit_ns",
    "exposed_wait_ns": "exposed_unsplit_ns",
}
"""Where this much is not split, the metric lies between its value and its value plus that."""


@dataclass(frozen=True)
class Claim:
    """One claim, understood.

    Attributes:
        text: as it was written.
        name: its name; the text by default.
        metric: column or metric that it is about.
        statistic: over the steady steps; None for a change.
        comparator: of the value with ``number``.
        number: in ns, as a ratio for percentages, or a plain count.
        where: ``every``, ``any``, ``job``, or a rank number.
        change: ``improves`` or ``worsens``; None for a condition.
        confident: whether the interval has to hold.
    """

    text: str
    name: str
    metric: str
    comparator: str
    number: float
    where: str | int
    statistic: str | None = None
    change: str | None = None
    confident: bool = False


@dataclass(frozen=True)
class Verdict:
    """The answer to one claim.

    Attributes:
        claim: the claim.
        outcome: pass, fail or undecidable.
        reason: one sentence with the numbers that decided, or why they cannot.
        capture: undecidable: what to capture to decide it; None otherwise.
        rows: the numbers and where they stand: table, its key columns, value, and whether the row by itself holds.
    """

    claim: Claim
    outcome: Outcome
    reason: str
    capture: str | None = None
    rows: tuple[Mapping[str, Any], ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "name": self.claim.name,
            "claim": self.claim.text,
            "outcome": self.outcome,
            "reason": self.reason,
            "capture": self.capture,
            "rows": [dict(row) for row in self.rows],
        }


# --- reading ------------------------------------------------------------------------------------------------

_WHERE = r"(?P<where>(?:every|any|all)\s+ranks?|rank\s+\d+)"
_NUMBER = r"(?P<comparator>>=|<=|==|!=|=|>|<)\s*(?P<number>[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?)\s*(?P<unit>[a-zµ%]+)?"
_METRIC = r"(?P<metric>[a-z_][\w.]*)"
_CONDITION = re.compile(
    rf"{_METRIC}(?:\s+(?P<statistic>{'|'.join(STATISTICS)}))?\s*{_NUMBER}(?:\s+on\s+{_WHERE})?", re.IGNORECASE
)
_CHANGE = re.compile(
    rf"{_METRIC}\s+(?P<change>improves|worsens)\s+by\s+{_NUMBER}(?:\s+on\s+{_WHERE})?"
    r"(?P<confident>\s+with\s+(?P<level>\d+(?:\.\d+)?)\s*%\s+confidence)?",
    re.IGNORECASE,
)
_OVERLAP = re.compile(rf"(?P<no>no\s+)?overlap\s+on\s+{_WHERE}(?:\s*:\s*(?P<rest>.+))?", re.IGNORECASE)


def parse(text: str, name: str | None = None) -> Claim:
    """What does a claim say?

    Raises:
        UsageError: it cannot be understood; the message says where.
    """
    written = " ".join(text.split())
    if not written:
        raise UsageError("an empty claim", do=_SEE)
    overlap = _OVERLAP.fullmatch(written)
    if overlap:
        return _overlap_claim(written, name or written, overlap)
    change = _CHANGE.fullmatch(written)
    if change:
        return _change_claim(written, name or written, change)
    condition = _CONDITION.fullmatch(written)
    if condition:
        return _condition_claim(written, name or written, condition, None)
    raise UsageError(f"claim {written!r} cannot be read: {_trouble(written)}", do=_SEE)


_SEE = (
    "write for example 'overlap on every rank: hidden_transfer_ns > 0' "
    "or 'step improves by >= 3% with 95% confidence'"
)


def _trouble(text: str) -> str:
    """Where reading stops making sense."""
    first = re.match(r"[A-Za-z_][\w.]*", text)
    if not first:
        return f"it does not begin with a metric but with {text[:12]!r}"
    if first[0].lower() not in _ALIASES and not _known(first[0]) and first[0].lower() != "no":
        return _unknown_metric(first[0])
    if re.search(r"\b(improves|worsens)\b", text, re.IGNORECASE):
        return "a change is METRIC improves by >= NUMBER% [on WHERE] [with 95% confidence]"
    if not re.search(r"[<>=]", text):
        return "it compares with nothing (>, >=, <, <=, == or != and a number)"
    return "a condition is METRIC [STATISTIC] COMPARATOR NUMBER[UNIT] [on WHERE]"


def _known(metric: str) -> bool:
    return metric.lower() in _BETTER or f"{metric.lower()}_ns" in _BETTER


def _unknown_metric(metric: str) -> str:
    close = difflib.get_close_matches(metric.lower(), [*_BETTER, *_ALIASES], 2, 0.6)
    return f"there is no metric {metric!r}" + (f" (did you mean {' or '.join(close)}?)" if close else "")


def _metric(written: str, text: str) -> str:
    metric = _ALIASES.get(written.lower(), written.lower())
    if metric in _BETTER:
        return metric
    if f"{metric}_ns" in _BETTER:
        return f"{metric}_ns"
    raise UsageError(f"claim {text!r}: {_unknown_metric(written)}", do="nsysddp check --metrics lists them")


def _where(written: str | None, metric: str, text: str) -> str | int:
    if metric in _JOB:
        if written is not None:
            raise UsageError(
                f"claim {text!r}: {metric} is the job's and not a rank's",
                do="leave out the rank, or claim window_ns",
            )
        return "job"
    if written is None:
        return "every"
    words = written.lower().split()
    if words[0] in ("every", "all"):
        return "every"
    return "any" if words[0] == "any" else int(words[1])


def _number(found: re.Match[str], metric: str, text: str) -> float:
    value, unit = float(found["number"]), (found["unit"] or "").lower()
    if metric.endswith("_ns"):
        if unit and unit not in UNITS:
            raise UsageError(f"claim {text!r}: {unit!r} is no unit of time", do="write ns, us, ms or s")
        return value * UNITS[unit or "ns"]
    if metric.endswith("_ratio"):
        if unit not in ("", "%"):
            raise UsageError(f"claim {text!r}: {metric} is a share, not {unit!r}", do="write 0.9 or 90%")
        return value / 100 if unit == "%" else value
    if unit:
        raise UsageError(f"claim {text!r}: {metric} has no unit, not {unit!r}", do="write the number alone")
    return value


def _comparator(found: re.Match[str]) -> str:
    return "==" if found["comparator"] == "=" else found["comparator"]


def _overlap_claim(text: str, name: str, found: re.Match[str]) -> Claim:
    where = _where(found["where"], "hidden_transfer_ns", text)
    rest = found["rest"]
    if found["no"]:
        if where != "any":
            raise UsageError(
                f"claim {text!r}: 'no overlap' is claimed on any rank", do="write 'no overlap on any rank'"
            )
        if rest is None:
            return Claim(text, name, "hidden_communication_ns", "==", 0.0, "every", statistic="total")
        where = "every"
    if rest is None:
        return Claim(text, name, "hidden_transfer_ns", ">", 0.0, where, statistic="total")
    condition = _CONDITION.fullmatch(rest.strip())
    if not condition:
        raise UsageError(f"claim {text!r} cannot be read: {_trouble(rest.strip())}", do=_SEE)
    if condition["where"]:
        raise UsageError(f"claim {text!r} says twice which ranks it is about", do="say it once")
    return _condition_claim(text, name, condition, where)


def _condition_claim(text: str, name: str, found: re.Match[str], where: str | int | None) -> Claim:
    metric = _metric(found["metric"], text)
    if where is not None and metric in _JOB:
        raise UsageError(
            f"claim {text!r}: {metric} is the job's and not a rank's", do="claim window_ns instead"
        )
    number = _number(found, metric, text)
    default = "total" if number == 0 and not metric.endswith("_ratio") else "median"
    return Claim(
        text,
        name,
        metric,
        _comparator(found),
        number,
        _where(found["where"], metric, text) if where is None else where,
        statistic=(found["statistic"] or default).lower(),
    )


def _change_claim(text: str, name: str, found: re.Match[str]) -> Claim:
    metric = _metric(found["metric"], text)
    if metric in _OVERLAP_METRICS:
        raise UsageError(
            f"claim {text!r}: {metric} is not compared between runs", do=f"choose one of {', '.join(METRICS)}"
        )
    if _BETTER[metric] == "neither":
        raise UsageError(
            f"claim {text!r}: neither more nor less {metric} is better", do="choose another metric"
        )
    if found["unit"] != "%":
        raise UsageError(f"claim {text!r}: a change is in per cent", do="write for example >= 3%")
    if found["level"] is not None and float(found["level"]) != 95:
        raise UsageError(f"claim {text!r}: intervals are at 95 %", do="write 'with 95% confidence'")
    if _comparator(found) not in (">", ">=", "<", "<="):
        raise UsageError(f"claim {text!r}: a change is never exactly a number", do="write >=, >, <= or <")
    return Claim(
        text,
        name,
        metric,
        _comparator(found),
        float(found["number"]) / 100,
        _where(found["where"], metric, text),
        change=found["change"].lower(),
        confident=found["confident"] is not None,
    )


@dataclass(frozen=True)
class Claims:
    """A file of claims: the question that they answer, and the claims in order."""

    question: str | None
    claims: tuple[Claim, ...]


def read_claims(file: Path) -> Claims:
    """Claims of a TOML file: ``question = "..."`` and a table ``[claims]`` of ``name = "claim"``.

    Raises:
        UsageError: it is no such file, or a claim cannot be understood.
    """
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})", file=file
        ) from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}", file=file, do=_FORM) from None
    unknown = sorted(set(content) - {"question", "claims"})
    claims = content.get("claims")
    if unknown or not isinstance(claims, dict) or not claims:
        what = f"unknown key {unknown[0]!r}" if unknown else "no table [claims] with a claim"
        raise UsageError(what, file=file, do=_FORM)
    wrong = [name for name, claim in claims.items() if not isinstance(claim, str)]
    if wrong or not isinstance(content.get("question", ""), str):
        raise UsageError(f"{wrong[0] if wrong else 'question'!r} is no text", file=file, do=_FORM)
    try:
        return Claims(content.get("question"), tuple(parse(claim, name) for name, claim in claims.items()))
    except UsageError as error:
        raise UsageError(error.what, file=file, do=error.do) from None


_FORM = """write question = "..." and below [claims] lines of name = "claim\""""


# --- deciding -----------------------------------------------------------------------------------------------


def check(
    claims: Sequence[Claim], runs: Sequence[Loaded], comparison: Comparison | None = None
) -> list[Verdict]:
    """Do the claims hold for these runs?

    Args:
        claims: parsed claims.
        runs: the repeats they are about, pooled.
        comparison: of these runs with a base, for claims about a change.
    """
    return [
        _check_condition(claim, runs) if claim.change is None else _check_change(claim, comparison)
        for claim in claims
    ]


_MORE_RUNS = "capture at least three repeats of each side (nsysddp capture --repeat)"

_CAPTURE = {
    "graph": "capture with --cuda-graph-trace=node",
    "split": "capture every rank, with NVTX and NCCL's payloads (export with --include-blobs=true)",
    "steps": "mark steps and phases with NVTX (nsysddp.annotate) and capture with --trace=cuda,nvtx",
    "more": "capture more steps (nsysddp capture --capture-steps)",
    "ranks": "capture every rank of the job",
    "host": "capture with --trace=cuda,nvtx and --cuda-event-trace=true",
    "records": "run the workload under nsysddp capture, which keeps its own records",
    "contention": "capture steps without communication too (a no_sync step, a single rank, or more steps)",
}


@dataclass(frozen=True)
class _Part:
    """The values of one rank (None: the job): one a steady step, with how much more they can be."""

    rank: int | None
    values: Floats
    extra: Floats
    why: str | None = None
    capture: str | None = None


def _parts(claim: Claim, runs: Sequence[Loaded]) -> list[_Part]:
    if claim.where == "job":
        known = [run.run.samples.get((claim.metric, None)) for run in runs]
        values = [steps for steps in known if steps is not None]
        if len(values) < len(runs):
            why = runs[0].run.unknown.get((claim.metric, None), "it was not recorded")
            capture = {"critical_communication_ns": "host", "step_ns": "steps"}.get(claim.metric, "records")
            return [_Part(None, np.empty(0), np.empty(0), f"{claim.metric}: {why}", _CAPTURE[capture])]
        joined = np.concatenate(values)
        return [_Part(None, joined, np.zeros(joined.size))]
    ranks = sorted({rank for run in runs for rank in run.result["rank"]["rank"].to_list()})
    if isinstance(claim.where, int):
        ranks = [claim.where]
    return [_rank_part(claim.metric, rank, runs) for rank in ranks]


def _rank_part(metric: str, rank: int, runs: Sequence[Loaded]) -> _Part:
    values: list[Floats] = []
    extra: list[Floats] = []
    for run in runs:
        overlap = steady(run.result["overlap"])
        mine = overlap.filter(overlap["rank"] == rank)
        nothing = np.empty(0)
        if not mine.height:
            there = rank in run.result["rank"]["rank"]
            why = f"rank {rank} {'has no window of steps' if there else 'is not'} in {run.source.name}"
            return _Part(rank, nothing, nothing, why, _CAPTURE["steps" if there else "ranks"])
        if metric == "window_ns" and mine["step_index"].null_count():
            return _Part(rank, nothing, nothing, f"{run.source.name} shows no steps", _CAPTURE["steps"])
        if metric in mine.columns:
            if mine[metric].null_count():
                why, capture = _why_null(metric, mine)
                return _Part(rank, nothing, nothing, f"rank {rank}: {why}", capture)
            values.append(mine[metric].to_numpy().astype(np.float64))
            holder = _UNSPLIT.get(metric)
            extra.append(
                mine[holder].fill_null(0).to_numpy().astype(np.float64) if holder else np.zeros(mine.height)
            )
        else:
            steps = run.run.samples.get((metric, rank))
            if steps is None:
                why = run.run.unknown.get((metric, rank), "not known")
                capture = _CAPTURE["contention" if metric == "contention_ns" else "steps"]
                return _Part(rank, nothing, nothing, f"rank {rank}: {metric} is {why}", capture)
            values.append(steps)
            extra.append(np.zeros(steps.size))
    return _Part(rank, np.concatenate(values), np.concatenate(extra))


def _why_null(metric: str, windows: pl.DataFrame) -> tuple[str, str]:
    unknown = windows.filter(windows[metric].is_null())
    counted = f"in {unknown.height} of {windows.height} window{'s' if windows.height > 1 else ''}"
    if unknown["hidden_communication_ns"].null_count():
        return f"CUDA graphs were traced as one span {counted}, so {metric} is unknown", _CAPTURE["graph"]
    if metric == "overlap_ratio":
        return (
            f"there is no communication {counted}, so there is no overlap ratio",
            "nothing: it is not applicable",
        )
    if metric in _UNSPLIT:
        return f"wait and transfer cannot be told apart {counted}", _CAPTURE["split"]
    if metric.startswith("tail_"):
        return f"there is no backward range, or its communication is not matched, {counted}", _CAPTURE[
            "steps"
        ]
    return f"{metric} is unknown {counted}", _CAPTURE["steps"]


def _statistic(name: str, values: Floats) -> float:
    if name in _SHARES:
        return float(np.sort(values)[math.ceil(round(_SHARES[name] * values.size, 9)) - 1])
    made: dict[str, Callable[[Floats], Any]] = {
        "median": np.median,
        "mean": np.mean,
        "min": np.min,
        "max": np.max,
        "total": np.sum,
    }
    return float(made[name](values))


def _check_condition(claim: Claim, runs: Sequence[Loaded]) -> Verdict:
    parts = _parts(claim, runs)
    verdicts = [_check_part(claim, part) for part in parts]
    rows = tuple(row for _, row, _, _ in verdicts if row is not None)
    passed = [row for outcome, row, _, _ in verdicts if outcome == "pass" and row is not None]
    failed = [row for outcome, row, _, _ in verdicts if outcome == "fail" and row is not None]
    unclear = [(why, capture) for outcome, _, why, capture in verdicts if outcome == "undecidable"]
    if claim.where == "any":
        if passed:
            return Verdict(claim, "pass", _sentence(claim, passed[:1]), rows=rows)
        if not unclear and not (missing := _missing_ranks(runs)):
            return Verdict(claim, "fail", _sentence(claim, _nearest(claim, failed)), rows=rows)
    elif failed:
        return Verdict(claim, "fail", _sentence(claim, failed), rows=rows)
    if unclear:
        reasons = list(dict.fromkeys(why for why, _ in unclear))
        return Verdict(claim, "undecidable", "; ".join(reasons), unclear[0][1], rows)
    if claim.where in ("every", "any") and (missing := _missing_ranks(runs)):
        return Verdict(claim, "undecidable", missing, _CAPTURE["ranks"], rows)
    nothing = _nothing_to_overlap(claim, runs)
    if nothing:
        return Verdict(claim, "undecidable", nothing, "capture steps in which the ranks communicate", rows)
    return Verdict(claim, "pass", _sentence(claim, passed), rows=rows)


def _check_part(claim: Claim, part: _Part) -> tuple[Outcome, dict[str, Any] | None, str, str]:
    """Outcome of one rank, its row, and why and what to capture where it is undecidable."""
    if part.why is not None or not part.values.size:
        return "undecidable", None, part.why or "no steps", part.capture or _CAPTURE["steps"]
    assert claim.statistic is not None
    holds = COMPARATORS[claim.comparator]
    low = _statistic(claim.statistic, part.values)
    high = _statistic(claim.statistic, part.values + part.extra)
    row: dict[str, Any] = {
        "table": "comparison" if part.rank is None else "overlap",
        "rank": part.rank,
        "metric": claim.metric,
        "statistic": claim.statistic,
        "steps": part.values.size,
        "value": low,
        "holds": holds(low, claim.number),
    }
    who = "" if part.rank is None else f"rank {part.rank}: "
    share = _SHARES.get(claim.statistic)
    if share is not None and percentile(part.values, share) is None:
        least = LEAST_STEPS[share]
        # A percentile above the median is at least the median, so few steps can refute a claim but not show it.
        if claim.comparator in ("<", "<=") and not holds(float(np.median(part.values)), claim.number):
            row["value"] = float(np.median(part.values))
            row["statistic"] = "median"
            row["holds"] = False
            return "fail", row, "", ""
        row["holds"] = None
        why = f"{who}{claim.statistic.upper()} needs at least {least} steps, there are {part.values.size}"
        return "undecidable", row, why, _CAPTURE["more"]
    if high != low and holds(low, claim.number) != holds(high, claim.number):
        row["holds"] = None
        why = (
            f"{who}{claim.metric} is between {shown(low, claim.metric)} and {shown(high, claim.metric)}: some "
            "communication is not matched over ranks"
        )
        return "undecidable", row, why, _CAPTURE["split"]
    return ("pass" if row["holds"] else "fail"), row, "", ""


def _missing_ranks(runs: Sequence[Loaded]) -> str | None:
    for run in runs:
        worlds = run.result["rank"]["world_size"].drop_nulls().to_list()
        if worlds and max(worlds) > run.result["rank"].height:
            return (
                f"{run.source.name} holds {run.result['rank'].height} of {max(worlds)} ranks, and nothing is known "
                "about the others"
            )
    return None


def _nothing_to_overlap(claim: Claim, runs: Sequence[Loaded]) -> str | None:
    """'No overlap' of ranks that did not communicate says nothing."""
    if not (claim.metric.startswith(("hidden_", "exposed_")) and claim.comparator in ("==", "<", "<=")):
        return None
    if "memory" in claim.metric:
        return None
    for run in runs:
        overlap = run.result["overlap"]
        silent = [
            rank
            for rank in overlap["rank"].unique().sort().to_list()
            if not overlap.filter(overlap["rank"] == rank)["communication_ns"].sum()
        ]
        if silent:
            return f"rank {silent[0]} of {run.source.name} ran no communication: overlap is not applicable"
    return None


def _nearest(claim: Claim, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: abs(float(row["value"]) - claim.number))[:1]


def shown(value: float, metric: str) -> str:
    """A value of a metric with its unit."""
    if metric.endswith("_ns"):
        return f"{value / NS_PER_MS:,.6f}".rstrip("0").rstrip(".") + " ms"
    if metric.endswith("_ratio"):
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"


def _sentence(claim: Claim, rows: Sequence[Mapping[str, Any]]) -> str:
    bound = f"{claim.comparator} {shown(claim.number, claim.metric)}"
    parts = []
    for row in rows[:4]:
        who = "" if row["rank"] is None else f"rank {row['rank']}: "
        verb = "" if row["holds"] else "not "
        parts.append(
            f"{who}{row['statistic']} {claim.metric} {shown(row['value'], claim.metric)} is {verb}{bound} "
            f"({row['steps']} step{'s' if row['steps'] != 1 else ''})"
        )
    more = f"; and {len(rows) - 4} more ranks" if len(rows) > 4 else ""
    return "; ".join(parts) + more


def _check_change(claim: Claim, comparison: Comparison | None) -> Verdict:
    if comparison is None:
        return Verdict(
            claim,
            "undecidable",
            "there is no base to compare with",
            "give the runs of the base with --base, or a baseline with --against",
        )
    ranks: list[int | None]
    if claim.where == "job":
        ranks = [None]
    elif isinstance(claim.where, int):
        ranks = [claim.where]
    else:
        ranks = [*sorted({rank for side in comparison.runs for run in side for rank in run.ranks})]
    metric, ranks = _decisive(claim, comparison, ranks)
    verdicts = [_check_change_of(claim, comparison, metric, rank) for rank in ranks]
    rows = tuple(row for _, row, _, _ in verdicts if row is not None)
    outcomes = [outcome for outcome, *_ in verdicts]
    decisive: Outcome = "undecidable"
    if claim.where == "any":
        decisive = "pass" if "pass" in outcomes else "undecidable" if "undecidable" in outcomes else "fail"
    else:
        decisive = "fail" if "fail" in outcomes else "undecidable" if "undecidable" in outcomes else "pass"
    mine = [(why, capture) for outcome, _, why, capture in verdicts if outcome == decisive]
    return Verdict(claim, decisive, "; ".join(why for why, _ in mine[:4]), mine[0][1] or None, rows)


def _decisive(claim: Claim, comparison: Comparison, ranks: list[int | None]) -> tuple[str, list[int | None]]:
    """``step`` is the unprofiled step where every run recorded it: profiling lengthens the other."""
    if claim.metric == "step_ns" and comparison.difference("measured_step_ns", None) is not None:
        return "measured_step_ns", ranks
    return claim.metric, ranks


def _check_change_of(
    claim: Claim, comparison: Comparison, metric: str, rank: int | None
) -> tuple[Outcome, dict[str, Any] | None, str, str]:
    who = metric if rank is None else f"rank {rank}: {metric}"
    plain = comparison.difference(metric, rank)
    if plain is None:
        return "undecidable", None, f"{who} is not known on both sides", _CAPTURE["steps"]
    if plain.base == 0:
        return "undecidable", None, f"{who} is 0 in the base, so there is no change in per cent", "nothing"
    # Lower is better: improvement = 1 - new / base; higher is better: new / base - 1. Worsening is its negative.
    sign = -1.0 if _BETTER[metric] == "lower" else 1.0
    sign = sign if claim.change == "improves" else -sign
    change = sign * (plain.new / plain.base - 1)
    row: dict[str, Any] = {
        "table": "comparison",
        "rank": rank,
        "metric": metric,
        "statistic": claim.change,
        "steps": None,
        "value": change,
        "holds": COMPARATORS[claim.comparator](change, claim.number),
    }
    numbers = (
        f"{who} {claim.change} by {100 * change:.2f} % ({shown(plain.base, metric)} to {shown(plain.new, metric)}, "
        f"{plain.base_runs} and {plain.new_runs} runs)"
    )
    if not claim.confident:
        verb = "is" if row["holds"] else "is not"
        bound = f"{claim.comparator} {100 * claim.number:g} %"
        return ("pass" if row["holds"] else "fail"), row, f"{numbers}, which {verb} {bound}", ""
    # The bound as a difference whose sign decides: new - factor * base, with an interval of its own.
    scaled = comparison.difference(metric, rank, factor=1 + sign * claim.number)
    assert scaled is not None
    if scaled.scope != "runs" or scaled.low is None or scaled.high is None:
        row["holds"] = None
        return "undecidable", row, f"{numbers}: too few runs for confidence", _MORE_RUNS
    ends = [sign * end >= 0 for end in (scaled.low, scaled.high)]
    wanted = claim.comparator in (">", ">=")
    interval = sorted(claim.number + sign * end / plain.base for end in (scaled.low, scaled.high))
    numbers += f", 95 % interval {100 * interval[0]:.2f} to {100 * interval[1]:.2f} %"
    row["low"], row["high"] = interval
    if ends[0] == ends[1]:
        row["holds"] = ends[0] == wanted
        return ("pass" if row["holds"] else "fail"), row, numbers, ""
    row["holds"] = None
    needed = runs_needed(scaled)
    advice = f"about {needed} repeats of each side would decide it" if needed else _MORE_RUNS
    return "undecidable", row, f"{numbers}, which contains {100 * claim.number:g} %", advice


def metric_names() -> list[tuple[str, str]]:
    """Every metric that can be claimed about, and what it is."""
    from nsysddp.model.schema import OVERLAP

    described = {column.name: column.meaning for column in OVERLAP.columns}
    named = [(metric.name, metric.meaning) for metric in (*JOB_METRICS, *RANK_METRICS)]
    return named + [(name, described[name]) for name in _OVERLAP_METRICS]
