"""Many ranks on a screen and in tables: said once, never cut, and linear in the ranks."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from command import run
from simulation.export import write
from simulation.jobs import US, Job, simulate

import nsysddp
from nsysddp.model.names import members_brief, members_text
from nsysddp.questions.context import context_of
from nsysddp.questions.critical_path import communication_beside


@pytest.mark.parametrize(
    ("ranks", "text", "brief"),
    [
        ([3], "3", "3"),
        ([7, 23], "7 and 23", "7 and 23"),
        ([0, 1], "0 and 1", "0 and 1"),
        (list(range(8)), "0 to 7", "0 to 7"),
        ([0, 8, 16, 24], "0, 8, 16 and 24", "0 to 24 by 8"),
        (list(range(0, 512, 8)), "0, 8, ..., 504 (64 ranks, every 8th)", "0 to 504 by 8"),
        (list(range(1, 64, 2)), "1, 3, ..., 63 (32 ranks, every 2nd)", "1 to 63 by 2"),
        (list(range(0, 512, 23)), "0, 23, ..., 506 (23 ranks, every 23rd)", "0 to 506 by 23"),
        (list(range(0, 90, 11)), "0, 11, ..., 88 (9 ranks, every 11th)", "0 to 88 by 11"),
        (
            [rank for rank in range(64) if rank % 8 < 4],
            "0 to 3, 8 to 11, ..., 56 to 59 (32 ranks)",
            "0 to 3 ... 59 (32)",
        ),
        ([0, 2, 5, 9, 14, 20, 27], "0, 2, 5, 9, 14, 20, 27 (7 ranks)", "0 ... 27 (7)"),
    ],
)
def test_members_of_a_group_are_ranges_and_strides(ranks: list[int], text: str, brief: str) -> None:
    assert members_text(ranks) == text
    assert members_brief(ranks) == brief


def job(kind: str = "hsdp", ranks: int = 64, group: int = 8, steps: int = 3) -> Job:
    return Job(kind, ranks, group, steps=steps, layers=2, layer_ns=700 * US)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(simulate(job()), tmp_path_factory.mktemp("many"))


@pytest.mark.parametrize("columns", ["80", "100", "120"])
def test_no_list_of_ranks_is_cut_and_no_reason_is_said_twice(
    columns: str, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = run("communicators", *reports)
    assert max(map(len, ran.out.splitlines())) <= int(columns)
    assert "0 to 56 by 8" in ran.out
    assert "…" not in ran.out
    assert " ".join(ran.out.split()).count("not in this NCCL's payload") == 1


@pytest.mark.parametrize("columns", ["80", "120"])
def test_what_is_not_known_of_many_ranks_is_one_sentence(
    columns: str, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = run("contention", *reports)
    text = " ".join(ran.out.split())
    assert "not known of all 64 ranks" in text
    assert text.count("less than half of the time beside communication is of kernels seen alone") == 1
    assert "?" not in ran.out


def test_of_tied_ranks_a_few_are_shown_and_all_are_counted(
    reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    ran = run("critical-path", *reports)
    text = " ".join(ran.out.split())
    tied = re.search(r"in 3 of 3 steps (up to )?(\d+) ranks end within 50 us of each other", text)
    assert tied
    assert int(tied[2]) > 20
    assert "ranks are tied in a step" in text
    assert len(re.findall("^ +[0-9]+ +~rank", ran.out, re.MULTILINE)) == 4
    assert text.count("of the critical path") <= 8


# --- communication beside the path ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ranks", "group"), [("dp", 2, 1), ("dp", 5, 1), ("pp", 8, 4), ("hsdp", 64, 8)]
)
def test_communication_beside_tied_paths_is_linear_in_the_ranks_and_leaves_nothing_out(
    kind: str, ranks: int, group: int, tmp_path: Path
) -> None:
    paths = write(simulate(job(kind, ranks, group)), tmp_path)
    context = context_of(nsysddp.load(paths, host_calls=True))
    rows = communication_beside(context.paths, context.decomposition)
    assert rows.select("step_index", "rank").unique().height == 3 * ranks
    assert rows.height < 20 * 3 * ranks
    _same_as_the_square(context.paths, context.decomposition, rows)


def _same_as_the_square(paths: nsysddp.Result, overlap: pl.DataFrame, rows: pl.DataFrame) -> None:
    """What is left out of all paths x ranks has 0 on the path, and else what another row of the rank says."""
    key = ["step_index", "path_rank", "rank"]
    figures = ["exposed_communication_ns", "exposed_wait_ns", "tail_communication_ns"]
    square = (
        paths["critical_path_step"]
        .select("step_index", "path_rank")
        .join(overlap, on="step_index", nulls_equal=True)
    )
    critical = (
        paths["critical_path_cause"]
        .filter(pl.col("kind").cast(pl.String).is_in(["transfer", "unmatched_communication"]))
        .group_by(key)
        .agg(critical=pl.col("duration_ns").sum())
    )
    square = square.join(critical, on=key, how="left", nulls_equal=True).with_columns(
        pl.col("critical").fill_null(0)
    )
    left_out = square.join(rows, on=key, how="anti", nulls_equal=True)
    assert not left_out["critical"].sum()
    known = rows.unique(["step_index", "rank"]).select("step_index", "rank", *figures)
    said = left_out.select("step_index", "rank", *figures).unique()
    assert said.join(known, on=said.columns, how="anti", nulls_equal=True).is_empty()
    kept = rows.join(square.select(*key, "critical"), on=key, nulls_equal=True)
    assert kept["critical"].equals(kept["critical_communication_ns"].alias("critical"))
    assert kept.height == rows.height
