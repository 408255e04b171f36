"""``nsysddp redact``: write a copy of a report that can be shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysddp.cli.words import Worded
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.evidence.redact import Redaction


@click.command("redact", cls=Worded, old={"--output": "-o"})
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPORT...")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The copy; for several reports a folder, where each keeps its name.",
)
@click.option("--force", is_flag=True, help="Replace what exists.")
@click.option(
    "--keep-ranges",
    multiple=True,
    metavar="REGEX",
    help="Also keep NVTX range names that match in full, ignoring case. Repeatable. Kept anyway: steps, phases, "
    "NCCL, PyTorch operators, nsysddp's own marks.",
)
@click.option(
    "--hide",
    multiple=True,
    metavar="REGEX",
    help="Replace kernel and range names that match in full, ignoring case. Repeatable.",
)
@click.option(
    "--salt",
    default="",
    envvar="NSYSDDP_REDACT_SALT",
    metavar="TEXT",
    help="Mixed into the tokens that replace names, so that a guessed name cannot be confirmed. Use one for a job.",
)
@click.option(
    "--keep-identifiers",
    is_flag=True,
    help="Leave what looks like a host, an address or a mail in kernel and range names; otherwise it is <host> ...",
)
@click.option("--minimal", is_flag=True, help="Only the tables that the analyses read.")
@click.option(
    "--format",
    "form",
    default="text",
    show_default=True,
    type=click.Choice(["text", "json"]),
    help="text: a summary on stderr. json: the summary on stdout.",
)
def command(
    reports: tuple[Path, ...],
    out: Path,
    force: bool,
    keep_ranges: tuple[str, ...],
    hide: tuple[str, ...],
    salt: str,
    keep_identifiers: bool,
    minimal: bool,
    form: str,
) -> None:
    """Write a copy of a REPORT that can be shared.

    Only what an allow-list names is copied: the timeline, kernel names without paths, known range names, hardware.
    Environment, command line, host and user names, paths, other processes and program output are not; host names
    become host-1, host-2 ... over all REPORTs of one call. An analysis of the copy gives the numbers of the original.
    The copy of a folder of tables is a folder of Parquet files, unless its name ends in .sqlite.

    The copy still tells the wall-clock start of the session, process ids, GPU models, UUIDs and bus addresses, and
    the names of kernels (see --hide).
    """
    from nsysddp.evidence.redact import Policy, aliases_of_hosts, redact
    from nsysddp.ingest.given import reports_of
    from nsysddp.render.files import check_file

    reports = tuple(report for given in reports for report in reports_of(given))
    policy = Policy(
        keep_ranges=keep_ranges, hide=hide, keep_identifiers=keep_identifiers, salt=salt, minimal=minimal
    )
    outcomes = []
    targets = _targets(reports, out)
    for _, target in targets:
        check_file(target, force=force, inputs=reports)
    hosts = aliases_of_hosts(reports) if len(reports) > 1 else {}
    for report, target in targets:
        outcomes.append(redact(report, target, policy=policy, hosts=hosts, force=force))
        if form == "text":
            _show(outcomes[-1])
    if form == "json":
        click.echo(json.dumps([outcome.as_json() for outcome in outcomes], indent=2))


def _targets(reports: tuple[Path, ...], output: Path) -> list[tuple[Path, Path]]:
    """Each report with the path of its copy; a copy of a packed report is not packed, that of a folder is one."""
    from nsysddp.ingest.columnar import is_export

    if len(reports) == 1 and not output.is_dir():
        return [(reports[0], output)]
    if output.exists() and not output.is_dir():
        raise UsageError("several reports need a folder", file=output, do="name a folder with -o")
    names = [
        report.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".nsys-rep").removesuffix(".sqlite")
        for report in reports
    ]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(
            f"two reports are named {twice}", do="redact them in two calls, with the same --salt"
        )
    output.mkdir(parents=True, exist_ok=True)
    endings = ["" if is_export(report) else ".sqlite" for report in reports]
    return [
        (report, output / f"{name}{ending}")
        for report, name, ending in zip(reports, names, endings, strict=True)
    ]


def _show(outcome: Redaction) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True)
    kept = Table(title=f"{outcome.output}: kept", title_justify="left", box=SIMPLE)
    kept.add_column("table", no_wrap=True)
    for heading in ("rows", "dropped", "columns", "dropped"):
        kept.add_column(heading, justify="right", no_wrap=True)
    for table in outcome.kept:
        kept.add_row(table.name, *(f"{number:,}" for number in table[1:]))
    console.print(kept)
    if outcome.dropped:
        dropped = Table(title="dropped", title_justify="left", box=SIMPLE)
        dropped.add_column("what")
        dropped.add_column("why")
        dropped.add_column("tables", justify="right")
        dropped.add_column("rows", justify="right")
        for group in outcome.dropped:
            dropped.add_row(group.label, group.why, f"{group.tables:,}", f"{group.rows:,}")
        console.print(dropped)
    kinds = sorted({*outcome.names_kept, *outcome.names_replaced})
    console.print(
        "names kept/replaced: "
        + ", ".join(
            f"{kind} {outcome.names_kept.get(kind, 0):,}/{outcome.names_replaced.get(kind, 0):,}"
            for kind in kinds
        )
        + "".join(
            f"; hidden in names: {what} {count:,}" for what, count in outcome.identifiers_hidden.items()
        )
        + f"; strings dropped: {outcome.strings_dropped:,}; cells cleared: {outcome.cells_cleared:,}; "
        f"payloads kept/cleared: {outcome.payloads_kept:,}/{outcome.payloads_cleared:,}",
        highlight=False,
        markup=False,
    )
