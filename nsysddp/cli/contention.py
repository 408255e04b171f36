"""``nsysddp contention``: what overlap costs the kernels under it, and what is left of the gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysddp.cli.question import question_command

if TYPE_CHECKING:
    from nsysddp.model.result import Result
    from nsysddp.questions import Context


def _run(context: Context) -> Result:
    from nsysddp.questions.contention import contention

    return contention(context)


command = question_command(
    "contention",
    "What does overlap cost, and is it still a gain?",
    "The same kernel beside communication and alone: ratio of medians with intervals, cost and net gain of each step.",
    ("contention_step", "contention", "contention_metric"),
    _run,
)
