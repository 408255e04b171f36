"""Few bytes: latency decides how long they take, and neither bandwidth nor fewer bytes are advised."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from simulation.export import write
from simulation.jobs import KIB, MIB, US, Job, simulate

import nsysddp
from nsysddp.model.result import Result
from nsysddp.questions import Context
from nsysddp.questions.context import context_of
from nsysddp.questions.latency import few_bytes, share_of_latency, what_decides
from nsysddp.questions.question import question


def asked(job: Job, folder: Path, *names: str) -> list[Result]:
    paths = write(simulate(job), folder)
    context = context_of(nsysddp.load(paths, host_calls=True, shapes=True, metrics=True))
    assert not context.timed["collective_id"].null_count()
    return [question(name).answer(context) for name in names]


def decided(*rows: tuple[str, int | None, int | None, int]) -> list[str | None]:
    """What decides for collectives (kind, bytes, ranks, transfer) on one host."""
    timed = pl.DataFrame(
        [(number, 0, 1, *row) for number, row in enumerate(rows)],
        schema={
            "collective_id": pl.Int64,
            "rank": pl.Int64,
            "ready_ns": pl.Int64,
            "kind": pl.String,
            "bytes": pl.Int64,
            "group_size": pl.Int64,
            "shortest_ns": pl.Int64,
        },
        orient="row",
    )
    trace = SimpleNamespace(ranks=pl.DataFrame({"rank": [0], "host": ["node0"]}))
    found = what_decides(cast("Context", SimpleNamespace(timed=timed, trace=trace)))
    named = dict(found.select("collective_id", "decides").iter_rows())
    return [named.get(number) for number in range(len(rows))]


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 512])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "send_recv"])
def test_of_so_few_bytes_that_no_network_is_slow_enough_latency_decides(kind: str, ranks: int) -> None:
    assert decided((kind, 4, ranks, 20 * US), (kind, 0, ranks, 20 * US)) == ["latency"] * 2


@pytest.mark.parametrize("ranks", [2, 16, 512])
def test_many_bytes_a_rank_decide_however_long_they_take(ranks: int) -> None:
    assert decided(("all_reduce", ranks * MIB, ranks, 10**9)) == ["bytes"]


def test_one_size_in_between_tells_nothing_and_an_unknown_size_neither() -> None:
    assert decided(("all_reduce", 64 * KIB, 8, 40 * US), ("all_reduce", None, 8, 40 * US)) == [None, None]


def test_a_time_that_does_not_grow_with_the_bytes_is_latency_and_one_that_does_is_not() -> None:
    flat = [("all_reduce", size * KIB, 8, 200 * US + size * US // 8) for size in (16, 64, 256)]
    assert decided(*flat) == ["latency"] * 3
    growing = [("all_reduce", size * KIB, 8, 5 * US + 2 * size * US) for size in (16, 64, 256)]
    assert decided(*growing) == ["bytes"] * 3


def test_times_that_follow_no_line_tell_nothing() -> None:
    scattered = [("all_reduce", size * KIB, 8, time * US) for size, time in ((32, 400), (64, 40), (128, 900))]
    assert decided(*scattered, *scattered) == [None] * 6


def test_other_ranks_and_kinds_have_lines_of_their_own() -> None:
    """Small messages of 8 ranks tell nothing of those of 2."""
    rows = [("all_reduce", 16 * KIB, 8, 30 * US), ("all_reduce", 256 * KIB, 8, 31 * US)]
    assert decided(*rows, ("all_reduce", 64 * KIB, 2, 30 * US)) == ["latency", "latency", None]


def test_shares_and_words() -> None:
    rows = pl.DataFrame(
        {
            "kind": ["all_reduce", "all_reduce", "broadcast"],
            "bytes": [4, 1 << 20, None],
            "group_size": [512, 512, None],
            "transfer_ns": [30, 10, 60],
            "decides": ["latency", "bytes", None],
        }
    )
    assert share_of_latency(rows) == pytest.approx(0.3)
    assert few_bytes(rows) == "all-reduce of 4 bytes over 512 ranks"
    assert share_of_latency(rows.tail(1)) is None
    assert few_bytes(rows.tail(2)) is None


JOBS = [("dp", 2, 1), ("dp", 8, 1), ("tp", 16, 8), ("hsdp", 16, 4), ("hsdp", 64, 8), ("dp", 64, 1)]


def few(kind: str, ranks: int, group: int, **changes: Any) -> Job:
    """A job in which the norm of the gradients is reduced over all ranks in each step, on a slow network."""
    plain = {"steps": 3, "layers": 2, "layer_ns": 700 * US, "jitter": 0.003, "far_latency_ns": 150 * US}
    return Job(kind, ranks, group, norm_bytes=4, **(plain | {"latency_ns": 300 * US} | changes))


@pytest.mark.parametrize(("kind", "ranks", "group"), [*JOBS, ("dp", 512, 1)])
def test_no_bandwidth_is_said_to_suffice_for_four_bytes(
    kind: str, ranks: int, group: int, tmp_path: Path
) -> None:
    (result,) = asked(few(kind, ranks, group), tmp_path, "slack")
    norms = result["slack"].filter(bytes=4)
    assert norms.height
    assert norms["decides"].unique().to_list() == ["latency"]
    assert norms["sufficient_gbps"].null_count() == norms.height
    assert norms["reason"].unique().to_list() == ["latency decides: another bandwidth would change little"]
    others = result["slack"].filter(pl.col("bytes") > ranks * MIB / 4)  # of fewer a line may say the same
    assert others.filter(pl.col("slack_ns").is_not_null())["sufficient_gbps"].null_count() == 0
    for finding in result.findings:
        row = result["slack_role"].filter(
            pl.col("role").eq_missing(pl.lit(finding.rows[0]["role"], pl.String))
        )
        if (row["latency_ratio"][0] or 0) >= 0.5:
            assert "GB/s" not in finding.message
            assert "latency decides" in finding.message
            assert row["busbw_gbps"][0] is row["sufficient_gbps"][0] is row["faster_gbps"][0] is None
        assert " 0 GB/s" not in finding.message


@pytest.mark.parametrize(("kind", "ranks", "group"), JOBS)
def test_the_world_all_reduce_of_four_bytes_is_no_slow_communication(
    kind: str, ranks: int, group: int, tmp_path: Path
) -> None:
    (result,) = asked(few(kind, ranks, group, layer_bytes=MIB), tmp_path, "diagnosis")
    causes = {row["cause"]: row for row in result["diagnosis"].to_dicts()}
    row = causes["message_latency"]
    assert row["phase"] == "optimizer"
    assert f"all-reduce of 4 bytes over {ranks} ranks" in row["claim"]
    assert "bf16" not in row["try_next"]
    assert "fewer" in row["try_next"]
    evidence = result["diagnosis_evidence"].filter(pl.col("phase") == "optimizer")
    assert "slow_communication" not in evidence["cause"].to_list()


def test_the_bytes_of_large_messages_are_still_said_to_be_too_many(tmp_path: Path) -> None:
    slack, diagnosis = asked(few("tp", 8, 8, activation_bytes=32 * MIB), tmp_path, "slack", "diagnosis")
    assert any("GB/s" in finding.message for finding in slack.findings)
    assert diagnosis["diagnosis"]["cause"][0] == "slow_communication"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("steps", [3, 6])
def test_one_collective_a_step_of_many_ranks_is_matched_with_itself(
    steps: int, seed: int, tmp_path: Path
) -> None:
    """Steps are as alike as ends are close: some rank found two of them that met a step too late by chance."""
    job = Job("hsdp", 64, 8, steps=steps, layers=4, jitter=0.005, norm_bytes=4, gbps=45, seed=seed)
    trace = nsysddp.load(write(simulate(job), tmp_path))
    assert not trace.collectives["collective_id"].null_count()
