"""The simulator, calculated by hand."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from simulation import judge, page, runner, truth
from simulation.engine import (
    EVENT_NS,
    GAP_NS,
    KERNEL,
    LAUNCH_NS,
    RECORD,
    WAIT,
    WAKE_NS,
    Busy,
    Call,
    Collective,
    Engine,
    Item,
    Op,
    Preemption,
)
from simulation.export import Clock, write
from simulation.jobs import KINDS, MIB, MS, US, Job, Planted, layout, simulate
from simulation.trials import Trial
from simulation.verdicts import judge_verdict

COST = 10 * US
FIRST = COST + LAUNCH_NS + GAP_NS
"""When the kernel of a call at 0 begins."""


def kernel(length: int, stream: int = 7, rank: int = 0, of: Collective | None = None) -> Call:
    return Call("launch", 0, COST, Item(KERNEL, stream, rank, "k", length, of))


def collective(length: int, *members: int, links: str = "", root: int | None = None) -> Collective:
    return Collective("AllReduce", 1, 0, members, 4, length, frozenset((0, link) for link in links), root)


def record(stream: int) -> Call:
    return Call("record", 0, 0, Item(RECORD, stream, 0))


def wait(stream: int, of: Call, *, own: bool = False) -> Call:
    return Call("wait", 0, 0, Item(WAIT, stream, 0, awaited=of.item, is_own=own))


def span(call: Call) -> tuple[int, int]:
    assert call.item is not None
    assert call.item.start is not None
    assert call.item.end is not None
    return call.item.start, call.item.end


# --- time ------------------------------------------------------------------------------------------------------


def test_a_kernel_starts_when_its_launch_has_arrived_and_a_call_that_waits_for_it_returns_after_it() -> None:
    one, two = kernel(100 * US), kernel(50 * US)
    sync = Call("sync", 0, 4 * US, awaits="stream", on=7)
    Engine([[one, two, sync]]).run()
    assert span(one) == (FIRST, FIRST + 100 * US)
    assert span(two) == (FIRST + 100 * US + GAP_NS, FIRST + 150 * US + GAP_NS)
    assert (sync.start, sync.end) == (2 * COST, span(two)[1] + WAKE_NS)


def test_a_call_that_waits_for_nothing_costs_what_it_costs() -> None:
    one = kernel(5 * US)
    sync = Call("sync", 0, 4 * US, awaits="device")
    free = Call("free", 0, 4 * US, awaits="device", after=30 * US)
    Engine([[one, Busy(0, 100 * US), sync, free]]).run()
    assert (sync.start, sync.end) == (110 * US, 114 * US)
    assert (free.start, free.end) == (114 * US, 148 * US)


def test_a_stream_waits_for_the_event_and_the_awaited_work_is_what_makes_it_ready() -> None:
    gradient, done = kernel(100 * US), record(7)
    reduce = kernel(1, 17, of=collective(40 * US, 0))
    Engine([[gradient, done, wait(17, done), reduce]]).run()
    assert span(reduce)[0] == span(gradient)[1] + GAP_NS + EVENT_NS
    assert reduce.item is not None
    assert reduce.item.ready == span(gradient)[1]


def test_what_a_collective_awaits_of_its_own_queue_is_no_readiness() -> None:
    """One stream of collectives as NCCL drives it: the side stream leads back to the collective ahead."""
    g0, r0 = kernel(100 * US), record(7)
    b0 = kernel(1, 17, of=collective(400 * US, 0))
    g1, r1 = kernel(60 * US), record(7)
    own, side = record(17), record(117)
    b1 = kernel(1, 17, of=collective(30 * US, 0))
    line: list[Op] = [g0, r0, wait(17, r0), b0, g1, r1, wait(17, r1)]
    line += [own, wait(117, own), side, wait(17, side, own=True), b1]
    Engine([line]).run()
    assert b1.item is not None
    assert b1.item.ready == span(g1)[1]
    assert b1.item.ahead_end == span(b0)[1]
    assert span(b1)[0] == span(b0)[1] + GAP_NS


def test_a_collective_transfers_from_the_last_arrival() -> None:
    one = collective(40 * US, 0, 1)
    early, late = kernel(0, 17, 0, one), kernel(0, 17, 1, one)
    one.skews = {0: 3 * US, 1: 0}
    Engine([[early], [Busy(0, 500 * US), late]]).run()
    assert span(early) == (FIRST, FIRST + 543 * US)
    assert span(late) == (FIRST + 500 * US, FIRST + 540 * US)
    assert one.ready == FIRST + 500 * US


def test_a_broadcast_waits_for_its_root_only() -> None:
    one = collective(40 * US, 0, 1, 2, root=1)
    calls = [kernel(0, 17, rank, one) for rank in range(3)]
    Engine([[calls[0]], [Busy(0, 100 * US), calls[1]], [Busy(0, 700 * US), calls[2]]]).run()
    assert [span(call)[1] - FIRST for call in calls] == [140 * US, 140 * US, 740 * US]


def test_kernels_are_slower_beside_communication_and_only_then() -> None:
    one = collective(40 * US, 0)
    compute = kernel(100 * US)
    reduce = kernel(0, 17, of=one)
    Engine([[compute, Busy(0, 20 * US), reduce]], contention=2.0).run()
    assert span(reduce) == (FIRST + 30 * US, FIRST + 70 * US)
    assert span(compute) == (FIRST, FIRST + 30 * US + 40 * US + 50 * US)


def test_transfers_of_one_link_share_it() -> None:
    first, second = collective(100 * US, 0, links="x"), collective(100 * US, 0, links="xy")
    one, two = kernel(0, 17, of=first), kernel(0, 18, of=second)
    Engine([[one, Busy(0, 30 * US), two]]).run()
    # 40 us alone, 60 us of work at half speed; then the second has 40 us left
    assert span(one) == (FIRST, FIRST + 160 * US)
    assert span(two) == (FIRST + 40 * US, FIRST + 200 * US)


@pytest.mark.parametrize("stretches", [True, False])
def test_another_process_on_the_gpu(stretches: bool) -> None:
    one, two = kernel(100 * US), kernel(100 * US)
    taken = Preemption(0, FIRST + 50 * US, 10 * MS, 400 * US, stretches)
    Engine([[one, two]], preemption=taken).run()
    if stretches:
        assert span(one) == (FIRST, FIRST + 500 * US)
        assert span(two) == (FIRST + 500 * US + GAP_NS, FIRST + 600 * US + GAP_NS)
    else:
        assert span(one) == (FIRST, FIRST + 100 * US)
        assert span(two) == (FIRST + 450 * US, FIRST + 550 * US)


def test_with_one_queue_kernels_begin_in_the_order_of_their_launch() -> None:
    long, done = kernel(100 * US), record(7)
    reduce, other = kernel(0, 17, of=collective(50 * US, 0)), kernel(10 * US, 8)
    Engine([[long, done, wait(17, done), reduce, other]], one_queue=True).run()
    assert span(other)[0] >= span(reduce)[0] > span(long)[1]


def test_what_never_comes_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="never comes"):
        Engine([[kernel(0, 17, 0, collective(1, 0, 1))], []]).run()


# --- jobs ------------------------------------------------------------------------------------------------------

EVEN = Job(ranks=3, jitter=0.0, steps=3, layers=4)


def test_buckets_are_filled_in_ready_order() -> None:
    assert layout([3, 3, 3, 3], 6) == [[0, 1], [2, 3]]
    assert layout([3, 3, 3], 4) == [[0, 1], [2]]
    assert layout([3, 3, 3], 4, reverse=True) == [[2, 1], [0]]
    assert layout([MIB, MIB, MIB], 2 * MIB, small_first=True) == [[0], [1, 2]]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_ends_and_its_collectives_have_all_members(kind: str) -> None:
    run = simulate(Job(kind=kind, ranks=8, group=2, steps=2, layers=2, micro_batches=2))
    groups = run.groups.all.values()
    assert sum(len(group.made) for group in groups) > 0
    for group in groups:
        for one in group.made:
            assert set(one.items) == set(one.members)
            assert all(item.end >= one.ready for item in one.items.values())  # type: ignore[operator]


def test_a_slow_rank_costs_what_its_kernels_take_longer() -> None:
    job = replace(EVEN, planted=Planted("slow_rank", 1.5, rank=1, phase="forward"))
    longer = 0.5 * (job.layers * job.layer_ns + 30 * US)
    assert truth.saving(job) == pytest.approx(longer, rel=0.01)


def test_a_pause_of_all_that_outlasts_the_lead_of_the_host_costs_the_rest() -> None:
    step = truth.mean(truth.lengths(EVEN))
    job = replace(EVEN, item_each_step=True, planted=Planted("pause_all", 5 * MS, phase="forward"))
    assert truth.saving(job) == pytest.approx(5 * MS, rel=0.02)
    assert step < truth.mean(truth.lengths(job))


def test_a_link_of_half_the_speed_doubles_a_large_transfer() -> None:
    job = replace(EVEN, cap=10**6 * MIB, latency_ns=1)
    size, share = job.layers * job.layer_bytes, 2 * (job.ranks - 1) / job.ranks
    planted = replace(job, planted=Planted("slow_link", 2.0))
    assert truth.saving(planted) == pytest.approx(size * share / job.gbps, rel=0.01)


def test_without_its_cause_a_job_has_the_same_jitter() -> None:
    job = Job(ranks=2, steps=2, layers=3, planted=Planted("small_buckets", MIB), layer_parameters=8)
    with_it, without = (
        [item.length for item in simulate(one).items(1) if item.kind == KERNEL and item.collective is None]
        for one in (job, job.without_cause())
    )
    assert with_it == without


def test_the_same_job_gives_the_same_times() -> None:
    job = Job(kind="hsdp", ranks=4, group=2, steps=2, layers=3, seed=7)
    first, second = ([(i.start, i.end) for i in simulate(job).items(3)] for _ in range(2))
    assert first == second


def test_without_communication_nobody_waits() -> None:
    job = replace(EVEN, communication=0.0, steps=4)
    compute = 3 * job.layers * job.layer_ns + 30 * US + job.optimizer_ns
    assert truth.mean(truth.lengths(job)) == pytest.approx(compute, rel=0.02)


# --- exports ---------------------------------------------------------------------------------------------------


def rows(path: Path, query: str) -> list[tuple[int, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("per_rank", [True, False])
def test_an_export_holds_every_event_at_the_time_that_its_clock_shows(tmp_path: Path, per_rank: bool) -> None:
    job = Job(ranks=4, per_host=2, steps=2, layers=2)
    run = simulate(job)
    paths = write(run, tmp_path, per_rank=per_rank)
    assert len(paths) == (4 if per_rank else 2)
    kernels = [item for item in run.items(2) if item.kind == KERNEL]
    clock = Clock.of(job, 2)
    found = rows(paths[2 if per_rank else 1], "SELECT start, end, deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL")
    mine = sorted((start, end) for start, end, device in found if device == 0)
    assert mine == sorted((clock.gpu(item.start or 0), clock.gpu(item.end or 0)) for item in kernels)


def test_an_all_to_all_is_a_group_of_sends_and_receives(tmp_path: Path) -> None:
    (path,) = write(simulate(Job(kind="ep", ranks=2, group=2, steps=1, layers=1)), tmp_path)
    query = (
        "SELECT value, count(binaryData), count(*) FROM NVTX_EVENTS JOIN StringIds ON textId = id GROUP BY 1"
    )
    counts = {name: (blobs, total) for name, blobs, total in rows(path, query)}
    assert counts["ncclSend"] == counts["ncclRecv"] == (16, 16)  # two ranks, four all-to-alls, two peers
    assert counts["ncclGroupEnd"] == (0, 8)


def test_without_payloads_no_blob_is_written(tmp_path: Path) -> None:
    (path,) = write(simulate(Job(ranks=2, steps=1, layers=2)), tmp_path, payload=False)
    assert rows(path, "SELECT count(binaryData) FROM NVTX_EVENTS") == [(0,)]


def test_clocks_of_gpu_and_host_lie_some_us_apart(tmp_path: Path) -> None:
    job = Job(ranks=8)
    apart = {Clock.of(job, rank).gpu(1000) - Clock.of(job, rank).host(1000) for rank in range(8)}
    assert len(apart) == 8
    assert max(map(abs, apart)) < 10 * US


# --- the judge -------------------------------------------------------------------------------------------------


def test_a_judged_job_has_an_answer_to_every_criterion() -> None:
    assert judge.draw(1, 0, ["dp"], ["slow_rank"]).is_due
    row = judge.one_job(1, 0, ["dp"], ["slow_rank"])
    assert row["said"]
    assert row["buckets"]["missing"] == 0
    assert {one["scenario"] for one in row["whatif"]} >= {
        *("no_communication", "faster_0.5", "faster_4", "no_straggler", "cap_400", "order_reverse")
    }
    text = judge.page([row], "Title")
    assert "first cause is the planted one" in text
    assert "| dp | cap_400 | 1 |" in text


def predicted(job: Job, folder: Path) -> dict[str, tuple[float, bool]]:
    """Of each scenario: predicted over simulated - 1, and whether the simulated step lies in the band."""
    answer = judge.ask(write(simulate(job), folder), job, payload=True)
    rows = judge.judge(judge.Trial(0, 0, job, False, True, 0.0, False), simulate(job), answer)["whatif"]
    return {row["scenario"]: (row["error"], row["in_band"]) for row in rows}


def test_contention_beside_many_small_buckets_is_followed_to_its_end(tmp_path: Path) -> None:
    """Kernels and buckets settle one after the other: eight turns of that predict 7 % too much."""
    slowed = {"layers": 9, "layer_ns": 450 * US, "layer_bytes": 9 * MIB, "layer_parameters": 2}
    found = predicted(Job(ranks=2, contention=2.4, gbps=14.0, jitter=0.003, **slowed), tmp_path)  # type: ignore[arg-type]
    assert found["cap_1"] == (pytest.approx(0, abs=0.02), True)
    assert found["faster_1.5"] == (pytest.approx(0, abs=0.005), True)


def test_host_time_ahead_of_every_bucket_comes_with_every_bucket(tmp_path: Path) -> None:
    """Not annotated: a gap ahead of each launch would stay where it was, however many buckets there are."""
    late = Planted("late_launch", 2 * MS)
    found = predicted(Job(ranks=2, layers=4, layer_bytes=30 * MIB, gbps=200.0, planted=late), tmp_path)
    assert {name: found[name] for name in ("cap_5", "cap_100")} == {
        "cap_5": (pytest.approx(0, abs=0.02), True),
        "cap_100": (pytest.approx(0, abs=0.02), True),
    }


PIPE = Job(kind="pp", ranks=4, group=4, layers=2, micro_batches=4, gbps=50.0)


def test_a_pause_that_all_stages_make_is_no_straggler(tmp_path: Path) -> None:
    """It lies ahead of other calls in each stage, which match nothing, and belongs to all all the same."""
    paused = replace(
        PIPE, item_each_step=True, planted=Planted("pause_all", 6 * MS, phase="forward", how="stream")
    )
    assert predicted(paused, tmp_path)["no_straggler"] == (pytest.approx(0, abs=0.01), True)


def test_transfers_that_another_process_stretched_are_part_of_a_straggler(tmp_path: Path) -> None:
    taken = Planted("preemption", 2 * MS, rank=1, how="stretch")
    plain = Job(
        kind="tp", ranks=4, group=2, layers=5, steps=6, activation_bytes=8 * MIB, gbps=20.0, marked=True
    )
    job = replace(plain, layer_ns=MS, planted=taken)
    assert predicted(job, tmp_path)["no_straggler"] == (pytest.approx(0, abs=0.02), True)


def test_links_that_groups_share_are_followed_in_other_layouts(tmp_path: Path) -> None:
    """Experts and gradients leave a GPU over one link: in one bucket at the end, gradients have it for themselves."""
    job = Job(kind="ep", ranks=4, group=4, layers=6, activation_bytes=12 * MIB, gbps=30.0, marked=True)
    found = predicted(job, tmp_path)
    for scenario in ("cap_400", "order_reverse", "faster_0.5", "faster_1.5"):
        assert found[scenario] == (pytest.approx(0, abs=0.02), True), scenario


def test_streams_that_share_one_hardware_queue_are_replayed_in_order(tmp_path: Path) -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS=1: what a collective held back starts earlier when the collective does."""
    queue = Planted("one_queue")
    job = Job(kind="hsdp", ranks=4, group=2, layers=5, layer_bytes=48 * MIB, gbps=40.0, planted=queue)
    found = predicted(job, tmp_path)
    for scenario in ("no_communication", "faster_1.5", "faster_4"):
        assert found[scenario] == (pytest.approx(0, abs=0.02), True), scenario


