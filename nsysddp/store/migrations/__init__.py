"""How does an older results database become a current one: Alembic revisions, oldest first in ``versions``.

There is no way down: an older nsysddp refuses a newer database instead of cutting it back.
"""
