"""What a command says beside its answer."""

from __future__ import annotations

from contextlib import suppress

import click

from nsysddp.model.names import visible


def say(line: str) -> None:
    """Say on stderr what was done; names in it cannot steer the terminal."""
    with suppress(OSError):  # it was done, even if nobody can be told
        click.echo(visible(line), err=True)
