"""Redaction: nothing private reaches the copy, nothing that the analyses need is lost."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from builder import Export, global_pid, nccl_blob
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from nsysddp.cli.redact import command
from nsysddp.evidence.redact import Policy, redact
from nsysddp.evidence.redact.allowed import allow_list
from nsysddp.evidence.redact.names import Names, scrub_paths
from nsysddp.join.load import load
from nsysddp.model.errors import EvidenceError, NoGpuEvents, NotAReport, ReportError, UsageError
from nsysddp.model.markers import DEFAULT_PHASE_PATTERNS, BucketMark, RankMark, bucket_mark, rank_mark
from nsysddp.questions import analyze

SECRET = "Xq9SENTINELv7Z"

REAL = [
    *(
        f"h200/{name}"
        for name in (
            "blobs_ddp",
            "cvd",
            "delay_cap4",
            "delay_cap64",
            "graph_graph",
            "graph_node",
            "hook",
            "tp",
        )
    ),
    *(
        f"public/{name}"
        for name in (
            "c2023.4.4_s3.7.2__1proc_4gpu",
            "c2023.4.4_s3.7.2__4gpu_mpi_managed",
            "c2023.4.4_s3.7.2__8gpu_empty_kernel_table",
            "c2023.4.4_s3.7.2__device7_of_9",
            "d2026.1.1_s3.24.14__reduced_no_globalPid",
            "r2020-21_pre__cuda_gpu_table_2gpu",
            "r2021_pre__no_meta_17tab",
            "r2022.1.3_s2.9.1__user_added_columns",
            "r2023.3.3_s3.4.0__tiny",
            "r2023.4.1_s3.6.0__no_kernel_table",
            "r2024.5.1_s3.13.2__cloverleaf",
            "r2024.6.2_s3.16.1__small",
            "r2025.1.3_s3.17.2__2370_memcpy",
            "r2025.1.3_s3.17.2__no_kernel_table",
            "r2025.5.1_s3.23.3__small_2gpu_listed",
            "r2026.1.1_s3.24.14__mock_2kernels",
            "r2026.2.1_s3.25.0__2gpu_no_nccl",
            "r2026.2.1_s3.25.0__2gpu_sendrecv_after",
        )
    ),
]

Unpack = Callable[[str], Path]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return db


def tables(db: sqlite3.Connection) -> dict[str, list[str]]:
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {n: [row[1] for row in db.execute(f"PRAGMA table_info({quoted(n)})")] for n in names}


def rows(path: Path, table: str, columns: str = "*") -> list[tuple[object, ...]]:
    with closing(opened(path)) as db:
        return db.execute(f"SELECT {columns} FROM {quoted(table)} ORDER BY rowid").fetchall()


def holds(path: Path, secret: str = SECRET) -> bool:
    raw = path.read_bytes()
    forms = [secret.encode(), secret.encode("utf-16-le"), secret.encode("utf-16-be")]
    return any(form in raw or form.lower() in raw.lower() for form in forms)


@pytest.fixture
def drawn() -> Export:
    """Two ranks with a step, NCCL with payloads, a private range and a private kernel path."""
    export = Export(unit="ms", host="node-of-alice")
    for pid, device in ((100, 0), (101, 1)):
        process = export.process(pid=pid, device=device)
        process.range("step 0", 0, 100)
        process.range("forward", 1, 40)
        process.range("reading s3://bucket-of-alice", 2, 3)
        process.range("reading s3://bucket-of-alice", 4, 5, registered=True)
        process.kernel("void k<lambda at /home/alice/x.cu:12:3>(float*)", stream=7, at=(0, 50))
        process.nccl("AllReduce", stream=17, at=(20, 60), bytes=4 << 20, communicator=0xABC, padding=0x5A)
    return export


# The same numbers


@pytest.mark.parametrize("name", REAL)
def test_rows_of_real_reports_are_kept(name: str, unpacked: Unpack, tmp_path: Path) -> None:
    original, copy = unpacked(name), tmp_path / "copy.sqlite"
    before = hashlib.sha256(original.read_bytes()).digest()
    beside = set(original.parent.iterdir())
    outcome = redact(original, copy)

    assert hashlib.sha256(original.read_bytes()).digest() == before
    assert set(original.parent.iterdir()) == beside
    assert list(tmp_path.iterdir()) == [copy]
    assert outcome.cells_cleared == 0, "the shapes of the allow-list fit every real value"
    assert outcome.payloads_cleared == 0
    kept = {table.name: table for table in outcome.kept}
    allow = allow_list()
    with closing(opened(copy)) as db, closing(opened(original)) as source:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert set(tables(db)) == set(kept)
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE type <> 'table'").fetchone() == (0,)
        for table, columns in tables(db).items():
            rule = allow.rule_for(table)
            assert rule is not None
            numbers = [c for c in columns if rule.columns[c] == "integer" or rule.columns[c].endswith("Id")]
            wanted = ", ".join(["rowid", *map(quoted, numbers)])
            original_rows = source.execute(f"SELECT {wanted} FROM {quoted(table)} ORDER BY rowid").fetchall()
            copied = db.execute(f"SELECT {wanted} FROM {quoted(table)} ORDER BY rowid").fetchall()
            if table in ("StringIds", "PROCESSES", "NVTX_EVENTS", *allow.settings):
                assert set(copied) <= set(original_rows)
            else:
                assert copied == original_rows
            assert len(copied) == kept[table].rows == len(original_rows) - kept[table].rows_dropped
        strings = dict(source.execute("SELECT id, value FROM StringIds"))
        for table in tables(db):
            for column, kind in allow.tables.get(table, allow.tables["StringIds"]).columns.items():
                if kind == "kernelId" and column in tables(db)[table]:
                    used = db.execute(
                        f"SELECT id, value FROM StringIds WHERE id IN (SELECT {quoted(column)} FROM {quoted(table)})"
                    ).fetchall()
                    assert all(strings[i] == value for i, value in used), "no real kernel name is altered"


@pytest.mark.parametrize(
    "name", ["h200/blobs_ddp", "h200/delay_cap4", "public/r2026.2.1_s3.25.0__2gpu_sendrecv_after"]
)
def test_ranges_that_the_analyses_read_are_kept(name: str, unpacked: Unpack, tmp_path: Path) -> None:
    original, copy = unpacked(name), tmp_path / "copy.sqlite"
    redact(original, copy)
    columns = "rowid, start, end, eventType, globalTid, domainId, text, textId, binaryData"
    before, after = (
        {row[0]: row[1:] for row in rows(path, "NVTX_EVENTS", columns)} for path in (original, copy)
    )
    assert before.keys() == after.keys()
    for key, row in after.items():
        assert row[:5] + row[6:7] == before[key][:5] + before[key][6:7]
        text = before[key][5]
        assert row[5] == text or str(row[5]).startswith("range-")
        if text in ("forward", "backward", "optimizer", "NCCL") or str(text).startswith("step "):
            assert row[5] == text
        if row[7] is not None:  # count, schema, size, header; u64, u64, u32; padding
            assert row[7][:52] == before[key][7][:52]
            assert row[7][52:] == bytes(4)


def test_copy_of_a_copy_is_the_copy(unpacked: Unpack, tmp_path: Path) -> None:
    first, second, again = (tmp_path / f"{n}.sqlite" for n in "abc")
    source = unpacked("public/r2026.2.1_s3.25.0__2gpu_sendrecv_after")
    redact(source, first)
    redact(first, second)
    redact(source, again)
    assert first.read_bytes() == again.read_bytes(), "same input, same bytes"
    with closing(opened(first)) as a, closing(opened(second)) as b:
        assert list(a.iterdump()) == list(b.iterdump())


def test_later_table_name_is_copied_by_the_known_columns(drawn: Export, tmp_path: Path) -> None:
    source = drawn.write(
        tmp_path / "r.sqlite",
        rename={"CUPTI_ACTIVITY_KIND_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL_V3"},
        add={"CUPTI_ACTIVITY_KIND_KERNEL.laterColumn": f"TEXT DEFAULT '{SECRET}'"},
    )
    assert holds(source)
    redact(source, tmp_path / "c.sqlite")
    assert not holds(tmp_path / "c.sqlite")
    assert len(rows(tmp_path / "c.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL_V3")) == 4


def comparable(paths: list[Path]) -> dict[str, pl.DataFrame]:
    """Every frame of the run and of its analysis; range names that nothing depends on may have become tokens."""
    trace = load(paths, host_calls=True, shapes=True, metrics=True)
    frames = {
        name: value
        for name, value in vars(trace).items()
        if isinstance(value, pl.DataFrame) and not name.startswith("_")
    }
    return {**frames, **analyze(trace).tables}


@pytest.mark.parametrize(
    ("name", "minimal"), [*((name, False) for name in REAL), *((name, True) for name in REAL[:4])]
)
def test_analysis_of_the_copy_gives_the_same_numbers(
    name: str, minimal: bool, unpacked: Unpack, tmp_path: Path
) -> None:
    original, copy = unpacked(name), tmp_path / unpacked(name).name
    redact(original, copy, policy=Policy(minimal=minimal))
    if "kernel_table" in name:
        said = []
        for path in (original, copy):
            with pytest.raises(NoGpuEvents) as caught:
                comparable([path])
            said.append(str(caught.value))
        assert said[0] == said[1]
        return
    expected = comparable([original])
    got = comparable([copy])
    assert got.keys() == expected.keys()
    for table, frame in expected.items():
        assert_frame_equal(got[table], frame)


def test_analysis_of_several_hosts_gives_the_same_numbers(tmp_path: Path) -> None:
    sources = []
    for number, host in enumerate(("zeta.example", "alpha.example", "node10", "node9")):
        export = Export(unit="ms", host=host)
        process = export.process(pid=100 + number)
        process.range("step 0", 0, 100)
        process.kernel("gemm", stream=7, at=(number, 40))
        process.nccl("AllReduce", stream=17, at=(30 + number, 60 + number / 100))
        sources.append(export.write(tmp_path / f"r{number}.sqlite"))
    CliRunner().invoke(command, [*map(str, sources), "-o", str(tmp_path / "safe")], catch_exceptions=False)
    copies = sorted((tmp_path / "safe").iterdir())
    assert not any(holds(copy, "example") or holds(copy, "node9") for copy in copies)
    expected, got = comparable(sources), comparable(copies)
    for table, frame in expected.items():
        assert_frame_equal(got[table], frame)


# Secrets


def flood(path: Path) -> None:
    """Write the sentinel into every table and column of a report, and everywhere else that SQLite stores text."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        found = tables(db)
        kernels: set[int] = set()
        for table, columns in found.items():
            for column in ("shortName", "demangledName"):
                if table.startswith("CUPTI_ACTIVITY_KIND_KERNEL") and column in columns:
                    kernels |= {i for (i,) in db.execute(f"SELECT DISTINCT {column} FROM {quoted(table)}")}
        for number, (table, columns) in enumerate(found.items()):
            if table == "StringIds":
                continue
            info = db.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
            first = db.execute(f"SELECT * FROM {quoted(table)} LIMIT 1").fetchone() or [
                SECRET if row[2] == "TEXT" else 10**9
                for row in info  # no string has that id
            ]
            for at in range(len(columns)):
                for value in (f"{SECRET} {number}.{at}", f"/home/{SECRET}/f.txt", SECRET.encode()):
                    row = [value if i == at else cell for i, cell in enumerate(first)]
                    # An integer primary key holds no text, and must be unique.
                    if any(r[5] for r in info):
                        row = [10**6 + number * 1000 + at * 3 if info[i][5] else c for i, c in enumerate(row)]
                    marks = ", ".join("?" * len(row))
                    db.execute(f"INSERT OR REPLACE INTO {quoted(table)} VALUES ({marks})", row)
            for row in info:
                if row[2] == "TEXT" and table not in ("NVTX_EVENTS", "META_DATA_EXPORT", "EXPORT_META_DATA"):
                    db.execute(f"UPDATE {quoted(table)} SET {quoted(row[1])} = ?", (SECRET,))
        if "StringIds" in found:
            listed = ", ".join(map(str, kernels)) or "-1"
            db.execute(f"UPDATE StringIds SET value = '{SECRET} ' || id WHERE id NOT IN ({listed})")
            db.execute(
                f"UPDATE StringIds SET value = value || ' <lambda at /home/{SECRET}/a b/x.cu:1:2>' || "
                f"'/mnt/{SECRET}/k.cu' || char(0) || '{SECRET}' WHERE id IN ({listed})"
            )
        for setting in ("PROCESS_0:ENVIRONMENT_VARIABLE", SECRET, "CAPTURE_EVENT_TYPE", "RANK", "HOSTNAME"):
            for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"):
                if table in found:
                    for value in (SECRET, f"RANK={SECRET}", f"RANK=3\n{SECRET}", f"API_KEY={SECRET}"):
                        db.execute(f"INSERT INTO {table} (name, value) VALUES (?, ?)", (setting, value))
        db.execute(f'CREATE TABLE "{SECRET} table" ("{SECRET} column" TEXT DEFAULT \'{SECRET}\')')
        db.execute(f'INSERT INTO "{SECRET} table" VALUES (?)', (SECRET,))
        db.execute(f'CREATE VIEW "{SECRET} view" AS SELECT \'{SECRET}\' AS "{SECRET}"')
        db.execute(f'CREATE INDEX "{SECRET} index" ON "{SECRET} table" ("{SECRET} column")')
        db.execute(
            f"CREATE TRIGGER \"{SECRET} trigger\" AFTER INSERT ON StringIds BEGIN SELECT '{SECRET}'; END"
        )
        for table in found:
            db.execute(f"ALTER TABLE {quoted(table)} ADD COLUMN \"{SECRET} added\" TEXT DEFAULT '{SECRET}'")
        db.execute("ANALYZE")
        db.execute("CREATE TABLE gone (t TEXT)")
        db.executemany("INSERT INTO gone VALUES (?)", [(f"{SECRET} {i}" * 50,) for i in range(500)])
        db.execute("DROP TABLE gone")
        assert db.execute("PRAGMA freelist_count").fetchone()[0] > 0


