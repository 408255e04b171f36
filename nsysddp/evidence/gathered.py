"""What was asked of which runs, and everything that was computed for it: what a bundle is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.evidence.claims import check
from nsysddp.evidence.claims.claim import Claim, Verdict
from nsysddp.evidence.claims.reading import parse
from nsysddp.evidence.sources import USUAL, Loaded, Reading, Source, Where
from nsysddp.model.names import visible
from nsysddp.questions.request import Request as Asked

if TYPE_CHECKING:
    from nsysddp.questions.compare import Comparison


@dataclass(frozen=True)
class Request:
    """Everything besides the runs that decides what is in a bundle.

    Attributes:
        question: what the reviewer wants to know.
        claims: what is claimed.
        reading: how the runs are read.
        allow_unlike: compare although the sides differ.
        with_export: put redacted minimal exports in.
    """

    question: str
    claims: tuple[Claim, ...]
    reading: Reading
    allow_unlike: bool = False
    with_export: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What was asked, as ``evidence.json`` and the manifest keep it."""
        options = {
            "question": self.question,
            "claims": [{"name": claim.name, "claim": claim.text} for claim in self.claims],
            "allow_unlike": self.allow_unlike,
            "with_export": self.with_export,
            "rules": self.reading.rules,
        }
        return self.reading.asked("evidence", "analysis", options).as_dict()

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Request:
        """What ``as_dict`` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        asked = Asked.of(content)
        options = asked.options
        return cls(
            question=str(options["question"]),
            claims=tuple(parse(str(claim["claim"]), str(claim["name"])) for claim in options["claims"]),
            reading=Reading.of(asked, options["rules"]),
            allow_unlike=bool(options["allow_unlike"]),
            with_export=bool(options["with_export"]),
        )


@dataclass(frozen=True)
class Evidence:
    """The runs and what follows from them."""

    request: Request
    new: tuple[Loaded, ...]
    base: tuple[Loaded, ...]
    comparison: Comparison | None
    answers: tuple[Verdict, ...]

    @property
    def sides(self) -> list[tuple[str, Loaded]]:
        """Every run with its side, the new side first."""
        return [*(("new", run) for run in self.new), *(("base", run) for run in self.base)]


def prepare(
    request: Request, new: Sequence[Source], base: Sequence[Source], scratch: Path, where: Where = USUAL
) -> Evidence:
    """Redact, read and analyse the runs, compare the sides and answer the claims.

    Args:
        request: what is wanted.
        new: the runs that the bundle is about.
        base: the runs that they are compared with.
        scratch: an empty folder for the copies; ``exports`` reads them there.
        where: where they are read.

    Raises:
        UsageError: the sides are unlike; ReportError, CaptureError: as of reading.
    """
    from nsysddp.evidence.redact import Policy, aliases_of_hosts, redact
    from nsysddp.evidence.sources import File, load_one, recorded

    hosts = aliases_of_hosts([path for source in (*new, *base) for path in source.reports])
    patterns = (request.reading.step_pattern, *request.reading.phase_patterns.values())
    policy = Policy(minimal=True, keep_ranges=tuple(dict.fromkeys(patterns)))
    sides: dict[str, list[Loaded]] = {"new": [], "base": []}
    for side, sources in (("new", new), ("base", base)):
        for number, source in enumerate(sources, 1):
            copies = []
            for place, path in enumerate(source.reports, 1):
                copy = scratch / export_member(side, number, place, visible(path.name))
                copy.parent.mkdir(parents=True)
                redact(path, copy, policy=policy, hosts=hosts)
                copies.append(copy)
            sides[side].append(
                load_one(
                    replace(source, reports=tuple(copies), extra=()),
                    request.reading,
                    where,
                    stands_for=[File.of(path) for path in source.files],
                    kept=recorded(source),
                )
            )
    return gather(request, sides["new"], sides["base"])


def gather(request: Request, new: Sequence[Loaded], base: Sequence[Loaded] = ()) -> Evidence:
    """Compare the sides where there are two, and answer the claims.

    Raises:
        UsageError: the sides are unlike.
    """
    comparison = None
    if base:
        from nsysddp.questions.compare import compare

        comparison = compare(
            [run.run for run in base], [run.run for run in new], allow_unlike=request.allow_unlike
        )
    return Evidence(
        request, tuple(new), tuple(base), comparison, tuple(check(request.claims, new, comparison))
    )


def export_member(side: str, run: int, report: int, name: str) -> str:
    """Member of the redacted copy of a report: the side's run and the run's report, both from 1, and its base name."""
    from nsysddp.evidence.sources import REPORTS

    ending = next((ending for ending in REPORTS if name.endswith(ending)), "")
    return f"exports/{side}/{run}/{report}/{name.removesuffix(ending)}.sqlite"
