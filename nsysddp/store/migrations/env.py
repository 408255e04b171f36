"""How does Alembic reach the database: over the connection and in the transaction of ``connection.py``."""

from __future__ import annotations

from alembic import context

from nsysddp.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=context.config.attributes["version_table"],
    # The caller's transaction holds the whole upgrade, on SQLite too: all of it or nothing.
    transactional_ddl=True,
    # SQLite can't alter a table in place; revisions use op.batch_alter_table, which copies it.
    render_as_batch=True,
)
context.run_migrations()
