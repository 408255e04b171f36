"""What do the tables say, in plain words, ranked, each with its number and the rows behind it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.names import ranks_text
from nsysddp.model.result import Finding
from nsysddp.model.units import ms
from nsysddp.questions import verdict
from nsysddp.questions.steps import steady
from nsysddp.questions.summary import Summary, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsysddp.model.result import Result
    from nsysddp.questions.context import Context

CODES: dict[str, str] = {
    **verdict.CODES,
    "overlap_on_every_rank": "every rank hides some transfer under computation",
    "overlap_on_some_ranks": "some ranks hide transfer; others hide none, or nothing is known of them",
    "no_overlap": "no rank of which it is known hides any communication",
    "overlap_unsplit": "communication runs beside computation, but wait and transfer cannot be told apart",
    "overlap_is_waiting": "most overlap of a rank is waiting for another rank",
    "exposed_is_waiting": "most exposed communication of a rank is waiting for another rank",
    "no_communication": "a rank ran no communication kernels: overlap is not applicable",
    "communication_on_compute_stream": "communication runs on the stream that computes, so it cannot overlap",
    "whole_graph": "CUDA graphs were traced as one span: what they hold is unknown",
    "report_missing": "reports could not be read; the answer is about the others",
    "gpu_data_missing": "a process launched work of which the report holds no GPU event",
    "shared_gpu": "ranks ran on one physical GPU, so their computing times include each other's",
    "capture_incomplete": "nsys itself says that events can be missing",
    "suspected_collectives": "kernels that no rule knows are named like collectives",
    "clock_unusable": "clocks of the reports do not agree well enough to split wait from transfer",
    "warm_up": "leading steps are longer than the rest",
}
"""Every finding code with its meaning; the reference is made from it."""

_CERTAIN_GAP = ("not all cuda events", "not all nvtx events")
_MOSTLY = 0.5
_NEAR = 0.5
"""Lengths of ranks that share a sentence are not further apart than this ratio."""


def find(result: Result, context: Context) -> tuple[Finding, ...]:
    """All findings, most important first: what limits all others, what bounds the step, the rest."""
    figures = summary(result)
    bound = verdict.verdict(result, context)
    made = [
        *_warned(result),
        *([bound] if bound else []),
        *_overlap(result, figures),
        *_waiting(result, figures),
        *_no_communication(result, figures),
        *_same_stream(context.of_ranks("compute_streams")),
        *_graphs(result),
        *_incomplete(result),
        *_suspected(result),
        *_warm_up(result),
    ]
    return tuple(sorted(made, key=lambda finding: -finding.severity))


_FROM_WARNINGS = {
    "report_missing": ("report_missing", 230),
    "process_without_gpu_events": ("gpu_data_missing", 220),
    "shared_gpu": ("shared_gpu", 210),
}
"""Warnings that a reader must know before anything else: code and severity of the finding."""


def _warned(result: Result) -> Iterator[Finding]:
    for warning in result.warnings:
        if warning.code in _FROM_WARNINGS:
            code, severity = _FROM_WARNINGS[warning.code]
            rows = () if code == "report_missing" else ({"table": "rank"},)
            yield Finding.of_warning(warning, code, severity, rows=rows)


def _row(rank: int | None = None, table: str = "overlap", **keys: Any) -> dict[str, Any]:
    return {"table": table, **({"rank": rank} if rank is not None else {}), **keys}


def _overlap(result: Result, figures: Summary) -> Iterator[Finding]:
    totals = figures.rows.to_dicts()
    known = [row for row in totals if row["communication_ns"] and row["hidden_communication_ns"] is not None]
    if not known:
        return
    rows = tuple(_row(row["rank"]) for row in known)
    span = figures.span
    rest = _rest(result, totals, known)
    who, whom = (ranks_text([row["rank"] for row in known]),) * 2
    if not rest:
        who, whom = ("every rank", "any rank") if len(known) > 1 else ("the only rank",) * 2
    if all(row["hidden_communication_ns"] == 0 for row in known):
        exposed = [row["exposed_communication_ns"] for row in known]
        single = _one_reduction_of_gradients(result)
        because = " (one collective a step: it cannot start before the last gradient)" if single else ""
        yield Finding(
            "no_overlap",
            f"No overlap on {whom}: all communication is exposed, {figures.range(exposed)} ms{span}{because}{rest}.",
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
            f"Communication runs beside computation for at least {figures.text(low)} ms{span} on {who}, but how much "
            f"of that is waiting cannot be told: the counterpart of its collectives was not captured or not "
            f"matched{rest}.",
            value=round(low),
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
            f"Overlap on {who}: {_between(known, figures)}{rest}.",
            value=len(with_transfer) if rest else round(low),
            unit="count" if rest else "ns",
            rows=rows,
            severity=100,
        )
    elif with_transfer:
        hiding = ranks_text(with_transfer)
        verbs = ["hides" if len(ranks) == 1 else "hide" for ranks in (with_transfer, without)]
        yield Finding(
            "overlap_on_some_ranks",
            f"{hiding[0].upper() + hiding[1:] if rest else f'Only {hiding}'} {verbs[0]} transfer under computation "
            f"(up to {figures.text(high)} ms{span}); "
            f"{f'{ranks_text(without)} {verbs[1]}' if rest else 'the others hide'} none{rest}.",
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
            f"(up to {figures.text(wait)} ms{span}){rest}.",
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
    missing = verdict.missing_ranks(result)
    return (
        (f"; {ranks_text(silent)} ran no communication" if silent else "")
        + (f"; nothing is known of {ranks_text(unknown)}" if unknown else "")
        + (
            f"; {missing} of the job's {missing + len(ranks)} ranks {verdict.was(missing)} not captured"
            if missing
            else ""
        )
    )


def _silent(result: Result, totals: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ranks of which it is known that they ran no communication.

    Under a whole graph the hidden time is null: what ran there is unknown. What took no time did communicate.
    """
    if any(warning.code in ("unnamed_kernels", "impossible_times") for warning in result.warnings):
        return []
    talked = result["kernel_class"].filter(pl.col("class") == "communication")["rank"].to_list()
    return [
        row["rank"]
        for row in totals
        if row["communication_ns"] == row["hidden_communication_ns"] == 0 and row["rank"] not in talked
    ]


