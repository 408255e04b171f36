"""``nsysddp report``: one self-contained page about a run."""

from __future__ import annotations

from pathlib import Path

import click

from nsysddp.cli.options import Request, selection_options


@click.command("report", short_help="Write one self-contained HTML page about a run.")
@selection_options
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The page.",
)
@click.option("--force", is_flag=True, help="Overwrite the page.")
def command(request: Request, out: Path, force: bool) -> None:
    """Write one HTML page: verdict, findings, ranks, timeline, collectives, critical path, diagnosis, provenance.

    The page needs no network and opens from disk. A timeline of any size fits; what had to be merged is said there.
    With --from or --to there is no critical path and no diagnosis: they are of whole steps.
    """
    from nsysddp.dependencies.graph import build
    from nsysddp.questions import answer, context_of
    from nsysddp.questions.buckets import buckets
    from nsysddp.questions.critical_path import critical_path
    from nsysddp.questions.diagnosis import diagnose
    from nsysddp.render.files import check_file, whole_file
    from nsysddp.render.html import html_report

    check_file(out, force=force, inputs=request.inputs)
    trace = request.load(launches=True, host_calls=True, shapes=True, metrics=True)
    selection = request.selection()
    context = context_of(trace, selection)
    graph = build(trace)
    path = diagnosis = None
    if request.from_ms is None and request.to_ms is None:
        path = critical_path(
            trace,
            request.per,  # type: ignore[arg-type]
            first_step=max(selection.first_step or 0, selection.skip_warmup),
            last_step=selection.last_step,
            graph=graph,
            attribution=context.attribution,
        )
        diagnosis = diagnose(context, graph=graph, paths=path)
    page = html_report(
        answer(context),
        context=context,
        critical_path=path,
        buckets=buckets(context, graph=graph),
        diagnosis=diagnosis,
    )
    with whole_file(out) as stream:
        stream.write(page.encode("utf-8"))
    click.echo(f"wrote {out}", err=True)
