"""What an analysis hands back: frames, findings with their rows, assumptions and warnings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from nsysddp.model.trace import Trace
    from nsysddp.model.warnings import Warning


@dataclass(frozen=True)
class Finding:
    """One claim in plain words, with the number behind it and the rows that carry it.

    Attributes:
        code: stable name, listed in docs/reference/findings.md.
        message: the claim, one sentence.
        rank: the rank it is about; None if it is about all.
        step: the step it is about; None if it is about all.
        value: the number; None if the finding has none.
        unit: unit of the number (``ns``, ``ratio``, ``count``).
        rows: the evidence: table name and the key columns of its rows.
        severity: ranking, larger first; not part of the document.
    """

    code: str
    message: str
    rank: int | None = None
    step: str | None = None
    value: float | None = None
    unit: str | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    severity: float = field(default=0.0, compare=False)

    @classmethod
    def of_warning(cls, warning: Warning, code: str, severity: float = 0.0, **rows: Any) -> Finding:
        """What a warning says, as a finding; ``rows`` as of the class."""
        message = f"{warning.message[0].upper()}{warning.message[1:]}."
        return cls(code, message, value=warning.count, unit="count", severity=severity, **rows)


@dataclass(frozen=True)
class Result:
    """The answer to one or more questions about a trace.

    ``result["overlap"]`` is the polars frame of that name; its columns are documented in ``schema``.

    Attributes:
        trace: the run.
        tables: name to frame.
        findings: claims, the most important first.
        assumptions: what the answer takes for granted.
        warnings: what is missing or inferred.
        request: what was asked and shapes a number; None where no registered question was.
    """

    trace: Trace
    tables: dict[str, pl.DataFrame]
    findings: tuple[Finding, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[Warning, ...] = ()
    request: Mapping[str, Any] | None = None

    def __getitem__(self, name: str) -> pl.DataFrame:
        """The frame called ``name``."""
        return self.tables[name]