@pytest.mark.parametrize(
    ("name", "minimal"), [*((name, False) for name in REAL), *((name, True) for name in REAL[:2])]
)
def test_no_planted_secret_is_in_the_copy(name: str, minimal: bool, unpacked: Unpack, tmp_path: Path) -> None:
    source, copy = tmp_path / "flooded.sqlite", tmp_path / "copy.sqlite"
    shutil.copy(unpacked(name), source)
    flood(source)
    assert holds(source)
    outcome = redact(source, copy, policy=Policy(minimal=minimal))
    assert not holds(copy)
    assert SECRET not in json.dumps(outcome.as_json())
    assert sum(table.rows for table in outcome.kept) > 0, "there is something in the copy"


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
@pytest.mark.parametrize("flooded", [False, True])
def test_utf16_reports(encoding: str, flooded: bool, unpacked: Unpack, tmp_path: Path) -> None:
    original, source, copy = (tmp_path / f"{n}.sqlite" for n in ("original", "utf16", "copy"))
    shutil.copy(unpacked("h200/blobs_ddp"), original)
    if flooded:
        flood(original)
    with closing(sqlite3.connect(original)) as old, closing(sqlite3.connect(source)) as new:
        new.execute(f"PRAGMA encoding = '{encoding}'")
        new.execute("PRAGMA synchronous = OFF")
        old.text_factory = lambda raw: raw.decode("utf-8", "replace").replace("\0", "~")
        script = "\n".join(
            line for line in old.iterdump() if "sqlite_stat" not in line and "ANALYZE" not in line
        )
        new.executescript(script)
    assert holds(source) == flooded
    redact(source, copy)
    assert not holds(copy)
    assert ("step 5",) in rows(copy, "NVTX_EVENTS", "text")
    if not flooded:
        assert sum(row[0] is not None for row in rows(copy, "NVTX_EVENTS", "binaryData")) == 82
        assert ("NVIDIA H200",) in rows(copy, "TARGET_INFO_GPU", "name")


