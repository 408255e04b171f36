"""What can go wrong, as one tree: every error says what happened, in which file, and what to do.

The command line turns these into one line on stderr and an exit code; no other room knows exit codes.
"""

from __future__ import annotations

import os
from pathlib import Path

from nsysddp.model.names import visible


class NsysddpError(Exception):
    """Base of everything this package raises on purpose.

    Args:
        what: what is wrong, in one clause without a final period.
        file: the input it is wrong with; only the base name is shown, because folders can be private.
        do: what the reader can do about it, in one clause.
    """

    def __init__(
        self, what: str, *, file: str | os.PathLike[str] | None = None, do: str | None = None
    ) -> None:
        self.what = what
        self.file = Path(file).name if file is not None else None
        self.do = do
        super().__init__(what)

    def __str__(self) -> str:
        text = f"{self.file}: {self.what}" if self.file else self.what
        if self.do:
            text = f"{text}; {self.do}"
        return visible(" ".join(text.split()))


class UsageError(NsysddpError):
    """The request contradicts itself or the input (a bad pattern, a window that holds nothing)."""


class CannotTell(NsysddpError):
    """The request is sound, and this trace cannot answer it: something was not captured or not exported."""


class CaptureError(NsysddpError):
    """A capture could not be made, or what it made is not usable."""


class ReportError(NsysddpError):
    """A report cannot be read."""


class NotAReport(ReportError):
    """The file is not an Nsight Systems export (foreign, truncated, encrypted, empty, another format)."""


class MissingTable(ReportError):
    """The export lacks a table or column that the question needs."""


class UnsupportedSchema(ReportError):
    """The export's schema differs in a way that cannot be read safely."""


class NoGpuEvents(ReportError):
    """The export is sound but holds no GPU work in the part asked for."""


class RankConflict(ReportError):
    """Two inputs claim to be the same rank."""


class QueryError(NsysddpError):
    """A SQL file is malformed, unknown, or failed on this report."""


class AnalysisError(NsysddpError):
    """An identity that must hold does not: a defect here, or a report that contradicts itself."""


class EvidenceError(NsysddpError):
    """A claim, bundle or stored result is malformed or does not verify."""
