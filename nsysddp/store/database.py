"""Where do results stay between sessions: save, list, reload, tag and delete runs in SQLite or PostgreSQL.

Every public function opens the database (``connection``), brings it to the current schema, does one transaction and
closes it; a process that is killed in between leaves all of that transaction or nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, inspect, select
from sqlalchemy.orm import Session, selectinload, undefer

from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.store import requests
from nsysddp.store.connection import exclusive, transaction
from nsysddp.store.models import METRICS, Base, Overlap, Run, Tag
from nsysddp.store.rows import content_sha256, document_bytes, rows_of

PRIVATE_CAPTURE_KEYS = frozenset(
    {"argv", "command", "command_line", "commands", "cwd", "env", "environ", "folder", "host"}
    | {"hostname", "hosts", "out", "path", "paths", "stack_dumps", "stderr", "stdout", "user", "username"}
)
"""Keys of run.json, at any depth, that say where and as whom a capture ran: a shared database keeps none."""

PUBLIC_ENVIRONMENT = ("NCCL_", "CUDA_", "CUBLAS_", "TORCH_", "PYTORCH_", "OMP_")
"""How the names of those environment variables begin that can explain a number."""


@dataclass(frozen=True)
class StoredRun:
    """What one run in the database is, without its rows and document.

    Attributes:
        run_id: number of the run in its database; never given twice.
        content_sha256: hash of the saved document (keys sorted), the run's identity.
        created_at: when it was first saved, UTC.
        label: the name given at ``save``, or None.
        tags: names given by ``tag``, sorted.
        tool_version: the nsysddp that made the document.
        steps: distinct steps in the overlap table (0 = the capture as one window).
        inputs: one mapping a report: name, sha256, nsys_version, schema.
        ranks: one mapping a rank, with the columns of table ``rank``.
        findings: one mapping a finding: code, rank, step, value, unit, message.
        capture: run.json of the capture without its private keys, or None.
        request: what was asked (``questions.request``); None of a document that does not say it.
    """

    run_id: int
    content_sha256: str
    created_at: datetime
    label: str | None
    tags: tuple[str, ...]
    tool_version: str
    steps: int
    inputs: tuple[dict[str, Any], ...]
    ranks: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    capture: dict[str, Any] | None
    request: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {**asdict(self), "created_at": self.created_at.isoformat(timespec="seconds")}


@dataclass(frozen=True)
class MetricValue:
    """One measured value: of one run, rank and step. ``value`` is None where the trace did not tell."""

    run_id: int
    rank: int
    value: float | None


def _public(value: Any, parent: str = "") -> Any:
    """A capture record without ``PRIVATE_CAPTURE_KEYS``, and of its environment only the libraries' settings."""
    if isinstance(value, Mapping):
        parts = {
            str(key): part for key, part in value.items() if str(key).lower() not in PRIVATE_CAPTURE_KEYS
        }
        if parent.lower() == "environment":
            parts = {key: part for key, part in parts.items() if key.startswith(PUBLIC_ENVIRONMENT)}
        return {key: _public(part, key) for key, part in parts.items()}
    if isinstance(value, list | tuple):
        return [_public(part) for part in value]
    return value


def save(
    document: Mapping[str, Any],
    *,
    url: str | None = None,
    label: str | None = None,
    run: Mapping[str, Any] | None = None,
) -> int:
    """Keep a result document; under which number?

    The same document saved twice is the same run: its number is returned, and a label or capture record given
    now replaces the one it had.

    Args:
        document: what ``nsysddp analyze --format json`` prints.
        url: database (``resolve_url``); made if it is not there.
        label: a name for people.
        run: run.json of the capture; the keys of ``PRIVATE_CAPTURE_KEYS`` are left out.

    Returns:
        The run's number.

    Raises:
        EvidenceError: the document is malformed, or the database cannot take it; nothing of it is kept then.
    """
    row = rows_of(document)
    capture = None if run is None else _public(run)
    if capture is not None:
        document_bytes(capture, sort_keys=True)
    name = None if label is None else printable_name(label, "label")
    with transaction(url, write=True, create=True) as session:
        # Two savers of one document: the second waits, and then finds what the first one kept.
        exclusive(session.connection(), int(row.content_sha256[:15], 16))
        stored = session.scalar(select(Run).where(Run.content_sha256 == row.content_sha256))
        if stored is None:
            session.add(row)
            stored = row
        if name is not None:
            stored.label = name
        if capture is not None:
            stored.capture = capture
        session.flush()
        return stored.id


def runs(
    *, url: str | None = None, tags: Sequence[str] = (), label: str | None = None, last: int | None = None
) -> list[StoredRun]:
    """Which runs are kept, oldest first.

    Args:
        url: database (``resolve_url``).
        tags: only runs that carry all of these.
        label: only runs with exactly this label.
        last: only the newest so many of them.
    """
    query = select(Run).order_by(Run.created_at.desc(), Run.id.desc()).limit(last)
    for tag_name in tags:
        query = query.where(Run.tags.any(Tag.name == tag_name))
    if label is not None:
        query = query.where(Run.label == label)
    with transaction(url) as session:
        return [*reversed(_stored(session, session.scalars(query.options(*_PARTS)).all()))]


