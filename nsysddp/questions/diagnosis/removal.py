"""How much shorter is the step without any communication?

Where transfers are on the critical path, something else often lies just below it (a late rank, the host): without the
transfers that is the path, and the step hardly shorter. What all causes of transfers save together is what the replay
without communication saves (``questions.whatif``), whatever they cost on the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysddp.questions.steps import Selection

if TYPE_CHECKING:
    from nsysddp.model.result import Result
    from nsysddp.questions import Context


def saved_without_communication(context: Context, paths: Result) -> float | None:
    """By what share of the mean steady step the replayed one is shorter; None where no replay tells that.

    Args:
        context: of the run; the replay is always of the whole capture.
        paths: the critical paths of the steps asked for.
    """
    if context.trace.calls is None or context.trace.calls.is_empty():
        return None
    # The replay is much code, and needed only where transfers are on the path.
    from nsysddp.questions.whatif import GOOD_REPLAY, Ask, Model, without_communication

    model = Model.of(context, Ask(), paths if context.selection == Selection() else None)
    row = without_communication(model)
    if model.replay_error_ratio > GOOD_REPLAY or row.get("change_ratio") is None:
        return None
    return max(0.0, -float(row["change_ratio"]))  # type: ignore[arg-type]
