"""Which tables, columns, settings and names may be copied? What ``allow.toml`` says, compiled."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nsysddp.model.markers import DEFAULT_PHASE_PATTERNS, DEFAULT_STEP_PATTERN

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class TableRule(NamedTuple):
    """What of one table may be copied; see the head of ``allow.toml``."""

    name: str
    columns: Mapping[str, str]
    """Column -> kind of its values."""
    rows: str
    span: str
    minimal: bool
    order: frozenset[str] = frozenset()
    """Integer columns of which the copy holds the order (0, 1, ...) and not the numbers, which are ids of hardware."""
    fractions: frozenset[str] = frozenset()
    """Integer columns that may hold fractions."""


class AllowList(NamedTuple):
    """``allow.toml``, compiled."""

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
    raw = tomllib.loads(Path(__file__).with_name("allow.toml").read_text(encoding="utf-8"))
    tables = {}
    for name, rule in raw["tables"].items():
        columns = dict(column.partition(":")[::2] for column in rule["columns"].split())
        tables[name] = TableRule(
            name=name,
            columns={column: kind or "integer" for column, kind in columns.items()},
            rows=rule.get("rows", ""),
            span=rule.get("span", ""),
            minimal=rule.get("minimal", True),
            order=frozenset(rule.get("order", "").split()),
            fractions=frozenset(rule.get("fractions", "").split()),
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
            kind: any_of(patterns, re.IGNORECASE if kind == "range" else 0)
            for kind, patterns in names.items()
        },
        values={kind: re.compile(pattern) for kind, pattern in raw["values"].items()},
        identifiers={
            kind: re.compile(pattern, re.IGNORECASE | re.ASCII)
            for kind, pattern in raw["identifiers"].items()
        },
        dropped=tuple((re.compile(row["name"]), row["label"], row["why"]) for row in raw["dropped"]),
    )


def any_of(patterns: Iterable[str], flags: int = 0) -> re.Pattern[str]:
    """One pattern for all of these."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), flags)
