"""``nsysddp export``: the run in the format of another viewer."""

from __future__ import annotations

from pathlib import Path

import click

from nsysddp.cli.options import Request, run_options
from nsysddp.cli.saying import say
from nsysddp.cli.words import Worded, file_option


@click.command(
    "export", cls=Worded, old={"--perfetto": "-o"}, short_help="Write a run for the Perfetto viewer."
)
@run_options
@file_option("The trace: .pftrace.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def command(request: Request, out: Path, force: bool) -> None:
    """Write the run as a Perfetto trace, to open at https://ui.perfetto.dev or with its trace processor.

    Each rank has its steps, transfer and wait, streams and threads; flows lead from a launch to its kernel and join
    the kernels of a collective over the ranks. With --from or --to there is no critical path.
    """
    from nsysddp.questions.context import context_of
    from nsysddp.render.files import check_file, whole_file
    from nsysddp.render.perfetto import check_perfetto, write_perfetto

    check_perfetto()
    check_file(out, force=force, inputs=request.inputs)
    trace = request.load(launches=True, host_calls=True)
    context = context_of(trace, request.selection())
    path = context.paths if request.from_ms is None and request.to_ms is None else None
    with whole_file(out, force=force) as stream:
        slices = write_perfetto(context, stream, critical_path=path)
    say(f"wrote {out} ({slices:,} slices)")
