"""Causes of idle time: a drawing for each, random programs against a simulator, depth against a sweep, real captures.

In the drawings ``[x 0-1)`` is a host call and ``x 1-11`` a GPU event, in ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scene import MS, Scene
from test_critical_path_random import LONGER, Op, programs, simulate, trace_of

from nsysddp.join.load import load
from nsysddp.model import schema
from nsysddp.model.result import Result
from nsysddp.model.trace import Trace
from nsysddp.questions import analyze, context_of
from nsysddp.questions.idle import idle
from nsysddp.questions.steps import Selection

Piece = tuple[str, str, str | None, float, float]
CAPTURE = Selection(per="capture")


def answer(trace: Trace, selection: Selection = CAPTURE) -> Result:
    return idle(context_of(trace, selection))


def pieces(result: Result, rank: int = 0) -> list[Piece]:
    """(cause, activity, name, start, end) of a rank in milliseconds."""
    rows = result["idle"].filter(pl.col("rank") == rank)
    return [
        (cause, activity, name, start / MS, end / MS)
        for cause, activity, name, start, end in rows.select(
            "cause", "activity", "name", "start_ns", "end_ns"
        ).iter_rows()
    ]


# --- one drawing per cause ------------------------------------------------------------------------------------


def test_a_late_launch_is_the_host_s_time_before_it_its_call_and_its_latency() -> None:
    """
    main  [a 0-1)                [b 8-10)
    s7      a 1-3 ................        b 10.5-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (10.5, 20), "b", ("main", 8, 10), api="cuLaunchKernelEx")
    result = answer(scene.trace())
    assert pieces(result) == [
        ("launch_late", "host_gap", "cuLaunchKernelEx", 3, 8),
        ("launch_late", "call", "cuLaunchKernelEx", 8, 10),
        ("launch_late", "latency", None, 10, 10.5),
    ]
    row = result["idle"].row(0, named=True)
    assert (row["thread"], row["delayed_name"], row["consequence"], row["call"]) == (100, "b", False, None)


def test_the_next_event_of_a_queue_costs_only_latency() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.launch(0, 7, (11.002, 20), "b", ("main", 1, 2))
    assert pieces(answer(scene.trace())) == [("stream_latency", "latency", None, 11, 11.002)]


def test_a_long_gap_inside_the_launch_call_is_the_call_s() -> None:
    """
    main  [a 0-1)[b 2 ---------- 12)
    s7      a 1-3 ...... b 9-20         not latency of 6 ms: the host was still busy with launching b
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (9, 20), "b", ("main", 2, 12))
    assert pieces(answer(scene.trace())) == [("launch_late", "call", "cudaLaunchKernel", 3, 9)]


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("compute", "event_wait"), ("communication", "communication_wait"), ("memory", "memory_copy")],
)
def test_an_event_that_waited_for_another_stream_names_what_it_waited_for(kind: str, cause: str) -> None:
    """
    main  [a 0-1)(record)(wait)[b 2-3)
    s7      a 1-11 --
    s9                ... b 11.004-20
    """
    scene = Scene()
    awaited = scene.launch(0, 7, (1, 11), "a", ("main", 0, 1), kind=kind)
    if kind == "communication":
        scene.collective(awaited, matched=False)
    scene.record(0, 7, 1.1, sync_id=1)
    scene.wait(0, 9, 1.2, sync_id=1)
    scene.launch(0, 9, (11.004, 20), "b", ("main", 2, 3))
    result = answer(scene.trace())
    assert pieces(result) == [(cause, "latency", None, 11, 11.004)]
    assert result["idle"]["awaited_name"].to_list() == ["a"]


def drained(back: float = 6.5, launches: tuple[float, ...] = (7.0, 8.0)) -> Scene:
    """A device synchronisation takes the host's lead of 4 ms away.

    main  [a 0-1)[sync 1-6.5)   [b 7-7.2)[c 8-8.2)
    s7      a 2-5 ............ b 7.2-7.7 .. c 8.2-8.7
    """
    scene = Scene()
    scene.launch(0, 7, (2, 5), "a", ("main", 0, 1))
    scene.synchronise(0, (1, back), "cudaDeviceSynchronize")
    for number, at in enumerate(launches):
        scene.launch(0, 7, (at + 0.2, at + 0.7), f"k{number}", ("main", at, at + 0.2))
    return scene


def test_late_launches_after_a_synchronisation_are_its_consequence() -> None:
    result = answer(drained().trace())
    assert pieces(result) == [
        ("synchronisation", "sync", "cudaDeviceSynchronize", 5, 6.5),
        ("synchronisation", "host_gap", "cudaLaunchKernel", 6.5, 7),
        ("synchronisation", "call", "cudaLaunchKernel", 7, 7.2),
        ("synchronisation", "host_gap", "cudaLaunchKernel", 7.7, 8),
        ("synchronisation", "call", "cudaLaunchKernel", 8, 8.2),
    ]
    frame = result["idle"]
    assert frame["consequence"].to_list() == [False, True, True, True, True]
    assert set(frame["call"]) == {"cudaDeviceSynchronize"}
    assert set(frame["awaited_name"]) == {"a"}


def test_a_synchronisation_costs_no_more_than_the_lead_that_it_took() -> None:
    """It had blocked the host for 4 ms; of the late launches after it the fifth is the host's own doing."""
    result = answer(drained(5.0, tuple(5.9 + number * 1.4 for number in range(6))).trace())
    frame = result["idle"].with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    assert frame.filter("consequence")["ns"].sum() == 4 * MS
    late = frame.filter(pl.col("cause") == "launch_late")
    assert late["ns"].sum() == round((1.1 + 5 * 0.9 - 4) * MS)
    assert late["start_ns"].min() >= frame.filter("consequence")["end_ns"].max()
    assert late["call"].null_count() == late.height


