"""What would the run be without a straggler? Every rank as fast as the median rank in everything that all ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

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
    _Value = TypeVar("_Value", bound=np.generic)

_ODD_TRANSFER = 1.5
"""Times the median over the steps: a transfer that takes longer is no usual one."""

_ENOUGH_STEPS = 3

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
        keyed, alike = _events(model, rows)
        own = keyed["own"].to_numpy()
        matched |= _even_events(draft, rows, own, alike.of_all(ranks))
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


def _events(model: Model, rows: Ints) -> tuple[pl.DataFrame, _Groups]:
    """Some events with what they match by (``group``) and on how many ranks there is such a one; and their groups."""
    attribution, events = model.context.attribution, model.context.trace.events
    rank, name = (events[column].gather(rows).cast(pl.Int64).to_numpy() for column in ("rank", "name"))
    step = attribution.step[rows].astype(np.int64)
    phase = _phase_codes(attribution)[attribution.phase_range[rows]]
    number = _Groups.of(_code(rank, step, phase, name)).number()
    alike = _Groups.of(_code(step, phase, name, number))
    frame = pl.DataFrame(
        {
            "rank": rank,
            "step": step,
            "phase": phase,
            "own": events["class"].gather(rows) != "communication",
            "group": alike.group(),
            "ranks": alike.sizes(),
        }
    )
    return frame, alike


@dataclass(frozen=True)
class _Groups:
    """Rows of one code together.

    Attributes:
        order: rows, group by group; in a group in their order.
        first: where in it each group begins.
        size: rows of each group.
    """

    order: Ints
    first: Ints
    size: Ints

    @classmethod
    def of(cls, code: Ints) -> _Groups:
        """Those of a code of each row."""
        order = np.argsort(code, kind="stable")
        ordered = code[order]
        first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
        return cls(order, first, np.diff(first, append=code.size))

    def _by_row(self, ordered: NDArray[_Value]) -> NDArray[_Value]:
        made: NDArray[_Value] = np.empty_like(ordered)
        made[self.order] = ordered
        return made

    def number(self) -> Ints:
        """The place of each row in its group."""
        return self._by_row(np.arange(self.order.size) - np.repeat(self.first, self.size))

    def group(self) -> Ints:
        """A number for the group of each row."""
        return self._by_row(np.repeat(np.arange(self.size.size), self.size))

    def sizes(self) -> Ints:
        """The size of the group of each row."""
        return self._by_row(np.repeat(self.size, self.size))

    def any(self, flags: Flags) -> Flags:
        """Of each row: has any row of its group the flag?"""
        if not flags.size:
            return flags
        found = np.logical_or.reduceat(flags[self.order], self.first)
        return self._by_row(np.repeat(found, self.size))

    def of_all(self, ranks: int) -> Ints:
        """The rows of groups of all ranks, of which each has one row at most; shape (groups, ranks)."""
        whole = np.repeat(self.size == ranks, self.size)
        rows: Ints = self.order[whole].reshape(-1, ranks)
        return rows


def _code(*columns: Ints) -> Ints:
    """One number for the values of all columns: rows have the same where all of them agree."""
    code, room = np.zeros(columns[0].size, dtype=np.int64), 1
    for column in columns if code.size else ():
        least = int(column.min())
        span = int(column.max()) - least + 1
        if room * span >= 1 << 62:
            code = np.unique(code, return_inverse=True)[1].ravel().astype(np.int64)
            room = int(code.max()) + 1
        code, room = code * span + (column - least), room * span
    return code


def _medians(values: Floats, rows: Ints) -> Floats:
    """The median of each group of rows (of an even number the smaller middle one); shape (groups, 1)."""
    middle = (rows.shape[1] - 1) // 2
    found: Floats = np.partition(values[rows], middle, axis=1)[:, middle : middle + 1]
    return found


def _phase_codes(attribution: Attribution) -> Ints:
    """A number for the phase of each phase range, and 0 of no range as the last."""
    names = attribution.phases["phase"]
    codes: Ints = np.append(names.rank("dense").cast(pl.Int64).to_numpy(), 0)
    return codes


def with_usual_transfers(model: Model, duration: Floats) -> Floats:
    """The durations with transfers at most as long as usual at their place in a step, with what steps differ by.

    Another process on the GPU stretches what it finds there: of transfers too, some, in some steps.
    Where all are usual it is the same array, not to be written to.
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
    if sent.is_empty():
        return duration
    usual: Floats = duration.copy()
    usual[sent["row"].to_numpy()] = sent["most"].to_numpy() / _ODD_TRANSFER
    return usual


