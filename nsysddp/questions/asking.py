"""The questions as Python calls: ``nsysddp.ask`` for any of them, ``nsysddp.analyze`` for the main one."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nsysddp.questions.analysis import answer
from nsysddp.questions.context import context_of
from nsysddp.questions.question import question
from nsysddp.questions.steps import Selection

if TYPE_CHECKING:
    from nsysddp.model.result import Result
    from nsysddp.model.trace import Trace


def analyze(trace: Trace, selection: Selection | None = None) -> Result:
    """How much communication of this run is really hidden, and what is the rest?

    Args:
        trace: as loaded.
        selection: which windows; every step by default.

    Returns:
        All tables of ``questions.analysis``, findings, assumptions and warnings.
    """
    return answer(context_of(trace, selection))


def ask(trace: Trace, name: str, **options: Any) -> Result:
    """Ask a question about a run.

    Args:
        trace: as of ``load``, with what ``Question.reads`` names (``host_calls=True`` ...) for a full answer.
        name: of the question, such as ``"contention"`` (``nsysddp.questions.asked()`` lists them).
        options: fields of ``Selection`` (``per``, ``from_ns``, ``to_ns``, ``first_step``, ``last_step``,
            ``skip_warmup``) and the question's own.

    Returns:
        Its tables, findings, assumptions and warnings.

    Raises:
        UsageError: there is no such question or option, or the selection leaves nothing.
    """
    wanted = question(name)
    names = {field.name for field in fields(Selection)}
    selection = Selection(**{key: value for key, value in options.items() if key in names})
    return wanted.answer(
        context_of(trace, selection), **{key: value for key, value in options.items() if key not in names}
    )
