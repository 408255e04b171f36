"""Input that is made to do harm: archives without end, tables that compute, cells that run, names that obey."""

from __future__ import annotations

import csv
import gzip
import io
import os
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import zstandard
from builder import Export
from command import run

from nsysddp.cli import _let_messages_go
from nsysddp.evidence import archive
from nsysddp.evidence.redact import Policy, redact
from nsysddp.evidence.redact.names import Names
from nsysddp.ingest import packed
from nsysddp.ingest.report import open_report
from nsysddp.model.errors import EvidenceError
from nsysddp.render.tables import csv as as_csv

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


def drawn(name: str = "gemm") -> Export:
    export = Export()
    process = export.process()
    process.range("step 0", 0, 100)
    process.kernel(name, 7, (10, 60))
    process.kernel("gemm", 7, (70, 80))
    return export


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return drawn().write(tmp_path / "a.sqlite")


def changed(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    return path


# Archives


def packed_as(ending: str, path: Path, content: bytes) -> Path:
    made = path.with_name(f"{path.name}.{ending}")
    made.write_bytes(gzip.compress(content) if ending == "gz" else zstandard.compress(content))
    return made


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_an_archive_that_unpacks_beyond_its_database_is_refused(ending: str, report: Path) -> None:
    bomb = packed_as(ending, report, report.read_bytes() + bytes(64 << 20))
    ran = run("analyze", bomb)
    assert ran.code == 3
    assert f"{bomb.name}: the archive unpacks to more than a report can be" in ran.line


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_an_archive_of_something_else_is_refused_by_its_first_bytes(
    ending: str, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = packed_as(ending, report, bytes(64 << 20))
    taken: list[int] = []
    blocks = packed._blocks

    def counted(source: Path) -> Iterator[bytes]:
        for block in blocks(source):
            taken.append(len(block))
            yield block

    monkeypatch.setattr(packed, "_blocks", counted)
    assert run("analyze", bomb).code == 3
    assert sum(taken) < 64 << 20


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_header_that_promises_more_than_a_report_can_be_is_refused(
    ending: str, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_ALWAYS_BYTES", 1 << 20)
    head = bytearray(report.read_bytes())
    head[28:32] = (1 << 30).to_bytes(4, "big")
    ran = run("analyze", packed_as(ending, report, bytes(head)))
    assert ran.code == 3
    assert "the archive unpacks to more" in ran.line


def test_an_archive_that_does_not_fit_is_refused_before_it_is_unpacked(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    ran = run("analyze", packed_as("gz", report, report.read_bytes()))
    assert ran.code == 3
    assert "free for temporary files" in ran.line
    assert "TMPDIR" in ran.line


def test_a_report_that_is_no_database_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_ALWAYS_BYTES", 1 << 20)
    bomb = tmp_path / "a.nsys-rep.gz"
    bomb.write_bytes(gzip.compress(bytes(64 << 20)))
    ran = run("analyze", bomb)
    assert ran.code == 3
    assert "the archive unpacks to more" in ran.line


def bundle(sizes: list[int], claimed: int | None = None, *, overlap: bool = False) -> bytes:
    """A ZIP file of zeros whose table of contents says what it likes."""
    body, index, offset = b"", b"", 0
    for number, size in enumerate(sizes):
        name = f"{number:05}".encode()
        data = zlib.compressobj(9, zlib.DEFLATED, -15)
        content = data.compress(bytes(size)) + data.flush()
        said = size if claimed is None else claimed
        shared = (0x800, 8, 0, 0x21, zlib.crc32(bytes(size)), len(content), said, len(name), 0)
        place = 0 if overlap else offset
        index += struct.pack("<4s6H3I5H2I", b"PK\1\2", 788, 20, *shared, 0, 0, 0, 0, place) + name
        if not overlap or not number:
            body += struct.pack("<4s5H3I2H", b"PK\3\4", 20, *shared) + name + content
            offset = len(body)
    count = len(sizes)
    return body + index + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(index), len(body), 0)


@pytest.mark.parametrize(
    "content",
    [bundle([1 << 20], 0xFFFF_FFF0), bundle([1 << 20] * 300, overlap=True), bundle([100] * 20, 1 << 30)],
    ids=["one member", "members in each other", "the sum"],
)
def test_a_bundle_that_unpacks_without_end_is_refused_before_anything_is_unpacked(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpacked(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(archive.zlib, "decompressobj", unpacked)
    with pytest.raises(EvidenceError, match="the archive "):
        archive.read(content)
    (tmp_path / "a.zip").write_bytes(content)
    ran = run("verify", tmp_path / "a.zip")
    assert ran.code == 1
    assert "a.zip: the archive " in ran.line


# Tables that compute


@pytest.mark.parametrize(
    "table", [KERNEL, f"{KERNEL}_V3", "StringIds", "NVTX_EVENTS", "TARGET_INFO_GPU", "META_DATA_EXPORT"]
)
@pytest.mark.parametrize("command", ["analyze", "doctor", "redact"])
def test_a_view_in_place_of_a_table_is_refused(
    table: str, command: str, report: Path, tmp_path: Path
) -> None:
    changed(
        report,
        f"DROP TABLE IF EXISTS {table}",
        f'CREATE VIEW {table} AS {ENDLESS} SELECT x AS id, x AS start, x AS "end" FROM c ORDER BY x DESC',
    )
    ran = run(command, report, *(["-o", tmp_path / "b.sqlite"] if command == "redact" else []))
    assert ran.code == 3
    assert f"a.sqlite: {table} is a view or a virtual table" in ran.line


def test_a_view_of_another_name_is_not_looked_into(report: Path) -> None:
    changed(report, f"CREATE VIEW mine AS {ENDLESS} SELECT x FROM c ORDER BY x DESC")
    assert run("analyze", report).code == 0


def test_rows_without_end_are_refused(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a damaged file whose pages lead back to themselves, or of a join that multiplies."""
    monkeypatch.setattr("nsysddp.ingest.sql.SMALLEST_ROW_BYTES", report.stat().st_size)
    ran = run("analyze", report)
    assert ran.code == 3
    assert "more rows than the file can hold" in ran.line


# Queries


@pytest.mark.parametrize("form", ["text", "csv", "json"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT zeroblob(1000000000)",
        "SELECT hex(zeroblob(400000000))",
        "SELECT replace(printf('%90000d', 1), ' ', printf('%9000d', 1))",
    ],
)
def test_a_giant_cell_is_one_line(sql: str, form: str, report: Path, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(sql)
    ran = run("query", tmp_path / "q.sql", report, "--format", form)
    assert ran.code == 1
    assert "a cell holds more than 16 MiB" in ran.line


def test_an_answer_without_end_is_one_line(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsysddp.ingest.sql.MOST_BYTES", 1 << 20)
    (tmp_path / "q.sql").write_text(f"{ENDLESS} SELECT x FROM c")
    ran = run("query", tmp_path / "q.sql", report)
    assert ran.code == 1
    assert "the answer holds more than" in ran.line
    ran = run("query", tmp_path / "q.sql", report, "--limit", "3", "--format", "csv")
    assert (ran.code, ran.out) == (0, "x\n1\n2\n3\n")


# Cells that run

CELLS = {
    "=1+1": "'=1+1",
    "+cmd|' /C calc'!A0": "'+cmd|' /C calc'!A0",
    "-2+3+cmd": "'-2+3+cmd",
    "@SUM(A1)": "'@SUM(A1)",
    "\t=1": "'\t=1",
    "\r=1": "'\r=1",
    "'=1": "''=1",
    "＝1": "'＝1",
    "-5": "-5",
    "+1.5e3": "+1.5e3",
    "gemm": "gemm",
    "'gemm": "'gemm",
    "a=1": "a=1",
    "": "",
}


def test_no_cell_of_a_csv_is_a_formula_and_numbers_are_numbers() -> None:
    frame = pl.DataFrame({"name": list(CELLS), "=n": [-number for number in range(len(CELLS))]})
    rows = list(csv.reader(io.StringIO(as_csv(frame), newline="")))
    assert rows[0] == ["name", "'=n"]
    assert [row[0] for row in rows[1:]] == list(CELLS.values())
    assert [row[1] for row in rows[1:]] == [str(-number) for number in range(len(CELLS))]
    assert len(set(CELLS.values())) == len(CELLS)  # so that it can be undone


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "@SUM(1)", "+1+1", "-1+1"])
def test_no_output_holds_a_formula(name: str, tmp_path: Path) -> None:
    path = drawn().write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE StringIds SET value = ? WHERE value = 'gemm'", [name])
    (tmp_path / "q.sql").write_text('SELECT value AS "=v", -1 AS n FROM StringIds')
    outputs = [
        run("query", tmp_path / "q.sql", path, "--format", "csv").out,
        run("critical-path", path, "--format", "csv").out,
    ]
    assert run("critical-path", path, "--out", tmp_path / "out").code == 0
    outputs += [file.read_text() for file in (tmp_path / "out").glob("*.csv")]
    cells = [cell for text in outputs for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert f"'{name}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
    assert name not in cells
    assert "-1" in cells


# Names that tell

TELLING = {
    "my_kernel_alice@corp.example.com": "<mail>",
    "kernel<node17.cluster.example.com>": "kernel<<host>>",
    "train_on_node17.example.com_fwd": "<host>_fwd",
    "gpu-node-01_gemm": "<host>_gemm",
    "gemm_ip-10-0-3-17": "gemm_<host>",
    "run_10.0.3.17_fwd": "run_<address>_fwd",
    "k fe80::1ff:fe23:4567:890a": "k <address>",
    "k https://user:token@git.example.com/x y": "k <url> y",
    "bob@dgx01": "<mail>",
    "k_trainbox_gemm": "k_<host>_gemm",
}


@pytest.mark.parametrize("name", TELLING)
def test_hosts_and_mails_in_kernel_names_are_hidden_and_counted(name: str, tmp_path: Path) -> None:
    export = drawn(name)
    host = {"devStateName": "x", "name": "Hostname", "nameEnum": 1, "value": "trainbox.lab"}
    export.row("TARGET_INFO_SYSTEM_ENV", globalVid=1, **host)
    path = export.write(tmp_path / "a.sqlite")
    done = redact(path, tmp_path / "b.sqlite")
    with open_report(tmp_path / "b.sqlite") as copy, closing(copy.connect()) as db:
        names = {row[0] for row in db.execute("SELECT value FROM StringIds")}
    assert TELLING[name] in names
    assert name not in names
    assert sum(done.identifiers_hidden.values()) >= 1
    redact(path, tmp_path / "c.sqlite", policy=Policy(keep_identifiers=True))
    with open_report(tmp_path / "c.sqlite") as copy, closing(copy.connect()) as db:
        kept = {row[0] for row in db.execute("SELECT value FROM StringIds")}
    assert (name in kept) == ("//" not in name)


@pytest.mark.parametrize(
    "name",
    [
        "kernel-0123456789ab",
        "?kernel@ns@@YAXPEAM@Z",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16> >(int, float)-1",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_kernel__5x_cublas",
        "loop_add_fusion.12",
        "all-reduce-start.3",
        "custom-call.5",
        "foo.isra.0.constprop.2",
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn",
        "thrust::cuda_cub::core::_kernel_agent<x<-1, 2> >",
        "worker_12_gpu_kernel_impl",
    ],
)
def test_names_of_real_kernels_stay(name: str, tmp_path: Path) -> None:
    done = redact(drawn(name).write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite")
    assert done.identifiers_hidden == {}
    with open_report(tmp_path / "b.sqlite") as copy, closing(copy.connect()) as db:
        assert name in {row[0] for row in db.execute("SELECT value FROM StringIds")}


# Surroundings


@pytest.mark.parametrize("how", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_without_a_place_for_messages_the_exit_code_still_tells(
    how: str, report: Path, tmp_path: Path
) -> None:
    program = f"{sys.executable} -c 'from nsysddp.cli import main; main()'"

    def code(words: str) -> int:
        return subprocess.run(
            f"{program} {words} {how}", shell=True, stdout=subprocess.PIPE, check=False
        ).returncode

    assert code(f"timeline {report} -o {tmp_path}/a.png") == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert code(f"analyze {tmp_path}/none.sqlite") == 3


def test_a_message_that_was_left_unwritten_is_let_go_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python flushes at exit, and exits with 120 if that fails."""
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123
        full.write("what a library says")
        monkeypatch.setattr(sys, "stderr", full)
        _let_messages_go()
        full.flush()


@pytest.mark.parametrize("kind", ["pipe", "device", "giant"])
def test_small_inputs_end(kind: str, report: Path, tmp_path: Path) -> None:
    place = tmp_path / "x.sql"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        with place.open("wb") as stream:
            stream.truncate(1 << 40)
    why = "larger than 16 MiB" if kind == "giant" else "a pipe or a device"
    for words in (
        ["analyze", report, "--rules", place],
        ["check", report, "--claims", place],
        ["query", place, report],
        ["verify", place],
        ["evidence", report, "--claims", place, "-o", tmp_path / "e.zip"],
    ):
        ran = run(*words)
        assert ran.code in (1, 2)
        assert (why if words[0] != "verify" or kind != "giant" else "larger than 4095 MiB") in ran.line


def test_a_link_to_itself_is_no_output(report: Path, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "a")
    for words in (["report", report, "-o"], ["analyze", report, "--out"], ["redact", report, "-o"]):
        ran = run(*words, tmp_path / "a", "--force")
        assert ran.code == 2
        assert "a: is a link to itself" in ran.line


@pytest.mark.parametrize("command", ["timeline", "report", "export", "evidence"])
def test_what_was_written_cannot_steer_the_terminal(command: str, report: Path, tmp_path: Path) -> None:
    place = tmp_path / "\x1b]0;x\x07.png"
    ran = run(command, report, "--perfetto" if command == "export" else "-o", place)
    assert ran.code == 0, ran.err
    assert place.exists()
    assert "\\x1b]0;x\\x07.png" in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize(
    "piece", ["0", "a-", "a.", "a/", "/a", "a@", "1.", "a:", "lambda at ", "ab-1", "~/.", "a://"]
)
def test_a_name_of_a_million_letters_is_searched_in_one_pass(piece: str) -> None:
    """A pattern that looks at every pair of places would be at it for hours."""
    names = Names(Policy(keep_ranges=(".*",)), {})
    text = piece * (1_000_000 // len(piece))
    assert names.redact("kernel", text) is not None
    assert names.redact("range", text) is not None
