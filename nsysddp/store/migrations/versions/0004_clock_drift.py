"""Add the rate at which a rank's clock was corrected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runs kept before say nothing of it: null."""
    op.add_column("rank", sa.Column("clock_drift_ppm", sa.Double()))
