"""The results database on SQLite and on a real PostgreSQL: nothing lost, nothing doubled, nothing secret."""

from __future__ import annotations

import copy
import json
import os
import pwd
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, require
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, inspect, select, text, update

from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.store import connection as connections
from nsysddp.store import rows
from nsysddp.store.database import delete, load_document, load_run, metric_values, runs, save, tag
from nsysddp.store.models import Base, Overlap, Rank, Run

# ------------------------------------------------------------ documents


def overlap_row(rank: int = 0, step: int = 0, exposed: int = 30, **changes: Any) -> dict[str, Any]:
    """A step of 100 ns computing and 20 ns of hidden communication, with ``exposed`` ns of exposed communication."""
    row = {
        "rank": rank,
        "pid": 4000 + rank,
        "device": 0,
        "step": f"step {step}",
        "step_index": step,
        "is_warmup": step == 0,
        "window_ns": 100 + exposed + 7,
        "compute_ns": 100,
        "spin_ns": 0,
        "communication_ns": 20 + exposed,
        "hidden_communication_ns": 20,
        "exposed_communication_ns": exposed,
        "hidden_transfer_ns": None,
        "exposed_memory_ns": 0,
        "graph_ns": 0,
        "idle_ns": 7,
        "overlap_ratio": 20 / (20 + exposed),
        "kernels": 3,
        "collectives": 1,
    }
    return row | changes


def document(number: int = 0, *, ranks: int = 2, steps: int = 3) -> dict[str, Any]:
    """A small result document, different for each number."""
    return {
        "schema_version": 1,
        "tool": {"name": "nsysddp", "version": "0.1.0"},
        "inputs": [
            {
                "name": f"run{number}.sqlite",
                "sha256": f"{number:064x}",
                "nsys_version": "2026.1.1",
                "schema": "3.24.14",
            }
        ],
        "tables": {
            "rank": [{"rank": rank, "gpu_name": "NVIDIA H200", "world_size": ranks} for rank in range(ranks)],
            "overlap": [
                overlap_row(rank, step, 30 + number) for rank in range(ranks) for step in range(steps)
            ],
        },
        "findings": [
            {
                "code": "overlap_on_every_rank",
                "rank": None,
                "step": None,
                "value": 20,
                "unit": "ns",
                "message": "every rank hides communication",
                "rows": [{"table": "overlap", "row": 0}],
            }
        ],
        "assumptions": [],
        "warnings": [],
    }


# ------------------------------------------------------------ databases


def _server_folder() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda one: int(one.parent.name))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a real server: NSYSDDP_TEST_POSTGRES, else a cluster of our own that lives as long as the tests."""
    given = os.environ.get("NSYSDDP_TEST_POSTGRES")
    if given:
        yield given
        return
    programs = _server_folder()
    # The server refuses to run as root.
    names = {entry.pw_name for entry in pwd.getpwall()}
    other = (
        next((name for name in ("postgres", "nobody") if name in names), None) if os.geteuid() == 0 else ""
    )
    require("PostgreSQL", programs is not None and other is not None)
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # short: a socket's path has 107 bytes at most
    as_other = ["runuser", "-u", other, "--"] if other else []
    if other:
        shutil.chown(folder, other)

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*as_other, str(programs / program), "-D", str(folder / "data"), *arguments],
            cwd="/",
            stdout=subprocess.DEVNULL,  # a pipe would stay open as long as the server
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == 0, f"{program} ended with {done.returncode}"

    try:
        run("initdb", "-U", "nsysddp", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        run(
            "pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-c listen_addresses='' -k {folder} -F", "start"
        )
        try:
            yield f"postgresql://nsysddp:not-asked-for@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database on the server."""
    from sqlalchemy import create_engine

    name = f"nsysddp_{uuid.uuid4().hex}"
    server = create_engine(connections.resolve_url(postgres_server), isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    url = connections.resolve_url(postgres_server).set(database=name)
    yield url.render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "results.db")
    return str(request.getfixturevalue("postgres_url"))


def engine_of(url: str) -> Engine:
    return connections._engine(connections.resolve_url(url))


NOTHING_ELSE = {"baseline": 0, "request": 0}


