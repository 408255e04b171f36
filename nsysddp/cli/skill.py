"""``nsysddp skill``: a short guide for assistants."""

from __future__ import annotations

from pathlib import Path

import click

from nsysddp.cli.saying import say
from nsysddp.model.errors import UsageError


@click.command("skill", short_help="Print or install a short guide for assistants (SKILL.md).")
@click.option(
    "--install",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write SKILL.md into this folder, which is made if it is not there.",
)
@click.option("--force", is_flag=True, help="Replace a SKILL.md.")
def command(folder: Path | None, force: bool) -> None:
    """Print a short guide for assistants: which question to ask, and what not to conclude."""
    from nsysddp.assistant.server import guide
    from nsysddp.render.files import check_file, whole_file

    if folder is None:
        click.echo(guide(), nl=False)
        return
    target = folder / "SKILL.md"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder cannot be made ({error.strerror})", file=folder) from None
    check_file(target, force=force, inputs=())
    with whole_file(target, force=force) as stream:
        stream.write(guide().encode())
    say(f"wrote {target}")
