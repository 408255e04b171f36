"""Hand-made traces: one drawing, one right path and one rule that it needs; without the rule the path is another.

In the drawings ``[x 0-1)`` is a host call and ``x 1-11`` a GPU event, in ms; `>` is what the last event hangs on.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from scene import MS, Scene, shown

from nsysddp.dependencies import replay
from nsysddp.dependencies.graph import ALL_RULES, Graph, Rule, build, check
from nsysddp.dependencies.host import Blocking, blocking_kind
from nsysddp.model.errors import UsageError
from nsysddp.model.trace import Trace
from nsysddp.questions import analyze
from nsysddp.questions.critical_path import (
    KINDS,
    TABLES,
    communication_beside,
    critical_path,
    rank_paths,
)

Path = list[tuple[str, int | None, str | None, float, float]]


def path_of(trace: Trace, graph: Graph | None = None, rank: int | None = None) -> Path:
    """The path of the capture (that ends with the given rank's last event, where ranks are tied)."""
    pieces = critical_path(trace, "capture", graph=graph)["critical_path"]
    if rank is not None:
        pieces = pieces.filter(pl.col("path_rank") == rank)
    return shown(pieces)


def queue() -> tuple[Scene, Path]:
    """
    main  [a 0-1)[b 1-2)
    s7      a 1-11 > b 11-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.launch(0, 7, (11, 20), "b", ("main", 1, 2))
    return scene, [("compute", 0, "a", 1, 11), ("compute", 0, "b", 11, 20)]


def event() -> tuple[Scene, Path]:
    """
    main  [a 0-1)(record 1.1)(wait 1.2)[b 2-3)
    s7      a 1-11 ----record
    s9                      > b 11.5-20          0.5 ms until the event has told the other stream
    """
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.record(0, 7, 1.1, sync_id=1)
    scene.wait(0, 9, 1.2, sync_id=1)
    scene.launch(0, 9, (11.5, 20), "b", ("main", 2, 3))
    return scene, [("compute", 0, "a", 1, 11), ("gap", 0, "b", 11, 11.5), ("compute", 0, "b", 11.5, 20)]


def side_stream() -> tuple[Scene, Path]:
    """NCCL's side stream holds no event: it passes on what it waited for.

    main  [a 0-1)(r1 on s7)(w1 on s14)(r2 on s14)(w2 on s17)[c 2-3)
    s7      a 1-11 --r1
    s14              w1--r2
    s17                  w2 > c 11-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.record(0, 7, 1.1, sync_id=1)
    scene.wait(0, 14, 1.2, sync_id=1)
    scene.record(0, 14, 1.3, sync_id=2)
    scene.wait(0, 17, 1.4, sync_id=2)
    scene.launch(0, 17, (11, 20), "c", ("main", 2, 3))
    return scene, [("compute", 0, "a", 1, 11), ("compute", 0, "c", 11, 20)]


def launch() -> tuple[Scene, Path]:
    """The host is late.

    main  [a 0-1)              [b 8-10)
    s7      a 1-3                      > b 10.5-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (10.5, 20), "b", ("main", 8, 10), api="cuLaunchKernelEx")
    return scene, [
        ("host_gap", 0, "cuLaunchKernelEx", 1, 8),
        ("host", 0, "cuLaunchKernelEx", 8, 10),
        ("gap", 0, "b", 10, 10.5),
        ("compute", 0, "b", 10.5, 20),
    ]


def early_start() -> tuple[Scene, Path]:
    """The event runs before its launch call returns: what it needed is the call's start.

    main  [a 0-1)        [b 8 ------- 12)
    s7      a 1-3           > b 9-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (9, 20), "b", ("main", 8, 12))
    return scene, [
        ("host_gap", 0, "cudaLaunchKernel", 1, 8),
        ("host", 0, "cudaLaunchKernel", 8, 9),
        ("compute", 0, "b", 9, 20),
    ]


def host_order() -> tuple[Scene, Path]:
    """Backward is launched by another thread; the line of the rank goes on there.

    main      [a 0-1)[allocate 3-6)
    autograd                       hop [b 8-10)
    s7          a 1-3                        > b 10-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.call(0, 3, 6, "cudaMalloc")
    scene.launch(0, 7, (10, 20), "b", ("autograd", 8, 10))
    return scene, [
        ("host_gap", 0, "cudaMalloc", 1, 3),
        ("host", 0, "cudaMalloc", 3, 6),
        ("host_gap", 0, "cudaLaunchKernel", 6, 8),
        ("host", 0, "cudaLaunchKernel", 8, 10),
        ("compute", 0, "b", 10, 20),
    ]


def nested() -> tuple[Scene, Path]:
    """The driver call that carries the launch is part of the runtime call around it.

    main  [a 0-1)     [cudaLaunchKernel 6 [cuLaunchKernel 7-8) 10)
    s7      a 1-3                                                > b 10-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.launch(0, 7, (10, 20), "b", ("main", 6, 10), inner=(7, 8))
    return scene, [
        ("host_gap", 0, "cudaLaunchKernel", 1, 6),
        ("host", 0, "cudaLaunchKernel", 6, 10),
        ("compute", 0, "b", 10, 20),
    ]


