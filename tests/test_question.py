"""The commands of one question each: buckets, contention, idle."""

from __future__ import annotations

import csv
import io

import pytest
from command import run
from conftest import FIXTURES

CAPTURE = FIXTURES / "h200" / "delay_cap4.sqlite.gz"


@pytest.mark.parametrize(
    ("command", "table", "column"),
    [
        ("buckets", "bucket", "ready_ns"),
        ("contention", "contention_step", "reason"),
        ("idle", "idle", "cause"),
    ],
)
def test_a_question_is_answered_as_table_and_document(command: str, table: str, column: str) -> None:
    ran = run(command, CAPTURE, "--format", "csv", "--table", table)
    assert ran.code == 0, ran.err
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert rows
    assert column in rows[0]
    text = run(command, CAPTURE)
    assert text.code == 0
    assert "rank" in text.out


def test_twelve_buckets_on_both_ranks() -> None:
    ran = run("buckets", CAPTURE, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    per_step = {(row["rank"], row["step"]): 0 for row in rows}
    for row in rows:
        per_step[row["rank"], row["step"]] += 1
    assert set(per_step.values()) == {12}
    assert {row["rank"] for row in rows} == {"0", "1"}
