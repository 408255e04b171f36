"""The one JSON document of an analysis, and the folder of everything.

The document is deterministic: same input, same bytes. Its form is ``document.schema.json`` beside this file.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import nsysddp
from nsysddp.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.result import Result

SCHEMA_VERSION = 1

_ROWS_AT_A_TIME = 10_000
"""Rows that become text together: a long table as one text would take more memory than the analysis."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document, made from the table contracts."""
    from nsysddp.schema import TABLES

    spelled = {"Int64": "integer", "Float64": "number", "String": "string", "Boolean": "boolean"}
    text = {"type": "string"}
    nullable_text = {"type": ["string", "null"]}
    table = {
        name: {
            "type": "array",
            "description": one.row,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": one.names,
                "properties": {
                    column.name: {"type": [spelled[str(column.dtype)], "null"], "description": column.meaning}
                    for column in one.columns
                },
            },
        }
        for name, one in TABLES.items()
    }

    def record(properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "additionalProperties": False,
            "required": list(properties),
            "properties": properties,
        }

    def listed(items: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": items}

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nsysddp analyze",
        **record(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "tool": record({"name": {"const": "nsysddp"}, "version": text}),
                "inputs": listed(
                    record(
                        {"name": text, "sha256": text, "nsys_version": nullable_text, "schema": nullable_text}
                    )
                ),
                "tables": record(table),
                "findings": listed(
                    record(
                        {
                            "code": text,
                            "rank": {"type": ["integer", "null"]},
                            "step": nullable_text,
                            "value": {"type": ["number", "null"]},
                            "unit": nullable_text,
                            "message": text,
                            "rows": listed({"type": "object"}),
                        }
                    )
                ),
                "assumptions": listed(text),
                "warnings": listed(record({"code": text, "count": {"type": "integer"}, "message": text})),
            }
        ),
    }


def _head(result: Result) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "nsysddp", "version": nsysddp.__version__},
        "inputs": [
            {"name": one.name, "sha256": one.sha256, "nsys_version": one.nsys_version, "schema": one.schema}
            for one in result.trace.inputs
        ],
    }


def _rest(result: Result) -> dict[str, Any]:
    return {
        "findings": [
            {
                "code": finding.code,
                "rank": finding.rank,
                "step": finding.step,
                "value": finding.value,
                "unit": finding.unit,
                "message": finding.message,
                "rows": [dict(row) for row in finding.rows],
            }
            for finding in result.findings
        ],
        "assumptions": list(result.assumptions),
        "warnings": [
            {"code": warning.code, "count": warning.count, "message": warning.message}
            for warning in result.warnings
        ],
    }


def write(result: Result, stream: TextIO) -> None:
    """Write the document; rows are serialised in bulk, so millions of them are no matter."""
    stream.write(json.dumps(_head(result))[:-1])
    stream.write(', "tables": {')
    for number, (name, frame) in enumerate(result.tables.items()):
        stream.write(f"{', ' if number else ''}{json.dumps(name)}: [")
        for part, some in enumerate(frame.iter_slices(_ROWS_AT_A_TIME)):
            stream.write(f"{',' if part else ''}{some.write_json()[1:-1]}")
        stream.write("]")
    stream.write("}, ")
    stream.write(json.dumps(_rest(result), ensure_ascii=False)[1:])
    stream.write("\n")


def as_dict(result: Result) -> dict[str, Any]:
    """The document as Python objects."""
    import io

    text = io.StringIO()
    write(result, text)
    document: dict[str, Any] = json.loads(text.getvalue())
    return document


def check_target(folder: Path, *, force: bool) -> None:
    """Refuse a folder that exists, before any work is done.

    Raises:
        UsageError: it exists and may not be replaced.
    """
    if folder.exists() and not force:
        raise UsageError(f"{folder.name} exists", do="give --force to replace it, or another --out")
    if not folder.resolve().parent.is_dir():
        raise UsageError(f"there is no folder to put {folder.name} into")


def write_folder(result: Result, folder: Path, *, force: bool = False) -> None:
    """Write ``result.json`` and one CSV a table; the folder appears whole or not at all."""
    check_target(folder, force=force)
    target = folder.resolve()
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with (beside / "result.json").open("w", encoding="utf-8") as stream:
            write(result, stream)
        for name, frame in result.tables.items():
            frame.write_csv(beside / f"{name}.csv")
        beside.chmod(0o777 & ~_umask())
        if target.exists():
            shutil.rmtree(target)
        beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
