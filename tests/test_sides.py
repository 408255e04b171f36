"""The other side has one flag in every command, one file is `-o` everywhere, and the names of before still work."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import jsonschema
import pytest
from command import run
from conftest import FIXTURES
from test_compare import write_capture

from nsysddp.render.compare.document import json_schema

CAPTURE = FIXTURES / "h200" / "delay_cap4.sqlite.gz"
CLAIM = ("--claim", "step improves by >= 1%")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three captures a side, the new side 7 % faster."""
    folder = tmp_path_factory.mktemp("captures")
    for number in range(3):
        write_capture(folder / f"old-{number}", seed=number, scale=1.0, cap=25)
        write_capture(folder / f"new-{number}", seed=10 + number, scale=0.93, cap=25)
    return folder


@pytest.fixture
def sides(captures: Path) -> tuple[list[Path], list[Path]]:
    return sorted(captures.glob("old-*")), sorted(captures.glob("new-*"))


def test_compare_with_against_is_compare_with_with_the_other_way_round(
    sides: tuple[list[Path], list[Path]],
) -> None:
    old, new = sides
    before = run("compare", *old, "--with", *new, "--format", "json")
    assert before.code == 0, before.err
    for words in ((*new, "--against", *old), (*new, "--against", old[0], "--against", *old[1:])):
        assert run("compare", *words, "--format", "json") == before
    assert json.loads(before.out)["verdict"] == "faster"
    assert json.loads(before.out)["request"]["command"] == "compare"


def test_a_base_of_a_check_is_what_it_is_against(sides: tuple[list[Path], list[Path]]) -> None:
    old, new = sides
    before = run("check", *new, "--base", *old, *CLAIM, "--format", "json")
    assert before.code == 0
    assert run("check", *new, "--against", *old, *CLAIM, "--format", "json") == before


def test_an_archive_compared_is_an_archive_against(
    tmp_path: Path, sides: tuple[list[Path], list[Path]]
) -> None:
    old, new = sides
    archives = [tmp_path / "before.zip", tmp_path / "now.zip"]
    for word, archive in zip(("--compare", "--against"), archives, strict=True):
        ran = run("evidence", new[0], word, old[0], "-o", archive)
        assert ran.code == 0, ran.err
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_kept_runs_are_a_side_of_compare_and_check_and_none_of_an_archive(
    tmp_path: Path, sides: tuple[list[Path], list[Path]]
) -> None:
    pytest.importorskip("alembic")
    old, new = sides
    db = ("--db", tmp_path / "r.db")
    assert run("compare", *new, "--against", *old, "--save", "--label", "nightly", *db).code == 0
    listed = json.loads(run("runs", "list", "--label", "nightly", "--format", "json", *db).out)
    assert len(listed) == 6
    kept = [f"run:{row['run_id']}" for row in listed if row["run_id"] <= 3]
    fresh = json.loads(run("check", *new, "--against", *old, *CLAIM, "--format", "json").out)
    stored = json.loads(run("check", *new, "--against", *kept, *db, *CLAIM, "--format", "json").out)
    assert [claim["outcome"] for claim in stored["claims"]] == [claim["outcome"] for claim in fresh["claims"]]
    ran = run("evidence", new[0], "--against", "run:1", "-o", tmp_path / "e.zip")
    assert "run:1 holds none" in ran.line


def test_a_word_that_is_a_file_and_a_baseline_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sides: tuple[list[Path], list[Path]]
) -> None:
    pytest.importorskip("alembic")
    old, new = sides
    db = ("--db", tmp_path / "r.db")
    assert run("baseline", "set", "main", *old, *db).code == 0
    write_capture(tmp_path / "main", seed=5, scale=1.2, cap=25)
    monkeypatch.chdir(tmp_path)
    ran = run("compare", *new, "--against", "main", *db)
    assert ran.code == 2
    assert "baseline:main or ./main" in ran.line
    of_baseline = json.loads(run("compare", *new, "--against", "baseline:main", *db, "--format", "json").out)
    assert of_baseline["base"] == ["old-0", "old-1", "old-2"]
    of_folder = json.loads(run("compare", *new, "--against", "./main", *db, "--format", "json").out)
    assert of_folder["base"] == ["main"]


@pytest.mark.parametrize("command", ["compare", "check", "evidence"])
def test_reports_named_after_the_other_side_are_asked_for_before_it(command: str) -> None:
    line = run(command, "--against", CAPTURE, CAPTURE).line
    assert "Missing argument" in line
    assert "--against takes every value up to the next option" in line


@pytest.mark.parametrize(
    ("command", "old"),
    [
        ("compare", "--plot"),
        ("compare", "--with"),
        ("check", "--base"),
        ("evidence", "--compare"),
        ("export", "--perfetto"),
        ("redact", "--output"),
    ],
)
def test_a_name_of_before_is_not_shown(command: str, old: str) -> None:
    assert not re.search(rf"{old}\b", run(command, "--help").out)


