"""Every question: one module, one command, one Python call, one form of document."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from command import run
from conftest import FIXTURES

import nsysddp
from nsysddp import cli, questions
from nsysddp.model.errors import UsageError
from nsysddp.questions.compare.tables import TABLES as OF_COMPARISONS
from nsysddp.questions.question import VERBS, asked, question
from nsysddp.questions.tables import every_table
from nsysddp.render.document import json_schema

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


@pytest.mark.parametrize("name", asked())
def test_the_docstring_of_a_question_is_what_it_asks(name: str) -> None:
    found = question(name)
    assert found.name == name
    assert found.ask == asked()[name]
    assert found.shown in [table.name for table in found.tables]


@pytest.mark.parametrize("name", asked())
def test_the_document_of_every_question_keeps_its_schema_and_says_what_was_asked(name: str) -> None:
    ran = run(VERBS.get(name, name.replace("_", "-")), CAPTURE, "--format", "json")
    assert ran.code == 0, ran.err
    made = json.loads(ran.out)
    jsonschema.validate(made, json_schema(question(name)), jsonschema.Draft202012Validator)
    assert made["request"]["question"] == name
    assert made["request"]["per"] == "step"
    assert made["request"]["rules_sha256"] is None
    assert set(made["request"]["options"]) == {option.name for option in question(name).options}


@pytest.mark.parametrize("name", asked())
def test_every_question_has_the_same_outputs(name: str, tmp_path: Path) -> None:
    command = VERBS.get(name, name.replace("_", "-"))
    folder = tmp_path / "out"
    assert run(command, CAPTURE, "--out", folder, "--format", "markdown").code == 0
    made = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert {file.stem for file in folder.glob("*.csv")} == set(made["tables"])
    for table in made["tables"]:
        ran = run(command, CAPTURE, "--table", table, "--format", "csv")
        assert ran.out.encode() == (folder / f"{table}.csv").read_bytes()


def test_the_request_tells_two_readings_of_one_report_apart(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\npattern = "never_seen"\nclass = "compute"\n', encoding="utf-8")
    plain, other = (
        json.loads(run("analyze", CAPTURE, "--format", "json", *more).out)["request"]
        for more in ((), ("--rules", rules, "--per", "capture", "--clock-tolerance", "50"))
    )
    assert (plain["per"], other["per"]) == ("step", "capture")
    assert other["clock_tolerance_ns"] == 50_000
    assert len(other["rules_sha256"]) == 64


def test_asking_in_python_is_asking_on_the_command_line() -> None:
    trace = nsysddp.load(CAPTURE, host_calls=True, shapes=True, metrics=True)
    for name, options, words in (
        ("buckets", {}, ()),
        ("critical-path", {"each_rank": True}, ("--each-rank",)),
        ("idle", {"per": "capture"}, ("--per", "capture")),
    ):
        made = nsysddp.ask(trace, name, **options)
        table = question(name).shown
        assert made[table].write_csv() == run(name, CAPTURE, "--format", "csv", *words).out


def test_one_name_is_one_table_in_every_question() -> None:
    declared = [table for name in asked() for table in question(name).tables]
    assert {table.name: table for table in declared} == {
        name: table for name, table in every_table().items() if name not in OF_COMPARISONS
    }
    for table in (*declared, *OF_COMPARISONS.values()):
        assert every_table()[table.name] is table, f"{table.name} is declared twice"


def test_a_wrong_question_or_option_names_the_right_ones() -> None:
    trace = nsysddp.load(CAPTURE)
    with pytest.raises(UsageError, match="did you mean 'contention'"):
        nsysddp.ask(trace, "contetion")
    with pytest.raises(UsageError, match="each_rank"):
        nsysddp.ask(trace, "critical-path", every_rank=True)
    assert "Did you mean 'contention'?" in run("contetion", CAPTURE).err


@pytest.mark.parametrize("name", ["critical-path", "diagnose", "whatif"])
def test_a_question_about_whole_steps_refuses_a_cut_in_time_before_it_reads(name: str) -> None:
    ran = run(name, "no_such_report.sqlite", "--from", "1")
    assert ran.code == 2
    assert "whole" in ran.err


TOY = '''"""How many events did each rank run?"""

from nsysddp.model.result import Result
from nsysddp.model.schema import INT, Column, Table
from nsysddp.questions.question import Option, Question

TOY = Table("toy", "one rank", (Column("rank", INT, "rank"), Column("events", INT, "events")))


def _run(context, options):
    frame = context.trace.events.group_by("rank").len("events").sort("rank")
    if options["least"]:
        frame = frame.sort("events").head(1)
    return Result(context.trace, {"toy": frame.cast(TOY.dtypes)})


QUESTION = Question(
    name="toy",
    ask="How many events did each rank run?",
    more="To try the registry.",
    tables=(TOY,),
    run=_run,
    shown="toy",
    options=(Option("least", "Only the rank with the fewest."),),
)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(questions, "__path__", [*questions.__path__, str(tmp_path)])
    for cached in (asked, cli._questions):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (asked, cli._questions):
        cached.cache_clear()


@pytest.mark.usefixtures("toy")
def test_a_new_question_is_one_file() -> None:
    assert "How many events did each rank run?" in run("--help").out
    rows = list(csv.DictReader(io.StringIO(run("toy", CAPTURE, "--format", "csv").out)))
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert len(json.loads(run("toy", CAPTURE, "--least", "--format", "json").out)["tables"]["toy"]) == 1
    assert json.loads(run("toy", "--json-schema").out)["title"] == "How many events did each rank run?"
    assert nsysddp.ask(nsysddp.load(CAPTURE), "toy")["toy"].height == 2
