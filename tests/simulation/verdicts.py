"""Is the first sentence of ``analyze`` true of a simulated job?

* **Late rank.** Due where what is planted on one rank is due (``judge``): the code is ``late_rank`` and the
  rank is that one. Said of any other rank it is false, unless the job without jitter is shorter by 1 % of the
  step.
* **What fills the step.** Without what the sentence names the job is shorter by at least half of the time that
  it says; of computation: without all else the job still lasts at least half of it. (That the sentence names
  the largest part is no claim about the critical path.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import truth
from .jobs import Job
from .trials import ON_ONE_RANK, Trial

NO_SAVING, HALF = 0.01, 0.5

_OF_THE_HOST = ("pause_all", "pause_one", "slow_host", "late_launch")


def _without_host_time(job: Job) -> Job:
    other = job.without_cause() if job.planted and job.planted.cause in _OF_THE_HOST else job
    return replace(other, launch_ns=0, gap_ns=0, item_each_step=False)


#: code -> the job without that
WITHOUT: dict[str, Callable[[Job], Job]] = {
    "bound_by_communication": lambda job: replace(job, communication=0.0),
    "bound_by_host": _without_host_time,
    "bound_by_idle": _without_host_time,
    "bound_by_copies": Job.without_cause,
}


def judge_verdict(trial: Trial, step_ns: float, said: dict[str, Any]) -> dict[str, Any]:
    """What was ``said`` (code, rank, value), whether a late rank was due and found, and whether it holds."""
    planted = trial.job.planted
    on_one = planted is not None and planted.cause in ON_ONE_RANK
    late = said["code"] == "late_rank"
    right_rank = on_one and planted is not None and said["rank"] == planted.rank
    due = on_one and trial.is_due
    return {
        **{name: said[name] for name in ("code", "rank")},
        "late_due": due,
        "late_right": late and right_rank if due else None,
        "holds": (right_rank or _jitter_makes_late(trial.job, step_ns))
        if late
        else _bounds(trial.job, step_ns, said),
    }


def _jitter_makes_late(job: Job, step_ns: float) -> bool:
    return step_ns - truth.mean(truth.lengths(replace(job, jitter=0.0))) >= NO_SAVING * step_ns


def _bounds(job: Job, step_ns: float, said: dict[str, Any]) -> bool | None:
    if said["code"] == "bound_by_compute":
        alone = replace(_without_host_time(job), communication=0.0)
        return truth.mean(truth.lengths(alone)) >= HALF * said["value"]
    if said["code"] not in WITHOUT:
        return None
    return step_ns - truth.mean(truth.lengths(WITHOUT[said["code"]](job))) >= HALF * said["value"]
