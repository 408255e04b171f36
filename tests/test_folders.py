"""Exports that are folders of Parquet or Arrow files give the answers of the SQLite export, to the nanosecond."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builder import Export
from command import run, tables
from conftest import ROOT, unpack_fixture
from folders import Kind, as_folder

from nsysddp.evidence.redact import redact
from nsysddp.ingest import queries, sql
from nsysddp.ingest.nsys import TABLES
from nsysddp.ingest.report import open_report
from nsysddp.join.load import load
from nsysddp.model.trace import Trace

KINDS: tuple[Kind, ...] = ("parquet", "arrow", "stream")
CAPTURES = sorted((ROOT / "tests" / "fixtures").glob("**/*.sqlite.gz"))
EVERYTHING = {"host_calls": True, "shapes": True, "metrics": True}


def same(one: Trace, other: Trace) -> None:
    """The two traces differ in nothing but the names and hashes of their inputs."""
    names = {a.name: b.name for a, b in zip(one.inputs, other.inputs, strict=True)}
    for part in dataclasses.fields(Trace):
        a, b = getattr(one, part.name), getattr(other, part.name)
        if isinstance(a, pl.DataFrame):
            a = a.with_columns(pl.col("report").replace(names)) if part.name == "ranks" else a
            assert a.equals(b), part.name
            assert a.schema == b.schema, part.name
        elif part.name == "inputs":
            for left, right in zip(a, b, strict=True):
                hidden = {"name": "", "sha256": "", "tables": frozenset()}
                assert dataclasses.replace(left, **hidden) == dataclasses.replace(right, **hidden)
                assert facts(left.tables) == facts(right.tables)
        elif part.name in ("warnings", "assumptions"):
            told = repr(a)
            for name, new in names.items():
                told = told.replace(name, new)
            assert told == repr(b)
        elif part.compare:
            assert a == b, part.name


def facts(tables: frozenset[str]) -> set[str]:
    """The tables without enumerations, of which one form of an export may have more."""
    return {table for table in tables if not table.startswith("ENUM_")}


def test_there_are_captures() -> None:
    assert CAPTURES


@pytest.mark.parametrize("packed", CAPTURES, ids=lambda path: path.name.partition(".")[0])
def test_a_folder_of_tables_reads_like_the_database(packed: Path, tmp_path: Path) -> None:
    database = unpack_fixture(packed, tmp_path)
    kind = KINDS[CAPTURES.index(packed) % len(KINDS)]
    folder = as_folder(database, tmp_path / "folder", kind, rows=700)
    same(load(database, **EVERYTHING), load(folder, **EVERYTHING))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 1 << 20])
def test_pieces_of_any_size_give_the_same(kind: Kind, rows: int, tmp_path: Path) -> None:
    database = export_with_everything().write(tmp_path / "a.sqlite")
    folder = as_folder(database, tmp_path / "folder", kind, rows=rows)
    same(load(database, **EVERYTHING), load(folder, **EVERYTHING))


def export_with_everything() -> Export:
    """Two ranks with all that is read: payloads, graphs, copies, events, metrics, text that is none."""
    export = Export(unit="us")
    for device in range(2):
        rank = export.process(pid=100 + device, device=device)
        for step in range(3):
            at = 1000.0 * step
            rank.range(f"step {step}", at, at + 900)
            rank.range(b"caf\xff", at, at + 5)
            rank.range("forward", at, at + 200, thread=7)
            rank.kernel("sgemm", 7, (at + 10, at + 200), demangled="void sgemm<float>(int)")
            rank.record(3, 7, at + 202)
            rank.wait(3, 17, at + 204)
            rank.nccl("AllReduce", 17, (at + 220 + 9 * device, at + 400), bytes=1 << 20, padding=0xFF)
            rank.nccl_group(
                [("Send", {"peer": 1 - device}), ("Recv", {"peer": 1 - device})],
                18, (at + 410, at + 430), launched=(at + 405, at + 409),
            )  # fmt: skip
            rank.copy("HtoD", (at + 500, at + 520))
            rank.memset((at + 530, at + 540))
            rank.graph((at + 550, at + 600))
            rank.sync("device", (at + 601, at + 610))
    export.gpu_metric("SMs Active", {10: 50, 20: 60})
    export.diagnostic("Not all CUDA events might have been collected.")
    return export


@pytest.mark.parametrize(
    "change",
    [
        {"shuffle": 3},
        {"lazy": False},
        {"shift_ns": -(10**12)},
        {"drop": ["CUPTI_ACTIVITY_KIND_KERNEL.graphNodeId", "NVTX_EVENTS.binaryData"]},
        {"drop": ["TARGET_INFO_GPU", "META_DATA_EXPORT", "NVTX_EVENTS.textId"]},
        {"rename": {"CUPTI_ACTIVITY_KIND_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL_V3"}},
        {
            "rename": {
                "CUPTI_ACTIVITY_KIND_RUNTIME": "cupti_activity_kind_runtime",
                "NVTX_EVENTS.start": "START",
            }
        },
        {"add": {"NVTX_EVENTS.mine": "TEXT", "CUPTI_ACTIVITY_KIND_KERNEL.rowid": "INTEGER"}},
    ],
    ids=lambda change: "_".join(change),
)
def test_other_forms_of_tables_are_read_alike(change: dict[str, object], tmp_path: Path) -> None:
    database = export_with_everything().write(tmp_path / "a.sqlite", **change)
    folder = as_folder(database, tmp_path / "folder", rows=7)
    same(load(database, **EVERYTHING), load(folder, **EVERYTHING))


def test_a_long_table_is_read_in_two_parts_with_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = steps_of(0).write(tmp_path / "a.sqlite")
    whole = tables(database)
    monkeypatch.setattr(sql, "BATCH_ROWS", 4)
    for kind in KINDS:
        folder = as_folder(database, tmp_path / kind, kind, rows=3)
        with open_report(folder) as report:
            assert len(sql.row_ranges(report, "CUPTI_ACTIVITY_KIND_KERNEL")) == 2
        for _ in range(3):
            assert {n: t for n, t in tables(folder).items() if n != "rank"} == {
                n: t for n, t in whole.items() if n != "rank"
            }


def test_events_that_name_no_process_are_of_the_only_one(tmp_path: Path) -> None:
    export = Export()
    export.process(pid=5).kernel("sgemm", 7, (0, 3))
    database = export.write(tmp_path / "a.sqlite", drop=["CUPTI_ACTIVITY_KIND_KERNEL.globalPid"])
    same(load(database), load(as_folder(database, tmp_path / "folder")))


def test_reports_of_several_forms_are_one_run(tmp_path: Path) -> None:
    paths = [ranked(rank).write(tmp_path / f"report_rank{rank}.sqlite") for rank in range(3)]
    mixed = [
        as_folder(paths[0], tmp_path / "f_rank0"), paths[1], as_folder(paths[2], tmp_path / "f_rank2", "arrow")
    ]  # fmt: skip
    same(load(paths), load(mixed))


def ranked(rank: int) -> Export:
    export = Export()
    process = export.process(pid=100 + rank, device=rank)
    process.range("step 0", 0, 20)
    process.kernel("sgemm", 7, (0, 4 + rank))
    process.nccl("AllReduce", 17, (4 + rank, 9))
    return export


def test_a_folder_of_exports_is_the_ranks_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for rank in (0, 2, 10):
        database = ranked(rank).write(tmp_path / f"report_rank{rank}.sqlite")
        as_folder(database, tmp_path / "job" / f"rank{rank}_pqtdir")
    ran = run("analyze", tmp_path / "job", "--format", "json")
    assert ran.code == 0, ran.err
    assert [row["rank"] for row in load(tmp_path / "job").ranks.to_dicts()] == [0, 2, 10]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One real capture as SQLite and as a folder of Parquet files, both from nsys."""
    folder = tmp_path_factory.mktemp("pair")
    packed = ROOT / "tests" / "fixtures" / "parquet"
    shutil.unpack_archive(packed / "nccl1_parquetdir.tar.gz", folder)
    return unpack_fixture(packed / "nccl1.sqlite.gz", folder), folder / "nccl1_parquetdir"