def load_run(run_id: int, *, url: str | None = None) -> StoredRun:
    """What is known about one run (its document: ``load_document``).

    Raises:
        EvidenceError: there is no such run.
    """
    with transaction(url) as session:
        return _stored(session, [_find(session, run_id, *_PARTS)])[0]


def load_document(run_id: int, *, url: str | None = None) -> dict[str, Any]:
    """Which document was saved, exactly: every key, in its order, every number to the last digit.

    Raises:
        EvidenceError: there is no such run, or its stored bytes no longer give its hash.
    """
    import zstandard

    with transaction(url) as session:
        row = _find(session, run_id, undefer(Run.document_zstd))
        packed, expected = row.document_zstd, row.content_sha256
    try:
        document = json.loads(zstandard.decompress(packed))
        intact = isinstance(document, dict) and content_sha256(document) == expected
    except (zstandard.ZstdError, ValueError):
        intact = False
    if not intact:
        raise EvidenceError(
            f"the document of run {run_id} was changed after it was saved", do="delete the run"
        )
    return dict(document)


def tag(
    run_ids: Sequence[int], *, add: Sequence[str] = (), remove: Sequence[str] = (), url: str | None = None
) -> None:
    """Give runs names or take them away; giving one twice or taking a missing one changes nothing.

    Raises:
        EvidenceError: one of the runs does not exist; none is changed then.
        UsageError: a name is empty, too long, or not printable.
    """
    wanted = {printable_name(name, "tag") for name in add}
    with transaction(url, write=True) as session:
        for run_id in dict.fromkeys(run_ids):
            row = _find(session, run_id, lock=True)
            row.tags = [kept for kept in row.tags if kept.name not in set(remove)]
            row.tags += [Tag(name=name) for name in sorted(wanted - {kept.name for kept in row.tags})]


def delete(run_ids: Sequence[int], *, url: str | None = None) -> None:
    """Forget runs with all their rows.

    Raises:
        EvidenceError: one of them does not exist; none is deleted then.
    """
    with transaction(url, write=True) as session:
        for run_id in dict.fromkeys(run_ids):
            session.delete(_find(session, run_id, lock=True))


def metric_values(metric: str, run_ids: Sequence[int], *, url: str | None = None) -> list[MetricValue]:
    """What did each rank and step of these runs measure, without warm-up steps, in document order?

    Raises:
        UsageError: the overlap table has no such metric.
    """
    if metric not in METRICS:
        raise UsageError(f"there is no metric {metric[:60]}", do=f"choose one of {', '.join(METRICS)}")
    query = (
        select(Overlap.run_id, Overlap.rank, getattr(Overlap, metric))
        .where(Overlap.run_id.in_(run_ids), Overlap.is_warmup.is_not(True))
        .order_by(Overlap.run_id, Overlap.position)
    )
    with transaction(url) as session:
        return [MetricValue(*row) for row in session.execute(query)]


_PARTS = tuple(selectinload(part) for part in (Run.request, Run.inputs, Run.ranks, Run.findings, Run.tags))


def _find(session: Session, run_id: int, *options: Any, lock: bool = False) -> Run:
    if not 0 < run_id < 1 << 63:
        raise EvidenceError(f"there is no run {run_id}", do="see nsysddp runs list")
    query = select(Run).where(Run.id == run_id).options(*options)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise EvidenceError(f"there is no run {run_id}", do="see nsysddp runs list")
    return row


def printable_name(text: str, what: str) -> str:
    """A label or tag that is safe to print and to type."""
    name = text.strip()
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise UsageError(f"a {what} has 1 to 100 printable characters")
    return name


def _stored(session: Session, rows: Sequence[Run]) -> list[StoredRun]:
    counts = select(Overlap.run_id, func.count(Overlap.step_index.distinct())).group_by(Overlap.run_id)
    found = session.execute(counts.where(Overlap.run_id.in_([row.id for row in rows])))
    steps = {int(run_id): int(count) for run_id, count in found}
    return [
        StoredRun(
            run_id=row.id,
            content_sha256=row.content_sha256,
            created_at=row.created_at,
            label=row.label,
            tags=tuple(kept.name for kept in row.tags),
            tool_version=row.tool_version,
            steps=steps.get(row.id, 0),
            inputs=tuple(map(_columns, row.inputs)),
            ranks=tuple(map(_columns, row.ranks)),
            findings=tuple(map(_columns, row.findings)),
            capture=row.capture,
            request=requests.content_of(row.request),
        )
        for row in rows
    ]


def _columns(row: Base) -> dict[str, Any]:
    """The row's own columns by name."""
    names = inspect(type(row)).columns.keys()
    return {name: getattr(row, name) for name in names if name not in {"run_id", "position"}}
