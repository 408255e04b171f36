"""How is one copy made, table by table and row by row?"""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.evidence.redact.allowed import allow_list
from nsysddp.evidence.redact.names import HOST_SETTING
from nsysddp.evidence.redact.outcome import DroppedTables, KeptTable, Redaction
from nsysddp.evidence.redact.payloads import Payloads, known_fields
from nsysddp.ingest.columnar import quoted
from nsysddp.model.errors import EvidenceError, NotAReport

if TYPE_CHECKING:
    from nsysddp.evidence.redact.allowed import TableRule
    from nsysddp.evidence.redact.names import Names
    from nsysddp.evidence.redact.outcome import Policy


class Copier:
    """One copy in the making: a fresh database with the report attached read-only as ``src``.

    The SQL of this class is generated, and therefore not kept in ``queries/``: which columns it names is the
    intersection of the allow-list with what the report has. Identifiers are quoted and, on the side of the copy,
    always the allow-list's own.
    """

    def __init__(self, source_uri: str, partial: Path, policy: Policy, names: Names) -> None:
        self.source_uri, self.partial, self.policy, self.names = source_uri, partial, policy, names
        self.allow = allow_list()
        self.codec = "utf-8"
        self.roles: dict[int, set[str]] = defaultdict(set)
        self.kept: dict[str, KeptTable] = {}
        self.strings_dropped = self.cells_cleared = 0
        self.names_kept: Counter[str] = Counter()
        self.names_replaced: Counter[str] = Counter()
        self.identifiers_hidden: Counter[str] = Counter()

    def run(self, report: Path, output_name: str) -> Redaction:
        """Write the copy; what it kept and dropped."""
        try:
            uri = self.partial.absolute().as_uri()
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                self.db = db
                return self._run(output_name)
        except sqlite3.Error as error:
            if re.search("malformed|not a database|encrypted", str(error)):
                raise NotAReport("is damaged or incomplete", file=report, do="export it again") from error
            raise EvidenceError(f"the copy cannot be written ({error})", file=output_name) from error

    def _run(self, output_name: str) -> Redaction:
        self._attach()
        tables = self._source_tables()
        rules = {table: rule for table in tables if (rule := self.allow.rule_for(table))}
        if self.policy.minimal:
            rules = {table: rule for table, rule in rules.items() if rule.minimal}
        payloads = Payloads(
            known_fields(lambda *asked: self._rows(tables, *asked), self.allow.names["payload"])
        )
        self._define_functions(payloads)
        self.names.hide_hosts(self._hosts(tables))
        self.db.execute("BEGIN")
        spans = self._spans(rules, tables)
        # Last come the tables whose rows depend on what the others kept.
        last = ("PROCESSES", "StringIds")
        for table, rule in sorted(rules.items(), key=lambda item: item[1].name in last):
            if rule.name == "StringIds":
                self._copy_strings(table, rule, tables[table])
            elif rule.name in self.allow.settings:
                self._copy_settings(table, rule, tables[table])
            else:
                if rule.name == "PROCESSES":
                    self._collect_processes()
                self._copy(table, rule, tables[table], spans)
        dropped = self._dropped(set(tables) - set(self.kept))
        self.db.execute("COMMIT")
        self.db.execute("DETACH src")
        # Nothing was ever deleted, so there is nothing for VACUUM to free; and it would renumber the rowids.
        if self.db.execute("PRAGMA freelist_count").fetchone()[0] != 0:
            raise EvidenceError("the copy holds free pages", file=output_name)
        order = {name: position for position, name in enumerate(self.allow.tables)}
        return Redaction(
            output=output_name,
            kept=tuple(sorted(self.kept.values(), key=lambda table: order.get(table.name, -1))),
            dropped=dropped,
            names_kept=dict(sorted(self.names_kept.items())),
            names_replaced=dict(sorted(self.names_replaced.items())),
            identifiers_hidden=dict(sorted(self.identifiers_hidden.items())),
            strings_dropped=self.strings_dropped,
            cells_cleared=self.cells_cleared,
            payloads_kept=payloads.kept,
            payloads_cleared=payloads.cleared,
        )

    def _attach(self) -> None:
        self.db.text_factory = bytes
        with contextlib.closing(sqlite3.connect(self.source_uri, uri=True)) as probe:
            encoding = probe.execute("PRAGMA encoding").fetchone()[0]
        codecs = {"UTF-8": "utf-8", "UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}
        self.codec = codecs[encoding]
        # SQLite attaches only databases of one encoding.
        for pragma in (
            f"encoding = '{encoding}'",
            "journal_mode = OFF",
            "synchronous = OFF",
            "secure_delete = ON",
            "trusted_schema = OFF",
        ):
            self.db.execute(f"PRAGMA {pragma}").fetchall()
        self.db.execute("ATTACH ? AS src", (self.source_uri,))

    def _source_tables(self) -> dict[str, list[str]]:
        """Columns of the ordinary tables of the report; views and virtual tables are not read at all."""
        listed = self.db.execute("SELECT name FROM src.sqlite_master WHERE type = 'table' AND rootpage > 0")
        tables = [name.decode("utf-8", "replace") for (name,) in listed.fetchall()]
        columns = {
            table: [
                row[1].decode("utf-8", "replace")
                for row in self.db.execute(f"PRAGMA src.table_info({quoted(table)})")
            ]
            for table in tables
        }
        return {table: found for table, found in columns.items() if found}

    def _hosts(self, tables: Mapping[str, list[str]]) -> list[str]:
        """Names of hosts in the settings of the report."""
        table = "TARGET_INFO_SYSTEM_ENV"
        if not {"name", "value"} <= set(tables.get(table, ())):
            return []
        cells = 'CAST("name" AS BLOB), CAST("value" AS BLOB)'
        settings = self.db.execute(f"SELECT {cells} FROM src.{quoted(table)}")  # noqa: S608
        read = [[(cell or b"").decode(self.codec, "replace") for cell in row] for row in settings]
        return [value for name, value in read if HOST_SETTING.fullmatch(name)]

    def _rows(self, tables: Mapping[str, list[str]], table: str, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of a table of the report; nothing where one is missing."""
        if not set(columns) <= set(tables.get(table, ())):
            return []
        listed = ", ".join(quoted(column) for column in columns)
        return self.db.execute(f"SELECT {listed} FROM src.{quoted(table)}").fetchall()  # noqa: S608

    def _define_functions(self, payloads: Payloads) -> None:
        def redacted(kind: str, raw: bytes | None) -> str | None:
            return None if raw is None else self._redacted(kind, raw.decode(self.codec, "replace"))

        def cleared() -> None:
            self.cells_cleared += 1

        self.db.create_function("redacted", 2, redacted)
        self.db.create_function("cleared", 0, cleared)
        self.db.create_function("payload", 2, payloads.copy)

    def _redacted(self, kind: str, text: str) -> str | None:
        result = self.names.redact(kind, text)
        if result is None:
            self.cells_cleared += 1
        else:
            (self.names_kept if result == text else self.names_replaced)[kind] += 1
            if kind in ("kernel", "range") and result != text:
                self.identifiers_hidden.update(
                    what
                    for what in self.allow.identifiers
                    if result.count(f"<{what}>") > text.count(f"<{what}>")
                )
        return result

    # Which rows and bytes

    def _spans(
        self, rules: Mapping[str, TableRule], tables: Mapping[str, list[str]]
    ) -> dict[str, tuple[int, int]]:
        """The spans that GPU events and host rows must overlap, if a window is asked for.

        The host span begins with the earliest launch of a GPU event in the window: an asynchronous launch can lie
        long before its event.
        """
        if self.policy.window_ns is None:
            return {}
        start, end = first, _ = self.policy.window_ns
        runtimes = [t for t, rule in rules.items() if rule.name.startswith("CUPTI_ACTIVITY_KIND_RUNTIME")]
        for calls, events in itertools.product(runtimes, rules):
            joined = {"start", "end", "correlationId", "globalPid"} <= set(tables[events])
            if (
                rules[events].span != "gpu"
                or not joined
                or not {"correlationId", "globalTid"} <= set(tables[calls])
            ):
                continue
            (launch,) = self.db.execute(
                f'SELECT min(c."start") FROM src.{quoted(calls)} c JOIN src.{quoted(events)} e '  # noqa: S608
                'ON e."correlationId" = c."correlationId" AND (c."globalTid" >> 24) = (e."globalPid" >> 24) '
                'WHERE e."end" > ? AND e."start" < ?',
                (start, end),
            ).fetchone()
            first = min(first, launch) if isinstance(launch, int) else first
        return {"gpu": (start, end), "host": (first, end)}

    def _collect_processes(self) -> None:
        """Make ``temp.kept_process``: the processes that left rows in the copy."""
        self.db.execute("CREATE TEMP TABLE kept_process (global_pid INTEGER PRIMARY KEY)")
        for table in self.kept.values():
            info = self.db.execute(f"PRAGMA main.table_info({quoted(table.name)})")
            present = {row[1].decode() for row in info}
            for column, pid in (("globalPid", '"globalPid"'), ("globalTid", '("globalTid" >> 24) << 24')):
                if column in present and table.name != "DIAGNOSTIC_EVENT":
                    self.db.execute(
                        f"INSERT OR IGNORE INTO temp.kept_process SELECT DISTINCT {pid} "  # noqa: S608
                        f"FROM main.{quoted(table.name)} WHERE {quoted(column)} IS NOT NULL"
                    )

    # Copying

    def _create(self, rule: TableRule, columns: list[str]) -> list[tuple[str, str, str]]:
        """Make the table; (column of the report, allowed name, kind) in the report's order."""
        allowed = {column.lower(): column for column in rule.columns}
        chosen = [
            (column, allowed[column.lower()], rule.columns[allowed[column.lower()]])
            for column in columns
            if column.lower() in allowed
        ]
        defined = [
            f"{quoted(name)} {'NUMERIC' if name in rule.fractions else 'INTEGER' if _is_integer(kind) else 'TEXT'}"
            + (" PRIMARY KEY" if (rule.name, name) == ("StringIds", "id") else "")
            for _, name, kind in chosen
        ]
        if defined:
            self.db.execute(f"CREATE TABLE main.{quoted(rule.name)} ({', '.join(defined)})")
        return chosen

    def _copy(
        self, table: str, rule: TableRule, columns: list[str], spans: Mapping[str, tuple[int, int]]
    ) -> None:
        """Copy the allowed columns of one table with its rowids, each cell by its kind."""
        chosen = self._create(rule, columns)
        if not chosen:
            return
        present = {name for _, name, _ in chosen}
        rowid = self._rowid(table, columns)
        values = []
        for source, name, kind in chosen:
            cell = quoted(source)
            if name in rule.order:
                values.append(
                    f"CASE WHEN {cell} IS NOT NULL THEN DENSE_RANK() OVER (ORDER BY {cell}) - 1 END"
                )
                continue
            if name in rule.fractions:
                how = f"WHEN 'integer' THEN {cell} WHEN 'real' THEN {cell}"
            elif _is_integer(kind):
                how = f"WHEN 'integer' THEN {cell}"
            elif kind == "payload":
                domain = '"domainId"' if "domainId" in present else "NULL"
                how = f"WHEN 'blob' THEN payload({domain}, {cell})"
            else:
                values.append(f"redacted('{kind}', CAST({cell} AS BLOB))")
                continue
            values.append(f"CASE typeof({cell}) {how} WHEN 'null' THEN NULL ELSE cleared() END")
        conditions, bound = [rule.rows] if rule.rows else [], []
        if rule.span in spans and {"start", "end"} <= present:
            start, end = spans[rule.span]
            # A mark has no end, and what begins in the window belongs to it even with no length.
            conditions.append('"start" < ? AND ("start" >= ? OR "end" > ?)')
            bound = [end, start, start]
        elif rule.span in spans and "timestamp" in present:
            conditions.append('"timestamp" >= ? AND "timestamp" < ?')
            bound = [*spans[rule.span]]
        into = [*(["rowid"] if rowid else []), *(quoted(name) for _, name, _ in chosen)]
        self.db.execute(
            f"INSERT INTO main.{quoted(rule.name)} ({', '.join(into)}) "  # noqa: S608
            f"SELECT {', '.join([*([rowid] if rowid else []), *values])} FROM src.{quoted(table)}"
            + (f" WHERE {' AND '.join(conditions)}" if conditions else "")
            + (f" ORDER BY {rowid}" if rowid else ""),
            bound,
        )
        for _, name, kind in chosen:
            if kind.endswith("Id"):
                used = self.db.execute(f"SELECT DISTINCT {quoted(name)} FROM main.{quoted(rule.name)}")  # noqa: S608
                for (string_id,) in used:
                    self.roles[string_id].add(kind.removesuffix("Id"))
        self._account(table, rule, len(chosen), len(columns))

    def _copy_strings(self, table: str, rule: TableRule, columns: list[str]) -> None:
        """Copy the strings that kept rows refer to, each by the rule of where it is used."""
        chosen = self._create(rule, columns)
        if len(chosen) != len(rule.columns):
            return
        rows = self.db.execute(f'SELECT "id", CAST("value" AS BLOB) FROM src.{quoted(table)} ORDER BY "id"')  # noqa: S608
        kept = []
        for string_id, raw in rows:
            if string_id in self.roles and raw is not None:
                kept.append((string_id, self._shared_string(string_id, raw.decode(self.codec, "replace"))))
            else:
                self.strings_dropped += 1
        self.db.executemany('INSERT INTO main."StringIds" ("id", "value") VALUES (?, ?)', kept)
        self._account(table, rule, len(chosen), len(columns))

    def _shared_string(self, string_id: int, text: str) -> str | None:
        """What a string becomes that can name several things.

        As a kernel it decides for all (kept anyway, or hidden everywhere); else it stays if any of them may keep it.
        """
        roles = sorted(self.roles[string_id], key=["kernel", "api", "range"].index)
        results = {role: self._redacted(role, text) for role in roles}
        first = results[roles[0]]
        return first if "kernel" in results or text not in results.values() else text

    def _copy_settings(self, table: str, rule: TableRule, columns: list[str]) -> None:
        """Copy those rows of a key/value table whose key and value have an allowed form."""
        chosen = self._create(rule, columns)
        if not {"name", "value"} <= {name for _, name, _ in chosen}:
            return
        cells = ", ".join(f"CAST({quoted(source)} AS BLOB)" for source, _, _ in chosen)
        rowid = self._rowid(table, columns) or "NULL"
        kept = []
        rows = self.db.execute(f"SELECT {rowid}, {cells} FROM src.{quoted(table)} ORDER BY 1").fetchall()  # noqa: S608
        for number, *raw in rows:
            row = {
                name: "" if cell is None else cell.decode(self.codec, "replace")
                for (_, name, _), cell in zip(chosen, raw, strict=True)
            }
            value = self.names.setting(rule.name, row["name"], row["value"])
            if value is None:
                continue
            copied: list[str | None] = []
            for _, name, kind in chosen:
                cell = value if name == "value" else row[name]
                if kind == "host":
                    copied.append(self._redacted(kind, cell))
                else:
                    copied.append(cell if kind == "setting" or re.fullmatch(r"-?\d{1,20}", cell) else None)
            kept.append((number, *copied))
        into = ", ".join(["rowid", *(quoted(name) for _, name, _ in chosen)])
        marks = ", ".join("?" * (len(chosen) + 1))
        self.db.executemany(f"INSERT INTO main.{quoted(rule.name)} ({into}) VALUES ({marks})", kept)  # noqa: S608
        self._account(table, rule, len(chosen), len(columns))

    def _rowid(self, table: str, columns: list[str]) -> str | None:
        """A name of the rowid that no column hides; None for a table without rowids."""
        hidden = {column.lower() for column in columns}
        alias = next((alias for alias in ("rowid", "_rowid_", "oid") if alias not in hidden), None)
        try:
            self.db.execute(f"SELECT {alias} FROM src.{quoted(table)} LIMIT 0")  # noqa: S608
        except sqlite3.OperationalError:
            return None
        return alias

    # Accounts

    def _count(self, table: str) -> int:
        """Rows of ``schema."table"``."""
        return int(self.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608

    def _account(self, table: str, rule: TableRule, columns: int, columns_before: int) -> None:
        rows, before = self._count(f"main.{quoted(rule.name)}"), self._count(f"src.{quoted(table)}")
        self.kept[table] = KeptTable(rule.name, rows, before - rows, columns, columns_before - columns)

    def _dropped(self, tables: set[str]) -> tuple[DroppedTables, ...]:
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for table in sorted(tables):
            groups[self.allow.why_dropped(table)].append(self._count(f"src.{quoted(table)}"))
        return tuple(DroppedTables(label, why, len(rows), sum(rows)) for (label, why), rows in groups.items())


def _is_integer(kind: str) -> bool:
    return kind == "integer" or kind.endswith("Id")
