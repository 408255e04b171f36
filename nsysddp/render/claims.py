"""Answers to claims for people, for CI and for a review."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING, Any, Protocol

from nsysddp.model.names import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    from rich.console import Console


class Answer(Protocol):
    """What is shown of an answer (``evidence.claims.Verdict``)."""

    @property
    def outcome(self) -> str:
        """pass, fail or undecidable."""
        ...

    @property
    def reason(self) -> str:
        """The numbers that decided, or why they cannot."""
        ...

    @property
    def capture(self) -> str | None:
        """What to capture to decide it."""
        ...

    def as_dict(self) -> Mapping[str, Any]:
        """Name, claim and the rest as plain values."""
        ...


WORDS = {"pass": "PASS", "fail": "FAIL", "undecidable": "UNDECIDABLE"}
_STYLES = {"pass": "green", "fail": "bold red", "undecidable": "yellow"}


def summary(answers: Sequence[Answer]) -> str:
    """How many claims hold, fail and cannot be decided."""
    counts = [(word, sum(answer.outcome == word for answer in answers)) for word in WORDS]
    named = {"pass": "passed", "fail": "failed", "undecidable": "undecidable"}
    return ", ".join(f"{count} {named[word]}" for word, count in counts if count)


def table(answers: Sequence[Answer]) -> pl.DataFrame:
    """One row a claim: ``name``, ``claim``, ``outcome``, ``reason``, ``capture``."""
    import polars as pl

    columns = ("name", "claim", "outcome", "reason", "capture")
    rows = [answer.as_dict() for answer in answers]
    return pl.DataFrame(
        {name: [row[name] for row in rows] for name in columns}, dict.fromkeys(columns, pl.String)
    )


def print_claims(answers: Sequence[Answer], out: Console) -> None:
    """Print each claim with its answer."""
    from rich.padding import Padding
    from rich.text import Text

    for answer in answers:
        content = answer.as_dict()
        line = Text(f"{WORDS[answer.outcome]:<12}", style=_STYLES[answer.outcome])
        line.append(visible(content["name"]), style="bold")
        if content["name"] != content["claim"]:
            line.append(f"  {visible(content['claim'])}", style="dim")
        out.print(line)
        out.print(Padding(Text(visible(answer.reason)), (0, 0, 0, 12)))
        if answer.capture:
            out.print(Padding(Text(f"to decide it: {answer.capture}", style="dim"), (0, 0, 0, 12)))
    out.print(Text(summary(answers), style="bold"))


def junit(answers: Sequence[Answer]) -> str:
    """The answers as JUnit XML: a failing claim is a failure, an undecidable one is skipped."""
    suite = ElementTree.Element(
        "testsuite",
        name="nsysddp check",
        tests=str(len(answers)),
        failures=str(sum(answer.outcome == "fail" for answer in answers)),
        errors="0",
        skipped=str(sum(answer.outcome == "undecidable" for answer in answers)),
    )
    for answer in answers:
        content = answer.as_dict()
        case = ElementTree.SubElement(
            suite, "testcase", classname="nsysddp.check", name=visible(content["name"])
        )
        text = f"{content['claim']}\n{answer.reason}"
        if answer.capture:
            text += f"\nto decide it: {answer.capture}"
        if answer.outcome == "pass":
            ElementTree.SubElement(case, "system-out").text = visible_lines(text)
        else:
            kind = "failure" if answer.outcome == "fail" else "skipped"
            found = ElementTree.SubElement(case, kind, message=visible(answer.reason))
            found.text = visible_lines(text)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def visible_lines(text: str) -> str:
    """Text of several lines without control characters, which XML does not allow."""
    return "\n".join(visible(line) for line in text.splitlines())


def github(answers: Sequence[Answer]) -> str:
    """The answers as workflow commands of GitHub Actions: an error, a warning or a notice each."""
    levels = {"pass": "notice", "fail": "error", "undecidable": "warning"}
    lines = []
    for answer in answers:
        content = answer.as_dict()
        message = f"{content['claim']}: {answer.reason}" + (
            f" (to decide it: {answer.capture})" if answer.capture else ""
        )
        title = f"{WORDS[answer.outcome]} {content['name']}"
        lines.append(f"::{levels[answer.outcome]} title={_property(title)}::{_data(message)}")
    return "\n".join(lines) + "\n"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def gitlab(answers: Sequence[Answer]) -> str:
    """Claims that do not pass, as a Code Quality report of GitLab (an artifact of ``reports: codequality``)."""
    import hashlib
    import json

    severities = {"fail": "major", "undecidable": "info"}
    found = []
    for answer in answers:
        if answer.outcome == "pass":
            continue
        content = answer.as_dict()
        found.append(
            {
                "description": visible(f"{WORDS[answer.outcome]} {content['name']}: {answer.reason}"),
                "check_name": "nsysddp check",
                "fingerprint": hashlib.sha256(f"{content['name']}\n{content['claim']}".encode()).hexdigest(),
                "severity": severities[answer.outcome],
                "location": {"path": "nsysddp", "lines": {"begin": 1}},
            }
        )
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