def test_secrets_of_the_builder(drawn: Export, tmp_path: Path) -> None:
    drawn.plant_secret(SECRET)
    copy = tmp_path / "c.sqlite"
    redact(drawn.write(tmp_path / "r.sqlite"), copy)
    for secret in (SECRET, "alice", "node-of"):
        assert not holds(copy, secret)
    assert [row[0] for row in rows(copy, "PROCESSES", "pid")] == [100, 101]


def test_the_environment_is_three_numbers(tmp_path: Path) -> None:
    export = Export()
    export.process(pid=1).kernel("k", stream=7, at=(0, 1))
    for value in (
        "RANK=3",
        "WORLD_SIZE=8",
        "LOCAL_RANK=1",
        "RANK=x",
        "RANKS=3",
        "HOME=/home/u",
        "RANK=1\n",
        " RANK=1",
    ):
        export.capture("PROCESS_0:ENVIRONMENT_VARIABLE", value)
    redact(export.write(tmp_path / "r.sqlite"), tmp_path / "c.sqlite")
    kept = [
        v
        for n, v in rows(tmp_path / "c.sqlite", "META_DATA_CAPTURE")
        if str(n).endswith("ENVIRONMENT_VARIABLE")
    ]
    assert kept == ["RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1"]


def test_wal_mode_report_is_read_and_not_changed(drawn: Export, tmp_path: Path) -> None:
    source = drawn.write(tmp_path / "r.sqlite")
    with closing(sqlite3.connect(source, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE StringIds SET value = value")
    before = source.read_bytes()
    redact(source, tmp_path / "c.sqlite")
    assert source.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"r.sqlite", "c.sqlite"}


# Names


@pytest.fixture
def names() -> Names:
    return Names(Policy(), {})


@pytest.mark.parametrize(
    "text",
    [
        "step 5",
        "iteration_12",
        "ProfilerStep#3",
        "forward",
        "backward",
        "optimizer",
        "Optimizer.step#AdamW.step",
        "ncclAllReduce",
        "aten::mul, seq = 46174, op_id = 993406",
        "AddmmBackward0, op_id = 7",
        "DistributedDataParallel.forward",
        "bucket 3",
        rank_mark(RankMark(3, 8, 1, 0)),
        bucket_mark(BucketMark(1, 4096, 3, False)),
        "nsysddp:group=mesh_dp_shard ranks=0-510:2",
        "nsysddp:group=default_pg ranks=0,1",
        "TENSOR_MODEL_PARALLEL_GROUP",
        "mesh_dim_0",
        "",
    ],
)
def test_known_ranges_stay(names: Names, text: str) -> None:
    assert names.redact("range", text) == text


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"step 5 {SECRET}",
        f"Optimizer.step#{SECRET}",
        f"nsysddp:rank=0 world=2 local=0 device=0 {SECRET}",
        f"ncclAllReduce({SECRET})",
        f"nccl{SECRET}",
        f"aten::mul, sizes = {SECRET}",
        f"{{'model': '{SECRET}'}}",
        f"forward\n{SECRET}",
        f"/home/{SECRET}/train.py",
        f"nsysddp:group={SECRET} ranks=0,1",
        f"mesh_{SECRET}",
        f"{SECRET}_GROUP",
    ],
)
@pytest.mark.parametrize(
    "kind", ["range", "api", "field", "diagnostic", "gpu", "uuid", "metric", "utc", "chip", "bus"]
)
def test_other_names_do_not_stay(names: Names, kind: str, text: str) -> None:
    assert SECRET not in (names.redact(kind, text) or "")


