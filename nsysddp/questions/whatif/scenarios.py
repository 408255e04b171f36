"""Scenarios that keep the recorded nodes: no communication, faster, no straggler, no contention.

Kernels beside communication that is shorter run alone earlier: their durations are those of ``slowing``. What the
capture leaves open makes the band: the ends of what contention can be; transfers that ran at one time on one rank,
which may or may not have shared a link; latency that no edge explains (another process on the GPU), which a shorter
step may or may not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsysddp.model.intervals import Intervals
from nsysddp.model.units import ms
from nsysddp.questions.whatif.even import without_straggler
from nsysddp.questions.whatif.model import HOST_KINDS, Model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.dependencies.replay import Program
    from nsysddp.questions.whatif.request import Ask

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_NO_CHANGE = 0.005
"""A step that changes by less than this does not hang on what was taken away, and the row says on what."""

_UNKNOWN = (
    "how much communication slows kernels beside it is unknown: they keep that time, the band reaches further"
)


def standard(model: Model, ask: Ask) -> list[dict[str, object]]:
    """The rows of the scenarios that need no argument but factors."""
    trace = model.context.trace
    communication = np.zeros(model.program.duration.size, dtype=bool)
    communication[: model.program.events] = (trace.events["class"] == "communication").to_numpy()
    if not communication.any():
        return [nothing("no_communication", "the trace holds no communication")]
    rows = [_without_communication(model, communication)]
    rows += [_faster(model, communication, factor) for factor in ask.faster]
    even = without_straggler(model)
    rows.append(
        nothing("no_straggler", "the ranks did not launch the same work, or there is one only")
        if even is None
        else model.row("no_straggler", model.mean(even))
    )
    rows.append(_without_contention(model))
    return rows


def nothing(scenario: str, reason: str) -> dict[str, object]:
    """A row without a prediction."""
    return {"scenario": scenario, "reason": reason}


def _without_communication(model: Model, communication: Flags) -> dict[str, object]:
    program, slowing = model.program, model.slowing

    def mean(share: Mapping[int, float], unexplained: float = 1.0) -> float:
        freed = model.kernels.freed(program.duration, share)
        gone = program.having(
            duration=np.where(communication, 0.0, freed), excess=unexplained * program.weights.excess
        )
        return model.mean(gone.apart(communication))

    middle, low, high = mean(slowing.mid), mean(slowing.low), mean(slowing.high)
    return _less(model, "no_communication", [middle, low, high, mean(slowing.mid, 0.0)])


def _faster(model: Model, communication: Flags, factor: float) -> dict[str, object]:
    program, slowing = model.program, model.slowing
    duration = program.duration
    quick = program.having(duration=np.where(communication, duration / factor, duration))
    apart = program.having(
        duration=np.where(communication, (duration - _shared(model, communication)) / factor, duration)
    )

    explained = quick.having(excess=np.zeros_like(duration))

    def mean(changed: Program, share: Mapping[int, float]) -> float:
        return model.mean_of(model.kernels.settled(changed, duration, share))

    middle = mean(quick, slowing.mid)
    others = [
        mean(quick, slowing.low),
        mean(quick, slowing.high),
        mean(apart, slowing.mid),
        mean(explained, slowing.mid),
    ]
    return _less(model, f"faster_{factor:g}", [middle, *others])


def _less(model: Model, scenario: str, means: Sequence[float]) -> dict[str, object]:
    """A row of a scenario that only takes away.

    No step can get longer by that. The mean of the used steps can, where the step before them gets shorter by more.
    """
    middle = min(means[0], model.unchanged_ns)
    doubt = None if model.slowing.is_known else _UNKNOWN
    return model.row(scenario, middle, *means, reason=_reason(model, middle, doubt))


def _without_contention(model: Model) -> dict[str, object]:
    slowing = model.slowing
    if not slowing.is_known:
        return nothing("no_contention", "contention could not be told from this capture")

    def mean(share: Mapping[int, float]) -> float:
        freed = model.kernels.freed(model.program.duration, share)
        return model.mean(model.program.having(duration=freed))

    return model.row("no_contention", mean(slowing.mid), mean(slowing.low), mean(slowing.high))


def _shared(model: Model, communication: Flags) -> Floats:
    """Of each transfer half the time in which another one of its rank ran too: what a shared link may have cost it."""
    events = model.context.trace.events
    start = model.graph.ready[: events.height]
    end = events["end_ns"].to_numpy()
    shared = np.zeros(communication.size)
    for rank, rows in model.kernels.communication.items():
        assert rank is not None
        time = np.concatenate([start[rows], end[rows]])
        order = np.argsort(time, kind="stable")
        depth = np.cumsum(np.repeat([1, -1], rows.size)[order])
        several = np.flatnonzero(depth[:-1] >= 2) if depth.size else depth
        both = Intervals.union_of(time[order][several], time[order][several + 1])
        if len(both):
            shared[rows] = both.length_within(start[rows], end[rows]) / 2
    return shared


def _reason(model: Model, mean_ns: float, doubt: str | None) -> str | None:
    """Why the step does not change, if it does not; and what limits the prediction."""
    if abs(mean_ns / model.unchanged_ns - 1) >= _NO_CHANGE:
        return doubt
    path = model.steps.mean(model.recorded)
    host, sent = model.on_path(HOST_KINDS), model.on_path(("transfer", "unmatched_communication"))
    worked = model.on_path(("compute", "spin"))
    what = (
        f"the host bounds the step: it is {ms(host):.3f} of {ms(path):.3f} ms of the critical path"
        if host >= worked
        else f"computation bounds the step: it is {ms(worked):.3f} of {ms(path):.3f} ms of the critical path"
    )
    return f"{what}, communication {ms(sent):.3f} ms" + (f"; {doubt}" if doubt else "")
