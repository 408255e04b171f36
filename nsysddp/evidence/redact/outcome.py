"""What does the person who shares a report decide, and what did a redaction keep and drop?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Policy:
    """What the person who shares a report decides.

    Attributes:
        keep_ranges: patterns of further NVTX range names to keep (full match, ignoring case); paths in them still go.
        hide: patterns of names to replace by a token although they would be kept, kernels too (full match, ignoring
            case). A hidden kernel is classified by its token, hence as compute.
        salt: mixed into the tokens, so that nobody can confirm a guessed name; give the reports of one job the same.
        keep_identifiers: leave alone what looks like a host, an address or a mail in the names that are kept.
        minimal: only the tables that the analyses read.
        window_ns: only what overlaps ``[start_ns, end_ns)`` of this report's time, with the launches of it. Step
            windows depend on the step before, so take in one more step than is to be recomputed.
    """

    keep_ranges: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    keep_identifiers: bool = False
    salt: str = ""
    minimal: bool = False
    window_ns: tuple[int, int] | None = None


class KeptTable(NamedTuple):
    """One table of the copy: its rows and columns, and how many of each the original has more."""

    name: str
    rows: int
    rows_dropped: int
    columns: int
    columns_dropped: int


class DroppedTables(NamedTuple):
    """Tables that are not in the copy, by what they are; ``rows`` is their sum."""

    label: str
    why: str
    tables: int
    rows: int


@dataclass(frozen=True)
class Redaction:
    """What one redaction kept and dropped. Holds no text of the report, so it can be shown with the copy.

    Attributes:
        output: base name of the copy.
        kept: tables of the copy.
        dropped: tables left out.
        names_kept: cells per kind of name that stayed as they were.
        names_replaced: cells per kind that became a token or lost a part.
        identifiers_hidden: names that lost what looked like a ``host``, ``address``, ``mail`` or ``url``.
        strings_dropped: rows of ``StringIds`` that no kept row refers to.
        cells_cleared: cells whose value had not the form that its column may have; they are null in the copy.
        payloads_kept: NVTX payloads of known layout, copied field by field.
        payloads_cleared: other NVTX payloads; they are null in the copy.
    """

    output: str
    kept: tuple[KeptTable, ...]
    dropped: tuple[DroppedTables, ...]
    names_kept: dict[str, int]
    names_replaced: dict[str, int]
    identifiers_hidden: dict[str, int]
    strings_dropped: int
    cells_cleared: int
    payloads_kept: int
    payloads_cleared: int

    def as_json(self) -> dict[str, Any]:
        """The outcome as plain JSON types."""
        return {
            "schema": "nsysddp.redaction/1",
            **asdict(self),
            "kept": [table._asdict() for table in self.kept],
            "dropped": [tables._asdict() for tables in self.dropped],
        }
