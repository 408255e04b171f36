"""What was asked is kept with a run, and a trend holds only runs beside each other of which it was the same."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import zstandard
from command import run
from conftest import FIXTURES
from test_store_database import document, engine_of, postgres_server, postgres_url, url

from nsysddp.model.errors import EvidenceError
from nsysddp.questions.request import Request
from nsysddp.questions.steps import Selection
from nsysddp.store import connection as connections
from nsysddp.store import rows
from nsysddp.store.database import load_run, runs, save
from nsysddp.store.trend import trend

__all__ = ["postgres_server", "postgres_url", "url"]  # fixtures

CAPTURE = FIXTURES / "h200" / "delay_cap4.sqlite.gz"


def asked(**changes: Any) -> dict[str, Any]:
    """The request of a plain `nsysddp analyze`, changed."""
    plain = Request(
        command="analyze",
        question="analysis",
        selection=Selection(),
        step_pattern="step",
        phase_patterns={"forward": "forward"},
        rules_sha256=None,
        clock_tolerance_ns=100_000,
        options={},
    )
    return plain.as_dict() | changes


def of(number: int, **changes: Any) -> dict[str, Any]:
    return {**document(number), "request": asked(**changes)}


EVERYTHING = {
    "per": "capture",
    "from_ns": 5,
    "to_ns": 2**40,
    "first_step": 2,
    "last_step": 7,
    "skip_warmup": 1,
    "step_pattern": "iteration \\d+",
    "phase_patterns": {"backward": "b.*", "ω": "\N{GREEK SMALL LETTER OMEGA}"},
    "rules_sha256": "0" * 64,
    "clock_tolerance_ns": 50_000,
    "options": {"each_rank": True, "caps": [1, 25]},
}


def test_everything_that_was_asked_comes_back(url: str) -> None:
    number = save(of(0, **EVERYTHING), url=url)
    assert load_run(number, url=url).request == asked(**EVERYTHING)
    assert load_run(save(document(1), url=url), url=url).request is None


@pytest.mark.parametrize(
    "changes", [{"per": "epoch"}, {"skip_warmup": None}, {"first_step": True}, {"more": 1}, {"options": []}]
)
def test_a_request_of_another_form_is_refused(url: str, changes: dict[str, Any]) -> None:
    before = save(of(9), url=url)
    with pytest.raises(EvidenceError, match="in another form what was asked"):
        save(of(0, **changes), url=url)
    assert [one.run_id for one in runs(url=url)] == [before]


def test_a_database_from_before_learns_what_its_documents_say(url: str) -> None:
    """Documents of the version before had no command; older ones and damaged ones say nothing."""
    from alembic import command
    from sqlalchemy import text

    saved = [of(0, per="capture"), of(1), document(2), of(3)]
    del saved[0]["request"]["command"]
    engine = engine_of(url)
    with engine.begin() as connection:
        command.upgrade(connections._alembic(connection), "0002")
        for number, one in enumerate(saved, 1):
            packed = (
                zstandard.compress(rows.document_bytes(one, sort_keys=False)) if number < 4 else b"damaged"
            )
            connection.execute(
                text(
                    "INSERT INTO run (content_sha256, created_at, tool_version, schema_version, document_zstd) "
                    "VALUES (:sha, '2026-01-01 00:00:00', '0.1', 1, :packed)"
                ),
                {"sha": rows.content_sha256(one), "packed": packed},
            )
    engine.dispose()
    kept = [run.request for run in runs(url=url)]
    assert kept == [asked(per="capture"), asked(), None, None]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"per": "capture"}, "--per differs (capture; step)"),
        ({"from_ns": 5_000_000}, "--from differs (5 ms; none)"),
        ({"first_step": 2}, "--steps from differs (2; none)"),
        ({"skip_warmup": 3}, "--skip-warmup differs (3; 0)"),
        ({"step_pattern": "it"}, "--step-pattern differs (it; step)"),
        ({"phase_patterns": {}}, '--phase-pattern differs ({}; {"forward": "forward"})'),
        ({"rules_sha256": "a" * 64}, "--rules (hash) differs (aaaaaaaaaaaa; none)"),
        ({"clock_tolerance_ns": 1_500}, "--clock-tolerance differs (1.5 us; 100 us)"),
    ],
)
def test_a_run_asked_otherwise_is_left_out_of_a_trend_and_named(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    target = str(tmp_path / "results.db")
    other = save(of(0, **changes), url=target)
    alike = [save(of(number), url=target) for number in (1, 2)]
    found = trend("window_ns", url=target)
    assert [point.run_id for point in found.points] == alike
    assert [(run.run_id, run.reason) for run in found.left_out] == [(other, reason)]
    assert f"Left out as unlike run {alike[-1]}, the newest: run {other}: {reason}" in found.warnings


def test_a_run_of_which_it_is_not_known_what_was_asked_is_like_no_other(tmp_path: Path) -> None:
    target = str(tmp_path / "results.db")
    numbers = [save(document(0), url=target), save(of(1), url=target)]
    (left_out,) = trend("window_ns", url=target).left_out
    assert (left_out.run_id, left_out.reason) == (numbers[0], "what was asked of run 1 is not recorded")
    save(document(2), url=target)
    assert [point.run_id for point in trend("window_ns", url=target).points] == [1, 3]


def test_the_newest_run_that_knows_the_metric_is_what_others_are_held_beside(tmp_path: Path) -> None:
    target = str(tmp_path / "results.db")
    save(of(0), url=target)
    unknowing = of(1, per="capture")
    for row in unknowing["tables"]["overlap"]:
        row.update(tail_wait_ns=None)
    save(unknowing, url=target)
    found = trend("window_ns", url=target)
    assert [run.run_id for run in found.left_out] == [1]
    for row in (silent := of(2, per="capture"))["tables"]["overlap"]:
        row.update(window_ns=None)
    save(silent, url=target, label="silent")
    assert [run.run_id for run in trend("window_ns", url=target).left_out] == [1]


def test_captures_unlike_in_what_a_comparison_refuses_are_left_out_and_settings_are_not(
    tmp_path: Path,
) -> None:
    target = str(tmp_path / "results.db")
    for number, configuration in enumerate(
        (
            {"backend": "gloo", "bucket_cap_mib": 25},
            {"backend": "nccl", "bucket_cap_mib": 25},
            None,
            {"backend": "nccl", "bucket_cap_mib": 4},
        )
    ):
        save(of(number), url=target, run=None if configuration is None else {"configuration": configuration})
    found = trend("window_ns", url=target)
    assert [(run.run_id, run.reason) for run in found.left_out] == [(1, "backend differs (gloo; nccl)")]
    assert "It is not known whether backend was alike: not kept of run 3" in found.warnings


def test_different_versions_are_said(tmp_path: Path) -> None:
    target = str(tmp_path / "results.db")
    for number, version in enumerate(("0.1", "0.2")):
        save({**of(number), "tool": {"name": "nsysddp", "version": version}}, url=target)
    assert "different versions of nsysddp (0.1, 0.2)" in " ".join(trend("window_ns", url=target).warnings)


def test_runs_list_shows_report_label_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = ("--db", tmp_path / "results.db")
    words = ("--per", "capture", "--save", "--label", "nightly")
    assert run("analyze", CAPTURE, *words, *db).code == 0
    assert run("buckets", CAPTURE, "--save", "--skip-warmup", "1", *db).code == 0
    for width in (80, 100, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run("runs", "list", *db).out.splitlines()
        assert all(len(line) <= width for line in lines)
        assert any("delay_cap4" in line and "nightly" in line and "analyze" in line for line in lines)
        assert any("buckets" in line for line in lines)
        shown = run("runs", "show", "2", *db).out
        assert all(len(line) <= width for line in shown.splitlines())
        assert "buckets --skip-warmup 1" in shown
    listed = json.loads(run("runs", "list", "--format", "json", *db).out)
    assert [row["request"]["command"] for row in listed] == ["analyze", "buckets"]
    assert "does not say where the time went" in run("compare", CAPTURE, "--against", "run:2", *db).line
    with sqlite3.connect(tmp_path / "results.db") as opened:
        assert opened.execute("SELECT command, per, skip_warmup FROM request ORDER BY run_id").fetchall() == [
            ("analyze", "capture", 0),
            ("buckets", "step", 1),
        ]