def test_a_real_pair_reads_alike(pair: tuple[Path, Path]) -> None:
    one, other = (load(path, **EVERYTHING) for path in pair)
    same(one, other)
    assert one.operations["bytes"].drop_nulls().len() == 9  # payloads were read, from bytes declared as text


def test_a_real_pair_with_kernels_reads_alike(
    shared_traces: Path, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.unpack_archive(shared_traces / "h200" / "one_gpu_parquetdir.tar.gz", tmp_path)
    same(load(unpacked("h200/one_gpu"), **EVERYTHING), load(tmp_path / "one_gpu_parquetdir", **EVERYTHING))


QUERIES = [name for name in queries.names() if set(queries.get(name).parameters) <= {"first_row", "last_row"}]


@pytest.mark.parametrize("name", [name for name in QUERIES if name != "host_identity"])
def test_every_query_answers_alike(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    database = export_with_everything().write(tmp_path / "a.sqlite")
    for one, other in (pair, (database, as_folder(database, tmp_path / "folder", rows=5))):
        with open_report(one) as left, open_report(other) as right:
            assert sorted(map(repr, sql.run_named(left, name)[1])) == sorted(
                map(repr, sql.run_named(right, name)[1])
            )


@pytest.mark.parametrize("name", [name for name in queries.names() if queries.get(name).distinct])
def test_equal_rows_say_no_more_than_one_where_a_query_says_so(name: str, tmp_path: Path) -> None:
    export = export_with_everything()
    values = {"pid": 100} if "pid" in queries.get(name).parameters else {}
    answers = []
    for times in (1, 2):
        for table in queries.get(name).distinct:
            export.rows[table] = export.rows.get(table, []) * times
        with open_report(export.write(tmp_path / f"{times}.sqlite")) as report:
            answers.append(sorted(map(repr, sql.rows(report, name, **values))))
    assert answers[0] == answers[1]
    assert answers[0]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "SELECT * FROM NVTX_EVENTS ORDER BY rowid",
        "SELECT id, length(value) FROM StringIds WHERE value = 'sgemm' OR value LIKE 'nccl%' ORDER BY id",
        "SELECT s.value, sum(k.end - k.start) FROM cupti_activity_kind_kernel k JOIN StringIds s "
        "ON s.id = k.shortName GROUP BY 1 ORDER BY 1",
        "WITH r AS (SELECT globalTid >> 24 AS p, count(*) AS n FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY 1) "
        "SELECT * FROM r ORDER BY p",
    ],
)
def test_anybodys_sql_runs_on_a_folder(statement: str, tmp_path: Path) -> None:
    database = export_with_everything().write(tmp_path / "a.sqlite")
    folder = as_folder(database, tmp_path / "folder", rows=5)
    (tmp_path / "q.sql").write_text(statement)
    one, other = (run("query", tmp_path / "q.sql", path, "--format", "csv") for path in (database, folder))
    assert one.code == 0, one.err
    assert (one.out, one.code) == (other.out, other.code)


