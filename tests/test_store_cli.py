"""``nsysddp runs``: what it prints, what it refuses, what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_store_database import document

from nsysddp.cli.runs import command
from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.store.database import load_document, runs, save, tag


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Ten runs: the exposed time shifts from 30 to 1000 ns at the sixth."""
    target = str(tmp_path / "results.db")
    for index in range(10):
        save(document(index if index < 5 else 970 + index, steps=7), url=target, label=f"night {index}")
    tag([1, 2], add=["nightly"], url=target)
    return target


def invoke(url: str, *arguments: str, **options: str) -> Result:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(command, [*arguments, "--db", url], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_list(url: str) -> None:
    lines = invoke(url, "list").stdout.splitlines()
    assert sum("night" in line for line in lines) == 10
    assert any("nightly" in line and "H200" in line for line in lines)
    listed = json.loads(invoke(url, "list", "--tag", "nightly", "--format", "json").stdout)
    assert [run["run_id"] for run in listed] == [1, 2]
    assert listed[0]["created_at"].endswith("+00:00")
    empty = invoke(url, "list", "--label", "nobody")
    assert (empty.stdout, empty.stderr) == ("", "no kept run fits\n")


def test_show(url: str) -> None:
    shown = invoke(url, "show", "1").stdout
    assert "every rank hides communication" in shown
    assert "run0.sqlite, nsys 2026.1.1" in shown
    assert json.loads(invoke(url, "show", "1", "--document").stdout) == load_document(1, url=url)
    assert json.loads(invoke(url, "show", "1", "--format", "json").stdout)["label"] == "night 0"


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    given = document()
    given["inputs"][0]["name"] = "\x1b]0;owned\x07\x1b[31m.sqlite"
    given["findings"][0]["message"] = "red \x1b[31m"
    given["tables"]["rank"][0]["gpu_name"] = "[bold]H\x1b200"
    target = str(tmp_path / "results.db")
    save(given, url=target, run={"note": "\x1b[2J"})
    for arguments in (["list"], ["show", "1"]):
        shown = invoke(target, *arguments).stdout
        assert "\x1b" not in shown
        assert "[bold]H" in shown


def test_tag(url: str) -> None:
    invoke(url, "tag", "2", "3", "--add", "h200", "--remove", "nightly")
    assert {run.run_id: run.tags for run in runs(url=url, last=10) if run.tags} == {
        1: ("nightly",),
        2: ("h200",),
        3: ("h200",),
    }
    with pytest.raises(UsageError, match="nothing to change"):
        invoke(url, "tag", "2")


def test_delete_asks_first(url: str) -> None:
    assert invoke(url, "delete", "1", "2", input="n\n").exit_code == 1
    assert len(runs(url=url)) == 10
    assert invoke(url, "delete", "1", "2", input="y\n").exit_code == 0
    assert invoke(url, "delete", "3", "--yes").stdout == ""
    assert [run.run_id for run in runs(url=url)] == [4, 5, 6, 7, 8, 9, 10]
    with pytest.raises(EvidenceError, match="there is no run 3"):
        invoke(url, "delete", "4", "3", "--yes")
    assert len(runs(url=url)) == 7


def test_trend(url: str, tmp_path: Path) -> None:
    out = tmp_path / "trend.svg"
    shown = invoke(url, "trend", "exposed_communication_ns", "-o", str(out))
    assert "Exposed communication over 10 runs, µs; worst rank, median over steps" in shown.stdout
    assert "change 1: run 6 (night 5): +" in shown.stdout
    assert "<svg" in out.read_text()
    assert {file.name for file in tmp_path.iterdir()} == {"results.db", "trend.svg"}, (
        "nothing else is left behind"
    )
    result = json.loads(invoke(url, "trend", "window_ns", "--rank", "1", "--format", "json").stdout)
    assert result["change_points"][0]["run_id"] == 6
    assert [point["rank"] for point in result["points"]] == [1] * 10


def test_trend_notes_go_to_stderr(url: str) -> None:
    shown = invoke(url, "trend", "window_ns", "--last", "4")
    assert "Not enough runs to show a change of level: 4 of at least 10" in shown.stderr
    assert "Not enough" not in shown.stdout


def test_a_picture_is_not_overwritten_unasked(url: str, tmp_path: Path) -> None:
    out = tmp_path / "trend.png"
    out.write_text("precious")
    with pytest.raises(UsageError, match=r"trend.png: the file is there already"):
        invoke(url, "trend", "window_ns", "-o", str(out))
    assert out.read_text() == "precious"
    invoke(url, "trend", "window_ns", "-o", str(out), "--force")
    assert out.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="folder does not exist"):
        invoke(url, "trend", "window_ns", "-o", str(tmp_path / "nowhere" / "a.png"))


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, nsysddp.cli.runs\n"
        "print({'sqlalchemy', 'alembic', 'matplotlib', 'numpy', 'polars', 'rich', 'psycopg'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
