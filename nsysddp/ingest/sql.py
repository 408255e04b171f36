"""Run the queries of ``queries/`` on a report; long tables come in batches of parallel row ranges.

Of an export that is a folder of tables (``columnar``), the same SQL runs on every batch of the columns that the header
names; questions that are no scan of one long table run on a SQLite database that gets those columns first.
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nsysddp.ingest.columnar import quoted
from nsysddp.ingest.columns import frame
from nsysddp.ingest.diagnostics import public
from nsysddp.ingest.queries import Query, get
from nsysddp.ingest.report import Report, refusal
from nsysddp.model.errors import QueryError, ReportError
from nsysddp.model.names import visible

if TYPE_CHECKING:
    import polars as pl

SMALLEST_ROW_BYTES = 5
"""No row of a table takes less in a file: three bytes of a cell and two that point to it."""
MOST_CELL_BYTES = 16 << 20
"""Of a cell that somebody's own query shows."""
MOST_BYTES = 1 << 30
"""Of all cells of such a query together."""
BATCH_ROWS = 65_536
THREADS = 2


def rows(report: Report, name: str, /, **values: Any) -> list[dict[str, Any]]:
    """All rows of a small query as mappings.

    Raises:
        MissingTable: a needed column is missing.
        ReportError: SQLite refused, or a value has a type that it cannot have.
    """
    query = get(name)
    try:
        query.supply(report)
        cursor = report.connection.execute(query.bound_to(report), values)
        columns = [column[0] for column in cursor.description]
        found = [dict(zip(columns, row, strict=True)) for row in cursor]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _unreadable(report, query, error) from error
    _check_types(report, query, found)
    return found


def _check_types(report: Report, query: Query, found: list[dict[str, Any]]) -> None:
    """Refuse what is no integer where the query promises some, and make text of text that was stored as a BLOB.

    Raises:
        ReportError: a value has a type that it cannot have.
    """
    for name, meaning in query.columns.items():
        if meaning.startswith("INTEGER") and any(
            not isinstance(row[name], (int, type(None))) for row in found
        ):
            raise _unreadable(report, query, TypeError(f"{name} holds what is no integer"))
        if meaning.startswith("TEXT"):
            for row in found:
                if isinstance(row[name], bytes):
                    row[name] = row[name].decode("utf-8", "replace")


def _unreadable(report: Report, query: Query, error: BaseException) -> ReportError:
    reason = " ".join(str(error).split())[:200]
    if "is locked" in reason or reason == "interrupted":
        return refusal(report.path, error)
    return ReportError(
        f"query {query.name} failed: {reason}", file=report.path, do="the export is damaged: export it again"
    )


def count(report: Report, table: str) -> int:
    """Number of rows of a table."""
    if report.columnar is not None:
        return report.columnar.rows(report.aliases.get(table, table))
    return int(report.scalar(f"SELECT count(*) FROM {quoted(report.aliases.get(table, table))}"))


def diagnostics(report: Report) -> list[str]:
    """Warnings and errors that nsys itself left in the export, each as far as it can be shown."""
    return list(dict.fromkeys(visible(" ".join(row["text"].split())) for row in diagnostic_rows(report)))


def diagnostic_rows(report: Report) -> list[dict[str, Any]]:
    """The rows of the query ``diagnostics``, each text as far as it can be shown."""
    return [{**row, "text": public(str(row["text"]))} for row in rows(report, "diagnostics")]


def most_rows(report: Report) -> int:
    """More rows than this no table of the report can have, whatever their numbers are."""
    if report.columnar is not None:
        return max(map(report.columnar.rows, report.columnar.tables))
    return report.database.stat().st_size // SMALLEST_ROW_BYTES