@pytest.mark.parametrize(
    "command", ["compare", "evidence", "export", "query", "redact", "report", "timeline", "runs trend"]
)
def test_one_file_is_o_everywhere(command: str) -> None:
    assert re.search(r"^ +-o\b", run(*command.split(), "--help").out, re.MULTILINE)


def test_names_of_before_write_what_those_of_now_write(tmp_path: Path) -> None:
    for words in (["redact", CAPTURE], ["timeline", CAPTURE]):
        ending = ".svg" if words[0] == "timeline" else ".sqlite"
        paths = [tmp_path / f"{words[0]}-{number}{ending}" for number in range(2)]
        old = f"--output={paths[0]}" if words[0] == "redact" else f"--out={paths[0]}"
        assert run(*words, old).code == 0
        assert run(*words, "-o", paths[1]).code == 0
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_compare_has_the_outputs_of_every_question(
    tmp_path: Path, sides: tuple[list[Path], list[Path]]
) -> None:
    old, new = sides
    words = ("compare", *new, "--against", *old)
    folder = tmp_path / "out"
    assert run(*words, "--out", folder).code == 0
    made = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    jsonschema.validate(made, json_schema(), jsonschema.Draft202012Validator)
    assert json.loads(run("compare", "--json-schema").out) == json_schema()
    assert {file.stem for file in folder.glob("*.csv")} == set(made["tables"])
    assert json.loads(run(*words, "--format", "json").out) == made
    for table in made["tables"]:
        ran = run(*words, "--table", table, "--format", "csv")
        assert ran.out.encode() == (folder / f"{table}.csv").read_bytes()
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").out)))
    assert rows[0]["metric"] == made["tables"]["comparison"][0]["metric"]
    assert run(*words, "--table", "matrix", "--format", "markdown").out.startswith("| side |")
    refused = run(*words, "--out", folder)
    assert refused.code == 2
    assert "--force" in refused.line
    assert run(*words, "--out", folder, "--force").code == 0


def test_wherever_runs_are_read_and_however_they_are_named_the_answer_is_the_same(
    tmp_path: Path, captures: Path, sides: tuple[list[Path], list[Path]]
) -> None:
    pytest.importorskip("alembic")
    old, new = sides
    for name, runs in (("old", old), ("new", new)):
        (tmp_path / name).write_text("# captures\n" + "".join(f"{run}\n" for run in runs))
    lists = (f"@{tmp_path / 'new'}", "--against", f"@{tmp_path / 'old'}")
    patterns = (captures / "new-*", "--against", captures / "old-*")
    where = ("--jobs", 2, "--cache", tmp_path / "parts")
    compared = run("compare", *new, "--against", *old, "--format", "json")
    checked = run("check", *new, "--against", *old, *CLAIM, "--format", "json")
    for words in (lists, patterns, (*lists, *where), (*lists, *where)):
        assert run("compare", *words, "--format", "json") == compared
        assert run("check", *words, *CLAIM, "--format", "json") == checked
    assert any((tmp_path / "parts").iterdir())
    db = ("--db", tmp_path / "r.db")
    assert run("baseline", "set", "nightly", f"@{tmp_path / 'old'}", *where, *db).code == 0
    assert run("check", *new, "--against", "nightly", *where, *CLAIM, *db).code == 0
    archives = [tmp_path / "here.zip", tmp_path / "there.zip"]
    for archive, more in zip(archives, ((), where), strict=True):
        assert run("evidence", new[0], "--against", old[0], *more, "-o", archive).code == 0
    assert archives[0].read_bytes() == archives[1].read_bytes()


@pytest.mark.parametrize("command", ["compare", "check", "evidence"])
def test_two_places_or_a_list_that_is_not_there_are_refused(
    command: str, tmp_path: Path, sides: tuple[list[Path], list[Path]]
) -> None:
    old, new = sides
    for words, what, code in (
        ((*new, "--jobs", 2, "--scheduler", "local:2"), "two places", 2),
        ((f"@{tmp_path / 'none'}",), "the list cannot be read", 2),
        ((tmp_path / "none-*",), "no such file", 3),
    ):
        more = ("-o", tmp_path / "x.zip") if command == "evidence" else CLAIM if command == "check" else ()
        ran = run(command, *words, "--against", *old, *more)
        assert ran.code == code, ran.err
        assert what in ran.err
        assert not (tmp_path / "x.zip").exists()


def test_answers_to_claims_have_the_forms_of_every_question(sides: tuple[list[Path], list[Path]]) -> None:
    old, new = sides
    words = (*new, "--against", *old, *CLAIM, "--claim", "overlap_ratio >= 0.99")
    document = json.loads(run("check", *words, "--format", "json").out)["claims"]
    rows = list(csv.DictReader(io.StringIO(run("check", *words, "--format", "csv").out)))
    assert [row["outcome"] for row in rows] == [claim["outcome"] for claim in document] == ["pass", "fail"]
    shown = run("check", *words, "--format", "markdown")
    assert shown.code == 1
    assert shown.out.startswith("| name | claim | outcome |")
    assert run("check", *words, "--format", "csv", "--annotations", "github").code == 2