def polling() -> tuple[Scene, Path]:
    """The watchdog's queries are not what the main thread waited for.

    main      [a 0-1)                 [b 8-10)
    watchdog           [query 4-7.9)
    s7          a 1-3                        > b 10-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.call(0, 4, 7.9, "cudaEventQuery", "watchdog")
    scene.launch(0, 7, (10, 20), "b", ("main", 8, 10))
    return scene, [
        ("host_gap", 0, "cudaLaunchKernel", 1, 8),
        ("host", 0, "cudaLaunchKernel", 8, 10),
        ("compute", 0, "b", 10, 20),
    ]


def sync_device() -> tuple[Scene, Path]:
    """A device synchronisation waits for all streams; it has no row of its own.

    main  [a 0-1)[b 1-2)[deviceSynchronize 3 ---------- 12)[c 12-13)
    s7      a 1-8
    s8           b 2-11 ------------------------------>
    s9                                                     > c 13-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 8), "a", ("main", 0, 1))
    scene.launch(0, 8, (2, 11), "b", ("main", 1, 2))
    scene.synchronise(0, (3, 12), "cudaDeviceSynchronize")
    scene.launch(0, 9, (13, 20), "c", ("main", 12, 13))
    return scene, [
        ("host", 0, "cudaLaunchKernel", 1, 2),
        ("compute", 0, "b", 2, 11),
        ("sync", 0, "cudaDeviceSynchronize", 11, 12),
        ("host", 0, "cudaLaunchKernel", 12, 13),
        ("compute", 0, "c", 13, 20),
    ]


def sync_stream() -> tuple[Scene, Path]:
    """A stream synchronisation waits for its stream only, though another ends while it runs.

    main  [a 0-1)[b 1-2)[streamSynchronize(s7) 3 -- 9)[c 9-10)
    s7      a 1-8 ------------------------------->
    s8           b 2-8.5
    s9                                                > c 10-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 8), "a", ("main", 0, 1))
    scene.launch(0, 8, (2, 8.5), "b", ("main", 1, 2))
    scene.synchronise(0, (3, 9), "cudaStreamSynchronize", stream=7)
    scene.launch(0, 9, (10, 20), "c", ("main", 9, 10))
    return scene, [
        ("compute", 0, "a", 1, 8),
        ("sync", 0, "cudaStreamSynchronize", 8, 9),
        ("host", 0, "cudaLaunchKernel", 9, 10),
        ("compute", 0, "c", 10, 20),
    ]


def sync_event() -> tuple[Scene, Path]:
    """The newest earlier record of the event counts: the id was used before, and is used again after.

    main  (rec e5 s8)[a 0-1)(rec e5 s7)[b 1-2)[eventSynchronize(e5) 3 -- 9)(rec e5 s7)[c 9-10)
    s7                 a 1-8 -------------------------------------->
    s7                         b 8-8.5 (enqueued after the record)
    s9                                                                              > c 10-20
    """
    scene = Scene()
    scene.record(0, 8, 0, sync_id=1, event_id=5)
    scene.launch(0, 7, (1, 8), "a", ("main", 0, 1))
    scene.record(0, 7, 1, sync_id=2, event_id=5)
    scene.launch(0, 7, (8, 8.5), "b", ("main", 1, 2))
    scene.synchronise(0, (3, 9), "cudaEventSynchronize", event_id=5)
    scene.record(0, 7, 9, sync_id=3, event_id=5)
    scene.launch(0, 9, (10, 20), "c", ("main", 9, 10))
    return scene, [
        ("compute", 0, "a", 1, 8),
        ("sync", 0, "cudaEventSynchronize", 8, 9),
        ("host", 0, "cudaLaunchKernel", 9, 10),
        ("compute", 0, "c", 10, 20),
    ]


def sync_copy() -> tuple[Scene, Path]:
    """A blocking copy: the call launches its event and waits for it.

    main  [a 0-1)[cudaMemcpy 2 ------------ 8)[c 9-10)
    s7      a 1-1.5    > copy 3-7
    s9                                         > c 10-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 1.5), "a", ("main", 0, 1))
    scene.launch(0, 7, (3, 7), "memcpy DtoH", ("main", 2, 8), kind="memory", api="cudaMemcpy")
    scene.launch(0, 9, (10, 20), "c", ("main", 9, 10))
    return scene, [
        ("host_gap", 0, "cudaMemcpy", 1, 2),
        ("host", 0, "cudaMemcpy", 2, 3),
        ("memory", 0, "memcpy DtoH", 3, 7),
        ("sync", 0, "cudaMemcpy", 7, 8),
        ("host_gap", 0, "cudaLaunchKernel", 8, 9),
        ("host", 0, "cudaLaunchKernel", 9, 10),
        ("compute", 0, "c", 10, 20),
    ]


