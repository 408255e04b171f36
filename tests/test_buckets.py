"""Buckets: drawn backwards with annotation and without, FSDP units, a slow oracle, real captures.

In the drawings ``h[a,b)`` is the range around a hook, ``l`` the launch of its collective, ``g`` a gradient kernel.
"""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from builder import Export, Process
from conftest import FIXTURES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsysddp.join.load import load
from nsysddp.model.markers import BucketMark, bucket_mark
from nsysddp.model.result import Result
from nsysddp.questions import analyze, context_of
from nsysddp.questions.buckets import buckets
from nsysddp.questions.buckets.tables import BUCKET
from nsysddp.questions.steps import Selection

US = 1_000
AUTOGRAD = 900


def answer(path: Path, selection: Selection | None = None) -> Result:
    return buckets(context_of(load(path, host_calls=True), selection))


def gradient(process: Process, at: tuple[float, float], launched: float) -> None:
    process.kernel("grad", at=at, launched=launched, thread=AUTOGRAD)


def bucket(
    process: Process,
    number: int,
    at: tuple[float, float],
    launched: float,
    *,
    last: bool = False,
    marked: bool = True,
    recorded: bool = True,
    size: int = 4 << 20,
) -> None:
    """A bucket's all-reduce, launched (and, ahead of it, ordered behind the compute stream) at a host time."""
    if marked:
        mark = bucket_mark(BucketMark(number, size, 3, last))
        process.range(mark, launched - 0.5, launched + 0.5, thread=AUTOGRAD)
    if recorded:
        process.record(1, 7, launched - 0.3, thread=AUTOGRAD)
        process.wait(1, 17, launched - 0.2, thread=AUTOGRAD)
    process.nccl(stream=17, at=at, launched=(launched, launched + 0.1), thread=AUTOGRAD, bytes=size)


def backward(export: Export, pid: int, **how: Any) -> Process:
    """
    main      step 0, backward[5,40)
    autograd   g0 l6  h0[9.5) l10   g1 l11 g2 l12  h1 l13  h2 l14    (nothing between: 1 held 2)
    s7         forward 0-8   g0 20-30   g1 30-50   g2 50-60    (100 optimizer)
    s17                           b0 30.5-45    b1 61-80  b2 80-90
    """
    process = export.process(pid=pid, device=pid - 100)
    process.range("step 0", 0, 200)
    process.range("forward", 0, 5)
    process.range("backward", 5, 40)
    process.range("optimizer", 40, 60)
    process.kernel("forward", at=(1, 8), launched=1)
    gradient(process, (20, 30), 6)
    bucket(process, 0, (30.5, 45), 10, **how)
    gradient(process, (30, 50), 11)
    gradient(process, (50, 60), 12)
    bucket(process, 1, (61, 80), 13, **how)
    bucket(process, 2, (80, 90), 14, last=True, **how)
    process.kernel("adam", at=(100, 110), launched=50)
    return process


def test_an_annotated_backward(tmp_path: Path) -> None:
    export = Export(unit="us")
    for pid in (100, 101):
        backward(export, pid)
    result = answer(export.write(tmp_path / "a.sqlite"))
    frame = result["bucket"].filter(pl.col("rank") == 0)
    assert frame.schema == pl.Schema(BUCKET.dtypes)
    told = frame.select(
        "bucket", "is_last", "parameters", "hook_ns", "launched_ns", "ready_ns", "started_ns", "ended_ns"
    ).rows()
    assert told == [
        (0, False, 3, 9_500, 10_000, 30_000, 30_500, 45_000),
        (1, False, 3, 12_500, 13_000, 60_000, 61_000, 80_000),
        (2, True, 3, 13_500, 14_000, 60_000, 80_000, 90_000),
    ]
    assert set(frame["source"]) == {"annotation"}
    assert set(frame["ready_source"]) == {"event"}
    assert set(frame["producer"]) == {"grad"}
    assert frame["bytes"].to_list() == [4 << 20] * 3
    assert frame["queued_ns"].to_list() == [0, 0, 20_000]
    assert frame["queued_behind"].null_count() == 2
    assert frame["pending_ns"].to_list() == [500, 1_000, 0]
    assert frame["held_by"].to_list() == [None, None, 1]
    assert frame["hidden_ns"].to_list() == [14_500, 0, 0]
    assert frame["exposed_ns"].to_list() == [0, 19_000, 10_000]
    assert frame["tail_ns"].to_list() == [0, 19_000, 10_000]
    assert frame["transfer_ns"].to_list() == [14_500, 19_000, 10_000]
    assert not result.warnings
    overlap = analyze(result.trace)["overlap"].filter(pl.col("rank") == 0)
    assert overlap["tail_communication_ns"].to_list() == [30_000]


