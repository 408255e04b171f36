"""What does a timeline show of a run? Lanes of interval sets for each rank, and the words beside them; no drawing.

Nothing is measured here: the sets come from the analyses, and how they are drawn is decided from the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.errors import UsageError
from nsysddp.model.intervals import Intervals
from nsysddp.model.schema import CLASSES
from nsysddp.model.units import ms
from nsysddp.questions.steps import step_windows
from nsysddp.render.detail import MOST_INFLATION, View, claimed_ns, clusters, duration, ranges_of
from nsysddp.render.theme import LOOKS, Look, phase_look, printable, short

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace
    from nsysddp.questions import Context
    from nsysddp.questions.window import Window

MOST_RANKS_IN_FULL = 8
MOST_RANKS = 100

_COMPACT_IN = 13.0
"""Height that the strips of many ranks share."""

_HEIGHT_IN = {
    "compute": 0.22,
    "spin": 0.16,
    "communication": 0.22,
    "exposed": 0.11,
    "group": 0.11,
    "memory": 0.13,
    "graph": 0.2,
    "idle": 0.13,
}

_MOST_STRIPS = 6
"""Roles of a rank that have a strip of their own at most."""

_STRIP_SHARE = 0.01
"""Of the communication of a rank: what a role must have for a strip; a barrier at the end of a capture has none."""

_APART_IN = 0.5
"""Step boundaries nearer to each other would be a grey area."""

_MOST_NUMBERS = 1_000
NUMBER_SIZE = 7.0
"""Collectives of a rank that are numbered at most, and the size of the numbers in points."""

_EXACT = frozenset({"exposed", "idle"})
"""Lanes of what is left over: bars one pixel wide would overstate them, so they are columns as soon as that matters."""


@dataclass(frozen=True)
class Lane:
    """One lane of one rank: disjoint interval sets, each with its look.

    Attributes:
        name: lanes of the same name are drawn alike on all ranks.
        label: its name at the left; empty for none.
        height_in: height in inches.
        parts: look and intervals, drawn and stacked in this order.
    """

    name: str
    label: str
    height_in: float
    parts: tuple[tuple[Look, Intervals], ...]


@dataclass(frozen=True)
class Phase:
    """When the host was in a phase: its look and its intervals."""

    look: Look
    spans: Intervals


@dataclass(frozen=True)
class Row:
    """All that is shown of one rank.

    Attributes:
        rank, host: who.
        place: where it ran, in lines.
        lanes: from the top.
        phases: what its process did on the host, in the order in which they are drawn.
        numbers: place in inches and label of its collectives.
        windows: its steps in view that are named and bounded.
    """

    rank: int
    host: str | None
    place: tuple[str, ...]
    lanes: tuple[Lane, ...]
    phases: tuple[Phase, ...]
    numbers: tuple[tuple[float, str], ...] = ()
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Scene:
    """Everything a picture needs, before any of it is drawn.

    Attributes:
        view: the part of time.
        rows: the ranks.
        full: every lane of each rank, or one strip a rank.
        columns: names of the lanes that are drawn as columns.
        every: each how many-th step is named and bounded.
        names: step index to step name.
        warm: steps that are warm-up on any rank.
        subtitle, axis, notes: words.
    """

    view: View
    rows: tuple[Row, ...]
    full: bool
    columns: frozenset[str]
    every: int
    names: dict[int, str]
    warm: frozenset[int]
    subtitle: str
    axis: str
    notes: tuple[str, ...] = ()


def scene_of(context: Context, width_in: float, ranks: Sequence[int] | None = None) -> Scene:
    """What of a run is shown, and at which level of detail?

    Args:
        context: what the analyses share; its selection decides which part of time is shown.
        width_in: width of the plot in inches.
        ranks: the ranks to show; all by default.

    Raises:
        UsageError: a rank does not exist, or none has a window in the part asked for.
    """
    trace = context.trace
    shown = _ranks(context, ranks)
    drawn = _thinned(shown)
    full = len(drawn) <= MOST_RANKS_IN_FULL
    view = _view(context, drawn, width_in)
    of_rank: dict[int, list[Window]] = {rank: [] for rank in drawn}
    for window in step_windows(trace, context.attribution):
        if window.rank in of_rank and view.start <= window.end and window.start <= view.end:
            of_rank[window.rank].append(window)
    numbers = _numbers(context, drawn, view) if full else {}
    every = _every(max(map(len, of_rank.values())), view)
    rows = (
        rows_in_full(context, drawn) if full else [_row_in_short(context, rank, len(drawn)) for rank in drawn]
    )
    rows = [
        replace(
            row,
            numbers=numbers.get(row.rank, ()),
            windows=tuple(window for window in of_rank[row.rank] if not window.step % every),
        )
        for row in rows
    ]
    several = len(trace.inputs) > 1
    scene = Scene(
        view=view,
        rows=tuple(rows),
        full=full,
        columns=_in_columns(rows, view),
        every=every,
        names=dict(context.attribution.steps.select("step_index", "name").iter_rows()),
        warm=frozenset(window.step for some in of_rank.values() for window in some if window.is_warmup),
        subtitle=_subtitle(context, shown),
        axis=f"time since {'the earliest ' if several else ''}session start, ms",
    )
    return replace(scene, notes=tuple(_notes(scene, context, shown)))


def rows_in_full(context: Context, ranks: Sequence[int]) -> list[Row]:
    """Every lane of some ranks, the same for all, and what their processes did; no numbers and no steps."""
    kinds = _kinds(context, _view(context, list(ranks), 1.0), ranks)
    rows = []
    for rank in ranks:
        sets = _Sets(context, rank)
        lanes = _full_lanes(sets, kinds, _strips(context, sets, rank))
        rows.append(_row(context, rank, lanes, _phases(context, rank)))
    return rows


def _row_in_short(context: Context, rank: int, count: int) -> Row:
    return _row(context, rank, _compact_lanes(_Sets(context, rank), count))


def _row(context: Context, rank: int, lanes: tuple[Lane, ...], phases: tuple[Phase, ...] = ()) -> Row:
    facts = context.trace.ranks.row(by_predicate=pl.col("rank") == rank, named=True)
    return Row(rank, facts["host"], _place(facts), lanes, phases)


# --- which ranks, which time ---------------------------------------------------------------------------------


def _ranks(context: Context, wanted: Sequence[int] | None) -> list[int]:
    known = context.trace.rank_numbers
    missing = sorted(set(wanted or ()) - set(known))
    if missing:
        raise UsageError(f"there is no rank {missing[0]}", do=f"choose from {ranges_of(known)}")
    chosen = known if wanted is None else sorted(set(wanted))
    kept = with_work(context, chosen)
    if not kept:
        raise UsageError("none of the ranks has GPU work in the chosen part", do="choose others with --ranks")
    return kept


def with_work(context: Context, ranks: Sequence[int]) -> list[int]:
    """Ranks with a window in the part asked for, and those without any step: what they did is beside the others'."""
    shown = {window.rank for window in context.windows.windows}
    with_steps = {window.rank for window in context.every_window.windows}
    return [rank for rank in ranks if rank in shown or rank not in with_steps]


