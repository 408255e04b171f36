"""nsysddp: how much communication is really hidden, from Nsight Systems traces.

The public names are resolved on first use, so that ``import nsysddp`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "load": "nsysddp.ingest.load",
    "analyze": "nsysddp.analyses",
    "Trace": "nsysddp.trace",
    "Result": "nsysddp.result",
    "NsysddpError": "nsysddp.errors",
}

__all__ = ["NsysddpError", "Result", "Trace", "__version__", "analyze", "load"]

if TYPE_CHECKING:
    from nsysddp.analyses import analyze
    from nsysddp.errors import NsysddpError
    from nsysddp.ingest.load import load
    from nsysddp.result import Result
    from nsysddp.trace import Trace


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'nsysddp' has no attribute {name!r}")
