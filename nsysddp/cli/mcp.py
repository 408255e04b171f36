"""``nsysddp mcp``: a read-only server over the questions, for assistants."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from nsysddp.model.errors import UsageError


@click.command(
    "mcp", short_help="Answer an assistant's questions on stdio (Model Context Protocol), read-only."
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Only reports below this folder can be read.  [default: the current one]",
)
@click.option("--list", "listing", is_flag=True, help="List the tools and stop.")
def command(root: Path, listing: bool) -> None:
    """Answer an assistant's questions on stdio (Model Context Protocol): one tool a question, read-only.

    An answer holds at most 500 rows a table and says where it was cut. Needs the extra `nsysddp[mcp]`.
    """
    from nsysddp.assistant import server

    if listing:
        for name, tool in server.tools().items():
            click.echo(f"{name:<16}{tool['description'].partition('?')[0].partition(':')[0]}")
        return
    if find_spec("mcp") is None:
        raise UsageError("the package mcp is not installed", do="pip install 'nsysddp[mcp]'")
    server.serve(root)
