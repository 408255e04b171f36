"""The page that is pasted into a review: verdict, claims, table per rank, comparison, pictures, method, limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

import nsysddp
from nsysddp.model.names import ranks_text
from nsysddp.render import per_rank
from nsysddp.render.claims import WORDS, summary
from nsysddp.render.compare.tables import escaped, markdown, markdown_table
from nsysddp.render.compare.words import sentence, title_of, which_is_which

if TYPE_CHECKING:
    from nsysddp.evidence.gathered import Evidence
    from nsysddp.evidence.sources import Loaded

_METHOD = """\
All times are from GPU intervals recorded by Nsight Systems. Lengths are lengths of unions of intervals, never sums of
durations, and every event is clipped to the step window. Communication is *hidden* where computation runs beside it on
the same GPU and *exposed* elsewhere. The time of a collective before its last rank arrived is *wait*, the rest is
*transfer*; only hidden transfer is communication that overlap really saved. For every rank and step

    compute + exposed communication + exposed copies + whole graphs + idle = step

holds to the nanosecond. Ranks stand beside each other and are never averaged. Warm-up steps are left out."""

_MOST_NOTES = 20


@dataclass(frozen=True)
class Answer:
    """What a reviewer reads first.

    Attributes:
        finding: what a run's time hangs on: the first finding of the first new run.
        others: how the further new runs answer that.
        change: faster or slower than the base, by how much, how sure, and what to read with it; empty without base.
        unknown: what of this could not be told, and why.
    """

    finding: str
    others: tuple[str, ...]
    change: tuple[str, ...]
    unknown: tuple[str, ...]

    def parts(self) -> list[tuple[str, Sequence[str]]]:
        """The parts besides the finding, each under its name."""
        named = (
            ("Further runs", self.others),
            ("Against the base", self.change),
            ("Not known", self.unknown),
        )
        return [(name, texts) for name, texts in named if texts]


def answer_of(evidence: Evidence, unjudged: pl.DataFrame | None = None) -> Answer:
    """What do the runs say, what of it is new, and what do they not tell?

    Args:
        evidence: the runs.
        unjudged: ``diagnosis_unjudged`` of the first new run; None without.
    """
    first, *rest = evidence.new
    change: tuple[str, ...] = ()
    if evidence.comparison is not None:
        change = (sentence(evidence.comparison), *which_is_which(evidence.comparison))
    return Answer(
        finding=first.result.findings[0].message if first.result.findings else "Nothing was found.",
        others=tuple(_further(first, rest)),
        change=change,
        unknown=tuple(_unknown(evidence, unjudged)),
    )


def _further(first: Loaded, rest: Sequence[Loaded]) -> list[str]:
    """The first finding of every further run, those of the first run's kind only by name."""

    def kind(run: Loaded) -> str | None:
        return run.result.findings[0].code if run.result.findings else None

    alike = [run.source.name for run in rest if kind(run) == kind(first)]
    said = (
        [f"that is {first.source.name}; {_listed(alike)} say the same, with their own numbers"]
        if alike
        else []
    )
    return said + [
        f"{run.source.name}: {run.result.findings[0].message if run.result.findings else 'nothing was found'}"
        for run in rest
        if kind(run) != kind(first)
    ]


def _unknown(evidence: Evidence, unjudged: pl.DataFrame | None) -> list[str]:
    said = [
        f"{answer.claim.name}: {answer.reason}"
        for answer in evidence.answers
        if answer.outcome == "undecidable"
    ]
    if evidence.comparison is not None:
        missing: dict[tuple[str, str], list[int]] = {}
        frame = evidence.comparison.tables["comparison"].filter(pl.col("difference").is_null())
        for row in frame.iter_rows(named=True):
            ranks = missing.setdefault((row["metric"], row["reason"]), [])
            ranks += [] if row["rank"] is None else [row["rank"]]
        said += [
            f"the change of {title_of(metric)}{f' on {ranks_text(ranks)}' if ranks else ''}: {reason}"
            for (metric, reason), ranks in missing.items()
        ]
        said += [note for note in evidence.comparison.warnings if "not known" in note]
    if unjudged is not None:
        said += [
            f"the cost of {cause.replace('_', ' ')}: {reason}"
            for cause, reason in unjudged.select("cause", "reason").iter_rows()
        ]
    return said