def test_once_the_host_was_ahead_again_a_late_launch_is_a_cause_of_its_own() -> None:
    """
    main  [a][sync 1-5)[b 5.1-5.2)[c 5.3-5.4)            [d 9.8-10)
    s7    a 2-5        b 5.2-7.2   c 7.2-9.2 (waited)  ...  d 10-11
    """
    scene = drained(5.0, ())
    scene.launch(0, 7, (5.2, 7.2), "b", ("main", 5.1, 5.2))
    scene.launch(0, 7, (7.2, 9.2), "c", ("main", 5.3, 5.4))
    scene.launch(0, 7, (10, 11), "d", ("main", 9.8, 10))
    assert [(cause, start, end) for cause, _, _, start, end in pieces(answer(scene.trace()))] == [
        ("synchronisation", 5, 5.1),
        ("synchronisation", 5.1, 5.2),
        ("launch_late", 9.2, 9.8),
        ("launch_late", 9.8, 10),
    ]


def test_a_sleep_after_a_synchronisation_keeps_its_own_name() -> None:
    result = answer(drained(5.0, (15.0,)).trace())
    assert [(cause, activity) for cause, activity, *_ in pieces(result)] == [
        ("launch_late", "host_gap"),
        ("synchronisation", "call"),
    ]


def test_a_blocking_copy_is_a_memory_copy() -> None:
    """
    main  [a 0-1)[cudaMemcpy 1-6)   [b 6.5-7)
    s7      a 1-4   copy 4-5 .....   b 7-8
    """
    scene = Scene()
    scene.launch(0, 7, (1, 4), "a", ("main", 0, 1))
    scene.launch(0, 7, (4, 5), "memcpy DtoH", ("main", 1, 6), kind="memory", api="cudaMemcpy")
    scene.launch(0, 7, (7, 8), "b", ("main", 6.5, 7))
    causes = [(cause, start, end) for cause, _, _, start, end in pieces(answer(scene.trace()))]
    assert causes == [("memory_copy", 5, 6), ("memory_copy", 6, 6.5), ("memory_copy", 6.5, 7)]


def test_a_synchronisation_behind_a_collective_names_the_rank_that_came_last() -> None:
    scene = Scene()
    first = scene.launch(0, 17, (1, 9), "nccl", ("main", 0, 1), kind="communication")
    scene.synchronise(0, (1, 9.5), "cudaStreamSynchronize", stream=17)
    scene.launch(0, 7, (10, 11), "b", ("main", 9.6, 10))
    last = scene.launch(1, 17, (8, 9), "nccl", ("main", 0, 1), kind="communication")
    scene.collective(first, last)
    frame = answer(scene.trace())["idle"].filter(pl.col("rank") == 0)
    assert set(frame["cause"]) == {"communication_wait"}
    assert set(frame["waits_for"]) == {1}