def row_span(report: Report, table: str) -> tuple[int, int] | None:
    """First and last rowid of a table; None if it has no rows."""
    if table not in report.tables:
        return None
    source = report.aliases.get(table, table)
    if source in report.unnumbered or report.columnar is not None:
        return 1, count(report, table)
    low = report.scalar(f"SELECT min(rowid) FROM {quoted(source)}")
    high = report.scalar(f"SELECT max(rowid) FROM {quoted(source)}")
    return int(low), int(high)


def row_ranges(report: Report, table: str) -> list[tuple[int, int]]:
    """First and last rowid of the ranges that ``scan`` reads in parallel; empty without rows."""
    span = row_span(report, table)
    if span is None:
        return []
    parts = 1 if span[1] - span[0] < BATCH_ROWS else THREADS
    if report.columnar is not None:
        return report.columnar.row_ranges(report.aliases.get(table, table), parts)
    return _edges(*span, parts)


def scan(
    report: Report,
    name: str,
    consume: Callable[[int, pl.DataFrame], None],
    *,
    table: str,
    progress: Callable[[int], None] | None = None,
    **values: str,
) -> None:
    """Run a bulk query over all rows of its table in parallel row ranges.

    The query takes ``first_row`` and ``last_row``. Each range has its own connection and thread; SQLite, Arrow and
    polars work without the interpreter lock, so two ranges keep two cores busy.

    Args:
        report: the export.
        name: the query.
        consume: called with the range number and each batch (columns as in the header); may be called from several
            threads at once, but in row order within one range.
        table: the table whose rowids are divided.
        progress: called with the number of rows of each batch.
        values: the query's further parameters, in the order of its header.

    Raises:
        ReportError: SQLite refused, a column changes its type, or there is no end to the rows.
    """
    query = get(name)
    edges = row_ranges(report, table)
    if not edges:
        return
    if report.columnar is None:
        # Open at both ends: in a damaged file rows can have numbers beyond those of the first and the last.
        edges[0] = (-(1 << 63), edges[0][1])
        edges[-1] = (edges[-1][0], (1 << 63) - 1)
    batches = _batches if report.columnar is None else _columnar_batches
    failures: list[BaseException] = []
    read = [0] * len(edges)
    most = most_rows(report)

    def work(number: int, first: int, last: int) -> None:
        try:
            for batch in batches(report, query, table, {"first_row": first, "last_row": last, **values}):
                if failures:
                    return
                read[number] += batch.height
                if sum(read) > most:
                    raise ReportError(
                        f"query {name} gives more rows than the file can hold",
                        file=report.path,
                        do="the export is damaged: export it again",
                    )
                consume(number, batch)
                if progress:
                    progress(batch.height)
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
            failures.append(error)

    if len(edges) == 1:
        work(0, *edges[0])
    else:
        threads = [
            threading.Thread(target=work, args=(number, first, last), daemon=True)
            for number, (first, last) in enumerate(edges)
        ]
        with report.every_core():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if failures:
        error = failures[0]
        ours = (ReportError, NameError, AttributeError, AssertionError)  # no data makes the last three
        if isinstance(error, ours) or not isinstance(error, Exception):
            raise error
        raise _unreadable(report, query, error) from error