def review(evidence: Evidence, answer: Answer, members: Sequence[str]) -> str:
    """evidence.md of a bundle with these members."""
    first = evidence.new[0]
    lines = [
        f"# {escaped(evidence.request.question)}",
        "",
        *_verdict(evidence, answer),
        *_claims(evidence),
        f"## Each rank ({per_rank.caption(first.result)})",
        "",
        *_ranks(first),
        *_picture("What every rank did when", "timeline", members),
        *_picture("What each rank's time is made of", "decomposition", members),
    ]
    if evidence.comparison is not None:
        lines += ["## Comparison with the base", "", markdown(evidence.comparison, brief=True), ""]
        lines += _picture("Base against new, with 95 % intervals", "comparison", members)
    lines += ["## Method", "", _METHOD, "", "## Limits", "", *_limits(evidence), ""]
    lines += ["## From what, and how to check it", "", *_provenance(evidence), ""]
    return "\n".join(lines)


def _verdict(evidence: Evidence, answer: Answer) -> list[str]:
    lines = [f"**{escaped(answer.finding)}**", ""]
    for name, texts in answer.parts():
        if len(texts) == 1:
            lines += [f"**{name}:** {escaped(texts[0])}", ""]
        else:
            lines += [f"**{name}:**", "", *(f"- {escaped(text)}" for text in texts), ""]
    rest = evidence.new[0].result.findings[1:7]
    return (
        [*lines, "**Also:**", "", *(f"- {escaped(finding.message)}" for finding in rest), ""]
        if rest
        else lines
    )


def _claims(evidence: Evidence) -> list[str]:
    if not evidence.answers:
        return []
    cells = []
    for answer in evidence.answers:
        reason = answer.reason + (f". To decide it: {answer.capture}" if answer.capture else "")
        name = answer.claim.name
        named = answer.claim.text if name == answer.claim.text else f"{name}: {answer.claim.text}"
        cells.append([WORDS[answer.outcome], named, reason])
    table = markdown_table(["", "claim", "why"], cells)
    table[1] = "| --- | --- | --- |"
    return [f"## Claims: {summary(evidence.answers)}", "", *table, ""]


def _ranks(run: Loaded) -> list[str]:
    heads, rows = per_rank.figures(run.result)
    lines = markdown_table(["rank", *heads], [[str(row.rank), *row.cells] for row in rows])
    spread = per_rank.spread(run.result)
    return [*lines, "", *([f"{spread[0].upper()}{spread[1:]}.", ""] if spread else [])]


def _picture(title: str, name: str, members: Sequence[str]) -> list[str]:
    member = f"figures/{name}.png"
    return [f"![{title}]({member})", ""] if member in members else []


def _limits(evidence: Evidence) -> list[str]:
    said: dict[str, list[str]] = {}
    for side, run in evidence.sides:
        worst = run.result["rank"]["clock_residual_ns"].drop_nulls().to_list()
        clocks = f"clocks agree within {max(worst, default=0) / 1000:,.1f} µs (median absolute deviation)"
        for text in (
            *(f"{warning.message} ({warning.count:,})" for warning in run.result.warnings),
            *((clocks,) if any(worst) else ()),
            *run.result.assumptions,
        ):
            said.setdefault(text, []).append(f"{run.source.name} ({side})")
    distinct = [
        text if len(runs) == len(evidence.sides) else f"{_listed(runs)}: {text}"
        for text, runs in said.items()
    ]
    lines = [f"- {escaped(note)}" for note in distinct[:_MOST_NOTES]]
    if len(distinct) > _MOST_NOTES:
        lines.append(f"- and {len(distinct) - _MOST_NOTES} more in evidence.json")
    if len(evidence.new) > 1:
        lines.append(
            f"- Tables and pictures of this page show {escaped(evidence.new[0].source.name)}; tables/ has all runs"
        )
    return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more runs" if len(names) > 3 else "")


def _provenance(evidence: Evidence) -> list[str]:
    cells = []
    for side, run in evidence.sides:
        versions = {report.name: report.nsys_version for report in run.result.trace.inputs}
        cells += [
            [side, run.source.name, file.name, versions.get(file.name) or "", file.sha256[:16]]
            for file in run.files
        ]
    gpus = list(dict.fromkeys(name for name in evidence.new[0].result["rank"]["gpu_name"].to_list() if name))
    table = markdown_table(["side", "run", "file", "nsys", "SHA-256 begins"], cells)
    table[1] = "| --- | --- | --- | --- | --- |"
    return [
        *table,
        "",
        f"GPU: {escaped(', '.join(gpus)) if gpus else 'not recorded'}. Made by nsysddp {nsysddp.__version__}.",
        "`nsysddp verify evidence.zip REPORT...` checks every byte and computes every number, claim, page and picture "
        "anew.",
    ]
