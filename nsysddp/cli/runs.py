"""Which results are kept, and how did a metric move over them: list, show, tag, trend, delete."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.cli.words import file_option
from nsysddp.model.errors import UsageError
from nsysddp.model.names import counted
from nsysddp.model.units import NS_PER_US, ms

if TYPE_CHECKING:
    from nsysddp.render.screen import Column
    from nsysddp.render.trend import Trend
    from nsysddp.store.database import StoredRun

database_option: Callable[[Any], Any] = click.option(
    "--db",
    "url",
    metavar="URL",
    help="Results database: a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE. "
    "Default: NSYSDDP_DB, else a file in your data folder.",
)
format_option: Callable[[Any], Any] = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
tag_option: Callable[[Any], Any] = click.option(
    "--tag", "tags", multiple=True, metavar="NAME", help="Only runs with this tag (repeat for several)."
)
label_option: Callable[[Any], Any] = click.option("--label", help="Only runs with this label.")
last_option: Callable[[Any], Any] = click.option(
    "--last", type=click.IntRange(min=1), metavar="N", help="Only the newest N of them."
)


@click.group(name="runs", short_help="Kept results: list, show, tag, trend, delete.")
def command() -> None:
    """Kept results: list, show, tag, trend, delete.

    A run is kept by --save of analyze, capture or compare. The same result kept twice is the same run.
    """


@command.command(name="list")
@tag_option
@label_option
@last_option
@format_option
@database_option
def list_runs(tags: tuple[str, ...], label: str | None, last: int | None, form: str, url: str | None) -> None:
    """List the kept runs, oldest first."""
    from nsysddp.store.database import runs

    kept = runs(url=url, tags=tags, label=label, last=last)
    if form == "json":
        _print_json([run.as_dict() for run in kept])
        return
    if not kept:
        click.echo("no kept run fits", err=True)
        return
    from nsysddp.render.screen import Column

    print_rows(
        [
            Column("run"),
            Column("saved (UTC)", spare=3),
            Column("report", left=True),
            Column("label", left=True),
            Column("command", left=True),
            Column("tags", left=True, spare=1),
            Column("ranks"),
            Column("steps", spare=2),
            Column("GPU", left=True, spare=5),
        ],
        [
            (
                str(run.run_id),
                f"{run.created_at:%Y-%m-%d %H:%M}",
                _reports(run),
                run.label or "",
                _command_of(run.request),
                " ".join(run.tags),
                str(len(run.ranks) or "–"),
                str(run.steps or "–"),
                _gpus(run),
            )
            for run in kept
        ],
    )


@command.command()
@click.argument("run_id", type=int, metavar="RUN")
@click.option("--document", is_flag=True, help="Print the result document as it was saved (JSON).")
@format_option
@database_option
def show(run_id: int, document: bool, form: str, url: str | None) -> None:
    """Show one run: reports, ranks, findings, capture."""
    from nsysddp.store.database import load_document, load_run

    if document:
        _print_json(load_document(run_id, url=url))
        return
    run = load_run(run_id, url=url)
    if form == "json":
        _print_json(run.as_dict())
        return
    facts = [
        ("run", f"{run.run_id}{f' ({run.label})' if run.label else ''}"),
        ("saved", f"{run.created_at:%Y-%m-%d %H:%M:%S} UTC by nsysddp {run.tool_version}"),
        ("asked", "not recorded" if run.request is None else _asked(run.request)),
        ("tags", " ".join(run.tags) or "none"),
        ("document", f"sha256 {run.content_sha256}"),
        ("GPU", _gpus(run) or "unknown"),
        ("ranks", ", ".join(str(row["rank"]) for row in run.ranks) or "none"),
        ("steps", str(run.steps) if run.steps else "none in the document, or the capture as one window"),
        *(("report", f"{row['name']}, nsys {row['nsys_version'] or 'unknown'}") for row in run.inputs),
        *(("finding", row["message"]) for row in run.findings),
        *(
            ("capture", f"{key} = {value if isinstance(value, str) else json.dumps(value)}")
            for key, value in (run.capture or {}).items()
        ),
    ]
    print_facts(facts)


@command.command()
@click.argument("run_ids", type=int, nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--add", "-a", "added", multiple=True, metavar="NAME", help="Give this tag (repeat for several)."
)
@click.option("--remove", "-r", "removed", multiple=True, metavar="NAME", help="Take this tag away.")
@database_option
def tag(run_ids: tuple[int, ...], added: tuple[str, ...], removed: tuple[str, ...], url: str | None) -> None:
    """Give tags to runs, or take them away."""
    from nsysddp.store.database import tag as change_tags

    if not added and not removed:
        raise UsageError("nothing to change", do="name tags with --add or --remove")
    change_tags(run_ids, add=added, remove=removed, url=url)


@command.command()
@click.argument("metric")
@tag_option
@label_option
@last_option
@click.option("--rank", type=click.IntRange(min=0), help="Follow this rank instead of each run's worst one.")
@file_option("Draw it: .png, .svg or .pdf.", required=False)
@click.option("--force", is_flag=True, help="Overwrite the picture.")
@format_option
@database_option
def trend(
    metric: str,
    tags: tuple[str, ...],
    label: str | None,
    last: int | None,
    rank: int | None,
    out: Path | None,
    force: bool,
    form: str,
    url: str | None,
) -> None:
    """How did METRIC move over the runs, and where did its level change?

    METRIC is a column of the overlap table, such as window_ns (the step), exposed_communication_ns, hidden_transfer_ns,
    tail_communication_ns, idle_ns or overlap_ratio. A run stands for its worst rank: the median over its steps without
    warm-up, with a 95 % interval. A change of level is tested over runs, and named with what else changed there.
    """
    from nsysddp.store.trend import trend as over_runs

    result = over_runs(metric, url=url, rank=rank, tags=tags, label=label, last=last)
    if out is not None:
        from nsysddp.render.files import check_file
        from nsysddp.render.trend import draw_trend
        from nsysddp.store.connection import resolve_url

        address = resolve_url(url)
        kept_in = [Path(str(address.database))] if address.get_backend_name() == "sqlite" else []
        check_file(out, force=force, inputs=kept_in)
        draw_trend(result, out, force=force)
    if form == "json":
        _print_json(result.as_dict())
    else:
        _print_trend(result)


@command.command()
@click.argument("run_ids", type=int, nargs=-1, required=True, metavar="RUN...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@database_option
def delete(run_ids: tuple[int, ...], yes: bool, url: str | None) -> None:
    """Delete runs with all their rows; there is no way back."""
    from nsysddp.store.database import delete as forget

    if not yes:
        click.confirm(f"Delete run {', '.join(map(str, run_ids))} for good?", abort=True, err=True)
    forget(run_ids, url=url)


def _gpus(run: StoredRun) -> str:
    return ", ".join(sorted({row["gpu_name"] for row in run.ranks if row["gpu_name"]}))


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def print_rows(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print all of these rows as a table that fits the screen."""
    from nsysddp.render.screen import Grid, console

    grid = Grid(columns)
    for row in rows:
        grid.add(*row)
    grid.print(console(), "--format json", most=max(1, len(rows)))


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print what is known, each kind of fact named once."""
    from rich.table import Table
    from rich.text import Text

    from nsysddp.render.screen import console
    from nsysddp.render.theme import printable

    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    previous = ""
    for name, text in facts:
        grid.add_row(Text("" if name == previous else name), Text(printable(text)))
        previous = name
    console().print(grid)


def _asked(request: Mapping[str, Any]) -> str:
    """Everything that was asked, in words."""
    rules = f", rules {request['rules_sha256'][:12]}" if request["rules_sha256"] else ""
    options = {name: value for name, value in request["options"].items() if value not in (None, False, [])}
    return (
        f"{_command_of(request)}, steps {request['step_pattern']}, clock tolerance "
        f"{request['clock_tolerance_ns'] / NS_PER_US:g} µs{rules}"
        + (f", {json.dumps(options, ensure_ascii=False)}" if options else "")
    )


def _reports(run: StoredRun) -> str:
    """The first report's name without its form, and how many more there are."""
    names = [re.sub(r"(\.sqlite)?\.(sqlite|gz|zst|nsys-rep)$", "", str(row["name"])) for row in run.inputs]
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "") if names else ""