def _thinned(ranks: list[int]) -> list[int]:
    """At most ``MOST_RANKS`` of them, evenly spread, the first and the last among them."""
    if len(ranks) <= MOST_RANKS:
        return ranks
    places = np.linspace(0, len(ranks) - 1, MOST_RANKS).round().astype(int)
    return [ranks[place] for place in places.tolist()]


def _view(context: Context, ranks: list[int], width_in: float) -> View:
    """From the first to the last window of the ranks; a little air where no bound was given."""
    start, end = _extent(context, ranks)
    air = max((end - start) // 80, 1)
    selection = context.selection
    start = start - air if selection.from_ns is None else selection.from_ns
    end = end + air if selection.to_ns is None else selection.to_ns
    return View(start, max(end, start + 1), width_in)


def _extent(context: Context, ranks: list[int]) -> tuple[int, int]:
    every = context.windows.windows
    chosen = [window for window in every if window.rank in set(ranks)] or every
    return min(window.start for window in chosen), max(window.end for window in chosen)


# --- lanes -----------------------------------------------------------------------------------------------------


class _Sets:
    """The interval sets of one rank, by the keys of the looks."""

    def __init__(self, context: Context, rank: int) -> None:
        trace = context.trace
        split = context.splits[rank]
        self.busy = trace.union(rank, ["compute", "spin"])
        self.compute = trace.union(rank, ["compute"])
        self.spin = trace.union(rank, ["spin"])
        communication = trace.union(rank, ["communication"])
        self.split = (("wait", split.wait), ("unsplit", split.unsplit), ("transfer", split.transfer))
        self.memory = trace.union(rank, ["memory"])
        self.graph = trace.union(rank, ["graph"])
        mine = [window for window in context.windows.windows if window.rank == rank]
        known = [window for window in mine if not self.graph.length_within(window.start, window.end)]
        # Under a graph of unknown content nobody knows what was exposed.
        exposed = communication - self.busy
        self.all_known = len(known) == len(mine) if mine else not len(self.graph)
        self.exposed = exposed if self.all_known else exposed & _hull(known)
        self.idle = _hull(mine) - trace.union(rank, CLASSES)

    @property
    def work(self) -> tuple[tuple[str, Intervals], ...]:
        """One strip for all but communication: what is nearer to computing hides what is not."""
        return (
            ("compute", self.compute),
            ("spin", self.spin - self.compute),
            ("memory", self.memory - self.busy),
            ("graph", self.graph - (self.busy | self.memory)),
        )


def _hull(some: Sequence[Window]) -> Intervals:
    return Intervals.union_of([window.start for window in some], [window.end for window in some])


def _kinds(context: Context, view: View, ranks: Sequence[int]) -> frozenset[str]:
    """Classes that any of the ranks has in view: lanes are the same for all."""
    return frozenset(
        name
        for name in ("spin", "communication", "memory", "graph")
        if any(context.trace.union(rank, [name]).length_within(view.start, view.end) for rank in ranks)
    )


def _lane(name: str, label: str, height_in: float, *parts: tuple[str, Intervals]) -> Lane:
    return Lane(name, label, height_in, tuple((LOOKS[key], some) for key, some in parts))


def _strips(context: Context, sets: _Sets, rank: int) -> tuple[Lane, ...]:
    """One strip a role of the rank's groups, the longest first; none where all groups have one role."""
    if not sets.all_known:
        return ()
    events = context.trace.events
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    spans = {
        role: Intervals.union_of(start[rows], end[rows])
        for role, rows in context.groups.strips.get(rank, {}).items()
    }
    told = _STRIP_SHARE * sum(some.length_ns for some in spans.values())
    longest = sorted(
        (role for role in spans if spans[role].length_ns >= told),
        key=lambda role: (-spans[role].length_ns, role),
    )
    if len(longest) < 2:
        return ()
    return tuple(
        _lane(
            role,
            role,
            _HEIGHT_IN["group"],
            ("hidden", spans[role] - sets.exposed),
            ("exposed", spans[role] & sets.exposed),
        )
        for role in longest[:_MOST_STRIPS]
    )


def _full_lanes(sets: _Sets, kinds: frozenset[str], strips: tuple[Lane, ...]) -> tuple[Lane, ...]:
    every: tuple[tuple[str, str, tuple[tuple[str, Intervals], ...]], ...] = (
        ("compute", "compute", (("compute", sets.compute),)),
        ("spin", "spin", (("spin", sets.spin),)),
        ("communication", "communication", sets.split),
        ("exposed", "exposed", (("exposed", sets.exposed),)),
        ("memory", "memory", (("memory", sets.memory),)),
        ("graph", "CUDA graph", (("graph", sets.graph),)),
        ("idle", "idle", (("idle", sets.idle),)),
    )
    there = kinds | {"compute", "idle"} | ({"exposed"} if "communication" in kinds else set())
    lanes = [_lane(name, label, _HEIGHT_IN[name], *parts) for name, label, parts in every if name in there]
    after = next((number for number, lane in enumerate(lanes, 1) if lane.name == "exposed"), len(lanes))
    return (*lanes[:after], *strips, *lanes[after:])


def _compact_lanes(sets: _Sets, count: int) -> tuple[Lane, ...]:
    pitch = min(0.34, max(0.13, _COMPACT_IN / count))
    return (
        _lane("work", "", 0.45 * pitch, *sets.work),
        _lane("communication", "", 0.25 * pitch, *sets.split),
        _lane("exposed", "", 0.11 * pitch, ("exposed", sets.exposed)),
    )


def _in_columns(rows: Sequence[Row], view: View) -> frozenset[str]:
    """Lanes whose bars would claim too much time on any rank."""
    return frozenset(
        lane.name
        for row in rows
        for lane in row.lanes
        if claimed_ns([part for _, part in lane.parts], view)
        > (0 if lane.name in _EXACT else MOST_INFLATION * view.span)
    )


def _every(steps: int, view: View) -> int:
    """Each how many-th of so many steps (1, 2, 5, 10, ...) can be bounded without making a grey area?"""
    apart_in = view.width_in / max(steps, 1)
    return next(
        number
        for number in (int(factor * 10**power) for power in range(19) for factor in (1, 2, 5))
        if number * apart_in >= _APART_IN
    )


def _phases(context: Context, rank: int) -> tuple[Phase, ...]:
    """Phases of the rank's process, longest first, so that nested ones stay visible."""
    trace = context.trace
    mine = context.attribution.phases.filter(pl.col("process") == trace.process_of_rank[rank])
    made = []
    for place, name in enumerate(trace.phase_patterns):
        part = mine.filter(pl.col("phase") == name)
        if part.height:
            spans = Intervals.union_of(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
            made.append(Phase(phase_look(name, place), spans))
    return tuple(sorted(made, key=lambda phase: -phase.spans.length_ns))


def _numbers(context: Context, ranks: Sequence[int], view: View) -> dict[int, tuple[tuple[float, str], ...]]:
    """Place and label of each rank's collectives; nothing if most labels would not name one step's collectives.

    Matched collectives of a step are counted from 1 in the order of their earliest start over the ranks, so that each
    has the same number everywhere. In a run where nothing is matched every rank counts its own. What is launched
    outside the steps of a run has no number.
    """
    timed = context.timed.with_columns(
        pl.Series("step", context.attribution.step[context.timed["event"].to_numpy()], dtype=pl.Int64),
        (pl.col("start_ns") + (pl.col("end_ns") - pl.col("start_ns")) // 2).alias("middle"),
    )
    if context.attribution.steps.height:
        timed = timed.filter(pl.col("step") >= 0)
    table = timed.filter(
        pl.col("ready_ns").is_not_null() & pl.col("collective_id").is_not_null()
    ).with_columns(
        pl.col("collective_id").alias("key"),
        # Two kernels of one collective on one rank (a grouped send and its receive) are numbered apart.
        pl.int_range(pl.len()).over("rank", "collective_id").alias("part"),
        pl.lit(0).alias("among"),
    )
    if not table.height:
        table = timed.with_columns(
            pl.col("event").alias("key"), pl.lit(0).alias("part"), pl.col("rank").alias("among")
        )
    counted = (
        table.group_by("key", "part", "among", "step")
        .agg(pl.col("start_ns").min().alias("first"))
        .sort("first", "key", "part")
        .with_columns((pl.int_range(pl.len()).over("among", "step") + 1).alias("number"))
    )
    shown = (
        table.join(counted, on=["key", "part", "among", "step"], how="left")
        .filter((pl.col("middle") >= view.start) & (pl.col("middle") < view.end))
        .sort("rank", "middle", "number")
    )
    made = {}
    for rank in ranks:
        mine = shown.filter(pl.col("rank") == rank)
        if mine.height > _MOST_NUMBERS:
            return {}
        steps, numbers = mine["step"].to_list(), mine["number"].to_list()
        made[rank] = tuple(clusters(view.x(mine["middle"].to_numpy()), numbers, steps, NUMBER_SIZE))
    labels = [label for row in made.values() for _, label in row]
    vague = sum(label.startswith("(") for label in labels)
    return made if 2 * vague <= len(labels) else {}


# --- words -----------------------------------------------------------------------------------------------------


def _place(facts: dict[str, Any]) -> tuple[str, ...]:
    where = [facts["host"], None if facts["device"] is None else f"device {facts['device']}"]
    lines = [", ".join(part for part in where if part), "" if facts["pid"] is None else f"pid {facts['pid']}"]
    return tuple(printable(line) for line in lines if line)


def _subtitle(context: Context, shown: list[int]) -> str:
    trace, selection = context.trace, context.selection
    everyone = len(trace.rank_numbers)
    hosts = {host for host in trace.ranks["host"].to_list() if host}
    who = f"rank {shown[0]}" if len(shown) == 1 else f"{len(shown):,} ranks"
    if len(shown) < everyone:
        who += f" of {everyone:,}"
    if len(hosts) > 1:
        who += f" on {len(hosts)} hosts" if len(shown) == everyone else ""
    if context.windows.per == "step":
        mine = [window for window in context.windows.windows if window.rank in set(shown)]
        steps = sorted({window.step for window in mine or context.windows.windows})
        total = context.attribution.steps.height
        names = dict(context.attribution.steps.select("step_index", "name").iter_rows())
        what = (
            f"{len(steps):,}{'' if len(steps) == total else f' of {total:,}'} step{'s' if total > 1 else ''}"
        )
        ends = dict.fromkeys([short(names[steps[0]], 24), short(names[steps[-1]], 24)])
        what += f" ({' to '.join(ends)})"
    else:
        whole = selection.from_ns is None and selection.to_ns is None
        what = "whole capture" if whole else "part of the capture"
    start, end = _extent(context, shown)
    inputs = [report.name for report in trace.inputs]
    files = (
        short(inputs[0], 60) + (f" and {len(inputs) - 1} more" if len(inputs) > 1 else "") if inputs else ""
    )
    return "  ·  ".join(
        [*([files] if files else []), who, what, f"{ms(start):,.3f} to {ms(end):,.3f} ms".replace("-", "−")]
    )


def _notes(scene: Scene, context: Context, shown: list[int]) -> list[str]:
    trace, view = context.trace, scene.view
    notes = [_detail_note(scene, trace), _clock_note(trace, [row.rank for row in scene.rows])]
    if any(row.numbers for row in scene.rows):
        text = "Numbers count the collectives"
        text += " of a step in order of start" if context.attribution.steps.height else " in order of start"
        if context.timed["ready_ns"].is_not_null().any():
            text += "; the same one has the same number on every rank"
        if any(label.startswith("(") for row in scene.rows for _, label in row.numbers):
            text += "; (n) stands for n of several steps"
        notes.append(f"{text}.")
    elif scene.full and any(lane.name == "communication" for lane in scene.rows[0].lanes):
        notes.append("Collectives are too many to number: zoom in with --steps, --from or --to.")
    if scene.every > 1:
        nth = {2: "second", 3: "third"}.get(scene.every, f"{scene.every:,}th")
        notes.append(f"Every {nth} step is named and bounded.")
    if len(shown) > len(scene.rows):
        notes.append(
            f"{len(scene.rows)} of {len(shown):,} ranks are drawn, evenly spread; choose with --ranks."
        )
    if not scene.full:
        notes.append(
            "Each rank from the top: compute (where nothing computes: memory, graphs), communication, exposed; "
            f"blank is idle. Up to {MOST_RANKS_IN_FULL} ranks (--ranks) show every lane, the host and numbers."
        )
    if any(trace.union(row.rank, ["graph"]).length_within(view.start, view.end) for row in scene.rows):
        notes.append(
            "CUDA graphs were traced as whole spans: what ran in them, and so what was exposed, is unknown "
            "(capture with --cuda-graph-trace=node)."
        )
    for warning in context.windows.warnings:
        if warning.code in ("no_steps", "rank_without_window"):
            text = printable(warning.message)
            notes.append(f"{text[:1].upper()}{text[1:]}.")
    return notes


def _detail_note(scene: Scene, trace: Trace) -> str:
    view, events, brief, instant = scene.view, 0, 0, 0
    for row in scene.rows:
        mine = trace.events_of(row.rank)
        start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        length = (end - start)[(start < view.end) & (end >= view.start)]
        events += int(length.size)
        brief += int(np.count_nonzero((length < view.pixel) & (length > 0)))
        instant += int(np.count_nonzero(length == 0))
    text = f"{events:,} GPU event{'' if events == 1 else 's'}."
    if brief:
        text += f" Events shorter than a pixel ({duration(view.pixel)}) are merged: {brief:,} of them."
    if scene.columns:
        order = [lane.name for lane in scene.rows[0].lanes if lane.name in scene.columns]
        named = ", ".join({"work": "compute", "graph": "CUDA graph"}.get(name, name) for name in order)
        text += f" In {named} a column is one pixel, its height the share of its time that is covered."
    if instant:
        text += f" {instant:,} of no length {'is' if instant == 1 else 'are'} not drawn."
    return text


_PROTOCOL = "ends of a matched collective still differ by 10 to 50 µs by protocol, over a slow link by more"


def _clock_note(trace: Trace, ranks: list[int]) -> str:
    mine = trace.ranks.filter(pl.col("rank").is_in(ranks))
    methods = set(mine["clock_method"].drop_nulls().to_list())
    residual = mine["clock_residual_ns"].max()
    if len(ranks) == 1:
        return "One rank: no clock is compared with another."
    if isinstance(residual, int):
        beyond = (
            f", above the tolerance of {duration(trace.clock_tolerance_ns)}, so wait and transfer are not told"
            if residual > trace.clock_tolerance_ns
            else ""
        )
        return (
            f"Clocks: reports aligned on matched collectives, residual {duration(residual)}{beyond}; "
            f"{_PROTOCOL}."
        )
    if methods <= {"shared"}:
        meets = bool(trace.collectives.height)
        return "Clocks: the ranks share one" + (f"; {_PROTOCOL}." if meets else ".")
    if "none" in methods:
        return "Clocks: nothing aligns these reports, so positions cannot be compared between them."
    return "Clocks: reports aligned by their session start only; the uncertainty is unknown."
