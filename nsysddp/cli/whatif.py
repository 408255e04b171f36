"""``nsysddp whatif``: how long the step would be if something were different."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from nsysddp.cli.options import Request, selection_options
from nsysddp.model.errors import UsageError
from nsysddp.model.units import ns_from_ms


@click.command("whatif")
@selection_options
@click.option("--bucket-cap", metavar="MIB,...", help="Bucket caps to predict, e.g. 1,4,16,25,64.")
@click.option(
    "--bucket-order",
    "orders",
    multiple=True,
    type=click.Choice(["ready", "reverse"]),
    help="Fill buckets as gradients get ready, or the other way round; repeatable.",
)
@click.option(
    "--faster",
    default="2",
    show_default=True,
    metavar="K,...",
    help="Factors by which communication is faster.",
)
@click.option(
    "--parameters",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON list of the parameters' sizes in bytes, in the order in which their gradients get ready.",
)
@click.option(
    "--measured-step",
    "measured_ms",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MS",
    help="Mean step of the same setting without the profiler: predict that run.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="What goes to stdout.",
)
def command(
    request: Request,
    bucket_cap: str | None,
    orders: tuple[str, ...],
    faster: str,
    parameters: Path | None,
    measured_ms: float | None,
    form: str,
) -> None:
    """How long the step would be with other communication, ranks or buckets, from a replay of the recorded run.

    Each prediction has an error band; where bands of bucket caps overlap, none is named the best. The error of
    replaying the run unchanged is shown.
    """
    from nsysddp.questions import context_of
    from nsysddp.questions.whatif import Ask, whatif
    from nsysddp.render import document, tables
    from nsysddp.render.whatif import print_whatif

    if request.from_ms is not None or request.to_ms is not None:
        raise UsageError("a replay is of whole steps", do="leave out --from and --to")
    if request.per != "step" or request.steps is not None or request.skip_warmup:
        raise UsageError(
            "a replay is of the whole capture, step by step", do="leave out --per, --steps, --skip-warmup"
        )
    ask = Ask(
        caps_mib=_numbers(bucket_cap, "--bucket-cap") if bucket_cap else (),
        faster=_numbers(faster, "--faster"),
        orders=orders,
        parameter_bytes=None if parameters is None else _sizes(parameters),
        measured_step_ns=None if measured_ms is None else ns_from_ms(measured_ms),
    )
    trace = request.load(launches=True, host_calls=True, shapes=True)
    result = whatif(context_of(trace, request.selection()), ask)
    if form == "json":
        document.write(result, sys.stdout)
    elif form == "csv":
        click.echo(tables.csv(result["whatif"]), nl=False)
    else:
        print_whatif(result)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text!r} is no list of numbers", do="write 1,4,16") from None
    if not all(0 < value < 1e6 for value in values) or len(set(values)) < len(values):
        raise UsageError(f"{option} {text!r}: each number must be above 0 and given once")
    return values


def _sizes(path: Path) -> tuple[int, ...]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the parameter sizes: {error.strerror}", file=path.name) from error
    except ValueError as error:
        raise UsageError("the parameter sizes are not JSON", file=path.name) from error
    if not isinstance(read, list) or not read or not all(type(one) is int and one > 0 for one in read):
        raise UsageError(
            "the parameter sizes are no list of bytes",
            file=path.name,
            do="write [4096, 4194304, ...] in ready order",
        )
    return tuple(read)
