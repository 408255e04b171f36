"""Which database is it, and how is it opened, brought to the current schema and spoken to?

A database is named by a URL, by a plain file name (SQLite), by ``NSYSDDP_DB``, or is a file in the user's data folder.
Passwords of a URL appear in no message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from sqlalchemy.orm import Session

from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.store.models import Base

if TYPE_CHECKING:
    from alembic.config import Config

_URL_FORMS = "use a file name, sqlite:///FILE or postgresql://USER@HOST/DATABASE"

BUSY_TIMEOUT_S = 60
"""How long a writer waits for its turn on SQLite before it gives up."""

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "nsysddp_revision"
_MIGRATION_LOCK = 0x6E737973  # any number that every nsysddp agrees on ("nsys")


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


def describe(address: URL) -> str:
    """How a database is named to people: never with user, password or options of its URL."""
    if address.get_backend_name() == "sqlite":
        return Path(str(address.database)).name
    return URL.create(
        "postgresql", host=address.host, port=address.port, database=address.database
    ).render_as_string()


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
    need_extra()
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


def need_extra() -> None:
    """Refuse to go on where a library of the extra is missing."""
    missing = [name for name in ("alembic", "platformdirs", "psycopg") if find_spec(name) is None]
    if missing:
        what = f"the results database needs {', '.join(missing)}, not installed here"
        raise UsageError(what, do="pip install 'nsysddp[store]'")