def test_rows_are_counted_after_a_question_that_needed_different_ones_only(tmp_path: Path) -> None:
    folder = as_folder(steps_of(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    counted = "SELECT count(*), count(textId) FROM NVTX_EVENTS"
    with open_report(folder) as report:
        assert len(sql.rows(report, "nvtx_texts")) < 8
        first = sql.run_user_sql(report, counted)
        assert len(sql.rows(report, "nvtx_texts")) < 8
        assert sql.run_user_sql(report, counted) == first
        assert first[1][0][0] == sql.count(report, "NVTX_EVENTS") > 8


def test_sql_that_writes_or_is_wrong_is_refused_on_a_folder(tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    for text in ("DELETE FROM StringIds", "SELECT nothing FROM StringIds", "SELECT", "SELECT 1; SELECT 2"):
        (tmp_path / "q.sql").write_text(text)
        assert (
            "SQLite refused" in run("query", tmp_path / "q.sql", folder).line
            or text == "DELETE FROM StringIds"
        )


# What is no such folder


def refused(path: Path) -> str:
    ran = run("analyze", path)
    assert ran.code == 3
    return ran.line


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.97])
def test_a_cut_file_is_named(kind: Kind, table: str, part: float, tmp_path: Path) -> None:
    folder = as_folder(export_with_everything().write(tmp_path / "a.sqlite"), tmp_path / "folder", kind)
    (file,) = folder.glob(f"{table}.*")
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * part)])
    line = refused(folder)
    assert file.name in line
    assert "damaged or incomplete" in line
    assert str(tmp_path) not in line


