"""1,000 damaged exports: each is refused in one line, or answered with the slow oracle's sums of that very file."""

from __future__ import annotations

import gzip
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import oracle
import pytest
from builder import Export
from command import run
from conftest import FIXTURES

from nsysddp.join.load import load
from nsysddp.model.classify import load_rules
from nsysddp.model.errors import AnalysisError, NsysddpError
from nsysddp.model.names import visible
from nsysddp.questions import ANALYSES, analyze, context_of
from nsysddp.questions.steps import Selection

CASES, CHUNK, LIMIT_S = 1000, 50, 20

WEIRD: tuple[Any, ...] = (
    None, 0, 1, -1, 2, 7, 255, 1 << 24, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 40, 1 << 53, (1 << 61) - 1, 1 << 61,
    -(1 << 61), (1 << 62), (1 << 63) - 1, -(1 << 63), 1.5, -0.0, 1e300, float("inf"), "", "text", "12", "-5", "NULL",
    b"", b"\x00\xff\xfe", b"\x00" * 40, "\x1b[2J", "ncclDevKernel_AllReduce", "step 3", "ncclGroupEnd", "x" * 3000,
    "nsysddp:rank=1 world=2 local=1 device=0", "nsysddp:rank=99999999999999999999 world=2 local=1 device=0",
)  # fmt: skip


def rich() -> Export:
    """A drawn export with every table that the reader knows."""
    export = Export(unit="us")
    for line in (0, 1):
        process = export.process(device=line)
        for step in range(3):
            at = 1000 * step
            process.range(f"step {step}", at, at + 900)
            process.range("forward", at, at + 300)
            process.range("backward", at + 300, at + 800, kind="start_end", registered=True)
            process.kernel("sgemm", 7, (at + 10, at + 400))
            process.kernel("dgrad", 7, (at + 400, at + 700), thread=55)
            process.nccl("AllReduce", 17, (at + 350 + 50 * line, at + 600))
            process.nccl("AllGather", 18, (at + 620, at + 710), bytes=4096, communicator=0xFEED)
            process.nccl_group(
                [("Send", {"peer": 1 - line, "bytes": 64}), ("Recv", {"peer": 1 - line, "bytes": 64})],
                19,
                (at + 720, at + 760),
                launched=(at + 700, at + 712),
            )
            process.copy("HtoD", (at + 2, at + 8), stream=9)
            process.copy("DtoD", (at + 3, at + 9), stream=10)
            process.memset((at + 770, at + 775))
            process.record(1, 7, at + 401)
            process.wait(1, 17, at + 402)
            process.sync("stream", (at + 800, at + 850))
        process.graph_nodes(
            (2950, 2955), [("sgemm", 7, (2960, 2970)), ("ncclDevKernel_SendRecv", 7, (2970, 2980))]
        )
        process.kernel("late", 7, (3000, 3010), launched=None)
    export.diagnostic("Not all CUDA events might have been collected.")
    return export


def loose(source: Path, target: Path) -> Path:
    """The same tables without constraints, so that any cell can hold anything."""
    connection = sqlite3.connect(source)
    connection.text_factory = bytes
    connection.execute("ATTACH ? AS other", (str(target),))
    names = [
        row[0].decode()
        for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if not row[0].startswith(b"ENUM_")
    ]
    for name in names:
        connection.execute(f'CREATE TABLE other."{name}" AS SELECT * FROM main."{name}"')
    connection.commit()
    connection.close()
    return target


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, bytes]]:
    """Each export twice: as it was written (for damage to bytes), and without constraints (for damage to cells)."""
    folder = tmp_path_factory.mktemp("bases")
    real = folder / "tp.sqlite"
    real.write_bytes(gzip.decompress((FIXTURES / "tp.sqlite.gz").read_bytes()))
    made = []
    for path in (real, rich().write(folder / "rich.sqlite")):
        made.append((path.read_bytes(), loose(path, folder / f"loose-{path.name}").read_bytes()))
    return made


# --- damage -------------------------------------------------------------------------------------------------

Damage = Callable[[random.Random, Path], None]


def flip_bytes(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 4, 30])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def flip_header(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 3])):
        data[rng.randrange(100)] = rng.randrange(256)
    path.write_bytes(data)


