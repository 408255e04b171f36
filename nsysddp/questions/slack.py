"""How much later could each collective have ended without a longer step, and which bandwidth would have sufficed?

From the replay of the recorded dependencies, solved backwards: no event may end after its step. A collective ends
later on all its ranks at once; every other collective stays as long as it was::

    slack      = least over its ranks of (latest end that lengthens no step - end)
    sufficient = bytes / (transfer + slack)

Slacks do not add up: two collectives ahead of one kernel can share one. So roles are asked by replaying again, with all
transfers of the role slower or faster together. Where latency decides (``latency``) no bandwidth is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies import replay
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.collectives import with_bus_bytes
from nsysddp.questions.communicators.groups import bus_bandwidth, figures
from nsysddp.questions.latency import DECIDES, LATENCY, MOSTLY, few_bytes, share_of_latency
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from nsysddp.questions.context import Context

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

SLACK = Table(
    "slack",
    "one matched collective of the steps used, over all its ranks",
    (
        Column("collective_id", INT, "as in the table collective"),
        Column("step", TEXT, "name of the step in which it was launched; null for the whole capture"),
        Column("step_index", INT, "0-based order of the step; null for the whole capture"),
        Column("phase", TEXT, "phase in which it was launched; null if none or unknown"),
        Column("group", INT, "number of the group (communicators)"),
        Column("role", TEXT, "role of the group; null: not reported"),
        Column("kind", TEXT, "kind of the collective"),
        Column("bytes", INT, "message size; null without payloads"),
        Column("start_ns", INT, "first start over the ranks"),
        Column("end_ns", INT, "last end over the ranks"),
        Column("transfer_ns", INT, "from the last arrival on (shortest kernel over the ranks)"),
        Column(
            "exposed_ns",
            INT,
            "under no compute, on the rank on which it is longest so; null beside whole graphs",
        ),
        Column("slack_ns", INT, "so much later it could have ended, alone; null without host calls"),
        Column("rank", INT, "the rank that allows no more (the first of several)"),
        Column("busbw_gbps", FLOAT, "bus bandwidth that it had"),
        DECIDES,
        Column(
            "sufficient_gbps",
            FLOAT,
            "bus bandwidth with which its transfer takes its slack longer; null with a reason",
        ),
        Column("reason", TEXT, "why there is no bandwidth that would have sufficed; null if there is one"),
    ),
)

SLACK_ROLE = Table(
    "slack_role",
    "one role: what the step would be with all its transfers slower or faster together",
    (
        Column("role", TEXT, "role; null: groups without one"),
        Column("collectives", INT, "matched collectives of the steps used"),
        Column("step_ns", INT, "mean of the steps used, as recorded"),
        Column("exposed_ns", INT, "exposed time of the role a step, on the rank on which it is longest"),
        Column("costs_ns", INT, "by how much a step is shorter if its transfers take no time"),
        Column(
            "busbw_gbps",
            FLOAT,
            "bus bandwidth that they had together, without those for which latency decides; null with a reason",
        ),
        Column(
            "latency_ratio",
            FLOAT,
            "share of their transfer time for which latency decides; null: told of none of them",
        ),
        Column(
            "undecided_ratio",
            FLOAT,
            "share of their transfer time of which it is not told whether latency or bytes decide",
        ),
        Column(
            "slower_ratio", FLOAT, "so many times longer all its transfers can be and no step grows by 0.1 %"
        ),
        Column("sufficient_gbps", FLOAT, "bus bandwidth that is; null with a reason"),
        Column(
            "faster_ratio",
            FLOAT,
            "least of the speeds tried (up to 4) that leaves at most a tenth of the cost, else 2; null: no cost",
        ),
        Column("faster_gbps", FLOAT, "bus bandwidth that is; null with a reason, or without a cost"),
        Column("left_ns", INT, "what a step is then still longer than without its transfers"),
        Column("reason", TEXT, "why no bandwidth is named; null if one is"),
    ),
)

_SPEEDS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Speeds tried for a role whose transfers cost time."""

_TWICE = 2.0
"""The speed that is shown where none of these hides enough: the last transfer of a step has nothing to hide it."""

_LEFT = 0.1
"""A speed is enough if at most this part of the cost is left."""

_UNCHANGED = 0.001
"""A step that is longer by less is as long."""

_REASONS = {
    LATENCY: "latency decides: another bandwidth would change little",
    "unsized": "message sizes are not known (export with --include-blobs=true)",
    "unknown": "no slack is known",
}
"""Why there is no bandwidth that would have sufficed."""

