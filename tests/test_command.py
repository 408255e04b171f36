"""The command line itself: exit codes, documents and their schema, queries, files left and not left, start-up."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from builder import Export
from command import document, run, tables
from conftest import ROOT, require

import nsysddp
from nsysddp.cli import EXIT_CODES, exit_code
from nsysddp.ingest import queries
from nsysddp.ingest.report import open_report
from nsysddp.model import schema
from nsysddp.model.errors import (
    AnalysisError,
    MissingTable,
    NoGpuEvents,
    NotAReport,
    NsysddpError,
    QueryError,
    RankConflict,
    UsageError,
)
from nsysddp.questions.analysis import QUESTION as ANALYSIS
from nsysddp.questions.overlap import OVERLAP
from nsysddp.questions.tables import every_table
from nsysddp.render.document import json_schema

Unpack = Callable[[str], Path]
PROGRAM = [sys.executable, "-c", "from nsysddp.cli import main; main()"]
H200 = [
    "blobs_ddp",
    "cvd",
    "delay_cap4",
    "delay_cap64",
    "graph_graph",
    "graph_node",
    "hook",
    "nodelay_cap16",
    "tp",
]


def small() -> Export:
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,100) backward[10,90)  s7 g[10,60) g[70,80)  s17 c[20,85)  s9 memcpy[5,8)
        rank 1 | host "step 0"[0,100) backward[10,90)  s7 g[10,60) g[70,80)  s17 c[40,85)  s9 memset[5,8)
    """)
    return export


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return small().write(folder / "a.sqlite")


# --- the document -------------------------------------------------------------------------------------------


def check_document(made: dict[str, Any]) -> None:
    jsonschema.validate(made, json_schema(ANALYSIS), jsonschema.Draft202012Validator)
    assert list(made["tables"]) == [table.name for table in ANALYSIS.tables]
    for name, rows in made["tables"].items():
        for row in rows:
            assert list(row) == every_table()[name].names


@pytest.mark.parametrize("name", H200)
@pytest.mark.parametrize("per", ["step", "capture"])
def test_every_document_keeps_its_schema(name: str, per: str, unpacked: Unpack) -> None:
    check_document(document(unpacked(f"h200/{name}"), "--per", per))


def test_the_schema_is_one_and_refuses_what_is_not_of_it(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(ANALYSIS))
    made = document(path)
    check_document(made)
    made["tables"]["overlap"][0]["compute_ns"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, json_schema(ANALYSIS))
    del made["tables"]["overlap"][0]["compute_ns"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, json_schema(ANALYSIS))


def test_stdout_is_one_document_and_nothing_else(path: Path) -> None:
    ran = run("analyze", path, "--format", "json")
    assert ran.err == ""
    made, end = json.JSONDecoder().raw_decode(ran.out)
    assert ran.out[end:] == "\n"
    assert made["inputs"][0]["name"] == "a.sqlite"
    assert run("analyze", path, "--format", "json").out == ran.out


@pytest.mark.parametrize("name", [table.name for table in ANALYSIS.tables])
def test_csv_and_markdown_are_the_table(name: str, path: Path) -> None:
    wanted = tables(path)[name]
    rows = list(csv.DictReader(io.StringIO(run("analyze", path, "--format", "csv", "--table", name).out)))
    assert len(rows) == len(wanted)
    for row, want in zip(rows, wanted, strict=True):
        assert list(row) == every_table()[name].names
        for key, value in want.items():
            shown = row[key]
            if value is None:
                assert shown == ""
            elif isinstance(value, bool):
                assert shown == str(value).lower()
            elif isinstance(value, float):
                assert float(shown) == pytest.approx(value)
            else:
                assert shown == str(value)
    lines = run("analyze", path, "--format", "markdown", "--table", name).out.splitlines()
    assert len(lines) == len(wanted) + 2