def sync_item() -> tuple[Scene, Path]:
    """`.item()`: an asynchronous copy to pageable memory returns when it is done, behind the kernel a.

    main  [a 0-1)[cudaMemcpyAsync 2 ------------- 8)[streamSynchronize 8-8.2)    python    [c 9-10)
    s7      a 1-6 > copy 6-7                                                                  > c 10-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 6), "a", ("main", 0, 1))
    scene.launch(0, 7, (6, 7), "memcpy DtoH", ("main", 2, 8), kind="memory", api="cudaMemcpyAsync")
    scene.synchronise(0, (8, 8.2), "cudaStreamSynchronize", stream=7)
    scene.launch(0, 7, (10, 20), "c", ("main", 9, 10))
    return scene, [
        ("compute", 0, "a", 1, 6),
        ("memory", 0, "memcpy DtoH", 6, 7),
        ("sync", 0, "cudaMemcpyAsync", 7, 8),
        ("host", 0, "cudaStreamSynchronize", 8, 8.2),
        ("host_gap", 0, "cudaLaunchKernel", 8.2, 9),
        ("host", 0, "cudaLaunchKernel", 9, 10),
        ("compute", 0, "c", 10, 20),
    ]


def arrival() -> tuple[Scene, Path]:
    """Rank 1 arrives last: the path of rank 0's end leads through rank 1; rank 0's 9 ms of waiting are not on it.

    rank 0 main  [a 0-1)[nccl 1-2)            [e 2-3)
           s7      a 1-6
           s17      nccl 2 ......wait...... 11 == 14
           s7                                      > e 14-20      (waits for nccl)
    rank 1 main  [b 0-1)[nccl 1-2)
           s7      b 1-11
           s17                              > nccl 11-14          (behind b)
    """
    scene = Scene()
    scene.launch(0, 7, (1, 6), "a", ("main", 0, 1))
    early = scene.launch(0, 17, (2, 14), "nccl", ("main", 1, 2), kind="communication")
    scene.record(0, 17, 2, sync_id=1)
    scene.wait(0, 7, 2, sync_id=1)
    scene.launch(0, 7, (14, 20), "e", ("main", 2, 3))
    scene.launch(1, 7, (1, 11), "b", ("main", 0, 1))
    scene.record(1, 7, 1, sync_id=1)
    scene.wait(1, 17, 1, sync_id=1)
    late = scene.launch(1, 17, (11, 14), "nccl", ("main", 1, 2), kind="communication")
    scene.collective(early, late)
    return scene, [
        ("compute", 1, "b", 1, 11),
        ("transfer", 0, "nccl", 11, 14),
        ("compute", 0, "e", 14, 20),
    ]


def graph_nodes() -> tuple[Scene, Path]:
    """Nodes of a CUDA graph: nothing says that y waited for x, and the stream of the rows does not either.

    main  [a 0-1)[graphLaunch 1-2)
    s7      a 1-4 > {x 4-9   y 10-20}
    """
    scene = Scene()
    scene.launch(0, 7, (1, 4), "a", ("main", 0, 1))
    x = scene.launch(0, 7, (4, 9), "x", ("main", 1, 2), api="cudaGraphLaunch")
    scene.launch(0, 7, (10, 20), "y", None, like=x)
    return scene, [
        ("compute", 0, "a", 1, 4),
        ("unknown", 0, "y", 4, 10),
        ("compute", 0, "y", 10, 20),
    ]


CASES: dict[Rule, tuple[Callable[[], tuple[Scene, Path]], ...]] = {
    Rule.QUEUE: (queue,),
    Rule.EVENT: (event,),
    Rule.PASS_THROUGH: (side_stream,),
    Rule.GRAPH_NODES: (graph_nodes,),
    Rule.LAUNCH: (launch,),
    Rule.EARLY_START: (early_start,),
    Rule.HOST_ORDER: (host_order,),
    Rule.NESTED_CALLS: (nested,),
    Rule.POLLING_THREADS: (polling,),
    Rule.SYNC_DEVICE: (sync_device,),
    Rule.SYNC_STREAM: (sync_stream,),
    Rule.SYNC_EVENT: (sync_event,),
    Rule.SYNC_COPY: (sync_copy, sync_item),
    Rule.ARRIVAL: (arrival,),
}
ALL_CASES = [(rule, case) for rule, cases in CASES.items() for case in cases]
IDS = [f"{rule.name}-{case.__name__}" for rule, case in ALL_CASES]


@pytest.mark.parametrize(("rule", "case"), ALL_CASES, ids=IDS)
def test_right_path(rule: Rule, case: Callable[[], tuple[Scene, Path]]) -> None:
    scene, expected = case()
    trace = scene.trace()
    graph = build(trace)
    check(graph)
    assert path_of(trace, graph) == expected


@pytest.mark.parametrize(("rule", "case"), ALL_CASES, ids=IDS)
def test_without_its_rule_the_path_is_another(rule: Rule, case: Callable[[], tuple[Scene, Path]]) -> None:
    scene, expected = case()
    trace = scene.trace()
    assert path_of(trace, build(trace, rules=ALL_RULES - {rule})) != expected


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == ALL_RULES


# --- what the rules leave open ----------------------------------------------------------------------------------


def test_processes_do_not_share_queues_or_sync_ids() -> None:
    """Both ranks use context 1, streams 7 and 9, sync id 1 and one correlation; they are different queues.

    rank 0  s7 a 1-11 --record--> s9 b 11-20            rank 1  s7 c 1-5 --record--> s9 d 5-6
    """
    scene = Scene()
    for rank, first, second in ((0, "a", "b"), (1, "c", "d")):
        end = 11 if rank == 0 else 5
        scene.launch(rank, 7, (1, end), first, ("main", 0, 1))
        scene.record(rank, 7, 1.1, sync_id=1)
        scene.wait(rank, 9, 1.2, sync_id=1)
        scene.launch(rank, 9, (end, 20 if rank == 0 else 6), second, ("main", 2, 3))
    for rows in (scene.calls, scene.records, scene.syncs, scene.events):
        for row in rows:
            row["correlation"] = row["correlation"] % 4
    trace = scene.trace()
    assert path_of(trace) == [("compute", 0, "a", 1, 11), ("compute", 0, "b", 11, 20)]
    assert shown(rank_paths(trace, "capture")["critical_path"])[2:] == [
        ("compute", 1, "c", 1, 5),
        ("compute", 1, "d", 5, 6),
    ]


def test_sync_that_did_not_wait_is_host_time() -> None:
    """What the stream held had ended before the call began.

    main  [a 0-1)   [streamSynchronize 5-9)[b 9-10)
    s7      a 1-3                                  > b 10-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 3), "a", ("main", 0, 1))
    scene.synchronise(0, (5, 9), "cudaStreamSynchronize", stream=7)
    scene.launch(0, 9, (10, 20), "b", ("main", 9, 10))
    assert ("host", 0, "cudaStreamSynchronize", 5, 9) in path_of(scene.trace())


