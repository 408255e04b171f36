"""What-if: the replay against a slow oracle, drawn scenarios, bucket caps against a simulated DDP, real captures."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scene import MS, Scene, ns
from test_critical_path_random import Op, programs, simulate, trace_of

from nsysddp import samples
from nsysddp.cli import cli, main
from nsysddp.dependencies import replay
from nsysddp.dependencies.graph import build
from nsysddp.join.load import load
from nsysddp.model.errors import AnalysisError, CannotTell, UsageError
from nsysddp.model.markers import BucketMark, bucket_mark
from nsysddp.model.result import Result
from nsysddp.model.trace import Trace
from nsysddp.questions import context_of
from nsysddp.questions.buckets import buckets
from nsysddp.questions.critical_path import critical_path
from nsysddp.questions.link import fit_link
from nsysddp.questions.rebucket import captured_layout, layout_for, recorded_buckets
from nsysddp.questions.whatif import TABLES, WHATIF, Ask, Model, apart, whatif
from nsysddp.questions.whatif.even import with_usual_transfers
from nsysddp.questions.whatif.scenarios import standard
from nsysddp.questions.whatif.slowing import Kernels
from nsysddp.questions.whatif.wire import Wire

Unpacked = Callable[[str], Path]
MIB = 1 << 20


def named(trace: Trace, size: int | None = None) -> Trace:
    """A drawn trace whose collectives are all-reduces (of one size)."""
    changed = trace.collectives.with_columns(kind=pl.lit("all_reduce"), group_size=pl.lit(2, pl.Int64))
    if size is not None:
        changed = changed.with_columns(bytes=pl.lit(size, pl.Int64))
    return replace(trace, collectives=changed)


def step_of(result: Result, scenario: str) -> float | None:
    row = result["whatif"].filter(pl.col("scenario") == scenario)
    value = row["step_ns"][0]
    return None if value is None else value / MS


# --- the replay ------------------------------------------------------------------------------------------------------


def slow(program: replay.Program) -> np.ndarray:
    """Ends of all nodes by iterating the equations until nothing changes."""
    these, of = program.structure, program.weights
    size = program.duration.size
    start, end = np.full(size, -1e18), np.full(size, -1e18)
    for _ in range(2 * size + 5):
        before = end.copy()
        for node in range(size):
            waits = [
                end[other] + lag
                for one, other, lag in zip(these.waiting, these.awaited, of.wait_lag, strict=True)
                if one == node
            ]
            if these.ahead[node] >= 0:
                waits.append(end[these.ahead[node]] + of.ahead_lag[node])
            call = these.launcher[node]
            if call >= 0:
                waits.append((start if these.from_start[node] else end)[call] + of.launch_lag[node])
            start[node] = max(waits) + of.excess[node] if waits else of.origin[node]
        for node in range(size):
            if these.arrival[node] >= 0:
                met = these.member[these.meeting == these.arrival[node]]
                end[node] = start[met].max() + of.duration[node]
            else:
                end[node] = start[node] + of.duration[node]
            for one, other, lag in zip(these.holding, these.held_by, of.hold_lag, strict=True):
                if one == node:
                    end[node] = max(end[node], end[other] + lag)
        if np.array_equal(before, end):
            return end
    raise AssertionError("the oracle did not settle")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs=programs(), seed=st.integers(0, 1000))
def test_replay_is_the_solution_of_its_equations(programs: tuple[tuple[Op, ...], ...], seed: int) -> None:
    trace = trace_of(programs, simulate(programs))
    if trace.events.is_empty():
        return
    program = replay.recorded(build(trace))
    assert replay.run(program).end == pytest.approx(slow(program), abs=1e-3)
    # With other durations too, where another order of nodes results.
    rng = np.random.default_rng(seed)
    other = program.having(duration=program.duration * rng.uniform(0, 3, program.duration.size))
    assert replay.run(other).end == pytest.approx(slow(other), abs=1e-3)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs=programs(), seed=st.integers(0, 1000))
def test_less_work_never_ends_later(programs: tuple[tuple[Op, ...], ...], seed: int) -> None:
    trace = trace_of(programs, simulate(programs))
    if trace.events.is_empty():
        return
    program = replay.recorded(build(trace))
    less = np.random.default_rng(seed).uniform(0.2, 1, program.duration.size)
    quicker = replay.run(program.having(duration=program.duration * less))
    assert (quicker.end <= replay.run(program).end + 1e-3).all()


def test_a_circle_is_refused() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 2), "a", ("main", 0.1, 0.2))
    scene.launch(0, 7, (2, 3), "b", ("main", 0.3, 0.4))
    program = replay.recorded(build(scene.trace()))
    ahead = program.structure.ahead.copy()
    ahead[0] = 1
    circular = replace(program, structure=replace(program.structure, ahead=ahead))
    with pytest.raises(AnalysisError, match="circle"):
        replay.run(circular)


def starts(program: replay.Program, trace: Trace) -> dict[str, float]:
    """Start in ms of each event in the replay, by the names of events, which differ."""
    names = trace.names["text"].gather(trace.events["name"])
    return dict(zip(names, (replay.run(program).start[: names.len()] / MS).tolist(), strict=True))


def sent_faster(program: replay.Program, trace: Trace, factor: float) -> replay.Program:
    sent = np.zeros(program.duration.size, dtype=bool)
    sent[: program.events] = (trace.events["class"] == "communication").to_numpy()
    return program.having(duration=np.where(sent, program.duration / factor, program.duration))


@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("factor", [0.5, 1, 4, 100])
def test_no_collective_starts_before_its_gradients_exist(factor: float, around: bool) -> None:
    """As NCCL drives one stream: through its side stream each kernel waits for the one ahead, too.

    s7    g0 1-10   g1 10-20
    s17   b0 10-50  b1 50-80
    """
    scene = Scene()
    for number, (work, sent) in enumerate([((1, 10), (10, 50)), ((10, 20), (50, 80))]):
        at = 0.2 * number
        scene.launch(0, 7, work, f"g{number}", ("main", at, at + 0.02))
        scene.record(0, 7, at + 0.03, 10 * number + 1)
        scene.wait(0, 17, at + 0.04, 10 * number + 1)
        if around:
            scene.record(0, 17, at + 0.05, 10 * number + 2)
            scene.wait(0, 117, at + 0.06, 10 * number + 2)
        scene.record(0, 117, at + 0.07, 10 * number + 3)
        scene.wait(0, 17, at + 0.08, 10 * number + 3)
        call = ("main", at + 0.09, at + 0.1)
        scene.launch(0, 17, sent, f"b{number}", call, kind="communication")
        if not around:
            scene.record(0, 17, at + 0.11, 10 * number + 2)
            scene.wait(0, 117, at + 0.12, 10 * number + 2)
    trace = scene.trace()
    begun = starts(sent_faster(replay.recorded(build(trace)), trace, factor), trace)
    assert begun["b0"] == pytest.approx(10)
    assert begun["b1"] == pytest.approx(max(20, 10 + 40 / factor))


def test_what_did_not_bind_when_recorded_binds_where_the_link_is_slower() -> None:
    """
    s8    a 1-10
    s17   b 1-9        with a link of half the speed 1-17
    s7    c 10-12      waits for both
    """
    scene = Scene()
    scene.launch(0, 8, (1, 10), "a", ("main", 0, 0.1))
    scene.launch(0, 17, (1, 9), "b", ("main", 0.1, 0.2), kind="communication")
    for sync, stream in ((1, 8), (2, 17)):
        scene.record(0, stream, 0.3, sync)
        scene.wait(0, 7, 0.4, sync)
    scene.launch(0, 7, (10, 12), "c", ("main", 0.5, 0.6))
    trace = scene.trace()
    program = replay.recorded(build(trace))
    assert starts(program, trace)["c"] == pytest.approx(10)
    assert starts(sent_faster(program, trace, 0.5), trace)["c"] == pytest.approx(17)


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaDeviceSynchronize"])
def test_a_synchronising_call_that_had_not_to_wait_waits_where_the_work_is_longer(name: str) -> None:
    scene = Scene()
    scene.launch(0, 17, (1, 2), "a", ("main", 0, 0.1), kind="communication")
    scene.synchronise(0, (3, 3.1), name, stream=17 if "Stream" in name else None)
    scene.launch(0, 7, (4.1, 5), "b", ("main", 4, 4.1))
    trace = scene.trace()
    program = replay.recorded(build(trace))
    assert starts(program, trace)["b"] == pytest.approx(4.1)
    assert starts(sent_faster(program, trace, 0.1), trace)["b"] == pytest.approx(11 + 1, abs=0.05)


def test_a_replay_that_breaks_an_edge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 10), "a", ("main", 0, 0.1))
    scene.record(0, 7, 0.2, 1)
    scene.wait(0, 17, 0.3, 1)
    scene.launch(0, 17, (10, 11), "b", ("main", 0.4, 0.5))
    program = replay.recorded(build(scene.trace()))
    monkeypatch.setattr(
        replay, "solve", lambda these, _, **__: (np.zeros(these.ahead.size), np.full(these.ahead.size, 1e6))
    )
    with pytest.raises(AnalysisError, match="before what it waits for"):
        replay.run(program)


def test_kernels_beside_shorter_communication_run_alone_earlier() -> None:
    """Kernels of 1 ms take 1.5 beside communication: six of them, then four alone.

    s17   0-9    at three times the speed 0-3, and then two kernels are slow, eight are not
    """
    scene = Scene()
    scene.launch(0, 17, (0, 9), "sent", ("main", -0.2, -0.1), kind="communication")
    at = 0.0
    for number in range(10):
        length = 1.5 if number < 6 else 1.0
        scene.launch(0, 7, (at, at + length), "k", ("main", -0.1 + number * 1e-3, -0.099 + number * 1e-3))
        at += length
    trace = scene.trace()
    program = replay.recorded(build(trace))
    kernels = Kernels.of(trace)
    for factor, end in ((3, 11), (1, 13), (0.75, 14), (900, 10)):
        alone = program.having(duration=kernels.freed(program.duration, {0: 1 / 3}))
        schedule = kernels.settled(sent_faster(alone, trace, factor), {0: 1 / 3})
        assert schedule.end[: program.events].max() / MS == pytest.approx(end, abs=0.02), factor


# --- scenarios drawn by hand -----------------------------------------------------------------------------------------


def two_ranks(late_ms: float, steps: int = 4) -> Trace:
    """Steps of g (5 ms on rank 1 longer by ``late_ms``), an all-reduce of 2 ms behind it, and an update behind that."""
    scene = Scene()
    at = 0.0
    for number in range(steps):
        handles = []
        for rank in (0, 1):
            more = late_ms * rank
            scene.range(rank, f"step {number}", at, at + 0.9)
            scene.launch(rank, 7, (at + 1, at + 6 + more), "g", ("main", at + 0.1, at + 0.2))
            scene.record(rank, 7, at + 0.3, 10 * number + 1)
            scene.wait(rank, 17, at + 0.35, 10 * number + 1)
            done = at + 8 + late_ms
            handles.append(
                scene.launch(
                    rank,
                    17,
                    (at + 6 + more, done),
                    "nccl",
                    ("main", at + 0.4, at + 0.5),
                    kind="communication",
                )
            )
            scene.record(rank, 17, at + 0.6, 10 * number + 2)
            scene.wait(rank, 7, at + 0.65, 10 * number + 2)
            scene.launch(rank, 7, (done, done + 1), "update", ("main", at + 0.7, at + 0.8))
            scene.synchronise(rank, (at + 0.85, done + 1), "cudaDeviceSynchronize")
        scene.collective(*handles)
        at += 9 + late_ms
    return named(scene.trace())


def test_what_is_taken_away_is_what_the_step_loses() -> None:
    result = whatif(context_of(two_ranks(3.0)), Ask(faster=(2.0, 4.0)))
    assert step_of(result, "unchanged") == pytest.approx(12.0, abs=0.1)
    assert step_of(result, "no_straggler") == pytest.approx(9.0, abs=0.1)
    assert step_of(result, "no_communication") == pytest.approx(10.0, abs=0.1)
    assert step_of(result, "faster_2") == pytest.approx(11.0, abs=0.1)
    assert step_of(result, "faster_4") == pytest.approx(10.5, abs=0.1)
    assert step_of(result, "no_contention") is None  # there is none to be told
    replayed = result["whatif_replay"].filter("is_used")
    assert replayed.height == 3  # the first starts from rest
    assert replayed["error_ratio"].abs().max() < 0.01  # type: ignore[operator]


def test_the_host_is_scaled_to_the_measured_step() -> None:
    """A host-bound run: 5 launches of 1 ms a step; without the profiler each takes half."""
    scene = Scene()
    at = 0.0
    for number in range(4):
        scene.range(0, f"step {number}", at, at + 5)
        for _ in range(5):
            scene.launch(0, 7, (at + 1.01, at + 1.11), "k", ("main", at + 0.01, at + 1))
            at += 1
    result = whatif(context_of(scene.trace()), Ask(measured_step_ns=ns(2.5)))
    assert step_of(result, "unchanged") == pytest.approx(2.5, rel=0.01)
    assert any("scaled by 0.50" in one for one in result.assumptions)
    # Where no host is fast enough, the rest is error.
    floor = whatif(context_of(scene.trace()), Ask(measured_step_ns=ns(0.1)))
    assert floor["whatif"]["error_ratio"][0] > 0.5


def test_a_pause_behind_a_call_of_one_rank_alone_is_the_stragglers() -> None:
    """Rank 1 waits for its kernel, pauses for 3 ms, and only then launches the all-reduce."""
    scene = Scene()
    at = 0.0
    for number in range(4):
        handles = []
        for rank in (0, 1):
            scene.range(rank, f"step {number}", at, at + 11.9)
            scene.launch(rank, 7, (at + 1, at + 6), "g", ("main", at + 0.1, at + 0.2))
            if rank:
                scene.synchronise(rank, (at + 0.3, at + 6), "cudaStreamSynchronize", stream=7)
            call = ("main", at + 9, at + 9.1) if rank else ("main", at + 0.4, at + 0.5)
            scene.record(rank, 7, call[1] - 0.09, 10 * number + 1)
            scene.wait(rank, 17, call[1] - 0.08, 10 * number + 1)
            sent = (at + (9.1 if rank else 6), at + 11.1)
            handles.append(scene.launch(rank, 17, sent, "nccl", call, kind="communication"))
            scene.synchronise(rank, (at + 9.2, at + 11.1), "cudaDeviceSynchronize")
        scene.collective(*handles)
        at += 12
    result = whatif(context_of(named(scene.trace())))
    assert step_of(result, "unchanged") == pytest.approx(12.0, abs=0.1)
    assert step_of(result, "no_straggler") == pytest.approx(8.9, abs=0.2)


def test_a_step_that_the_host_bounds_says_so() -> None:
    """Communication is hidden under what the host takes to launch the next kernel."""
    captured, truth = ddp(SIZES, 10 * MIB, host_ms=1.0, kernel_ms=0.2, ms_per_mib=0.02)
    result = whatif(context_of(captured))
    row = result["whatif"].filter(pl.col("scenario") == "faster_2").row(0, named=True)
    assert abs(row["change_ratio"]) < 0.03
    none = result["whatif"].filter(pl.col("scenario") == "no_communication").row(0, named=True)
    told = none["reason"] or row["reason"]
    assert "the host bounds the step" in told
    assert f"of {truth:.1f}" in told.replace(f"{truth:.3f}", f"{truth:.1f}")


def link_of(*messages: tuple[int, float]) -> pl.DataFrame:
    """Matched all-reduces over two ranks: bytes and transfer in us."""
    return pl.DataFrame(
        [
            {
                "event": number,
                "collective_id": number,
                "kind": "all_reduce",
                "group_size": 2,
                "bytes": size,
                "ready_ns": 0,
                "transfer_start_ns": 0,
                "end_ns": round(time * 1000),
            }
            for number, (size, time) in enumerate(messages)
        ]
    )


def test_a_small_message_of_the_capture_knows_the_latency() -> None:
    timed = link_of(*[(8 * MIB, 120.0)] * 5, (4, 20.0))
    context: Any = SimpleNamespace(timed=timed)
    wire = Wire.of(context, timed.filter(pl.col("bytes") > 4))
    assert wire is not None
    assert wire.latency_ns == 0
    assert wire.line.has_latency
    for time in wire.times():
        assert time(4 * MIB) == pytest.approx(70_000, rel=0.06)
        assert time(8 * MIB) == pytest.approx(120_000, rel=0.06)


def test_times_beyond_the_largest_message_are_not_taken_for_known() -> None:
    timed = link_of((4, 20.0), *[(size * MIB, 20 + 10.0 * size) for size in (1, 8, 16) for _ in range(3)])
    context: Any = SimpleNamespace(timed=timed)
    wire = Wire.of(context, timed.filter(pl.col("bytes") > 4))
    assert wire is not None
    inside = [time(12 * MIB) for time in wire.times()]
    beyond = [time(160 * MIB) for time in wire.times()]
    assert max(inside) / min(inside) < 1.1
    assert min(beyond) < 0.8 * (20_000 + 10_000 * 160)
    assert wire.is_beyond(160 * MIB)
    assert not wire.is_beyond(16 * MIB)


def test_the_fit_does_not_hang_on_the_order_of_rows() -> None:
    timed = link_of(*[(MIB * (1 + number % 7), 10.1 + number / 3) for number in range(60)])
    fits = {fit_link(timed.sample(fraction=1, shuffle=True, seed=seed)) for seed in range(5)}
    assert len(fits) == 1


def test_binding_edges_take_no_memory_while_scenarios_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Model] = []

    def kept(model: Model, ask: Ask) -> list[dict[str, object]]:
        seen.append(model)
        return standard(model, ask)

    monkeypatch.setattr("nsysddp.questions.whatif.answer.standard", kept)
    context = context_of(two_ranks(3.0))
    whatif(context)
    graph = seen[0].graph
    assert not any(column.size for column in (graph.begin, graph.before, graph.edge, graph.ambiguous))
    assert "graph" not in vars(context)
    assert graph.lines.start.size


def test_transfers_that_are_all_usual_are_not_copied() -> None:
    model = Model.of(context_of(two_ranks(3.0)), Ask())
    duration = model.program.duration
    assert with_usual_transfers(model, duration) is duration


def test_without_host_calls_there_is_no_replay() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 2), "a", ("main", 0.1, 0.2))
    with pytest.raises(CannotTell, match="host"):
        whatif(context_of(scene.trace(calls=False)))


# --- bucket caps against a simulated DDP -----------------------------------------------------------------------------


def ddp(
    sizes: Sequence[int],
    cap_bytes: int,
    *,
    kernel_ms: float = 0.4,
    host_ms: float = 0.05,
    hook_ms: float = 0.1,
    latency_ms: float = 0.03,
    ms_per_mib: float = 0.1,
    steps: int = 4,
    late_ms: float = 0.0,
) -> tuple[Trace, float]:
    """A DDP run on two ranks, simulated by its own rules, and its steady step in ms.

    Each parameter has one kernel (rank 1's first is longer by ``late_ms``); when a bucket is complete the host spends
    ``hook_ms`` on it and launches its all-reduce half-way. The optimizer waits for the last one.
    """
    layout = layout_for(sizes, cap_bytes)
    last_of = {bucket[-1]: number for number, bucket in enumerate(layout)}
    scene = Scene()
    message: list[int] = []
    host = [0.0, 0.0]
    gpu = [0.0, 0.0]
    link = [0.0, 0.0]
    ends = []
    for step in range(steps):
        begun = list(host)
        events: list[list[tuple[float, float, float, float, int]]] = [[], []]
        for rank in (0, 1):
            for number in range(len(sizes)):
                call = (host[rank], host[rank] + host_ms)
                host[rank] = call[1]
                start = max(gpu[rank], call[1])
                gpu[rank] = start + kernel_ms + (late_ms if rank == 1 and number == 0 else 0.0)
                scene.launch(rank, 7, (start, gpu[rank]), "grad", ("main", *call))
                if number in last_of:
                    bucket = last_of[number]
                    size = sum(sizes[one] for one in layout[bucket])
                    begin, middle = host[rank], host[rank] + hook_ms / 2
                    mark = BucketMark(bucket, size, len(layout[bucket]), bucket == len(layout) - 1)
                    scene.range(rank, bucket_mark(mark), begin, begin + hook_ms)
                    sync = 1000 * step + 2 * bucket + 1
                    scene.record(rank, 7, begin + hook_ms / 8, sync)
                    scene.wait(rank, 17, begin + hook_ms / 4, sync)
                    events[rank].append((begin + hook_ms / 3, middle, gpu[rank], middle, size))
                    host[rank] = begin + hook_ms
        for number in range(len(layout)):
            starts = [max(link[rank], events[rank][number][2], events[rank][number][3]) for rank in (0, 1)]
            size = events[0][number][4]
            done = max(starts) + latency_ms + ms_per_mib * size / MIB
            handles = []
            for rank in (0, 1):
                call = (events[rank][number][0], events[rank][number][1])
                handles.append(
                    scene.launch(
                        rank, 17, (starts[rank], done), "nccl", ("main", *call), kind="communication"
                    )
                )
                link[rank] = done
            scene.collective(*handles)
            message.append(size)
        for rank in (0, 1):
            scene.range(rank, "backward", begun[rank], host[rank])
            scene.record(rank, 17, host[rank] + 0.01, 1000 * step + 999)
            scene.wait(rank, 7, host[rank] + 0.02, 1000 * step + 999)
            call = (host[rank] + 0.03, host[rank] + 0.05)
            start = max(gpu[rank], link[rank], call[1])
            gpu[rank] = start + 0.5
            scene.launch(rank, 7, (start, start + 0.3), "adam", ("main", call[0], call[0] + 0.01))
            scene.launch(rank, 7, (start + 0.3, gpu[rank]), "adam", ("main", call[0] + 0.01, call[1]))
            scene.range(rank, "optimizer", call[0], call[1])
            scene.synchronise(rank, (call[1], gpu[rank]), "cudaDeviceSynchronize")
            scene.range(rank, f"step {step}", begun[rank], gpu[rank])
            host[rank] = gpu[rank]
        ends.append(max(gpu))
    trace = named(scene.trace())
    by_id = dict(enumerate(message))
    sized = trace.collectives.with_columns(
        bytes=pl.col("collective_id").replace_strict(by_id, return_dtype=pl.Int64)
    )
    return replace(trace, collectives=sized), float(np.mean(np.diff(ends)))


SIZES = [*[3 * MIB, MIB, 2 * MIB, 4 * MIB] * 6, 5 * MIB]
UNEVEN = [8 * MIB, 4096, 4096, 2 * MIB, 65536, 6 * MIB] * 4


@pytest.mark.parametrize("ms_per_mib", [0.02, 0.3])
@pytest.mark.parametrize("sizes", [SIZES, UNEVEN])
@pytest.mark.parametrize("late_ms", [0.0, 1.5])
def test_caps_are_predicted_from_one_capture(sizes: list[int], ms_per_mib: float, late_ms: float) -> None:
    """From the capture at 10 MiB predict the others; the simulation of DDP itself is the truth."""
    captured, _ = ddp(sizes, 10 * MIB, ms_per_mib=ms_per_mib, late_ms=late_ms)
    caps = (1, 4, 10, 16, 64)
    result = whatif(context_of(captured), Ask(caps_mib=caps, parameter_bytes=tuple(sizes), standard=False))
    for cap in caps:
        _, truth = ddp(sizes, cap * MIB, ms_per_mib=ms_per_mib, late_ms=late_ms)
        assert step_of(result, f"cap_{cap}") == pytest.approx(truth, rel=0.02), cap
    assert result["whatif"].filter(pl.col("scenario") == "cap_10")["is_captured"][0]
    assert result["whatif"]["buckets"].drop_nulls().to_list() == [
        len(layout_for(sizes, cap * MIB)) for cap in caps
    ]


def test_without_sizes_a_bucket_is_spread_evenly() -> None:
    captured, _ = ddp(SIZES, 10 * MIB, ms_per_mib=0.3)
    context = context_of(captured)
    graph = build(captured)
    found = recorded_buckets(context, graph, buckets(context)["bucket"])
    assert len(found.sizes) == len(SIZES)
    assert sum(found.sizes) == sum(SIZES)
    assert not found.measured_sizes
    assert [sum(found.sizes[one] for one in bucket) for bucket in captured_layout(found)] == list(
        found.caps_of_layout
    )
    result = whatif(context, Ask(caps_mib=(4, 16, 64), standard=False))
    for cap in (4, 16, 64):
        _, truth = ddp(SIZES, cap * MIB, ms_per_mib=0.3)
        assert step_of(result, f"cap_{cap}") == pytest.approx(truth, rel=0.1)
    assert any("spread evenly" in one for one in result.assumptions)


def test_a_slow_link_has_a_winner_and_a_fast_one_has_none() -> None:
    slow_link = whatif(
        context_of(ddp(SIZES, 10 * MIB, ms_per_mib=0.3)[0]), Ask(caps_mib=(4, 64), standard=False)
    )
    assert "shortest step is predicted for a bucket cap of 4 MiB" in slow_link.findings[1].message
    fast = whatif(
        context_of(ddp(SIZES, 10 * MIB, ms_per_mib=0.001, latency_ms=0.001, hook_ms=0.001)[0]),
        Ask(caps_mib=(4, 16, 64), standard=False),
    )
    assert "cannot be told apart" in fast.findings[1].message
    assert "none is named the best" in fast.findings[1].message


def test_other_buckets_on_the_compute_stream_are_not_predicted() -> None:
    """Each would delay the kernels launched behind it, which the trace does not show."""
    captured, _ = ddp(SIZES, 10 * MIB)
    serial = replace(captured, events=captured.events.with_columns(stream=pl.lit(7, pl.Int32)))
    rows = whatif(context_of(serial), Ask(caps_mib=(4, 64)))["whatif"]
    caps = rows.filter(pl.col("scenario").str.starts_with("cap_"))
    assert caps["step_ns"].null_count() == caps.height == 2
    assert caps["reason"].str.contains("computes too").all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    context = context_of(ddp(SIZES, 10 * MIB)[0])
    with pytest.raises(UsageError, match="bytes"):
        whatif(context, Ask(caps_mib=(4,), parameter_bytes=(1, 2, 3)))


def test_optimizer_in_backward_fills_the_tail() -> None:
    """A part of the optimizer can run while the last bucket is sent."""
    captured, truth = ddp([4 * MIB] * 4, 8 * MIB, ms_per_mib=0.3)
    result = whatif(context_of(captured))
    assert step_of(result, "unchanged") == pytest.approx(truth, rel=0.01)
    # The first of its two kernels (0.3 of 0.5 ms) goes with the first bucket, and the tail hides it.
    assert step_of(result, "optimizer_in_backward") == pytest.approx(truth - 0.3, rel=0.01)


def test_what_is_not_apart_by_one_percent_is_no_winner() -> None:
    def rows(*caps: tuple[str, int, float]) -> pl.DataFrame:
        return WHATIF.frame(
            [{"scenario": name, "step_ns": step, "excess_ratio": over} for name, step, over in caps]
        )

    assert apart(rows(("cap_1", 100, 0.0), ("cap_4", 102, 0.02))) == (["cap_1"], ["cap_4"], [])
    assert apart(rows(("cap_1", 102, 0.009), ("cap_4", 101, 0.0))) == (["cap_4", "cap_1"], [], [])
    # Predicted to be longer, though some link that fits would make both alike: never beside the shortest as alike.
    assert apart(rows(("cap_1", 131, 0.0), ("cap_4", 100, 0.0))) == (["cap_4"], [], ["cap_1"])


# --- real captures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["cvd", "blobs_ddp", "hook", "tp", "delay_cap4", "delay_cap64", "nodelay_cap16", "graph_node"]
)
def test_self_replay_error_is_below_two_percent(unpacked: Unpacked, name: str) -> None:
    result = whatif(context_of(load(unpacked(f"h200/{name}"), host_calls=True, shapes=True)))
    assert result["whatif_replay"]["error_ratio"].abs().max() < 0.02  # type: ignore[operator]
    for table in TABLES:
        assert result[table.name].columns == table.names


def test_taking_away_a_late_rank_gives_back_its_spin(unpacked: Unpacked) -> None:
    """cvd: rank 1 spins for 4.04 ms a step."""
    result = whatif(context_of(load(unpacked("h200/cvd"), host_calls=True, shapes=True)))
    change = result["whatif"].filter(pl.col("scenario") == "no_straggler")["change_ns"][0]
    assert -4.4 < change / MS < -3.9


def test_replayed_steps_are_those_of_the_critical_path(unpacked: Unpacked) -> None:
    """One number for the same thing: recorded_ns of a step is its path's length."""
    trace = load(unpacked("h200/cvd"), host_calls=True, shapes=True)
    replayed = whatif(context_of(trace))["whatif_replay"].select("step", "recorded_ns")
    paths = critical_path(trace)["critical_path_step"].group_by("step").agg(pl.col("path_ns").max())
    both = replayed.join(paths, on="step", how="full", coalesce=True)
    assert both["recorded_ns"].to_list() == both["path_ns"].to_list()


def test_the_same_capture_gives_the_same_bytes() -> None:
    fixture = str(FIXTURES / "h200" / "gpt_ddp.sqlite.gz")
    ask = ["whatif", fixture, "--format", "json", "--bucket-cap", "4,64"]
    made = [CliRunner().invoke(cli, ask, catch_exceptions=False).output for _ in range(2)]
    assert made[0] == made[1]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("whatif") / "twelve.sqlite"
    with gzip.open(samples.path(samples.TWELVE_BUCKETS)) as packed, target.open("wb") as out:
        shutil.copyfileobj(packed, out)
    return target


@pytest.mark.parametrize("width", [80, 120])
def test_screen_fits(sample: Path, width: int) -> None:
    made = CliRunner().invoke(
        cli, ["whatif", str(sample)], env={"COLUMNS": str(width)}, catch_exceptions=False
    )
    assert made.exit_code == 0
    assert max(map(len, made.output.splitlines())) <= width
    for part in ("Replaying the run unchanged", "no straggler", "communication 2 x faster"):
        assert part in made.output


def test_json_holds_the_tables(sample: Path) -> None:
    made = CliRunner().invoke(cli, ["whatif", str(sample), "--format", "json"], catch_exceptions=False)
    assert set(json.loads(made.output)["tables"]) == {table.name for table in TABLES}


@pytest.mark.parametrize(
    "options",
    [
        ["--bucket-cap", "x"],
        ["--bucket-cap", "4,4"],
        ["--bucket-cap", "-1"],
        ["--faster", "0"],
        ["--steps", "0:1"],
        ["--from", "1"],
        ["--parameters", "absent.json"],
    ],
)
def test_bad_options_are_one_line(sample: Path, options: list[str]) -> None:
    made = CliRunner().invoke(cli, ["whatif", str(sample), *options])
    assert made.exit_code != 0
    assert isinstance(made.exception, UsageError)


@pytest.mark.parametrize("options", [["--bucket-cap", "4"], ["--bucket-order", "reverse"]])
def test_without_payloads_it_cannot_tell_which_is_no_wrong_usage(
    sample: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["whatif", str(sample), *options])
    assert ended.value.code == 6
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "--include-blobs=true" in said.err
