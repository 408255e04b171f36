"""How long were the steps by the workload's own clock? What its records say, outside the captured window."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nsysddp.model.errors import AnalysisError

Steps = npt.NDArray[np.int64]


def job_steps(folder: Path) -> Steps:
    """How long was each measured step of the job, by its slowest rank? From the workload's own records.

    CUDA events where there are any, else the host's clock; never a mix.

    Raises:
        AnalysisError: there are no records, or ranks with different steps.
    """
    by_rank: dict[int, dict[str, dict[int, int]]] = {}
    for path in sorted(folder.glob("records_rank*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if (row["record"], row.get("name"), row["stage"]) == ("time", "step", "measured"):
                clocks = by_rank.setdefault(row["rank"], {})
                clocks.setdefault(row["clock"], {})[row["iteration"]] = row["time_ns"]
    clock = "cuda_event" if all("cuda_event" in clocks for clocks in by_rank.values()) else "host"
    steps = [clocks.get(clock, {}) for clocks in by_rank.values()]
    if not steps or not steps[0] or any(rank.keys() != steps[0].keys() for rank in steps):
        raise AnalysisError(f"{folder.name} holds no records of the same measured steps of all ranks")
    return np.array([max(rank[at] for rank in steps) for at in sorted(steps[0])], dtype=np.int64)
