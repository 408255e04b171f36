"""What do the SQL files of ``queries/`` ask, of which tables and columns, and how is each spelled for a report?

A query file is plain SQL for a current export, under a header that says what it answers::

    -- name: kernels
    -- question: Which kernels ran on which GPU, and when?
    -- row: one kernel execution
    -- needs CUPTI_ACTIVITY_KIND_KERNEL: start, end, deviceId
    -- optional CUPTI_ACTIVITY_KIND_KERNEL: globalPid
    -- parameter first_row: INTEGER, first rowid to read
    -- column start_ns: INTEGER ns, start since the session start

Exports differ in which tables and columns they have. A query never branches on that: before it runs, each table it
names is shadowed by a common table expression of the same name that adds the optional columns that are missing as
NULL, and a table that is missing altogether has no rows. Values are bound, never formatted. A header line
``-- distinct: TABLE, ...`` names tables of which equal rows say no more than one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.ingest.columnar import quoted
from nsysddp.model.errors import QueryError

if TYPE_CHECKING:
    import polars as pl

    from nsysddp.ingest.report import Report

_HEADER = re.compile(r"--\s*(?P<key>[a-z]+)(?:\s+(?P<of>\w+))?:\s*(?P<value>.*)")


@dataclass(frozen=True)
class Query:
    """One SQL file: its text, and what its header promises.

    Attributes:
        name: how it is called; equal to the file name.
        question: what it answers.
        row: what one row is.
        needs: table to the columns without which it has no answer.
        optional: table to columns that count as NULL where they are missing.
        parameters: name to meaning, in order of first use.
        columns: result column to type, unit and meaning, in order.
        distinct: tables of which equal rows say no more than one of them.
        text: the SQL.
    """

    name: str
    question: str
    row: str
    needs: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, str]
    columns: Mapping[str, str]
    distinct: tuple[str, ...]
    text: str

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table it reads."""
        return tuple(dict.fromkeys([*self.needs, *self.optional]))

    def bound_to(self, report: Report) -> str:
        """The SQL for this report, with missing optional columns and tables supplied.

        Raises:
            MissingTable: a table is there but lacks a column that the question needs.
        """
        shadows = [shadow for table in self.tables if (shadow := self._shadow(report, table))]
        if not shadows:
            return self.text
        body = self.text.lstrip()
        own = re.match(r"WITH\s+", body, re.IGNORECASE)
        return f"WITH {', '.join(shadows)}{', ' + body[own.end() :] if own else ' ' + body}"

    def present(self, report: Report, table: str) -> list[str] | None:
        """Which of the columns that it reads does this table have? None if it counts as a table without rows.

        Raises:
            MissingTable: a table is there but lacks a column that the question needs.
        """
        needs, optional = self.needs.get(table, ()), self.optional.get(table, ())
        there = report.tables.get(table)
        if there is None or (table.startswith(_FACTS) and not there.issuperset(needs)):
            return None
        report.require_columns(table, needs)
        return [column for column in (*needs, *optional) if column in there]

    def _shadow(self, report: Report, table: str) -> str | None:
        columns = (*self.needs.get(table, ()), *self.optional.get(table, ()))
        present = self.present(report, table)
        if present is None:
            nothing = ", ".join(f"NULL AS {quoted(column)}" for column in (*columns, "rowid"))
            return f"{quoted(table)} AS (SELECT {nothing} WHERE 0)"
        source = report.aliases.get(table, table)
        numbered = source not in report.unnumbered
        if len(present) == len(columns) and source == table and numbered:
            return None
        supplied = [
            "rowid" if numbered else "row_number() OVER () AS rowid",
            *map(quoted, present),
            *(f"NULL AS {quoted(column)}" for column in columns if column not in present),
        ]
        return f"{quoted(table)} AS (SELECT {', '.join(supplied)} FROM main.{quoted(source)})"

    def supply(self, report: Report) -> None:
        """Have what it reads in the database of a report that is a folder of tables.

        Raises:
            MissingTable: as in ``present``; ReportError: a file cannot be read.
        """
        if report.columnar is not None:
            found = {table: self.present(report, table) for table in self.tables}
            names = {table: report.aliases.get(table, table) for table in found}
            report.columnar.supply(
                {names[table]: columns for table, columns in found.items() if columns is not None},
                distinct=[names[table] for table in self.distinct],
            )

    def over(
        self, table: str, batches: Iterable[pl.DataFrame], values: Mapping[str, Any]
    ) -> Iterator[pl.DataFrame]:
        """Its answers for rows of its table, batch by batch, which have the columns that are there, and ``rowid``."""
        import polars as pl

        lists = {
            name: pl.DataFrame({"value": json.loads(text)})
            for name, text in values.items()
            if isinstance(text, str)
        }
        text = re.sub(r"json_each\(:(\w+)\)", r"\1", self.text)
        for name, value in values.items():
            text = text.replace(f":{name}", str(value))
        for batch in batches:
            missing = (column for column in self.optional.get(table, ()) if column not in batch.columns)
            rows = batch.with_columns(pl.lit(None).alias(column) for column in missing)
            with pl.SQLContext({table: rows, **lists}, eager=True) as context:
                yield context.execute(text)


