"""What do the tables say, in plain words, ranked, each with its number and the rows behind it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.names import ranks_text
from nsysddp.model.result import Finding
from nsysddp.model.units import ms
from nsysddp.questions.collectives import on_compute_streams
from nsysddp.questions.steps import steady

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsysddp.model.result import Result
    from nsysddp.model.trace import Trace
    from nsysddp.questions.steps import Attribution

CODES: dict[str, str] = {
    "overlap_on_every_rank": "every rank hides some transfer under computation",
    "overlap_on_some_ranks": "some ranks hide transfer; others hide none, or nothing is known of them",
    "no_overlap": "no rank of which it is known hides any communication",
    "overlap_unsplit": "communication runs beside computation, but wait and transfer cannot be told apart",
    "overlap_is_waiting": "most overlap of a rank is waiting for another rank",
    "exposed_is_waiting": "most exposed communication of a rank is waiting for another rank",
    "no_communication": "a rank ran no communication kernels: overlap is not applicable",
    "communication_on_compute_stream": "communication runs on the stream that computes, so it cannot overlap",
    "whole_graph": "CUDA graphs were traced as one span: what they hold is unknown",
    "gpu_data_missing": "a process launched work of which the report holds no GPU event",
    "shared_gpu": "ranks ran on one physical GPU, so their computing times include each other's",
    "capture_incomplete": "nsys itself says that events can be missing",
    "suspected_collectives": "kernels that no rule knows are named like collectives",
    "clock_unusable": "clocks of the reports do not agree well enough to split wait from transfer",
    "warm_up": "leading steps are longer than the rest",
}
"""Every finding code with its meaning; the README's list is made from it."""

_CERTAIN_GAP = ("not all cuda events", "not all nvtx events")
_MOSTLY = 0.5


def find(result: Result, attribution: Attribution) -> tuple[Finding, ...]:
    """All findings, most important first; ties keep a fixed order."""
    made = [
        *_warned(result),
        *_overlap(result),
        *_waiting(result),
        *_no_communication(result),
        *_same_stream(result.trace, attribution),
        *_graphs(result),
        *_incomplete(result),
        *_suspected(result),
        *_warm_up(result),
    ]
    return tuple(sorted(made, key=lambda finding: -finding.severity))


_FROM_WARNINGS = {"process_without_gpu_events": ("gpu_data_missing", 110), "shared_gpu": ("shared_gpu", 105)}
"""Warnings that a reader must know before anything else: code and severity of the finding."""


def _warned(result: Result) -> Iterator[Finding]:
    for warning in result.warnings:
        if warning.code in _FROM_WARNINGS:
            code, severity = _FROM_WARNINGS[warning.code]
            yield Finding(
                code,
                f"{warning.message[0].upper()}{warning.message[1:]}.",
                value=warning.count,
                unit="count",
                rows=({"table": "rank"},),
                severity=severity,
            )


def _totals(result: Result) -> list[dict[str, Any]]:
    """Sums of the steady windows of each rank that has any; null where a part is unknown."""
    columns = [
        "communication_ns",
        "hidden_communication_ns",
        "exposed_communication_ns",
        "hidden_transfer_ns",
        "hidden_wait_ns",
        "hidden_unsplit_ns",
        "exposed_transfer_ns",
        "exposed_wait_ns",
    ]
    return (
        steady(result["overlap"])
        .group_by("rank", maintain_order=True)
        .agg(
            *(
                pl.when(pl.col(name).is_null().any()).then(None).otherwise(pl.col(name).sum()).alias(name)
                for name in columns
            ),
        )
        .sort("rank")
        .to_dicts()
    )


def _row(rank: int | None = None, table: str = "overlap", **keys: Any) -> dict[str, Any]:
    return {"table": table, **({"rank": rank} if rank is not None else {}), **keys}