@pytest.mark.parametrize(("early_us", "binds"), [(0, True), (0.9, True), (5, True), (19, True), (21, False)])
def test_clocks_some_us_apart_do_not_hide_a_long_synchronisation(early_us: float, binds: bool) -> None:
    """GPU and host clocks differ: calls of a real report return 5 us before the end of what they waited for."""
    scene = Scene()
    scene.launch(0, 7, (1, 9), "a", ("main", 0, 1))
    scene.synchronise(0, (2, 9 - early_us / 1000), "cudaStreamSynchronize", stream=7)
    scene.launch(0, 9, (11, 20), "b", ("main", 10, 11))
    trace = scene.trace()
    graph = build(trace)
    check(graph)
    assert (("compute", 0, "a", 1, 9 - early_us / 1000) in path_of(trace, graph)) == binds
    assert graph.counts["early_returns"] == (binds and early_us > 0)


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaFree"])
def test_a_call_that_returns_early_is_no_host_stall(name: str) -> None:
    """
    main      [a][-- synchronise 1-19.995 --) [b 20.1-20.2)
    s7           a 0.1-20                       b 20.3-25
    """
    scene = Scene()
    scene.launch(0, 7, (0.1, 20), "a", ("main", 0, 0.1))
    scene.synchronise(0, (1, 19.995), name, stream=7 if "Stream" in name else None)
    scene.launch(0, 7, (20.3, 25), "b", ("main", 20.1, 20.2))
    trace = scene.trace()
    kinds = critical_path(trace, "capture")["critical_path_kind"]
    taken = {kind: duration / MS for kind, duration in kinds.select("kind", "duration_ns").iter_rows()}
    assert taken["compute"] == pytest.approx(19.895 + 4.7)
    assert taken.get("host", 0) + taken.get("sync", 0) + taken["host_gap"] < 0.3


def test_a_call_that_returned_before_a_short_copy_began_waited_for_the_work_ahead() -> None:
    """
    main   [a][copy][------ synchronise 1-19.997 ------)[b 20.1-20.2)
    s7        a 0.1-19.999                     copy 20.000-20.002       b 20.3-25
    """
    scene = Scene()
    scene.launch(0, 7, (0.1, 19.999), "a", ("main", 0, 0.1))
    by = ("main", 0.2, 0.3)
    scene.launch(0, 7, (20, 20.002), "[CUDA memcpy DtoH]", by, kind="memory", api="cudaMemcpyAsync")
    scene.synchronise(0, (1, 19.997), "cudaStreamSynchronize", stream=7)
    scene.launch(0, 7, (20.3, 25), "b", ("main", 20.1, 20.2))
    trace = scene.trace()
    graph = build(trace)
    check(graph)
    path = path_of(trace, graph)
    assert ("compute", 0, "a", 0.1, 19.997) in path
    assert not any(kind in ("host", "sync") and end - start > 0.2 for kind, _, _, start, end in path)
    longer = replay.recorded(graph)
    assert longer.duration[graph.events :].max() <= 0.1 * MS  # the wait is no time of the host


def test_an_event_that_starts_before_its_launch_call_still_hangs_on_it() -> None:
    """
    main   [a 0-0.1)                 [b 10.003-10.010)
    s7       a 0.1-1                 b 10-12
    """
    scene = Scene()
    scene.launch(0, 7, (0.1, 1), "a", ("main", 0, 0.1))
    scene.launch(0, 7, (10, 12), "b", ("main", 10.003, 10.010))
    trace = scene.trace()
    graph = build(trace)
    check(graph)
    assert ("host_gap", 0, "cudaLaunchKernel", 0.1, 10) in path_of(trace, graph)
    assert graph.counts["clamped_launches"] == 1
    assert graph.counts["negative_launches"] == 0


def test_an_asynchronous_copy_that_returned_before_its_end_did_not_block() -> None:
    """Its call takes 5 us and returns 10 us before the copy ends: pinned memory, whatever the clocks."""
    scene = Scene()
    at, by = (1.002, 1.015), ("main", 1, 1.005)
    scene.launch(0, 7, at, "[CUDA memcpy DtoH]", by, kind="memory", api="cudaMemcpyAsync")
    assert build(scene.trace()).lines.awaited[:].tolist() == [-1]


def test_what_ended_after_the_call_returned_did_not_hold_it() -> None:
    """cudaMemcpy between devices does not block: its event ends after it returned."""
    scene = Scene()
    scene.launch(0, 7, (3, 30), "memcpy DtoD", ("main", 2, 4), kind="memory", api="cudaMemcpy")
    scene.launch(0, 9, (10, 40), "b", ("main", 9, 10))
    path = path_of(scene.trace())
    assert path[-1] == ("compute", 0, "b", 10, 40)
    assert not any(kind in ("memory", "sync") for kind, *_ in path)


