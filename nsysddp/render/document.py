"""The one JSON document of an analysis, and the folder of everything.

The document is deterministic: same input, same bytes. Its form is ``document.schema.json`` beside this file.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import nsysddp
from nsysddp.model.errors import UsageError
from nsysddp.model.keys import KEYS
from nsysddp.model.scratch import committing, scratch_folder
from nsysddp.render.files import refuse_inside, resolved, unwritable
from nsysddp.render.tables import write_csv

if TYPE_CHECKING:
    import polars as pl

    from nsysddp.model.result import Result
    from nsysddp.model.schema import Table
    from nsysddp.questions.question import Question

SCHEMA_VERSION = 1

_ROWS_AT_A_TIME = 10_000
"""Rows that become text together: a long table as one text would take more memory than the analysis."""


def record(properties: dict[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON Schema of an object with exactly these properties, all there but the optional ones."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def listed(items: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an array of these."""
    return {"type": "array", "items": items}


def rows_of(table: Table) -> dict[str, Any]:
    """The JSON Schema of the rows of a table, made from its contract."""
    columns = {
        column.name: {**_json_type(column.dtype), "description": column.meaning} for column in table.columns
    }
    return {**listed(record(columns)), "description": table.row, "x-key": list(KEYS.get(table.name, ()))}


TEXT = {"type": "string"}
OPTIONAL_TEXT = {"type": ["string", "null"]}
TOOL_SCHEMA = record({"name": {"const": "nsysddp"}, "version": TEXT})


def request_schema() -> dict[str, Any]:
    """The JSON Schema of what was asked."""
    from nsysddp.questions.request import KINDS

    spelled = {str: "string", int: "integer", dict: "object", type(None): "null"}
    kinds: dict[str, dict[str, Any]] = {
        name: {"type": [spelled[kind] for kind in kinds] if len(kinds) > 1 else spelled[kinds[0]]}
        for name, kinds in KINDS.items()
    }
    kinds["per"] = {"enum": ["step", "capture"]}
    kinds["phase_patterns"]["additionalProperties"] = TEXT
    return {**record(kinds), "description": "what was asked, as far as it shapes a number"}


def json_schema(asked: Question) -> dict[str, Any]:
    """The JSON Schema of the document that answers a question, made from the contracts of its tables."""
    tables = {table.name: rows_of(table) for table in asked.tables}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": asked.ask,
        **record(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "tool": TOOL_SCHEMA,
                "inputs": listed(
                    record(
                        {"name": TEXT, "sha256": TEXT, "nsys_version": OPTIONAL_TEXT, "schema": OPTIONAL_TEXT}
                    )
                ),
                "missing": listed(
                    record({"name": TEXT, "rank": {"type": ["integer", "null"]}, "reason": TEXT})
                ),
                "request": {"anyOf": [request_schema(), {"type": "null"}]},
                "tables": {**record(tables), "required": [asked.shown]},
                "findings": listed(
                    record(
                        {
                            "code": TEXT,
                            "rank": {"type": ["integer", "null"]},
                            "step": OPTIONAL_TEXT,
                            "value": {"type": ["number", "null"]},
                            "unit": OPTIONAL_TEXT,
                            "message": TEXT,
                            "rows": listed({"type": "object"}),
                        }
                    )
                ),
                "assumptions": listed(TEXT),
                "warnings": listed(record({"code": TEXT, "count": {"type": "integer"}, "message": TEXT})),
            }
        ),
    }


def _json_type(dtype: pl.DataType) -> dict[str, Any]:
    """The JSON type of a column, which may be null; of one with a fixed set of words also the words."""
    import polars as pl

    if isinstance(dtype, pl.Enum):
        return {"enum": [*dtype.categories, None]}
    if dtype.is_integer():
        return {"type": ["integer", "null"]}
    spelled = {pl.Float64: "number", pl.Boolean: "boolean", pl.String: "string", pl.Categorical: "string"}
    return {"type": [spelled[type(dtype)], "null"]}


def tool() -> dict[str, str]:
    """What made a document."""
    return {"name": "nsysddp", "version": nsysddp.__version__}


def _head(result: Result) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": tool(),
        "inputs": [
            {
                "name": report.name,
                "sha256": report.sha256,
                "nsys_version": report.nsys_version,
                "schema": report.schema,
            }
            for report in result.trace.inputs
        ],
        "missing": [
            {"name": missing.name, "rank": missing.rank, "reason": missing.reason}
            for missing in result.trace.missing
        ],
        "request": None if result.request is None else dict(result.request),
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
        for part, rows in enumerate(_serialised(frame)):
            stream.write(f"{',' if part else ''}{rows[1:-1]}")
        stream.write("]")
    stream.write("}, ")
    stream.write(json.dumps(_rest(result), ensure_ascii=False)[1:])
    stream.write("\n")