def test_out_writes_every_table_and_the_document(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("analyze", path, "--out", out).code == 0
    assert {file.name for file in out.iterdir()} == {
        "result.json",
        *(f"{name}.csv" for name in (table.name for table in ANALYSIS.tables)),
    }
    assert json.loads((out / "result.json").read_text()) == document(path)
    assert pl.read_csv(out / "overlap.csv").height == 2
    again = run("analyze", path, "--out", out)
    assert again.code == 2
    assert "--force" in again.line
    assert run("analyze", path, "--out", out, "--force").code == 0


def test_out_appears_whole_or_not_at_all(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    calls = []

    def fails(frame: pl.DataFrame, target: Any = None, **options: Any) -> None:
        calls.append(target)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", fails)
    ran = run("analyze", path, "--out", out)
    assert ran.code != 0
    assert "No space left" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in"]


def test_out_into_nowhere(path: Path, tmp_path: Path) -> None:
    assert run("analyze", path, "--out", tmp_path / "no" / "such" / "folder").code == 2
    file = tmp_path / "file"
    file.write_text("kept")
    assert run("analyze", path, "--out", file).code == 2
    assert file.read_text() == "kept"


# --- exit codes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NsysddpError("x"), 1),
        (AnalysisError("x"), 1),
        (UsageError("x"), 2),
        (NotAReport("x"), 3),
        (MissingTable("x"), 3),
        (NoGpuEvents("x"), 4),
        (RankConflict("x"), 5),
    ],
)
def test_exit_code_of_every_error(error: NsysddpError, code: int) -> None:
    assert exit_code(error) == code
    assert code in EXIT_CODES


@pytest.mark.parametrize(
    "argv",
    [
        ["analyze"],
        ["analyze", "--per", "year", "x"],
        ["analyze", "x", "--no-such-option"],
        ["nosuchcommand"],
        ["analyze", "x", "--skip-warmup", "-1"],
        ["analyze", "x", "--clock-tolerance", "-1"],
        ["query", "no_such_query", "x"],
    ],
    ids=" ".join,
)
def test_usage_is_2_or_says_what_is_unknown(argv: list[str]) -> None:
    ran = run(*argv)
    assert ran.code in (2, 1, 3)
    assert ran.out == ""
    assert "Traceback" not in ran.err


def test_bad_patterns_rules_and_tables(path: Path, tmp_path: Path) -> None:
    rules = {
        "notoml": "[[rule]",
        "norule": "x = 1",
        "notable": "rule = [1]",
        "class": '[[rule]]\npattern = "a"\nclass = "fast"',
        "kind": '[[rule]]\npattern = "a"\nclass = "compute"\nkind = "all_reduce"',
        "regex": '[[rule]]\npattern = "("\nclass = "compute"',
        "nopattern": '[[rule]]\nclass = "compute"',
        "key": '[[rule]]\npattern = "a"\nclass = "compute"\ncolour = "red"',
        "match": '[[rule]]\npattern = "a"\nclass = "compute"\nmatch = "some"',
        "hint": '[[rule]]\npattern = "a"\nclass = "compute"\nmatch = "full"',
    }
    for name, text in rules.items():
        file = tmp_path / f"{name}.toml"
        file.write_text(text)
        ran = run("analyze", path, "--rules", file)
        assert ran.code == 2, name
        assert f"{name}.toml" in ran.line
    (tmp_path / "latin.toml").write_bytes(b"[[rule]]\npattern = '\xe9'\n")
    for argv in (
        ["--rules", tmp_path / "absent.toml"],
        ["--rules", tmp_path / "latin.toml"],
        ["--rules", tmp_path],
        ["--step-pattern", "("],
        ["--phase-pattern", "x=("],
        ["--phase-pattern", "x"],
        ["--phase-pattern", "=y"],
        ["--phase-pattern", "x="],
        ["--table", "nothing"],
    ):
        assert run("analyze", path, *argv).code == 2, argv
        assert run("analyze", path, *argv).line


