"""``nsysddp capture``: run a program under Nsight Systems, export and analyse it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.model.errors import UsageError
from nsysddp.model.names import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsysddp.capture.command import Settings
    from nsysddp.capture.failures import Failure
    from nsysddp.capture.plan import Plan
    from nsysddp.capture.run import Captured

PROGRAM = "nsysddp.program"


class WithProgram(click.Command):
    """A command that takes another program's command line after ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what follows ``--`` from click."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[PROGRAM] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show it in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM...]"]


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that ``capture`` and ``sweep`` share, gathered by ``settings_from``."""
    options = (
        click.option(
            "--nproc", default=2, show_default=True, type=click.IntRange(1), help="Ranks of a preset."
        ),
        click.option(
            "--steps",
            default=40,
            show_default=True,
            type=click.IntRange(1),
            help="Measured steps of a preset.",
        ),
        click.option(
            "--warmup",
            default=10,
            show_default=True,
            type=click.IntRange(3),
            help="Steps before those recorded.",
        ),
        click.option(
            "--capture-steps",
            default=3,
            show_default=True,
            type=click.IntRange(1),
            help="Steps recorded by nsys, between the warm-up and the measured ones.",
        ),
        click.option("--seed", default=0, show_default=True, help="Random seed of a preset."),
        click.option(
            "--backend",
            default="nccl",
            show_default=True,
            type=click.Choice(["nccl", "gloo"]),
            help="gloo: CPU ranks; ranges are recorded, and nothing about GPUs can be said.",
        ),
        click.option(
            "--per-rank", is_flag=True, help="One nsys and one report a rank, instead of one a node."
        ),
        click.option("--gpu-metrics", is_flag=True, help="Sample SM, DRAM and NVLink activity as well."),
        click.option(
            "--cuda-graph-trace",
            default="node",
            show_default=True,
            type=click.Choice(["node", "graph"]),
            help="Trace the kernels of CUDA graphs, or each graph as one span.",
        ),
        click.option(
            "--capture-range",
            default="profiler",
            show_default=True,
            type=click.Choice(["profiler", "none"]),
            help="Record from cudaProfilerStart to Stop, or the whole program.",
        ),
        click.option(
            "--export",
            default="sqlite",
            show_default=True,
            type=click.Choice(["sqlite", "parquetdir"]),
            help="Form of the export; parquetdir (nsys >= 2024.6) is smaller and faster to read.",
        ),
        click.option(
            "--nsys", "nsys_path", metavar="PATH", help="The nsys to use; default: found by itself."
        ),
        click.option(
            "--timeout",
            default=600.0,
            show_default=True,
            type=click.FloatRange(0, min_open=True),
            help="Seconds after which a run is a hang.",
        ),
        click.option("--force", is_flag=True, help="Replace earlier captures in the output folder."),
        click.option("--dry-run", is_flag=True, help="Print the exact command lines and run nothing."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def settings_from(options: dict[str, Any]) -> Settings:
    """The capture settings among these options."""
    from nsysddp.capture.command import Settings

    names = Settings.__dataclass_fields__
    return Settings(**{name: value for name, value in options.items() if name in names})


def say(text: str) -> None:
    """Progress, on stderr."""
    click.echo(visible(text), err=True)


def show_details(failure: Failure) -> None:
    """What helps to find the cause, on stderr, before the one line that the command line prints."""
    for line in failure.details:
        click.echo(f"  | {visible(line)}", err=True)


def make_captures(plans: Sequence[Plan], options: dict[str, Any], done: Callable[..., None]) -> None:
    """Check the machine, make the captures in turn, and hand each one to ``done``."""
    from nsysddp.capture.failures import Failure
    from nsysddp.capture.plan import check_machine
    from nsysddp.capture.run import capture

    try:
        machine = check_machine(plans)
        for plan in plans:
            done(capture(plan, machine, timeout_s=options["timeout"], force=options["force"], say=say))
    except Failure as failure:
        show_details(failure)
        raise


def _keep(captured: Captured, url: str | None) -> int:
    """Number of the saved run."""
    from nsysddp.render.document import as_dict
    from nsysddp.store.database import save

    assert captured.result is not None
    run = json.loads((captured.plan.folder / "run.json").read_text(encoding="utf-8"))
    return save(as_dict(captured.result), url=url, label=captured.plan.name, run=run)


@click.command("capture", cls=WithProgram)
@click.argument("configs", nargs=-1, metavar="[CONFIG]...")
@click.option("--list", "list_presets", is_flag=True, help="List the presets and what each shows.")
@click.option(
    "--repeat", default=1, show_default=True, type=click.IntRange(1), help="Captures of each, in turn."
)
@click.option(
    "--out",
    default=Path("captures"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder in which each capture gets a folder CONFIG-REPEAT.",
)
@click.option("--save", is_flag=True, help="Keep each analysis in the results database (see `nsysddp runs`).")
@click.option("--db", metavar="URL", help="Results database for --save.")
@run_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    configs: tuple[str, ...],
    list_presets: bool,
    repeat: int,
    out: Path,
    save: bool,
    db: str | None,
    **options: Any,
) -> None:
    """Capture presets (CONFIG) or any program (-- PROGRAM) and analyse what was recorded.

    A program's own options stay as they are; it should open nsysddp.annotate.capture_window, or call
    cudaProfilerStart and cudaProfilerStop around a few steady steps.
    """
    from nsysddp.capture.failures import Failure
    from nsysddp.capture.plan import choose_nsys, plan_presets, plan_program
    from nsysddp.capture.presets import PRESETS, find_preset

    if list_presets:
        for preset in PRESETS.values():
            click.echo(f"{preset.name:18} {preset.shows}")
        return
    program: list[str] = ctx.meta[PROGRAM]
    if bool(configs) == bool(program):
        raise UsageError(
            "name presets or a program after `--`, and not both",
            do="nsysddp capture --list shows the presets",
        )
    for name in configs:
        find_preset(name)
    settings = settings_from(options)
    nsys = choose_nsys(options["nsys_path"], settings, dry_run=options["dry_run"], say=say)
    plans = (
        plan_program(program, settings, out=out, repeat=repeat, nsys=nsys)
        if program
        else plan_presets(configs, settings, out=out, repeat=repeat, nsys=nsys, python=sys.executable)
    )
    if options["dry_run"]:
        for plan in plans:
            click.echo(plan.dry_run())
        return

    def done(captured: Captured) -> None:
        click.echo(visible(f"{captured.plan.name} {captured.plan.repeat}: {captured.plan.folder}"))
        click.echo(captured.verdict.rstrip())
        if save and captured.result is not None:
            click.echo(f"saved as run {_keep(captured, db)}", err=True)
        elif save:
            click.echo("not saved: there are no GPU figures to keep", err=True)
        if captured.failed_checks:
            raise Failure(
                "checks_failed", "; ".join(captured.failed_checks), do="see summary.json of the run"
            )

    make_captures(plans, options, done)
