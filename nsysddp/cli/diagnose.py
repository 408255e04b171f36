"""``nsysddp diagnose``: what makes the step long, and what to change first."""

from __future__ import annotations

import sys

import click

from nsysddp.cli.options import Request, selection_options
from nsysddp.model.errors import UsageError


@click.command("diagnose")
@selection_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="What goes to stdout.",
)
def command(request: Request, form: str) -> None:
    """What makes the step this long, cause by cause, and what to change first.

    Each cause comes with the milliseconds per step that it costs at most (together never more than the step), how sure
    that is, one change to try, and what would refute it. Costs are of the steady steps' critical path.
    """
    from nsysddp.questions import context_of
    from nsysddp.questions.diagnosis import diagnose
    from nsysddp.render import diagnosis, document

    if request.from_ms is not None or request.to_ms is not None:
        raise UsageError(
            "a diagnosis is of whole steps", do="choose steps with --steps or --skip-warmup instead of times"
        )
    trace = request.load(launches=True, host_calls=True, shapes=True, metrics=True)
    result = diagnose(context_of(trace, request.selection()))
    if form == "json":
        document.write(result, sys.stdout)
    elif form == "markdown":
        click.echo(diagnosis.markdown(result))
    else:
        diagnosis.print_diagnosis(result)
