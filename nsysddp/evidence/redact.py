"""How can a report be shared without sharing what it says about people and machines?

An allow-list, ``redact_allow.toml``, names every table and column that may be copied and the form that each text may
have; for the copy nothing else exists, later versions' tables and columns included. Values are copied row by row
into a fresh database (pages never are), so free pages, indexes, views, triggers and statistics cannot travel along.

The timeline keeps its rowids and order, so an analysis of the copy gives the numbers of the original. Two things
are kept on purpose, and a reader of the copy learns them: the wall-clock start of the session (reports of several
hosts are aligned by it), and kernel names, without the paths in them (``Policy.hide`` replaces those that say too
much). Process ids, GPU names, PCI addresses and GPU UUIDs stay too: ranks are told apart by them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import sqlite3
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from nsysddp.evidence.copied import write_folder
from nsysddp.ingest.columnar import quoted
from nsysddp.ingest.diagnostics import public
from nsysddp.ingest.report import open_report
from nsysddp.model.errors import EvidenceError, NotAReport, UsageError
from nsysddp.model.markers import (
    DEFAULT_PHASE_PATTERNS,
    DEFAULT_STEP_PATTERN,
    parse_bucket_mark,
    parse_rank_mark,
)
from nsysddp.model.names import natural
from nsysddp.model.scratch import committing, publish, scratch_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Policy:
    """What the person who shares a report decides.

    Attributes:
        keep_ranges: patterns of further NVTX range names to keep (full match, ignoring case); paths in them still go.
        hide: patterns of names to replace by a token although they would be kept, kernels too (full match, ignoring
            case). A hidden kernel is classified by its token, hence as compute.
        salt: mixed into the tokens, so that nobody can confirm a guessed name; give the reports of one job the same.
        keep_identifiers: leave alone what looks like a host, an address or a mail in the names that are kept.
        minimal: only the tables that the analyses read.
        window_ns: only what overlaps ``[start_ns, end_ns)`` of this report's time, with the launches of it. Step
            windows depend on the step before, so take in one more step than is to be recomputed.
    """

    keep_ranges: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    keep_identifiers: bool = False
    salt: str = ""
    minimal: bool = False
    window_ns: tuple[int, int] | None = None


class KeptTable(NamedTuple):
    """One table of the copy: its rows and columns, and how many of each the original has more."""

    name: str
    rows: int
    rows_dropped: int
    columns: int
    columns_dropped: int


class DroppedTables(NamedTuple):
    """Tables that are not in the copy, by what they are; ``rows`` is their sum."""

    label: str
    why: str
    tables: int
    rows: int


@dataclass(frozen=True)
class Redaction:
    """What one redaction kept and dropped. Holds no text of the report, so it can be shown with the copy.

    Attributes:
        output: base name of the copy.
        kept: tables of the copy.
        dropped: tables left out.
        names_kept: cells per kind of name that stayed as they were.
        names_replaced: cells per kind that became a token or lost a part.
        identifiers_hidden: names that lost what looked like a ``host``, ``address``, ``mail`` or ``url``.
        strings_dropped: rows of ``StringIds`` that no kept row refers to.
        cells_cleared: cells whose value had not the form that its column may have; they are null in the copy.
        payloads_kept: NVTX payloads of known layout, copied field by field.
        payloads_cleared: other NVTX payloads; they are null in the copy.
    """

    output: str
    kept: tuple[KeptTable, ...]
    dropped: tuple[DroppedTables, ...]
    names_kept: dict[str, int]
    names_replaced: dict[str, int]
    identifiers_hidden: dict[str, int]
    strings_dropped: int
    cells_cleared: int
    payloads_kept: int
    payloads_cleared: int

    def as_json(self) -> dict[str, Any]:
        """The outcome as plain JSON types."""
        return {
            "schema": "nsysddp.redaction/1",
            **asdict(self),
            "kept": [table._asdict() for table in self.kept],
            "dropped": [tables._asdict() for tables in self.dropped],
        }


def redact(
    report: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    policy: Policy | None = None,
    hosts: dict[str, str] | None = None,
    force: bool = False,
) -> Redaction:
    """Which copy of this report can be shared? Writes it, and says what it kept and dropped.

    Args:
        report: an export of Nsight Systems, also compressed or a folder of tables; opened read-only and never changed.
        output: the copy; written beside and renamed, so it is complete or absent. It is a SQLite file; of a folder of
            tables a folder of Parquet files, unless its name ends in ``.sqlite``.
        policy: what to keep and hide beyond the defaults.
        hosts: host name -> alias (``host-1`` ...), shared and extended by the calls for the reports of one job.
        force: replace an existing ``output`` that is a file.

    Raises:
        UsageError: ``output`` exists (without ``force``) or is the report; a pattern or window is malformed.
        ReportError: the input is not a readable export.
        EvidenceError: the copy cannot be written.
    """
    report, output = Path(report), Path(output)
    policy = policy or Policy()
    names = Names(policy, {} if hosts is None else hosts)
    if policy.window_ns is not None and policy.window_ns[0] >= policy.window_ns[1]:
        raise UsageError(f"the window [{policy.window_ns[0]}, {policy.window_ns[1]}) ns is empty")
    if output.exists() and report.exists() and output.samefile(report):
        raise UsageError("the copy would replace the report itself", file=output, do="choose another -o")
    if output.is_dir():
        raise UsageError("is a folder", file=output, do="choose another -o")
    if output.exists() and not force:
        raise UsageError("exists already", file=output, do="choose another -o or add --force")
    if not output.parent.is_dir():
        raise UsageError("the folder for the copy does not exist", file=output)
    with open_report(report, every_table=True) as opened:
        opened.supply(*(table for table in opened.tables if allow_list().rule_for(table)), counted=True)
        try:
            with scratch_folder(output.parent) as folder:
                copy = folder / "copy.sqlite"
                outcome = _Copier(opened.uri, copy, policy, names).run(report, output.name)
                if opened.columnar is None or output.suffix == ".sqlite":
                    publish(copy, output, replace=force)
                else:
                    write_folder(copy, folder / "copy")
                    with committing():
                        (folder / "copy").replace(output)
        except FileExistsError:
            raise UsageError("exists already", file=output, do="choose another -o or add --force") from None
        except OSError as error:
            raise EvidenceError(f"the copy cannot be written ({error.strerror})", file=output) from error
    return outcome


def aliases_of_hosts(reports: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """Which alias has each host of these reports, for ``redact(..., hosts=...)``?

    Aliases sort like the names they stand for, because ranks without a number are ordered by host.
    """
    found: set[str] = set()
    for report in reports:
        with open_report(Path(report)) as opened, contextlib.closing(opened.connect()) as db:
            if opened.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
                opened.supply("TARGET_INFO_SYSTEM_ENV")
                settings = db.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV").fetchall()
                found |= {str(value) for name, value in settings if _HOST_SETTING.fullmatch(str(name))}
    return {host: f"host-{n:0{len(str(len(found)))}}" for n, host in enumerate(sorted(found, key=natural), 1)}


# The allow-list


class TableRule(NamedTuple):
    """What of one table may be copied; see the head of ``redact_allow.toml``."""

    name: str
    columns: Mapping[str, str]
    """Column -> kind of its values."""
    rows: str
    span: str
    minimal: bool


class AllowList(NamedTuple):
    """``redact_allow.toml``, compiled."""

    tables: Mapping[str, TableRule]
    settings: Mapping[str, tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]]
    names: Mapping[str, re.Pattern[str]]
    values: Mapping[str, re.Pattern[str]]
    identifiers: Mapping[str, re.Pattern[str]]
    """What may not be in a name that is kept, in the order in which it is looked for."""
    dropped: tuple[tuple[re.Pattern[str], str, str], ...]

    def rule_for(self, table: str) -> TableRule | None:
        """The rule of a table; ``CUPTI_..._V3`` of a later version is read by the rule of ``CUPTI_...``."""
        by_name = {name.lower(): rule for name, rule in self.tables.items()}
        if rule := by_name.get(table.lower()):
            return rule
        later = re.fullmatch(r"(CUPTI_ACTIVITY_KIND_[A-Z_]+)_V\d{1,2}", table)
        if later and later[1] in self.tables:
            return self.tables[later[1]]._replace(name=table)
        return None

    def why_dropped(self, table: str) -> tuple[str, str]:
        """Label and reason for a table that is not copied. Foreign tables go unnamed: the name may be private."""
        for pattern, label, why in self.dropped:
            if pattern.fullmatch(table):
                return label, why
        if self.rule_for(table):
            return "left out", "not needed for the analyses, or without a known column"
        return "foreign or later tables", "not on the allow-list"


@cache
def allow_list() -> AllowList:
    """The shipped allow-list."""
    raw = tomllib.loads(Path(__file__).with_name("redact_allow.toml").read_text(encoding="utf-8"))
    tables = {}
    for name, rule in raw["tables"].items():
        columns = dict(column.partition(":")[::2] for column in rule["columns"].split())
        tables[name] = TableRule(
            name=name,
            columns={column: kind or "integer" for column, kind in columns.items()},
            rows=rule.get("rows", ""),
            span=rule.get("span", ""),
            minimal=rule.get("minimal", True),
        )
    settings = {
        table: tuple((re.compile(key), re.compile(value)) for key, value in rules.items())
        for table, rules in raw["settings"].items()
    }
    names = raw["names"]
    operator = names.pop("op")
    names["field"] += names["payload"]
    names["range"] = [pattern.replace("{op}", operator) for pattern in names["range"]]
    names["range"] += [DEFAULT_STEP_PATTERN, *DEFAULT_PHASE_PATTERNS.values()]
    return AllowList(
        tables=tables,
        settings={**settings, "EXPORT_META_DATA": settings["META_DATA_EXPORT"]},
        names={
            kind: _any_of(patterns, re.IGNORECASE if kind == "range" else 0)
            for kind, patterns in names.items()
        },
        values={kind: re.compile(pattern) for kind, pattern in raw["values"].items()},
        identifiers={
            kind: re.compile(pattern, re.IGNORECASE | re.ASCII)
            for kind, pattern in raw["identifiers"].items()
        },
        dropped=tuple((re.compile(row["name"]), row["label"], row["why"]) for row in raw["dropped"]),
    )


def _any_of(patterns: Iterable[str], flags: int = 0) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), flags)


# Names

_WHERE_DEFINED = re.compile(
    r"((?:lambda|unnamed (?:struct|class|union|enum)|anonymous (?:struct|class|union)) at ).{0,4096}?(:\d+:\d+)"
)
_SEGMENT = r"[^\s/\\:<>()\[\]{}'\",;|*?&=]+"
_PATH = re.compile(
    # absolute, of a drive, of a home, or relative to a dot; else relative with a file name or three segments
    rf"(?<![\w<])(?<!operator)(?:[A-Za-z]:|~[\w.-]*|\.{{1,2}})?(?:[/\\]{_SEGMENT})+[/\\]?"
    r"|[\w.+@-]{1,255}(?:[/\\][\w.+@-]+)*[/\\][\w+@-]+\.[A-Za-z]\w{0,4}\b"
    r"|[\w.+@-]{1,255}(?:[/\\][\w.+@-]+){2,}"
)
_HOST_SETTING = re.compile(r"(?i)(host|computer|node)[ _]?name")
_COULD_IDENTIFY = re.compile(r"[@.:-]|[0-9]{2}")
"""Whatever looks like a machine or a person holds one of these; most names are spared the search."""
_SHORTEST_HOST = 5
"""A shorter word is as likely part of a kernel's name as the name of a host."""
_FREE_TAIL = "optimizer.step#"
"""What follows it is free text, though the whole is the name of a phase."""