def test_a_wait_binds_later_events_of_its_queue_only_through_the_next() -> None:
    """A record made behind an event that waited need not look through that wait again; the later end counts.

    s7   a 1-11 --r1-->            s9   w1 > b 11-12 --r2-->        s10  w2 > c 12-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.record(0, 7, 1.1, sync_id=1)
    scene.wait(0, 9, 1.2, sync_id=1)
    scene.launch(0, 9, (11, 12), "b", ("main", 1.3, 1.4))
    scene.record(0, 9, 1.5, sync_id=2)
    scene.wait(0, 10, 1.6, sync_id=2)
    scene.launch(0, 10, (12, 20), "c", ("main", 1.7, 1.8))
    assert [name for _, _, name, *_ in path_of(scene.trace())] == ["a", "b", "c"]


def test_a_record_sees_waits_since_the_last_event_of_its_queue() -> None:
    """The queue ran b early and then waited for a: a record stands for the later of both.

    s7   a 1-11 --r1-->        s9   b 1.3-2, w1 --r2-->        s10  w2 > c 11-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.launch(0, 9, (1.3, 2), "b", ("main", 1, 1.1))
    scene.record(0, 7, 1.2, sync_id=1)
    scene.wait(0, 9, 1.2, sync_id=1)
    scene.record(0, 9, 1.3, sync_id=2)
    scene.wait(0, 10, 1.4, sync_id=2)
    scene.launch(0, 10, (11, 20), "c", ("main", 1.7, 1.8))
    assert path_of(scene.trace()) == [("compute", 0, "a", 1, 11), ("compute", 0, "c", 11, 20)]


def test_waits_are_counted_as_unresolved_empty_or_late() -> None:
    scene = Scene()
    scene.record(0, 9, 0, sync_id=1)  # stands for nothing
    scene.wait(0, 7, 0, sync_id=1)
    scene.wait(0, 7, 0, sync_id=99)  # recorded before the capture
    scene.wait(0, 7, 0, sync_id=None)
    scene.launch(0, 7, (1, 5), "a", ("main", 0, 1))
    scene.record(0, 7, 1, sync_id=2)
    scene.wait(0, 8, 1, sync_id=2)
    scene.launch(0, 8, (4, 9), "b", ("main", 2, 3))  # began before a ended: the trace contradicts itself
    scene.synchronise(0, (3, 4), "cudaEventSynchronize", event_id=77)
    scene.launch(0, 6, (10, 11), "c", None)
    counts = build(scene.trace()).counts
    assert {name: count for name, count in counts.items() if count} == {
        "waits": 4,
        "unresolved_waits": 2,
        "empty_waits": 1,
        "late_waits": 1,
        "events": 3,
        "unlaunched_events": 1,
        "blocking_calls": 1,
        "unresolved_calls": 1,
    }


def test_no_negative_edges() -> None:
    """An event that began before its launch call (clocks, or a wrong link) hangs on its queue, and is counted."""
    scene = Scene()
    scene.launch(0, 7, (1, 5), "a", ("main", 0, 1))
    scene.launch(0, 7, (6, 9), "b", ("main", 7, 8))
    graph = build(scene.trace())
    assert graph.counts["negative_launches"] == 1
    assert path_of(scene.trace(), graph) == [
        ("compute", 0, "a", 1, 5),
        ("gap", 0, "b", 5, 6),
        ("compute", 0, "b", 6, 9),
    ]


def test_what_an_event_without_a_launch_waited_for_is_unknown() -> None:
    """Its queue was free since 5; nothing says why it began at 12. A start's latency is nothing to wonder about."""
    scene = Scene()
    scene.launch(0, 7, (1, 5), "a", ("main", 0, 1))
    scene.launch(0, 7, (12, 13), "b", None)
    scene.launch(0, 7, (13.009, 14), "c", None)
    assert path_of(scene.trace())[1:] == [
        ("unknown", 0, "b", 5, 12),
        ("compute", 0, "b", 12, 13),
        ("gap", 0, "c", 13, 13.009),
        ("compute", 0, "c", 13.009, 14),
    ]


def test_ambiguous_launch_is_counted() -> None:
    """b began inside its own launch call, right after a ended inside it too: either may have held it."""
    scene = Scene()
    scene.launch(0, 7, (1, 9), "a", ("main", 0, 1))
    scene.launch(0, 7, (9, 20), "b", ("main", 8, 12))
    trace = scene.trace()
    graph = build(trace)
    assert (graph.counts["early_events"], graph.counts["ambiguous_launches"]) == (1, 1)
    step = critical_path(trace, "capture", graph=graph)["critical_path_step"]
    assert step["ambiguous_launches"].to_list() == [1]
    assert [name for _, _, name, *_ in path_of(trace, graph)] == ["a", "b"]


def test_overlapping_kernels_of_one_stream() -> None:
    """Programmatic dependent launch: b begins while a still runs; a counts up to there.

    s7   a 1-11
           b 9-20
    """
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.launch(0, 7, (9, 20), "b", ("main", 1, 2))
    assert path_of(scene.trace()) == [("compute", 0, "a", 1, 9), ("compute", 0, "b", 9, 20)]
    late = Scene()  # launched 2 us before it began: that was it
    late.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    late.launch(0, 7, (9, 20), "b", ("main", 8, 8.998))
    assert path_of(late.trace())[1:] == [
        ("host", 0, "cudaLaunchKernel", 8, 8.998),
        ("gap", 0, "b", 8.998, 9),
        ("compute", 0, "b", 9, 20),
    ]


def test_a_collective_that_still_waits_does_not_hold_an_overlapping_event() -> None:
    """s7  nccl 1 ..wait.. 11-14, b 5-20 beside it: b began before the peers came, so it did not need them."""
    scene = Scene()
    early = scene.launch(0, 7, (1, 14), "nccl", ("main", 0, 1), kind="communication")
    scene.launch(0, 7, (5, 20), "b", ("main", 3, 5))
    late = scene.launch(1, 7, (11, 14), "nccl", ("main", 10, 11), kind="communication")
    scene.collective(early, late)
    trace = scene.trace()
    graph = build(trace)
    check(graph)
    assert path_of(trace, graph)[-2:] == [("host", 0, "cudaLaunchKernel", 3, 5), ("compute", 0, "b", 5, 20)]