def test_a_rule_by_its_full_name(path: Path, tmp_path: Path) -> None:
    export = small()
    export.processes[0].kernel("kernel", 8, (200, 210), demangled="void acme::net::kernel<int>(int)")
    report = export.write(tmp_path / "b.sqlite")
    rules = tmp_path / "r.toml"
    rules.write_text(
        '[[rule]]\npattern = \'\\bacme::net::\'\nmatch = "full"\nhint = ["acme::net"]\nclass = "communication"\n'
        '[[rule]]\npattern = "memcpy HtoD"\nclass = "communication"\nkind = "broadcast"\n'
    )
    row = tables(report, "--per", "capture", "--rules", rules)["overlap"][0]
    assert row["communication_ns"] == (65 + 10 + 3) * 1_000_000


# --- queries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", queries.names())
def test_the_header_of_a_query_is_its_sql(name: str, tmp_path: Path) -> None:
    """Tables and columns that it reads, and the columns that it returns, are exactly those of the header."""
    query = queries.get(name)
    connection = sqlite3.connect(":memory:")
    for table in query.tables:
        columns = dict.fromkeys([*query.needs.get(table, ()), *query.optional.get(table, ())])
        connection.execute(f'CREATE TABLE "{table}" ({", ".join(f"{chr(34)}{c}{chr(34)}" for c in columns)})')
    read: dict[str, set[str]] = {}

    def watch(action: int, table: str | None, column: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_READ and table and column and not table.startswith(("json", "sqlite_")):
            read.setdefault(table, set()).add(column)
        return sqlite3.SQLITE_OK

    connection.set_authorizer(watch)
    cursor = connection.execute(query.text, dict.fromkeys(query.parameters))
    assert [column[0] for column in cursor.description] == list(query.columns)
    declared = {
        table: {*query.needs.get(table, ()), *query.optional.get(table, ())} - {"rowid"}
        for table in query.tables
    }
    found = {table: columns - {"ROWID", "rowid", ""} for table, columns in read.items()}
    assert found == declared
    named = set(re.findall(r"(?<![:\w]):([a-z]\w*)", re.sub(r"'[^']*'", "", query.text)))
    assert named == set(query.parameters)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT 1 AS x", "header"),
        ("-- name: q\n-- question: q?\n-- row: r\nSELECT 1", "header"),
        ("-- name: other\n-- question: q?\n-- row: r\n-- column x: INTEGER\nSELECT 1 AS x", "header"),
        ("-- name: q\n-- colour: red\nSELECT 1", "unknown header line"),
    ],
)
def test_a_query_with_a_wrong_header_is_refused(text: str, said: str) -> None:
    with pytest.raises(QueryError, match=said):
        queries.parse(text, "q")


def test_queries_are_listed_shown_and_run(path: Path, tmp_path: Path) -> None:
    listed = run("query").out
    assert all(name in listed for name in queries.names())
    assert run("query", "kernels", "--show").out == (ROOT / "queries" / "kernels.sql").read_text()
    rows = json.loads(run("query", "kernels", path, "--format", "json", "--limit", "3").out)
    assert len(rows) == 3
    assert list(rows[0]) == list(queries.get("kernels").columns)
    target = tmp_path / "k.parquet"
    assert run("query", "kernels", path, "--format", "parquet", "--out", target).code == 0
    assert pl.read_parquet(target).height == 6
    assert run("query", "kernels", path, "--format", "csv", "--out", target).code == 2
    assert run("query", "kernels", path, "--format", "parquet").code == 2
    for name in queries.names():
        ran = run("query", name, path)
        assert ran.code == 0 or ran.line


