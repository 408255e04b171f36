"""Scenarios that keep the recorded nodes: no communication, faster, no straggler, no contention.

Kernels beside communication that is shorter run alone earlier: their durations are those of ``slowing``. What the
capture leaves open makes the band: the ends of what contention can be; what transfers of a rank that share a link lose,
where that is not measured (``sharing``); latency that no edge explains and transfers longer than usual at their place
(another process on the GPU), which a shorter step may or may not have.

Of a collective whose counterpart is not known nobody knows how much of it was waiting, from nothing to all. Where that
decides about more than ``_MOST_UNMATCHED`` of the step, there is no prediction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsysddp.model.units import ms
from nsysddp.questions.whatif.even import with_usual_transfers, without_straggler
from nsysddp.questions.whatif.model import HOST_KINDS, Model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.dependencies.replay import Program
    from nsysddp.questions.whatif.request import Ask

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Shares = Mapping[int, float]

_NO_CHANGE = 0.005
"""A step that changes by less than this does not hang on what was taken away, and the row says on what."""

_MOST_UNMATCHED = 0.05
"""Of the step: a prediction that can be further off by what unmatched collectives waited for is none."""

_UNMATCHED = (
    "how long collectives without a known counterpart waited decides about {:.1%} of the step: capture every rank, "
    "export with --include-blobs=true"
)

_UNKNOWN = (
    "how much communication slows kernels beside it is unknown: they keep that time, the band reaches further"
)


def standard(model: Model, ask: Ask) -> list[dict[str, object]]:
    """The rows of the scenarios that need no argument but factors."""
    communication = communication_of(model)
    rows = [without_communication(model)]
    if not communication.any():
        return rows
    rows += [_faster(model, communication, factor) for factor in ask.faster]
    rows += [_even(model, communication), _without_contention(model)]
    return rows


def communication_of(model: Model) -> Flags:
    """Which nodes of the program are communication?"""
    found = np.zeros(model.program.duration.size, dtype=bool)
    found[: model.program.events] = (model.context.trace.events["class"] == "communication").to_numpy()
    return found


def _unmatched(program: Program, communication: Flags) -> Flags:
    """Communication of which no counterpart is known: its recorded duration may be waiting."""
    return communication & (program.structure.arrival < 0)


def _open(model: Model, scenario: str, ends: tuple[float, float]) -> dict[str, object] | None:
    """A row without a prediction, if what unmatched collectives waited for leaves too much open between these steps."""
    apart = abs(ends[0] - ends[1]) / model.unchanged_ns
    return nothing(scenario, _UNMATCHED.format(apart)) if apart > 2 * _MOST_UNMATCHED else None


def nothing(scenario: str, reason: str) -> dict[str, object]:
    """A row without a prediction."""
    return {"scenario": scenario, "reason": reason}


def without_communication(model: Model) -> dict[str, object]:
    """The row of the step without any communication."""
    program, slowing, communication = model.program, model.slowing, communication_of(model)
    if not communication.any():
        return nothing("no_communication", "the trace holds no communication")

    apart = program.apart(communication)

    sent = np.flatnonzero(communication)

    def mean(share: Shares, excess: Floats = program.weights.excess, left: Floats | float = 0.0) -> float:
        duration = model.kernels.freed(program.duration, share)
        duration[sent] = left
        return model.mean(apart.having(duration=duration, excess=excess))

    means = [mean(share) for share in slowing.different]
    others = [mean(slowing.mid, np.zeros_like(program.weights.excess))]
    odd = program.duration[sent] - with_usual_transfers(model, program.duration)[sent]
    if odd.any():  # another process on the GPU would have stretched something else
        others.append(mean(slowing.mid, left=odd))
    return _row(model, "no_communication", [*means, *others])


def _faster(model: Model, communication: Flags, factor: float) -> dict[str, object]:
    program, slowing, transfers = model.program, model.slowing, model.transfers
    duration = program.duration
    name = f"faster_{factor:g}"

    def mean(
        sent: Flags,
        share: Shares,
        link: Shares,
        odd: Floats | float = 0.0,
        excess: Floats = program.weights.excess,
    ) -> float:
        """Mean step where these are sent faster, all but what is ``odd`` of them."""
        sharing = transfers.with_share(link) if any(link.values()) else None
        alone = duration.copy() if sharing is None else sharing.alone(duration)
        alone[sent] = (alone[sent] - odd) / factor + odd
        if any(share.values()):
            alone = model.kernels.freed(alone, share)
        changed = program.having(duration=alone, excess=excess)
        return model.mean_of(model.kernels.settled(changed, share, sharing))

    middle = mean(communication, slowing.mid, transfers.share)
    others = [middle]
    unmatched = _unmatched(program, communication)
    if unmatched.any():
        others.append(mean(communication & ~unmatched, slowing.mid, transfers.share))
        if silent := _open(model, name, (others[0], others[1])):
            return silent
        middle = (others[0] + others[1]) / 2
    others += [mean(communication, share, transfers.share) for share in slowing.different[1:]]
    nothing_odd = np.zeros_like(program.weights.excess)
    others.append(mean(communication, slowing.mid, transfers.share, excess=nothing_odd))
    may_meet = factor < 1 and not transfers.is_known and transfers.are_several
    if transfers.matters or may_meet:
        others.append(mean(communication, slowing.mid, transfers.other_share))
    if may_meet:  # slower transfers may meet that never did, on one link or on two
        middle = (middle + others[-1]) / 2
    odd = duration[communication] - with_usual_transfers(model, duration)[communication]
    if odd.any():
        others.append(mean(communication, slowing.mid, transfers.share, odd=odd))
    return _row(model, name, [middle, *others], shorter=factor >= 1)


def _row(model: Model, scenario: str, means: Sequence[float], *, shorter: bool = True) -> dict[str, object]:
    """A row of a scenario that only takes away, or (not ``shorter``) only adds.

    No step can get longer, or shorter, by that. The mean of the used steps can, where the step before them changes by
    more.
    """
    middle = (min if shorter else max)(means[0], model.unchanged_ns)
    doubt = None if model.slowing.is_known else _UNKNOWN
    return model.row(scenario, middle, *means, reason=_reason(model, middle, doubt))


def _even(model: Model, communication: Flags) -> dict[str, object]:
    """Without a late rank collectives wait less, which may or may not cost the kernels beside them less."""
    nobody = dict.fromkeys(model.slowing.mid, 0.0)
    means = _even_means(model, communication, nobody)
    if means is None:
        return nothing("no_straggler", "the ranks did not launch the same work, or there is one only")
    if any(model.slowing.mid.values()):
        slowed = _even_means(model, communication, model.slowing.mid)
        assert slowed is not None
        means = [(means[0] + slowed[0]) / 2, *means, *slowed]
    if not _unmatched(model.program, communication).any():
        return model.row("no_straggler", *means)
    ends = min(means), max(means)
    return _open(model, "no_straggler", ends) or model.row("no_straggler", sum(ends) / 2, *ends)


def _even_means(model: Model, communication: Flags, share: Mapping[int, float]) -> list[float] | None:
    """Mean step without a late rank: with usual transfers; and as they were, and where unmatched ones take no time."""
    even = without_straggler(model, model.kernels.freed(model.program.duration, share))
    if even is None:
        return None
    usual = with_usual_transfers(model, even.duration)
    unmatched = _unmatched(model.program, communication)
    durations = [usual]
    if (usual < even.duration).any():
        durations.append(even.duration)
    if unmatched.any():
        durations.append(np.where(unmatched, 0.0, usual))
    programs = (even.having(duration=duration) for duration in durations)
    return [model.mean_of(model.kernels.settled(program, share)) for program in programs]


def _without_contention(model: Model) -> dict[str, object]:
    slowing = model.slowing
    if not slowing.is_known:
        return nothing("no_contention", "contention could not be told from this capture")

    def mean(share: Mapping[int, float]) -> float:
        freed = model.kernels.freed(model.program.duration, share)
        return model.mean(model.program.having(duration=freed))

    return model.row("no_contention", *(mean(share) for share in slowing.different))


def _reason(model: Model, mean_ns: float, doubt: str | None) -> str | None:
    """Why the step does not change, if it does not; and what limits the prediction."""
    return "; ".join(filter(None, (why_unchanged(model, mean_ns / model.unchanged_ns), doubt))) or None


def why_unchanged(model: Model, ratio: float) -> str | None:
    """What bounds a step that is ``ratio`` of the unchanged one; None if it changes."""
    if abs(ratio - 1) >= _NO_CHANGE:
        return None
    path = model.steps.mean(model.recorded)
    host, sent = model.on_path(HOST_KINDS), model.on_path(("transfer", "unmatched_communication"))
    worked = model.on_path(("compute", "spin"))
    what = (
        f"the host bounds the step: it is {ms(host):.3f} of {ms(path):.3f} ms of the critical path"
        if host >= worked
        else f"computation bounds the step: it is {ms(worked):.3f} of {ms(path):.3f} ms of the critical path"
    )
    return f"{what}, communication {ms(sent):.3f} ms"
