"""``nsysddp sweep``: capture a workload under several bucket caps and say which is best."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nsysddp.cli.capture import make_captures, run_options, settings_from
from nsysddp.model.errors import UsageError


def _caps(_context: click.Context, _parameter: click.Parameter, text: str) -> list[float]:
    try:
        caps = [float(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter("give MiB separated by commas, such as 1,4,25") from None
    if any(cap <= 0 for cap in caps) or len(set(caps)) != len(caps):
        raise click.BadParameter("caps are positive and different from each other")
    return caps


@click.command("sweep")
@click.option(
    "--bucket-cap",
    "caps",
    default="1,2,4,8,16,25,64",
    show_default=True,
    callback=_caps,
    metavar="MIB,...",
    help="Bucket caps of DDP.",
)
@click.option(
    "--repeat",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="Captures of each cap, interleaved.",
)
@click.option(
    "--out",
    default=Path("sweep"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the captures and sweep.json.",
)
@run_options
def command(caps: list[float], repeat: int, out: Path, **options: Any) -> None:
    """Capture gpt_ddp under each bucket cap and name the best, and those that cannot be told apart from it."""
    from nsysddp.capture.plan import choose_nsys
    from nsysddp.capture.provenance import write_json
    from nsysddp.capture.run import Captured
    from nsysddp.capture.sweep import plan_sweep, summarise
    from nsysddp.cli.capture import say

    settings = settings_from(options)
    nsys = choose_nsys(options["nsys_path"], settings, dry_run=options["dry_run"], say=say)
    plans = plan_sweep(caps, settings, out=out, repeat=repeat, nsys=nsys, python=sys.executable)
    if options["dry_run"]:
        for plan in plans:
            click.echo(plan.dry_run())
        return
    document = out / "sweep.json"
    if document.exists() and not options["force"]:
        raise UsageError(f"{document} exists", do="choose another --out, or replace it with --force")
    captured: list[tuple[float, Captured]] = []
    make_captures(
        plans, options, lambda capture: captured.append((capture.plan.variables["bucket_cap_mib"], capture))
    )
    sweep = summarise(captured)
    write_json(document, sweep.document())
    click.echo(sweep.text())
