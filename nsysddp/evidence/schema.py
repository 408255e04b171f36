"""Which form has ``evidence.json``? A JSON Schema that is made from the contracts of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsysddp.model.schema import Table

SCHEMA_VERSION = 1

_TYPES = {"Int64": "integer", "Float64": "number", "String": "string", "Boolean": "boolean"}
_TEXT = {"type": "string"}
_NULLABLE = {"type": ["string", "null"]}
_WHOLE = {"type": ["integer", "null"]}


def schema_text() -> str:
    """The JSON Schema of evidence.json, as it is shipped."""
    return files("nsysddp.evidence").joinpath("evidence.schema.json").read_text(encoding="utf-8")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of evidence.json, made anew; the shipped file is this."""
    from nsysddp.questions.analysis import QUESTION
    from nsysddp.render.document import json_schema as of_analyze

    analyze = of_analyze(QUESTION)["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nsysddp evidence",
        **_record(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "tool": _record({"name": {"const": "nsysddp"}, "version": _TEXT}),
                "question": _TEXT,
                "reading": _reading(),
                "allow_unlike": {"type": "boolean"},
                "claims": _listed(_claim()),
                "comparison": {"anyOf": [_comparison(), {"type": "null"}]},
                "runs": _listed(_run(analyze)),
            }
        ),
    }


def _reading() -> dict[str, Any]:
    return _record(
        {
            "per": {"enum": ["step", "capture"]},
            "from_ns": _WHOLE,
            "to_ns": _WHOLE,
            "first_step": _WHOLE,
            "last_step": _WHOLE,
            "skip_warmup": {"type": "integer"},
            "step_pattern": _TEXT,
            "phase_patterns": {"type": "object", "additionalProperties": _TEXT},
            "clock_tolerance_ns": {"type": "integer"},
            "rules": _NULLABLE,
        }
    )


def _claim() -> dict[str, Any]:
    return _record(
        {
            "name": _TEXT,
            "claim": _TEXT,
            "outcome": {"enum": ["pass", "fail", "undecidable"]},
            "reason": _TEXT,
            "capture": _NULLABLE,
            "rows": _listed({"type": "object"}),
        }
    )


def _comparison() -> dict[str, Any]:
    from nsysddp.questions.compare.tables import TABLES

    return _record(
        {
            "schema_version": {"type": "integer"},
            "verdict": _TEXT,
            "sentence": _TEXT,
            "which_is_which": _listed(_TEXT),
            "base": _listed(_TEXT),
            "new": _listed(_TEXT),
            "tables": _record({name: _rows(table) for name, table in TABLES.items()}),
            "warnings": _listed(_TEXT),
            "assumptions": _listed(_TEXT),
        }
    )


def _run(analyze: Mapping[str, Any]) -> dict[str, Any]:
    """One run: what ``analyze`` says of it, and the tables that a comparison needs besides."""
    from nsysddp.model.schema import CONTENTION_STEP, IDLE_STEP
    from nsysddp.questions.critical_path import PATH_KIND, PATH_STEP

    further = (CONTENTION_STEP, IDLE_STEP, PATH_STEP, PATH_KIND)
    tables = {**analyze["tables"]["properties"], **{table.name: _rows(table) for table in further}}
    return _record(
        {
            "side": {"enum": ["new", "base"]},
            "name": _TEXT,
            "facts": {"type": ["object", "null"], "additionalProperties": _TEXT},
            "settings": {"type": ["object", "null"]},
            "measured": {"type": "object", "additionalProperties": _listed({"type": "number"})},
            "inputs": analyze["inputs"],
            "request": analyze["request"],
            "tables": _record(tables, optional=(PATH_STEP.name, PATH_KIND.name)),
            "findings": analyze["findings"],
            "assumptions": analyze["assumptions"],
            "warnings": analyze["warnings"],
        }
    )


def _record(properties: dict[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def _listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _rows(table: Table) -> dict[str, Any]:
    columns = {
        column.name: {
            "type": [_TYPES.get(str(column.dtype), "string"), "null"],
            "description": column.meaning,
        }
        for column in table.columns
    }
    return {**_listed(_record(columns)), "description": table.row}
