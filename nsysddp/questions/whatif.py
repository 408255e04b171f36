"""How long would the step be with other communication, ranks or buckets?

    predicted = recorded x replay(changed) / replay(unchanged)             mean over the steady steps but the first
    band      = predicted x (1 ± error)
    error     = max(1 %, standard deviation of the steps)                  what runs of one setting differ by (below
                                                                           3 steps: at least 5 %)
                + |replay(unchanged) / recorded - 1|                       the self-replay error
                + |replay(host scaled) / measured - 1|                     with a step measured without the profiler
                + for other buckets: |replay(captured buckets, fitted link) / recorded - 1|, and what the fitted link's
                  own deviation makes of the prediction

Scenarios: no communication; communication k times faster; no straggler; no contention; the optimizer in backward;
other bucket caps or order (``rebucket``). Profiling lengthens host time: with the step that was measured without the
profiler, the host's time is scaled so that the replay of the unchanged run reproduces it, and predictions are of that
run.

Between bucket caps, what all of them share cancels; what counts is the link, and that runs of one cap differ by 1 %.
Caps that differ less, for any link that the fit allows, cannot be told apart, and none of them is named the best.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies import replay
from nsysddp.dependencies.graph import Graph, build
from nsysddp.model.errors import AnalysisError, CannotTell, UsageError
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import FLAG, FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import BYTES_PER_MIB, ms, ns_from_ms
from nsysddp.model.warnings import Warning
from nsysddp.questions import buckets as bucket_analysis
from nsysddp.questions.contention import contention
from nsysddp.questions.critical_path import critical_path
from nsysddp.questions.diagnosis import slowdowns
from nsysddp.questions.link import Link, fit_link
from nsysddp.questions.question import Option, Question
from nsysddp.questions.rebucket import Buckets, captured_layout, layout_for, rebuild, recorded_buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions import Context

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

GOOD_REPLAY = 0.02
"""A self-replay error below this is what the model is meant for."""

_LEAST_VARIATION = 0.01
"""Runs of one setting differ by at least this, however much alike the few steps of one capture are."""

_FEW_STEPS = 3
_FEW_STEPS_VARIATION = 0.05
"""Fewer steps than that say nothing about their own spread."""

_SMALL = 0.1
"""Messages up to this share of the smallest bucket are small."""

_LEAST_LINK_ERROR = 0.05
"""A fit on a few sizes can be closer than the link is steady."""

_HOST_SCALES = (0.05, 2.0)
_HALVINGS = 10
_NO_MATTER = 0.002
"""A step that much longer does not hang on the host."""

WHATIF = Table(
    "whatif",
    "one scenario",
    (
        Column(
            "scenario", TEXT, "unchanged, no_communication, faster_K, no_straggler, ..., cap_MIB, order_NAME"
        ),
        Column("step_ns", INT, "predicted mean steady step; null with a reason"),
        Column("low_ns", INT, "lower end of the band"),
        Column("high_ns", INT, "upper end of the band"),
        Column("change_ns", INT, "predicted - unchanged"),
        Column("change_ratio", FLOAT, "change_ns / unchanged"),
        Column("error_ratio", FLOAT, "half the band over the prediction"),
        Column("buckets", INT, "bucket scenarios: number of buckets"),
        Column("last_bucket_bytes", INT, "bucket scenarios: bytes of the last bucket"),
        Column(
            "excess_ratio",
            FLOAT,
            "caps: least excess over the shortest cap, over all links that the fit allows",
        ),
        Column("is_captured", FLAG, "bucket scenarios: the layout is the captured one"),
        Column("reason", TEXT, "why there is no prediction, or what limits it"),
    ),
)

WHATIF_REPLAY = Table(
    "whatif_replay",
    "one step: recorded, and replayed with nothing changed",
    (
        Column("step", TEXT, "name of the step; null for the whole capture"),
        Column("step_index", INT, "0-based order of the step; null for the whole capture"),
        Column("is_used", FLAG, "steady, and not the first"),
        Column(
            "recorded_ns",
            INT,
            "from the end of the steps before to the end of its last event, over all ranks",
        ),
        Column("replayed_ns", INT, "the same in the replay"),
        Column("error_ratio", FLOAT, "replayed / recorded - 1"),
    ),
)

WHATIF_LINK = Table(
    "whatif_link",
    "the fitted transfer time of gradient collectives",
    (
        Column("kind", TEXT, "collective kind"),
        Column("group_size", INT, "ranks in the communicator"),
        Column("latency_ns", INT, "time of an empty message; null if one size only was seen"),
        Column("bandwidth_gbps", FLOAT, "algorithm bandwidth of a large message, decimal GB/s"),
        Column("error_ratio", FLOAT, "median relative deviation of the collectives from the line"),
        Column("spread_ratio", FLOAT, "90th percentile of it"),
        Column("smallest_bytes", INT, "smallest message seen"),
        Column("largest_bytes", INT, "largest message seen"),
        Column("small_bytes", INT, "typical message far below these (a barrier); null if none was seen"),
        Column("small_ns", INT, "its time"),
        Column("samples", INT, "collectives"),
        Column("sizes", INT, "distinct sizes"),
    ),
)

TABLES = (WHATIF, WHATIF_REPLAY, WHATIF_LINK)
"""The tables of `nsysddp whatif`, in order."""


@dataclass(frozen=True)
class Ask:
    """What to predict.

    Attributes:
        caps_mib: bucket caps.
        faster: factors by which communication is faster.
        orders: ``ready`` or ``reverse``: the order in which buckets are filled, with the captured bucket sizes' cap.
        parameter_bytes: bytes of the parameters in ready order; None spreads a bucket's bytes evenly.
        measured_step_ns: mean step without the profiler, for which predictions are made.
        standard: also the scenarios that need no argument.
    """

    caps_mib: tuple[float, ...] = ()
    faster: tuple[float, ...] = (2.0,)
    orders: tuple[str, ...] = ()
    parameter_bytes: tuple[int, ...] | None = None
    measured_step_ns: int | None = None
    standard: bool = True


def whatif(context: Context, ask: Ask | None = None, *, graph: Graph | None = None) -> Result:
    """How long would a step be in each of the scenarios, and how good is the replay that says so?

    Args:
        context: of a trace loaded with ``host_calls=True``, and ``shapes=True`` for scenarios about contention.
        ask: the scenarios.
        graph: the dependency graph, if it has been built.

    Returns:
        The tables ``whatif``, ``whatif_replay`` and ``whatif_link``.

    Raises:
        CannotTell: the trace has no host calls, or does not show the buckets that a scenario is about.
        UsageError: the parameters are not those of the buckets.
        AnalysisError: the replay is circular.
    """
    ask = ask or Ask()
    trace = context.trace
    if trace.calls is None or trace.calls.is_empty():
        raise CannotTell("a replay needs the host's calls", do="capture with --trace=cuda,nvtx")
    graph = build(trace) if graph is None else graph
    model = _Model.of(context, graph, ask)
    rows = [model.row("unchanged", model.program)]
    if ask.standard:
        rows += _standard(model, ask)
    bucket_rows, wire, buckets = _bucket_scenarios(model, ask)
    rows += bucket_rows
    frames = {
        "whatif": WHATIF.frame(rows),
        "whatif_replay": WHATIF_REPLAY.frame(model.replayed()),
        "whatif_link": WHATIF_LINK.frame(_link_rows(wire)),
    }
    return Result(
        trace,
        frames,
        findings=_findings(frames, model, ask),
        assumptions=_assumptions(model, ask, buckets),
        warnings=_warnings(model, wire),
    )


@dataclass(frozen=True)
class _Model:
    """The recorded program, its unchanged replay, and what a prediction starts from.

    Attributes:
        context, graph: what it was made from.
        program: the recorded program, its host scaled.
        steps: which events end which step.
        recorded: lengths of the recorded steps.
        lengths: lengths of the replayed steps (host not scaled).
        unchanged_ns: mean step of the replay of ``program``.
        base_ns: mean step that predictions start from: recorded, or measured without the profiler.
        host_scale: of the host's time.
        replay_error_ratio: self-replay error.
        missed_ratio: by which the replay misses the step that was measured without the profiler; 0 without one.
        variation_ratio: what runs of one setting differ by at least.
        slower: as in ``diagnosis.slowdowns``.
    """

    context: Context
    graph: Graph
    program: replay.Program
    steps: replay.Steps
    recorded: Floats
    lengths: Floats
    unchanged_ns: float
    base_ns: float
    host_scale: float
    replay_error_ratio: float
    missed_ratio: float
    variation_ratio: float
    slower: dict[tuple[int, int], float]

    @classmethod
    def of(cls, context: Context, graph: Graph, ask: Ask) -> _Model:
        paths = critical_path(context.trace, graph=graph, attribution=context.attribution)
        warm = paths["critical_path_step"].filter("is_warmup")["step_index"].drop_nulls().unique().to_list()
        steps = replay.steps_of(graph, context.attribution, warm)
        program = replay.recorded(graph)
        recorded = steps.lengths(context.trace.events["end_ns"].to_numpy().astype(np.float64))
        lengths = steps.lengths(replay.run(program).end)
        base = steps.mean(recorded)
        if base <= 0:
            raise AnalysisError("the trace has no step with any length")
        error = abs(steps.mean(lengths) / base - 1)
        used = recorded[steps.steady]
        scale, unchanged, missed = 1.0, steps.mean(lengths), 0.0
        if ask.measured_step_ns is not None:
            scale, unchanged = _fit_host(program, steps, ask.measured_step_ns)
            base = float(ask.measured_step_ns)
            missed = abs(unchanged / base - 1)
        return cls(
            context=context,
            graph=graph,
            program=program.with_host(scale),
            steps=steps,
            recorded=recorded,
            lengths=lengths,
            unchanged_ns=unchanged,
            base_ns=base,
            host_scale=scale,
            replay_error_ratio=error,
            missed_ratio=missed,
            variation_ratio=max(
                float(np.std(used) / used.mean()),
                _LEAST_VARIATION if used.size >= _FEW_STEPS else _FEW_STEPS_VARIATION,
            ),
            slower=slowdowns(None if context.trace.shapes is None else contention(context))[0],
        )

    @property
    def error_ratio(self) -> float:
        """Of a prediction that keeps the recorded nodes."""
        return self.replay_error_ratio + self.missed_ratio + self.variation_ratio

    def mean(self, program: replay.Program, added: dict[int, int] | None = None) -> float:
        """Mean steady step of a replay, ns."""
        return self.steps.mean(self.steps.lengths(replay.run(program).end, added))

    def row(self, scenario: str, program: replay.Program, reason: str | None = None) -> dict[str, object]:
        """A row of ``whatif`` from a program whose nodes are the recorded ones."""
        predicted = self.base_ns * self.mean(program) / self.unchanged_ns
        return self.predicted(scenario, predicted, self.error_ratio) | {"reason": reason}

    def predicted(self, scenario: str, step_ns: float, error: float) -> dict[str, object]:
        """A row of ``whatif``."""
        return {
            "scenario": scenario,
            "step_ns": round(step_ns),
            "low_ns": round(step_ns * (1 - error)),
            "high_ns": round(step_ns * (1 + error)),
            "change_ns": round(step_ns - self.base_ns),
            "change_ratio": step_ns / self.base_ns - 1,
            "error_ratio": error,
        }

    def replayed(self) -> list[dict[str, object]]:
        """Rows of ``whatif_replay``."""
        by_step = self.steps.names[0] is not None
        return [
            {
                "step": name,
                "step_index": int(number) if by_step else None,
                "is_used": bool(used),
                "recorded_ns": round(was),
                "replayed_ns": round(now),
                "error_ratio": now / was - 1 if was else None,
            }
            for name, number, used, was, now in zip(
                self.steps.names,
                self.steps.numbers,
                self.steps.steady,
                self.recorded.tolist(),
                self.lengths.tolist(),
                strict=True,
            )
        ]


def _fit_host(program: replay.Program, steps: replay.Steps, measured_ns: int) -> tuple[float, float]:
    """The scale of the host's time with which the replay reproduces a measured step, and the step that it gives.

    The replayed step grows with the scale, so it is bisected. Where even the fastest host is too slow, the GPU bounds
    the replay: then the largest scale (up to 1) is taken with which the host does not matter, and the difference is
    part of the error. The same where the slowest host is too fast.
    """

    def step(scale: float) -> float:
        return steps.mean(steps.lengths(replay.run(program.with_host(scale)).end))

    low, high = _HOST_SCALES
    floor = step(low)
    target = float(measured_ns)
    if floor >= measured_ns:
        target, high = floor * (1 + _NO_MATTER), 1.0
    if step(high) <= target:
        return high, step(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if step(middle) < target else (low, middle)
    return low, step(low)


# --- scenarios that keep the recorded nodes --------------------------------------------------------------------------


def _standard(model: _Model, ask: Ask) -> list[dict[str, object]]:
    program = model.program
    communication = np.zeros(program.duration.size, dtype=bool)
    communication[: program.events] = (model.context.trace.events["class"] == "communication").to_numpy()
    if not communication.any():
        reason = "the trace holds no communication"
        return [_nothing("no_communication", reason)]
    freed = _without_contention(model)
    alone = program.having(
        duration=np.where(communication, 0.0, program.duration if freed is None else freed)
    ).apart(communication)
    doubt = None if freed is not None else "kernels keep the time that contention may have cost them"
    rows = [model.row("no_communication", alone, doubt)]
    for factor in ask.faster:
        quick = np.where(communication, program.duration / factor, program.duration)
        rows.append(model.row(f"faster_{factor:g}", program.having(duration=quick)))
    even = _without_straggler(model)
    rows.append(
        _nothing("no_straggler", "the ranks did not launch the same work, or there is one only")
        if even is None
        else model.row("no_straggler", even)
    )
    rows.append(
        _nothing("no_contention", "contention could not be told from this capture")
        if freed is None
        else model.row("no_contention", program.having(duration=freed))
    )
    return rows


def _nothing(scenario: str, reason: str) -> dict[str, object]:
    return {"scenario": scenario, "reason": reason}


def _without_contention(model: _Model) -> Floats | None:
    """Durations of kernels without what communication beside them cost; None if that is not known."""
    if not model.slower:
        return None
    trace = model.context.trace
    duration: Floats = model.program.duration.copy()
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    computes = trace.events["class"].is_in(["compute", "spin"]).to_numpy()
    step = model.context.attribution.step
    for rank in trace.rank_numbers:
        first, last = trace.rows_of(rank)
        rows = first + np.flatnonzero(computes[first:last])
        share = np.array(
            [
                model.slower.get((rank, int(number)), model.slower.get((rank, -1), 0.0))
                for number in step[rows]
            ]
        )
        beside = trace.union(rank, ["communication"]).length_within(start[rows], end[rows])
        duration[rows] -= share * beside
    return duration


def _without_straggler(model: _Model) -> replay.Program | None:
    """Every event, and every call towards it, as long as on the median rank (of an even number the faster middle one).

    Events of the ranks match by step, phase, name and number in that; calls by the event that they lead to, API name
    and number. Calls that do not match on all ranks stay as they were.
    """
    trace, graph = model.context.trace, model.graph
    ranks = len(trace.rank_numbers)
    if ranks < 2:
        return None
    events = trace.events
    attribution = model.context.attribution
    number = pl.int_range(pl.len()).cast(pl.Int64)
    key = ["step", "phase", "name"]
    program = model.program
    keyed = pl.DataFrame(
        {
            "rank": events["rank"].cast(pl.Int64),
            "step": attribution.step.astype(np.int64),
            "phase": attribution.phase_names(),
            "name": events["name"].cast(pl.Int64),
            "duration": program.duration[: events.height],
            "own": (events["class"] != "communication"),
        }
    ).with_columns(number=number.over("rank", *key))
    by_event = [*key, "number"]
    median = pl.col("duration").sort().slice((pl.len() - 1) // 2, 1).first()
    counted = keyed.with_columns(ranks=pl.col("rank").n_unique().over(by_event), even=median.over(by_event))
    known = (counted["ranks"] == ranks) & counted["own"] & (counted["step"] >= 0)
    if not known.any():
        return None
    duration, gap = program.duration.copy(), program.weights.ahead_lag.copy()
    rows = np.flatnonzero(known.to_numpy())
    duration[rows] = counted["even"].to_numpy()[rows]
    # What only some ranks ran (an extra kernel, or another variant of one) is cut to the median rank's time in such.
    odd = counted.with_row_index("row").filter(pl.col("own"), pl.col("step") >= 0, pl.col("ranks") < ranks)
    totals = odd.group_by("step", "phase", "rank").agg(total=pl.col("duration").sum())
    absent = ranks - pl.len()
    fair = totals.group_by("step", "phase").agg(
        fair=pl.when(absent > (ranks - 1) // 2)
        .then(0.0)
        .otherwise(pl.col("total").sort().slice((ranks - 1) // 2 - absent, 1).first())
    )
    cut = (
        odd.join(totals, on=["step", "phase", "rank"], how="left", nulls_equal=True)
        .join(fair, on=["step", "phase"], how="left", nulls_equal=True)
        .filter(pl.col("total") > pl.col("fair"))
    )
    duration[cut["row"].to_numpy()] *= (cut["fair"] / cut["total"]).to_numpy()

    lines = graph.lines
    leads = lines.leads_to
    to = np.flatnonzero(leads >= 0)
    assert trace.calls is not None
    nodes = events.height + to
    calls = (
        keyed[leads[to]]
        .select("rank", *by_event)
        .with_columns(
            call=trace.calls["name"].gather(lines.row[to]),
            duration=program.duration[nodes],
            gap=program.weights.ahead_lag[nodes],
            waits=lines.awaited[to] >= 0,
        )
    )
    by_call = [*by_event, "call"]
    calls = calls.with_columns(place=number.over("rank", *by_call))
    by_call.append("place")
    middle = (pl.len() - 1) // 2
    calls = calls.with_columns(
        ranks=pl.col("rank").n_unique().over(by_call),
        any_waits=pl.col("waits").any().over(by_call),
        even=pl.col("duration").sort().slice(middle, 1).first().over(by_call),
        even_gap=pl.col("gap").sort().slice(middle, 1).first().over(by_call),
    )
    usable = ((calls["ranks"] == ranks) & ~calls["any_waits"] & (calls["step"] >= 0)).to_numpy()
    duration[nodes[usable]] = calls["even"].to_numpy()[usable]
    gap[nodes[usable]] = calls["even_gap"].to_numpy()[usable]
    return program.having(duration=duration, ahead_lag=gap)


# --- scenarios with other buckets ------------------------------------------------------------------------------------


def _bucket_scenarios(
    model: _Model, ask: Ask
) -> tuple[list[dict[str, object]], _Wire | None, Buckets | None]:
    """Rows of the bucket caps, orders and of the optimizer in backward, with the fitted links and the buckets."""
    wanted = bool(ask.caps_mib or ask.orders)
    context, graph = model.context, model.graph
    table = bucket_analysis.buckets(context, graph=graph)["bucket"]
    try:
        if not wanted and table.is_empty():
            return [], None, None
        buckets = recorded_buckets(context, graph, table, ask.parameter_bytes)
    except (CannotTell, UsageError) as error:
        if wanted:
            raise
        return [_nothing("optimizer_in_backward", str(error).partition("; ")[0])], None, None
    rows = []
    if ask.standard:
        rows.append(_optimizer_in_backward(model, buckets))
    ours = context.timed.filter(
        pl.col("event").is_in([one.event for each in buckets.backwards for one in each.buckets])
    )
    wire = _Wire.of(context, ours)
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
            rows.append(_nothing(f"cap_{cap:g}", why))
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
class _Wire:
    """The fitted line of the gradients' collectives, and the typical message smaller than any of them.

    Below the smallest bucket nothing like it was seen. Transfer time over size bends downwards (large messages use the
    link better), so there the time lies between the line, drawn on to smaller sizes, and the chord from the small
    message (a barrier) to the line's smallest size::

        chord(size) = small_ns + (line(smallest) - small_ns) * (size - small) / (smallest - small)

    Attributes:
        line: the fit.
        small_bytes, small_ns: the small message; None where there was none.
    """

    line: Link
    small_bytes: int | None
    small_ns: float | None

    @classmethod
    def of(cls, context: Context, ours: pl.DataFrame) -> _Wire | None:
        """The wire of the gradients' collectives; None if no size is known."""
        kinds = ours["kind"].drop_nulls().mode().sort() if ours.height else pl.Series([], dtype=pl.String)
        line = fit_link(ours, kinds[0]) if kinds.len() else None
        if line is None:
            return None
        small = fit_link(
            context.timed.filter(pl.col("bytes") <= line.smallest_bytes * _SMALL), line.kind, line.group_size
        )
        if small is None:
            return cls(line, None, None)
        size = (small.smallest_bytes + small.largest_bytes) // 2
        return cls(line, size, float(small.transfer_ns(size)))

    def times(self) -> list[Callable[[int], float]]:
        """Transfer time by size: the line; steeper; with more latency; and the last: along the chord, if there is one.

        Where latency is unknown, a line with nothing but latency takes the place of more of it.
        """
        line = self.line
        off = max(line.error_ratio, _LEAST_LINK_ERROR)
        made: list[Callable[[int], float]] = [
            line.transfer_ns,
            lambda size: line.latency_ns + (1 + off) * line.ns_per_byte * size,
        ]
        if line.has_latency:
            made.append(lambda size: (1 + off) * line.latency_ns + line.ns_per_byte * size)
        else:
            made.append(lambda _: line.ns_per_byte * line.smallest_bytes)
        if self.small_bytes is not None:
            made.append(self._along_chord)
        return made

    def _along_chord(self, size: int) -> float:
        assert self.small_bytes is not None
        assert self.small_ns is not None
        smallest = self.line.smallest_bytes
        if size >= smallest:
            return self.line.transfer_ns(size)
        rise = self.line.transfer_ns(smallest) - self.small_ns
        return self.small_ns + rise * (size - self.small_bytes) / (smallest - self.small_bytes)


