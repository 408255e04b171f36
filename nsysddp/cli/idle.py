"""``nsysddp idle``: a cause for every idle instant, and the depth of the launch queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysddp.cli.question import question_command

if TYPE_CHECKING:
    from nsysddp.model.result import Result
    from nsysddp.questions import Context


def _run(context: Context) -> Result:
    from nsysddp.questions.idle import idle

    return idle(context)


command = question_command(
    "idle",
    "Why was each GPU idle, instant by instant?",
    "Causes tile the idle time; what follows from an earlier cause is counted with it.",
    ("idle_step", "idle", "launch_queue_step", "launch_queue"),
    _run,
)
