"""What does the results database hold: runs with what was asked, their inputs, ranks, overlap, findings and tags (ORM).

The normal form answers questions over many runs in SQL; the compressed document beside it is what was
saved, to the last key, so that a comparison or a verification can start from it. ``position`` is the row
number in the document, so a row here leads to its row there. Null is unknown, as everywhere. The overlap
table is wide, one column a metric of the contract, because a trend is then one column of one join and the
identities of the decomposition are constraints that the database itself holds.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class UtcDateTime(TypeDecorator[datetime]):
    """When was it, in UTC: SQLite drops the zone, so what is stored there is always UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Move to UTC on the way in."""
        return None if value is None else value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Say UTC again on the way out."""
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


class Base(DeclarativeBase):
    """Common parent; every constraint has a name, so that a migration can change it on either database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: BigInteger,
        float: Double,
        str: Text,
        datetime: UtcDateTime,
    }


class Run(Base):
    """Which documents were saved: ``content_sha256`` makes the same document the same run."""

    __tablename__ = "run"
    # A deleted run's number must never come to name another run.
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    content_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    label: Mapped[str | None]
    tool_version: Mapped[str]
    schema_version: Mapped[int]
    capture: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    document_zstd: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)

    request: Mapped[Request | None] = relationship(cascade="all, delete-orphan", passive_deletes=True)
    inputs: Mapped[list[Input]] = relationship(
        order_by="Input.position", cascade="all, delete-orphan", passive_deletes=True
    )
    ranks: Mapped[list[Rank]] = relationship(
        order_by="Rank.position", cascade="all, delete-orphan", passive_deletes=True
    )
    overlap: Mapped[list[Overlap]] = relationship(
        order_by="Overlap.position", cascade="all, delete-orphan", passive_deletes=True
    )
    findings: Mapped[list[Finding]] = relationship(
        order_by="Finding.position", cascade="all, delete-orphan", passive_deletes=True
    )
    tags: Mapped[list[Tag]] = relationship(
        order_by="Tag.name", cascade="all, delete-orphan", passive_deletes=True
    )


class Request(Base):
    """What was asked: the request of the document, so far as that says it."""

    __tablename__ = "request"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    command: Mapped[str] = mapped_column(index=True)
    question: Mapped[str]
    per: Mapped[str]
    from_ns: Mapped[int | None]
    to_ns: Mapped[int | None]
    first_step: Mapped[int | None]
    last_step: Mapped[int | None]
    skip_warmup: Mapped[int]
    step_pattern: Mapped[str]
    phase_patterns: Mapped[dict[str, Any]] = mapped_column(JSON)
    rules_sha256: Mapped[str | None]
    clock_tolerance_ns: Mapped[int]
    options: Mapped[dict[str, Any]] = mapped_column(JSON)


class _RowOfRun:
    """A row that belongs to one run and goes when the run goes."""

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Input(_RowOfRun, Base):
    """Which report was read (base name and hash, never a path)."""

    __tablename__ = "input"

    name: Mapped[str]
    sha256: Mapped[str | None] = mapped_column(index=True)
    nsys_version: Mapped[str | None]
    schema: Mapped[str | None]


class Rank(_RowOfRun, Base):
    """Who took part, on which device, with which clock: table ``rank`` of the document."""

    __tablename__ = "rank"

    rank: Mapped[int]
    rank_source: Mapped[str | None]
    report: Mapped[str | None]
    host: Mapped[str | None]
    pid: Mapped[int | None]
    device: Mapped[int | None]
    gpu_uuid: Mapped[str | None]
    gpu_name: Mapped[str | None]
    world_size: Mapped[int | None]
    clock_offset_ns: Mapped[int | None]
    clock_drift_ppm: Mapped[float | None]
    clock_residual_ns: Mapped[int | None]
    clock_method: Mapped[str | None]
    kernels: Mapped[int | None]
    first_ns: Mapped[int | None]
    last_ns: Mapped[int | None]


class Overlap(_RowOfRun, Base):
    """Where did the time of one rank and step go: table ``overlap`` of the document (source: ``nsight``).

    hidden_communication_ns + exposed_communication_ns = communication_ns, and
    compute_ns + exposed_communication_ns + exposed_memory_ns + graph_ns + idle_ns = window_ns, where all are
    known.
    """

    __tablename__ = "overlap"
    __table_args__ = (
        CheckConstraint(
            "hidden_communication_ns + exposed_communication_ns = communication_ns",
            name="communication_balances",
        ),
        CheckConstraint(
            "compute_ns + exposed_communication_ns + exposed_memory_ns + graph_ns + idle_ns = window_ns",
            name="window_balances",
        ),
    )

    rank: Mapped[int]
    pid: Mapped[int | None]
    device: Mapped[int | None]
    step: Mapped[str | None]
    step_index: Mapped[int | None]
    is_warmup: Mapped[bool | None]
    window_ns: Mapped[int | None]
    compute_ns: Mapped[int | None]
    spin_ns: Mapped[int | None]
    communication_ns: Mapped[int | None]
    hidden_communication_ns: Mapped[int | None]
    exposed_communication_ns: Mapped[int | None]
    hidden_transfer_ns: Mapped[int | None]
    hidden_wait_ns: Mapped[int | None]
    exposed_transfer_ns: Mapped[int | None]
    exposed_wait_ns: Mapped[int | None]
    hidden_unsplit_ns: Mapped[int | None]
    exposed_unsplit_ns: Mapped[int | None]
    exposed_memory_ns: Mapped[int | None]
    p2p_copy_ns: Mapped[int | None]
    graph_ns: Mapped[int | None]
    idle_ns: Mapped[int | None]
    tail_communication_ns: Mapped[int | None]
    tail_wait_ns: Mapped[int | None]
    tail_transfer_ns: Mapped[int | None]
    overlap_ratio: Mapped[float | None]
    kernels: Mapped[int | None]
    collectives: Mapped[int | None]


class Finding(_RowOfRun, Base):
    """What was found, in words and one number; the rows behind it are in the document."""

    __tablename__ = "finding"

    code: Mapped[str] = mapped_column(index=True)
    rank: Mapped[int | None]
    step: Mapped[str | None]
    value: Mapped[float | None]
    unit: Mapped[str | None]
    message: Mapped[str]


class Tag(Base):
    """Which names people gave a run."""

    __tablename__ = "tag"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True, index=True)


class Baseline(Base):
    """Which runs are later ones checked against: one side of a comparison under a name, apart from the runs kept."""

    __tablename__ = "baseline"

    name: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]
    tool_version: Mapped[str]
    content_sha256: Mapped[str] = mapped_column(String(64))
    content_zstd: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)


METRICS: tuple[str, ...] = tuple(
    name
    for name in Overlap.__table__.columns.keys()  # noqa: SIM118 (a collection of columns, not a dict)
    if name not in {"run_id", "position", "rank", "pid", "device", "step", "step_index", "is_warmup"}
)
"""The columns of ``overlap`` that a trend can follow, in the order of the contract."""