@dataclass(frozen=True)
class _Made:
    """What a layout makes of the captured step, link by link.

    Attributes:
        ratios: over the captured layout, one for each time of the wire.
        may_stay: sizes of parameters are unknown, so that it may be the captured layout after all.
        step_ratio: the prediction.
    """

    ratios: Floats
    may_stay: bool
    step_ratio: float


class _Remodel:
    """Predictions for bucket layouts, relative to the captured layout in the same model."""

    def __init__(self, model: _Model, buckets: Buckets, wire: _Wire, layout: Sequence[Sequence[int]]) -> None:
        self.model, self.buckets, self.wire, self.layout = model, buckets, wire, layout
        self._times = wire.times()
        self._captured = [self._mean(layout, time) for time in self._times]
        self.error_ratio = abs(self._captured[0] / model.unchanged_ns - 1)
        """Of the captured buckets in this model, against the replay of what was recorded."""
        self.made: dict[str, _Made] = {}

    def _mean(self, layout: Sequence[Sequence[int]], time: Callable[[int], float]) -> float:
        model = self.model
        made = rebuild(model.program, model.graph, self.buckets, layout, time, host_scale=model.host_scale)
        self._bytes = made.layout_bytes
        return model.mean(made.program, dict(made.steps))

    def row(self, scenario: str, layout: Sequence[Sequence[int]]) -> dict[str, object]:
        """A row of ``whatif``: with buckets smaller than any seen, the middle between the wire's line and its chord."""
        means = [self._mean(layout, time) for time in self._times]
        ratios = np.asarray(means) / np.asarray(self._captured)
        ends = ratios[[0, -1]] if self.wire.small_bytes is not None else ratios[:1]
        middle = float(ends.mean())
        reasons = []
        if min(self._bytes) < self.wire.line.smallest_bytes:
            reasons.append("has buckets smaller than any in the capture: the link is extrapolated")
        stays = not self.buckets.measured_sizes and len(layout) > len(self.layout)
        if stays:
            # A bucket may be one large parameter that no cap divides: then it stays as it is.
            reasons.append("single parameter sizes are unknown: at most this many buckets")
        reach = np.append(ratios, 1.0) if stays else ratios
        of_link = float(max(reach.max() / middle - 1, 1 - reach.min() / middle))
        self.made[scenario] = _Made(ratios, stays, middle)
        error = self.model.error_ratio + self.error_ratio + of_link
        return self.model.predicted(scenario, self.model.base_ns * middle, error) | {
            "buckets": len(layout),
            "last_bucket_bytes": self._bytes[-1],
            "is_captured": [list(one) for one in layout] == [list(one) for one in self.layout],
            "reason": "; ".join(reasons) or None,
        }

    def excess(self, scenarios: Sequence[str]) -> dict[str, float]:
        """By how much each scenario is longer than the shortest, at least, over what the capture leaves open.

        Link by link, since all scenarios share the link; where sizes are unknown, also as if nothing could be divided.
        """
        if not scenarios:
            return {}
        best = min(scenarios, key=lambda name: self.made[name].step_ratio)
        shortest = self.made[best]
        least = {}
        for name in scenarios:
            one = self.made[name]
            over = one.ratios / shortest.ratios
            if one.may_stay:
                over = np.append(over, 1 / shortest.ratios)
            if shortest.may_stay:
                over = np.append(over, one.ratios)
            least[name] = float(over.min() - 1) if name != best else 0.0
        return least


