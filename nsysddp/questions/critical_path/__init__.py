"""What bounds each step: the chain of work, transfer and host time that its end hung on

    critical_path(trace)            the path of every step over all ranks; tied ranks each get theirs
    rank_paths(trace)               the path of every step within each rank, its waits named after the rank waited for

A path is walked back from the last event along the binding predecessors of ``graph`` and cut into pieces that tile
its window exactly:

    path_ns = compute + spin + memory + graph + transfer + unmatched_communication + wait
              + host + host_gap + sync + gap + queued + unknown                     (wait = 0 over all ranks)

    critical_communication_ns = transfer + unmatched_communication        (the pieces on the path over all ranks)

It differs from ``exposed`` (communication without compute beside it, on one rank: it contains waiting for others, and
may be off the path when another rank or the host is later) and from ``tail`` (what is left after backward: a span).
Source: ``docs/definitions.md``, critical path.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.dependencies.graph import EVIDENCE, Graph, build
from nsysddp.model.errors import UsageError
from nsysddp.model.result import Result
from nsysddp.questions.attribution import Attribution, attribute
from nsysddp.questions.critical_path.tables import (
    CAUSE,
    COMMUNICATION_KINDS,
    KEY,
    KINDS,
    PATH_CAUSE,
    PATH_COMMUNICATION,
    PATH_EVIDENCE,
    PATH_KIND,
    PATH_STEP,
    TABLES,
    WARNINGS,
)
from nsysddp.questions.critical_path.walk import Per, paths_along, windows_of
from nsysddp.questions.critical_path.words import findings_of, grade_of, warnings_of
from nsysddp.questions.question import Option, Question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysddp.model.trace import Trace
    from nsysddp.questions.context import Context

__all__ = [
    "COMMUNICATION_KINDS",
    "KINDS",
    "PATH_KIND",
    "PATH_STEP",
    "QUESTION",
    "TABLES",
    "WARNINGS",
    "communication_beside",
    "critical_path",
    "paths_of",
    "rank_paths",
]


def critical_path(
    trace: Trace,
    per: Per = "step",
    *,
    first_step: int = 0,
    last_step: int | None = None,
    graph: Graph | None = None,
    attribution: Attribution | None = None,
) -> Result:
    """What bounds each step: the path over all ranks that ends with the step's last event.

    Step *k* runs from the end of the last event of step *k-1* over all ranks to the end of its own last event. If
    the last events of several ranks end within 50 us of each other, each of them gets its path and the step is tied.

    Args:
        trace: loaded with ``host_calls=True`` for the full grade.
        per: ``step``, or ``capture`` for one path through the whole capture (another question).
        first_step: index of the first step to answer for.
        last_step: one past the last; None is all.
        graph: the dependency graph, if it has been built.
        attribution: the step and phase of every event, if they are known.

    Returns:
        The tables ``critical_path``, ``critical_path_step``, ``critical_path_kind``, ``critical_path_cause`` and
        ``critical_path_evidence``.

    Raises:
        UsageError: if ``per`` is neither, or no step is left.
        AnalysisError: if pieces do not tile a window.
    """
    return _answer(trace, per, (first_step, last_step), graph, attribution, across=True)


def rank_paths(
    trace: Trace,
    per: Per = "step",
    *,
    first_step: int = 0,
    last_step: int | None = None,
    graph: Graph | None = None,
    attribution: Attribution | None = None,
) -> Result:
    """What bounds each step on each rank by itself: waiting for other ranks stays on the path, under their names.

    A rank's step *k* runs from the end of its own last event of step *k-1* to the end of its last event of *k*.
    Arguments, tables and errors as for ``critical_path``; ``path_rank`` is the rank.
    """
    return _answer(trace, per, (first_step, last_step), graph, attribution, across=False)


def _answer(
    trace: Trace,
    per: Per,
    chosen: tuple[int, int | None],
    graph: Graph | None,
    attribution: Attribution | None,
    *,
    across: bool,
) -> Result:
    if per not in ("step", "capture"):
        raise UsageError(f"a critical path is per step or per capture, not per {per!r}")
    graph = build(trace) if graph is None else graph
    launched = attribute(trace) if attribution is None else attribution
    walks = windows_of(trace, launched, per, chosen, across=across)
    found = paths_along(graph, launched, walks, across=across)
    grade = grade_of(trace)
    steps = found.steps.with_columns(grade=pl.lit(grade))
    kinds = (
        found.kinds.join(steps.select(*KEY, "path_ns"), on=KEY, how="left", nulls_equal=True)
        .with_columns(path_ratio=pl.col("duration_ns") / pl.col("path_ns"))
        .sort("step_index", "path_rank", "kind")
    )
    causes = found.causes.sort(
        "step_index",
        "path_rank",
        "duration_ns",
        *CAUSE,
        descending=[False, False, True, *[False] * len(CAUSE)],
    )
    evidence = PATH_EVIDENCE.frame(
        [{"name": name, "count": graph.counts[name], "meaning": text} for name, text in EVIDENCE.items()]
    )
    tables = {
        "critical_path": found.pieces,
        "critical_path_step": PATH_STEP.check(steps),
        "critical_path_kind": PATH_KIND.check(kinds),
        "critical_path_cause": PATH_CAUSE.check(causes),
        "critical_path_evidence": evidence,
    }
    return Result(
        trace=trace,
        tables=tables,
        findings=findings_of(tables) if across else (),
        assumptions=(
            "profiling itself lengthens host pieces; a host piece does not say that the GPU was idle",
            "hops between threads of a rank are inferred from the order of their calls",
        ),
        warnings=warnings_of(graph, grade, steps, per, launched),
    )


def communication_beside(paths: Result, overlap: pl.DataFrame) -> pl.DataFrame:
    """Why is critical communication not what is exposed or in the tail? The three beside each other.

    Args:
        paths: an answer of ``critical_path``.
        overlap: ``overlap.OVERLAP`` of the same trace and windows.

    Returns:
        ``PATH_COMMUNICATION``. Every rank has a row in every step, and every path one of each rank whose
        communication is on it. Not one of every path and every rank: with hundreds of tied ranks that is their square,
        and all but a few would repeat what the rank's own row says, with 0 on the path.
    """
    key = ["step", "step_index", "path_rank"]
    critical = (
        paths["critical_path_cause"]
        .filter(pl.col("kind").is_in(COMMUNICATION_KINDS))
        .group_by(*key, "rank")
        .agg(critical_communication_ns=pl.col("duration_ns").sum())
    )
    ends = paths["critical_path_step"].select(*key, rank="path_rank")
    first = paths["critical_path_step"].unique("step_index", keep="first", maintain_order=True).select(key)
    own = ["step_index", "rank"]
    others = overlap.select(own).join(ends, on=own, how="anti", nulls_equal=True)
    others = first.join(others, on="step_index", how="inner", nulls_equal=True)
    on_path = critical.select(*key, "rank").filter(pl.col("rank").is_not_null())
    order = paths["critical_path_step"].select(key).with_row_index("path")
    rows = (
        pl.concat([ends, others, on_path], how="vertical_relaxed")
        .unique(maintain_order=True)
        .join(order, on=key, how="left", nulls_equal=True)
        .sort("path", "rank")
        .join(overlap.drop("step"), on=own, how="inner", nulls_equal=True, maintain_order="left")
        .join(critical, on=[*key, "rank"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("critical_communication_ns").fill_null(0))
    )
    return PATH_COMMUNICATION.check(rows)


def paths_of(context: Context, *, each_rank: bool = False) -> Result:
    """The paths of the steps that a request asks for, over all ranks or within each."""
    chosen = context.selection
    return _answer(
        context.trace,
        "step" if chosen.per == "step" else "capture",
        (max(chosen.first_step or 0, chosen.skip_warmup), chosen.last_step),
        context.graph,
        context.attribution,
        across=not each_rank,
    )


def _run(context: Context, options: Mapping[str, Any]) -> Result:
    if options["each_rank"]:
        result = paths_of(context, each_rank=True)
    else:
        beside = communication_beside(context.paths, context.decomposition)
        result = replace(context.paths, tables={**context.paths.tables, PATH_COMMUNICATION.name: beside})
    return replace(result, warnings=(*context.trace.warnings, *result.warnings))


QUESTION = Question(
    name="critical_path",
    ask="What bounds each step: the chain of work, transfer and host time that its end hung on",
    more="The path runs over all ranks: where a collective waited, it goes on at the rank that arrived last. A step's "
    "path and that of the capture (--per capture) are different questions.",
    tables=TABLES,
    run=_run,
    shown=PATH_KIND.name,
    reads=frozenset({"launches", "host_calls"}),
    options=(Option("each_rank", "The path within each rank; its waits stay on it, by name."),),
    whole_steps=True,
    examples=("report.sqlite", "report.sqlite --each-rank --steps 1:2"),
    findings={
        "critical_path": "how long the path of a step is, and what it is made of",
        "critical_path_cause": "one kind of piece of the path, with its rank, phase and kernel",
    },
    warnings=WARNINGS,
)