def test_no_phase_pattern_but_one_has_a_free_part() -> None:
    free = [
        p
        for patterns in DEFAULT_PHASE_PATTERNS.values()
        for p in patterns.split("|")
        if ".*" in p or ".+" in p
    ]
    assert free == [r"Optimizer\.step#.*"], "a new free pattern needs a rule in Names"


def test_tokens_are_stable_and_salted(names: Names) -> None:
    token = names.redact("range", "my private range")
    assert token == Names(Policy(), {}).redact("range", "my private range")
    assert token != names.redact("range", "another private range")
    salted = Names(Policy(salt="s"), {}).redact("range", "my private range")
    assert salted != token
    assert salted == Names(Policy(salt="s"), {}).redact("range", "my private range")
    assert names.redact("range", str(token)) == token


def test_what_the_user_keeps_and_hides() -> None:
    names = Names(Policy(keep_ranges=("my .*", "phase"), hide=("secret_.*", "step 7")), {})
    assert names.redact("range", "My range in /home/u/x.py") == "My range in <path>"
    assert names.redact("range", "not my range") != "not my range"
    assert str(names.redact("kernel", "secret_kernel")).startswith("kernel-")
    assert names.redact("kernel", "other_kernel") == "other_kernel"
    assert str(names.redact("range", "step 7")).startswith("range-")
    with pytest.raises(UsageError, match="--hide"):
        Names(Policy(hide=("(",)), {})