def test_a_query_of_the_user_only_reads(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    file = tmp_path / "q.sql"
    file.write_text("SELECT count(*) AS n, 'x' AS n FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert run("query", file, path, "--format", "csv").out == "n,n_1\n6,x\n"
    for text in (
        "DELETE FROM StringIds",
        "DROP TABLE StringIds",
        "ATTACH ':memory:' AS x",
        "PRAGMA journal_mode = WAL",
        "SELECT 1; SELECT 2",
        "SELEC 1",
        "",
        "CREATE TEMP TABLE t(x)",
        "SELECT load_extension('x')",
        "VACUUM INTO '/tmp/nsysddp-stolen'",
    ):
        file.write_text(text)
        ran = run("query", file, path)
        assert ran.code == 1, text
        assert ran.line, text
    assert path.read_bytes() == before
    assert run("query", tmp_path / "absent.sql", path).code == 1
    assert run("query", file).code == 2


# --- files --------------------------------------------------------------------------------------------------


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file()
    }


COMMANDS = (
    ["analyze"],
    ["analyze", "--per", "capture", "--format", "json"],
    ["doctor"],
    ["query", "kernels"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd", "wal", "odd name", "no utf-8 name"])
def test_the_input_is_not_touched_and_nothing_is_left(command: list[str], kind: str, path: Path) -> None:
    folder = path.parent
    if kind == "gzip":
        path = folder / "b.sqlite.gz"
        path.write_bytes(gzip.compress((folder / "a.sqlite").read_bytes()))
    elif kind == "zstd":
        import zstandard

        path = folder / "b.sqlite.zst"
        data = (folder / "a.sqlite").read_bytes()
        packer = zstandard.ZstdCompressor()
        path.write_bytes(packer.compress(data[:5000]) + packer.compress(data[5000:]))
    elif kind == "wal":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE mine(x)")
        connection.close()
    elif kind == "odd name":
        path = path.rename(folder / "a b?c#d%20e&mode=rwc 'é.sqlite")
    elif kind == "no utf-8 name":
        path = path.rename(folder / os.fsdecode(b"caf\xe9.sqlite"))
    before = everything(folder)
    ran = run(*command, path)
    assert ran.code == 0, ran.err
    assert everything(folder) == before


def test_a_read_only_folder(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    wanted = tables(path)
    folder = path.parent
    path.chmod(stat.S_IRUSR)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert tables(path) == wanted
    finally:
        folder.chmod(stat.S_IRWXU)


def test_an_unreadable_file(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    ran = run("analyze", path)
    assert ran.code == 3
    assert "Permission denied" in ran.line


def test_while_another_process_reads_or_writes(path: Path) -> None:
    wanted = tables(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM StringIds").fetchone()
    assert tables(path) == wanted
    other.execute("COMMIT")
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO StringIds VALUES (987654, 'x')")
    assert tables(path) == wanted
    other.execute("ROLLBACK")
    other.close()


def test_while_another_process_holds_the_file(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        ran = run("analyze", path)
    finally:
        other.close()
    assert ran.code == 3
    assert "locked by another program" in ran.line
    assert "damaged" not in ran.line


def test_while_a_writer_keeps_a_write_ahead_log(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("CREATE TABLE mine(x)")
    assert path.with_name("a.sqlite-wal").exists()
    rows = tables(path)["overlap"]
    other.close()
    assert rows == tables(path)["overlap"]


@pytest.mark.parametrize("memory", [None, b"of a writer"], ids=["log", "log and shared memory"])
def test_what_a_writer_left_in_its_log_is_read_and_stays_there(
    memory: bytes | None, path: Path, tmp_path: Path
) -> None:
    """The log takes the last kernel away; a reader that looked away would count it."""
    folder = tmp_path / "left"
    folder.mkdir()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = 6")
    for ending in ("", "-wal"):
        shutil.copy(f"{path}{ending}", folder)
    writer.close()
    left = folder / path.name
    if memory is not None:
        left.with_name(f"{path.name}-shm").write_bytes(memory)
    before = everything(folder)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert tables(left)["overlap"] == tables(path)["overlap"]
    finally:
        folder.chmod(stat.S_IRWXU)
    assert everything(folder) == before


def test_a_log_without_changes_needs_no_copy(path: Path) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(b"")
    before = everything(path.parent)
    with open_report(path) as report:
        assert report.database == path
        assert report.has("CUPTI_ACTIVITY_KIND_KERNEL")
    assert everything(path.parent) == before


def test_an_export_that_was_interrupted(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.execute("CREATE TABLE mine AS SELECT zeroblob(100000) FROM StringIds")
    for ending in ("", "-journal"):
        shutil.copy(f"{path}{ending}", folder)
    writer.close()
    before = everything(folder)
    ran = run("analyze", folder / path.name)
    assert ran.code == 3
    assert "never finished" in ran.line
    assert everything(folder) == before


def test_force_replaces_an_earlier_result_and_nothing_else(path: Path, tmp_path: Path) -> None:
    """A table that only the earlier result had goes with it; what is not of nsysddp stays, links and folders too."""
    out, beside = tmp_path / "out", tmp_path / "beside"
    assert run("critical-path", path, "--out", out).code == 0
    assert (out / "critical_path.csv").exists()
    (out / "findings.csv").write_text("mine")
    (out / "more").mkdir()
    (out / "more" / "rank.csv").write_text("mine")
    beside.symlink_to(out)
    assert run("analyze", path, "--out", beside, "--force").code == 0
    assert beside.is_symlink()
    assert not (out / "critical_path.csv").exists()
    assert (out / "findings.csv").read_text() == (out / "more" / "rank.csv").read_text() == "mine"
    assert json.loads((out / "result.json").read_text()) == document(path)
    assert sorted(tmp_path.iterdir()) == [beside, path.parent, out]


def test_force_takes_no_table_of_somebody_elses_away(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "critical_path.csv").write_text("mine")
    (out / "result.json").write_text("{}")
    assert run("analyze", path, "--out", out, "--force").code == 0
    assert (out / "critical_path.csv").read_text() == "mine"


@pytest.mark.parametrize("command", ["analyze", "critical-path"])
def test_out_may_not_hold_an_input(command: str, path: Path, tmp_path: Path) -> None:
    linked, link = tmp_path / "linked", tmp_path / "link.sqlite"
    linked.symlink_to(path.parent)
    link.symlink_to(path)
    rules = path.with_name("rules.toml")
    rules.write_text('[[rule]]\npattern = "x"\nclass = "spin"\n')
    before = everything(tmp_path)
    for argv in (
        [path, "--out", path.parent],
        [path, "--out", tmp_path],
        [path, "--out", linked],
        [linked / path.name, "--out", path.parent],
        [link, "--out", path.parent],
        [path, "--out", path],
        [link, "--rules", rules, "--out", path.parent],
    ):
        ran = run(command, *argv, "--force")
        assert ran.code == 2, argv
        assert "holds the input" in ran.line
        assert everything(tmp_path) == before


def outputs(path: Path, folder: Path) -> list[tuple[str, list[str | Path], Path]]:
    """Each command that writes a file: what it reads, and which of that it is told to write."""
    rules, claims, query = folder / "rules.toml", folder / "claims.toml", folder / "q.sql"
    rules.write_text('[[rule]]\npattern = "x"\nclass = "spin"\n')
    claims.write_text('[claims]\na = "overlap_ratio > 0"\n')
    query.write_text("SELECT 1 AS x")
    drawn = path.with_suffix(".svg")
    shutil.copy(path, drawn)
    return [
        ("report", [path, "-o", path], path),
        ("report", [path, "--rules", rules, "-o", rules], rules),
        ("evidence", [path, "-o", path], path),
        ("evidence", [path, "--claims", claims, "-o", claims], claims),
        ("evidence", [path.parent, "-o", path], path),
        ("timeline", [drawn, "-o", drawn], drawn),
        ("compare", [path, "--with", drawn, "--plot", drawn], drawn),
        ("check", [path, "--claim", "overlap_ratio > 0", "--junit", path], path),
        ("check", [path, "--claims", claims, "--junit", claims], claims),
        ("query", ["kernels", path, "--format", "csv", "--out", path], path),
        ("query", [query, path, "--format", "csv", "--out", query], query),
        ("redact", [path, "-o", path], path),
    ]


@pytest.mark.parametrize("through", ["itself", "symbolic link", "hard link"])
def test_no_output_replaces_an_input(through: str, path: Path, tmp_path: Path) -> None:
    cases = outputs(path, tmp_path)
    for number, (command, argv, target) in enumerate(cases):
        output = target
        if through != "itself":
            output = tmp_path / f"{number}{target.suffix}"
            output.symlink_to(target) if through == "symbolic link" else output.hardlink_to(target)
        before = everything(tmp_path)
        force = [] if command == "check" else ["--force"]
        ran = run(command, *argv[:-1], output, *force)
        assert ran.code == 2, (argv, ran)
        assert "input" in ran.line or "report itself" in ran.line
        assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["analyze", "{path}", "--out", "{file}", "--force"], "is a file"),
        (["critical-path", "{path}", "--out", "{file}", "--force"], "is a file"),
        (["analyze", "{path}", "--out", "{absent}/x"], "no folder"),
        (["query", "kernels", "{path}", "--format", "csv", "--out", "{absent}/x"], "folder does not exist"),
        (
            ["query", "kernels", "{path}", "--format", "parquet", "--out", "{absent}/x"],
            "folder does not exist",
        ),
        (["query", "kernels", "{path}", "--format", "csv", "--out", "{folder}", "--force"], "is a folder"),
        (["report", "{path}", "-o", "{absent}/x"], "folder does not exist"),
        (["timeline", "{path}", "-o", "{absent}/x.svg"], "folder does not exist"),
        (["check", "{path}", "--claim", "overlap_ratio > 0", "--junit", "{folder}"], "is a folder"),
        (["report", "{path}", "-o", "{pipe}", "--force"], "is no regular file"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_place_that_cannot_be_written(argv: list[str], said: str, path: Path, tmp_path: Path) -> None:
    file, folder, pipe = (tmp_path / name for name in ("file", "folder", "pipe"))
    file.write_text("mine")
    folder.mkdir()
    os.mkfifo(pipe)
    before = everything(tmp_path)
    places = {"path": path, "file": file, "folder": folder, "pipe": pipe, "absent": tmp_path / "absent"}
    ran = run(*(part.format(**places) for part in argv))
    assert ran.code == 2, ran
    assert said in ran.line
    assert everything(tmp_path) == before
    assert sorted(tmp_path.rglob("*")) == sorted([file, folder, pipe, path.parent, path])
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "argv",
    [["analyze"], ["analyze", "--format", "json"], ["analyze", "--format", "csv"], ["doctor"]],
    ids=" ".join,
)
def test_a_full_disk_behind_stdout_is_one_line(argv: list[str], path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([*PROGRAM, *argv, path], stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 2
    said = ended.stderr.decode().splitlines()
    assert len(said) == 1, said
    assert "No space left on device" in said[0]


def test_evidence_of_a_report_whose_name_is_no_utf_8(path: Path, tmp_path: Path) -> None:
    odd, bundle = path.rename(path.with_name(os.fsdecode(b"caf\xe9.sqlite"))), tmp_path / "e.zip"
    assert run("evidence", odd, "--with-export", "-o", bundle).code == 0
    for given, code, word in (([], 7, "NOT VERIFIED"), ([odd], 0, "holds")):
        ran = run("verify", bundle, *given)
        assert ran.code == code, ran
        assert word in ran.out


READS_REPORTS = (
    ["analyze"],
    ["check", "--claim", "overlap_ratio > 0"],
    ["compare", "--with"],
    ["query", "kernels"],
    ["doctor"],
)


@pytest.mark.parametrize("command", READS_REPORTS, ids=" ".join)
def test_a_pipe_is_no_report_and_nobody_waits_for_it(command: list[str], path: Path) -> None:
    pipe = path.with_name("pipe.sqlite")
    os.mkfifo(pipe)
    argv = [command[0], path, *command[1:], pipe] if "--with" in command else [*command, pipe]
    ran = run(*argv)
    assert ran.code == 3, ran
    assert "pipe" in ran.line


def test_a_report_may_be_named_like_another_format(path: Path) -> None:
    named = path.rename(path.with_name("x.qdstrm.sqlite"))
    assert tables(named)["overlap"]


def test_two_analyses_at_once(path: Path) -> None:
    from nsysddp.join.load import load
    from nsysddp.questions import analyze

    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(analyze(load(path))["overlap"].to_dicts()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(one == found[0] for one in found)


def test_a_report_is_closed_after_an_error(tmp_path: Path) -> None:
    path = Export().write(tmp_path / "a.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE StringIds")
    connection.commit()
    connection.close()
    with pytest.raises(MissingTable):
        open_report(path)
    path.unlink()


# --- text on a screen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_a_terminal_that_knows_few_characters(encoding: str, path: Path) -> None:
    for argv in (["analyze", path], ["doctor", path], ["query"], ["analyze", path, "--format", "json"]):
        ended = subprocess.run(
            [*PROGRAM, *argv],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.decode(encoding)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_lines_fit_the_screen(width: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    said = run("analyze", path).out
    assert max(map(len, said.splitlines())) <= max(width, 70)
    assert "\x1b" not in said


# --- start-up -----------------------------------------------------------------------------------------------

HEAVY = (
    "polars",
    "matplotlib",
    "torch",
    "numpy",
    "pyarrow",
    "sqlalchemy",
    "rich",
    "jinja2",
    "adbc_driver_sqlite",
)


@pytest.mark.parametrize(
    "code",
    [
        "import nsysddp",
        "import nsysddp.cli",
        "from nsysddp.cli import main; import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        " try: main(['--help'])\n"
        " except SystemExit: pass",
        "import nsysddp.model.markers",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    listing = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in ended.stdout.split()}
    assert "nsysddp" in loaded
    assert not loaded & set(HEAVY)


NOT_FOR_A_SMALL_ANALYSIS = (
    "adbc_driver_manager.dbapi",
    "jinja2",
    "matplotlib",
    "nsysddp.questions.critical_path",
    "nsysddp.questions.diagnosis",
    "nsysddp.capture",
    "nsysddp.evidence",
    "nsysddp.store",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "sqlalchemy",
    "torch",
    "zstandard",
)


@pytest.mark.parametrize(
    ("options", "further"),
    [(["--format", "json"], ("rich",)), (["--format", "csv", "--per", "capture"], ("rich",)), ([], ())],
    ids=["json", "csv", "text"],
)
def test_a_small_analysis_imports_no_more_than_it_needs(
    options: list[str], further: tuple[str, ...], path: Path
) -> None:
    loaded = imported_by("analyze", path, *options)
    assert {"nsysddp.questions.overlap", "adbc_driver_sqlite"} <= loaded
    assert not loaded & {*NOT_FOR_A_SMALL_ANALYSIS, *further}


@pytest.mark.parametrize(
    ("command", "not_needed"),
    [
        ("idle", ("nsysddp.questions.diagnosis", "nsysddp.questions.whatif", "nsysddp.questions.contention")),
        ("diagnose", ("nsysddp.questions.whatif", "nsysddp.questions.rebucket", "nsysddp.render.screen")),
    ],
)
def test_a_question_imports_no_other_that_it_does_not_ask(
    command: str, not_needed: tuple[str, ...], tmp_path: Path
) -> None:
    """Without transfers on the path a diagnosis replays nothing."""
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,100)   s7 g[0,50)    s17 c[50,51)
        rank 1 | host "step 0"[0,100)   s7 g[0,50)    s17 c[50,51)
    """)
    loaded = imported_by(command, export.write(tmp_path / "a.sqlite"), "--format", "json")
    assert f"nsysddp.questions.{command.replace('diagnose', 'diagnosis')}" in loaded
    assert not loaded & {*not_needed, "rich"}


def imported_by(command: str, *argv: str | Path) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom nsysddp.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    run_it = [sys.executable, "-c", code, command, *map(str, argv)]
    return set(subprocess.run(run_it, capture_output=True, text=True, check=True).stderr.split())


def test_help_starts_in_a_quarter_of_a_second_of_cpu() -> None:
    spent = []
    for _ in range(3):
        before = os.times()
        subprocess.run([*PROGRAM, "--help"], capture_output=True, check=True)
        after = os.times()
        spent.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    assert min(spent) < 0.25


def test_the_public_names() -> None:
    assert set(nsysddp.__all__) == {
        "NsysddpError",
        "Result",
        "Trace",
        "__version__",
        "analyze",
        "ask",
        "load",
    }
    assert dir(nsysddp) == sorted(nsysddp.__all__)
    for name in nsysddp.__all__:
        assert getattr(nsysddp, name) is not None
    with pytest.raises(AttributeError):
        _ = nsysddp.nothing  # type: ignore[attr-defined]


def test_from_a_notebook(path: Path) -> None:
    trace = nsysddp.load(path)
    assert nsysddp.analyze(trace)["overlap"].height == 2


def test_tables_refuse_what_they_do_not_know() -> None:
    with pytest.raises(AnalysisError, match="no column"):
        schema.RANK.frame([{"rang": 1}])
    with pytest.raises(AnalysisError, match="lacks"):
        schema.RANK.check(pl.DataFrame({"rank": [1]}))
    assert OVERLAP.empty().schema == pl.Schema(OVERLAP.dtypes)
    assert schema.RANK.frame([{"rank": 1}])["pid"].to_list() == [None]


def test_version() -> None:
    assert run("--version").out.split()[-1] == nsysddp.__version__


@pytest.mark.slow
def test_the_wheel_works_alone(tmp_path: Path) -> None:
    """Built, installed without development packages in a fresh environment, run from another folder."""
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns(
        ".venv", ".git", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis", "dist"
    )
    shutil.copytree(ROOT, source, ignore=ignore)
    offline = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "probe"), "click"],
        capture_output=True,
        check=False,
    )
    require("a package index", offline.returncode == 0)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip"]
    wheels = tmp_path / "wheels"
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", wheels, source], check=True, capture_output=True)
    (wheel,) = wheels.glob("nsysddp-*.whl")
    subprocess.run([*pip, "install", "-q", wheel], check=True, capture_output=True)
    shutil.rmtree(source)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    sample = (
        "from importlib.resources import files; print(files('nsysddp') / 'samples' / 'delay_cap4.sqlite.gz')"
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NSYSDDP"))}
    found = subprocess.run(
        [python, "-c", sample], cwd=elsewhere, env=clean, capture_output=True, text=True, check=True
    ).stdout.strip()
    ended = subprocess.run(
        [tmp_path / "env" / "bin" / "nsysddp", "analyze", found, "--format", "json"],
        cwd=elsewhere,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["tables"]["overlap"]
    assert [row["collectives"] for row in rows] == [12, 12]
    listed = subprocess.run(
        [tmp_path / "env" / "bin" / "nsysddp", "query"],
        cwd=elsewhere,
        env=clean,
        capture_output=True,
        check=True,
    )
    assert b"kernels" in listed.stdout
    assert list(elsewhere.iterdir()) == []
