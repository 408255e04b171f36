"""What makes the step this long, cause by cause, and what to change first?

Every instant of the critical path over all ranks is given to at most one cause, so what causes cost at most can never
add up to more than the step, nor a cause to more than the critical path allows (both asserted)::

    path_ns = computation + sum over causes of cost + unresolved

    cost(cause, step) = min over the tied paths of the step of the path time given to the cause
    cost(cause)       = mean over the steady steps of cost(cause, step)

The minimum over tied paths: where several ranks end together, what only one of them suffers from saves nothing. An
instant of the path is given to the first rule of ``rules`` that holds it: what the device did not run though it was
ready, lateness of the rank (``lateness``), copies, what a blocking call took (``blocking``), launching, start-up time;
transfers by what they are (``transfers``). Shares of an instant are given by measured ratios (contention, latency of
small messages, groups that compete).

"At most", since without the cause something else becomes critical. For causes of transfers the replay without any
communication (``removal``) says how much of the step is left then: none of them saves more, and the order of causes is
that of ``min(cost, saving)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model import pools
from nsysddp.model.errors import AnalysisError
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import FLAG, FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import ms
from nsysddp.questions import critical_path
from nsysddp.questions.diagnosis.causes import CAUSES
from nsysddp.questions.diagnosis.claims import OPEN
from nsysddp.questions.diagnosis.costs import assert_bounds, costs_of, evidence_of, per_step_of
from nsysddp.questions.diagnosis.facts import Facts
from nsysddp.questions.diagnosis.faults import faults, unjudged
from nsysddp.questions.diagnosis.path import OPEN_KINDS
from nsysddp.questions.diagnosis.rules import COMPUTATION, UNRESOLVED, given_to_causes
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from nsysddp.questions import Context

__all__ = ["COMPUTATION", "DIAGNOSIS", "QUESTION", "TABLES", "UNRESOLVED", "diagnose"]

DIAGNOSIS = Table(
    "diagnosis",
    "one cause, by what it costs or, where that is less, saves; faults have no cost and come last",
    (
        Column("place", INT, "1 for the first to change"),
        Column("cause", TEXT, "stable name of the cause"),
        Column("cost_ns", INT, "path time of it per steady step; null for a fault, which has no cost"),
        Column(
            "saving_ns",
            INT,
            "causes of transfers: by how much the replayed step is shorter without any communication, so that none of "
            "them saves more; null for other causes, and where no replay tells it",
        ),
        Column("step_ratio", FLOAT, "cost_ns / mean critical path of the steady steps"),
        Column("is_bound", FLAG, "without it a step gets shorter by at most the cost; null for a fault"),
        Column("confidence", TEXT, "high, medium or low"),
        Column("doubt", TEXT, "why the confidence is not high; null if it is"),
        Column("steps", INT, "steady steps in which it costs anything"),
        Column("of_steps", INT, "steady steps"),
        Column("rank", INT, "rank on which most of it happened; null if it is spread"),
        Column("phase", TEXT, "phase in which most of it happened; null if it is spread"),
        Column("claim", TEXT, "what was found, one sentence"),
        Column("try_next", TEXT, "one change"),
        Column("refuted_by", TEXT, "what would show that it is not the cause"),
    ),
)

DIAGNOSIS_STEP = Table(
    "diagnosis_step",
    "one cause (or computation, or unresolved) in one step",
    (
        Column("step", TEXT, "name of the step; null for the whole capture"),
        Column("step_index", INT, "0-based order of the step; null for the whole capture"),
        Column("cause", TEXT, "stable name of the cause, computation or unresolved"),
        Column("cost_ns", INT, "path time given to it, the least of the step's tied paths"),
        Column("path_ns", INT, "critical path of the step, the shortest of the tied ones"),
    ),
)

DIAGNOSIS_EVIDENCE = Table(
    "diagnosis_evidence",
    "one part of a cause: path time by rank, phase, kind and name, the largest first",
    (
        Column("cause", TEXT, "stable name of the cause"),
        Column("kind", TEXT, "kind of the pieces of the critical path"),
        Column("rank", INT, "rank on which they happened"),
        Column("phase", TEXT, "phase in which they were launched"),
        Column("name", TEXT, "kernel, copy or API name"),
        Column(
            "host_phase",
            TEXT,
            "host pieces above 1 ms: phase range in which the host spent most of it; null if in none",
        ),
        Column("cost_ns", INT, "path time per steady step, mean over all paths of the step"),
        Column("pieces", INT, "pieces of the critical path"),
    ),
)

DIAGNOSIS_UNJUDGED = Table(
    "diagnosis_unjudged",
    "one cause of which this capture says nothing",
    (
        Column("cause", TEXT, "stable name of the cause"),
        Column("reason", TEXT, "what is missing"),
        Column("capture", TEXT, "what to capture next time"),
    ),
)

TABLES = (DIAGNOSIS, DIAGNOSIS_STEP, DIAGNOSIS_EVIDENCE, DIAGNOSIS_UNJUDGED)
"""The tables of `nsysddp diagnose`, in order."""


def diagnose(context: Context) -> Result:
    """Which causes make the steady steps long, what does each cost at most, and what to change first?

    Args:
        context: of a trace loaded with ``host_calls=True``, ``shapes=True`` and ``metrics=True`` for all causes;
            what is missing is listed in ``diagnosis_unjudged``.

    Returns:
        The tables ``diagnosis``, ``diagnosis_step``, ``diagnosis_evidence`` and ``diagnosis_unjudged``, with one
        finding per cause.

    Raises:
        AnalysisError: the trace was loaded without the host's calls, or causes add up to more than a step.
    """
    if context.trace.calls is None:
        raise AnalysisError("diagnose asks what the host did", do="load with host_calls=True")
    trace, graph, paths = context.trace, context.graph, context.paths
    facts = Facts.of(context)
    pools.hand_back()  # the other questions are answered, and what follows is the largest
    parts = given_to_causes(context, facts, paths)
    per_step = per_step_of(parts)
    assert_bounds(per_step)
    evidence = evidence_of(parts)
    rows = [
        *costs_of(context, parts, per_step, evidence, paths, facts),
        *faults(context, graph, paths),
    ]
    frames = {
        "diagnosis": DIAGNOSIS.frame(
            [row | {"place": number} for number, row in enumerate(rows, start=1)],
        ),
        "diagnosis_step": DIAGNOSIS_STEP.check(per_step),
        "diagnosis_evidence": DIAGNOSIS_EVIDENCE.check(evidence),
        "diagnosis_unjudged": DIAGNOSIS_UNJUDGED.frame(unjudged(context, facts, paths)),
    }
    return Result(
        trace,
        frames,
        findings=_findings(frames, _why_open(paths)),
        assumptions=(
            "each instant of the critical path is given to one cause, so costs add up; without a cause something else "
            "may become critical, so each is what it costs at most",
            *paths.assumptions,
        ),
        warnings=paths.warnings,
    )


_WHY_OPEN = {
    "unmatched_communication": "mostly communication without a match: capture all ranks, with --include-blobs=true",
    "graph": "mostly whole CUDA graphs: capture with --cuda-graph-trace=node",
}
"""Why path time is unresolved, and what to capture, by the kind that most of it is of."""


def _why_open(paths: Result) -> str:
    """Why path time is unresolved, in brackets; empty where it is little or has no single reason."""
    kinds = paths["critical_path_kind"].with_columns(pl.col("kind").cast(pl.String))
    left = kinds.filter(pl.col("kind").is_in(OPEN_KINDS)).group_by("kind").agg(pl.col("duration_ns").sum())
    first = left.sort("duration_ns", "kind").tail(1)
    if first.is_empty() or 2 * first["duration_ns"][0] < left["duration_ns"].sum():
        return ""
    is_much = int(left["duration_ns"].sum()) > OPEN * int(kinds["duration_ns"].sum())
    reason = _WHY_OPEN.get(first["kind"][0])
    return f" ({reason})" if reason and is_much else ""


def _split(per_step: pl.DataFrame, why: str) -> Finding:
    """The mean critical path of a steady step: how much of it is computation, causes, and unknown, and why."""
    if per_step.is_empty():
        return Finding("critical_path_split", "No steady step.", severity=1.0)
    windows = per_step["step_index"].n_unique()
    path = int(per_step.unique("step_index")["path_ns"].sum())
    known = {
        name: int(per_step.filter(pl.col("cause") == name)["cost_ns"].sum())
        for name in (COMPUTATION, UNRESOLVED)
    }
    given = int(per_step["cost_ns"].sum())
    parts = {
        "computation": known[COMPUTATION],
        "causes below": given - sum(known.values()),
        "unresolved": known[UNRESOLVED],
        "different on tied ranks": path - given,
    }
    listed = ", ".join(
        f"{name} {ms(value / windows):.3f}{why if name == UNRESOLVED else ''}"
        for name, value in parts.items()
        if round(ms(value / windows), 3)
    )
    return Finding(
        "critical_path_split",
        f"Critical path {ms(path / windows):.3f} ms a step: {listed}.",
        value=path / windows,
        unit="ns",
        rows=({"table": "diagnosis_step"},),
        severity=1.0,
    )


def _findings(frames: dict[str, pl.DataFrame], why_open: str) -> tuple[Finding, ...]:
    """Where the step goes, then one finding per row of the diagnosis, with the rows that carry it."""
    made = [_split(frames["diagnosis_step"], why_open)]
    for row in frames["diagnosis"].iter_rows(named=True):
        parts = frames["diagnosis_evidence"].filter(pl.col("cause") == row["cause"]).head(3)
        rows = tuple(
            {
                "table": "critical_path_cause",
                **{name: part[name] for name in ("kind", "rank", "phase", "name")},
            }
            for part in parts.iter_rows(named=True)
        )
        made.append(
            Finding(
                code=row["cause"],
                message=row["claim"],
                rank=row["rank"],
                value=row["cost_ns"],
                unit=None if row["cost_ns"] is None else "ns",
                rows=rows,
                severity=row["step_ratio"] or 0.0,
            )
        )
    return tuple(made)


QUESTION = Question(
    name="diagnosis",
    ask="What makes the step this long, cause by cause, and what to change first?",
    more="Each cause comes with the milliseconds per step that it costs at most (together never more than the step), "
    "how sure that is, one change to try, and what would refute it. Costs are of the steady steps' critical path.",
    tables=TABLES,
    run=lambda context, _: context.diagnosis,
    shown=DIAGNOSIS.name,
    reads=frozenset({"launches", "host_calls", "shapes", "metrics"}),
    whole_steps=True,
    examples=("report.sqlite", "report.sqlite --out diagnosis --force"),
    findings={
        "critical_path_split": "how much of a steady step is computation, causes, and unknown",
        **{cause.code: cause.title for cause in CAUSES},
    },
    warnings=critical_path.WARNINGS,
)
