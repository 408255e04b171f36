"""A slow, obvious second opinion: every number from the definitions, in plain Python, without the package.

Time is cut at every start and end that occurs; inside such a cell nothing changes, so each set either holds the
whole cell or none of it. Nothing here is clever, nothing is shared with the code that it judges.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Span = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """One GPU event: what it is, when it ran, who launched it, and which collective it is a part of."""

    rank: int
    kind: str  # communication, spin, compute, memory, graph
    start: int
    end: int
    name: str = ""
    launch: tuple[int, int] | None = None  # thread, time
    collective: int | None = None  # equal on all ranks; None: no counterpart
    p2p: bool = False
    bytes: int = 0

    @property
    def is_kernel(self) -> bool:
        return self.kind in ("communication", "spin", "compute")


@dataclass(frozen=True)
class HostRange:
    """One step or phase range of a rank's process."""

    rank: int
    thread: int
    start: int
    end: int
    name: str


@dataclass
class Scene:
    """A whole run."""

    events: list[Event] = field(default_factory=list)
    steps: list[HostRange] = field(default_factory=list)
    phases: list[HostRange] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        return sorted({event.rank for event in self.events})

    def of(self, rank: int) -> list[Event]:
        return [event for event in self.events if event.rank == rank]


def cells(points: Iterable[int]) -> list[Span]:
    """Consecutive pairs of the distinct points."""
    ordered = sorted(set(points))
    return list(itertools.pairwise(ordered))


def held(spans: Iterable[Span], cell: Span) -> bool:
    """Does one of the spans hold the cell?"""
    return any(start <= cell[0] and cell[1] <= end for start, end in spans)


def length(spans: Sequence[Span]) -> int:
    """Length of the union."""
    return sum(b - a for a, b in cells(point for span in spans for point in span) if held(spans, (a, b)))


# --- collectives --------------------------------------------------------------------------------------------


def ready(scene: Scene, event: Event) -> int | None:
    """When the last rank of the event's collective had arrived; None if it has no counterpart."""
    if event.collective is None:
        return None
    return max(other.start for other in scene.events if other.collective == event.collective)


def parts(scene: Scene, rank: int) -> tuple[list[Span], list[Span]]:
    """Wait spans and transfer spans of a rank's matched collectives."""
    waits, transfers = [], []
    for event in scene.of(rank):
        latest = ready(scene, event)
        if event.kind == "communication" and latest is not None:
            middle = min(latest, event.end)
            waits.append((event.start, middle))
            transfers.append((middle, event.end))
    return waits, transfers


# --- decomposition ------------------------------------------------------------------------------------------

LENGTHS = (
    "window_ns", "compute_ns", "spin_ns", "communication_ns", "hidden_communication_ns",
    "exposed_communication_ns", "hidden_transfer_ns", "hidden_wait_ns", "exposed_transfer_ns",
    "exposed_wait_ns", "hidden_unsplit_ns", "exposed_unsplit_ns", "exposed_memory_ns", "p2p_copy_ns",
    "graph_ns", "idle_ns",
)  # fmt: skip
UNDER_GRAPHS = LENGTHS[4:12]


