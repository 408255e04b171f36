"""``nsysddp baseline``: named runs that later ones are checked against."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from nsysddp.cli.options import Request, reading_options
from nsysddp.cli.runs import database_option, format_option

if TYPE_CHECKING:
    pass


@click.group(name="baseline", short_help="Named runs that later ones are checked against.")
def command() -> None:
    """Named runs that later ones are checked against: set, list, show, delete.

    `nsysddp check --against NAME` and `nsysddp compare --against NAME` use them. A baseline keeps what a comparison
    needs of its runs; neither the reports nor kept runs have to stay.
    """


@command.command(name="set")
@click.argument("name")
@reading_options
@database_option
def set_(name: str, request: Request, url: str | None) -> None:
    """Keep runs as the baseline NAME, in place of what it stood for before.

    Each REPORT is one run, as in `nsysddp compare`: a report, a folder of `nsysddp capture` (or one that holds several,
    or the reports of all ranks), or run:N of the results database.
    """
    from nsysddp.cli.reading import reading_of, where_of
    from nsysddp.cli.sides import hashes_of, loaded, side_of
    from nsysddp.evidence.sources import check_alike
    from nsysddp.store.baselines import set_baseline, steps_of

    reading = reading_of(request)
    side = side_of(request.reports)
    check_alike((), side.sources)
    runs = loaded(side, reading, where_of(request), db=url)
    replaced = set_baseline(name, runs, reading=reading.as_dict(), reports=hashes_of(side, db=url), url=url)
    counted = f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {sum(map(steps_of, runs))} steps"
    click.echo(f"{'replaced' if replaced else 'set'} baseline {name.strip()}: {counted}", err=True)


@command.command(name="list")
@format_option
@database_option
def list_(form: str, url: str | None) -> None:
    """List the baselines by name."""
    from nsysddp.cli.runs import print_rows
    from nsysddp.render.screen import Column
    from nsysddp.store.baselines import baselines, steps_of

    kept = baselines(url=url)
    if form == "json":
        click.echo(json.dumps([baseline.as_dict() for baseline in kept], indent=2))
        return
    if not kept:
        click.echo("there is no baseline", err=True)
        return
    print_rows(
        [
            Column("name", left=True),
            Column("set (UTC)"),
            Column("runs"),
            Column("ranks"),
            Column("steps"),
            Column("GPU", left=True, spare=1),
        ],
        [
            (
                baseline.name,
                f"{baseline.created_at:%Y-%m-%d %H:%M}",
                str(len(baseline.runs)),
                str(max(len(run.ranks) for run in baseline.runs)),
                str(sum(map(steps_of, baseline.runs))),
                ", ".join(sorted({run.facts.get("GPU", "") for run in baseline.runs} - {""})),
            )
            for baseline in kept
        ],
    )


@command.command()
@click.argument("name")
@format_option
@database_option
def show(name: str, form: str, url: str | None) -> None:
    """Show one baseline: its runs and how they were read."""
    from nsysddp.cli.runs import print_facts
    from nsysddp.store.baselines import load_baseline

    content = load_baseline(name, url=url).as_dict()
    if form == "json":
        click.echo(json.dumps(content, indent=2))
        return
    facts = [
        ("baseline", content["name"]),
        ("set", f"{content['created_at']} by nsysddp {content['tool_version']}"),
    ]
    for run in content["runs"]:
        facts.append(("run", f"{run['name']}: {len(run['ranks'])} ranks, {run['steps']} steps"))
        facts += [("", f"{fact} = {value}") for fact, value in run["facts"].items()]
    facts += [("read", f"{key} = {json.dumps(value)}") for key, value in content["reading"].items()]
    print_facts(facts)


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@database_option
def delete(name: str, yes: bool, url: str | None) -> None:
    """Delete a baseline; kept runs stay."""
    from nsysddp.store.baselines import delete_baseline

    if not yes:
        click.confirm(f"Delete baseline {name} for good?", abort=True, err=True)
    delete_baseline(name, url=url)
