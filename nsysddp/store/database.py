"""Where do results stay between sessions: save, list, reload, tag and delete runs in SQLite or PostgreSQL.

A database is named by a URL, by a plain file name (SQLite), by ``NSYSDDP_DB``, or is a file in the user's
data folder. Every public function opens it, brings it to the current schema, does one transaction and closes
it; a process that is killed in between leaves all of that transaction or nothing of it. Passwords of a URL
appear in no message.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, selectinload, undefer

from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.store import requests
from nsysddp.store.models import METRICS, Base, Finding, Input, Overlap, Rank, Run, Tag

if TYPE_CHECKING:
    from alembic.config import Config

DOCUMENT_SCHEMA_VERSION = 1
"""The newest result document that can be taken apart into rows."""

BUSY_TIMEOUT_S = 60
"""How long a writer waits for its turn on SQLite before it gives up."""

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "nsysddp_revision"
_MIGRATION_LOCK = 0x6E737973  # any number that every nsysddp agrees on ("nsys")

PRIVATE_CAPTURE_KEYS = frozenset(
    {"argv", "command", "command_line", "commands", "cwd", "env", "environ", "folder", "host"}
    | {"hostname", "hosts", "out", "path", "paths", "stack_dumps", "stderr", "stdout", "user", "username"}
)
"""Keys of run.json, at any depth, that say where and as whom a capture ran: a shared database keeps none."""

PUBLIC_ENVIRONMENT = ("NCCL_", "CUDA_", "CUBLAS_", "TORCH_", "PYTORCH_", "OMP_")
"""How the names of those environment variables begin that can explain a number."""


@dataclass(frozen=True)
class StoredRun:
    """What one run in the database is, without its rows and document.

    Attributes:
        run_id: number of the run in its database; never given twice.
        content_sha256: hash of the saved document (keys sorted), the run's identity.
        created_at: when it was first saved, UTC.
        label: the name given at ``save``, or None.
        tags: names given by ``tag``, sorted.
        tool_version: the nsysddp that made the document.
        steps: distinct steps in the overlap table (0 = the capture as one window).
        inputs: one mapping a report: name, sha256, nsys_version, schema.
        ranks: one mapping a rank, with the columns of table ``rank``.
        findings: one mapping a finding: code, rank, step, value, unit, message.
        capture: run.json of the capture without its private keys, or None.
        request: what was asked (``questions.request``); None of a document that does not say it.
    """

    run_id: int
    content_sha256: str
    created_at: datetime
    label: str | None
    tags: tuple[str, ...]
    tool_version: str
    steps: int
    inputs: tuple[dict[str, Any], ...]
    ranks: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    capture: dict[str, Any] | None
    request: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {**asdict(self), "created_at": self.created_at.isoformat(timespec="seconds")}


@dataclass(frozen=True)
class MetricValue:
    """One measured value: of one run, rank and step. ``value`` is None where the trace did not tell."""

    run_id: int
    rank: int
    value: float | None


# ------------------------------------------------------------ which database


def default_file() -> Path:
    """Which file is used when none is named: ``nsysddp/results.db`` in the user's data folder.

    The folder is ``XDG_DATA_HOME`` or ``~/.local/share`` on Linux, ``~/Library/Application Support`` on
    macOS, ``%LOCALAPPDATA%`` on Windows.
    """
    from platformdirs import user_data_path

    return user_data_path("nsysddp", appauthor=False) / "results.db"


def resolve_url(url: str | None = None) -> URL:
    """Which database is meant: the URL or file given, else ``NSYSDDP_DB``, else the default file.

    Raises:
        UsageError: the text is no URL, or names another kind of database, or one in memory.
    """
    text = url or os.environ.get("NSYSDDP_DB") or str(default_file())
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        address = make_url(text)
    except (SQLAlchemyError, ValueError):
        # The text may hold a password, so it is not repeated.
        raise UsageError("the database URL cannot be read", do=_URL_FORMS) from None
    backend = address.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        return address.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise UsageError(f"results are kept in SQLite or PostgreSQL, not in {backend}", do=_URL_FORMS)
    if not address.database or address.database == ":memory:":
        raise UsageError("a database in memory would be gone at once", do=_URL_FORMS)
    return address.set(drivername="sqlite")


_URL_FORMS = "use a file name, sqlite:///FILE or postgresql://USER@HOST/DATABASE"


def describe(address: URL) -> str:
    """How a database is named to people: never with user, password or options of its URL."""
    if address.get_backend_name() == "sqlite":
        return Path(str(address.database)).name
    return URL.create(
        "postgresql", host=address.host, port=address.port, database=address.database
    ).render_as_string()


# ------------------------------------------------------------ connections


def _engine(address: URL) -> Engine:
    """An engine whose transactions begin when they say: SQLite's driver would begin them late, or never."""
    if address.get_backend_name() != "sqlite":
        return create_engine(address, poolclass=NullPool, connect_args={"connect_timeout": 15})
    engine = create_engine(address, poolclass=NullPool, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("migrates"):
            # A migration that rebuilds a table drops the old one, and with that the rows that refer to it.
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        # A writer takes its lock at once: one that reads first and writes later can fail instead of waiting.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("writes") else "BEGIN DEFERRED")

    return engine


def exclusive(connection: Connection, key: int) -> None:
    """Wait until no other transaction holds ``key``; SQLite's writers exclude each other from the start."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(key)))


@contextmanager
def _one_line(address: URL) -> Iterator[None]:
    """Turn a database's complaint into one line that says which database, without the secrets of its URL."""
    name = describe(address)
    try:
        yield
    except IntegrityError as error:
        raise EvidenceError(
            f"results database {name} refused rows that contradict themselves ({_complaint(error)})",
            do="report this with the document that was saved",
        ) from None
    except OperationalError as error:
        raise EvidenceError(
            f"results database {name} cannot be used ({_complaint(error, address)})",
            do="check the name, the permissions, the free space and that the server runs",
        ) from None
    except SQLAlchemyError as error:
        raise EvidenceError(
            f"results database {name} failed ({_complaint(error, address)})",
            do="check that it is an nsysddp results database",
        ) from None


def _complaint(error: SQLAlchemyError, address: URL | None = None) -> str:
    """The driver's own first line; the statement and its values, which SQLAlchemy adds, stay out."""
    cause: object = getattr(error, "orig", None) or type(error).__name__
    line = next((part.strip() for part in str(cause).splitlines() if part.strip()), type(cause).__name__)
    for secret in (address.password, address.query.get("password")) if address is not None else ():
        if isinstance(secret, str) and secret:
            line = line.replace(secret, "***")
    return line


# ------------------------------------------------------------ schema


def _alembic(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _is_current(connection: Connection, address: URL) -> bool:
    """Is the schema the newest that this nsysddp knows?

    Raises:
        EvidenceError: it is newer than that, or not a results database.
    """
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    name = describe(address)
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        # A file of something else (an nsys export, say) must stay untouched; a server may be shared.
        others = tables if connection.dialect.name == "sqlite" else tables & set(Base.metadata.tables)
        if others:
            raise EvidenceError(
                f"{name} is not an nsysddp results database (it holds {', '.join(sorted(others)[:3])})",
                do="name another with --db or NSYSDDP_DB",
            )
        return False
    scripts = ScriptDirectory.from_config(_alembic(connection))
    known = {script.revision for script in scripts.walk_revisions()}
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()
    newer = sorted(set(found) - known)
    if newer:
        raise EvidenceError(
            f"results database {name} has schema {newer[0]}, written by a newer nsysddp; this one knows "
            f"up to {scripts.get_current_head()}",
            do="upgrade nsysddp, or name another database with --db",
        )
    return tuple(found) == tuple(scripts.get_heads())


def _migrate(engine: Engine, address: URL, *, create: bool) -> None:
    """Bring the schema to the newest revision in one transaction; one process does it, the others wait.

    Raises:
        EvidenceError: there is no database and ``create`` is false; it is newer; it is something else.
    """
    sqlite = address.get_backend_name() == "sqlite"
    if sqlite and not Path(str(address.database)).exists():
        if not create:
            raise EvidenceError(
                f"there is no results database {describe(address)} yet",
                do="save a run first, or name one with --db",
            )
        try:
            Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EvidenceError(
                f"the folder of results database {describe(address)} cannot be made ({error.strerror})",
                do="name another with --db or NSYSDDP_DB",
            ) from None
    with engine.connect() as connection:
        if _is_current(connection, address):
            return
    if sqlite:
        _use_wal(engine)
    with engine.execution_options(writes=True, migrates=True).begin() as connection:
        exclusive(connection, _MIGRATION_LOCK)
        if not _is_current(connection, address):
            from alembic import command

            command.upgrade(_alembic(connection), "head")
            if sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                raise EvidenceError(
                    f"the upgrade of results database {describe(address)} would lose rows and was undone",
                    do="report this, and use the older nsysddp until then",
                )


def _use_wal(engine: Engine) -> None:
    """Let readers read while one writes: kept in the file, but the switch itself does not wait for others."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        connection = engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA journal_mode=WAL")
            return
        except Exception as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        finally:
            connection.close()
        time.sleep(0.02)


@contextmanager
def transaction(url: str | None, *, write: bool = False, create: bool = False) -> Iterator[Session]:
    """One transaction on an up-to-date database; committed at the end, undone by any exception."""
    _need_extra()
    address = resolve_url(url)
    with _one_line(address):
        engine = _engine(address)
        try:
            _migrate(engine, address, create=create)
            bind = engine.execution_options(writes=write)
            with Session(bind, expire_on_commit=False) as session, session.begin():
                yield session
        finally:
            engine.dispose()


def _need_extra() -> None:
    missing = [name for name in ("alembic", "platformdirs", "psycopg") if find_spec(name) is None]
    if missing:
        what = f"the results database needs {', '.join(missing)}, not installed here"
        raise UsageError(what, do="pip install 'nsysddp[store]'")


# ------------------------------------------------------------ a document as rows


def content_sha256(document: Mapping[str, Any]) -> str:
    """Which document is it: SHA-256 over its JSON with sorted keys, whatever their order was."""
    return hashlib.sha256(_json(document, sort_keys=True)).hexdigest()


def _json(document: Mapping[str, Any], *, sort_keys: bool) -> bytes:
    # ASCII with escapes: names that are not valid UTF-8 (lone surrogates) come back exactly.
    try:
        return json.dumps(document, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False).encode(
            "ascii"
        )
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"the result document is not plain JSON ({error})") from None


def _rows(document: Mapping[str, Any]) -> Run:
    """The document as ORM rows, every value checked against its column's type.

    Raises:
        EvidenceError: a part is missing, of the wrong kind, or of a newer document version.
    """
    import zstandard

    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise EvidenceError(
            "the result document has no schema_version", do="save what analyze --format json prints"
        )
    if version > DOCUMENT_SCHEMA_VERSION:
        raise EvidenceError(
            f"the result document has schema_version {version}, newer than {DOCUMENT_SCHEMA_VERSION}",
            do="upgrade nsysddp",
        )
    tool, tables = document.get("tool"), document.get("tables")
    if not isinstance(tool, Mapping) or not isinstance(tables, Mapping):
        raise EvidenceError(
            "the result document lacks tool or tables", do="save what analyze --format json prints"
        )
    run = Run(
        content_sha256=content_sha256(document),
        created_at=datetime.now(timezone.utc),
        tool_version=_text(tool.get("version")) or "unknown",
        schema_version=version,
        document_zstd=zstandard.compress(_json(document, sort_keys=False), level=9),
    )
    run.inputs = [Input(**row) for row in _typed(Input, document.get("inputs"), "inputs")]
    run.ranks = [Rank(**row) for row in _typed(Rank, tables.get("rank", []), "tables.rank")]
    run.request = requests.row_of(document)
    # Only the answer to another question need not say where the time went.
    other = run.request is not None and run.request.question != "analysis"
    overlap = tables.get("overlap", [] if other else None)
    run.overlap = [Overlap(**row) for row in _typed(Overlap, overlap, "tables.overlap")]
    run.findings = [Finding(**row) for row in _typed(Finding, document.get("findings"), "findings")]
    return run


def _typed(model: type[Base], rows: Any, where: str) -> Iterator[dict[str, Any]]:
    """The columns of ``model`` from each row object; keys that have no column are only in the document."""
    if not isinstance(rows, list):
        raise EvidenceError(f"the result document lacks {where}", do="save what analyze --format json prints")
    columns = [column for column in inspect(model).columns if column.name not in {"run_id", "position"}]
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise EvidenceError(f"{where}[{position}] is not an object")
        values: dict[str, Any] = {"position": position}
        for column in columns:
            value = row.get(column.name)
            if not _fits(value, column.type.python_type, nullable=bool(column.nullable)):
                raise EvidenceError(f"{where}[{position}].{column.name} cannot be {json.dumps(value)[:40]}")
            values[column.name] = _text(value) if column.type.python_type is str else value
        yield values


def _fits(value: Any, kind: type, *, nullable: bool) -> bool:
    if value is None:
        return nullable
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return False
    return isinstance(value, int if kind is int else int | float if kind is float else int | str)


def _text(value: Any) -> str | None:
    """Text that either database can hold: NUL and lone surrogates become U+FFFD (the document keeps them)."""
    return None if value is None else requests.storable(str(value))


def _public(value: Any, parent: str = "") -> Any:
    """A capture record without ``PRIVATE_CAPTURE_KEYS``, and of its environment only the libraries' settings."""
    if isinstance(value, Mapping):
        parts = {
            str(key): part for key, part in value.items() if str(key).lower() not in PRIVATE_CAPTURE_KEYS
        }
        if parent.lower() == "environment":
            parts = {key: part for key, part in parts.items() if key.startswith(PUBLIC_ENVIRONMENT)}
        return {key: _public(part, key) for key, part in parts.items()}
    if isinstance(value, list | tuple):
        return [_public(part) for part in value]
    return value


# ------------------------------------------------------------ what people do with it


def save(
    document: Mapping[str, Any],
    *,
    url: str | None = None,
    label: str | None = None,
    run: Mapping[str, Any] | None = None,
) -> int:
    """Keep a result document; under which number?

    The same document saved twice is the same run: its number is returned, and a label or capture record given
    now replaces the one it had.

    Args:
        document: what ``nsysddp analyze --format json`` prints.
        url: database (``resolve_url``); made if it is not there.
        label: a name for people.
        run: run.json of the capture; the keys of ``PRIVATE_CAPTURE_KEYS`` are left out.

    Returns:
        The run's number.

    Raises:
        EvidenceError: the document is malformed, or the database cannot take it; nothing of it is kept then.
    """
    row = _rows(document)
    capture = None if run is None else _public(run)
    if capture is not None:
        _json(capture, sort_keys=True)
    name = None if label is None else printable_name(label, "label")
    with transaction(url, write=True, create=True) as session:
        # Two savers of one document: the second waits, and then finds what the first one kept.
        exclusive(session.connection(), int(row.content_sha256[:15], 16))
        stored = session.scalar(select(Run).where(Run.content_sha256 == row.content_sha256))
        if stored is None:
            session.add(row)
            stored = row
        if name is not None:
            stored.label = name
        if capture is not None:
            stored.capture = capture
        session.flush()
        return stored.id


def runs(
    *, url: str | None = None, tags: Sequence[str] = (), label: str | None = None, last: int | None = None
) -> list[StoredRun]:
    """Which runs are kept, oldest first.

    Args:
        url: database (``resolve_url``).
        tags: only runs that carry all of these.
        label: only runs with exactly this label.
        last: only the newest so many of them.
    """
    query = select(Run).order_by(Run.created_at.desc(), Run.id.desc()).limit(last)
    for tag_name in tags:
        query = query.where(Run.tags.any(Tag.name == tag_name))
    if label is not None:
        query = query.where(Run.label == label)
    with transaction(url) as session:
        return [*reversed(_stored(session, session.scalars(query.options(*_PARTS)).all()))]


def load_run(run_id: int, *, url: str | None = None) -> StoredRun:
    """What is known about one run (its document: ``load_document``).

    Raises:
        EvidenceError: there is no such run.
    """
    with transaction(url) as session:
        return _stored(session, [_find(session, run_id, *_PARTS)])[0]


def load_document(run_id: int, *, url: str | None = None) -> dict[str, Any]:
    """Which document was saved, exactly: every key, in its order, every number to the last digit.

    Raises:
        EvidenceError: there is no such run, or its stored bytes no longer give its hash.
    """
    import zstandard

    with transaction(url) as session:
        row = _find(session, run_id, undefer(Run.document_zstd))
        packed, expected = row.document_zstd, row.content_sha256
    try:
        document = json.loads(zstandard.decompress(packed))
        intact = isinstance(document, dict) and content_sha256(document) == expected
    except (zstandard.ZstdError, ValueError):
        intact = False
    if not intact:
        raise EvidenceError(
            f"the document of run {run_id} was changed after it was saved", do="delete the run"
        )
    return dict(document)


def tag(
    run_ids: Sequence[int], *, add: Sequence[str] = (), remove: Sequence[str] = (), url: str | None = None
) -> None:
    """Give runs names or take them away; giving one twice or taking a missing one changes nothing.

    Raises:
        EvidenceError: one of the runs does not exist; none is changed then.
        UsageError: a name is empty, too long, or not printable.
    """
    wanted = {printable_name(name, "tag") for name in add}
    with transaction(url, write=True) as session:
        for run_id in dict.fromkeys(run_ids):
            row = _find(session, run_id, lock=True)
            row.tags = [kept for kept in row.tags if kept.name not in set(remove)]
            row.tags += [Tag(name=name) for name in sorted(wanted - {kept.name for kept in row.tags})]


def delete(run_ids: Sequence[int], *, url: str | None = None) -> None:
    """Forget runs with all their rows.

    Raises:
        EvidenceError: one of them does not exist; none is deleted then.
    """
    with transaction(url, write=True) as session:
        for run_id in dict.fromkeys(run_ids):
            session.delete(_find(session, run_id, lock=True))


def metric_values(metric: str, run_ids: Sequence[int], *, url: str | None = None) -> list[MetricValue]:
    """What did each rank and step of these runs measure, without warm-up steps, in document order?

    Raises:
        UsageError: the overlap table has no such metric.
    """
    if metric not in METRICS:
        raise UsageError(f"there is no metric {metric[:60]}", do=f"choose one of {', '.join(METRICS)}")
    query = (
        select(Overlap.run_id, Overlap.rank, getattr(Overlap, metric))
        .where(Overlap.run_id.in_(run_ids), Overlap.is_warmup.is_not(True))
        .order_by(Overlap.run_id, Overlap.position)
    )
    with transaction(url) as session:
        return [MetricValue(*row) for row in session.execute(query)]


_PARTS = tuple(selectinload(part) for part in (Run.request, Run.inputs, Run.ranks, Run.findings, Run.tags))


def _find(session: Session, run_id: int, *options: Any, lock: bool = False) -> Run:
    if not 0 < run_id < 1 << 63:
        raise EvidenceError(f"there is no run {run_id}", do="see nsysddp runs list")
    query = select(Run).where(Run.id == run_id).options(*options)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise EvidenceError(f"there is no run {run_id}", do="see nsysddp runs list")
    return row


def printable_name(text: str, what: str) -> str:
    """A label or tag that is safe to print and to type."""
    name = text.strip()
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise UsageError(f"a {what} has 1 to 100 printable characters")
    return name


def _stored(session: Session, rows: Sequence[Run]) -> list[StoredRun]:
    counts = select(Overlap.run_id, func.count(Overlap.step_index.distinct())).group_by(Overlap.run_id)
    found = session.execute(counts.where(Overlap.run_id.in_([row.id for row in rows])))
    steps = {int(run_id): int(count) for run_id, count in found}
    return [
        StoredRun(
            run_id=row.id,
            content_sha256=row.content_sha256,
            created_at=row.created_at,
            label=row.label,
            tags=tuple(kept.name for kept in row.tags),
            tool_version=row.tool_version,
            steps=steps.get(row.id, 0),
            inputs=tuple(map(_columns, row.inputs)),
            ranks=tuple(map(_columns, row.ranks)),
            findings=tuple(map(_columns, row.findings)),
            capture=row.capture,
            request=requests.content_of(row.request),
        )
        for row in rows
    ]


def _columns(row: Base) -> dict[str, Any]:
    """The row's own columns by name."""
    names = inspect(type(row)).columns.keys()
    return {name: getattr(row, name) for name in names if name not in {"run_id", "position"}}
