"""Random programs run by a simulator: the path must be what really held the last event.

The simulator knows nothing of the analysis: it computes every start and end from the rules of CUDA and NCCL (streams,
events, launches, synchronisation, the last arrival), for ranks whose programs are random. Two things are then known:

* without latencies there is no gap: the pieces are work and host time, and they add up to the makespan;
* making the cause of any piece of the path longer by d makes the last event end at least d later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scene import THREADS, Scene

from nsysddp.dependencies.graph import ALL_RULES, Rule, build, check
from nsysddp.model.trace import Trace
from nsysddp.questions.attribution import attribute
from nsysddp.questions.critical_path import critical_path, rank_paths

LONGER = 7
COLLECTIVE_STREAM = 30
STREAMS = (7, 8, 9)
NS = 1e-6  # the scene draws in ms; here one unit is one ns


@dataclass(frozen=True)
class Op:
    """One host call of a program and what it does.

    ``what``: launch, collective, record, wait, or a synchronisation of device, stream or event; ``before`` is the time
    that the host spends ahead of it, ``call`` its duration (of a synchronisation: the time to return), ``run``
    the event's; ``source`` numbers the record (n-th of the rank) that a wait or event synchronisation is for.
    """

    what: str
    before: int
    call: int
    run: int = 0
    stream: int = STREAMS[0]
    source: int = 0
    early: bool = False
    thread: str = "main"


@dataclass
class Schedule:
    """Start and end of every call, and of the event of those that launch one, by (rank, place in its program)."""

    call: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    event: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


def simulate(programs: tuple[tuple[Op, ...], ...]) -> Schedule:
    """Start and end of everything, by recursion over what each thing needs."""

    def ordinal(rank: int, place: int, what: str) -> int:
        return sum(op.what == what for op in programs[rank][:place])

    def places(rank: int, what: str) -> list[int]:
        return [place for place, op in enumerate(programs[rank]) if op.what == what]

    def awaited(rank: int, place: int) -> int | None:
        """When what a synchronisation waits for has ended; None if it is nothing."""
        op = programs[rank][place]
        if op.what == "device":
            return max((event(rank, p)[1] for p in range(place) if launches(rank, p)), default=None)
        if op.what == "stream":
            return behind(rank, op.stream, place)
        records = places(rank, "record")
        return recorded(rank, records[op.source])

    def launches(rank: int, place: int) -> bool:
        return programs[rank][place].what in ("launch", "collective")

    @cache
    def call(rank: int, place: int) -> tuple[int, int]:
        op = programs[rank][place]
        start = op.before + (call(rank, place - 1)[1] if place else 0)
        end = start + op.call
        if op.what in ("device", "stream", "event"):
            needed = awaited(rank, place)
            if needed is not None and needed > start:
                end = needed + op.call
        return start, end

    @cache
    def behind(rank: int, stream: int, place: int) -> int | None:
        """When everything that the stream was given before this place has ended: its events and its waits."""
        ends: list[int] = []
        for p in range(place):
            op = programs[rank][p]
            if op.stream != stream:
                continue
            if launches(rank, p):
                ends.append(event(rank, p)[1])
            elif op.what == "wait":
                needed = recorded(rank, places(rank, "record")[op.source])
                if needed is not None:
                    ends.append(needed)
        return max(ends, default=None)

    def recorded(rank: int, place: int) -> int | None:
        return behind(rank, programs[rank][place].stream, place)

    @cache
    def start_of(rank: int, place: int) -> int:
        op = programs[rank][place]
        begin, finish = call(rank, place)
        needed = behind(rank, op.stream, place)
        ready = begin if op.early else finish
        return ready if needed is None else max(ready, needed)

    @cache
    def event(rank: int, place: int) -> tuple[int, int]:
        op = programs[rank][place]
        start = start_of(rank, place)
        if op.what == "launch":
            return start, start + op.run
        number = ordinal(rank, place, "collective")
        arrivals = [start_of(r, places(r, "collective")[number]) for r in range(len(programs))]
        return start, max(arrivals) + programs[0][places(0, "collective")[number]].run

    schedule = Schedule()
    for rank, program in enumerate(programs):
        for place in range(len(program)):
            schedule.call[rank, place] = call(rank, place)
            if launches(rank, place):
                schedule.event[rank, place] = event(rank, place)
    return schedule


API = {
    "launch": "cudaLaunchKernel",
    "collective": "cuLaunchKernelEx",
    "record": "cudaEventRecord",
    "wait": "cudaStreamWaitEvent",
    "device": "cudaDeviceSynchronize",
    "stream": "cudaStreamSynchronize",
    "event": "cudaEventSynchronize",
}


def trace_of(programs: tuple[tuple[Op, ...], ...], schedule: Schedule) -> Trace:
    """What a profiler would have recorded of it. Names of calls and events end in their place in the program."""
    scene = Scene()
    collectives: dict[int, list[int]] = {}
    for rank, program in enumerate(programs):
        number = 0
        for place, op in enumerate(program):
            start, end = schedule.call[rank, place]
            name = f"{API[op.what]}_v{place}"
            at = (start * NS, end * NS)
            if op.what in ("launch", "collective"):
                first, last = schedule.event[rank, place]
                handle = scene.launch(
                    rank,
                    op.stream,
                    (first * NS, last * NS),
                    f"e_v{place}",
                    (op.thread, *at),
                    kind="communication" if op.what == "collective" else "compute",
                    api=name,
                )
                if op.what == "collective":
                    collectives.setdefault(number, []).append(handle)
                    number += 1
                continue
            correlation = scene.call(rank, *at, name, op.thread)
            row = {"process": rank, "context": 1, "correlation": correlation, "event_id": 1000 + place}
            records = [p for p, other in enumerate(program) if other.what == "record"]
            if op.what == "record":
                scene.records.append(row | {"stream": op.stream, "sync_id": place})
            elif op.what != "device":
                row |= {"start_ns": start, "end_ns": end, "stream": op.stream, "type": 2, "sync_id": None}
                if op.what == "wait":
                    row["sync_id"] = records[op.source]
                elif op.what == "event":
                    row |= {"type": 1, "stream": 4294967295, "event_id": 1000 + records[op.source]}
                scene.syncs.append(row)
    for members in collectives.values():
        scene.collective(*members)
    return scene.trace()


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[Op, ...], ...]:
    ranks = draw(st.integers(1, 3))
    transfers = draw(st.lists(st.integers(1, 30), max_size=4))
    made = []
    for _ in range(ranks):
        ops: list[Op] = []
        left = list(transfers)
        for _ in range(draw(st.integers(1, 9))):
            records = sum(op.what == "record" for op in ops)
            whats = draw(st.sampled_from(IDIOMS))
            if ("collective" in whats and not left) or (whats[0] == "wait" and not records):
                continue
            stream = draw(st.sampled_from(STREAMS))
            for what, following in zip(whats, (*whats[1:], None), strict=True):
                if what == "wait":  # another stream goes on; 14 never holds an event
                    others = STREAMS if following == "launch" else (*STREAMS, COLLECTIVE_STREAM, 14)
                    stream = draw(st.sampled_from(others))
                elif what == "collective":
                    stream = COLLECTIVE_STREAM
                records = sum(op.what == "record" for op in ops)
                ops.append(draw(one_op(what, records, left, stream)))
        while left:
            ops.append(draw(one_op("collective", 0, left, COLLECTIVE_STREAM)))
        if not any(op.what in ("launch", "collective") for op in ops):
            ops.append(draw(one_op("launch", 0, left, STREAMS[0])))
        made.append(tuple(ops))
    return tuple(made)


IDIOMS = (
    ("launch",),
    ("launch", "launch"),
    ("launch", "record", "wait", "launch"),
    ("launch", "record", "wait", "launch"),
    ("launch", "record", "wait", "record", "wait", "launch"),
    ("launch", "record", "wait", "record", "wait", "launch"),
    ("launch", "record", "wait", "collective"),
    ("collective",),
    ("collective", "record", "wait", "launch"),
    ("launch", "record", "event"),
    ("launch", "launch", "device"),
    ("launch", "launch", "stream"),
    ("wait",),
)
"""What programs do with queues, each from a stream of its own; a wait moves on to another stream."""


@st.composite
def one_op(draw: st.DrawFn, what: str, records: int, transfers: list[int], stream: int) -> Op:
    run = transfers.pop(0) if what == "collective" else draw(st.integers(1, 90))
    return Op(
        what,
        before=draw(st.integers(0, 2 if what in ("record", "wait") else 12)),
        call=draw(st.integers(1, 2 if what in ("record", "wait") else 6)),
        run=run,
        stream=stream,
        source=max(0, records - draw(st.sampled_from((1, 1, 1, 2, 3)))),
        early=what in ("launch", "collective") and draw(st.booleans()),
        thread=draw(st.sampled_from(("main", "main", "autograd"))),
    )


def lengthened(
    programs: tuple[tuple[Op, ...], ...], rank: int, place: int, what: str
) -> tuple[tuple[Op, ...], ...]:
    """The programs with one duration longer; the run of a collective is that of all ranks."""
    op = programs[rank][place]
    if what == "run" and op.what == "collective":
        number = sum(other.what == "collective" for other in programs[rank][:place])
        rank, place = 0, [p for p, other in enumerate(programs[0]) if other.what == "collective"][number]
        op = programs[0][place]
    changed = replace(op, **{what: getattr(op, what) + LONGER})
    program = (*programs[rank][:place], changed, *programs[rank][place + 1 :])
    return (*programs[:rank], program, *programs[rank + 1 :])


CAUSE = {
    "compute": "run",
    "transfer": "run",
    "unmatched_communication": "run",  # of a single rank
    "host": "call",
    "sync": "call",
    "host_gap": "before",
}
"""Which duration of its call's ``Op`` a piece of the path is made of."""


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_the_path_is_what_held_the_last_event(programs: tuple[tuple[Op, ...], ...]) -> None:
    schedule = simulate(programs)
    trace = trace_of(programs, schedule)
    # Only threads that launch are in a line; calls of the others would be host time that the line cannot know.
    callers = {
        (rank, op.thread)
        for rank, program in enumerate(programs)
        for op in program
        if op.what in ("launch", "collective")
    }
    rules = ALL_RULES - {Rule.POLLING_THREADS} if _has_silent_threads(programs, callers) else ALL_RULES
    graph = build(trace, rules=rules)
    check(graph)
    assert graph.counts["late_waits"] == graph.counts["negative_launches"] == 0
    assert graph.counts["unresolved_waits"] == 0
    assert len(programs) == 1 or graph.counts["unmatched_communication"] == 0
    pieces = critical_path(trace, "capture", graph=graph)["critical_path"]
    for path_rank, part in pieces.group_by("path_rank"):
        rank = int(path_rank[0])
        last_row = part.sort("end_ns")["event"].to_list()[-1]
        tail = (rank, place_of(trace, last_row))
        end = schedule.event[tail][1]
        for kind, where, name, until in part.select("kind", "rank", "name", "end_ns").iter_rows():
            if kind == "unknown":  # the window may begin before this rank's first call
                assert until in {schedule.call[r, 0][0] for r in range(len(programs))}
                continue
            assert kind in CAUSE, f"{kind} on the path of a run without latencies"
            place = int(name.rsplit("_v", 1)[1])
            longer = simulate(lengthened(programs, where, place, CAUSE[kind]))
            assert longer.event[tail][1] >= end + LONGER, (kind, where, name)