def test_the_longer_of_overlapping_kernels_holds_the_next() -> None:
    """s7   a 1-11, b 9-10 inside it, c 11-20: c waited for a, not for its neighbour b."""
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.launch(0, 7, (9, 10), "b", ("main", 1, 2))
    scene.launch(0, 7, (11, 20), "c", ("main", 2, 3))
    assert path_of(scene.trace()) == [("compute", 0, "a", 1, 11), ("compute", 0, "c", 11, 20)]


def test_queued_behind_other_work_of_the_device() -> None:
    """b was ready at 3 but the device ran a on another stream until 11; with an idle device it is a gap."""
    scene = Scene()
    scene.launch(0, 7, (1, 11), "a", ("main", 0, 1))
    scene.launch(0, 8, (11, 20), "b", ("main", 2, 3))
    assert path_of(scene.trace())[-2:] == [("queued", 0, "b", 3, 11), ("compute", 0, "b", 11, 20)]
    scene.events[0]["end_ns"] = 8 * MS
    assert path_of(scene.trace())[-2:] == [("gap", 0, "b", 3, 11), ("compute", 0, "b", 11, 20)]


def test_before_a_ranks_first_call_is_nobodys_fault() -> None:
    """Rank 1's first call in the capture is at 5; what it did from 1 to 5 was not recorded."""
    scene = Scene()
    first = scene.launch(0, 7, (1, 14), "nccl", ("main", 0, 1), kind="communication")
    last = scene.launch(1, 7, (6, 14), "nccl", ("main", 5, 6), kind="communication")
    scene.collective(first, last)
    trace = scene.trace()
    assert path_of(trace, rank=0) == [
        ("unknown", None, None, 1, 5),
        ("host", 1, "cudaLaunchKernel", 5, 6),
        ("transfer", 0, "nccl", 6, 14),
    ]


def test_tied_ranks_get_a_path_each_and_none_is_named() -> None:
    scene = Scene()
    ends = {0: 14.0, 1: 14.03, 2: 13.9}
    kernels = [
        scene.launch(r, 7, (r + 1, end), "nccl", ("main", 0, 1), kind="communication")
        for r, end in ends.items()
    ]
    scene.collective(*kernels)
    trace = scene.trace()
    result = critical_path(trace, "capture")
    steps = result["critical_path_step"]
    assert steps["path_rank"].to_list() == [0, 1]
    assert steps["tied"].to_list() == [True, True]
    assert steps["window_end_ns"].to_list() == [14_000_000, 14_030_000]
    assert [finding.rank for finding in result.findings if finding.code == "critical_path"] == [None]
    assert "none is named as last" in result.findings[0].message
    assert [w.count for w in result.warnings if w.code == "critical_path_tied"] == [1]


def test_collective_that_ended_before_the_last_arrival() -> None:
    """A broadcast's root need not wait for its receivers: no jump, and it is counted."""
    scene = Scene()
    root = scene.launch(0, 7, (1, 5), "bcast", ("main", 0, 1), kind="communication")
    scene.launch(0, 7, (5, 30), "a", ("main", 1, 2))
    late = scene.launch(1, 7, (8, 9), "bcast", ("main", 7, 8), kind="communication")
    scene.collective(root, late)
    trace = scene.trace()
    graph = build(trace)
    assert graph.counts["ended_before_arrival"] == 1
    assert path_of(trace, graph) == [
        ("unmatched_communication", 0, "bcast", 1, 5),
        ("compute", 0, "a", 5, 30),
    ]


def test_send_and_receive_wait_for_their_peers() -> None:
    """Rank 0 receives from 1 and 2: ready when the later of both has begun."""
    scene = Scene()
    receive = scene.launch(0, 7, (1, 20), "recv", ("main", 0, 1), kind="communication")
    sends = [
        scene.launch(r, 7, (at, 19), "send", ("main", at - 2, at), kind="communication")
        for r, at in ((1, 6), (2, 11))
    ]
    scene.pair(receive, *sends)
    assert path_of(scene.trace()) == [
        ("unknown", None, None, 1, 9),
        ("host", 2, "cudaLaunchKernel", 9, 11),
        ("transfer", 0, "recv", 11, 20),
    ]


def test_no_jump_between_clocks_that_do_not_agree() -> None:
    scene, _ = arrival()
    scene.residuals = {0: 200_000, 1: 200_000}
    trace = scene.trace()
    assert build(trace).counts["unmatched_communication"] == 2
    assert {rank for _, rank, *_ in path_of(trace)} == {0}


def test_unmatched_communication_is_named_so() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 5), "nccl", ("main", 0, 1), kind="communication")
    trace = scene.trace()
    steps = critical_path(trace, "capture")["critical_path_step"]
    assert path_of(trace) == [("unmatched_communication", 0, "nccl", 1, 5)]
    assert steps["unmatched_communication"].to_list() == [1]
    assert steps["critical_communication_ns"].to_list() == [4 * MS]


def test_rank_path_names_the_rank_that_it_waited_for() -> None:
    scene, _ = arrival()
    trace = scene.trace()
    result = rank_paths(trace, "capture")
    mine = result["critical_path"].filter(pl.col("path_rank") == 0)
    assert shown(mine) == [
        ("host", 0, "cudaLaunchKernel", 1, 2),
        ("wait", 0, "nccl", 2, 11),
        ("transfer", 0, "nccl", 11, 14),
        ("compute", 0, "e", 14, 20),
    ]
    assert mine["waits_for"].to_list() == [None, 1, None, None]
    causes = result["critical_path_cause"].filter(pl.col("path_rank") == 0, pl.col("kind") == "wait")
    assert causes.select("rank", "waits_for", "duration_ns").rows() == [(0, 1, 9 * MS)]