def side_stream(process: Process, at: float, *, before: bool) -> None:
    """What NCCL does around a launch: its side stream waits for the stream of the kernel, which waits for it."""
    if before:
        process.record(50, 17, at, thread=AUTOGRAD)
        process.wait(50, 117, at + 0.01, thread=AUTOGRAD)
    process.record(51, 117, at + 0.02, thread=AUTOGRAD)
    process.wait(51, 17, at + 0.03, thread=AUTOGRAD)


@pytest.mark.parametrize("around", [True, False])
def test_the_collective_ahead_on_its_stream_queues_a_bucket_and_does_not_make_it_ready(
    tmp_path: Path, around: bool
) -> None:
    """
    autograd   g0 l1  b0 l3   g1 l4  b1 l6   g2 l7  b2 l9
    s7         g0 2-9   g1 9-20   g2 20-25
    s17        b0 10-50   b1 50-80   b2 80-95
    """
    export = Export(unit="us")
    for pid in (100, 101):
        process = export.process(pid=pid, device=pid - 100)
        process.range("step 0", 0, 100)
        process.range("backward", 0.5, 99)
        for number, (work, sent) in enumerate(
            [((2, 9), (10, 50)), ((9, 20), (50, 80)), ((20, 25), (80, 95))]
        ):
            begin = 1 + 3 * number
            gradient(process, work, begin)
            process.record(1, 7, begin + 1, thread=AUTOGRAD)
            process.wait(1, 17, begin + 1.1, thread=AUTOGRAD)
            side_stream(process, begin + 1.2, before=around)
            process.nccl(at=sent, launched=(begin + 2, begin + 2.1), thread=AUTOGRAD, bytes=4 << 20)
            if not around:  # the same through a record behind the kernel
                process.record(52, 17, begin + 2.2, thread=AUTOGRAD)
                process.wait(52, 117, begin + 2.3, thread=AUTOGRAD)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"].filter(pl.col("rank") == 0)
    assert frame["ready_ns"].to_list() == [9_000, 20_000, 25_000]
    assert frame["queued_ns"].to_list() == [0, 30_000, 55_000]
    assert frame["pending_ns"].to_list() == [1_000, 0, 0]
    assert set(frame["producer"]) == {"grad"}
    assert set(frame["ready_source"]) == {"event"}


def test_a_collective_of_another_stream_makes_a_bucket_ready(tmp_path: Path) -> None:
    """Hybrid sharding: the all-reduce over replicas waits for the reduce-scatter, not only for the gradients.

    s7    g 2-9
    s22   reduce-scatter 10-30
    s23   all-reduce 31-40
    """
    export = Export(unit="us")
    process = export.process(pid=100, device=0)
    process.range("step 0", 0, 100)
    process.range("backward", 0.5, 99)
    gradient(process, (2, 9), 1)
    process.record(1, 7, 2, thread=AUTOGRAD)
    process.wait(1, 22, 2.1, thread=AUTOGRAD)
    process.wait(1, 23, 2.2, thread=AUTOGRAD)
    process.nccl("ReduceScatter", 22, (10, 30), launched=(3, 3.1), thread=AUTOGRAD, bytes=4096)
    process.record(2, 22, 3.2, thread=AUTOGRAD)
    process.wait(2, 23, 3.3, thread=AUTOGRAD)
    process.nccl("AllReduce", 23, (31, 40), launched=(4, 4.1), thread=AUTOGRAD, bytes=4096)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"].filter(pl.col("role") == "gradients")
    assert frame["ready_ns"].to_list() == [30_000]
    assert frame["queued_ns"].to_list() == [0]
    assert "ReduceScatter" in frame["producer"][0]


