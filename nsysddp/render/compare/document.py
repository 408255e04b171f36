"""The document of a comparison, and its JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsysddp.questions.compare.tables import TABLES
from nsysddp.render.compare.words import sentence, which_is_which
from nsysddp.render.document import TEXT, TOOL_SCHEMA, listed, record, request_schema, rows_of, tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysddp.questions.compare import Comparison


SCHEMA_VERSION = 1


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": comparison.headline["verdict"],
        "sentence": sentence(comparison),
        "which_is_which": which_is_which(comparison),
        "base": list(comparison.base),
        "new": list(comparison.new),
        "tables": {name: frame.to_dicts() for name, frame in comparison.tables.items()},
        "warnings": list(comparison.warnings),
        "assumptions": list(comparison.assumptions),
    }


def schema_of_comparison() -> dict[str, Any]:
    """The JSON Schema of ``as_dict``."""
    return record(
        {
            "schema_version": {"type": "integer"},
            "verdict": TEXT,
            "sentence": TEXT,
            "which_is_which": listed(TEXT),
            "base": listed(TEXT),
            "new": listed(TEXT),
            "tables": record({name: rows_of(table) for name, table in TABLES.items()}),
            "warnings": listed(TEXT),
            "assumptions": listed(TEXT),
        }
    )


def document(comparison: Comparison, request: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a comparison: what made it, what was asked, and ``as_dict``."""
    content = as_dict(comparison)
    return {
        "schema_version": content.pop("schema_version"),
        "tool": tool(),
        "request": dict(request),
        **content,
    }


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``document``."""
    of_comparison = schema_of_comparison()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Is the new side faster, how sure, and what changed?",
        **record({"tool": TOOL_SCHEMA, "request": request_schema(), **of_comparison["properties"]}),
    }