def scrub_paths(text: str) -> str:
    """The text with every file path in it as ``<path>``; C++ operators and template arguments stay as they are."""
    if "/" not in text and "\\" not in text and " at " not in text:
        return text
    return _PATH.sub("<path>", _WHERE_DEFINED.sub(r"\1<path>\2", text))


class Names:
    """What a text of the report becomes in the copy, by the kind of cell it stands in."""

    def __init__(self, policy: Policy, hosts: dict[str, str]) -> None:
        self._key = hashlib.blake2b(policy.salt.encode()).digest() if policy.salt else b""
        self._keep = _user_pattern(policy.keep_ranges, "--keep-ranges")
        self._hide = _user_pattern(policy.hide, "--hide")
        self._hosts = hosts
        self._scrub_identifiers = not policy.keep_identifiers
        self._own: re.Pattern[str] | None = None
        self._allow = allow_list()
        self.redact = lru_cache(maxsize=1 << 16)(self._redact)

    def _redact(self, kind: str, text: str) -> str | None:
        if kind in self._allow.values:
            return text if self._allow.values[kind].fullmatch(text) else None
        if kind == "kernel":
            return self._kernel(text)
        if kind == "range":
            return self._range(text)
        if kind == "host":
            return text if text == "Local (CLI)" else self.host(text)
        if kind == "diagnostic":
            return public(text)
        return text if self._allow.names[kind].fullmatch(text) else self._token(kind, text)

    def _token(self, prefix: str, text: str) -> str:
        """A neutral name, equal for equal names in every report redacted with the same salt."""
        return f"{prefix}-{hashlib.blake2b(text.encode(), digest_size=6, key=self._key).hexdigest()}"

    def hide_hosts(self, hosts: Iterable[str]) -> None:
        """Hide the names of these hosts in other names too, with and without their domain."""
        names = {part for host in hosts for part in (host, host.partition(".")[0])}
        telling = sorted(
            name for name in names if len(name) >= _SHORTEST_HOST and name.lower() != "localhost"
        )
        self._own = (
            _any_of(
                (rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in reversed(telling)), re.I
            )
            if telling and self._scrub_identifiers
            else None
        )
        self.redact.cache_clear()

    def _scrubbed(self, text: str) -> str:
        """The text without paths and without what looks like a machine or a person."""
        if self._scrub_identifiers and _COULD_IDENTIFY.search(text):
            for kind, pattern in self._allow.identifiers.items():
                text = pattern.sub(f"<{kind}>", text)
        if self._own is not None:
            text = self._own.sub("<host>", text)
        return scrub_paths(text)

    def _hidden(self, text: str) -> bool:
        return self._hide is not None and self._hide.fullmatch(text) is not None

    def _kernel(self, text: str) -> str:
        return self._token("kernel", text) if self._hidden(text) else self._scrubbed(text.split("\0", 1)[0])

    def _range(self, text: str) -> str:
        if self._hidden(text):
            return self._token("range", text)
        if self._keep is not None and self._keep.fullmatch(text):
            return self._scrubbed(text)
        if not text or parse_rank_mark(text) or parse_bucket_mark(text):
            return text
        if text.lower().startswith(_FREE_TAIL):
            head, tail = text[: len(_FREE_TAIL)], text[len(_FREE_TAIL) :]
            known = self._allow.names["optimizer"].fullmatch(tail)
            return head + (tail if known else self._token("range", tail))
        return text if self._allow.names["range"].fullmatch(text) else self._token("range", text)

    def host(self, text: str) -> str:
        """The alias of a host, by order of first appearance over all reports that share the aliases."""
        if text not in self._hosts:
            taken = set(self._hosts.values())
            free = next(alias for n in itertools.count(1) if (alias := f"host-{n}") not in taken)
            redacted_before = re.fullmatch(r"host-\d{1,6}", text) and text not in taken
            self._hosts[text] = text if redacted_before else free
        return self._hosts[text]

    def setting(self, table: str, key: str, value: str) -> str | None:
        """The value of a row of a key/value table, or None if the row is to be dropped."""
        if table == "TARGET_INFO_SYSTEM_ENV" and _HOST_SETTING.fullmatch(key):
            return self.host(value)
        rules = self._allow.settings[table]
        return value if any(k.fullmatch(key) and v.fullmatch(value) for k, v in rules) else None


