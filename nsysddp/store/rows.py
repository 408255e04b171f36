"""How is a result document taken apart into rows, and told from every other?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import inspect

from nsysddp.model.errors import EvidenceError
from nsysddp.store import requests
from nsysddp.store.models import Base, Finding, Input, Overlap, Rank, Run

DOCUMENT_SCHEMA_VERSION = 1
"""The newest result document that can be taken apart into rows."""


def content_sha256(document: Mapping[str, Any]) -> str:
    """Which document is it: SHA-256 over its JSON with sorted keys, whatever their order was."""
    return hashlib.sha256(document_bytes(document, sort_keys=True)).hexdigest()


def document_bytes(document: Mapping[str, Any], *, sort_keys: bool) -> bytes:
    """The document as JSON.

    Raises:
        EvidenceError: it holds what JSON does not.
    """
    # ASCII with escapes: names that are not valid UTF-8 (lone surrogates) come back exactly.
    try:
        return json.dumps(document, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False).encode(
            "ascii"
        )
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"the result document is not plain JSON ({error})") from None


def rows_of(document: Mapping[str, Any]) -> Run:
    """The document as ORM rows, every value checked against its column's type.

    Raises:
        EvidenceError: a part is missing, of the wrong kind, or of a newer document version.
    """
    import zstandard

    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise EvidenceError(
            "the result document has no schema_version", do="save what analyze --format json prints"
        )
    if version > DOCUMENT_SCHEMA_VERSION:
        raise EvidenceError(
            f"the result document has schema_version {version}, newer than {DOCUMENT_SCHEMA_VERSION}",
            do="upgrade nsysddp",
        )
    tool, tables = document.get("tool"), document.get("tables")
    if not isinstance(tool, Mapping) or not isinstance(tables, Mapping):
        raise EvidenceError(
            "the result document lacks tool or tables", do="save what analyze --format json prints"
        )
    run = Run(
        content_sha256=content_sha256(document),
        created_at=datetime.now(timezone.utc),
        tool_version=storable_text(tool.get("version")) or "unknown",
        schema_version=version,
        document_zstd=zstandard.compress(document_bytes(document, sort_keys=False), level=9),
    )
    run.inputs = [Input(**row) for row in _typed(Input, document.get("inputs"), "inputs")]
    run.ranks = [Rank(**row) for row in _typed(Rank, tables.get("rank", []), "tables.rank")]
    run.request = requests.row_of(document)
    # Only the answer to another question need not say where the time went.
    other = run.request is not None and run.request.question != "analysis"
    overlap = tables.get("overlap", [] if other else None)
    run.overlap = [Overlap(**row) for row in _typed(Overlap, overlap, "tables.overlap")]
    run.findings = [Finding(**row) for row in _typed(Finding, document.get("findings"), "findings")]
    return run


def _typed(model: type[Base], rows: Any, where: str) -> Iterator[dict[str, Any]]:
    """The columns of ``model`` from each row object; keys that have no column are only in the document."""
    if not isinstance(rows, list):
        raise EvidenceError(f"the result document lacks {where}", do="save what analyze --format json prints")
    columns = [column for column in inspect(model).columns if column.name not in {"run_id", "position"}]
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise EvidenceError(f"{where}[{position}] is not an object")
        values: dict[str, Any] = {"position": position}
        for column in columns:
            value = row.get(column.name)
            if not _fits(value, column.type.python_type, nullable=bool(column.nullable)):
                raise EvidenceError(f"{where}[{position}].{column.name} cannot be {json.dumps(value)[:40]}")
            values[column.name] = storable_text(value) if column.type.python_type is str else value
        yield values


def _fits(value: Any, kind: type, *, nullable: bool) -> bool:
    if value is None:
        return nullable
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return False
    return isinstance(value, int if kind is int else int | float if kind is float else int | str)


def storable_text(value: Any) -> str | None:
    """Text that either database can hold: NUL and lone surrogates become U+FFFD (the document keeps them)."""
    return None if value is None else requests.storable(str(value))