def test_an_event_on_another_rank_of_the_process_is_named() -> None:
    """
    rank 0 s7                  a 1-9 ---record
    rank 1 s8      x 1-2 ................     > b 9.004-12
    """
    scene = Scene(processes={0: 0, 1: 0})
    scene.launch(0, 7, (1, 9), "a", ("main", 0, 1))
    scene.record(0, 7, 1.1, sync_id=1)
    scene.launch(1, 8, (1.2, 2), "x", ("main", 1.1, 1.2))
    scene.wait(1, 8, 1.3, sync_id=1)
    scene.launch(1, 8, (9.004, 12), "b", ("main", 1.4, 1.5))
    result = answer(scene.trace())
    assert pieces(result, 1) == [
        ("event_wait", "other_rank", "a", 2, 9),
        ("event_wait", "latency", None, 9, 9.004),
    ]
    assert result["idle"].filter(pl.col("activity") == "other_rank")["waits_for"].to_list() == [0]


def test_after_the_last_event_it_is_the_end_of_work_and_before_the_first_call_unknown() -> None:
    scene = Scene()
    scene.launch(0, 7, (5, 6), "a", ("main", 4, 5))
    found = pieces(answer(scene.trace(), Selection(per="capture", from_ns=0, to_ns=9 * MS)))
    assert found == [
        ("unknown", "nothing", "cudaLaunchKernel", 0, 4),
        ("launch_late", "call", "cudaLaunchKernel", 4, 5),
        ("end_of_work", "nothing", None, 6, 9),
    ]


def test_without_a_launch_row_or_without_any_calls_a_long_gap_is_unknown() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (6, 7), "b", None)
    assert [cause for cause, *_ in pieces(answer(scene.trace()))] == ["unknown"]
    blind = answer(scene.trace(calls=False))
    assert [cause for cause, *_ in pieces(blind)] == ["unknown"]
    assert {warning.code for warning in blind.warnings} == {"idle_without_calls", "idle_unknown"}


def test_a_gap_over_the_edge_of_steps_is_cut_there() -> None:
    scene = Scene()
    scene.range(0, "step 0", 0, 3)
    scene.range(0, "step 1", 3, 20)
    scene.launch(0, 7, (1, 4), "a", ("main", 0, 1))
    scene.collective(
        scene.launch(0, 17, (6, 7), "nccl", ("main", 3, 5.9), kind="communication"), matched=False
    )
    scene.launch(0, 7, (9, 10), "b", ("main", 8, 9))
    result = answer(scene.trace(), Selection())
    steps = result["idle"].group_by("step").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).sort("step")
    assert dict(steps.iter_rows()) == {"step 0": 2 * MS, "step 1": 2 * MS}
    overlap = analyze(scene.trace())["overlap"]
    assert overlap["idle_ns"].to_list() == [2 * MS, 2 * MS]