def _user_pattern(patterns: tuple[str, ...], option: str) -> re.Pattern[str] | None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{option} {pattern!r} is no regular expression ({error})") from error
    return _any_of(patterns, re.IGNORECASE) if patterns else None


# Payloads

_PAYLOAD_INTEGERS = {3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 9: 8, 10: 8, 11: 1, 12: 1, 13: 2, 14: 2}
_PAYLOAD_INTEGERS |= {15: 4, 16: 4, 17: 8, 18: 8, 22: 8}
"""Type -> bytes of the fixed-size integers of NVTX payloads (nvToolsExtPayload.h); no characters, strings, pointers."""


class Payloads:
    """Which bytes of an NVTX payload may be copied, by the schemas in the report itself.

    Args:
        fields: (domainId, schemaId) -> (offset, width) of every number that may be copied.
    """

    def __init__(self, fields: Mapping[tuple[object, object], frozenset[tuple[int, int]]]) -> None:
        self._fields = fields
        self.kept = 0
        self.cleared = 0

    def copy(self, domain_id: object, blob: bytes) -> bytes | None:
        """The payload with every byte outside a known number as zero; None if its layout is not known.

        Layout: u64 count, then per payload u64 schemaId, u64 size, u64 offset, then the payloads. Padding goes to
        zero because it holds whatever was in memory there.
        """
        rebuilt = self._rebuilt(domain_id, blob)
        self.kept += rebuilt is not None
        self.cleared += rebuilt is None
        return rebuilt

    def _rebuilt(self, domain_id: object, blob: bytes) -> bytes | None:
        if len(blob) < 8:
            return None
        (count,) = struct.unpack_from("<Q", blob)
        header = 8 + 24 * count
        if not 1 <= count <= 64 or len(blob) < header:
            return None
        rebuilt = bytearray(len(blob))
        rebuilt[:header] = blob[:header]
        for index in range(count):
            schema_id, size, offset = struct.unpack_from("<QQQ", blob, 8 + 24 * index)
            allowed = self._fields.get((domain_id, schema_id))
            if not allowed or offset < header or offset + size > len(blob):
                return None
            for at, width in allowed:
                if at + width <= size:
                    rebuilt[offset + at : offset + at + width] = blob[offset + at : offset + at + width]
        return bytes(rebuilt)