def test_what_unmatched_transfers_waited_for_is_not_predicted(tmp_path: Path) -> None:
    """Without payloads nobody knows who sends to whom in a pipeline."""
    rows = judge.ask(write(simulate(PIPE), tmp_path, payload=False), PIPE, payload=False).whatif
    silent = {row["scenario"]: row["reason"] for row in rows if row["step_ns"] is None}
    assert {"faster_4", "no_straggler"} <= set(silent)
    assert "without a known counterpart" in silent["faster_4"]
    assert "--include-blobs=true" in silent["faster_4"]


def test_caps_of_small_equal_buckets_are_not_predicted_without_a_latency(tmp_path: Path) -> None:
    """One size of message says nothing about its latency, and larger buckets save just that."""
    job = Job(ranks=2, layers=24, layer_ns=80 * US, layer_bytes=MIB, layer_parameters=1, cap=MIB)
    job = replace(job, latency_ns=90 * US, gbps=20.0, jitter=0.003)
    answer = judge.ask(write(simulate(job), tmp_path), job, payload=True)
    (row,) = (row for row in answer.whatif if row["scenario"] == "cap_25")
    assert row["step_ns"] is None
    assert "how much of their time is latency" in row["reason"]


def test_waits_for_the_step_behind_the_last_bucket_are_no_part_of_its_hook(tmp_path: Path) -> None:
    """The host pauses behind the only bucket, then queues a wait: no bucket of a smaller cap comes with that pause."""
    pause = Planted("pause_all", 10 * MS, phase="backward")
    job = Job("ep", 4, 4, layers=4, layer_ns=1400 * US, layer_bytes=12 * MIB, cap=1000 * MIB, planted=pause)
    rows = judge.ask(write(simulate(job), tmp_path), job, payload=True).whatif
    (small,) = (row for row in rows if row["scenario"] == "cap_5")
    real = truth.mean(truth.lengths(truth.scenarios(job, (5.0,), ())["cap_5"]))
    assert small["step_ns"] == pytest.approx(real, rel=0.03)