def test_shared_string_is_hidden_everywhere(tmp_path: Path) -> None:
    export = Export()
    process = export.process(pid=1)
    process.kernel("secret_kernel", stream=7, at=(0, 1))
    process.range("secret_kernel", 0, 2, registered=True)
    source = export.write(tmp_path / "r.sqlite")
    redact(source, tmp_path / "a.sqlite")
    assert holds(tmp_path / "a.sqlite", "secret_kernel")
    redact(source, tmp_path / "b.sqlite", policy=Policy(hide=("secret.*",)))
    assert not holds(tmp_path / "b.sqlite", "secret_kernel")


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void op<&ns::T::operator/(int)>(float*)",
        "void op<ns::operator/=>(float*)",
        "void f<(int)4/2>(float*)",
        "void f<8 / 2>(a<b, c>)",
        "triton_poi_fused_add_0",
        "k(<float, 4>, </script>)",
    ],
)
def test_kernel_names_without_paths_stay(name: str) -> None:
    assert scrub_paths(name) == name


@pytest.mark.parametrize(
    ("name", "scrubbed"),
    [
        ("k<lambda at /home/a b/x.cu:12:3>(int)", "k<lambda at <path>:12:3>(int)"),
        (r"k<(lambda at C:\Users\me\x.cu:12:3)>(int)", "k<(lambda at <path>:12:3)>(int)"),
        ("f(/home/u/x.cu:12)", "f(<path>:12)"),
        ("see ~/x/y.log now", "see <path> now"),
        ("src/model/x.cu:7", "<path>:7"),
        (r"D:\data\x", "<path>"),
        ("k</home/u/x.cu>", "k<path>"),
    ],
)
def test_paths_in_names_go(name: str, scrubbed: str) -> None:
    got = scrub_paths(name)
    assert got == scrubbed or ("home" not in got and "u/x" not in got and name.startswith("k</"))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.text("abcXYZ019_-. é", min_size=1, max_size=8).filter(lambda s: s.strip(". ")),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["/", "\\"]),
    st.sampled_from(["/", "~/", "../", "C:\\", "\\\\host\\", ""]),
)
def test_property_no_folder_survives_in_a_lambda(folders: list[str], separator: str, root: str) -> None:
    path = root + separator.join(["QQQ" + folder for folder in folders]) + separator + "x.cu"
    name = f"void k<(lambda at {path}:12:3)>(float*, at::Tensor)"
    assert scrub_paths(name) == "void k<(lambda at <path>:12:3)>(float*, at::Tensor)"
    solid = path.replace(" ", "_")
    assert "QQQ" not in scrub_paths(f"k({solid}:12)")
    assert scrub_paths(scrub_paths(name)) == scrub_paths(name)


