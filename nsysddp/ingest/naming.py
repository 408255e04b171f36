"""How does a program name its ranges, where none is named like a step or a phase that we know?"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median_low

from nsysddp.ingest import sql
from nsysddp.ingest.report import NVTX, Report
from nsysddp.model.names import visible
from nsysddp.model.units import ms

_LEAST, _MOST = 3, 3
"""A family of ranges that repeats less often is none; more families than this help nobody."""

_PRIVATE = re.compile(r"[/\\@]|nsysddp:|^nccl")
"""Names that could hold a path or an address are not shown; those of NCCL and ours are no steps."""

_LONGEST = 60


@dataclass(frozen=True)
class Family:
    """Ranges whose names differ in numbers only.

    Attributes:
        pattern: a regular expression that matches them, to be given to --step-pattern or --phase-pattern.
        count: how many there are among the first 200,000 ranges.
        median_ns: their median length.
    """

    pattern: str
    count: int
    median_ns: int

    def __str__(self) -> str:
        """As it is shown: what to paste, how often, how long."""
        return f"'{self.pattern}' ({self.count} ranges of {ms(self.median_ns):.3g} ms)"


def families(report: Report) -> list[Family]:
    """The names that repeat, those that cover the most time first."""
    if NVTX not in report.tables:
        return []
    lengths: dict[str, list[int]] = defaultdict(list)
    for row in sql.rows(report, "nvtx_sample"):
        name, length = row["name"], row["length_ns"]
        if isinstance(name, str) and isinstance(length, int) and length >= 0:
            lengths[_pattern(visible(name))].append(length)
    found = [
        Family(pattern, len(some), median_low(some))
        for pattern, some in lengths.items()
        if len(some) >= _LEAST and len(pattern) <= _LONGEST and not _PRIVATE.search(pattern.replace("\\", ""))
    ]
    return sorted(found, key=lambda pattern: (-pattern.count * pattern.median_ns, pattern.pattern))[:_MOST]


def _pattern(name: str) -> str:
    """The name as a regular expression, any number where it has one."""
    return r"\d+".join(_escaped(part) for part in re.split(r"\d+", name))


def _escaped(text: str) -> str:
    # `re.escape` also escapes spaces and hyphens, which nobody can read.
    return re.sub(r"([.^$*+?{}\[\]\\|()#])", r"\\\1", text)
