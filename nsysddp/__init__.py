"""nsysddp: how much communication is really hidden, from Nsight Systems traces.

The public names are resolved on first use, so that ``import nsysddp`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "load": "nsysddp.join.load",
    "analyze": "nsysddp.questions.asking",
    "ask": "nsysddp.questions.asking",
    "Trace": "nsysddp.model.trace",
    "Result": "nsysddp.model.result",
    "NsysddpError": "nsysddp.model.errors",
}

__all__ = ["NsysddpError", "Result", "Trace", "__version__", "analyze", "ask", "load"]

if TYPE_CHECKING:
    from nsysddp.join.load import load
    from nsysddp.model.errors import NsysddpError
    from nsysddp.model.result import Result
    from nsysddp.model.trace import Trace
    from nsysddp.questions.asking import analyze, ask


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'nsysddp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