_MOST_SLOWER = 64.0
_HALVINGS = 7
_POOR_REPLAY = 0.05
"""A replay that misses the recorded steps by more is said."""


@dataclass(frozen=True)
class Model:
    """The recorded program, solved once.

    Attributes:
        context: what was asked.
        program: the recorded program.
        schedule: its solution.
        steps: which events end which step.
    """

    context: Context
    program: replay.Program
    schedule: replay.Schedule
    steps: replay.Steps

    @classmethod
    def of(cls, context: Context) -> Model:
        """Replay a run unchanged."""
        program = replay.recorded(context.graph)
        every = context.attribution.steps["step_index"].to_list()
        left_out = sorted(set(every) - set(context.used_steps)) if context.used_steps else []
        return cls(
            context,
            program,
            replay.run(program),
            replay.steps_of(context.graph, context.attribution, left_out),
        )

    @cached_property
    def used(self) -> Flags:
        """Which of the steps count: those used, the first one included."""
        if not self.context.used_steps:
            return np.ones(self.steps.numbers.size, dtype=bool)
        return np.isin(self.steps.numbers, self.context.used_steps)

    @cached_property
    def recorded_ns(self) -> float:
        """Mean of the recorded steps used."""
        ends = self.context.trace.events["end_ns"].to_numpy().astype(np.float64)
        return float(self.steps.lengths(ends)[self.used].mean())

    @cached_property
    def unchanged(self) -> Floats:
        """Lengths of the replayed steps."""
        return self.steps.lengths(self.schedule.end)

    @property
    def error_ratio(self) -> float:
        """By how much the replay misses the recorded steps."""
        mean = float(self.unchanged[self.used].mean())
        return mean / self.recorded_ns - 1 if self.recorded_ns else 0.0

    def lengths(self, nodes: NDArray[np.int64], longer: float) -> Floats:
        """Lengths of the steps with the transfers of these nodes so many times as long."""
        duration = self.program.duration.copy()
        duration[nodes] *= longer
        return self.steps.lengths(replay.run(self.program.having(duration=duration), calls=False).end)

    def saved_ns(self, lengths: Floats) -> float:
        """By how much the recorded step would be shorter, at the ratio of the replayed ones."""
        return self.recorded_ns * (1 - float(lengths[self.used].sum() / self.unchanged[self.used].sum()))


def slack(context: Context) -> Result:
    """The answer (see ``QUESTION``)."""
    known = context.groups.groups
    events = known.events.filter(pl.col("ready_ns").is_not_null() & pl.col("collective_id").is_not_null())
    calls = context.trace.calls
    warnings = list(context.windows.warnings)
    if calls is None or not calls.height:
        warnings.append(
            Warning(
                "no_slack",
                1,
                "host calls are missing, so nothing tells how late a collective may end (--trace=cuda)",
            )
        )
        collectives = _collectives(context, events.with_columns(slack=pl.lit(None, pl.Float64)))
        return Result(
            context.trace,
            {SLACK.name: collectives, SLACK_ROLE.name: SLACK_ROLE.empty()},
            warnings=tuple(warnings),
        )
    model = Model.of(context)
    room = replay.slack(model.program, model.schedule, model.steps)
    events = events.with_columns(
        slack=pl.Series(room[events["event"].to_numpy()], dtype=pl.Float64).fill_nan(None)
    )
    if abs(model.error_ratio) > _POOR_REPLAY:
        warnings.append(
            Warning(
                "poor_replay",
                1,
                f"the replay of the recorded dependencies is {model.error_ratio:+.1%} off the recorded steps: "
                "what is missing there is missing in the slack",
            )
        )
    tables = {SLACK.name: _collectives(context, events), SLACK_ROLE.name: _roles(model, events)}
    return Result(
        context.trace,
        tables,
        findings=tuple(_findings(tables, context.deciding)),
        warnings=tuple(warnings),
        assumptions=context.windows.assumptions,
    )


