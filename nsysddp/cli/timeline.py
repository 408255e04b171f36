"""``nsysddp timeline``: draw when each rank computed, communicated, copied and idled."""

from __future__ import annotations

import re
from pathlib import Path

import click

from nsysddp.cli.options import Request, run_options
from nsysddp.cli.saying import say
from nsysddp.cli.words import file_option


def _ranks(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise click.BadParameter("write ranks such as 0,2-5")
        chosen.update(range(first, last + 1))
    return sorted(chosen)


@click.command("timeline", short_help="Draw what every rank did when.")
@run_options
@file_option("The picture: .png, .svg or .pdf.")
@click.option("--ranks", callback=_ranks, metavar="0,2-5", help="Only these ranks.")
@click.option("--force", is_flag=True, help="Overwrite the picture.")
def command(request: Request, out: Path, ranks: list[int] | None, force: bool) -> None:
    """Draw what every rank did when: compute, communication (wait and transfer), exposed, memory, idle, host phases.

    Up to 8 ranks show every lane; more are drawn in a strip each. Events shorter than a pixel are merged, and the
    picture says so; zoom in with --steps, --from and --to.
    """
    from nsysddp.questions import context_of
    from nsysddp.render.files import check_file
    from nsysddp.render.timeline import draw_timeline, kind_of, save

    kind_of(out)
    check_file(out, force=force, inputs=request.inputs)
    context = context_of(request.load(launches=True), request.selection())
    save(draw_timeline(context, ranks=ranks), out, force=force)
    say(f"wrote {out}")