_FACTS = (
    "TARGET_INFO_",
    "META_DATA_",
    "EXPORT_META_DATA",
    "DIAGNOSTIC_",
    "NVTX_PAYLOAD_",
    "GPU_METRICS",
    "PROCESSES",
)
"""Tables of facts beside the events: what one of them does not say in the way that we know is unknown, and no error."""


@cache
def folder() -> Path:
    """Where the query files are: inside the installed package, else beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "queries"
    return inside if inside.is_dir() else package.parent / "queries"


@cache
def names() -> tuple[str, ...]:
    """The names of all query files."""
    return tuple(sorted(path.stem for path in folder().glob("*.sql")))


@cache
def spelling() -> dict[str, str]:
    """Lower case of each table and column that any query names, to how it spells it."""
    asked = [part for query in map(get, names()) for part in (query.needs, query.optional)]
    found = {name for part in asked for table, columns in part.items() for name in (table, *columns)}
    return {name.lower(): name for name in sorted(found)}


@cache
def get(name: str) -> Query:
    """The query of that name.

    Raises:
        QueryError: unknown, or its header is malformed.
    """
    if name not in names():
        raise QueryError(f"there is no query {name!r}", do="`nsysddp query` lists them")
    return parse((folder() / f"{name}.sql").read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> Query:
    """A query from the text of its file.

    Raises:
        QueryError: if the header lacks a part or has an unknown one.
    """
    found: dict[str, str] = {}
    needs: dict[str, tuple[str, ...]] = {}
    optional: dict[str, tuple[str, ...]] = {}
    parameters: dict[str, str] = {}
    columns: dict[str, str] = {}
    distinct: tuple[str, ...] = ()
    lines = text.splitlines()
    body_at = next((i for i, line in enumerate(lines) if line and not line.startswith("--")), len(lines))
    for line in lines[:body_at]:
        entry = _HEADER.match(line)
        if not entry:
            continue
        key, of, value = entry["key"], entry["of"], entry["value"].strip()
        if of is None and key in ("name", "question", "row"):
            found[key] = value
        elif of is None and key == "distinct":
            distinct = _listed(value)
        elif of and key == "needs":
            needs[of] = _listed(value)
        elif of and key == "optional":
            optional[of] = _listed(value)
        elif of and key == "parameter":
            parameters[of] = value
        elif of and key == "column":
            columns[of] = value
        else:
            raise QueryError(f"query {name}: unknown header line {line!r}")
    lacking = {"name", "question", "row"} - set(found)
    if lacking or not columns or found["name"] != name:
        raise QueryError(f"query {name}: the header needs name (= file name), question, row and columns")
    return Query(
        name, found["question"], found["row"], needs, optional, parameters, columns, distinct,
        "\n".join(lines[body_at:]).strip().rstrip(";"),
    )  # fmt: skip


def _listed(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())
