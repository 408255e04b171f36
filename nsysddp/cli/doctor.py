"""``nsysddp doctor``: what is installed, what a report holds, what is missing for which answer."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("doctor", short_help="Versions, and what a report can answer.")
@click.argument("report", required=False, type=click.Path(path_type=Path))
def command(report: Path | None) -> None:
    """Show versions; with a REPORT also what it can answer, and which capture flags would bring the rest."""
    from nsysddp.render.doctor import print_report, print_versions
    from nsysddp.render.text import console

    found = []
    if report is not None:
        from nsysddp.ingest.given import reports_of
        from nsysddp.ingest.inspect import inspect

        found = [inspect(path) for path in reports_of(report)]
    screen = console()
    print_versions(screen)
    for inspected in found:
        print_report(screen, inspected)