def test_hops_and_rank_changes_are_counted() -> None:
    scene, _ = host_order()
    trace = scene.trace()
    steps = critical_path(trace, "capture")["critical_path_step"]
    assert steps["thread_hops"].to_list() == [1]
    scene, _ = arrival()
    trace = scene.trace()
    steps = critical_path(trace, "capture")["critical_path_step"]
    assert steps["rank_changes"].to_list() == [1]


def test_lower_grades_still_answer_and_say_so() -> None:
    scene, full = event()
    graded = {}
    for name, trace in {
        "full": scene.trace(),
        "no_events": scene.trace(records=False),
        "gpu_only": scene.trace(calls=False, records=False),
    }.items():
        result = critical_path(trace, "capture")
        assert result["critical_path_step"]["grade"].to_list() == [name]
        assert any("lower grade" in warning.message for warning in result.warnings) == (name != "full")
        graded[name] = shown(result["critical_path"])
    assert graded["full"] == full
    assert graded["no_events"][-2:] == [("gap", 0, "b", 3, 11.5), ("compute", 0, "b", 11.5, 20)]
    assert graded["gpu_only"] == [("unknown", None, None, 1, 11.5), ("compute", 0, "b", 11.5, 20)]


def test_steps_tile_the_run_and_name_their_pieces() -> None:
    """Two steps; the second's window begins where the first's last event ended, over all ranks.

    rank 0  s7  a0 1-4                b0 10-14
    rank 1  s7  a1 1-6                b1 8-9 (its step 1 is over before)
    """
    scene = Scene()
    scene.launch(0, 7, (1, 4), "a0", ("main", 0, 1))
    scene.launch(0, 7, (10, 14), "b0", ("main", 7, 10))
    scene.launch(1, 7, (1, 6), "a1", ("main", 0, 1))
    scene.launch(1, 7, (8, 9), "b1", ("main", 7, 8))
    for rank in (0, 1):
        scene.range(rank, "step 3", 0, 2)
        scene.range(rank, "forward", 0, 2)
        scene.range(rank, "step 4", 6, 10)
        scene.range(rank, "backward", 6, 9)
    trace = scene.trace()
    result = critical_path(trace)
    assert result["critical_path_step"].select(
        "step", "step_index", "path_rank", "window_start_ns", "window_end_ns", "tied"
    ).rows() == [("step 3", 0, 1, MS, 6 * MS, False), ("step 4", 1, 0, 6 * MS, 14 * MS, False)]
    assert shown(result["critical_path"]) == [
        ("compute", 1, "a1", 1, 6),
        ("host_gap", 0, "cudaLaunchKernel", 6, 7),
        ("host", 0, "cudaLaunchKernel", 7, 10),
        ("compute", 0, "b0", 10, 14),
    ]
    pieces = result["critical_path"]
    assert pieces["phase"].to_list() == ["forward", "backward", "backward", "backward"]
    assert pieces["launched_step"].to_list() == [0, 1, 1, 1]
    assert pieces["thread"].to_list() == [None, 100, 100, None]
    assert pieces["stream"].to_list() == [7, None, None, 7]
    own = rank_paths(trace)["critical_path_step"]
    assert own.select("step", "path_rank", "window_start_ns", "window_end_ns").rows() == [
        ("step 3", 0, MS, 4 * MS),
        ("step 3", 1, MS, 6 * MS),
        ("step 4", 0, 4 * MS, 14 * MS),
        ("step 4", 1, 6 * MS, 9 * MS),
    ]
    assert [f.rank for f in result.findings] == [None, 1, 0, 0, 0]
    assert result.findings[0].message == (
        "6.500 ms of critical path per step: compute 69.2%, host 23.1%, host between calls 7.7%"
    )
    assert [f.value for f in result.findings] == [6.5 * MS, 2.5 * MS, 2 * MS, 1.5 * MS, 0.5 * MS]
    late = critical_path(trace, first_step=1)["critical_path_step"]
    assert late.select("step", "window_start_ns").rows() == [("step 4", 6 * MS)]
    with pytest.raises(UsageError, match="no step is left of 2"):
        critical_path(trace, first_step=2)


def test_leading_long_steps_are_warm_up() -> None:
    scene = Scene()
    end = 1.0
    for step, length in enumerate((20, 5, 4, 6)):
        scene.launch(0, 7, (end, end + length), "a", ("main", step / 10, step / 10 + 0.1))
        scene.range(0, f"step {step}", step / 10, step / 10 + 0.1)
        end += length
    result = critical_path(scene.trace())
    assert result["critical_path_step"]["is_warmup"].to_list() == [True, False, False, False]
    assert result.findings[0].value == 5 * MS


def test_causes_of_tied_paths_are_what_they_share() -> None:
    """Both tied paths contain rank 1's b (10 ms); each has its own rank's transfer, which is no shared cause."""
    scene = Scene()
    early = scene.launch(0, 17, (2, 14), "nccl", ("main", 1, 2), kind="communication")
    scene.launch(1, 7, (1, 11), "b", ("main", 0, 1))
    late = scene.launch(1, 7, (11, 14), "nccl", ("main", 1, 2), kind="communication")
    scene.collective(early, late)
    result = critical_path(scene.trace())
    assert result["critical_path_step"]["tied"].to_list() == [True, True]
    causes = [(f.message.split(":")[0], f.value) for f in result.findings[1:]]
    assert causes == [("compute b on rank 1", 10 * MS)]
    assert "compute 76.9%, transfer 23.1%" in result.findings[0].message


