"""Causes of idle time: a drawing for each, random programs against a simulator, depth against a sweep, real captures.

In the drawings ``[x 0-1)`` is a host call and ``x 1-11`` a GPU event, in ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scene import MS, Scene
from simulation.export import write
from simulation.jobs import Job, Planted
from simulation.jobs import simulate as simulate_job
from test_critical_path_random import LONGER, Op, programs, simulate, trace_of

from nsysddp.join.load import load
from nsysddp.model.intervals import Intervals
from nsysddp.model.result import Result
from nsysddp.model.trace import Trace
from nsysddp.questions import analyze, context_of
from nsysddp.questions.gaps import Gaps, Pieces, assert_tiling, cut_where, length_of_runs
from nsysddp.questions.idle import idle
from nsysddp.questions.idle.tables import IDLE
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
    s7      a 1-3 ................        b 10.05-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (10.05, 20), "b", ("main", 8, 10), api="cuLaunchKernelEx")
    result = answer(scene.trace())
    assert pieces(result) == [
        ("launch_late", "host_gap", "cuLaunchKernelEx", 3, 8),
        ("launch_late", "call", "cuLaunchKernelEx", 8, 10),
        ("launch_late", "latency", None, 10, 10.05),
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


# --- the device did not run what was ready ---------------------------------------------------------------------


def held_up(gaps: float = 12, *, ranks: tuple[int, ...] = (0,)) -> Scene:
    """Three kernels of 8 ms a rank, launched 100 ms ahead, with as long a gap before the second and the third."""
    scene = Scene()
    for rank in ranks:
        for number in range(3):
            start = 100 + number * (8 + gaps)
            scene.launch(rank, 7, (start, start + 8), f"k{number}", ("main", number, number + 0.5))
    return scene


def test_gaps_longer_than_a_start_up_are_not_latency() -> None:
    """Whatever was launched far ahead, kept waiting for 12 ms: no matter of many short kernels."""
    assert pieces(answer(held_up().trace())) == [
        ("unexplained", "latency", None, 108, 120),
        ("unexplained", "latency", None, 128, 140),
    ]


@pytest.mark.parametrize(("gap", "cause"), [(0.02, "stream_latency"), (0.021, "unexplained")])
def test_a_start_up_lasts_some_microseconds(gap: float, cause: str) -> None:
    assert {found for found, *_ in pieces(answer(held_up(gap).trace()))} == {cause}


@pytest.mark.parametrize(("start", "cause"), [(10.1, "launch_late"), (10.101, "unexplained")])
def test_a_launch_on_a_free_device_takes_longer_than_the_next_of_a_queue(start: float, cause: str) -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (start, 20), "b", ("main", 9, 10))
    assert pieces(answer(scene.trace()))[-1] == (cause, "latency", None, 10, start)


def test_what_waits_long_after_its_event_hangs_on_nothing_that_is_known() -> None:
    """The awaited kernel ended at 11 and is no reason for what starts at 14."""
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.record(0, 7, 1.1, sync_id=1)
    scene.wait(0, 9, 1.2, sync_id=1)
    scene.launch(0, 9, (14, 20), "b", ("main", 2, 3))
    result = answer(scene.trace())
    assert pieces(result) == [("unexplained", "latency", None, 11, 14)]
    assert result["idle"]["awaited_event"].to_list() == [None]


def on_one_gpu(residual: int | None = None) -> Scene:
    """Rank 1 runs in the middle of the first gap of rank 0: from 110 to 115 of 108 to 120."""
    scene = held_up()
    scene.launch(1, 7, (110, 115), "other", ("main", 0, 1))
    scene.gpus = {0: "GPU-a", 1: "GPU-a"}
    if residual is not None:
        scene.residuals[1] = residual
    return scene


def test_under_kernels_of_another_process_the_gpu_ran_that_process() -> None:
    assert pieces(answer(on_one_gpu().trace())) == [
        ("unexplained", "latency", None, 108, 110),
        ("other_process", "latency", None, 110, 115),
        ("unexplained", "latency", None, 115, 120),
        ("unexplained", "latency", None, 128, 140),
    ]


def test_a_start_up_after_another_process_is_latency() -> None:
    scene = held_up()
    scene.launch(1, 7, (108, 119.985), "other", ("main", 0, 1))
    scene.gpus = {0: "GPU-a", 1: "GPU-a"}
    assert pieces(answer(scene.trace()))[:2] == [
        ("other_process", "latency", None, 108, 119.985),
        ("stream_latency", "latency", None, 119.985, 120),
    ]


def test_a_process_on_another_gpu_or_with_doubtful_clocks_explains_nothing() -> None:
    for scene in (on_one_gpu(10 * MS), on_one_gpu()):
        if not scene.residuals:
            scene.gpus[1] = "GPU-b"
        assert {cause for cause, *_ in pieces(answer(scene.trace()))} == {"unexplained"}


def test_a_late_launch_stays_late_whoever_used_the_gpu_meanwhile() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (9.001, 12), "b", ("main", 8, 9))
    scene.launch(1, 7, (3, 9), "other", ("main", 0, 1))
    scene.gpus = {0: "GPU-a", 1: "GPU-a"}
    assert {cause for cause, *_ in pieces(answer(scene.trace()))} == {"launch_late"}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=5),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_pieces_are_cut_where_others_ran_and_nowhere_else(
    lengths: list[int], busy: list[tuple[int, int]], chosen: list[bool]
) -> None:
    """Against a look at every instant."""
    start = np.cumsum([0, *lengths[:-1]])
    end = start + np.array(lengths)
    count = start.size
    gaps = Gaps(*(np.zeros(1, np.int64),) * 2, start[:1], end[-1:], np.zeros(1, np.int64))
    whole = Pieces(np.zeros(count, np.int64), start, end, np.arange(count), np.zeros(count, dtype=bool))
    which = np.array(chosen[:count])
    spans = Intervals.union_of(np.array([a for a, _ in busy]), np.array([a + n for a, n in busy]))
    cut, within = cut_where(gaps, whole, {0: spans}, which)
    assert_tiling(gaps, cut)
    ran = {instant for a, n in busy for instant in range(a, a + n)}
    for opened, closed, node, is_within in zip(cut.start, cut.end, cut.node, within, strict=True):
        assert {instant in ran for instant in range(opened, closed)} == {bool(is_within)} or not which[node]
        assert start[node] <= opened
        assert closed <= end[node]
        assert which[node] or not is_within
    edges = {edge for a, b in zip(spans.start, spans.end, strict=True) for edge in (a, b)}
    assert set(cut.start) <= set(start) | edges
    runs = length_of_runs(cut)
    assert runs.tolist() == [lengths[node] for node in cut.node]


# --- calls that hold the host by themselves --------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cudaFree_v3020", "cudaMalloc_v3020", "cuMemHostRegister", "cudaHostAlloc"])
@pytest.mark.parametrize("early", [0, 0.1])
def test_freeing_after_a_collective_is_neither_communication_nor_synchronisation(
    call: str, early: float
) -> None:
    """
    main  [ar]        [cudaFree 40 ------- 70)  [b 71-71.1)
    s17   ar 1-40 .............................. b 71.101-80   called just before or just after the end: alike
    """
    scene = Scene()
    first = scene.launch(0, 17, (1, 40), "nccl", ("main", 0, 1), kind="communication")
    scene.collective(first, matched=False)
    scene.synchronise(0, (40 - early, 70), call)
    scene.launch(0, 7, (71.101, 80), "b", ("main", 71, 71.1))
    result = answer(scene.trace())
    totals = result["idle_step"].select("cause", "idle_ns").rows()
    assert totals == [("allocation", 31.101 * MS)]
    frame = result["idle"]
    assert set(frame["call"]) == {call}
    assert frame["consequence"].to_list() == [False, True, True, True]
    assert frame["awaited_event"].null_count() == frame.height


def test_allocating_in_the_order_of_a_stream_holds_nobody() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.call(0, 3, 9, "cudaMallocAsync_v11020")
    scene.launch(0, 7, (9.101, 12), "b", ("main", 9, 9.1))
    assert {cause for cause, *_ in pieces(answer(scene.trace()))} == {"launch_late"}


def test_a_short_allocation_does_not_take_over_from_a_synchronisation() -> None:
    scene = drained(5.0, (5.9,))
    scene.call(0, 5.2, 5.21, "cudaMalloc_v3020")
    causes = [(cause, start, end) for cause, _, _, start, end in pieces(answer(scene.trace()))]
    assert causes == [
        ("synchronisation", 5, 5.2),
        ("allocation", 5.2, 5.21),
        ("synchronisation", 5.21, 5.9),
        ("synchronisation", 5.9, 6.1),
    ]


@pytest.mark.parametrize("end", [8.99, 9.3])
def test_a_copy_of_pageable_memory_holds_the_host_while_it_is_staged(end: float) -> None:
    """
    main  [a 0-1)  [cudaMemcpyAsync 3 ------ 9)     [b 9.5-9.6)
    s7      a 1-3 ........... copy 5 ------- end ..    b 9.601-12    its last part may run after the call
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (5, end), "memcpy HtoD", ("main", 3, 9), kind="memory", api="cudaMemcpyAsync_v3020")
    scene.launch(0, 7, (9.601, 12), "b", ("main", 9.5, 9.6))
    result = answer(scene.trace())
    assert result["idle_step"]["cause"].to_list() == ["memory_copy"]
    assert set(result["idle"]["call"]) == {"cudaMemcpyAsync_v3020"}


