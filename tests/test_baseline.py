"""Baselines: what a comparison with one says is what a comparison with its reports says."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from test_compare import Tool, tool, write_capture
from test_store_database import engine_of, postgres_server, postgres_url, url

from nsysddp.evidence.sources import Reading, load_one, repeats
from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.questions.compare import compare
from nsysddp.render.compare.document import as_dict
from nsysddp.store import connection as connections
from nsysddp.store.baselines import baselines, delete_baseline, load_baseline, set_baseline

__all__ = ["postgres_server", "postgres_url", "tool", "url"]  # fixtures


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three captures a side, 12 steps of 2 ranks each; the new side computes 7 % faster."""
    folder = tmp_path_factory.mktemp("captures")
    for number in range(3):
        write_capture(folder / f"base-{number + 1}", seed=number, scale=1.0, cap=25)
        write_capture(folder / f"new-{number + 1}", seed=10 + number, scale=0.93, cap=25)
    return folder


def side(captures: Path, name: str) -> list[Path]:
    return sorted(captures.glob(f"{name}-*"))


def test_against_a_baseline_every_number_is_the_one_of_its_reports(
    captures: Path, tool: Tool, tmp_path: Path
) -> None:
    db = ("--db", str(tmp_path / "results.db"))
    base, new = side(captures, "base"), side(captures, "new")
    code, out, err = tool("baseline", "set", "main", *base, *db)
    assert (code, out, err) == (0, "", "set baseline main: 3 runs, 36 steps\n")
    with_reports = tool("compare", *base, "--with", *new, "--format", "json")
    assert tool("compare", *new, "--against", "main", *db, "--format", "json") == with_reports
    for claim, expected in (
        ("step improves by >= 1% with 95% confidence", 0),
        ("step improves by >= 50% with 95% confidence", 1),
        ("hidden_wait_ns improves by >= 1% with 95% confidence", 2),
        ("contention_ns improves by >= 1% with 95% confidence", 6),
    ):
        said = tool("check", *new, "--base", *base, "--claim", claim, "--format", "json")
        assert tool("check", *new, "--against", "main", *db, "--claim", claim, "--format", "json") == said
        assert said[0] == expected, said


def test_list_show_replace_delete(captures: Path, tool: Tool, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "results.db"))
    assert tool("baseline", "list", *db)[0] == 1, "there is no database yet"
    tool("baseline", "set", "main", *side(captures, "base"), *db)
    code, _, err = tool("baseline", "set", " main ", side(captures, "new")[0], *db)
    assert (code, err) == (0, "replaced baseline main: 1 run, 12 steps\n")
    tool("baseline", "set", "a", side(captures, "new")[1], *db)
    listed = json.loads(tool("baseline", "list", "--format", "json", *db)[1])
    assert [(one["name"], [run["name"] for run in one["runs"]]) for one in listed] == [
        ("a", ["new-2"]),
        ("main", ["new-1"]),
    ]
    assert "main" in tool("baseline", "list", *db)[1]
    shown = tool("baseline", "show", "main", *db)[1]
    assert "new-1: 2 ranks, 12 steps" in shown
    assert "warm-up = 5" in shown
    assert str(captures) not in shown
    assert tool("baseline", "delete", "main", "--yes", *db)[0] == 0
    code, _, err = tool("baseline", "show", "main", *db)
    assert (code, "there is no baseline 'main'" in err) == (1, True)
    code, _, err = tool(
        "check", *side(captures, "new"), "--against", "main", *db, "--claim", "step improves by >= 1%"
    )
    assert (code, "there is no baseline 'main'" in err) == (1, True)


def test_kept_runs_can_be_a_baseline_and_need_not_stay(captures: Path, tool: Tool, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "results.db"))
    base, new = side(captures, "base"), side(captures, "new")
    assert tool("compare", *base, "--with", *new, "--save", *db)[0] == 0
    assert tool("baseline", "set", "kept", "run:1", "run:2", "run:3", *db)[0] == 0
    assert tool("runs", "delete", "1", "2", "3", "--yes", *db)[0] == 0
    code, out, _ = tool("compare", *new, "--against", "kept", *db, "--format", "json")
    assert code == 0
    said = json.loads(out)
    assert said["verdict"] == "faster"
    assert "it is not known whether program was alike: not kept of run:1, run:2, run:3" in said["warnings"]


def test_what_cannot_be_compared_is_refused(captures: Path, tool: Tool, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "results.db"))
    base, new = side(captures, "base"), side(captures, "new")
    tool("baseline", "set", "main", *base, *db)
    claim = ("--claim", "step improves by >= 1%")
    for words, what in (
        (("compare", *new, "--against", "main", "--skip-warmup", "2"), "with other options (skip_warmup)"),
        (
            ("check", *new, *claim, "--against", "main", "--steps", "1:5"),
            "with other options (first_step, last_step)",
        ),
        (("compare", base[0], *new, "--against", "main"), "compared with itself"),
        (("check", base[0], *new, *claim, "--against", "main"), "compared with itself"),
        (("check", *new, *claim, "--against", "main", "--base", *base), "two bases"),
        (("compare", *base, "--against", "main", "--with", *new), "one other side"),
        (("compare", *base), "one other side"),
    ):
        code, _, err = tool(*words, *db)
        assert (code, what in err) == (2, True), (words, err)


def test_a_baseline_comes_back_exactly_from_either_database(captures: Path, url: str) -> None:
    runs = [load_one(source, Reading()).run for source in repeats(side(captures, "base"))]
    others = [load_one(source, Reading()).run for source in repeats(side(captures, "new"))]
    assert not set_baseline("main", runs, reading=Reading().as_dict(), reports=["0"], url=url)
    found = load_baseline("main", url=url)
    assert Reading(**found.reading) == Reading()
    assert as_dict(compare(found.runs, others)) == as_dict(compare(runs, others))
    assert set_baseline("main", others, reading={}, reports=[], url=url)
    assert [len(one.runs) for one in baselines(url=url)] == [3]
    delete_baseline("main", url=url)
    assert baselines(url=url) == []
    with pytest.raises(EvidenceError, match="there is no baseline"):
        delete_baseline("main", url=url)


def test_a_changed_baseline_is_noticed(captures: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "results.db")
    run = load_one(repeats(side(captures, "base")[:1])[0], Reading()).run
    set_baseline("main", [run], reading={}, reports=[], url=target)
    with sqlite3.connect(target) as opened:
        opened.execute("UPDATE baseline SET content_zstd = ?", (b"x",))
    opened.close()
    with pytest.raises(EvidenceError, match="was changed after it was set"):
        load_baseline("main", url=target)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 101, "\x1b[31m"])
def test_names_are_printable(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 to 100 printable characters"):
        set_baseline(name, [], reading={}, reports=[], url=str(tmp_path / "results.db"))


def test_a_database_from_before_baselines_gets_them(tmp_path: Path) -> None:
    from alembic import command

    target = str(tmp_path / "results.db")
    engine = engine_of(target)
    with engine.begin() as connection:
        command.upgrade(connections._alembic(connection), "0001")
    engine.dispose()
    with sqlite3.connect(target) as opened:
        assert not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'baseline'").fetchall()
    opened.close()
    assert baselines(url=target) == []