def _serialised(frame: pl.DataFrame) -> Iterator[str]:
    """The rows as JSON, some at a time; those that come next are made while the others are written."""
    slices = frame.iter_slices(_ROWS_AT_A_TIME)
    if frame.height <= _ROWS_AT_A_TIME:
        yield from (rows.write_json() for rows in slices)
        return
    with ThreadPoolExecutor(1) as ahead:
        made = ahead.submit(next(slices).write_json)
        for rows in slices:
            following = ahead.submit(rows.write_json)
            yield made.result()
            made = following
        yield made.result()


def as_dict(result: Result) -> dict[str, Any]:
    """The document as Python objects."""
    import io

    text = io.StringIO()
    write(result, text)
    document: dict[str, Any] = json.loads(text.getvalue())
    return document


def check_target(folder: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse a folder that cannot be written, before any work is done.

    Args:
        folder: where the output goes.
        force: may it replace an earlier result in a folder that exists?
        inputs: every file that is read; the folder may hold none.

    Raises:
        UsageError: it holds an input, lies in one, exists and may not be replaced, is a file, or has no folder
            to be in.
    """
    target = resolved(folder)
    refuse_inside(target)
    for report in inputs:
        places = (resolved(report), resolved(report.parent) / report.name)
        if any(target in (place, *place.parents) for place in places):
            raise UsageError(f"--out {target.name} holds the input {report.name}", do="name another folder")
    if folder.exists() and not folder.is_dir():
        raise UsageError("is a file, not a folder", file=folder, do="name another --out")
    if folder.exists() and not force:
        raise UsageError(
            f"{folder.name} exists", do="give --force to replace the result in it, or another --out"
        )
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder to put {folder.name} into")


def write_folder(result: Result, folder: Path, *, force: bool = False) -> None:
    """Write the document of a result and its tables, as ``write_tables`` does.

    Raises:
        UsageError: as in ``check_target``, or a file cannot be written.
    """
    write_tables(result.tables, partial(write, result), folder, force=force)


def write_tables(
    tables: Mapping[str, pl.DataFrame],
    write_document: Callable[[TextIO], None],
    folder: Path,
    *,
    force: bool = False,
) -> None:
    """Write ``result.json`` and one CSV a table.

    A new folder appears whole or not at all. In one that is there an earlier result is replaced and nothing else; a
    folder without ``result.json``, which comes last, is not complete.

    Args:
        tables: name to frame.
        write_document: writes what ``result.json`` holds.
        folder: the place.
        force: may it replace an earlier result?

    Raises:
        UsageError: as in ``check_target``, or a file cannot be written.
    """
    check_target(folder, force=force)
    target = resolved(folder)
    try:
        with scratch_folder(target if target.exists() else target.parent) as scratch:
            beside = scratch / "result"
            beside.mkdir()
            for name, frame in tables.items():
                with (beside / f"{name}.csv").open("wb") as table:
                    write_csv(frame, table)
            with (beside / _RESULT).open("w", encoding="utf-8") as stream:
                write_document(stream)
            with committing():
                _move(beside, target, force=force)
    except OSError as error:
        raise unwritable(folder, error) from None


def _move(beside: Path, target: Path, *, force: bool) -> None:
    """Into the place of a folder that is not there, or file by file into one that is and may be changed."""
    if force and target.is_dir():
        _forget(target)
        for file in (*beside.glob("*.csv"), beside / _RESULT):
            file.replace(target / file.name)
        return
    try:
        beside.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise UsageError(f"{target.name} exists", do="give --force, or another --out") from None
        raise


_RESULT = "result.json"


def _forget(folder: Path) -> None:
    """Remove an earlier result, lest a table that only it has pass for one of the new; other files stay."""
    result = folder / _RESULT
    content = result.read_bytes() if result.is_file() else b""
    if b'"name": "nsysddp"' in content[:200]:
        result.unlink()
        tables = content.partition(b'"tables": {')[2].rpartition(b'"findings": [')[0]
        # Cells are no lists, and a quote inside a text has a backslash before it.
        for name in re.findall(rb'"([a-z_]+)": \[', tables):
            (folder / f"{name.decode()}.csv").unlink(missing_ok=True)