# Copying


class _Copier:
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
        payloads = Payloads(self._payload_fields(tables))
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
        return [value for name, value in read if _HOST_SETTING.fullmatch(name)]

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

    def _payload_fields(
        self, tables: Mapping[str, list[str]]
    ) -> dict[tuple[object, object], frozenset[tuple[int, int]]]:
        """Offset and width of the numbers that may be copied, per (domainId, schemaId).

        Schemas are repeated per process without saying whose they are. A schema whose repetitions disagree about a
        known field, or whose known field cannot be placed, has none: a zero in its stead would be read as a number.
        """

        def rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
            if not set(columns) <= set(tables.get(table, ())):
                return []
            listed = ", ".join(quoted(column) for column in columns)
            return self.db.execute(f"SELECT {listed} FROM src.{quoted(table)}").fetchall()  # noqa: S608

        enums: dict[tuple[object, object], set[object]] = defaultdict(set)
        for domain_id, schema_id, size in rows("NVTX_PAYLOAD_ENUMS", "domainId", "schemaId", "size"):
            enums[domain_id, schema_id].add(size)
        layouts: dict[tuple[object, object], list[set[tuple[int, int] | None]]] = defaultdict(list)
        position: int | None = 0
        for domain_id, schema_id, idx, flags, kind, name, offset in rows(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            *("domainId", "schemaId", "idx", "flags", "type", "name", "offset"),
        ):
            repetitions = layouts[domain_id, schema_id]
            if idx == 0 or not repetitions:
                repetitions.append(set())
                position = 0
            sizes = enums.get((domain_id, kind), set())
            width = _PAYLOAD_INTEGERS.get(kind) or next((n for n in (1, 2, 4, 8) if sizes == {n}), None)
            # Without an offset a field follows the one before it, aligned to its own size.
            at = offset
            if offset is None and width is not None and position is not None:
                at = -(-position // width) * width
            position = at + width if isinstance(at, int) and width is not None else None
            text = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
            if self.allow.names["payload"].fullmatch(text):
                # Flags mark pointers and arrays.
                if flags or width is None or not isinstance(at, int) or at < 0:
                    repetitions[-1].add(None)
                else:
                    repetitions[-1].add((at, width))
        return {
            schema: frozenset(place for place in repetitions[0] if place is not None)
            for schema, repetitions in layouts.items()
            if repetitions[0] and None not in repetitions[0] and all(r == repetitions[0] for r in repetitions)
        }

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
            f"{quoted(name)} {'INTEGER' if _is_integer(kind) else 'TEXT'}"
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
        for source, _, kind in chosen:
            cell = quoted(source)
            if _is_integer(kind):
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
