"""How much communication is hidden, and what is exposed?

Each table of the answer has a question of its own, listed here with what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model.result import Result
from nsysddp.model.schema import RANK
from nsysddp.model.warnings import Warning
from nsysddp.questions import collectives, kernels, own_time, phases
from nsysddp.questions.findings import CODES, find
from nsysddp.questions.overlap import OVERLAP
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from nsysddp.model.schema import Table
    from nsysddp.questions.context import Context


@dataclass(frozen=True)
class Analysis:
    """One registered question.

    Attributes:
        table: what it answers with.
        question: what it answers, one line.
        needs: what the trace must hold for a full answer.
        run: from the context and the tables before it to the frame.
    """

    table: Table
    question: str
    needs: str
    run: Callable[[Context, Mapping[str, pl.DataFrame]], pl.DataFrame]


ANALYSES: tuple[Analysis, ...] = (
    Analysis(
        RANK,
        "Who took part, on which GPU, and how are the clocks aligned?",
        "GPU events",
        lambda c, _: c.trace.ranks,
    ),
    Analysis(
        OVERLAP,
        "How much communication is hidden, and what is exposed?",
        "GPU events; steps: NVTX and launches",
        lambda c, _: c.decomposition,
    ),
    Analysis(
        phases.PHASE,
        "What did forward, backward and optimizer launch, and when did it run?",
        "NVTX phase ranges and launches",
        lambda c, _: c.of_ranks("phase"),
    ),
    Analysis(
        collectives.COLLECTIVE,
        "How much of each collective is wait, how much transfer, at which bandwidth?",
        "several ranks; payloads for sizes",
        lambda c, _: c.of_ranks("collective"),
    ),
    Analysis(
        kernels.KERNEL_CLASS,
        "Which kernels ran, and as what do they count?",
        "GPU events",
        lambda c, _: c.of_ranks("kernel_class"),
    ),
    Analysis(
        kernels.MEMORY,
        "Which copies and memsets ran, and how much of them alone?",
        "GPU events",
        lambda c, _: c.of_ranks("memory"),
    ),
    Analysis(
        collectives.STRAGGLER,
        "Which rank arrived last, and what did that cost the others?",
        "matched collectives",
        lambda c, tables: collectives.straggler_table(
            tables["collective"], own_time.phases_behind(c.of_ranks("own_phases"), c.attribution)
        ),
    ),
    Analysis(
        kernels.OUTSIDE_STEPS,
        "Which GPU work lies outside every step?",
        "NVTX step ranges and launches",
        lambda c, _: c.of_ranks("outside_steps"),
    ),
)
"""Every table of `nsysddp analyze`, in order."""


def answer(context: Context) -> Result:
    """As ``analyze``, for a context that the caller needs for more."""
    tables: dict[str, pl.DataFrame] = {}
    for analysis in ANALYSES:
        tables[analysis.table.name] = analysis.run(context, tables)
    warnings = [*context.trace.warnings, *context.windows.warnings]
    graphs = tables["overlap"]["hidden_communication_ns"].null_count()
    if graphs:
        warnings.append(
            Warning(
                "whole_graph_spans",
                graphs,
                "windows hold CUDA graphs traced as one span, so overlap is unknown there: "
                "capture with --cuda-graph-trace=node",
            )
        )
    assumptions = (*context.trace.assumptions, *context.windows.assumptions, *_ASSUMPTIONS)
    result = Result(context.trace, tables, (), assumptions, tuple(warnings))
    return replace(result, findings=find(result, context))


_ASSUMPTIONS = (
    "wait is an upper bound and transfer what the wire needed: a ring can move its first chunks between ranks that "
    "have arrived",
)


QUESTION = Question(
    name="analysis",
    ask="How much communication is hidden, and what is exposed?",
    more="Per rank and step: hidden and exposed communication, wait and transfer, phases, collectives, stragglers.",
    tables=tuple(analysis.table for analysis in ANALYSES),
    run=lambda context, _: context.analysis,
    shown="overlap",
    rankwise=True,
    examples=("report.sqlite", "report.sqlite --table collective --format csv"),
    findings=CODES,
)