def _between(totals: Sequence[Mapping[str, Any]], figures: Summary) -> str:
    """How much transfer the ranks hide, and which share of their transfer that is."""
    shares = [
        100 * row["hidden_transfer_ns"] / (row["hidden_transfer_ns"] + (row["exposed_transfer_ns"] or 0))
        for row in totals
    ]
    whose = "its" if len(totals) == 1 else "a rank's"
    length = figures.range(row["hidden_transfer_ns"] for row in totals)
    share = _range_of(f"{part:.0f}" for part in (min(shares), max(shares)))
    part = "" if figures.statistic != "median" or _split_everywhere(figures) else _in_how_many(figures)
    return f"{length} ms of transfer{figures.span} ({share} % of {whose} transfer{part}) are hidden under computation"


def _split_everywhere(figures: Summary) -> bool:
    return bool((figures.rows["split_windows"] == figures.rows["windows"]).all())


def _in_how_many(figures: Summary) -> str:
    """In how many of the steps wait and transfer are known, where that is not all."""
    row = figures.rows.sort("split_windows").head(1).to_dicts()[0]
    return f", known in {row['split_windows']} of {row['windows']} steps"


def _range_of(edges: Iterable[str]) -> str:
    """Two figures, once if they read the same."""
    return " to ".join(dict.fromkeys(edges))


_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


def _one_reduction_of_gradients(result: Result) -> bool:
    """Does every rank run one collective a step, a reduction that starts after its backward did?"""
    frame = steady(result["overlap"])
    if not (frame.height and (frame["collectives"] == 1).all() and frame["step_index"].is_not_null().all()):
        return False
    backward = (
        result["phase"]
        .filter(pl.col("phase") == "backward")
        .group_by("rank", "step")
        .agg(pl.col("gpu_start_ns").min())
    )
    found = (
        frame.select("rank", "step")
        .join(result["collective"], on=["rank", "step"], how="left")
        .join(backward, on=["rank", "step"], how="left")
    )
    sums = found["kind"].is_in(_REDUCTIONS) & (found["start_ns"] >= found["gpu_start_ns"])
    return bool(sums.fill_null(value=False).all())