def decompose(scene: Scene, rank: int, window: Span) -> dict[str, Any]:
    """Every length of one window, cell by cell."""
    sets: dict[str, list[Span]] = {
        kind: [] for kind in ("communication", "spin", "compute", "memory", "graph")
    }
    for event in scene.of(rank):
        sets[event.kind].append((event.start, event.end))
    peer = [(event.start, event.end) for event in scene.of(rank) if event.p2p]
    waits, transfers = parts(scene, rank)
    told = dict.fromkeys(LENGTHS, 0)
    has_graph = has_match = False
    everything = [point for spans in (*sets.values(), waits, transfers) for span in spans for point in span]
    inside = [point for point in everything if window[0] <= point <= window[1]]
    for cell in cells([*window, *inside]):
        size = cell[1] - cell[0]
        c, m, g = (held(sets[kind], cell) for kind in ("communication", "memory", "graph"))
        p = held(sets["compute"], cell) or held(sets["spin"], cell)
        told["window_ns"] += size
        told["compute_ns"] += size * p
        told["spin_ns"] += size * held(sets["spin"], cell)
        told["p2p_copy_ns"] += size * held(peer, cell)
        has_graph = has_graph or g
        if c:
            where = "hidden" if p else "exposed"
            what = "transfer" if held(transfers, cell) else "wait" if held(waits, cell) else "unsplit"
            has_match = has_match or what != "unsplit"
            told["communication_ns"] += size
            told[f"{where}_communication_ns"] += size
            told[f"{where}_{what}_ns"] += size
        elif not p and m:
            told["exposed_memory_ns"] += size
        elif not p and g:
            told["graph_ns"] += size
        elif not p:
            told["idle_ns"] += size
    row: dict[str, Any] = dict(told)
    row["overlap_ratio"] = (
        row["hidden_communication_ns"] / row["communication_ns"] if row["communication_ns"] else None
    )
    if row["communication_ns"] and not has_match:
        row.update(dict.fromkeys(UNDER_GRAPHS[2:6]))
    if has_graph:
        row.update(dict.fromkeys([*UNDER_GRAPHS, "overlap_ratio"]))
    return row


def capture(scene: Scene) -> list[dict[str, Any]]:
    """The overlap table of whole captures."""
    rows = []
    for rank in scene.ranks:
        mine = scene.of(rank)
        window = min(event.start for event in mine), max(event.end for event in mine)
        row = decompose(scene, rank, window)
        row["rank"] = rank
        row["kernels"] = sum(event.is_kernel for event in mine)
        row["collectives"] = sum(event.kind == "communication" for event in mine)
        rows.append(row)
    return rows


# --- steps --------------------------------------------------------------------------------------------------


def holder(
    ranges: Sequence[HostRange], rank: int, thread: int, at: int, *, outermost: bool
) -> HostRange | None:
    """The range that holds an instant: on the thread itself, else on exactly one other thread of the process."""
    there = [one for one in ranges if one.rank == rank and one.start <= at < one.end]
    own = [one for one in there if one.thread == thread]
    if not own:
        if len({one.thread for one in there}) != 1:
            return None
        own = there
    if outermost:
        return min(own, key=lambda one: (one.start, -one.end))
    return max(own, key=lambda one: (one.start, -one.end))


def step_indices(scene: Scene) -> dict[HostRange, int]:
    """Number of each outer step range: equal names are one step, a name that comes again is another."""
    keys: dict[HostRange, tuple[str, int]] = {}
    for rank in {one.rank for one in scene.steps}:
        mine = [one for one in scene.steps if one.rank == rank]
        outer = [
            one
            for one in mine
            if not any(
                other is not one
                and other.thread == one.thread
                and other.start <= one.start
                and one.end <= other.end
                for other in mine
            )
        ]
        for name in {one.name for one in outer}:
            for number, one in enumerate(
                sorted((one for one in outer if one.name == name), key=lambda one: one.start)
            ):
                keys[one] = (name, number)
    first: dict[tuple[str, int], int] = {}
    for one, key in keys.items():
        first[key] = min(one.start, first.get(key, one.start))
    order = sorted(first, key=lambda key: (first[key], key))
    return {one: order.index(key) for one, key in keys.items()}


@dataclass
class Steps:
    """Where every event and window belongs."""

    index: dict[HostRange, int]
    step_of: dict[int, int]  # position in scene.events -> step
    phase_of: dict[int, HostRange]
    windows: dict[int, list[tuple[int, Span]]]  # rank -> (step, window)
    names: dict[int, str]


