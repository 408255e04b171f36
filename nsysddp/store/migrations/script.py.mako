"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision: str = ${repr(up_revision)}
down_revision: str | None = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change an older database without losing a row."""
    ${upgrades if upgrades else "pass"}