def _optimizer_in_backward(model: _Model, buckets: Buckets) -> dict[str, object]:
    """Each bucket's share of the optimizer waits for that bucket alone.

    The optimizer's kernels of a step, in order, are dealt to the buckets by bytes, the last one always to the last
    bucket; the wait for that, which all had, is left out.
    """
    trace = model.context.trace
    phases = model.context.attribution.phase_names()
    computes = trace.events["class"].is_in(["compute", "spin"])
    stepping = ((phases == "optimizer").fill_null(False) & computes).to_numpy()
    step = model.context.attribution.step
    communication = (trace.events["class"] == "communication").to_numpy()
    draft = replay.Draft(model.program)
    ranks = trace.events["rank"].to_numpy()
    found = False
    for backward in buckets.backwards:
        first, last = trace.rows_of(backward.rank)
        rows = first + np.flatnonzero(stepping[first:last] & (step[first:last] == backward.step))
        if not rows.size or len(backward.buckets) < 2:
            continue
        found = True
        took = np.cumsum(model.program.duration[rows])
        share = (took - model.program.duration[rows]) / took[-1]
        size = np.cumsum([bucket.bytes for bucket in backward.buckets])
        place = np.searchsorted(size, share * size[-1], side="right").clip(max=size.size - 1)
        place[-1] = size.size - 1
        draft.forget_waits(np.isin(draft.waiting, rows) & communication[draft.awaited])
        for fresh in np.flatnonzero(np.diff(place, prepend=-1) > 0).tolist():
            bucket = backward.buckets[place[fresh]]
            draft.wait(int(rows[fresh]), bucket.event, model.program.latency[replay.WAIT, 0])
    assert ranks.size == phases.len()
    if not found:
        return _nothing("optimizer_in_backward", "no optimizer range, or one bucket only")
    return model.row(
        "optimizer_in_backward",
        draft.program(),
        "the optimizer's kernels are dealt to the buckets by bytes; clipping by a global norm forbids it",
    )


