"""``nsysddp report``: one self-contained page about a run."""

from __future__ import annotations

from pathlib import Path

import click

from nsysddp.cli.options import Request, run_options
from nsysddp.cli.saying import say
from nsysddp.cli.words import file_option


@click.command("report", short_help="Write one self-contained HTML page about a run.")
@run_options
@file_option("The page.")
@click.option("--force", is_flag=True, help="Overwrite the page.")
def command(request: Request, out: Path, force: bool) -> None:
    """Write one HTML page: verdict, findings, timeline, ranks by step, collectives, critical path, diagnosis.

    The page needs no network and opens from disk. A timeline of any size fits; what had to be merged is said there.
    With --from or --to there is no critical path and no diagnosis: they are of whole steps.
    """
    from nsysddp.questions.communicators import communicators
    from nsysddp.questions.context import context_of
    from nsysddp.questions.stragglers import stragglers
    from nsysddp.render.files import check_file, whole_file
    from nsysddp.render.html import html_report

    check_file(out, force=force, inputs=request.inputs)
    trace = request.load(launches=True, host_calls=True, shapes=True, metrics=True)
    context = context_of(trace, request.selection())
    whole = request.from_ms is None and request.to_ms is None
    page = html_report(
        context.analysis,
        context=context,
        critical_path=context.paths if whole else None,
        buckets=context.buckets,
        diagnosis=context.diagnosis if whole else None,
        stragglers=stragglers(context) if whole else None,
        communicators=communicators(context) if whole else None,
    )
    with whole_file(out, force=force) as stream:
        stream.write(page.encode("utf-8"))
    say(f"wrote {out}")