def row_counts(url: str) -> dict[str, int]:
    """How many rows each table has."""
    with engine_of(url).connect() as connection:
        return {
            name: connection.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
        }


def rows_of_runs(url: str) -> dict[int, int]:
    """How many overlap rows each run has."""
    with engine_of(url).connect() as connection:
        query = select(Run.id, func.count(Overlap.position)).outerjoin(Overlap).group_by(Run.id)
        return {int(run_id): int(count) for run_id, count in connection.execute(query)}


# ------------------------------------------------------------ save, reload, list, tag, delete


def test_a_saved_document_comes_back_exactly(url: str) -> None:
    given = document()
    given["tables"]["rank"][0]["gpu_name"] = (
        "NUL \0, lone surrogate \udce2, <float, 4>, '; DROP TABLE run; --"
    )
    given["tables"]["new_table"] = [{"z": 1, "a": [1.5e-7, None, 2**80]}]
    begun = time.time()
    number = save(given, url=url, label="first")
    assert json.dumps(load_document(number, url=url)) == json.dumps(given)
    stored = load_run(number, url=url)
    assert (stored.label, stored.steps, stored.tool_version, stored.capture) == ("first", 3, "0.1.0", None)
    assert stored.inputs == tuple(given["inputs"])
    assert (
        stored.ranks[0]["gpu_name"] == "NUL \ufffd, lone surrogate \ufffd, <float, 4>, '; DROP TABLE run; --"
    )
    assert stored.findings[0] == {key: value for key, value in given["findings"][0].items() if key != "rows"}
    assert stored.created_at.utcoffset() is not None
    assert begun - 1e-3 <= stored.created_at.timestamp() <= time.time()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extra=JSON, message=st.text(st.characters()))
def test_any_json_comes_back_exactly(tmp_path: Path, extra: Any, message: str) -> None:
    given = document() | {"extra": extra}
    given["findings"][0]["message"] = message
    target = str(tmp_path / "results.db")
    number = save(given, url=target)
    assert json.dumps(load_document(number, url=target)) == json.dumps(given)
    assert save(json.loads(json.dumps(given, sort_keys=True)), url=target) == number


def test_the_same_document_is_the_same_run(url: str) -> None:
    number = save(document(), url=url)
    reordered = dict(reversed(document().items()))
    assert save(reordered, url=url, label="named later", run={"seed": 7}) == number
    assert save(document(), url=url) == number, "a later save without label and record keeps both"
    (stored,) = runs(url=url)
    assert (stored.label, stored.capture) == ("named later", {"seed": 7})
    assert (
        row_counts(url)
        == {"run": 1, "input": 1, "rank": 2, "overlap": 6, "finding": 1, "tag": 0} | NOTHING_ELSE
    )
    assert save(document(1), url=url) != number


def test_runs_are_found_by_tag_and_label_oldest_first(url: str) -> None:
    numbers = [save(document(index), url=url, label="even" if index % 2 == 0 else None) for index in range(5)]
    tag(numbers[1:4], add=["nightly", "h200"], url=url)
    tag([numbers[2]], remove=["h200", "never there"], add=["nightly"], url=url)
    assert [run.run_id for run in runs(url=url)] == numbers
    assert [run.run_id for run in runs(url=url, tags=["nightly"])] == numbers[1:4]
    assert [run.run_id for run in runs(url=url, tags=["nightly", "h200"])] == [numbers[1], numbers[3]]
    assert [run.run_id for run in runs(url=url, label="even")] == numbers[::2]
    assert [run.run_id for run in runs(url=url, last=2)] == numbers[-2:]
    assert load_run(numbers[2], url=url).tags == ("nightly",)


def test_delete_takes_every_row_of_the_run_and_no_other(url: str) -> None:
    first, second = save(document(0), url=url), save(document(1), url=url)
    tag([first, second], add=["kept"], url=url)
    delete([first], url=url)
    assert (
        row_counts(url)
        == {"run": 1, "input": 1, "rank": 2, "overlap": 6, "finding": 1, "tag": 1} | NOTHING_ELSE
    )
    delete([second], url=url)
    assert set(row_counts(url).values()) == {0}
    assert save(document(0), url=url) > second, "a deleted run's number never names another"