def _link_rows(wire: _Wire | None) -> list[dict[str, object]]:
    if wire is None:
        return []
    line = wire.line
    return [
        {
            "kind": line.kind,
            "group_size": line.group_size,
            "latency_ns": round(line.latency_ns) if line.has_latency else None,
            "bandwidth_gbps": line.bandwidth_gbps,
            "error_ratio": line.error_ratio,
            "spread_ratio": line.spread_ratio,
            "smallest_bytes": line.smallest_bytes,
            "largest_bytes": line.largest_bytes,
            "small_bytes": wire.small_bytes,
            "small_ns": None if wire.small_ns is None else round(wire.small_ns),
            "samples": line.samples,
            "sizes": line.sizes,
        }
    ]


# --- what it means ---------------------------------------------------------------------------------------------------


def indistinguishable(rows: pl.DataFrame) -> list[str]:
    """The bucket caps that cannot be told apart from the shortest, in order of their predictions.

    What all caps share (the error of the replay, of the recorded steps) does not count between them; what the link
    leaves open does, and that two runs of one cap differ by 1 %.

    Args:
        rows: the rows of ``whatif`` of the bucket caps that have a prediction.
    """
    known = rows.filter(pl.col("step_ns").is_not_null()).sort("step_ns", "scenario")
    return known.filter(pl.col("excess_ratio") <= _LEAST_VARIATION)["scenario"].to_list()


