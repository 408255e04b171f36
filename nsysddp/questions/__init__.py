"""Questions about a run: each is one module that defines ``QUESTION`` (see ``question``).

The names here are resolved on first use, so that listing the questions imports none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "ANALYSES": "analysis",
    "Context": "context",
    "Selection": "steps",
    "analyze": "asking",
    "answer": "analysis",
    "ask": "asking",
    "context_of": "context",
}

__all__ = ["ANALYSES", "Context", "Selection", "analyze", "answer", "ask", "context_of"]

if TYPE_CHECKING:
    from nsysddp.questions.analysis import ANALYSES, answer
    from nsysddp.questions.asking import analyze, ask
    from nsysddp.questions.context import Context, context_of
    from nsysddp.questions.steps import Selection


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"nsysddp.questions.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
