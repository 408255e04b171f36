"""Tables that every rank's own events tell, once it is known what all ranks together tell.

Of other ranks they need only what ``Context`` holds already: which steps there are and when the counterparts of each
collective arrived. So they can be made of some ranks at a time, anywhere, and put one below the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysddp.questions import collectives, kernels, overlap, own_time, phases, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

    from nsysddp.questions.context import Context

TABLES: Mapping[str, Callable[[Context], pl.DataFrame]] = {
    "overlap": lambda c: overlap.overlap_table(c.trace, c.attribution, c.windows, c.splits),
    "phase": lambda c: phases.phase_table(c.trace, c.attribution, c.windows),
    "collective": lambda c: collectives.collective_table(c.trace, c.timed, c.attribution, c.keep),
    "kernel_class": lambda c: kernels.kernel_class_table(c.trace, c.keep),
    "memory": lambda c: kernels.memory_table(c.trace, c.attribution, c.keep),
    "outside_steps": lambda c: kernels.outside_table(c.trace, c.every_window),
    "own_phases": lambda c: own_time.own_phases(c.trace, c.attribution, c.splits),
    "compute_streams": lambda c: collectives.on_compute_streams(c.trace, c.attribution),
    "launching": verdict.launching,
}
"""Name of each table to how it is made; rows are ordered by rank."""
