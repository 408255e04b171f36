"""Create the first results database: runs with their inputs, ranks, overlap rows, findings and tags."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

RUN_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make every table from nothing.

    Longer than 100 lines because it is one list of tables, which nobody changes any more.
    """
    op.create_table(
        "run",
        sa.Column("id", RUN_ID, nullable=False),
        sa.Column("content_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("label", sa.Text()),
        sa.Column("tool_version", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.BigInteger(), nullable=False),
        sa.Column("capture", sa.JSON(none_as_null=True)),
        sa.Column("document_zstd", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("content_sha256", name=op.f("uq_run_content_sha256")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_run_created_at"), "run", ["created_at"])
    op.create_table(
        "input",
        sa.Column("run_id", RUN_ID, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text()),
        sa.Column("nsys_version", sa.Text()),
        sa.Column("schema", sa.Text()),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_input_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_input")),
    )
    op.create_index(op.f("ix_input_sha256"), "input", ["sha256"])
    op.create_table(
        "rank",
        sa.Column("run_id", RUN_ID, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("rank_source", sa.Text()),
        sa.Column("report", sa.Text()),
        sa.Column("host", sa.Text()),
        sa.Column("pid", sa.BigInteger()),
        sa.Column("device", sa.BigInteger()),
        sa.Column("gpu_uuid", sa.Text()),
        sa.Column("gpu_name", sa.Text()),
        sa.Column("world_size", sa.BigInteger()),
        sa.Column("clock_offset_ns", sa.BigInteger()),
        sa.Column("clock_residual_ns", sa.BigInteger()),
        sa.Column("clock_method", sa.Text()),
        sa.Column("kernels", sa.BigInteger()),
        sa.Column("first_ns", sa.BigInteger()),
        sa.Column("last_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_rank_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_rank")),
    )
    op.create_table(
        "overlap",
        sa.Column("run_id", RUN_ID, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("pid", sa.BigInteger()),
        sa.Column("device", sa.BigInteger()),
        sa.Column("step", sa.Text()),
        sa.Column("step_index", sa.BigInteger()),
        sa.Column("is_warmup", sa.Boolean()),
        sa.Column("window_ns", sa.BigInteger()),
        sa.Column("compute_ns", sa.BigInteger()),
        sa.Column("spin_ns", sa.BigInteger()),
        sa.Column("communication_ns", sa.BigInteger()),
        sa.Column("hidden_communication_ns", sa.BigInteger()),
        sa.Column("exposed_communication_ns", sa.BigInteger()),
        sa.Column("hidden_transfer_ns", sa.BigInteger()),
        sa.Column("hidden_wait_ns", sa.BigInteger()),
        sa.Column("exposed_transfer_ns", sa.BigInteger()),
        sa.Column("exposed_wait_ns", sa.BigInteger()),
        sa.Column("hidden_unsplit_ns", sa.BigInteger()),
        sa.Column("exposed_unsplit_ns", sa.BigInteger()),
        sa.Column("exposed_memory_ns", sa.BigInteger()),
        sa.Column("p2p_copy_ns", sa.BigInteger()),
        sa.Column("graph_ns", sa.BigInteger()),
        sa.Column("idle_ns", sa.BigInteger()),
        sa.Column("tail_communication_ns", sa.BigInteger()),
        sa.Column("tail_wait_ns", sa.BigInteger()),
        sa.Column("tail_transfer_ns", sa.BigInteger()),
        sa.Column("overlap_ratio", sa.Double()),
        sa.Column("kernels", sa.BigInteger()),
        sa.Column("collectives", sa.BigInteger()),
        sa.CheckConstraint(
            "hidden_communication_ns + exposed_communication_ns = communication_ns",
            name=op.f("ck_overlap_communication_balances"),
        ),
        sa.CheckConstraint(
            "compute_ns + exposed_communication_ns + exposed_memory_ns + graph_ns + idle_ns = window_ns",
            name=op.f("ck_overlap_window_balances"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_overlap_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_overlap")),
    )
    op.create_table(
        "finding",
        sa.Column("run_id", RUN_ID, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger()),
        sa.Column("step", sa.Text()),
        sa.Column("value", sa.Double()),
        sa.Column("unit", sa.Text()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_finding_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_finding")),
    )
    op.create_index(op.f("ix_finding_code"), "finding", ["code"])
    op.create_table(
        "tag",
        sa.Column("run_id", RUN_ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_tag_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_tag")),
    )
    op.create_index(op.f("ix_tag_name"), "tag", ["name"])