def steps(scene: Scene) -> Steps:
    """Attribution by launch, windows by time, and events without a launch by the window that holds their start."""
    index = step_indices(scene)
    step_of: dict[int, int] = {}
    phase_of: dict[int, HostRange] = {}
    for number, event in enumerate(scene.events):
        if event.launch is None:
            continue
        step = holder(list(index), event.rank, *event.launch, outermost=True)
        phase = holder(scene.phases, event.rank, *event.launch, outermost=False)
        if step is not None:
            step_of[number] = index[step]
        if phase is not None:
            phase_of[number] = phase
    windows = {rank: _windows(scene, rank, step_of) for rank in scene.ranks}
    for number, event in enumerate(scene.events):
        if event.launch is None:
            for step, (start, end) in windows[event.rank]:
                if start <= event.start < end:
                    step_of[number] = step
    names = {number: one.name for one, number in index.items()}
    return Steps(index, step_of, phase_of, windows, names)


def _windows(scene: Scene, rank: int, step_of: dict[int, int]) -> list[tuple[int, Span]]:
    launched: dict[int, list[Event]] = {}
    for number, event in enumerate(scene.events):
        if event.rank == rank and number in step_of:
            launched.setdefault(step_of[number], []).append(event)
    starts: list[int] = []
    before: list[Event] = []
    for step in sorted(launched):
        mine = launched[step]
        first = min(event.start for event in mine)
        begin = first
        if starts:
            ends = [event.end for event in before if computes(event)]
            begin = max([first, *ends])
            begin = min([begin, *(event.start for event in mine if computes(event))])
            begin = max(begin, starts[-1])
        starts.append(begin)
        before = mine
    if not starts:
        return []
    made = []
    numbers = sorted(launched)
    for place, (step, start) in enumerate(zip(numbers, starts, strict=True)):
        own = max(start, *(event.end for event in launched[step]))
        if place + 1 == len(numbers):
            end = own
        elif numbers[place + 1] == step + 1:
            end = starts[place + 1]
        else:  # the rank launched nothing in the step that follows
            end = min(own, starts[place + 1])
        made.append((step, (start, end)))
    return made


def computes(event: Event) -> bool:
    return event.kind in ("compute", "spin") and event.end > event.start


def warm_up(lengths: Sequence[int]) -> int:
    """How many leading steps are longer than 1.5 x the median of the rest."""
    warm = 0
    while warm < len(lengths) - 1 and lengths[warm] > 1.5 * statistics.median(lengths[warm + 1 :]):
        warm += 1
    return warm


def overlap(scene: Scene) -> list[dict[str, Any]]:
    """The overlap table of steps."""
    told = steps(scene)
    rows = []
    for rank in scene.ranks:
        windows = told.windows[rank]
        warm = warm_up([end - start for _, (start, end) in windows])
        for place, (step, window) in enumerate(windows):
            row = decompose(scene, rank, window)
            mine = [scene.events[n] for n, s in told.step_of.items() if s == step]
            mine = [event for event in mine if event.rank == rank]
            row.update(
                rank=rank,
                step=told.names[step],
                step_index=step,
                is_warmup=place < warm,
                kernels=sum(event.is_kernel for event in mine),
                collectives=sum(event.kind == "communication" for event in mine),
                **tail(scene, told, rank, step),
            )
            rows.append(row)
    return rows


