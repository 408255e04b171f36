"""``nsysddp critical-path``: what bounds each step, over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysddp.cli.emit import emit, format_option
from nsysddp.cli.options import Request, selection_options
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.model.result import Result

TABLES = tuple(
    f"critical_path{part}" for part in ("", "_step", "_kind", "_cause", "_communication", "_evidence")
)


@click.command("critical-path")
@selection_options
@click.option("--each-rank", is_flag=True, help="The path within each rank; its waits stay on it, by name.")
@format_option
@click.option(
    "--table",
    type=click.Choice(TABLES),
    help="Table of csv, markdown or text (default critical_path_kind); `--format json` has all.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write every table and the document."
)
@click.option("--force", is_flag=True, help="Replace an earlier result in --out.")
def command(
    request: Request, each_rank: bool, form: str, table: str | None, out: Path | None, force: bool
) -> None:
    """What bounds each step: the chain of work, transfer and host time that its end hung on.

    The path runs over all ranks: where a collective waited, it goes on at the rank that arrived last. A step's path and
    that of the capture (--per capture) are different questions.
    """
    from dataclasses import replace

    from nsysddp.questions import context_of
    from nsysddp.questions.critical_path import communication_beside, critical_path, rank_paths
    from nsysddp.questions.overlap import overlap_table
    from nsysddp.render import document

    if request.from_ms is not None or request.to_ms is not None:
        raise UsageError(
            "a critical path has windows of its own", do="choose steps with --steps instead of times"
        )
    if table == "critical_path_communication" and each_rank:
        raise UsageError(
            "critical_path_communication is for the path over all ranks", do="leave out --each-rank"
        )
    if out is not None:
        document.check_target(out, force=force, inputs=request.inputs)
    trace = request.load(launches=True, host_calls=True)
    selection = request.selection()
    context = context_of(trace, selection)
    ask: Callable[..., Result] = rank_paths if each_rank else critical_path
    result = ask(
        trace,
        request.per,
        first_step=max(selection.first_step or 0, selection.skip_warmup),
        last_step=selection.last_step,
        attribution=context.attribution,
    )
    if not each_rank:
        overlap = overlap_table(trace, context.attribution, context.windows, context.splits)
        beside = communication_beside(result, overlap)
        result = replace(result, tables={**result.tables, "critical_path_communication": beside})
    result = replace(result, warnings=(*trace.warnings, *result.warnings))
    if out is not None:
        document.write_folder(result, out, force=force)
    emit(result, form, table or "critical_path_kind", lambda: _print(result, table))


def _print(result: Result, table: str | None) -> None:
    if table is None:
        from nsysddp.render.critical_path import print_critical_path

        print_critical_path(result)
    else:
        from nsysddp.render.text import print_table

        print_table(result, table)
