"""How long is each phase on the host and on the GPU, and how much of its communication is hidden?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.intervals import grouped_union
from nsysddp.model.schema import INT, RANK_NUMBER, STEP_NAME, TEXT, declare
from nsysddp.questions.overlap import joined, or_null, summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution
    from nsysddp.questions.window import Windows

_NEVER = np.iinfo(np.int64).min
"""Before everything: the end of no events."""

PHASE = declare(
    "phase",
    "one phase range of one step on one rank",
    [
        RANK_NUMBER,
        STEP_NAME,
        ("phase", TEXT, "forward, backward, optimizer, data or a name given by --phase-pattern"),
        ("host_start_ns", INT, "start of the host range"),
        ("host_end_ns", INT, "end of the host range"),
        ("gpu_start_ns", INT, "first start of the GPU events launched in it; null if none"),
        ("gpu_end_ns", INT, "last end of the GPU events launched in it; null if none"),
        ("compute_ns", INT, "|compute and spin events launched in it|"),
        ("communication_ns", INT, "|communication events launched in it|"),
        ("exposed_communication_ns", INT, "the part of that under no compute of the device"),
        ("kernels", INT, "kernels launched in it"),
    ],
)


def phase_table(trace: Trace, attribution: Attribution, chosen: Windows) -> pl.DataFrame:
    """What each phase launched and when it ran on the GPU (``PHASE``)."""
    if chosen.per != "step":
        return PHASE.empty()
    phases = attribution.phases
    process, step = phases["process"].to_numpy(), phases["step_index"].to_numpy()

    def of_rank(rank: int) -> dict[str, NDArray[Any]]:
        """The rank's phase ranges as rows of ``phases``, and what was launched in each."""
        steps = [window.step for window in chosen.of(rank)]
        mine = np.flatnonzero((process == trace.process_of_rank[rank]) & np.isin(step, steps))
        first, last = trace.rows_of(rank)
        events = trace.events_of(rank)
        rows = np.flatnonzero(attribution.phase_range[first:last] >= 0)
        of_phase = attribution.phase_range[first:last][rows]
        start, end = events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows]
        kernels = trace.is_kernel[events["name"].to_numpy()[rows]]
        gpu_start, gpu_end = np.full(phases.height, np.iinfo(np.int64).max), np.full(phases.height, _NEVER)
        kernels_of = np.zeros(phases.height, dtype=np.int64)
        if rows.size:
            heads = np.flatnonzero(
                np.diff(of_phase, prepend=-1)
            )  # events that follow each other mostly share one
            np.minimum.at(gpu_start, of_phase[heads], start[heads])
            np.maximum.at(gpu_end, of_phase[heads], np.maximum.reduceat(end, heads))
            np.add.at(kernels_of, of_phase[heads], np.add.reduceat(kernels, heads, dtype=np.int64))
        compute = trace.union(rank, ["compute", "spin"])
        computing = trace.is_class(rank, ["compute", "spin"])[rows]
        communicating = trace.is_class(rank, ["communication"])[rows]
        computed = grouped_union(of_phase[computing], start[computing], end[computing])
        communicated = grouped_union(of_phase[communicating], start[communicating], end[communicating])
        unsure = np.zeros(phases.height, dtype=bool)
        beside_graph = (
            trace.union(rank, ["graph"]).length_within(start[communicating], end[communicating]) > 0
        )
        unsure[of_phase[communicating][beside_graph]] = True
        return {
            "rank": np.full(mine.size, rank),
            "row": mine,
            "unsure": unsure[mine],
            "gpu_start_ns": gpu_start[mine],
            "gpu_end_ns": gpu_end[mine],
            "compute_ns": summed(computed, phases.height)[mine],
            "communication_ns": summed(communicated, phases.height)[mine],
            "exposed_communication_ns": summed(communicated, phases.height, minus=compute)[mine],
            "kernels": kernels_of[mine],
        }

    columns = joined(trace.each_rank(of_rank))
    row = columns["row"]
    launched_nothing = columns["gpu_end_ns"] == _NEVER
    table = pl.DataFrame(
        {
            **columns,
            "gpu_start_ns": or_null(columns["gpu_start_ns"], launched_nothing),
            "gpu_end_ns": or_null(columns["gpu_end_ns"], launched_nothing),
            "exposed_communication_ns": or_null(columns["exposed_communication_ns"], columns["unsure"]),
            "step": attribution.steps["name"][step[row]],
            "step_index": step[row],
            "phase": phases["phase"][row],
            "host_start_ns": phases["start_ns"][row],
            "host_end_ns": phases["end_ns"][row],
        }
    )
    return PHASE.check(table.sort("rank", "step_index", "host_start_ns", "row"))