def test_hosts_are_aliased_over_reports(tmp_path: Path) -> None:
    hosts: dict[str, str] = {}
    for number, host in enumerate(("alpha", "beta", "alpha")):
        export = Export(host=host)
        export.process(pid=1).kernel("k", stream=7, at=(0, 1))
        source = export.write(tmp_path / f"r{number}.sqlite")
        redact(source, tmp_path / f"c{number}.sqlite", hosts=hosts)
        alias = [v for n, v in rows(tmp_path / f"c{number}.sqlite", "TARGET_INFO_SYSTEM_ENV", "name, value")]
        assert alias == [("host-1", "host-2", "host-1")[number]]
    names = Names(Policy(), {})
    assert (names.host("host-1"), names.host("x"), names.host("host-1")) == ("host-1", "host-2", "host-1")


# Payloads


def test_only_known_numbers_of_a_payload_are_copied(drawn: Export, tmp_path: Path) -> None:
    process = drawn.processes[0]
    domain = process.domain("mine")
    schema = {"domainId": domain, "schemaId": 1 << 24}
    drawn.row("NVTX_PAYLOAD_SCHEMAS", **schema, name=SECRET, type=1, numEntries=1, payloadSize=16)
    drawn.row(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES", **schema, idx=0, type=18, name=f"{SECRET} field", description=SECRET
    )
    blob = struct.pack("<4Q", 1, 1 << 24, 16, 32) + SECRET.encode().ljust(16)
    process.range("step 1", 100, 200, domain="mine", binaryData=blob)
    malformed = (
        b"",
        b"\0" * 7,
        struct.pack("<Q", 1 << 60),
        struct.pack("<4Q", 1, 16777221, 1 << 40, 32),
        blob[:40],
    )
    for part in malformed:
        process.range("step 2", 200, 300, domain="NCCL", binaryData=part)
    copy = tmp_path / "c.sqlite"
    outcome = redact(drawn.write(tmp_path / "r.sqlite"), copy)
    assert not holds(copy)
    kept = [row[0] for row in rows(copy, "NVTX_EVENTS", "binaryData") if row[0] is not None]
    wanted = nccl_blob("AllReduce", bytes=4 << 20, communicator=0xABC)
    assert kept == [wanted, wanted], "padding 0x5A became zero"
    assert (outcome.payloads_kept, outcome.payloads_cleared) == (2, 1 + len(malformed))