def _command_of(asked: Mapping[str, Any] | None) -> str:
    """The command, and what of the run it was asked about where that is not every step."""
    if asked is None:
        return "–"
    words = [str(asked["command"]), *(["--per capture"] if asked["per"] == "capture" else [])]
    words += [
        f"{option} {ms(asked[name]):g}"
        for option, name in (("--from", "from_ns"), ("--to", "to_ns"))
        if asked[name] is not None
    ]
    if asked["first_step"] is not None or asked["last_step"] is not None:
        bounds = ("" if asked[name] is None else str(asked[name]) for name in ("first_step", "last_step"))
        words.append(f"--steps {':'.join(bounds)}")
    if asked["skip_warmup"]:
        words.append(f"--skip-warmup {asked['skip_warmup']}")
    return " ".join(words)


def _print_trend(result: Trend) -> None:
    from nsysddp.render.screen import Column, bullet, console, indented
    from nsysddp.render.trend import describe_change, describe_differences, scale_for, title_of

    scale = scale_for(result)
    who = "worst rank" if result.rank is None else f"rank {result.rank}"
    screen = console()
    screen.print(
        f"{title_of(result.metric)} over {counted(len(result.points), 'run')}, {scale.unit}; {who}, median over steps"
    )
    print_rows(
        [
            Column("run"),
            Column("saved", spare=2),
            Column("label", left=True),
            Column("rank"),
            Column("median"),
            Column("95 % interval"),
            Column("best"),
            Column("steps", spare=1),
        ],
        [
            (
                str(point.run_id),
                f"{point.created_at:%Y-%m-%d}",
                point.label or "",
                "–" if point.rank is None else str(point.rank),
                scale.show(point.value),
                "–" if point.low is None else f"{scale.show(point.low)} to {scale.show(point.high)}",
                scale.show(point.best),
                str(point.steps),
            )
            for point in result.points
        ],
    )
    for number, change in enumerate(result.change_points, 1):
        screen.print(bullet(f"change {number}: {describe_change(result, change)}"))
        screen.print(indented(describe_differences(change)))
    if not result.change_points and not result.warnings:
        click.echo("no change of level can be shown between these runs")
    for warning in result.warnings:
        click.echo(f"note: {warning}", err=True)