# --- random programs --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_programs_every_idle_instant_has_one_cause_that_delays(
    program: tuple[tuple[Op, ...], ...],
) -> None:
    """Idle time instant by instant; and making a named host piece longer makes the delayed event start later."""
    schedule = simulate(program)
    result = answer(trace_of(program, schedule))
    frame = result["idle"]
    for rank in range(len(program)):
        ran = [at for (owner, _), at in schedule.event.items() if owner == rank]
        window = range(min(a for a, _ in ran), max(b for _, b in ran))
        busy = {instant for a, b in ran for instant in range(a, b)}
        told: list[int] = []
        for start, end in frame.filter(pl.col("rank") == rank).select("start_ns", "end_ns").iter_rows():
            told.extend(range(start, end))
        assert sorted(told) == [instant for instant in window if instant not in busy]
    rows = frame.filter(pl.col("activity").is_in(["call", "host_gap", "sync"])).head(4)
    for row in rows.iter_rows(named=True):
        rank, place = row["rank"], int(row["name"].rsplit("_v")[1])
        op = program[rank][place]
        longer = (
            replace(op, before=op.before + LONGER)
            if row["activity"] == "host_gap"
            else replace(op, call=op.call + LONGER)
        )
        changed = tuple(
            tuple(longer if (r, p) == (rank, place) else other for p, other in enumerate(ops))
            for r, ops in enumerate(program)
        )
        delayed = int(row["delayed_name"].rsplit("_v")[1])
        early = row["activity"] == "call" and op.early and place == delayed
        if not early:  # an event that starts inside its launch call does not wait for the call's end
            later = simulate(changed).event[rank, delayed][0]
            assert later >= schedule.event[rank, delayed][0] + LONGER, row


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 60), st.integers(1, 9)),
        min_size=1,
        max_size=12,
    )
)
def test_launch_queue_is_what_a_sweep_counts(shape: list[tuple[int, int, int, int]]) -> None:
    """Each is a launch call (start, length), the time from it to the event, and the event's duration, in ns."""
    ns = 1 / MS
    scene = Scene()
    spans = []
    for stream, (call, length, lag, run) in enumerate(shape):
        start = call + lag
        spans.append((min(call + length, start), start))
        scene.launch(
            0, stream, (start * ns, (start + run) * ns), "k", ("main", call * ns, (call + length) * ns)
        )
    low, high = 0, 200
    result = answer(scene.trace(), Selection(per="capture", from_ns=low, to_ns=high))
    depth = [sum(a <= instant < b for a, b in spans) for instant in range(low, high)]
    changes = result["launch_queue"].rows()
    for instant in range(low, high):
        told = [value for _, time, value in changes if time <= instant]
        assert (told[-1] if told else 0) == depth[instant - low]
    row = result["launch_queue_step"].row(0, named=True)
    assert row["max_depth"] == max(depth)
    assert row["mean_depth"] == pytest.approx(sum(depth) / (high - low))
    assert row["empty_ns"] == depth.count(0)


def test_the_nodes_of_a_cuda_graph_are_one_launch() -> None:
    scene = Scene()
    first = scene.launch(0, 7, (3, 4), "a", ("main", 0, 1), api="cudaGraphLaunch")
    scene.launch(0, 7, (5, 6), "b", None, like=first)
    assert answer(scene.trace())["launch_queue"].rows() == [(0, MS, 1), (0, 3 * MS, 0)]


# --- real captures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["delay_cap4", "blobs_ddp", "tp", "cvd", "graph_node", "graph_graph"])
def test_causes_of_real_captures_add_up_to_the_idle_time(name: str, unpacked: Callable[[str], Path]) -> None:
    context = context_of(load(unpacked(f"h200/{name}"), host_calls=True))
    result = idle(context)
    assert result["idle"].schema == pl.Schema(schema.IDLE.dtypes)
    overlap = analyze(context.trace)["overlap"].select("rank", "step_index", "idle_ns")
    told = (
        result["idle_step"]
        .group_by("rank", "step_index")
        .agg(pl.col("idle_ns").sum())
        .sort("rank", "step_index")
    )
    assert told.rows() == overlap.filter(pl.col("idle_ns") > 0).sort("rank", "step_index").rows()


def test_a_host_that_synchronises_each_step_is_named_in_cvd(unpacked: Callable[[str], Path]) -> None:
    """DDP's own timers wait for an event in the first forwards; after that the host has to catch up, once a step."""
    frame = idle(context_of(load(unpacked("h200/cvd"), host_calls=True)))["idle"]
    late = frame.filter(
        pl.col("activity").is_in(["host_gap", "call"]), pl.col("end_ns") - pl.col("start_ns") > 10_000
    )
    assert set(late["phase"]) == {"forward"}
    gaps = late.group_by("rank", "gap").len()
    assert gaps["rank"].to_list().count(0) == 3
    first = late.filter(pl.col("rank") == 0)
    assert set(first["call"]) == {"cudaEventSynchronize"}
    assert set(first["waits_for"]) == {1}


def test_of_a_serial_program_nothing_but_latency_is_left_after_the_first_step(
    unpacked: Callable[[str], Path],
) -> None:
    steps = idle(context_of(load(unpacked("h200/tp"), host_calls=True)))["idle_step"]
    later = steps.filter(pl.col("step_index") > 0)
    assert set(later["cause"]) == {"stream_latency"}
    assert later["longest_ns"].max() < 5_000
