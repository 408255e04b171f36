"""Instrument a training loop for the analyzer: ``from nsysddp import annotate``.

The public names of :mod:`nsysddp.ddp.annotate`. Importing this costs nothing: torch is imported only once a
process is really being profiled, and no part of the analyzer is.
"""

from __future__ import annotations

from nsysddp.ddp.annotate import (
    bucket_ranges,
    capture_window,
    mark_groups,
    mark_rank,
    phase,
    profiling,
    register_comm_hook,
    step,
)

__all__ = [
    "bucket_ranges",
    "capture_window",
    "mark_groups",
    "mark_rank",
    "phase",
    "profiling",
    "register_comm_hook",
    "step",
]