def _findings(frames: dict[str, pl.DataFrame], model: _Model, ask: Ask) -> tuple[Finding, ...]:
    table = frames["whatif"]
    used = frames["whatif_replay"].filter("is_used")
    found = [
        Finding(
            "whatif_replay",
            f"Replaying the run unchanged gives its {used.height} used step{'s' if used.height > 1 else ''} to "
            f"{model.replay_error_ratio:.2%} (largest error of one: "
            f"{max(abs(one) for one in used['error_ratio'].to_list()):.2%}).",
            value=model.replay_error_ratio,
            unit="ratio",
            rows=({"table": "whatif_replay"},),
            severity=3.0,
        )
    ]
    caps = table.filter(pl.col("scenario").str.starts_with("cap_"), pl.col("step_ns").is_not_null())
    if caps.height:
        best = indistinguishable(caps)
        names = [name.removeprefix("cap_") for name in best]
        shortest = caps.sort("step_ns", "scenario").row(0, named=True)
        rows = tuple({"table": "whatif", "scenario": name} for name in best)
        span = f"{ms(shortest['step_ns']):.3f} ms (± {shortest['error_ratio']:.1%})"
        if len(best) == caps.height and caps.height > 1:
            text = (
                f"The bucket caps {', '.join(names)} MiB cannot be told apart: the capture allows differences below "
                f"1 % between their steps (from {span}); none is named the best."
            )
        elif len(best) > 1:
            others = caps.filter(~pl.col("scenario").is_in(best))["scenario"].to_list()
            worse = ", ".join(name.removeprefix("cap_") for name in others)
            text = (
                f"The bucket caps {', '.join(names)} MiB cannot be told apart (from {span}); longer than these: "
                f"{worse} MiB."
            )
        else:
            text = f"The shortest step is predicted for a bucket cap of {names[0]} MiB: {span}."
        found.append(
            Finding("bucket_caps", text, value=shortest["step_ns"], unit="ns", rows=rows, severity=2.0)
        )
    for row in table.filter(pl.col("scenario") != "unchanged").iter_rows(named=True):
        if row["step_ns"] is None or row["scenario"].startswith("cap_"):
            continue
        sure = row["high_ns"] < model.base_ns or row["low_ns"] > model.base_ns
        text = f"{row['scenario']}: {ms(row['step_ns']):.3f} ms a step ({row['change_ratio']:+.1%}" + (
            ")" if sure else ", within the error)"
        )
        found.append(
            Finding(
                "whatif",
                text,
                value=row["step_ns"],
                unit="ns",
                rows=({"table": "whatif", "scenario": row["scenario"]},),
                severity=abs(row["change_ratio"]),
            )
        )
    assert ask is not None
    return tuple(sorted(found, key=lambda one: -one.severity))


