"""On one time axis: how far each report's clock is from the others, and how well that is known.

Definitions, "When". Ranks of one report, and reports with equal anchors, share a clock and are never corrected
against each other. Between other reports there is one offset: the median difference of the ends of matched
collectives, from those with the shortest transfer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysddp.ingest.match import SYNCHRONISING, Kernel

SHORT_TRANSFER_NS = 20_000
"""Ends of short collectives differ least by protocol."""


@dataclass(frozen=True)
class Clock:
    """Alignment of one clock: add ``offset_ns`` to its anchored times.

    Attributes:
        offset_ns: correction in ns.
        residual_ns: median absolute deviation after it; None if nothing could be compared.
        method: shared, anchor, collectives or none.
    """

    offset_ns: int
    residual_ns: int | None
    method: str


def clocks_of(anchors: Sequence[int | None]) -> list[int]:
    """A clock number for each report: equal anchors share one, a report without an anchor has its own."""
    seen: dict[object, int] = {}
    return [
        seen.setdefault(anchor if anchor is not None else ("report", number), len(seen))
        for number, anchor in enumerate(anchors)
    ]


def align(kernels: Sequence[Kernel], anchored: dict[int, bool]) -> dict[int, Clock]:
    """The alignment of every clock against the first one.

    Args:
        kernels: matched communication kernels.
        anchored: clock number to whether its report named its session start.

    Returns:
        Clock number to its alignment.
    """
    result = {0: Clock(0, None, "shared")}
    if len(anchored) == 1:
        return result
    groups: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.collective is not None and kernel.kind in (*SYNCHRONISING, "send_recv"):
            groups[kernel.collective].append(kernel)
    pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for group in groups.values():
        ends: dict[int, list[int]] = defaultdict(list)
        for kernel in group:
            ends[kernel.clock].append(kernel.end)
        if 0 not in ends:
            continue
        transfer = min(kernel.end - kernel.start for kernel in group)
        for clock, values in ends.items():
            if clock:
                pairs[clock].append((transfer, int(np.median(ends[0])) - int(np.median(values))))
    for clock in anchored:
        if clock == 0:
            continue
        result[clock] = _from_pairs(pairs.get(clock, []), anchored[clock] and anchored[0])
    return result


def _from_pairs(pairs: Sequence[tuple[int, int]], anchored: bool) -> Clock:
    if not pairs:
        return Clock(0, None, "anchor" if anchored else "none")
    short = [difference for transfer, difference in pairs if transfer <= SHORT_TRANSFER_NS]
    chosen = np.array(short if len(short) >= 3 else [difference for _, difference in pairs])
    offset = int(np.median(chosen))
    return Clock(offset, int(np.median(np.abs(chosen - offset))), "collectives")
