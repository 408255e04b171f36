"""Add what was asked: command, part of the run, patterns, rules and tolerance of every kept document that says it."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels = None
depends_on = None

RUN_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_VERBS = {"analysis": "analyze", "diagnosis": "diagnose"}


def upgrade() -> None:
    """Make the table, and fill it from the documents; one that does not say what was asked has no row."""
    table = op.create_table(
        "request",
        sa.Column("run_id", RUN_ID, nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("per", sa.Text(), nullable=False),
        sa.Column("from_ns", sa.BigInteger()),
        sa.Column("to_ns", sa.BigInteger()),
        sa.Column("first_step", sa.BigInteger()),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("skip_warmup", sa.BigInteger(), nullable=False),
        sa.Column("step_pattern", sa.Text(), nullable=False),
        sa.Column("phase_patterns", sa.JSON(), nullable=False),
        sa.Column("rules_sha256", sa.Text()),
        sa.Column("clock_tolerance_ns", sa.BigInteger(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_request_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_request")),
    )
    op.create_index(op.f("ix_request_command"), "request", ["command"])
    _fill(table)


def _fill(table: sa.Table) -> None:
    """One row for each document with a request; a damaged document is left to whoever reads it."""
    import zstandard

    run = sa.table("run", sa.column("id"), sa.column("document_zstd"))
    connection = op.get_bind()
    for number in connection.scalars(sa.select(run.c.id).order_by(run.c.id)).all():
        packed = connection.execute(sa.select(run.c.document_zstd).where(run.c.id == number)).scalar_one()
        try:
            request = json.loads(zstandard.decompress(packed)).get("request")
            if request:
                question = str(request["question"])
                named = {"command": _VERBS.get(question, question.replace("_", "-")), **request}
                row = {column.name: named[column.name] for column in table.columns if column.name != "run_id"}
                connection.execute(table.insert().values(run_id=number, **row))
        except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError):
            continue
