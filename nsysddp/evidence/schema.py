"""Which form has ``evidence.json``? A JSON Schema that is made from the contracts of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

SCHEMA_VERSION = 2


def schema_text() -> str:
    """The JSON Schema of evidence.json, as it is shipped."""
    return files("nsysddp.evidence").joinpath("evidence.schema.json").read_text(encoding="utf-8")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of evidence.json, made anew; the shipped file is this."""
    from nsysddp.questions.analysis import QUESTION
    from nsysddp.render.compare.document import schema_of_comparison
    from nsysddp.render.document import TOOL_SCHEMA, listed, record, request_schema
    from nsysddp.render.document import json_schema as of_analyze

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nsysddp evidence",
        **record(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "tool": TOOL_SCHEMA,
                "request": request_schema(),
                "claims": listed(_claim()),
                "comparison": {"anyOf": [schema_of_comparison(), {"type": "null"}]},
                "runs": listed(_run(of_analyze(QUESTION)["properties"])),
            }
        ),
    }


def _claim() -> dict[str, Any]:
    from nsysddp.render.document import OPTIONAL_TEXT, TEXT, listed, record

    return record(
        {
            "name": TEXT,
            "claim": TEXT,
            "outcome": {"enum": ["pass", "fail", "undecidable"]},
            "reason": TEXT,
            "capture": OPTIONAL_TEXT,
            "rows": listed({"type": "object"}),
        }
    )


def _run(analyze: Mapping[str, Any]) -> dict[str, Any]:
    """One run: what ``analyze`` says of it, and the tables that a comparison needs besides."""
    from nsysddp.questions.contention.tables import CONTENTION_STEP
    from nsysddp.questions.critical_path import PATH_KIND, PATH_STEP
    from nsysddp.questions.idle.tables import IDLE_STEP
    from nsysddp.render.document import TEXT, listed, record, rows_of

    further = (CONTENTION_STEP, IDLE_STEP, PATH_STEP, PATH_KIND)
    tables = {**analyze["tables"]["properties"], **{table.name: rows_of(table) for table in further}}
    return record(
        {
            "side": {"enum": ["new", "base"]},
            "name": TEXT,
            "facts": {"type": ["object", "null"], "additionalProperties": TEXT},
            "settings": {"type": ["object", "null"]},
            "measured": {"type": "object", "additionalProperties": listed({"type": "number"})},
            "inputs": analyze["inputs"],
            "missing": analyze["missing"],
            "tables": record(tables, optional=(PATH_STEP.name, PATH_KIND.name)),
            "findings": analyze["findings"],
            "assumptions": analyze["assumptions"],
            "warnings": analyze["warnings"],
        }
    )