def _even_events(draft: Draft, rows: Ints, own: Flags, matched: Ints) -> bool:
    """The same durations and unexplained latencies on all ranks; False if no event matches.

    Args:
        draft: to be changed.
        rows: some events.
        own: which of them are no communication.
        matched: places in ``rows`` of those that all ranks ran; shape (groups, ranks).
    """
    duration, excess = draft.duration[rows], draft.excess[rows]
    draft.excess[rows[matched]] = _medians(excess, matched)
    duration[matched] = np.where(own[matched], _medians(duration, matched), duration[matched])
    draft.duration[rows] = duration
    return bool(own[matched].any())


def _cut_extra_work(draft: Draft, rows: Ints, keyed: pl.DataFrame, ranks: int) -> None:
    """What only some ranks ran (an extra kernel, or another variant of one): at most the median rank's time in such.

    Where less than half of the ranks ran any, several of them may be the stages of a pipeline; one alone is late.
    """
    odd = keyed.with_columns(row=rows).filter(pl.col("own"), pl.col("ranks") < ranks)
    odd = odd.with_columns(duration=draft.duration[odd["row"].to_numpy()])
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
    event = np.searchsorted(rows, lines.leads_to[towards])
    rank, step, phase, group = (keyed[name].to_numpy()[event] for name in ("rank", "step", "phase", "group"))
    call = trace.calls["name"].gather(lines.row[towards]).to_physical().cast(pl.Int64).to_numpy()
    place = _Groups.of(_code(group, call, rank)).number()
    alike = _Groups.of(_code(group, call, place))
    matched, sizes = alike.of_all(ranks), alike.sizes()
    waits = alike.any(lines.awaited[towards] >= 0)
    duration, gap = draft.duration[nodes], draft.ahead_lag[nodes]
    rare = np.flatnonzero(waits | (duration > ODD_NS) | ((gap > ODD_NS) & (sizes < ranks)))
    columns = {"rank": rank, "step": step, "phase": phase, "call": call, "duration": duration, "gap": gap}
    columns |= {"ranks": sizes, "waits": waits, "node": nodes}
    odd = pl.DataFrame({name: column[rare] for name, column in columns.items()})
    even = np.minimum(duration[matched], _medians(duration, matched))
    draft.duration[nodes[matched]] = np.where(waits[matched], duration[matched], even)
    draft.ahead_lag[nodes[matched]] = np.minimum(gap[matched], _medians(gap, matched))
    paused = _extra_pauses(odd, ranks)
    draft.ahead_lag[paused["node"].to_numpy()] = paused["fair_gap"].to_numpy()
    lonely = _only_here(odd)
    draft.ahead_lag[lonely] = 0
    draft.take_out(lonely)
    of = model.program.weights
    had, has = (each.ahead_lag[nodes] + each.duration[nodes] for each in (of, draft))
    shortest, missing = _too_little(step, phase, rank, had, has, ranks)
    draft.ahead_lag[nodes[shortest]] += missing


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


def _too_little(
    step: Ints, phase: Ints, rank: Ints, had: Floats, has: Floats, ranks: int
) -> tuple[Ints, Floats]:
    """The call that lost most of a rank's phase with less host time than the median rank had, and what is missing.

    Args:
        step: of each call.
        phase: of each call.
        rank: of each call.
        had: host time of each call with the gap before it, as recorded.
        has: the same now.
        ranks: how many there are.

    Returns:
        Places of such calls, and ns.
    """
    own = _Groups.of(_code(step, phase, rank))
    begin = own.order[own.first]
    before, now = (np.add.reduceat(time[own.order], own.first) if time.size else time for time in (had, has))
    phases = _Groups.of(_code(step[begin], phase[begin])).of_all(ranks)
    missing = np.minimum(before[phases], _medians(before, phases)) - now[phases]
    short, missing = phases[missing > ODD_NS], missing[missing > ODD_NS]
    most, lost = np.empty(short.size, dtype=np.int64), had - has
    for number, group in enumerate(short.tolist()):
        calls = own.order[own.first[group] : own.first[group] + own.size[group]]
        most[number] = calls[np.flatnonzero(lost[calls] == lost[calls].max())[-1]]
    return most, missing


def _only_here(calls: pl.DataFrame) -> Ints:
    """Nodes of calls that waited or took long, of one rank that has more of them in a phase than any other.

    Stages of a pipeline make the same call towards other work: what each of them does is nothing extra.
    """
    costly = calls.filter(pl.col("waits") | (pl.col("duration") > ODD_NS))
    place = ["step", "phase", "call"]
    most = (
        costly.group_by(*place, "rank")
        .len()
        .with_columns(as_many=pl.col("len").rank("max", descending=True).over(place))
        .filter(pl.col("as_many") == 1)
    )
    lonely = costly.filter(pl.col("ranks") == 1).join(most, on=[*place, "rank"], how="semi", nulls_equal=True)
    nodes: Ints = np.sort(lonely["node"].to_numpy())
    return nodes
