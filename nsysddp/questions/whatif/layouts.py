"""Scenarios with other buckets: caps, orders, and the optimizer in backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies import replay
from nsysddp.dependencies.draft import Draft
from nsysddp.model.errors import CannotTell, UsageError
from nsysddp.model.units import BYTES_PER_MIB
from nsysddp.questions.rebucket import Buckets, captured_layout, layout_for, rebuild, recorded_buckets
from nsysddp.questions.whatif.model import LEAST_VARIATION, MISSED_AT_LEAST, Model
from nsysddp.questions.whatif.request import Ask
from nsysddp.questions.whatif.scenarios import communication_of, nothing, why_unchanged
from nsysddp.questions.whatif.wire import Time, Wire

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Layout = Sequence[Sequence[int]]
    _Shares = Mapping[int, float]


_MOST_UNKNOWN = 0.05
"""Of the step: a prediction that can be further off by an unknown latency is none."""

_LATENCY = (
    "all messages have about one size and no small one was seen: how much of their time is latency decides about "
    "{:.0%} of the step; capture another bucket cap too"
)

_SERIAL = "the buckets run on a stream that computes too, where other buckets would delay other kernels"


def _beside_work(graph: Graph, buckets: Buckets) -> bool:
    """Is there computation in the queues of the buckets?"""
    events = [bucket.event for backward in buckets.backwards for bucket in backward.buckets]
    return bool((graph.queues.worked[np.asarray(events, dtype=np.int64)] >= 0).any())


def bucket_scenarios(model: Model, ask: Ask) -> tuple[list[dict[str, object]], Wire | None, Buckets | None]:
    """Rows of the bucket caps, orders and of the optimizer in backward, with the fitted links and the buckets."""
    wanted = bool(ask.caps_mib or ask.orders)
    context, graph = model.context, model.graph
    table = context.buckets["bucket"]
    try:
        if not wanted and table.is_empty():
            return [], None, None
        buckets = recorded_buckets(context, graph, table, ask.parameter_bytes)
    except (CannotTell, UsageError) as error:
        if wanted:
            raise
        return [nothing("optimizer_in_backward", str(error).partition("; ")[0])], None, None
    if _beside_work(graph, buckets):
        scenarios = [f"cap_{cap:g}" for cap in ask.caps_mib] + [f"order_{order}" for order in ask.orders]
        scenarios += ["optimizer_in_backward"] if ask.standard else []
        return [nothing(scenario, _SERIAL) for scenario in scenarios], None, buckets
    rows = []
    if ask.standard:
        rows.append(_optimizer_in_backward(model, buckets))
    ours = context.timed.filter(
        pl.col("event").is_in([bucket.event for backward in buckets.backwards for bucket in backward.buckets])
    )
    wire = Wire.of(context, _alone(model, ours))
    if not wanted:
        return rows, wire, buckets
    if wire is None:
        raise CannotTell(
            "no transfer time could be fitted", do="capture every rank, with --include-blobs=true"
        )
    remodel = _Remodel(model, buckets, wire, captured_layout(buckets))
    for cap in ask.caps_mib:
        if buckets.unknown_parameters and round(cap * BYTES_PER_MIB) < max(
            buckets.caps_of_layout[:-1], default=0
        ):
            why = "how many parameters a bucket holds is unknown, so it cannot be split: annotate, or say --parameters"
            rows.append(nothing(f"cap_{cap:g}", why))
            continue
        rows.append(remodel.row(f"cap_{cap:g}", layout_for(buckets.sizes, round(cap * BYTES_PER_MIB))))
    cap_bytes = max(buckets.caps_of_layout)
    for order in ask.orders:
        rows.append(
            remodel.row(f"order_{order}", layout_for(buckets.sizes, cap_bytes, reverse=order == "reverse"))
        )
    excess = remodel.excess([name for name in remodel.made if name.startswith("cap_")])
    for row in rows:
        row["excess_ratio"] = excess.get(str(row["scenario"]))
    return rows, wire, buckets


@dataclass(frozen=True)
class _Made:
    """What a layout makes of the captured step, link by link.

    Attributes:
        ratios: over the captured layout, one for each time of the wire, and one with contention as it was.
        may_stay: sizes of parameters are unknown, so that it may be the captured layout after all.
        step_ratio: the prediction.
    """

    ratios: Floats
    may_stay: bool
    step_ratio: float


class _Remodel:
    """Predictions for bucket layouts, relative to the captured layout in the same model."""

    def __init__(self, model: Model, buckets: Buckets, wire: Wire, layout: Layout) -> None:
        self.model, self.buckets, self.wire, self.layout = model, buckets, wire, layout
        self._times = wire.times()
        self._captured = [self._mean(layout, time) for time in self._times]
        self._slowing = _variants(model)
        self._slowed = [self._with_slowing(layout, self._captured[0], *each) for each in self._slowing]
        self._miss = abs(self._captured[0] / model.unchanged_ns - 1)
        self.made: dict[str, _Made] = {}

    def _rebuilt(self, layout: Layout, time: Time) -> replay.Program:
        model = self.model
        made = rebuild(model.program, model.graph, self.buckets, layout, time, host_scale=model.host_scale)
        self._added, self._ranks = dict(made.steps), made.ranks
        return made.program

    def _mean(self, layout: Layout, time: Time) -> float:
        program = self._rebuilt(layout, time)
        return self.model.mean(program, self._added)

    def _with_slowing(self, layout: Layout, plain: float, lost: _Shares, link: _Shares) -> float:
        """By how much the step is longer when kernels slow down beside the new collectives, not the recorded ones.

        And when transfers share links with the new ones, and lose ``link`` of that time.
        """
        model = self.model
        transfers = model.transfers.with_share(link) if any(link.values()) else None
        if not any(lost.values()) and transfers is None:
            return 1.0
        program = self._rebuilt(layout, self._times[0])
        kernels = model.kernels.joined_by(self._ranks)
        work = kernels.freed(program.duration, lost)
        if transfers is not None:
            transfers = transfers.joined_by(self._ranks)
            work = transfers.alone(work)
        schedule = kernels.settled(program.having(duration=work), lost, transfers)
        return model.mean_of(schedule, self._added) / plain

    def row(self, scenario: str, layout: Layout) -> dict[str, object]:
        """A row of ``whatif``: the middle of what is likely, and a band over all that the capture leaves open."""
        means = [self._mean(layout, time) for time in self._times]
        slowed = [
            self._with_slowing(layout, means[0], *each) / captured
            for each, captured in zip(self._slowing, self._slowed, strict=True)
        ]
        plain = np.asarray(means) / np.asarray(self._captured)
        if self.wire.latency_ns and np.ptp(plain[self.wire.latencies]) > 2 * _MOST_UNKNOWN:
            return nothing(scenario, _LATENCY.format(float(np.ptp(plain[self.wire.latencies]))))
        # Last, what else slowing can be, and kernels as slow beside the new collectives as beside the recorded ones.
        ratios = np.append(plain * slowed[0], plain[0] * np.asarray([*slowed[1:], 1.0]))
        middle = float(ratios[self.wire.likely].mean())
        # A bucket may be one large parameter that no cap divides: then it stays as it is.
        stays = not self.buckets.measured_sizes and len(layout) > len(self.layout)
        reach = np.append(ratios, 1.0) if stays else ratios
        self.made[scenario] = _Made(ratios, stays, middle)
        error = self._miss * min(1.0, max(MISSED_AT_LEAST, 2 * abs(middle - 1)))
        is_captured = [list(bucket) for bucket in layout] == [list(bucket) for bucket in self.layout]
        why = "these are the captured buckets" if is_captured else why_unchanged(self.model, middle)
        return self.model.predicted(scenario, middle, reach.tolist(), error) | {
            "buckets": len(layout),
            "last_bucket_bytes": self._bytes(layout)[-1],
            "is_captured": is_captured,
            "reason": "; ".join(filter(None, (why, *self._limits(layout, stays)))) or None,
        }

    def _bytes(self, layout: Layout) -> list[int]:
        return [sum(self.buckets.sizes[number] for number in bucket) for bucket in layout]

    def _limits(self, layout: Layout, stays: bool) -> list[str]:
        """What limits the prediction of a layout."""
        limits = []
        sizes = self._bytes(layout)
        if min(sizes) < self.wire.line.smallest_bytes:
            limits.append("has buckets smaller than any in the capture: the link is extrapolated")
        if self.wire.is_beyond(max(sizes)):
            limits.append("has buckets larger than any in the capture: the link is extrapolated")
        if self.wire.latency_ns and len(sizes) != len(self.layout):
            limits.append(f"the link's latency is assumed, at most {self.wire.latency_ns / 1000:.0f} us")
        if stays:
            limits.append("single parameter sizes are unknown: at most this many buckets")
        return limits

    def excess(self, scenarios: Sequence[str]) -> dict[str, float]:
        """By how much each scenario is longer than the shortest, at least, over what the capture leaves open.

        Link by link, since all scenarios share the link; where sizes are unknown, also as if nothing could be divided.
        Less what the model misses of steps that are known, as far as that counts between layouts.
        """
        if not scenarios:
            return {}
        best = min(scenarios, key=lambda name: (self.made[name].step_ratio, name))
        shortest = self.made[best]
        least = {}
        for name in scenarios:
            one = self.made[name]
            over = one.ratios / shortest.ratios
            if one.may_stay:
                over = np.append(over, 1 / shortest.ratios)
            if shortest.may_stay:
                over = np.append(over, one.ratios)
            missed = MISSED_AT_LEAST * (self.model.missed_ratio + self._miss)
            least[name] = max(0.0, float(over.min() - 1) - missed) if name != best else 0.0
        return least


def _variants(model: Model) -> list[tuple[_Shares, _Shares]]:
    """What kernels lose beside communication, and transfers on a shared link: the likely, then what else is open."""
    slowing, transfers = model.slowing, model.transfers
    made = [(slowing.mid, transfers.share)]
    if transfers.matters:
        made.append((slowing.mid, transfers.other_share))
    if not slowing.is_known:
        made.append((slowing.high, transfers.share))
    return made


def _alone(model: Model, ours: pl.DataFrame) -> pl.DataFrame:
    """The timed collectives as short as they would have been without what sharing a link cost them."""
    share, rows = model.transfers.share, ours["event"].to_numpy()
    cost = np.asarray([share[rank] for rank in ours["rank"]]) * model.transfers.beside[rows]
    return ours.with_columns(end_ns=pl.col("end_ns") - pl.Series(np.round(cost).astype(np.int64)))


def _optimizer_in_backward(model: Model, buckets: Buckets) -> dict[str, object]:
    """Each bucket's share of the optimizer waits for that bucket alone.

    The optimizer's kernels of a step, in order, are dealt to the buckets by bytes, the last one always to the last
    bucket; the wait for that, which all had, is left out.
    """
    program, duration = model.program, model.program.duration
    optimizers = _optimizers(model)
    draft, stepping = Draft(program), np.zeros(duration.size, dtype=bool)
    found = False
    for backward in buckets.backwards:
        rows = optimizers.get((backward.rank, backward.step))
        if rows is None or len(backward.buckets) < 2:
            continue
        found, stepping[rows] = True, True
        took = np.cumsum(duration[rows])
        share = (took - duration[rows]) / took[-1]
        size = np.cumsum([bucket.bytes for bucket in backward.buckets])
        place = np.searchsorted(size, share * size[-1], side="right").clip(max=size.size - 1)
        place[-1] = size.size - 1
        for fresh in np.flatnonzero(np.diff(place, prepend=-1) > 0).tolist():
            bucket = backward.buckets[place[fresh]]
            draft.wait(int(rows[fresh]), bucket.event, program.latency[replay.WAIT, 0])
    draft.forget_waits(stepping[draft.waiting] & communication_of(model)[draft.awaited])
    if not found:
        return nothing("optimizer_in_backward", "no optimizer range, or one bucket only")
    return model.row(
        "optimizer_in_backward",
        model.mean(draft.program()),
        reason="the optimizer's kernels are dealt to the buckets by bytes; clipping by a global norm forbids it",
    )


def _optimizers(model: Model) -> dict[tuple[int, int], Ints]:
    """The kernels of the optimizer by rank and step, in order."""
    events, attribution = model.context.trace.events, model.context.attribution
    computes = events["class"].is_in(["compute", "spin"]).to_numpy()
    rows = np.flatnonzero(computes & attribution.in_phase("optimizer"))
    of = pl.DataFrame({"rank": events["rank"].gather(rows), "step": attribution.step[rows], "row": rows})
    groups = of.group_by("rank", "step", maintain_order=True).agg("row")
    return {
        (rank, step): row.to_numpy()
        for rank, step, row in zip(groups["rank"], groups["step"], groups["row"], strict=True)
    }


def apart(rows: pl.DataFrame) -> tuple[list[str], list[str], list[str]]:
    """Bucket caps: as short as the shortest; longer; and longer by the prediction, but not for all that is possible.

    What all caps share (the error of the replay, of the recorded steps) does not count between them; what the link
    leaves open does, and that two runs of one cap differ by 1 %.

    Args:
        rows: the rows of ``whatif`` of the bucket caps that have a prediction.
    """
    known = rows.filter(pl.col("step_ns").is_not_null()).sort("step_ns", "scenario")
    if known.is_empty():
        return [], [], []
    shortest = int(known["step_ns"][0])
    alike = pl.col("step_ns") <= shortest * (1 + LEAST_VARIATION)
    longer = pl.col("excess_ratio") > LEAST_VARIATION
    groups = (alike & ~longer, longer, ~alike & ~longer)
    same, more, unsure = (known.filter(group)["scenario"].to_list() for group in groups)
    return same, more, unsure