def test_unknown_runs_change_nothing(url: str) -> None:
    number = save(document(), url=url)
    for call in (
        lambda: delete([number, 999], url=url),
        lambda: tag([number, 999], add=["x"], url=url),
        lambda: load_document(999, url=url),
        lambda: load_run(-1, url=url),
        lambda: load_run(2**70, url=url),
    ):
        with pytest.raises(EvidenceError, match="there is no run"):
            call()
    assert load_run(number, url=url).tags == ()


def test_metric_values_leave_warm_up_out_and_unknown_null(url: str) -> None:
    number = save(document(5), url=url)
    exposed = metric_values("exposed_communication_ns", [number], url=url)
    assert [(row.rank, row.value) for row in exposed] == [(0, 35), (0, 35), (1, 35), (1, 35)]
    assert {row.value for row in metric_values("hidden_transfer_ns", [number], url=url)} == {None}
    with pytest.raises(UsageError, match=r"no metric rank.*window_ns"):
        metric_values("rank", [number], url=url)


# ------------------------------------------------------------ refusals


def _broken(path: list[Any], value: Any) -> dict[str, Any]:
    given: Any = document()
    place = given
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return dict(given)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["schema_version"], 2, "schema_version 2, newer than 1"),
        (["schema_version"], KeyError, "no schema_version"),
        (["tables", "overlap"], KeyError, "lacks tables.overlap"),
        (["findings"], None, "lacks findings"),
        (["tool"], "nsysddp", "lacks tool or tables"),
        (["tables", "overlap", 3], [], r"tables.overlap\[3\] is not an object"),
        (["tables", "overlap", 3, "window_ns"], 1.5, r"tables.overlap\[3\].window_ns cannot be 1.5"),
        (["tables", "overlap", 3, "window_ns"], True, r"window_ns cannot be true"),
        (["tables", "overlap", 3, "window_ns"], 2**63, r"window_ns cannot be 9223372036854775808"),
        (["tables", "overlap", 3, "rank"], None, r"rank cannot be null"),
        (["tables", "overlap", 3, "idle_ns"], 8, "contradict themselves"),
        (["tables", "overlap", 3, "hidden_communication_ns"], 19, "contradict themselves"),
        (["findings", 0, "value"], float("nan"), "not plain JSON"),
        (["extra"], {1, 2}, "not plain JSON"),
    ],
)
def test_a_malformed_document_is_one_line_and_leaves_nothing(
    url: str, path: list[Any], value: Any, complaint: str
) -> None:
    before = save(document(9), url=url)
    with pytest.raises(EvidenceError, match=complaint) as raised:
        save(_broken(path, value), url=url)
    assert "\n" not in str(raised.value)
    assert list(rows_of_runs(url)) == [before]


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "\x1b[31m", "x" * 101])
def test_names_are_printable(url: str, name: str) -> None:
    number = save(document(), url=url)
    with pytest.raises(UsageError, match="printable"):
        tag([number], add=[name], url=url)
    with pytest.raises(UsageError, match="printable"):
        save(document(1), url=url, label=name)
    assert len(runs(url=url)) == 1


def test_a_changed_document_is_noticed(url: str) -> None:
    import zstandard

    number = save(document(), url=url)
    for stored in (
        zstandard.compress(json.dumps(document(1)).encode()),
        b"garbage",
        zstandard.compress(b"[]"),
    ):
        with engine_of(url).execution_options(writes=True).begin() as connection:
            connection.execute(update(Run).values(document_zstd=stored))
        with pytest.raises(EvidenceError, match="was changed after it was saved"):
            load_document(number, url=url)


def test_where_a_capture_ran_is_not_kept(tmp_path: Path) -> None:
    record = {
        "command": ["torchrun", "--token", "S3CRET"],
        "config": {"bucket_cap_mb": 25, "env": {"HF_TOKEN": "S3CRET"}},
        "nodes": [{"hostname": "S3CRET-host", "gpus": 8}],
        "Environment": {"HF_TOKEN": "S3CRET", "NCCL_P2P_DISABLE": "1"},
        "user": "S3CRET",
    }
    number = save(document(), url=str(tmp_path / "results.db"), run=record)
    stored = load_run(number, url=str(tmp_path / "results.db"))
    assert stored.capture == {
        "config": {"bucket_cap_mb": 25},
        "nodes": [{"gpus": 8}],
        "Environment": {"NCCL_P2P_DISABLE": "1"},
    }
    assert not any(b"S3CRET" in file.read_bytes() for file in tmp_path.iterdir())