def test_critical_exposed_and_tail_are_three_numbers() -> None:
    """Rank 0 waits 9 ms and transfers 3 with nothing beside; on the path are the 3 only."""
    scene, _ = arrival()
    for rank in (0, 1):
        scene.range(rank, "step 0", 0, 5)
        scene.range(rank, "backward", 0, 2)
    trace = scene.trace()
    paths = critical_path(trace)
    beside = communication_beside(paths, analyze(trace)["overlap"])
    assert beside.drop("step", "step_index", "path_rank").rows() == [
        (0, 3 * MS, 8 * MS, 5 * MS, 8 * MS),
        (1, 0, 3 * MS, 0, 3 * MS),
    ]


def test_a_step_that_ends_before_the_one_before_it_has_no_window() -> None:
    scene = Scene()
    scene.launch(0, 7, (1, 9), "a", ("main", 0, 1))
    scene.launch(0, 8, (2, 4), "b", ("main", 1, 2))
    scene.range(0, "step 0", 0, 1)
    scene.range(0, "step 1", 1, 2)
    assert critical_path(scene.trace())["critical_path_step"]["step"].to_list() == ["step 0"]


def test_without_steps_the_capture_is_one_window_and_it_says_so() -> None:
    scene, expected = queue()
    result = critical_path(scene.trace())
    assert shown(result["critical_path"]) == expected
    assert result["critical_path_step"]["step"].to_list() == [None]
    assert "no_steps" in {warning.code for warning in result.warnings}


def test_bucket_of_communication_comes_from_the_annotation() -> None:
    scene = Scene()
    scene.range(0, "nsysddp:bucket=3 bytes=1024 parameters=2 last=1", 0.5, 2.5, "autograd")
    scene.launch(0, 7, (1, 2), "a", ("autograd", 0.6, 0.8))
    scene.launch(0, 7, (2, 5), "nccl", ("autograd", 1, 2), kind="communication")
    scene.launch(0, 7, (5, 8), "nccl", ("autograd", 3, 4), kind="communication")
    trace = scene.trace()
    pieces = critical_path(trace, "capture")["critical_path"]
    assert pieces.filter(pl.col("event").is_not_null())["bucket"].to_list() == [None, 3, None]


def test_tables_balance() -> None:
    scene, _ = arrival()
    trace = scene.trace()
    for result in (critical_path, rank_paths):
        answer = result(trace, "capture")
        by_kind = answer["critical_path_kind"].group_by("path_rank").agg(pl.col("duration_ns").sum())
        by_cause = answer["critical_path_cause"].group_by("path_rank").agg(pl.col("duration_ns").sum())
        total = answer["critical_path_step"].select("path_rank", duration_ns="path_ns").sort("path_rank")
        assert by_kind.sort("path_rank").equals(total)
        assert by_cause.sort("path_rank").equals(total)


def test_zero_length_events_and_calls_do_not_loop() -> None:
    scene = Scene()
    for name in "abc":
        scene.launch(0, 7, (1, 1), name, ("main", 1, 1))
    scene.launch(0, 7, (1, 2), "d", ("main", 1, 1))
    trace = scene.trace()
    check(build(trace))
    assert path_of(trace) == [("compute", 0, "d", 1, 2)]


def test_one_process_with_two_devices() -> None:
    """Ranks of one process that one thread launches share their calls, and each has its own line."""
    scene = Scene(processes={0: 0, 1: 0})
    scene.launch(0, 7, (1, 5), "a", ("main", 0, 1))
    scene.launch(1, 13, (5, 9), "b", ("main", 2, 4))
    for row in scene.events[1:]:
        row["context"] = 2
    path = path_of(scene.trace())
    assert path == [
        ("host_gap", 1, "cudaLaunchKernel", 1, 2),
        ("host", 1, "cudaLaunchKernel", 2, 4),
        ("gap", 1, "b", 4, 5),
        ("compute", 1, "b", 5, 9),
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaDeviceSynchronize", Blocking.DEVICE),
        ("cuCtxSynchronize", Blocking.DEVICE),
        ("cudaFree", Blocking.DEVICE),
        ("cuMemFree_v2", Blocking.DEVICE),
        ("cudaFreeAsync", Blocking.NOTHING),
        ("cudaStreamSynchronize_ptsz", Blocking.STREAM),
        ("cuEventSynchronize", Blocking.EVENT),
        ("cudaMemcpy", Blocking.COPY),
        ("cuMemcpyDtoH_v2", Blocking.COPY),
        ("cudaMemcpy2D_v3020", Blocking.COPY),
        ("cudaMemcpyAsync", Blocking.COPY_PAGEABLE),
        ("cuMemcpyDtoHAsync_v2", Blocking.COPY_PAGEABLE),
        ("cudaEventQuery", Blocking.NOTHING),
        ("cudaLaunchKernel", Blocking.NOTHING),
        ("cudaStreamWaitEvent", Blocking.NOTHING),
        ("cudaMemsetAsync", Blocking.NOTHING),
    ],
)
def test_blocking_calls_are_recognised_by_name(name: str, kind: Blocking) -> None:
    assert blocking_kind(name) == kind


def test_kinds_and_tables_are_named_once() -> None:
    assert len(KINDS) == len(set(KINDS))
    assert len({table.name for table in TABLES}) == len(TABLES)


def test_wrong_question() -> None:
    scene, _ = queue()
    with pytest.raises(UsageError, match="per step or per capture"):
        critical_path(scene.trace(), "epoch")  # type: ignore[arg-type]