def _edges(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    count = high - low + 1
    cuts = [low + count * part // parts for part in range(parts + 1)]
    return [(first, last - 1) for first, last in pairwise(cuts)]


def _batches(report: Report, query: Query, _: str, values: Mapping[str, Any]) -> Iterator[pl.DataFrame]:
    import pyarrow as pa
    from adbc_driver_manager import AdbcConnection, AdbcStatement
    from adbc_driver_sqlite import connect

    database = connect(report.uri)
    connection = AdbcConnection(database)
    statement = AdbcStatement(connection)
    try:
        statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
        statement.set_sql_query(query.bound_to(report))
        statement.prepare()
        statement.bind(pa.record_batch({name: pa.array([value]) for name, value in values.items()}))
        stream, _ = statement.execute_query()
        yield from map(frame, pa.RecordBatchReader.from_stream(stream))
    finally:
        statement.close()
        connection.close()
        database.close()


def _columnar_batches(
    report: Report, query: Query, table: str, values: Mapping[str, Any]
) -> Iterator[pl.DataFrame]:
    assert report.columnar is not None
    columns = query.present(report, table)
    if columns is not None:
        source, rows = report.aliases.get(table, table), (values["first_row"], values["last_row"])
        yield from query.over(table, report.columnar.batches(source, columns, rows), values)


def run_named(report: Report, name: str, limit: int | None = None) -> Answer:
    """Column names and rows of a query over all rows of its table; for people, not for bulk.

    Raises:
        QueryError: it takes parameters that only a caller knows, or the answer is too large.
    """
    query = get(name)
    if name == "host_identity":
        raise QueryError("host names are compared and aliased, never shown", do="use `nsysddp analyze`")
    values: dict[str, int] = {}
    if set(query.parameters) == {"first_row", "last_row"}:
        low, high = row_span(report, query.tables[0]) or (0, -1)
        values = {"first_row": low, "last_row": high}
    elif query.parameters:
        raise QueryError(
            f"query {name} needs {', '.join(query.parameters)}", do="it is run by other commands"
        )
    if name == "diagnostics":
        found = diagnostic_rows(report)[:limit]
    else:
        try:
            query.supply(report)
            columns, answered = _answer(report, query.bound_to(report), limit, values)
        except sqlite3.Error as error:
            raise _unreadable(report, query, error) from error
        found = [dict(zip(columns, row, strict=True)) for row in answered]
        _check_types(report, query, found)
    return list(query.columns), [tuple(row[column] for column in query.columns) for row in found]


Answer = tuple[list[str], list[tuple[Any, ...]]]
"""Names of columns, and rows."""


def run_user_sql(report: Report, sql: str, limit: int | None = None) -> Answer:
    """Column names and rows of any SELECT on a report, read-only.

    Raises:
        QueryError: not a reading statement, more than one, SQLite refused it, or the answer is too large.
    """
    try:
        if report.columnar is not None:
            report.columnar.supply(report.columnar.columns_read(sql))
        return _answer(report, sql, limit, {})
    except (sqlite3.Error, sqlite3.Warning) as error:
        if str(error) == "interrupted":
            raise KeyboardInterrupt from None
        raise QueryError(f"SQLite refused the statement: {error}", file=report.path) from error


def _answer(report: Report, sql: str, limit: int | None, values: Mapping[str, int]) -> Answer:
    """The first ``limit`` rows of a statement that can only read.

    Raises:
        QueryError: they do not fit in memory, or it is no statement with rows; sqlite3.Error: SQLite refused it.
    """
    reading = (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
    with closing(report.connect()) as connection:
        connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in reading else sqlite3.SQLITE_DENY
        )
        if sys.version_info >= (3, 11):  # before, a cell that is too large is made, seen and dropped
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_CELL_BYTES)
        try:
            cursor = connection.execute(sql, values)
            if cursor.description is None:
                raise QueryError("the statement returns no rows", file=report.path, do="write one SELECT")
            return [column[0] for column in cursor.description], _bounded(cursor, limit)
        except sqlite3.DataError as error:
            raise _too_large(f"a cell holds more than {MOST_CELL_BYTES >> 20} MiB") from error


def _bounded(cursor: sqlite3.Cursor, limit: int | None) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    total = 0
    for row in itertools.islice(cursor, limit):
        sizes = [len(cell) if isinstance(cell, (str, bytes)) else 8 for cell in row]
        if max(sizes, default=0) > MOST_CELL_BYTES:
            raise _too_large(f"a cell holds more than {MOST_CELL_BYTES >> 20} MiB")
        total += sum(sizes)
        if total > MOST_BYTES:
            raise _too_large(f"the answer holds more than {MOST_BYTES >> 30} GiB")
        rows.append(row)
    return rows


def _too_large(what: str) -> QueryError:
    return QueryError(what, do="ask for fewer rows (--limit), or for a part with substr() or length()")