def test_a_folder_without_kernels_says_so(tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").unlink()
    assert "no GPU kernels" in run("analyze", folder).line


def test_a_folder_without_names_says_so(tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    (folder / "StringIds.parquet").unlink()
    assert "has no table StringIds" in refused(folder)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["streamId"]), file)
    assert "has no column streamId" in refused(folder)


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.timestamp("us"), pa.list_(pa.int64())])
def test_times_of_another_type_are_refused(kind: pa.DataType, tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pq.read_table(file)
    values = [[] if pa.types.is_list(kind) else None] * table.num_rows
    if not pa.types.is_list(kind):
        values = table["start"].cast(kind)
    pq.write_table(
        table.set_column(0, "start", pa.array(values, kind) if isinstance(values, list) else values), file
    )
    assert "start_ns holds" in refused(folder)


def test_a_table_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    as_folder(tmp_path / "a.sqlite", tmp_path / "other", "arrow")
    shutil.copy(tmp_path / "other" / "StringIds.arrow", folder)
    assert "holds table StringIds in two files" in refused(folder)


def test_one_table_is_no_report(tmp_path: Path) -> None:
    for kind in ("parquet", "arrow"):
        folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / kind, kind)
        assert "give the folder" in refused(next(folder.iterdir()))


def test_other_folders_are_no_reports(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is a folder, not a report" in refused(tmp_path / "empty")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "empty" / "mine.parquet")
    assert "is a folder, not a report" in refused(tmp_path / "empty")


def test_a_folder_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    (folder / "StringIds.parquet").unlink()
    (folder / "StringIds.parquet").symlink_to(tmp_path / "nothing")
    assert "has no table StringIds" in refused(folder)


# Folders as inputs


def test_the_hash_of_a_folder_is_what_sha256sum_tells(tmp_path: Path) -> None:
    folder = as_folder(ranked(0).write(tmp_path / "a.sqlite"), tmp_path / "folder")
    (folder / "notes.txt").write_text("no part of the export")
    sums = "cd " + str(folder) + " && LC_ALL=C sha256sum *.parquet | sha256sum"
    wanted = subprocess.run(["bash", "-c", sums], capture_output=True, text=True, check=True).stdout.split()[
        0
    ]
    assert load(folder).inputs[0].sha256 == wanted
    assert len(wanted) == hashlib.sha256().digest_size * 2


def test_nothing_is_written_into_a_folder_that_is_an_export(tmp_path: Path) -> None:
    folder = as_folder(export_with_everything().write(tmp_path / "a.sqlite"), tmp_path / "folder")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for argv in (
        ("analyze", folder, "--out", folder, "--force"),
        ("analyze", folder, "--out", folder / "result"),
        ("report", folder, "-o", folder / "page.html"),
        ("query", "kernels", folder, "--format", "parquet", "--out", folder / "StringIds.parquet", "--force"),
    ):
        assert run(*argv).code == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("question", ["critical-path", "buckets", "contention", "idle", "diagnose"])
def test_questions_answer_alike(question: str, tmp_path: Path) -> None:
    database = unpack_fixture(ROOT / "tests/fixtures/h200/delay_cap4.sqlite.gz", tmp_path)
    folder = as_folder(database, tmp_path / "folder", "arrow", rows=100)
    one, other = (run(question, path, "--format", "csv") for path in (database, folder))
    assert one.code == 0, one.err
    assert one.out == other.out


# Copies, evidence, captures


def contents(database: Path) -> dict[str, list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: connection.execute(f'SELECT rowid, * FROM "{name}"').fetchall() for name in sorted(names)
        }


def test_a_redacted_copy_of_a_folder_is_that_of_the_database(tmp_path: Path) -> None:
    export = export_with_everything()
    export.plant_secret("s3cret")
    database = export.write(tmp_path / "a.sqlite")
    folder = as_folder(database, tmp_path / "a", rows=5)
    one = redact(database, tmp_path / "one.sqlite").as_json()
    other = redact(folder, tmp_path / "other.sqlite").as_json()
    assert contents(tmp_path / "one.sqlite") == contents(tmp_path / "other.sqlite")
    assert {**one, "output": ""} == {**other, "output": ""}


def test_a_redacted_folder_is_a_folder_that_reads_alike_and_holds_no_secret(tmp_path: Path) -> None:
    export = export_with_everything()
    export.plant_secret("s3cret")
    folder = as_folder(export.write(tmp_path / "a.sqlite"), tmp_path / "a", rows=5)
    ran = run("redact", folder, "-o", tmp_path / "copy", "--format", "json")
    assert ran.code == 0, ran.err
    assert sorted(path.suffix for path in (tmp_path / "copy").iterdir())[0] == ".parquet"
    assert (
        run("analyze", tmp_path / "copy", "--format", "csv").out
        == run("analyze", folder, "--format", "csv").out
    )
    for path in (tmp_path / "copy").iterdir():
        assert "s3cret" not in repr(pq.read_table(path).to_pydict())
        assert b"s3cret" not in path.read_bytes()
    assert "lies in copy, which is a report" in run("redact", folder, "-o", tmp_path / "copy", "--force").line
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_several_folders_are_redacted_into_one(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for rank in range(2):
        as_folder(ranked(rank).write(tmp_path / "a.sqlite"), tmp_path / "job" / f"rank{rank}")
    assert run("redact", tmp_path / "job", "-o", tmp_path / "shared").code == 0
    assert run("analyze", tmp_path / "shared", "--format", "csv").out == run(
        "analyze", tmp_path / "job", "--format", "csv"
    ).out.replace("node0", "host-1")


def test_evidence_from_folders_is_verified(tmp_path: Path) -> None:
    database = unpack_fixture(ROOT / "tests/fixtures/h200/delay_cap4.sqlite.gz", tmp_path)
    folder = as_folder(database, tmp_path / "run_pqtdir")
    assert run("evidence", folder, "-o", tmp_path / "e.tar.gz").code == 0
    ran = run("verify", tmp_path / "e.tar.gz", folder)
    assert ran.code == 0, ran.err + ran.out
    assert run("verify", tmp_path / "e.tar.gz", tmp_path / "run_pqtdir" / "StringIds.parquet").code not in (
        0,
        7,
    )


def test_runs_of_folders_are_compared(tmp_path: Path) -> None:
    made = []
    for form in ("sqlite", "folder"):
        for run_name, longer in (("old0", 0), ("old1", 1), ("new0", 10), ("new1", 11)):
            place = tmp_path / form / run_name
            place.mkdir(parents=True)
            database = steps_of(longer).write(tmp_path / "a.sqlite")
            if form == "folder":
                as_folder(database, place / "report_pqtdir")
            else:
                shutil.copy(database, place / "report.sqlite")
        old0, old1, new0, new1 = (tmp_path / form / name for name in ("old0", "old1", "new0", "new1"))
        ran = run("compare", old0, old1, "--with", new0, "--with", new1, "--format", "markdown")
        assert ran.code == 0, ran.err
        made.append(ran.out)
        alone = run("compare", old0 / "report_pqtdir", "--with", new0 / "report_pqtdir")
        assert alone.code == (0 if form == "folder" else 3), alone.err
    assert made[0] == made[1]


def steps_of(longer: float) -> Export:
    export = Export()
    for device in range(2):
        rank = export.process(pid=100 + device, device=device)
        for step in range(4):
            at = 100.0 * step
            rank.range(f"step {step}", at, at + 90)
            rank.kernel("sgemm", 7, (at, at + 40 + longer + step))
            rank.nccl("AllReduce", 17, (at + 30, at + 60))
    return export


def test_one_report_on_both_sides_is_refused_as_a_folder_too(tmp_path: Path) -> None:
    folder = as_folder(steps_of(0).write(tmp_path / "a.sqlite"), tmp_path / "a")
    shutil.copytree(folder, tmp_path / "b")
    assert "the same report is given twice" in run("compare", folder, "--with", tmp_path / "b").line


def test_doctor_looks_into_every_export_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for rank in range(2):
        as_folder(ranked(rank).write(tmp_path / "a.sqlite"), tmp_path / "job" / f"rank{rank}_pqtdir")
    ran = run("doctor", tmp_path / "job")
    assert ran.code == 0, ran.err
    assert "rank0_pqtdir" in ran.out
    assert "rank1_pqtdir" in ran.out


PARQUET_EXPORTER = """#!/bin/sh
case "$1" in --version) echo "NVIDIA Nsight Systems version 2025.3.1.90"; exit 0;; esac
echo "$*" >> "$LOG"
case "$*" in *parquetdir*) [ -n "$OLD" ] && { echo "unknown type" >&2; exit 1; };; esac
while [ "$1" != --output ]; do shift; done
case "$2" in *.parquetdir) cp -r "$FOLDER" "$2";; *) cp "$DATABASE" "$2";; esac
"""


@pytest.mark.parametrize("old", ["", "yes"])
def test_a_report_of_nsys_becomes_parquet_where_nsys_writes_it(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(PARQUET_EXPORTER)
    program.chmod(0o755)
    database = steps_of(0).write(program.parent / "a.sqlite")
    for name, value in {
        "OLD": old, "LOG": program.parent / "log", "DATABASE": database,
        "FOLDER": as_folder(database, program.parent / "a"), "PATH": f"{program.parent}:{os.environ['PATH']}",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(bytes(300))
    same(load(database), load(report))
    asked = (program.parent / "log").read_text().splitlines()
    assert len(asked) == (2 if old else 1)
    assert "--include-blobs=true" in asked[0]
    assert "--tables=StringIds,CUPTI_.*," in asked[0]
    assert "--tables" not in asked[-1] or not old
    (tmp_path / "q.sql").write_text("SELECT count(*) AS n FROM StringIds")
    assert run("query", tmp_path / "q.sql", report, "--format", "csv").code == 0
    assert "--tables" not in (program.parent / "log").read_text().splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "q.sql", "report.nsys-rep"]


def test_every_table_that_a_question_reads_is_exported() -> None:
    for name in queries.names():
        for table in queries.get(name).tables:
            known = table in ("EXPORT_META_DATA", "TARGET_INFO_CUDA_GPU")  # of nsys that write no Parquet
            assert known or any(re.fullmatch(pattern, table) for pattern in TABLES), table