def tail(scene: Scene, told: Steps, rank: int, step: int) -> dict[str, int | None]:
    """Reduction of gradients after the last backward compute of a step; all communication drawn is all-reduce."""
    nothing = dict.fromkeys(("tail_communication_ns", "tail_wait_ns", "tail_transfer_ns"))
    backward = [
        one
        for one in scene.phases
        if one.rank == rank and one.name == "backward" and _step_of(told, one) == step
    ]
    if not backward:
        return nothing
    last = max(backward, key=lambda one: (one.start, one.end))
    mine = [scene.events[number] for number, phase in told.phase_of.items() if phase is last]
    within = [event for event in mine if event.kind == "communication"]
    later = [
        event
        for number, where in told.step_of.items()
        if where == step
        and (event := scene.events[number]).kind == "communication"
        and event.rank == rank
        and event not in within
        and event.launch is not None
        and event.launch[1] >= last.start
    ]
    gradients = [event for event in later if event.bytes > 1024]
    talk = within + (gradients if within or gradients else later)
    if not talk:
        return nothing
    final = max(talk, key=lambda event: (event.end, event.launch[1]))  # type: ignore[index]
    done = [
        event.end
        for event in mine
        if event.kind in ("compute", "spin") and event.launch[1] <= final.launch[1]  # type: ignore[index]
    ]
    if not done:
        return nothing
    begin, end = max(done), final.end
    found: dict[str, int | None] = {"tail_communication_ns": max(0, end - begin)}
    waits, transfers = parts(scene, rank)
    talking = [(event.start, event.end) for event in scene.of(rank) if event.kind == "communication"]
    sums = dict.fromkeys(("wait", "transfer", "unsplit"), 0)
    points = [point for spans in (waits, transfers, talking) for span in spans for point in span]
    if end > begin:
        for cell in cells([begin, end, *(point for point in points if begin <= point <= end)]):
            if held(talking, cell):
                what = "transfer" if held(transfers, cell) else "wait" if held(waits, cell) else "unsplit"
                sums[what] += cell[1] - cell[0]
    known = not sums["unsplit"]
    found["tail_wait_ns"] = sums["wait"] if known else None
    found["tail_transfer_ns"] = sums["transfer"] if known else None
    return found


def _step_of(told: Steps, phase: HostRange) -> int | None:
    step = holder(list(told.index), phase.rank, phase.thread, phase.start, outermost=True)
    return None if step is None else told.index[step]


# --- the other tables ---------------------------------------------------------------------------------------


def phases(scene: Scene) -> list[dict[str, Any]]:
    """The phase table."""
    told = steps(scene)
    rows = []
    for phase in scene.phases:
        step = _step_of(told, phase)
        if step is None or step not in [number for number, _ in told.windows.get(phase.rank, [])]:
            continue
        mine = [scene.events[number] for number, one in told.phase_of.items() if one is phase]
        compute = [
            (event.start, event.end) for event in scene.of(phase.rank) if event.kind in ("compute", "spin")
        ]
        talk = [(event.start, event.end) for event in mine if event.kind == "communication"]
        alone = sum(
            cell[1] - cell[0]
            for cell in cells(point for span in (*talk, *compute) for point in span)
            if held(talk, cell) and not held(compute, cell)
        )
        unsure = any(beside_graph(scene, event) for event in mine if event.kind == "communication")
        rows.append(
            {
                "rank": phase.rank,
                "step": told.names[step],
                "phase": phase.name,
                "host_start_ns": phase.start,
                "host_end_ns": phase.end,
                "gpu_start_ns": min((event.start for event in mine), default=None),
                "gpu_end_ns": max((event.end for event in mine), default=None),
                "compute_ns": length([(e.start, e.end) for e in mine if e.kind in ("compute", "spin")]),
                "communication_ns": length(talk),
                "exposed_communication_ns": None if unsure else alone,
                "kernels": sum(event.is_kernel for event in mine),
            }
        )
    return rows


def beside_graph(scene: Scene, event: Event) -> bool:
    """Does a whole graph of the rank, of which nobody knows what it holds, run at the same time?"""
    graphs = [(other.start, other.end) for other in scene.of(event.rank) if other.kind == "graph"]
    return (
        length(
            [
                (max(a, event.start), min(b, event.end))
                for a, b in graphs
                if min(b, event.end) > max(a, event.start)
            ]
        )
        > 0
    )


