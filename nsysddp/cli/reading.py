"""The shared options as what runs are read with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nsysddp.ingest.hashing import hash_ahead
from nsysddp.model.errors import UsageError
from nsysddp.model.inputs import read_text
from nsysddp.model.units import ns_from_us

if TYPE_CHECKING:
    from nsysddp.cli.options import Request
    from nsysddp.evidence.sources import Reading, Source, Where


def inputs_of(request: Request, sources: Iterable[Source], claims: Path | None = None) -> tuple[Path, ...]:
    """Every file that is read for this request: of folders what lies in them, and rules and claims."""
    more = () if claims is None else (claims,)
    return (*request.inputs, *more, *(file for source in sources for file in source.files))


def where_of(request: Request) -> Where:
    """Where the runs of this request are read."""
    from nsysddp.evidence.sources import Where

    return Where(request.jobs, request.scheduler, request.cache)


def reading_of(request: Request) -> Reading:
    """How the runs of this request are read.

    Raises:
        UsageError: the rules file cannot be read, or the selection contradicts itself.
    """
    from nsysddp.evidence.sources import Reading

    hash_ahead(request.reports)  # while the libraries are imported one core idles
    rules = None
    if request.rules is not None:
        try:
            rules = read_text(request.rules)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"the rules cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})",
                file=request.rules,
            ) from None
    selection = request.selection()
    return Reading(
        per=selection.per,
        from_ns=selection.from_ns,
        to_ns=selection.to_ns,
        first_step=selection.first_step,
        last_step=selection.last_step,
        skip_warmup=selection.skip_warmup,
        step_pattern=request.step_pattern,
        phase_patterns=dict(request.phase_patterns),
        clock_tolerance_ns=ns_from_us(request.clock_tolerance_us),
        rules=rules,
    )
