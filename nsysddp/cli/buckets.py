"""``nsysddp buckets``: when each DDP bucket or FSDP unit was ready, launched, held, sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysddp.cli.question import question_command

if TYPE_CHECKING:
    from nsysddp.model.result import Result
    from nsysddp.questions import Context


def _run(context: Context) -> Result:
    from nsysddp.questions.buckets import buckets

    return buckets(context)


command = question_command(
    "buckets",
    "When was each bucket ready, launched, held, sent?",
    "DDP buckets by annotation, else inferred from the all-reduces of backward; FSDP units with prefetch distance.",
    ("bucket",),
    _run,
)
