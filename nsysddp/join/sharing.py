"""Which ranks ran on one GPU, so that the lengths of their kernels include each other's time?

Several processes on one GPU share it in slices (or through MPS). The recorded length of a kernel includes the slices of
the others, and each rank seems to compute all the time.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.model.names import ranks_text
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace

_KERNELS = ("communication", "spin", "compute")


def ranks_of_one_gpu(ranks: pl.DataFrame) -> list[list[int]]:
    """Ranks that the export names one physical GPU for, where that is more than one."""
    known = ranks.filter(pl.col("gpu_uuid").is_not_null())
    groups = known.group_by("gpu_uuid", maintain_order=True).agg(pl.col("rank").sort())
    return [group for group in groups["rank"].to_list() if len(group) > 1]


def shared_gpus(trace: Trace) -> tuple[Warning, ...]:
    """A warning for each GPU that several ranks ran on, with the time in which more than one ran kernels."""
    made = []
    for group in ranks_of_one_gpu(trace.ranks):
        at_once = Intervals.empty()
        for one, other in combinations(group, 2):
            at_once = at_once | (
                trace.fresh_union(one, frozenset(_KERNELS)) & trace.fresh_union(other, frozenset(_KERNELS))
            )
        made.append(
            Warning(
                "shared_gpu",
                len(group),
                f"{ranks_text(group)} share one GPU, so their times include each other's: for "
                f"{ms(at_once.length_ns):.2f} ms several of them ran kernels at once, and computing times cannot be "
                "compared",
            )
        )
    return tuple(made)
