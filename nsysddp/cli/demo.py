"""``nsysddp demo``: the main job on the bundled captures."""

from __future__ import annotations

from pathlib import Path

import click

from nsysddp.model.errors import UsageError
from nsysddp.model.names import visible


@click.command("demo", short_help="Two bundled captures side by side.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("nsysddp-demo"),
    show_default=True,
    metavar="DIR",
    help="Folder for pictures, tables, JSON and captures; replaced if a demo made it.",
)
def command(out: Path) -> None:
    """Analyse two bundled captures side by side: the same gradients in 12 buckets and in one.

    The folder then holds pictures, tables and JSON of both, and all bundled captures to try other commands on.
    """
    from nsysddp import samples
    from nsysddp.join.load import load
    from nsysddp.questions import answer, context_of
    from nsysddp.render import document
    from nsysddp.render.text import console, print_side_by_side
    from nsysddp.render.timeline import draw_timeline, save

    captures = {"12 buckets": samples.TWELVE_BUCKETS, "1 bucket": samples.ONE_BUCKET}
    mark = out / ".nsysddp-demo"
    if out.exists() and not mark.is_file():
        raise UsageError(f"{out.name} exists and is no demo folder", do="give another --out")
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    for name in (*captures.values(), samples.SLOW_LINK, samples.GPT_PARAMETERS):
        (out / name).write_bytes(samples.path(name).read_bytes())
    results = {}
    for title, name in captures.items():
        trace = load(samples.path(name))
        stem = name.partition(".")[0]
        context = context_of(trace)
        results[title] = answer(context)
        document.write_folder(results[title], out / stem, force=True)
        save(draw_timeline(context), out / f"{stem}.png")
    screen = console()
    print_side_by_side(results, screen)
    screen.print()
    screen.print(f"Pictures, tables, JSON and captures: {visible(str(out.resolve()))}", soft_wrap=True)