def test_a_copy_of_pinned_memory_is_a_launch_like_others() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (5.002, 9), "memcpy HtoD", ("main", 4.99, 5), kind="memory", api="cudaMemcpyAsync")
    scene.launch(0, 7, (12, 13), "b", ("main", 11.99, 11.999))
    assert {cause for cause, *_ in pieces(answer(scene.trace()))} == {"launch_late"}


# --- against the simulator ----------------------------------------------------------------------------------------


def idle_of(job: Job, folder: Path) -> pl.DataFrame:
    """Idle time of a simulated job in ms a step by rank and cause, after the first step."""
    folder.mkdir(exist_ok=True)
    context = context_of(load(write(simulate_job(job), folder), host_calls=True))
    steps = idle(context)["idle_step"].filter(pl.col("step_index") > 0)
    return steps.group_by("rank", "cause").agg(pl.col("idle_ns").sum() / MS / (job.steps - 1))


@pytest.mark.parametrize("kind", ["dp", "hsdp", "tp"])
def test_nothing_of_a_clean_job_is_allocated_shared_or_unexplained(kind: str, tmp_path: Path) -> None:
    found = idle_of(Job(kind=kind, ranks=4, group=1 if kind == "dp" else 2), tmp_path)
    assert not set(found["cause"]) & {"allocation", "other_process", "unexplained"}


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_freeing_memory_costs_what_the_gpu_idles_longer_for_it(phase: str, tmp_path: Path) -> None:
    """The idle time that is named for the call, against what the same job idles without it."""
    job = Job(ranks=2, planted=Planted("pause_all", 6 * MS, phase=phase, how="free"))
    with_it, without = idle_of(job, tmp_path / "a"), idle_of(job.without_cause(), tmp_path / "b")
    named = with_it.filter(pl.col("cause") == "allocation")
    assert sorted(named["rank"]) == [0, 1]
    for rank, cost in named.select("rank", "idle_ns").iter_rows():
        longer = with_it.filter(rank=rank)["idle_ns"].sum() - without.filter(rank=rank)["idle_ns"].sum()
        assert cost == pytest.approx(longer, abs=0.3)
    assert "allocation" not in set(without["cause"])


def test_a_preempted_rank_has_gaps_that_nothing_explains(tmp_path: Path) -> None:
    job = Job(ranks=2, planted=Planted("preemption", 2 * MS, rank=1, how="gap"))
    found = idle_of(job, tmp_path).filter(pl.col("cause") == "unexplained")
    assert found["rank"].to_list() == [1]


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
    assert result["idle"].schema == pl.Schema(IDLE.dtypes)
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
