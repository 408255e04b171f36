"""Are these the reports of one run? Reports of two are refused by name, before they are taken for ranks of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from nsysddp.ingest.part import Part
from nsysddp.model.errors import RankConflict
from nsysddp.model.names import counted

APART_NS = 60_000_000_000
"""Hosts whose clocks are further apart than this do not exist; captures that are were not made together."""


def refuse_several_runs(
    parts: Sequence[Part], operations: pl.DataFrame, world_sizes: Mapping[int, set[int]]
) -> None:
    """Refuse reports that share no communicator and contradict each other.

    Groups of a run need not share one: ranks of one stage, or of one host, can be all that reports hold. So that is no
    proof, but with it is one what else two runs differ in: jobs of other sizes, or captures at other times.

    Args:
        parts: the reports, on the axis of session starts.
        operations: ``schema.OPERATIONS`` of all of them.
        world_sizes: report to the sizes of the job that its ranks name.

    Raises:
        RankConflict: they are of several runs; the fewest reports are named.
    """
    first, *others = sorted(_sharing(parts, operations), key=lambda group: (-len(group), group[0]))
    for group in others:
        reason = _contradiction(parts, first, group, world_sizes)
        if reason:
            more = f" and {len(group) - 1} more" if len(group) > 1 else ""
            raise RankConflict(
                f"{parts[group[0]].name}{more} is of another run than {parts[first[0]].name} "
                f"({counted(len(first), 'report')}): they share no communicator, and {reason}",
                do="analyse each run on its own",
            )


def _sharing(parts: Sequence[Part], operations: pl.DataFrame) -> list[list[int]]:
    """The reports that name communicators, in groups that are linked by shared ones; reports in ascending order."""
    of_process = [number for number, part in enumerate(parts) for _ in part.processes]
    named = operations.select("process", "communicator").drop_nulls().unique(maintain_order=True)
    group_of: dict[int, list[int]] = {}
    holder: dict[str, int] = {}
    for process, communicator in named.iter_rows():
        report = of_process[process]
        own = group_of.setdefault(report, [report])
        other = group_of[holder.setdefault(communicator, report)]
        if other is not own:
            own += other
            group_of |= dict.fromkeys(other, own)
    groups = {id(group): sorted(group) for group in group_of.values()}
    return list(groups.values()) or [[0]]


def _contradiction(
    parts: Sequence[Part], one: Sequence[int], other: Sequence[int], world_sizes: Mapping[int, set[int]]
) -> str | None:
    sizes, others = (
        {size for report in some for size in world_sizes.get(report, ())} for some in (one, other)
    )
    if sizes and others and not sizes & others:
        return f"their jobs have {max(sizes)} and {max(others)} ranks"
    if any(parts[report].anchor is None for report in (*one, *other)):
        return None
    (first, last), (begin, end) = _span(parts, one), _span(parts, other)
    apart = max(begin - last, first - end)
    return f"they were captured {apart / 1e9:,.0f} s apart" if apart > APART_NS else None


def _span(parts: Sequence[Part], reports: Sequence[int]) -> tuple[int, int]:
    spans = [
        (first + parts[report].shift, last + parts[report].shift)
        for report in reports
        for first, last in parts[report].events.spans
    ]
    return min(first for first, _ in spans), max(last for _, last in spans)