def _has_silent_threads(programs: tuple[tuple[Op, ...], ...], callers: set[tuple[int, str]]) -> bool:
    return any((rank, op.thread) not in callers for rank, program in enumerate(programs) for op in program)


def place_of(trace: Trace, row: int) -> int:
    """Place in its program of the call that launched the event."""
    return int(trace.names["text"][trace.events["name"][row]].rsplit("_v", 1)[1])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.data())
def test_paths_tile_for_any_steps_and_any_rules(
    programs: tuple[tuple[Op, ...], ...], data: st.DataObject
) -> None:
    trace = trace_of(programs, simulate(programs))
    size = trace.events.height
    steps = data.draw(st.lists(st.integers(-1, 3), min_size=size, max_size=size))
    launched = replace(
        attribute(trace),
        step=np.asarray(steps, dtype=np.int32),
        steps=pl.DataFrame({"step_index": range(4), "name": [f"step {number}" for number in range(4)]}),
    )
    rules = data.draw(st.sets(st.sampled_from(sorted(Rule, key=lambda rule: rule.value))))
    graph = build(trace, rules=rules)
    check(graph)
    for ask in (critical_path, rank_paths):
        answer = ask(trace, graph=graph, attribution=launched)  # asserts the tiling itself
        total = answer["critical_path_kind"].group_by("step", "path_rank").agg(pl.col("duration_ns").sum())
        assert total.sort("step", "path_rank").equals(
            answer["critical_path_step"]
            .select("step", "path_rank", duration_ns="path_ns")
            .sort("step", "path_rank")
        )
        waits = answer["critical_path"].filter(pl.col("kind") == "wait")
        assert waits.is_empty() or ask is rank_paths


def test_threads_of_the_scene_are_distinct() -> None:
    assert len(set(THREADS.values())) == len(THREADS)