def spoil_pages(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    size = 4096
    pages = max(2, len(data) // size)
    for _ in range(rng.choice([1, 2, 5])):
        page = rng.randrange(1, pages)
        other = rng.randrange(1, pages)
        how = rng.choice(["zero", "noise", "copy"])
        data[page * size : (page + 1) * size] = (
            bytes(size)
            if how == "zero"
            else rng.randbytes(size)
            if how == "noise"
            else data[other * size :][:size]
        )
    path.write_bytes(data)


def cut(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    kept = rng.randrange(len(data))
    head = bytearray(data[:kept])
    if rng.random() < 0.5 and kept > 100:  # and the header agrees with what is left
        head[28:32] = (kept // 4096).to_bytes(4, "big")
    path.write_bytes(head)


READ = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "StringIds",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES", "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_ENUMS", "NVTX_PAYLOAD_ENUM_ENTRIES",
    "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "META_DATA_EXPORT", "META_DATA_CAPTURE",
    "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "DIAGNOSTIC_EVENT",
)  # fmt: skip


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection
        connection.commit()
    finally:
        connection.close()


def _some(rng: random.Random, share: int) -> str:
    """A condition that holds for about one row in ``share``, the same rows every time."""
    return f"(rowid * 2654435761 + {rng.randrange(10**6)}) % {share} = 0"


def _there(connection: sqlite3.Connection, *wanted: str) -> list[str]:
    """Those of the tables that are (still) there, under their whole set of columns or not."""
    there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [name for name in wanted if name in there]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]


def _somewhere(rng: random.Random, connection: sqlite3.Connection) -> tuple[str, str]:
    table = rng.choice(_there(connection, *READ))
    return table, rng.choice(_columns(connection, table))


def spoil_cells(rng: random.Random, path: Path) -> None:
    with _opened(path) as connection:
        for _ in range(rng.choice([1, 1, 3, 12])):
            table, column = _somewhere(rng, connection)
            (high,) = connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()
            connection.execute(
                f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?',
                (rng.choice(WEIRD), rng.randint(1, high or 1)),
            )


def spoil_column(rng: random.Random, path: Path) -> None:
    with _opened(path) as connection:
        table, column = _somewhere(rng, connection)
        connection.execute(
            f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % ? = 0',
            (rng.choice(WEIRD), rng.choice([1, 2, 7])),
        )


def spoil_times(rng: random.Random, path: Path) -> None:
    with _opened(path) as connection:
        for table in _there(
            connection, "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"
        ):
            column = rng.choice(["start", "end"])
            change = rng.choice(
                [
                    f'"{column}" - {rng.randrange(10**7)}',
                    f'-"{column}"',
                    f"{rng.choice([1 << 60, -(1 << 60), (1 << 61) - 1])}",
                    f'"{column}" + {1 << rng.randrange(62)}',
                    '"end"',
                ]
            )
            if {"start", "end"} <= set(_columns(connection, table)):
                connection.execute(f'UPDATE "{table}" SET "{column}" = {change} WHERE {_some(rng, 5)}')


def cycle_ids(rng: random.Random, path: Path) -> None:
    with _opened(path) as connection:
        for table, column in rng.sample(
            [
                ("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId"),
                ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"),
                ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
                ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
                ("NVTX_EVENTS", "globalTid"),
                ("NVTX_EVENTS", "domainId"),
                ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
                ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId"),
                ("CUPTI_ACTIVITY_KIND_KERNEL", "streamId"),
                ("StringIds", "id"),
            ],
            rng.choice([1, 2, 4]),
        ):
            if column not in _columns(connection, table):
                continue
            modulus = rng.choice([1, 2, 3, 5, 1 << 33])
            changed = f'("{column}" * {rng.choice([1, 3, -1])} + {rng.randrange(9)}) % {modulus}'
            connection.execute(f'UPDATE "{table}" SET "{column}" = {changed}')


def lose_rows(rng: random.Random, path: Path) -> None:
    with _opened(path) as connection:
        for _ in range(rng.choice([1, 3])):
            table, _ = _somewhere(rng, connection)
            connection.execute(f'DELETE FROM "{table}" WHERE {_some(rng, rng.choice([1, 2, 5]))}')


def repeat_rows(rng: random.Random, path: Path) -> None:
    with _opened(path) as connection:
        table, _ = _somewhere(rng, connection)
        connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {_some(rng, 3)}')


def lose_structure(rng: random.Random, path: Path) -> None:
    with _opened(path) as connection:
        for _ in range(rng.choice([1, 2, 4])):
            table, column = _somewhere(rng, connection)
            columns = len(_columns(connection, table))
            connection.execute(
                rng.choice(
                    [
                        f'ALTER TABLE "{table}" RENAME TO "{table}_gone"',
                        f'ALTER TABLE "{table}" RENAME TO "{table}_V2"',
                        f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}X"',
                        f'ALTER TABLE "{table}" DROP COLUMN "{column}"' if columns > 1 else "SELECT 1",
                        f'DROP TABLE "{table}"',
                    ]
                )
            )


TO_BYTES: tuple[Damage, ...] = (flip_bytes, flip_bytes, flip_header, spoil_pages, cut)
TO_CELLS: tuple[Damage, ...] = (
    spoil_cells, spoil_cells, spoil_cells, spoil_column, spoil_column, spoil_times, cycle_ids, lose_rows, repeat_rows,
    lose_structure,
)  # fmt: skip


def damaged(bases: list[tuple[bytes, bytes]], seed: int, path: Path) -> str:
    """Write the damaged export of this seed; says what was done."""
    rng = random.Random(seed)
    written, loosened = rng.choice(bases)
    in_bytes = rng.random() < 0.4
    path.write_bytes(written if in_bytes else loosened)
    done = [rng.choice(TO_BYTES if in_bytes else TO_CELLS) for _ in range(rng.choice([1, 1, 2]))]
    for damage in done:
        damage(rng, path)
    return ", ".join(damage.__name__ for damage in done)


# --- judgement ----------------------------------------------------------------------------------------------


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    def late(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


RULES = load_rules()
OVERLAP = next(one for one in ANALYSES if one.table.name == "overlap")


def told_by_oracle(path: Path) -> list[list[Any]]:
    there = oracle.read_capture(path, lambda name: RULES.kernel(visible(name)).class_)
    rows = []
    for (packed, device), events in there.items():
        sums = oracle.capture_sums(events)
        pid = None if packed in (None, -1) else (packed >> 24) & 0xFFFFFF
        rows.append([pid, device, *sums.values()])
    return sorted(rows, key=repr)


def told_by_us(path: Path) -> list[list[Any]] | None:
    """Rows of the overlap table; None if the file was refused, in one clean line."""
    refused = ""
    try:
        trace = load(path, rules=RULES)
        if trace.ranges.height:
            analyze(trace)
        rows = OVERLAP.run(context_of(trace, Selection(per="capture")), {}).to_dicts()
    except AnalysisError:
        raise  # the books must balance whatever the input
    except NsysddpError as error:
        refused = str(error)
    if refused:
        assert refused == visible(refused)
        assert len(refused.splitlines()) == 1
        assert len(refused) < 700
        assert str(path.parent) not in refused
        return None
    names = list(oracle.capture_sums([oracle.Event(0, "compute", 0, 1)]))
    return sorted(([row["pid"], row["device"], *(row[name] for name in names)] for row in rows), key=repr)


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_a_damaged_export_is_refused_or_answered_rightly(
    first: int, bases: list[tuple[bytes, bytes]], tmp_path: Path
) -> None:
    path = tmp_path / "a.sqlite"
    answered = 0
    for seed in range(first, first + CHUNK):
        path.unlink(missing_ok=True)
        done = damaged(bases, seed, path)
        with limit(LIMIT_S):
            ours = told_by_us(path)
            if ours is not None:
                answered += 1
                assert ours == told_by_oracle(path), (seed, done)
            if seed % 20 == 0:
                ran = run("analyze", path, "--format", "json")
                assert (ran.code == 0) == (ours is not None), (seed, done, ran)
                assert ran.code in (0, 3, 4, 5), (seed, done, ran)
                assert ran.code == 0 or ran.line
    assert 0 < answered < CHUNK
    assert [one.name for one in tmp_path.iterdir()] == ["a.sqlite"]


def test_the_damage_is_the_same_every_time(bases: list[tuple[bytes, bytes]], tmp_path: Path) -> None:
    for seed in (1, 5, 9):
        said = {damaged(bases, seed, tmp_path / name) for name in ("a.sqlite", "b.sqlite")}
        assert len(said) == 1