# ------------------------------------------------------------ which database


def test_the_default_is_a_file_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("NSYSDDP_DB", raising=False)
    if sys.platform == "linux":
        assert connections.default_file() == tmp_path / "nsysddp" / "results.db"
    with pytest.raises(EvidenceError, match=r"there is no results database results.db yet; save a run first"):
        runs()
    assert not connections.default_file().exists(), "looking makes nothing"
    save(document())
    assert connections.default_file().exists()
    monkeypatch.setenv("NSYSDDP_DB", str(tmp_path / "other.db"))
    save(document(1))
    assert [run.inputs[0]["name"] for run in runs()] == ["run1.sqlite"]
    assert [run.inputs[0]["name"] for run in runs(url=str(connections.default_file()))] == ["run0.sqlite"]


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("mysql://u:pa55word@h/d", "not in mysql"),
        ("postgresql://u:pa55word@h:port/d", "cannot be read"),
        ("://u:pa55word@", "cannot be read"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_other_addresses_are_refused_without_their_password(address: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as raised:
        runs(url=address)
    assert "pa55word" not in str(raised.value)


@pytest.mark.parametrize("query", ["", "?password=pa55word", "?options=pa55word"])
def test_a_server_that_does_not_answer_is_one_line_without_the_password(query: str) -> None:
    with pytest.raises(EvidenceError, match="cannot be used") as raised:
        runs(url=f"postgresql://walter:pa55word@127.0.0.1:9/results{query}")
    message = str(raised.value)
    assert "pa55word" not in message
    assert "walter" not in message
    assert "\n" not in message
    assert raised.value.__suppress_context__


def test_a_missing_database_of_a_server_is_one_line(postgres_server: str) -> None:
    address = connections.resolve_url(postgres_server).set(database="nowhere", password="pa55word")
    with pytest.raises(EvidenceError, match="does not exist") as raised:
        runs(url=address.render_as_string(hide_password=False))
    assert "pa55word" not in str(raised.value)


def test_missing_packages_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "find_spec", lambda name: None if name == "alembic" else object())
    with pytest.raises(
        UsageError, match=r"needs alembic, not installed here; pip install 'nsysddp\[store\]'"
    ):
        save(document(), url=str(tmp_path / "results.db"))
    assert list(tmp_path.iterdir()) == []


def test_other_files_stay_untouched(tmp_path: Path) -> None:
    export, words, empty = tmp_path / "report.sqlite", tmp_path / "notes.txt", tmp_path / "empty.db"
    with sqlite3.connect(export) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    connection.close()
    words.write_text("not a database, but long enough to be looked at as one " * 20)
    empty.touch()
    for file, complaint in (
        (export, "is not an nsysddp results database"),
        (words, "file is not a database"),
    ):
        before = file.read_bytes()
        with pytest.raises(EvidenceError, match=complaint):
            save(document(), url=str(file))
        assert file.read_bytes() == before
    with pytest.raises(EvidenceError, match="unable to open database file"):
        save(document(), url=str(tmp_path))
    assert save(document(), url=str(empty)) == 1
    assert {file.name for file in tmp_path.iterdir()} == {"report.sqlite", "notes.txt", "empty.db"}


# ------------------------------------------------------------ migrations


def test_migrations_make_exactly_the_models(url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    save(document(), url=url)
    with engine_of(url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": connections.VERSION_TABLE})
        assert compare_metadata(context, Base.metadata) == []
        checks = {check["name"] for check in inspect(connection).get_check_constraints("overlap")}
    assert checks == {"ck_overlap_communication_balances", "ck_overlap_window_balances"}


def _later_revision(folder: Path, body: str) -> Path:
    """A copy of the migrations with one more revision."""
    shutil.copytree(connections.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    newest = max(path.name for path in (folder / "versions").glob("0*.py")).partition("_")[0]
    (folder / "versions" / "9001_later.py").write_text(
        f'import sqlalchemy as sa\nfrom alembic import op\nrevision = "9001"\ndown_revision = "{newest}"\n'
        f"def upgrade():\n{body}"
    )
    return folder


def test_an_older_database_is_upgraded_without_loss(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [
        save(document(index), url=url, label=f"run {index}", run={"seed": index}) for index in range(3)
    ]
    tag(numbers, add=["old"], url=url)
    before, counts = runs(url=url), row_counts(url)
    # On SQLite the batch rebuilds table "run", to which all others refer with ON DELETE CASCADE.
    body = (
        '    with op.batch_alter_table("run", recreate="auto") as batch:\n'
        '        batch.add_column(sa.Column("note", sa.Text(), server_default="none", nullable=False))\n'
        '        batch.alter_column("tool_version", type_=sa.String(200), existing_type=sa.Text())\n'
    )
    monkeypatch.setattr(connections, "MIGRATIONS", _later_revision(tmp_path / "migrations", body))
    assert runs(url=url) == before
    assert row_counts(url) == counts
    assert [load_document(number, url=url) for number in numbers] == [document(index) for index in range(3)]
    with engine_of(url).connect() as connection:
        assert set(connection.scalars(text("SELECT note FROM run"))) == {"none"}
        assert connection.scalar(text(f"SELECT version_num FROM {connections.VERSION_TABLE}")) == "9001"


def test_an_upgrade_that_fails_changes_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = save(document(), url=url)
    body = (
        '    op.drop_table("finding")\n'
        '    op.add_column("run", sa.Column("note", sa.Text()))\n'
        '    op.drop_table("nowhere")\n'
    )
    with monkeypatch.context() as patch:
        patch.setattr(connections, "MIGRATIONS", _later_revision(tmp_path / "migrations", body))
        with pytest.raises(EvidenceError, match="nowhere"):
            runs(url=url)
    assert load_run(number, url=url).findings[0]["code"] == "overlap_on_every_rank"


def test_an_upgrade_that_would_lose_parents_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "results.db")
    number = save(document(), url=target)
    with monkeypatch.context() as patch:
        later = _later_revision(tmp_path / "migrations", '    op.execute("DELETE FROM run")\n')
        patch.setattr(connections, "MIGRATIONS", later)
        with pytest.raises(EvidenceError, match="would lose rows and was undone"):
            runs(url=target)
    assert load_document(number, url=target) == document()


def test_a_newer_database_is_refused(url: str) -> None:
    save(document(), url=url)
    with engine_of(url).execution_options(writes=True).begin() as connection:
        connection.execute(text(f"UPDATE {connections.VERSION_TABLE} SET version_num = '0042'"))
    for call in (lambda: runs(url=url), lambda: save(document(1), url=url), lambda: delete([1], url=url)):
        with pytest.raises(
            EvidenceError, match=r"schema 0042, written by a newer nsysddp.*upgrade nsysddp"
        ) as raised:
            call()
        assert "\n" not in str(raised.value)
    assert row_counts(url)["run"] == 1


# ------------------------------------------------------------ many at once, and killed

CHILD = """
import json, sys
from nsysddp.store.database import save
from sqlalchemy import event
from sqlalchemy.orm import Session
url, documents = sys.argv[1], json.load(open(sys.argv[2]))
"""


def child(code: str, url: str, documents: list[dict[str, Any]], folder: Path) -> subprocess.Popen[str]:
    """Another process, with these documents to save."""
    file = folder / f"{uuid.uuid4().hex}.json"
    file.write_text(json.dumps(documents))
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + code, url, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_many_writers_lose_nothing_and_double_nothing(url: str, tmp_path: Path) -> None:
    """Five processes make the database, and save three documents of their own and a common one, all at once."""
    code = """
print("ready", flush=True)
sys.stdin.readline()
print(*(save(one, url=url) for one in documents))
"""
    writers = [
        child(code, url, [document(0), *(document(10 * own + index) for index in range(3))], tmp_path)
        for own in range(1, 6)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    answers = [writer.communicate(timeout=120) for writer in writers]
    assert [errors for _, errors in answers] == [""] * 5
    numbers = [list(map(int, answer.split())) for answer, _ in answers]
    assert len({common for common, *_ in numbers}) == 1
    every = {number for answer in numbers for number in answer}
    assert len(every) == 1 + 5 * 3
    assert rows_of_runs(url) == dict.fromkeys(every, 6)
    assert len({run.content_sha256 for run in runs(url=url)}) == 16


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_killed_at_the_commit_leaves_all_or_nothing(url: str, moment: str, tmp_path: Path) -> None:
    first = save(document(1), url=url)
    code = f"""
@event.listens_for(Session, {moment!r})
def stop(session):
    print("here", flush=True)
    sys.stdin.readline()
save(documents[0], url=url)
"""
    writer = child(code, url, [document(2, ranks=8, steps=100)], tmp_path)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "here\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=60)
    kept = rows_of_runs(url)
    assert kept.pop(first) == 6
    assert list(kept.values()) == ([800] if moment == "after_commit" else [])
    number = save(document(2, ranks=8, steps=100), url=url)
    assert rows_of_runs(url) == {first: 6, number: 800}, "the dead writer's lock is gone"


def test_killed_at_any_moment_keeps_what_was_promised(url: str, tmp_path: Path) -> None:
    code = """
for one in documents:
    print(save(one, url=url), flush=True)
"""
    random_ = random.Random(0)
    promised: set[int] = set()
    for start in range(0, 500, 100):
        documents = [document(start + index, ranks=4, steps=20) for index in range(100)]
        writer = child(code, url, documents, tmp_path)
        assert writer.stdout is not None
        promised.add(int(writer.stdout.readline()))
        time.sleep(random_.uniform(0.0, 0.25))
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=60)
        promised |= {int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")}
        kept = rows_of_runs(url)
        assert promised <= set(kept)
        assert set(kept.values()) == {80}
        for number in kept:
            load_document(number, url=url)


def test_a_reader_does_not_wait_for_a_writer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer ends only after the reader has: who waited for it would be refused, or wait without end."""
    save(document(), url=url)
    monkeypatch.setattr(connections, "BUSY_TIMEOUT_S", 0)
    with connections.transaction(url, write=True) as session:
        session.execute(update(Run).values(label="not yet"))
        assert [run.label for run in runs(url=url)] == [None]
    assert [run.label for run in runs(url=url)] == ["not yet"]


def test_a_complaint_that_repeats_the_password_is_masked() -> None:
    """The present drivers never do that."""
    from sqlalchemy.exc import OperationalError

    address = connections.resolve_url("postgresql://walter:pa55word@h/d?password=5ecret")
    error = OperationalError("SELECT 'row'", {}, Exception("login of pa55word or 5ecret failed\nsecond line"))
    assert connections._complaint(error, address) == "login of *** or *** failed"


def test_making_the_file_waits_for_who_holds_it(tmp_path: Path) -> None:
    """SQLite refuses the switch to write-ahead logging at once while another holds the write lock."""
    target = tmp_path / "results.db"
    holder = sqlite3.connect(target, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.4, holder.execute, ["COMMIT"])
    release.start()
    assert save(document(), url=str(target)) == 1
    release.join()
    holder.close()


def test_sqlite_keeps_a_write_ahead_log(tmp_path: Path) -> None:
    save(document(), url=str(tmp_path / "results.db"))
    with engine_of(str(tmp_path / "results.db")).connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"


def test_an_input_is_not_changed_by_saving_it() -> None:
    given = document()
    before = copy.deepcopy(given)
    rows.rows_of(given)
    assert given == before


@pytest.mark.parametrize(("model", "name"), [(Rank, "rank"), (Overlap, "overlap")])
def test_columns_are_those_of_the_contract(model: type[Base], name: str) -> None:
    from nsysddp.questions.tables import every_table

    kinds = {"Int64": int, "Float64": float, "String": str, "Boolean": bool}
    kept = [column for column in model.__table__.columns if column.name not in {"run_id", "position"}]
    assert {column.name: column.type.python_type for column in kept} == {
        name: kinds[str(dtype)] for name, dtype in every_table()[name].dtypes.items()
    }