def _overlap(result: Result) -> Iterator[Finding]:
    totals = _totals(result)
    known = [row for row in totals if row["communication_ns"] and row["hidden_communication_ns"] is not None]
    if not known:
        return
    rows = tuple(_row(row["rank"]) for row in known)
    span = _span(result)
    rest = _rest(result, totals, known)
    who, whom = (ranks_text([row["rank"] for row in known]),) * 2
    if not rest:
        who, whom = ("every rank", "any rank") if len(known) > 1 else ("the only rank",) * 2
    if all(row["hidden_communication_ns"] == 0 for row in known):
        exposed = max(row["exposed_communication_ns"] for row in known)
        single = _single_bucket(result)
        because = " (one collective a step: it cannot start before the last gradient)" if single else ""
        yield Finding(
            "no_overlap",
            f"No overlap on {whom}: all communication is exposed, up to {ms(exposed):.2f} ms on one rank"
            f"{span}{because}{rest}.",
            value=0,
            unit="ns",
            rows=rows,
            severity=100,
        )
        return
    if any(not row["hidden_transfer_ns"] and row["hidden_unsplit_ns"] != 0 for row in known):
        low = min(row["hidden_communication_ns"] for row in known)
        yield Finding(
            "overlap_unsplit",
            f"Communication runs beside computation for at least {ms(low):.2f} ms on {who}{span}, but how much of that "
            f"is waiting cannot be told: the counterpart of its collectives was not captured or not matched{rest}.",
            value=low,
            unit="ns",
            rows=rows,
            severity=90,
        )
        return
    # Of a rank that hides nothing at all no transfer is hidden, matched or not.
    transfer = {row["rank"]: row["hidden_transfer_ns"] or 0 for row in known}
    with_transfer = [rank for rank, hidden in transfer.items() if hidden]
    without = [rank for rank, hidden in transfer.items() if not hidden]
    low, high = min(transfer.values()), max(transfer.values())
    if not without:
        yield Finding(
            "overlap_on_some_ranks" if rest else "overlap_on_every_rank",
            f"Overlap on {who}: {_between(known)} under computation{span}{rest}.",
            value=len(with_transfer) if rest else low,
            unit="count" if rest else "ns",
            rows=rows,
            severity=100,
        )
    elif with_transfer:
        some = ranks_text(with_transfer)
        verbs = ["hides" if len(ranks) == 1 else "hide" for ranks in (with_transfer, without)]
        yield Finding(
            "overlap_on_some_ranks",
            f"{some[0].upper() + some[1:] if rest else f'Only {some}'} {verbs[0]} transfer under computation "
            f"(up to {ms(high):.2f} ms{span}); {f'{ranks_text(without)} {verbs[1]}' if rest else 'the others hide'} "
            f"none{rest}.",
            value=len(with_transfer),
            unit="count",
            rows=rows,
            severity=100,
        )
    else:
        wait = max(row["hidden_wait_ns"] or 0 for row in known)
        yield Finding(
            "no_overlap",
            f"No transfer is hidden on {whom}: the bars that lie side by side are waiting "
            f"(up to {ms(wait):.2f} ms{span}){rest}.",
            value=0,
            unit="ns",
            rows=rows,
            severity=100,
        )


