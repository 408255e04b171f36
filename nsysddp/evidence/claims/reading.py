"""What does the text of a claim say, and a file of claims?"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsysddp.evidence.claims.claim import ALIASES, BETTER, JOB, OVERLAP_METRICS, STATISTICS, UNITS, Claim
from nsysddp.model.errors import UsageError
from nsysddp.model.inputs import read_text
from nsysddp.questions.compare.metrics import METRICS

if TYPE_CHECKING:
    from pathlib import Path


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
    if first[0].lower() not in ALIASES and not _known(first[0]) and first[0].lower() != "no":
        return _unknown_metric(first[0])
    if re.search(r"\b(improves|worsens)\b", text, re.IGNORECASE):
        return "a change is METRIC improves by >= NUMBER% [on WHERE] [with 95% confidence]"
    if not re.search(r"[<>=]", text):
        return "it compares with nothing (>, >=, <, <=, == or != and a number)"
    return "a condition is METRIC [STATISTIC] COMPARATOR NUMBER[UNIT] [on WHERE]"


def _known(metric: str) -> bool:
    return metric.lower() in BETTER or f"{metric.lower()}_ns" in BETTER


def _unknown_metric(metric: str) -> str:
    close = difflib.get_close_matches(metric.lower(), [*BETTER, *ALIASES], 2, 0.6)
    return f"there is no metric {metric!r}" + (f" (did you mean {' or '.join(close)}?)" if close else "")


def _metric(written: str, text: str) -> str:
    metric = ALIASES.get(written.lower(), written.lower())
    if metric in BETTER:
        return metric
    if f"{metric}_ns" in BETTER:
        return f"{metric}_ns"
    raise UsageError(f"claim {text!r}: {_unknown_metric(written)}", do="nsysddp check --metrics lists them")


def _where(written: str | None, metric: str, text: str) -> str | int:
    if metric in JOB:
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
    if where is not None and metric in JOB:
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
    if metric in OVERLAP_METRICS:
        raise UsageError(
            f"claim {text!r}: {metric} is not compared between runs", do=f"choose one of {', '.join(METRICS)}"
        )
    if BETTER[metric] == "neither":
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