@pytest.mark.parametrize("late", [1, 2])
def test_a_pause_of_one_stage_between_calls_that_others_lack_is_a_stragglers(
    tmp_path: Path, late: int
) -> None:
    """A stage in the middle sends to both sides; its host pauses ahead of a send that the ends do not have."""
    pause = Planted("pause_one", 250 * MS, rank=late, phase="backward")
    found = predicted(replace(PIPE, on_compute_stream=False, planted=pause), tmp_path)
    assert found["no_straggler"] == (pytest.approx(0, abs=0.03), True)


def test_a_job_that_fails_is_counted_and_named() -> None:
    row = judge.one_job(1, 0, ["no such kind"])
    assert row == {"seed": 1, "job": 0, "kind": "?", "cause": "?", "error": "KeyError: 'no such kind'"}
    text = judge.page([row], "Title")
    assert "| jobs without an answer | 1 |  | 0 |" in text
    assert "| 1/0 | ? | ? | KeyError: 'no such kind' |" in text


def test_a_job_whose_process_dies_or_hangs_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.sys, "executable", "/bin/false")
    assert list(runner.judged([4, 5], [], seed=3, processes=2)) == [
        {"seed": 3, "job": job, "kind": "?", "cause": "?", "error": "ended with 1: "} for job in (4, 5)
    ]
    monkeypatch.setattr(runner, "COMMAND", ("-c", "sleep 60"))
    monkeypatch.setattr(runner.sys, "executable", "/bin/sh")
    (row,) = runner.judged([4], [], seed=3, seconds=0.2)
    assert row["error"] == "took longer than 0.2 s"