def _rest(result: Result, totals: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> str:
    """What there is to say of the ranks of the job whose overlap is not known; empty if there are none."""
    silent = _silent(result, totals)
    ranks = result.trace.rank_numbers
    unknown = [rank for rank in ranks if rank not in {*silent, *(row["rank"] for row in known)}]
    missing = _missing(result)
    return (
        (f"; {ranks_text(silent)} ran no communication" if silent else "")
        + (f"; nothing is known of {ranks_text(unknown)}" if unknown else "")
        + (f"; {missing} of the job's {missing + len(ranks)} ranks were not captured" if missing else "")
    )


def _silent(result: Result, totals: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ranks of which it is known that they ran no communication.

    Under a whole graph the hidden time is null: what ran there is unknown. What took no time did communicate.
    """
    if any(one.code in ("unnamed_kernels", "impossible_times") for one in result.warnings):
        return []
    talked = result["kernel_class"].filter(pl.col("class") == "communication")["rank"].to_list()
    return [
        row["rank"]
        for row in totals
        if row["communication_ns"] == row["hidden_communication_ns"] == 0 and row["rank"] not in talked
    ]


def _missing(result: Result) -> int:
    """How many ranks of the job are not in the trace, as far as the ranks tell the size of their job."""
    worlds = result["rank"]["world_size"].drop_nulls().to_list()
    silent = sum(one.count for one in result.warnings if one.code == "process_without_gpu_events")
    return max(max(worlds, default=0) - len(result.trace.rank_numbers), silent)


def _span(result: Result) -> str:
    """Over which time a sum goes, where it is more than one window of a rank."""
    windows = int(steady(result["overlap"]).group_by("rank").len()["len"].max() or 0)  # type: ignore[arg-type]
    return f" over {windows} steps" if windows > 1 else ""


def _between(totals: Sequence[Mapping[str, Any]]) -> str:
    """How much transfer the ranks hide, and which share of their transfer that is."""
    hidden = [row["hidden_transfer_ns"] for row in totals]
    shares = [
        100 * row["hidden_transfer_ns"] / (row["hidden_transfer_ns"] + row["exposed_transfer_ns"])
        for row in totals
    ]
    whose = "its" if len(totals) == 1 else "a rank's"
    length = _range_of(f"{ms(time):.2f}" for time in (min(hidden), max(hidden)))
    share = _range_of(f"{part:.0f}" for part in (min(shares), max(shares)))
    return f"{length} ms of transfer ({share} % of {whose} transfer) are hidden"


def _range_of(edges: Iterable[str]) -> str:
    """Two figures, once if they read the same."""
    return " to ".join(dict.fromkeys(edges))


def _single_bucket(result: Result) -> bool:
    """Does every rank run one collective a step in backward?"""
    frame = steady(result["overlap"])
    return bool(
        frame.height and (frame["collectives"] == 1).all() and frame["step_index"].is_not_null().all()
    )


def _waiting(result: Result) -> Iterator[Finding]:
    imposed = (
        result["straggler"]
        .group_by("rank")
        .agg(pl.col("imposed_wait_ns").sum())
        .sort("imposed_wait_ns", "rank")
    )
    span = _span(result)
    for row in _totals(result):
        for where in ("hidden", "exposed"):
            total, wait = row[f"{where}_communication_ns"], row[f"{where}_wait_ns"]
            if not total or wait is None or wait <= _MOSTLY * total:
                continue
            others = imposed.filter((pl.col("rank") != row["rank"]) & (pl.col("imposed_wait_ns") > 0))
            whom = f"rank {others['rank'][-1]}" if others.height else "other ranks"
            kind = "overlap" if where == "hidden" else "exposed communication"
            yield Finding(
                "overlap_is_waiting" if where == "hidden" else "exposed_is_waiting",
                f"Most {kind} of rank {row['rank']} is waiting for {whom}: "
                f"{ms(wait):.2f} of {ms(total):.2f} ms ({100 * wait / total:.0f} % of its "
                f"{where} communication{span}).",
                rank=row["rank"],
                value=wait,
                unit="ns",
                rows=(_row(row["rank"]), *(_row(int(r), "straggler") for r in others["rank"].to_list()[-1:])),
                severity=80 if where == "hidden" else 70,
            )


def _no_communication(result: Result) -> Iterator[Finding]:
    silent = _silent(result, _totals(result))
    if not silent:
        return
    every = len(silent) == len(result.trace.rank_numbers) and not _missing(result)
    who = "on any rank" if every and len(silent) > 1 else f"on {ranks_text(silent)}"
    yield Finding(
        "no_communication",
        f"No communication kernels {who}; overlap is not applicable.",
        rank=silent[0] if len(silent) == 1 else None,
        value=0,
        unit="count",
        rows=tuple(_row(rank) for rank in silent),
        severity=60,
    )


def _same_stream(trace: Trace, attribution: Attribution) -> Iterator[Finding]:
    mixed = on_compute_streams(trace, attribution)
    for row in mixed.iter_rows(named=True):
        share = row["communication"] / row["all"]
        yield Finding(
            "communication_on_compute_stream",
            f"Rank {row['rank']} runs {ms(row['communication']):.2f} ms of communication ({100 * share:.0f} % of its "
            f"communication) on its compute stream {row['stream']}: there it cannot overlap with computation.",
            rank=row["rank"],
            value=row["communication"],
            unit="ns",
            rows=(_row(row["rank"], "collective", stream=row["stream"]),),
            severity=75,
        )


def _graphs(result: Result) -> Iterator[Finding]:
    frame = result["overlap"].filter(
        pl.col("overlap_ratio").is_null() & pl.col("hidden_communication_ns").is_null()
    )
    for warning in result.warnings:
        if warning.code == "whole_graph_spans":
            yield Finding(
                "whole_graph",
                f"CUDA graphs were traced as one span in {warning.count} window"
                f"{'s' if warning.count != 1 else ''}: what they hold is unknown, so no overlap is claimed; "
                "capture with --cuda-graph-trace=node.",
                value=warning.count,
                unit="count",
                rows=tuple(_row(rank) for rank in frame["rank"].unique().sort().to_list()),
                severity=95,
            )


def _incomplete(result: Result) -> Iterator[Finding]:
    """Nsys prints 'might not have been collected' for sound captures too, so it is a caution, ranked low."""
    for one in result.trace.inputs:
        said = [text for text in one.diagnostics if text.lower().startswith(_CERTAIN_GAP)]
        if said:
            yield Finding(
                "capture_incomplete",
                f"{one.name}: nsys says {' '.join(sorted(said))} What is absent is no evidence.",
                value=len(said),
                unit="count",
                severity=20,
            )


def _suspected(result: Result) -> Iterator[Finding]:
    for warning in result.warnings:
        if warning.code == "suspected_collectives":
            yield Finding(
                "suspected_collectives",
                f"{warning.count} unclassified kernel name{'s' if warning.count != 1 else ''} read like collectives "
                "but count as compute: give --rules if they communicate.",
                value=warning.count,
                unit="count",
                rows=({"table": "kernel_class", "rule": "unclassified"},),
                severity=85,
            )
        elif warning.code == "clock_residual":
            yield Finding(
                "clock_unusable",
                warning.message[0].upper() + warning.message[1:] + ".",
                value=warning.count,
                unit="count",
                rows=({"table": "rank"},),
                severity=85,
            )


def _warm_up(result: Result) -> Iterator[Finding]:
    alone = pl.col("is_warmup").all().over("rank")
    warm = result["overlap"].with_columns(alone=alone).filter("is_warmup")
    for (is_all,), frame in warm.group_by("alone", maintain_order=True):
        steps = frame["step"].unique(maintain_order=True).to_list()
        what = (
            f"Nothing but warm-up is shown of {ranks_text(frame['rank'].unique().sort().to_list())}"
            if is_all
            else "Warm-up, left out of every summary"
        )
        yield Finding(
            "warm_up",
            f"{what}: {', '.join(str(step) for step in steps)}.",
            value=len(steps),
            unit="count",
            rows=tuple(_row(rank, step=step) for rank, step in frame.select("rank", "step").iter_rows()),
            severity=10,
        )