def _assumptions(model: _Model, ask: Ask, buckets: Buckets | None) -> tuple[str, ...]:
    said = [
        "kernels keep their recorded durations, and with them the contention that they had, unless a scenario says so"
    ]
    if ask.measured_step_ns is not None:
        said.append(
            f"the host's time is scaled by {model.host_scale:.2f}, so that the replay gives the step that was measured "
            "without the profiler"
        )
    else:
        said.append(
            "predictions are of the profiled run, whose host time is lengthened (--measured-step: of the run without)"
        )
    if buckets is not None and (ask.caps_mib or ask.orders):
        cost = max(buckets.hook_ns.values()) * model.host_scale
        own = ", with what the annotation and the profiler add" if buckets.annotated else ""
        said.append(f"each bucket costs the host {ms(cost):.3f} ms in its hook, as recorded and scaled{own}")
        said.append(
            "parameter sizes as given"
            if ask.parameter_bytes is not None
            else "single parameter sizes are unknown: a bucket's bytes are spread evenly over its parameters, "
            "and these over the launches since the bucket before"
        )
    return tuple(said)


def _warnings(model: _Model, wire: _Wire | None) -> tuple[Warning, ...]:
    made = [*model.context.trace.warnings]
    if model.replay_error_ratio > GOOD_REPLAY:
        text = f"the self-replay error is {model.replay_error_ratio:.1%}, above {GOOD_REPLAY:.0%}"
        made.append(Warning("whatif_replay_error", 1, text))
    if model.missed_ratio > GOOD_REPLAY:
        text = (
            f"no host time makes the replay give the measured step: it misses it by {model.missed_ratio:.1%}, since "
            "kernels of the profiled run are slower than without the profiler, or it is another setting"
        )
        made.append(Warning("whatif_measured_step", 1, text))
    if wire is not None and not wire.line.has_latency:
        made.append(
            Warning(
                "whatif_one_size",
                1,
                "all gradient messages have about one size: the link's latency is unknown",
            )
        )
    return tuple(made)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} is no list of numbers", do="write 1,4,16") from None
    if not all(0 < value < 1e6 for value in values) or len(set(values)) < len(values):
        raise UsageError(f"{text!r}: each number must be above 0 and given once")
    return values