def test_buckets_on_the_compute_stream_are_ready_with_the_work_ahead(tmp_path: Path) -> None:
    """
    s7    g 2-9   b0 10-50   b1 50-80   g 80-90   b2 90-95
    """
    export = Export(unit="us")
    process = export.process(pid=100, device=0)
    process.range("step 0", 0, 100)
    process.range("backward", 0.5, 99)
    gradient(process, (2, 9), 1)
    process.nccl("AllReduce", 7, (10, 50), launched=(3, 3.1), thread=AUTOGRAD, bytes=4096)
    process.nccl("AllReduce", 7, (50, 80), launched=(4, 4.1), thread=AUTOGRAD, bytes=4096)
    gradient(process, (80, 90), 5)
    process.nccl("AllReduce", 7, (90, 95), launched=(6, 6.1), thread=AUTOGRAD, bytes=4096)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"]
    assert frame["ready_ns"].to_list() == [9_000, 9_000, 90_000]
    assert frame["queued_ns"].to_list() == [0, 41_000, 0]


def test_without_annotation_the_all_reduces_of_backward_are_inferred(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = backward(export, 100, marked=False)
    process.nccl(stream=17, at=(120, 121), launched=70)  # a metric after the step's phases is no bucket
    result = answer(export.write(tmp_path / "a.sqlite"))
    frame = result["bucket"]
    assert frame["bucket"].to_list() == [0, 1, 2]
    assert set(frame["source"]) == {"inferred"}
    assert frame["is_last"].to_list() == [False, False, True]
    assert frame["held_by"].to_list() == [None, None, 1]
    assert frame["parameters"].null_count() == 3
    assert frame["hook_ns"].null_count() == 3
    assert frame["ready_ns"].to_list() == [30_000, 60_000, 60_000]
    assert "buckets_inferred" in {warning.code for warning in result.warnings}


def test_annotated_processes_have_no_inferred_buckets(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = backward(export, 100)
    process.nccl(stream=17, at=(95, 96), launched=20, thread=AUTOGRAD)  # the bitmap of unused parameters
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"]
    assert frame["events"].to_list() == [1, 1, 1]


def test_what_a_hook_launches_itself_neither_ends_a_run_nor_belongs_to_backward(tmp_path: Path) -> None:
    """Compression before a bucket's launch and decompression after it, inside the hook's range."""
    export = Export(unit="us")
    process = backward(export, 100)
    for launched, at in ((12.7, (60, 60.2)), (13.3, (60.2, 60.4)), (13.7, (60.4, 60.6)), (14.3, (90, 95))):
        process.kernel("compress", at=at, launched=(launched, launched + 0.1), thread=AUTOGRAD)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"]
    assert frame["held_by"].to_list() == [None, None, 1]
    # The last one ran until 95 us, but was launched after the last bucket: backward had finished at 60.6 us.
    assert frame["tail_ns"].to_list() == [0, 19_000, 10_000]


def test_without_event_records_ready_is_the_compute_launched_before(tmp_path: Path) -> None:
    export = Export(unit="us")
    backward(export, 100, recorded=False)
    result = answer(export.write(tmp_path / "a.sqlite"))
    frame = result["bucket"]
    assert frame["ready_ns"].to_list() == [30_000, 60_000, 60_000]
    assert set(frame["ready_source"]) == {"launch_order"}
    assert "buckets_ready_by_launch_order" in {warning.code for warning in result.warnings}


def test_what_had_not_ended_when_it_started_was_not_awaited(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = export.process(pid=100)
    process.range("step 0", 0, 100)
    process.range("backward", 0, 50)
    gradient(process, (5, 40), 1)
    bucket(process, 0, (20, 30), 3, recorded=False)
    result = answer(export.write(tmp_path / "a.sqlite"))
    row = result["bucket"].row(0, named=True)
    assert (row["ready_ns"], row["ready_source"], row["queued_ns"], row["pending_ns"]) == (
        None,
        None,
        None,
        None,
    )
    assert {warning.code for warning in result.warnings} == {"buckets_ready_unknown"}


def test_launched_late_is_the_host_s_delay(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = export.process(pid=100)
    process.range("step 0", 0, 100)
    process.range("backward", 0, 50)
    gradient(process, (5, 10), 1)
    bucket(process, 0, (31, 40), 30)
    row = answer(export.write(tmp_path / "a.sqlite"))["bucket"].row(0, named=True)
    assert (row["launch_late_ns"], row["queued_ns"], row["pending_ns"]) == (20_000, 0, 1_000)


def test_the_skew_and_the_last_rank_of_a_collective(tmp_path: Path) -> None:
    export = Export(unit="us")
    for rank, start in enumerate((20, 27)):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 100)
        process.range("backward", 0, 50)
        gradient(process, (5, 10), 1)
        bucket(process, 0, (start, 40), 3)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"]
    assert frame.select("rank", "arrival_skew_ns", "last_rank", "wait_ns", "transfer_ns").rows() == [
        (0, 7_000, 1, 7_000, 13_000),
        (1, 7_000, 1, 0, 13_000),
    ]


def test_a_hook_that_launches_two_collectives_is_one_bucket(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = export.process(pid=100)
    process.range("step 0", 0, 100)
    process.range("backward", 0, 50)
    gradient(process, (5, 10), 1)
    process.range(bucket_mark(BucketMark(0, 100, 2, True)), 2, 8, thread=AUTOGRAD)
    process.nccl(stream=17, at=(11, 20), launched=3, thread=AUTOGRAD)
    process.nccl(stream=17, at=(25, 30), launched=4, thread=AUTOGRAD)
    row = answer(export.write(tmp_path / "a.sqlite"))["bucket"].row(0, named=True)
    assert (row["events"], row["bytes"], row["started_ns"], row["ended_ns"]) == (2, 100, 11_000, 30_000)
    assert row["exposed_ns"] == 14_000


def test_micro_steps_of_gradient_accumulation(tmp_path: Path) -> None:
    export = Export(unit="us")
    process = export.process(pid=100)
    process.range("step 0", 0, 400)
    for number in range(2):
        base = 100 * number
        process.range("backward", base, base + 50)
        gradient(process, (base + 5, base + 10), base + 1)
        bucket(process, 0, (base + 11, base + 20), base + 3, last=True)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"]
    assert frame.select("bucket", "micro_step").rows() == [(0, 0), (0, 1)]


def fsdp(export: Export, ahead: int) -> None:
    """Four units whose gather is launched ``ahead`` units before the compute that takes it; 10 us each."""
    process = export.process(pid=100)
    process.range("step 0", 0, 1000)
    process.range("forward", 0, 100)
    process.range("backward", 100, 200)
    host = 1.0
    sent = 0

    def gather() -> None:
        nonlocal host, sent
        host += 1
        process.nccl("AllGather", stream=17, at=(20 + 15 * sent, 33 + 15 * sent), launched=host)
        host += 1
        process.record(10 + sent, 17, host)
        sent += 1

    for unit in range(4):
        while sent < min(4, unit + 1 + ahead):
            gather()
        host += 1
        process.wait(10 + unit, 7, host)
        host += 1
        process.kernel("layer", at=(34 + 15 * unit, 44 + 15 * unit), launched=host)
    process.kernel("grad", at=(110, 120), launched=101)
    process.record(50, 7, 102)
    process.wait(50, 17, 103)
    process.nccl("ReduceScatter", stream=17, at=(121, 130), launched=104)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_fsdp_units_with_their_prefetch_distance(ahead: int, tmp_path: Path) -> None:
    export = Export(unit="us")
    fsdp(export, ahead)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"]
    gathers = frame.filter(pl.col("role") == "gather_forward")
    assert gathers["bucket"].to_list() == [0, 1, 2, 3]
    # Before the first compute is launched, `ahead` further gathers are; then one for one.
    assert gathers["prefetch_distance"].to_list() == [min(unit, ahead) for unit in range(4)]
    assert gathers["consumer_ns"].to_list() == [(34 + 15 * unit) * US for unit in range(4)]
    assert gathers["slack_ns"].to_list() == [None, -4 * US, -4 * US, -4 * US]
    scatter = frame.filter(pl.col("role") == "reduce_scatter").row(0, named=True)
    assert (scatter["ready_ns"], scatter["started_ns"], scatter["tail_ns"]) == (120_000, 121_000, 9_000)


def test_without_backward_or_marks_there_are_no_buckets(tmp_path: Path) -> None:
    export = Export(unit="us")
    export.process(pid=100).nccl(stream=17, at=(1, 2))
    result = answer(export.write(tmp_path / "a.sqlite"))
    assert result["bucket"].is_empty()
    assert {warning.code for warning in result.warnings} == {"no_buckets"}


# --- random backwards against a slow oracle ------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), marked=st.booleans(), recorded=st.booleans())
def test_random_backwards(seed: int, marked: bool, recorded: bool, tmp_path: Path) -> None:
    """Streams in order, each bucket behind the compute launched before it; everything said by plain loops."""
    rng = random.Random(seed)
    export = Export(unit="us")
    process = export.process(pid=100)
    process.range("step 0", 0, 10_000)
    process.range("backward", 0, 9_000)
    host, free, link = 1.0, 1.0, 0.0
    launches: list[tuple[float, float, float]] = []
    expected = []
    ran_ahead: float | None = None
    for number in range(rng.randint(1, 8)):
        fresh = rng.randint(0, 2) if launches else rng.randint(1, 2)
        for _ in range(fresh):
            start = max(free, host + 1)
            free = start + rng.randint(1, 30)
            gradient(process, (start, free), host)
            launches.append((host, start, free))
            host += 2
        host += 2 + rng.choice([0, 0, 40])
        ready = max(end for _, _, end in launches)
        start = max(ready, link, host + 1) + rng.choice([0, 0.5])
        end = start + rng.randint(1, 40)
        bucket(process, number, (start, end), host, marked=marked, recorded=recorded)
        since = max(ready, host)
        queued = max(0.0, min(start, link) - since) if ran_ahead is not None else 0.0
        held = None
        if number and not fresh:
            held = expected[-1]["held_by"] if expected[-1]["held_by"] is not None else number - 1
        expected.append(
            {
                "bucket": number,
                "launched_ns": host,
                "ready_ns": ready,
                "started_ns": start,
                "ended_ns": end,
                "launch_late_ns": max(0.0, host - ready),
                "queued_ns": queued,
                "pending_ns": start - since - queued,
                "hidden_ns": sum(max(0.0, min(end, b) - max(start, a)) for _, a, b in launches),
                "held_by": held,
            }
        )
        ran_ahead, link = start, end
        host += 2
    last_launch = expected[-1]["launched_ns"]
    finish = max(end for at, _, end in launches if at <= last_launch)
    for one in expected:
        one["hidden_ns"] = sum(
            max(0.0, min(one["ended_ns"], b) - max(one["started_ns"], a)) for _, a, b in launches
        )
        one["tail_ns"] = max(0.0, one["ended_ns"] - max(one["started_ns"], finish))
        for name in one:
            if name.endswith("_ns"):
                one[name] = round(one[name] * US)
    frame = answer(export.write(tmp_path / "a.sqlite"))["bucket"]
    assert frame.select(list(expected[0])).to_dicts() == expected
    whole = pl.col("launch_late_ns") + pl.col("queued_ns") + pl.col("pending_ns")
    assert frame.filter(whole != pl.col("started_ns") - pl.col("ready_ns")).is_empty()
    assert frame.filter(
        pl.col("hidden_ns") + pl.col("exposed_ns") != pl.col("ended_ns") - pl.col("started_ns")
    ).is_empty()


# --- real captures ---------------------------------------------------------------------------------------------------


def test_twelve_delayed_buckets_become_ready_five_milliseconds_apart(unpacked: Callable[[str], Path]) -> None:
    frame = answer(unpacked("h200/delay_cap4"))["bucket"]
    assert frame.group_by("rank").len().sort("rank").rows() == [(0, 12), (1, 12)]
    for rank in (0, 1):
        ready = frame.filter(pl.col("rank") == rank)["ready_ns"].to_list()
        assert all(5.0e6 < b - a < 5.1e6 for a, b in pairwise(ready))
    assert set(frame["ready_source"]) == {"event"}
    assert frame["held_by"].null_count() == 24
    assert frame["launch_late_ns"].max() == 0
    # Only the last is in the tail.
    assert frame.filter(pl.col("tail_ns") > 0).select("rank", "bucket", "is_last").rows() == [
        (0, 11, True),
        (1, 11, True),
    ]
    assert frame["hidden_transfer_ns"].sum() == 337_118 + 349_175


def test_one_large_bucket_is_all_tail(unpacked: Callable[[str], Path]) -> None:
    frame = answer(unpacked("h200/delay_cap64"))["bucket"]
    assert frame.select("rank", "bucket", "is_last", "hidden_ns").rows() == [(0, 0, True, 0), (1, 0, True, 0)]
    assert (frame["tail_ns"] == frame["exposed_ns"]).all()


def test_buckets_of_a_compression_hook(unpacked: Callable[[str], Path]) -> None:
    frame = answer(unpacked("h200/hook"))["bucket"]
    assert frame.group_by("rank", "step").len()["len"].to_list() == [6] * 8
    assert frame["ready_ns"].null_count() == 0


def test_tails_agree_with_the_decomposition(unpacked: Callable[[str], Path]) -> None:
    """A step's tail begins with the first bucket that reaches into it and ends with the last one's end."""
    context = context_of(load(unpacked("h200/blobs_ddp"), host_calls=True))
    frame = buckets(context)["bucket"]
    overlap = analyze(context.trace)["overlap"].select("rank", "step_index", "tail_communication_ns")
    sums = (
        frame.group_by("rank", "step_index")
        .agg(pl.col("tail_ns").sum())
        .join(overlap, on=["rank", "step_index"])
    )
    assert sums.height == 4
    assert (sums["tail_ns"] <= sums["tail_communication_ns"]).all()
    assert frame["bytes"].null_count() == 0


def test_an_annotated_capture_of_ddp_with_an_unused_parameter(tmp_path: Path) -> None:
    """2 x H200, static graph; the parameter without gradient is in the last bucket, which nothing is launched for."""
    path = tmp_path / "annotated.sqlite"
    with gzip.open(FIXTURES / "annotated_unused.sqlite.gz") as packed, path.open("wb") as out:
        shutil.copyfileobj(packed, out)
    result = answer(path)
    frame = result["bucket"]
    assert not result.warnings
    assert set(frame["source"]) == {"annotation"}
    for (_, _), part in frame.group_by("rank", "step"):
        assert part["bucket"].to_list() == [0, 1, 2, 3]
        assert part["parameters"].to_list() == [4, 4, 4, 1]
        assert part["is_last"].to_list() == [False, False, False, True]
        assert part["held_by"].to_list() == [None, None, None, 2]
        assert (part["hook_ns"] < part["launched_ns"]).all()
    assert frame.filter(pl.col("ready_ns") > pl.col("started_ns")).is_empty()