def outside(scene: Scene) -> list[dict[str, Any]]:
    """GPU work outside every window."""
    told = steps(scene)
    rows = []
    for rank in scene.ranks:
        windows = [window for _, window in told.windows[rank]]
        for kind in ("communication", "spin", "compute", "memory", "graph"):
            mine = [(event.start, event.end) for event in scene.of(rank) if event.kind == kind]
            points = [point for span in (*mine, *windows) for point in span]
            apart = [cell for cell in cells(points) if held(mine, cell) and not held(windows, cell)]
            count = sum(any(held([span], cell) for cell in apart) for span in mine)
            if count:
                total = sum(b - a for a, b in apart)
                rows.append({"rank": rank, "class": kind, "count": count, "total_ns": total})
    return rows


def collectives(scene: Scene) -> list[dict[str, Any]]:
    """Start, wait, transfer, last rank and hidden time of every communication event."""
    rows = []
    for event in scene.events:
        if event.kind != "communication":
            continue
        latest = ready(scene, event)
        middle = None if latest is None else min(latest, event.end)
        compute = [(e.start, e.end) for e in scene.of(event.rank) if e.kind in ("compute", "spin")]
        under = sum(
            b - a
            for a, b in cells([event.start, event.end, *(p for span in compute for p in span)])
            if event.start <= a and b <= event.end and held(compute, (a, b))
        )
        members = [other for other in scene.events if event.collective == other.collective]
        rows.append(
            {
                "rank": event.rank,
                "start_ns": event.start,
                "end_ns": event.end,
                "ready_ns": latest,
                "wait_ns": None if middle is None else middle - event.start,
                "transfer_ns": None if middle is None else event.end - middle,
                "hidden_ns": None if beside_graph(scene, event) else under,
                "exposed_ns": None if beside_graph(scene, event) else event.end - event.start - under,
                "last_rank": None if latest is None else max(members, key=lambda e: (e.start, e.rank)).rank,
            }
        )
    return rows


# --- a file -------------------------------------------------------------------------------------------------


def read_capture(path: Path, classify: Callable[[str], str]) -> dict[tuple[int | None, int], list[Event]]:
    """GPU events of a file by (globalPid, device), read row by row; for sums over the capture only.

    Rows whose times cannot be are left out: an end before the start, or beyond 2**61 ns either way. A table that is
    missing or empty is looked for under its versioned names (``..._V2``).
    """
    import sqlite3

    found: dict[tuple[int | None, int], list[Event]] = {}
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        named = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        there = [name for name in named if connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone()]
        listed = next(name for name in sorted(named) if re.fullmatch(r"StringIds(_V\d+)?", name))
        texts = dict(connection.execute(f"SELECT id, value FROM {listed}"))
        for table, kind in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "kernel"),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "memory"),
            ("CUPTI_ACTIVITY_KIND_MEMSET", "memory"),
            ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graph"),
        ):
            versions = [name for name in sorted(there) if re.fullmatch(rf"{table}(_V\d+)?", name)]
            if not versions:
                continue
            table = versions[0]
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            name = "shortName" if kind == "kernel" else "NULL"
            process = "globalPid" if "globalPid" in columns else "NULL"
            for start, end, packed, device, text in connection.execute(
                f'SELECT start, "end", {process}, deviceId, {name} FROM {table}'
            ):
                if end < start or start <= -(1 << 61) or end >= 1 << 61:
                    continue
                what = classify(str(texts.get(text, f"unknown kernel {text}"))) if kind == "kernel" else kind
                found.setdefault((packed, device), []).append(Event(0, what, start, end))
    finally:
        connection.close()
    return found


def capture_sums(events: Sequence[Event]) -> dict[str, Any]:
    """The decomposition of one rank's whole capture, without wait and transfer."""
    scene = Scene(events=list(events))
    window = min(event.start for event in events), max(event.end for event in events)
    row = decompose(scene, 0, window)
    split = [name for name in LENGTHS if name.endswith(("transfer_ns", "wait_ns", "unsplit_ns"))]
    kept = {name: value for name, value in row.items() if name not in (*split, "p2p_copy_ns")}
    kept["kernels"] = sum(event.is_kernel for event in events)
    return kept