def _collectives(context: Context, events: pl.DataFrame) -> pl.DataFrame:
    trace = context.trace
    exposed = np.zeros(events.height, dtype=np.int64)
    known = np.ones(events.height, dtype=bool)
    rank = events["rank"].to_numpy()
    for number in np.unique(rank).tolist():
        rows = np.flatnonzero(rank == number)
        start, end = events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows]
        exposed[rows] = end - start - trace.union(number, ["compute", "spin"]).length_within(start, end)
        known[rows] = trace.union(number, ["graph"]).length_within(start, end) == 0
    least = pl.col("slack").sort_by("slack", "rank", nulls_last=True).first()
    made = (
        events.with_columns(
            exposed=pl.when(pl.Series(known)).then(pl.Series(exposed)),
            step_name=context.attribution.step_names(events["event"].to_numpy()),
        )
        .group_by("collective_id", maintain_order=True)
        .agg(
            pl.col("step_name").first().alias("step"),
            pl.when(pl.col("step").first() >= 0).then(pl.col("step").first()).alias("step_index"),
            pl.col("phase", "group", "role", "kind", "bytes", "group_size").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            transfer_ns=pl.col("shortest_ns").min(),
            exposed_ns=pl.when(pl.col("exposed").null_count() == 0).then(pl.col("exposed").max()),
            slack=least,
            rank=pl.when(pl.col("slack").is_not_null().any()).then(
                pl.col("rank").sort_by("slack", "rank", nulls_last=True).first()
            ),
        )
        .with_columns(
            group=pl.when(pl.col("group") >= 0).then("group"),
            slack_ns=pl.when(pl.col("slack").is_finite()).then(pl.col("slack").round()).cast(pl.Int64),
        )
        .pipe(with_bus_bytes)
        .join(context.deciding.select("collective_id", "decides"), on="collective_id", how="left")
        .with_columns(
            busbw_gbps=pl.when(pl.col("transfer_ns") > 0).then(pl.col("bus_bytes") / pl.col("transfer_ns")),
            sufficient_gbps=pl.when(pl.col("transfer_ns") > 0, pl.col("decides").ne_missing(LATENCY)).then(
                pl.col("bus_bytes") / (pl.col("transfer_ns") + pl.col("slack_ns"))
            ),
        )
        .with_columns(
            reason=pl.when(pl.col("sufficient_gbps").is_null()).then(
                pl.when(pl.col("decides") == LATENCY)
                .then(pl.lit(_REASONS[LATENCY]))
                .when(pl.col("slack_ns").is_null())
                .then(pl.lit(_REASONS["unknown"]))
                .otherwise(pl.lit(_REASONS["unsized"]))
            )
        )
        .sort("start_ns", "collective_id")
    )
    return SLACK.check(made)


def _roles(model: Model, events: pl.DataFrame) -> pl.DataFrame:
    steps = int(model.used.sum())
    exposed = (
        figures(model.context.trace, events, "role")
        .group_by("role")
        .agg(exposed_ns=pl.col("exposed_ns").max())
    )
    longest = dict(exposed.iter_rows())
    deciding = model.context.deciding
    made = []
    for (role,), part in events.group_by("role", maintain_order=True):
        nodes = part["event"].to_numpy()
        costs = model.saved_ns(model.lengths(nodes, 0.0))
        slower = _slower(model, nodes)
        faster, left = _faster(model, nodes, costs)
        mine = deciding.join(part, on="collective_id", how="semi")
        latency = share_of_latency(mine)
        decided = latency is not None and latency >= MOSTLY
        busbw = None if decided else _bandwidth_beside_latency(part, mine)
        whole = longest[role]
        made.append(
            {
                "role": role,
                "collectives": part["collective_id"].n_unique(),
                "step_ns": round(model.recorded_ns),
                "exposed_ns": None if whole is None else round(whole / steps),
                "costs_ns": max(round(costs), 0),
                "busbw_gbps": busbw,
                "latency_ratio": latency,
                "undecided_ratio": _undecided(mine),
                "slower_ratio": slower,
                "sufficient_gbps": busbw / slower if busbw is not None else None,
                "faster_ratio": faster,
                "faster_gbps": busbw * faster if busbw is not None and faster is not None else None,
                "left_ns": left,
                "reason": _REASONS[LATENCY if decided else "unsized"] if busbw is None else None,
            }
        )
    return SLACK_ROLE.frame(made).sort("costs_ns", "role", descending=[True, False], nulls_last=True)


def _bandwidth_beside_latency(part: pl.DataFrame, deciding: pl.DataFrame) -> float | None:
    """Bus bandwidth of those of a role's collectives for which latency does not decide."""
    return bus_bandwidth(part.join(deciding.filter(decides=LATENCY), on="collective_id", how="anti"))


def _undecided(deciding: pl.DataFrame) -> float | None:
    """Share of the transfer time of which neither latency nor bytes are known to decide; None without sizes."""
    if deciding.is_empty():
        return None
    unknown = deciding.filter(pl.col("decides").is_null())["transfer_ns"].sum()
    return float(unknown) / float(deciding["transfer_ns"].sum())