def test_no_job_begins_after_the_time_that_was_given() -> None:
    assert list(runner.judged([1, 2], [], seed=3, minutes=-1)) == []


def test_jobs_are_judged_in_processes_of_their_own_and_in_order() -> None:
    arguments = ["--seed", "1", "--kinds", "no such kind"]
    rows = list(runner.judged([0, 1], arguments, seed=1, processes=2))
    assert [(row["job"], row["error"]) for row in rows] == [(n, "KeyError: 'no such kind'") for n in (0, 1)]


def test_the_interval_of_a_share() -> None:
    low, high = page.wilson(45, 50)  # calculated by hand from Wilson's formula
    assert (low, high) == (pytest.approx(0.78640, abs=1e-5), pytest.approx(0.95652, abs=1e-5))
    assert page.wilson(0, 0) == (0.0, 1.0)
    assert page.wilson(10, 10)[1] == pytest.approx(1.0)


def guess(scenario: str, error: float, *, inside: bool = True) -> dict[str, object]:
    outside = 0.0 if inside else 0.01
    close = abs(error) <= 0.05
    facts = {"band": 0.02, "low": -0.02, "high": 0.02, "outside": outside}
    return {"scenario": scenario, "error": error, "is_close": close, "in_band": inside, **facts}


def test_a_scenario_is_met_only_where_closeness_and_bands_both_hold() -> None:
    row = judge.one_job(1, 0, ["no such kind"]) | {
        "kind": "tp",
        "cause": "clean",
        "ranks": 4,
        "payload": True,
        "planted": None,
        "saving": 0.0,
        "is_due": False,
        "said": [],
        "false_alarms": [],
        "first_right": None,
        "first_cause_right": None,
        "is_named": None,
        "over": None,
        "at_most_holds": None,
        "wrong_high": False,
        "buckets": None,
        "verdict": None,
        "whatif": [guess("a", 0.01), guess("b", 0.2), guess("c", 0.01, inside=False)],
        "silent": [{"scenario": "d", "reason": "because"}],
    }
    del row["error"]
    text = page.page([row], "Title")
    lines = {line.split(" | ")[1]: line for line in text.splitlines() if line.startswith("| tp | ")}
    assert " met |" in lines["a"]
    assert "**not met**" in lines["b"]
    assert "**not met**" in lines["c"]
    assert lines["d"].endswith("| 1 | because |")
    assert "| 1/0 | tp | clean | b | +20.0% | -2.0% to +2.0% of the prediction |" in text
    assert "kinds of job x scenarios where both hold | 1 of 3 (33.3%)" in text


def test_a_verdict_is_judged_by_its_rank_and_by_what_the_step_is_without_what_it_names() -> None:
    job = Job(ranks=2, steps=3, layers=3, layer_bytes=60 * MIB, planted=Planted("slow_rank", 2.0, rank=1))
    step = truth.mean(truth.lengths(job))
    trial = Trial(0, 0, job, per_rank=False, payload=True, saving_share=0.3, is_due=True)

    def judged(code: str, rank: int | None, value: float) -> tuple[bool | None, bool | None]:
        made = judge_verdict(trial, step, {"code": code, "rank": rank, "value": value})
        return made["late_right"], made["holds"]

    assert judged("late_rank", 1, 0.1 * step) == (True, True)
    assert judged("late_rank", 0, 0.1 * step) == (False, False)
    assert judged("bound_by_compute", None, 0.7 * step) == (False, True)
    assert judged("bound_by_communication", None, 0.9 * step) == (False, False)
    exposed = step - truth.mean(truth.lengths(replace(job, communication=0.0)))
    assert judged("bound_by_communication", None, exposed) == (False, True)