def test_a_schema_that_processes_use_differently_is_not_copied(drawn: Export, tmp_path: Path) -> None:
    """Schemas do not say whose they are; another process may mean something else by the same id."""
    entries = drawn.rows["NVTX_PAYLOAD_SCHEMA_ENTRIES"]
    for row in entries[len(entries) // 2 :]:
        if row["name"] == "Message size [bytes]":
            row["name"] = "my salary"
    copy = tmp_path / "c.sqlite"
    redact(drawn.write(tmp_path / "r.sqlite"), copy)
    assert not [row for row in rows(copy, "NVTX_EVENTS", "binaryData") if row[0] is not None]


def test_fields_without_offsets_follow_each_other(drawn: Export, tmp_path: Path) -> None:
    for row in drawn.rows["NVTX_PAYLOAD_SCHEMA_ENTRIES"]:
        row["offset"] = None
    copy = tmp_path / "c.sqlite"
    redact(drawn.write(tmp_path / "r.sqlite"), copy)
    kept = [row[0] for row in rows(copy, "NVTX_EVENTS", "binaryData") if row[0] is not None]
    assert kept == [nccl_blob("AllReduce", bytes=4 << 20, communicator=0xABC)] * 2


# Windows


def test_window_keeps_its_events_and_their_launches(tmp_path: Path) -> None:
    export = Export(unit="ms")
    process = export.process(pid=1)
    for step in range(4):
        process.range(f"step {step}", 100 * step, 100 * step + 90)
        process.kernel(
            "k", stream=7, at=(100 * step + 50, 100 * step + 80), launched=(100 * step + 10, 100 * step + 11)
        )
    process.kernel("early launch", stream=7, at=(290, 299), launched=(120, 121))
    export.gpu_metric("SMs Active [Throughput %]", {199: 1, 200: 2, 299: 3, 300: 4})
    export.gpu_metric(f"{SECRET} [Throughput %]", {250: 5})
    copy = tmp_path / "c.sqlite"
    window = (200_000_000, 300_000_000)
    redact(export.write(tmp_path / "r.sqlite"), copy, policy=Policy(minimal=True, window_ns=window))
    kernels = rows(copy, "CUPTI_ACTIVITY_KIND_KERNEL", "start / 1000000")
    assert sorted(kernels) == [(250,), (290,)]
    launches = {row[0] for row in rows(copy, "CUPTI_ACTIVITY_KIND_RUNTIME", "start / 1000000")}
    assert {120, 210} <= launches
    assert sorted(rows(copy, "GPU_METRICS", "value")) == [(2,), (3,), (5,)]
    assert sorted(rows(copy, "TARGET_INFO_GPU_METRICS", "metricName"), key=str) == [
        ("SMs Active [Throughput %]",),
        (None,),
    ]
    assert not {10, 110, 310} & launches
    assert {row[0] for row in rows(copy, "NVTX_EVENTS", "text")} >= {"step 1", "step 2"}
    assert "step 3" not in {row[0] for row in rows(copy, "NVTX_EVENTS", "text")}
    with pytest.raises(UsageError, match="empty"):
        redact(tmp_path / "r.sqlite", tmp_path / "d.sqlite", policy=Policy(window_ns=(5, 5)))


# Bad input, refusals, command line


def broken(tmp_path: Path, source: Path) -> Iterator[tuple[str, bytes]]:
    raw = source.read_bytes()
    yield "foreign", b"hello, world" * 100
    yield "empty", b""
    yield "cut", raw[: len(raw) // 2]
    yield "cut_gz", gzip.compress(raw)[:500]
    yield "scribbled", raw[:4096] + b"\xff" * (len(raw) - 4096)


def test_bad_input_leaves_nothing_behind(drawn: Export, tmp_path: Path) -> None:
    source = drawn.write(tmp_path / "r.sqlite")
    out = tmp_path / "out"
    out.mkdir()
    for name, raw in broken(tmp_path, source):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(ReportError) as caught:
            redact(tmp_path / name, out / "c.sqlite")
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ReportError):
        redact(tmp_path / "absent.sqlite", out / "c.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(NotAReport):
        redact(tmp_path / "other.sqlite", out / "c.sqlite")
    assert list(out.iterdir()) == []


def test_refusals(drawn: Export, tmp_path: Path) -> None:
    source, copy = drawn.write(tmp_path / "r.sqlite"), tmp_path / "c.sqlite"
    copy.write_text("precious")
    with pytest.raises(UsageError, match="--force"):
        redact(source, copy)
    assert copy.read_text() == "precious"
    with pytest.raises(UsageError, match="report itself"):
        redact(source, source, force=True)
    with pytest.raises(UsageError, match="folder"):
        redact(source, tmp_path / "absent" / "c.sqlite")
    redact(source, copy, force=True)
    assert rows(copy, "StringIds")


def test_unwritable_folder_is_one_line(
    drawn: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = drawn.write(tmp_path / "r.sqlite")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nsysddp.evidence.redact.publish", full)
    with pytest.raises(EvidenceError, match="No space"):
        redact(source, tmp_path / "c.sqlite")
    assert {p.name for p in tmp_path.iterdir()} == {"r.sqlite"}


def test_command_line(drawn: Export, tmp_path: Path) -> None:
    source = drawn.write(tmp_path / "r.sqlite")
    packed = tmp_path / "p.sqlite.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    run = CliRunner()
    one = run.invoke(command, [str(packed), "-o", str(tmp_path / "one.sqlite"), "--format", "json"])
    assert one.exit_code == 0, one.output
    (summary,) = json.loads(one.stdout)
    assert summary["schema"] == "nsysddp.redaction/1"
    assert {
        key: next(t for t in summary["kept"] if t["name"] == "CUPTI_ACTIVITY_KIND_KERNEL")[key]
        for key in ("name", "rows", "rows_dropped")
    } == {"name": "CUPTI_ACTIVITY_KIND_KERNEL", "rows": 4, "rows_dropped": 0}
    assert "alice" not in one.output
    two = run.invoke(command, [str(packed), str(source), "-o", str(tmp_path / "folder")])
    assert two.exit_code == 0, two.output
    assert two.stdout == ""
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in two.stderr
    assert {p.name for p in (tmp_path / "folder").iterdir()} == {"p.sqlite", "r.sqlite"}
    again = run.invoke(command, [str(source), "-o", str(tmp_path / "one.sqlite")])
    assert isinstance(again.exception, UsageError)
    twice = run.invoke(command, [str(source), str(source), "-o", str(tmp_path / "other")])
    assert isinstance(twice.exception, UsageError)


def test_allow_list_is_well_formed() -> None:
    allow = allow_list()
    kinds = {kind for rule in allow.tables.values() for kind in rule.columns.values()}
    known = {
        "integer",
        "kernelId",
        "apiId",
        "rangeId",
        "kernel",
        "range",
        "payload",
        "diagnostic",
        "host",
        "setting",
        "string",
    }
    assert kinds <= known | set(allow.names) | set(allow.values)
    assert {rule.span for rule in allow.tables.values()} == {"", "gpu", "host"}
    assert set(allow.settings) <= set(allow.tables)
    assert global_pid(100) >> 24 & 0xFFFFFF == 100