def _sizes(path: str) -> tuple[int, ...]:
    file = Path(path)
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the parameter sizes: {error.strerror}", file=file.name) from error
    except ValueError as error:
        raise UsageError("the parameter sizes are not JSON", file=file.name) from error
    if not isinstance(read, list) or not read or not all(type(size) is int and size > 0 for size in read):
        raise UsageError(
            "the parameter sizes are no list of bytes",
            file=file.name,
            do="write [4096, 4194304, ...] in ready order",
        )
    return tuple(read)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{text!r} is no step", do="give milliseconds above 0")
    return value


def _run(context: Context, options: Mapping[str, Any]) -> Result:
    measured = options["measured_step"]
    ask = Ask(
        caps_mib=tuple(options["bucket_cap"]),
        faster=tuple(options["faster"]),
        orders=tuple(options["bucket_order"]),
        parameter_bytes=options["parameters"],
        measured_step_ns=None if measured is None else ns_from_ms(measured),
    )
    return whatif(context, ask, graph=context.graph)


QUESTION = Question(
    name="whatif",
    ask="How long would the step be with other communication, ranks or buckets?",
    more="From a replay of the recorded run. Each prediction has an error band; where bands of bucket caps overlap, "
    "none is named the best. The error of replaying the run unchanged is shown.",
    tables=TABLES,
    run=_run,
    shown=WHATIF.name,
    reads=frozenset({"launches", "host_calls", "shapes"}),
    options=(
        Option("bucket_cap", "Bucket caps to predict, e.g. 1,4,16,25,64.", _numbers, (), "MIB,..."),
        Option(
            "bucket_order",
            "Fill buckets as gradients get ready, or the other way round; repeatable.",
            str,
            (),
            choices=("ready", "reverse"),
            multiple=True,
        ),
        Option("faster", "Factors by which communication is faster.", _numbers, (2.0,), "K,..."),
        Option(
            "parameters",
            "JSON list of the parameters' sizes in bytes, in the order in which their gradients get ready.",
            _sizes,
            None,
            "FILE",
        ),
        Option(
            "measured_step",
            "Mean step in ms of the same setting without the profiler: predict that run.",
            _milliseconds,
            None,
            "MS",
        ),
    ),
    whole_capture=True,
    examples=("report.sqlite", "report.sqlite --bucket-cap 1,4,16,25,64"),
)