def _slower(model: Model, nodes: NDArray[np.int64]) -> float:
    """The largest factor by which these transfers can take longer and no step is longer; by halving its range."""
    most = model.unchanged * (1 + _UNCHANGED)

    def fits(factor: float) -> bool:
        return bool((model.lengths(nodes, factor)[model.used] <= most[model.used]).all())

    if fits(_MOST_SLOWER):
        return _MOST_SLOWER
    low, high = 1.0, _MOST_SLOWER
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _faster(model: Model, nodes: NDArray[np.int64], costs: float) -> tuple[float | None, int | None]:
    """The least speed tried that leaves at most a tenth of the cost, and what it leaves a step."""
    if costs <= _UNCHANGED * model.recorded_ns:
        return None, None
    left = {speed: costs - model.saved_ns(model.lengths(nodes, 1 / speed)) for speed in _SPEEDS}
    speed = next((speed for speed in _SPEEDS if left[speed] <= _LEFT * costs), _TWICE)
    return speed, max(round(left[speed]), 0)


def _findings(tables: dict[str, pl.DataFrame], deciding: pl.DataFrame) -> Iterator[Finding]:
    if not tables[SLACK.name].height:
        yield Finding(
            "no_communication", "No matched collective: nothing can be said of slack.", value=0, unit="count"
        )
    for row in tables[SLACK_ROLE.name].iter_rows(named=True):
        name = row["role"] or "role not reported"
        exposed = "" if row["exposed_ns"] is None else f"exposed {ms(row['exposed_ns']):.2f} ms a step, "
        mine = tables[SLACK.name].filter(pl.col("role").eq_missing(pl.lit(row["role"], pl.String)))
        few = few_bytes(deciding.join(mine, on="collective_id", how="semi"))
        yield Finding(
            "slack_role",
            f"{name}: {exposed}{_said(row, few)}.",
            value=row["costs_ns"],
            unit="ns",
            rows=({"table": SLACK_ROLE.name, "role": row["role"]},),
            severity=row["costs_ns"],
        )


def _said(row: Mapping[str, Any], few: str | None) -> str:
    """What the transfers of a role cost, and what would hide them: a bandwidth, or fewer collectives."""
    costs = row["costs_ns"] > _UNCHANGED * row["step_ns"]
    said = f"costs {ms(row['costs_ns']):.2f} ms of a step" if costs else "costs nothing"
    if row["reason"] == _REASONS[LATENCY]:
        if not costs:
            return f"{said}; latency decides ({few}), not bandwidth"
        return (
            f"{said}; latency decides ({few}), so no bandwidth would hide it: fewer collectives, fused, less often, "
            "asynchronous, or over fewer hops"
        )
    said += "" if row["busbw_gbps"] is None else f" at {_gbps(row['busbw_gbps'])}"
    if not costs:
        less = (
            _gbps(row["sufficient_gbps"])
            if row["sufficient_gbps"] is not None
            else f"1/{row['slower_ratio']:.1f} of its speed"
        )
        return (
            f"{said}; {less} {'or less ' if row['slower_ratio'] >= _MOST_SLOWER else ''}would have sufficed"
        )
    speed = (
        _gbps(row["faster_gbps"])
        if row["faster_gbps"] is not None
        else f"{row['faster_ratio']:g} x the speed"
    )
    hides = row["left_ns"] <= _LEFT * row["costs_ns"]
    said += f"; {speed} would {'hide all but' if hides else 'still leave'} {ms(row['left_ns']):.2f}"
    if (row["undecided_ratio"] or 0) >= MOSTLY:
        said += " (if bytes decide: messages of one size do not tell latency from bandwidth)"
    return said


def _gbps(value: float) -> str:
    """A bandwidth with two digits at least: one below 1 GB/s is never 0."""
    return f"{value:.0f} GB/s" if value >= _WHOLE_GBPS else f"{value:.2g} GB/s"


_WHOLE_GBPS = 10.0


QUESTION = Question(
    name="slack",
    ask=(__doc__ or "").partition("\n")[0],
    more="Slack of every collective by the replayed dependencies, the bandwidth that would have sufficed, and for each "
    "role what a step would be with all its transfers slower or faster.",
    tables=(SLACK, SLACK_ROLE),
    run=lambda context, _: slack(context),
    shown=SLACK_ROLE.name,
    reads=frozenset({"launches", "host_calls"}),
    examples=("report.sqlite", "report.sqlite --table slack --format csv"),
    findings={
        "slack_role": "what the transfers of one role cost a step, and the bandwidth that would have sufficed",
        "no_communication": "no collective could be matched, so nothing can be said of slack",
    },
    warnings={
        "no_slack": "host calls are missing: nothing tells how late a collective may end",
        "poor_replay": "the replay of the recorded dependencies misses the recorded steps",
    },
    whole_steps=True,
)