def _waiting(result: Result, figures: Summary) -> Iterator[Finding]:
    """Equal sentences about several ranks are one: those that wait for the same."""
    for where in ("hidden", "exposed"):
        blamed = dict(verdict.blamed(result, where).select("rank", "last_rank").iter_rows())
        mostly = [
            row
            for row in figures.rows.to_dicts()
            if row[f"{where}_communication_ns"]
            and row[f"{where}_wait_ns"] is not None
            and row[f"{where}_wait_ns"] > _MOSTLY * row[f"{where}_communication_ns"]
        ]
        if mostly:
            waited_for = {blamed.get(row["rank"]) for row in mostly}
            yield _waiting_of(mostly, where, waited_for.pop() if len(waited_for) == 1 else None, figures)


def _waiting_of(rows: Sequence[Mapping[str, Any]], where: str, whom: int | None, figures: Summary) -> Finding:
    ranks = [row["rank"] for row in rows]
    waits = [row[f"{where}_wait_ns"] for row in rows]
    wholes = [row[f"{where}_communication_ns"] for row in rows]
    shares = [100 * wait / whole for wait, whole in zip(waits, wholes, strict=True)]
    share = _range_of(f"{part:.0f}" for part in (min(shares), max(shares)))
    kind = "overlap" if where == "hidden" else "exposed communication"
    longest = max(waits)
    return Finding(
        "overlap_is_waiting" if where == "hidden" else "exposed_is_waiting",
        f"Most {kind} of {ranks_text(ranks)} is waiting for {'other ranks' if whom is None else f'rank {whom}'}: "
        f"{figures.range(waits)} of {figures.range(wholes)} ms{figures.span} ({share}%).",
        rank=ranks[0] if len(ranks) == 1 else None,
        value=round(longest),
        unit="ns",
        rows=(*map(_row, ranks), *([] if whom is None else [_row(whom, "straggler")])),
        severity=80 if where == "hidden" else 70,
    )


def _no_communication(result: Result, figures: Summary) -> Iterator[Finding]:
    silent = _silent(result, figures.rows.to_dicts())
    if not silent:
        return
    every = len(silent) == len(result.trace.rank_numbers) and not verdict.missing_ranks(result)
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


def _same_stream(streams: pl.DataFrame) -> Iterator[Finding]:
    """Sums over the capture: streams have no windows of their own. Ranks that are alike share a sentence."""
    alike: dict[int, list[list[dict[str, Any]]]] = {}
    for row in streams.to_dicts():
        groups = alike.setdefault(row["stream"], [])
        near = (
            group for group in groups if _NEAR < row["communication"] / group[0]["communication"] < 1 / _NEAR
        )
        found = next(near, None)
        groups.append([row]) if found is None else found.append(row)
    for stream, rows in ((stream, rows) for stream, groups in alike.items() for rows in groups):
        ranks = [row["rank"] for row in rows]
        several = len(ranks) > 1
        lengths = sorted(row["communication"] for row in rows)
        length = _range_of(f"{ms(length):,.2f}" for length in (lengths[0], lengths[-1]))
        shares = sorted(100 * row["communication"] / row["all"] for row in rows)
        share = _range_of(f"{share:.0f}" for share in (shares[0], shares[-1]))
        subject = ranks_text(ranks)
        yield Finding(
            "communication_on_compute_stream",
            f"{subject[0].upper()}{subject[1:]} {'run' if several else 'runs'} {length} ms of communication in the "
            f"capture ({share} % of {'their' if several else 'its'} communication) on {'their' if several else 'its'} "
            f"compute stream {stream}: there it cannot overlap with computation.",
            rank=None if several else ranks[0],
            value=lengths[-1],
            unit="ns",
            rows=tuple(_row(row["rank"], "collective", stream=row["stream"]) for row in rows),
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
    for report in result.trace.inputs:
        said = [text for text in report.diagnostics if text.lower().startswith(_CERTAIN_GAP)]
        if said:
            yield Finding(
                "capture_incomplete",
                f"{report.name}: nsys says {' '.join(sorted(said))} What is absent is no evidence.",
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
