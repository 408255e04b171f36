"""What would the run be without a straggler? Every rank as fast as the median rank in everything that all ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.draft import Draft
from nsysddp.dependencies.replay import ODD_NS, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from nsysddp.questions.attribution import Attribution
    from nsysddp.questions.whatif.model import Model

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_ODD_TRANSFER = 1.5
"""Times the median over the steps: a transfer that takes longer is no usual one."""

_ENOUGH_STEPS = 3

_BY_EVENT = ["step", "phase", "name", "number"]
_NUMBER = pl.int_range(pl.len()).cast(pl.Int64)


def without_straggler(model: Model, duration: Floats) -> Program | None:
    """Every event, and every call towards it, as long as on the median rank (of an even number the faster middle one).

    Events of the ranks match by step, phase, name and number in that; calls by the event that they lead to, API name
    and number. What one rank alone ran, and calls that waited or took long of which one rank has more than any other,
    are left out; of what only some ranks ran, the sum in a phase is cut to the median rank's. Latency that no edge
    explains (another process on the GPU) is the median rank's too.

    No rank's host gets less time in a phase than the median rank's had: where ranks do other work (the stages of a
    pipeline), what all do between their calls need not lie at matching calls.

    Args:
        model: of the recorded run.
        duration: of all nodes, to be made even.

    Returns:
        The program; None if the ranks did not launch the same work, or there is one only.
    """
    ranks = len(model.context.trace.rank_numbers)
    if ranks < 2:
        return None
    program = model.program.having(duration=duration)
    draft = Draft(program)
    matched = False
    for rows, calls in _parts(model):
        keyed = _events(model, program, rows)
        matched |= _even_events(draft, rows, keyed, ranks)
        _cut_extra_work(draft, rows, keyed, ranks)
        _even_calls(draft, model, calls, keyed, rows, ranks)
    return draft.program() if matched else None


_EVENTS_AT_A_TIME = 500_000
"""Events of whole steps that are compared together: keys and sorted copies take twenty times their memory."""


def _parts(model: Model) -> Iterator[tuple[Ints, Ints]]:
    """Rows of the events of some steps, and the calls (positions in the lines) that lead to one of them."""
    step, leads_to = model.context.attribution.step, model.graph.lines.leads_to
    inside = np.flatnonzero(step >= 0)
    rows = inside[np.argsort(step[inside], kind="stable")]
    towards = np.flatnonzero(leads_to >= 0)
    towards = towards[step[leads_to[towards]] >= 0]
    towards = towards[np.argsort(step[leads_to[towards]], kind="stable")]
    step_of_call = step[leads_to[towards]]
    first = 0
    for end in (np.flatnonzero(np.diff(step[rows], append=-1)) + 1).tolist():
        if end - first >= _EVENTS_AT_A_TIME or end == rows.size:
            low, high = np.searchsorted(step_of_call, [step[rows[first]], step[rows[end - 1]] + 1])
            yield np.sort(rows[first:end]), np.sort(towards[low:high])
            first = end


def _events(model: Model, program: Program, rows: Ints) -> pl.DataFrame:
    """Some events with what they match by, their times, and on how many ranks there is such a one."""
    attribution = model.context.attribution
    events, weights = model.context.trace.events[rows], program.weights
    return (
        pl.DataFrame(
            {
                "rank": events["rank"].cast(pl.Int64),
                "step": attribution.step[rows].astype(np.int64),
                "phase": _phase_codes(attribution)[attribution.phase_range[rows]],
                "name": events["name"].cast(pl.Int64),
                "duration": weights.duration[rows],
                "excess": weights.excess[rows],
                "own": (events["class"] != "communication"),
            }
        )
        .with_columns(number=_NUMBER.over("rank", "step", "phase", "name"))
        .with_columns(ranks=pl.col("rank").n_unique().over(_BY_EVENT))
    )


def _phase_codes(attribution: Attribution) -> Ints:
    """A number for the phase of each phase range, and 0 of no range as the last."""
    names = attribution.phases["phase"]
    codes: Ints = np.append(names.rank("dense").cast(pl.Int64).to_numpy(), 0)
    return codes


def with_usual_transfers(model: Model, duration: Floats) -> Floats:
    """The durations with transfers at most as long as usual at their place in a step, with what steps differ by.

    Another process on the GPU stretches what it finds there: of transfers too, some, in some steps.
    """
    events, step = model.context.trace.events, model.context.attribution.step.astype(np.int64)
    place = ["rank", "stream", "name", "number"]
    sent = (
        events.select("rank", "stream", "name")
        .with_columns(row=pl.int_range(pl.len()), step=pl.Series(step), duration=duration[: events.height])
        .filter(events["class"] == "communication", pl.Series(step >= 0))
        .with_columns(number=_NUMBER.over("rank", "stream", "name", "step"))
        .with_columns(
            most=_ODD_TRANSFER * pl.col("duration").median().over(place), steps=pl.len().over(place)
        )
        .filter(pl.col("steps") >= _ENOUGH_STEPS, pl.col("duration") > pl.col("most"))
    )
    usual: Floats = duration.copy()
    usual[sent["row"].to_numpy()] = sent["most"].to_numpy() / _ODD_TRANSFER
    return usual


def _median(column: str) -> pl.Expr:
    return pl.col(column).sort().slice((pl.len() - 1) // 2, 1).first()


def _even_events(draft: Draft, rows: Ints, keyed: pl.DataFrame, ranks: int) -> bool:
    """The same durations and unexplained latencies on all ranks; False if no event matches."""
    even = keyed.with_columns(
        even=_median("duration").over(_BY_EVENT), wait=_median("excess").over(_BY_EVENT)
    )
    known = (even["ranks"] == ranks).to_numpy()
    own = known & even["own"].to_numpy()
    draft.duration[rows[own]] = even["even"].to_numpy()[own]
    draft.excess[rows[known]] = even["wait"].to_numpy()[known]
    return bool(own.any())


def _cut_extra_work(draft: Draft, rows: Ints, keyed: pl.DataFrame, ranks: int) -> None:
    """What only some ranks ran (an extra kernel, or another variant of one): at most the median rank's time in such.

    Where less than half of the ranks ran any, several of them may be the stages of a pipeline; one alone is late.
    """
    odd = keyed.with_columns(row=rows).filter(pl.col("own"), pl.col("ranks") < ranks)
    totals = odd.group_by("step", "phase", "rank").agg(total=pl.col("duration").sum())
    absent = ranks - pl.len()
    fair = totals.group_by("step", "phase").agg(
        fair=pl.when(pl.len() == 1)
        .then(0.0)
        .when(absent > (ranks - 1) // 2)
        .then(pl.col("total").max())
        .otherwise(pl.col("total").sort().slice((ranks - 1) // 2 - absent, 1).first())
    )
    cut = (
        odd.join(totals, on=["step", "phase", "rank"], how="left", nulls_equal=True)
        .join(fair, on=["step", "phase"], how="left", nulls_equal=True)
        .filter(pl.col("total") > pl.col("fair"))
    )
    draft.duration[cut["row"].to_numpy()] *= (cut["fair"] / cut["total"]).to_numpy()


def _even_calls(
    draft: Draft, model: Model, towards: Ints, keyed: pl.DataFrame, rows: Ints, ranks: int
) -> None:
    """No more host time than the median rank's: of calls, and between them; a costly call of one rank takes none.

    Args:
        draft: to be changed.
        model: of the run.
        towards: calls (positions in the lines) that lead to one of the events.
        keyed: the events with what they match by.
        rows: their rows.
        ranks: how many there are.
    """
    trace, lines = model.context.trace, model.graph.lines
    assert trace.calls is not None
    nodes = trace.events.height + towards
    at = np.searchsorted(rows, lines.leads_to[towards])
    calls = keyed.select("rank", *_BY_EVENT)[at].with_columns(
        call=trace.calls["name"].gather(lines.row[towards]).to_physical(),
        duration=draft.duration[nodes],
        gap=draft.ahead_lag[nodes],
        waits=lines.awaited[towards] >= 0,
    )
    calls = calls.with_columns(place=_NUMBER.over("rank", *_BY_EVENT, "call"))
    by_call = [*_BY_EVENT, "call", "place"]
    calls = calls.with_columns(
        ranks=pl.col("rank").n_unique().over(by_call),
        waits=pl.col("waits").any().over(by_call),
        even=_median("duration").over(by_call),
        even_gap=_median("gap").over(by_call),
    )
    matched = (calls["ranks"] == ranks).to_numpy()
    at_work = matched & ~calls["waits"].to_numpy()
    draft.duration[nodes[at_work]] = (
        calls.select(pl.min_horizontal("duration", "even")).to_series().to_numpy()[at_work]
    )
    draft.ahead_lag[nodes[matched]] = (
        calls.select(pl.min_horizontal("gap", "even_gap")).to_series().to_numpy()[matched]
    )
    paused = _extra_pauses(calls.with_columns(node=nodes), ranks)
    draft.ahead_lag[paused["node"].to_numpy()] = paused["fair_gap"].to_numpy()
    lonely = nodes[_only_here(calls)]
    draft.ahead_lag[lonely] = 0
    draft.take_out(lonely)
    before = model.program.weights
    kept = pl.DataFrame(
        {
            "node": nodes,
            "had": before.ahead_lag[nodes] + before.duration[nodes],
            "has": draft.ahead_lag[nodes] + draft.duration[nodes],
        }
    )
    short = _too_little(pl.concat([calls.select("rank", "step", "phase"), kept], how="horizontal"), ranks)
    draft.ahead_lag[short["node"].to_numpy()] += short["missing"].to_numpy()


def _extra_pauses(calls: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """Host pauses ahead of calls that not all ranks make, where one has more of them in a phase than the median rank.

    The neighbours of a stage of a pipeline differ, and so do the calls between which its host can pause.
    """
    place = ["step", "phase"]
    pauses = calls.filter(pl.col("ranks") < ranks, pl.col("gap") > ODD_NS)
    totals = pauses.group_by(*place, "rank").agg(total=pl.col("gap").sum())
    # Ranks without any come first, with 0.
    place_of_median = pl.len().cast(pl.Int64) - 1 - ranks // 2
    fair = totals.group_by(place).agg(
        fair=pl.when(place_of_median < 0)
        .then(0.0)
        .otherwise(pl.col("total").sort().slice(pl.max_horizontal(place_of_median, 0), 1).first())
    )
    return (
        pauses.join(totals, on=[*place, "rank"], how="left", nulls_equal=True)
        .join(fair, on=place, how="left", nulls_equal=True)
        .filter(pl.col("total") > pl.col("fair"))
        .select("node", fair_gap=pl.col("gap") * pl.col("fair") / pl.col("total"))
    )


def _too_little(calls: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """The call that lost most of a rank's phase with less host time than the median rank had, and what is missing."""
    place = ["step", "phase"]
    totals = calls.group_by(*place, "rank").agg(pl.col("had").sum(), pl.col("has").sum())
    fair = pl.col("had").sort().slice((pl.len() - 1) // 2, 1).first().over(place)
    missing = totals.with_columns(missing=pl.min_horizontal("had", fair) - pl.col("has")).filter(
        pl.len().over(place) == ranks, pl.col("missing") > ODD_NS
    )
    most = (
        calls.with_columns(lost=pl.col("had") - pl.col("has"))
        .sort("lost", "node")
        .group_by(*place, "rank", maintain_order=True)
        .last()
    )
    return missing.join(most, on=[*place, "rank"], nulls_equal=True).select("node", "missing")


def _only_here(calls: pl.DataFrame) -> Flags:
    """Calls that waited or took long, of one rank that has more of them in a phase than any other.

    Stages of a pipeline make the same call towards other work: what each of them does is nothing extra.
    """
    costly = pl.col("waits") | (pl.col("duration") > ODD_NS)
    place = ["step", "phase", "call"]
    most = (
        calls.filter(costly)
        .group_by(*place, "rank")
        .len()
        .with_columns(as_many=pl.col("len").rank("max", descending=True).over(place))
        .filter(pl.col("as_many") == 1)
        .select(*place, "rank", more=pl.lit(value=True))
    )
    found = calls.join(most, on=[*place, "rank"], how="left", nulls_equal=True, maintain_order="left")
    lonely = (pl.col("ranks") == 1) & costly & pl.col("more").fill_null(value=False)
    return found.select(lonely).to_series().to_numpy()
