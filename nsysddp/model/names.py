"""Names as text: safe to show (names in a report are data, and data can hold anything), in order, and listed."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with control, direction-changing and lone surrogate characters spelled out, as in ``\x1b``.

    Terminals obey escape sequences, so a kernel called ``\x1b[2J`` must never reach one as such.
    """
    return _UNSAFE.sub(
        lambda found: found[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text
    )


def natural(text: str) -> tuple[object, ...]:
    """Sorting key by which ``node2`` comes before ``node10``."""
    parts = re.split("([0-9]+)", text)
    numbers = [(len(digits.lstrip("0")), digits.lstrip("0")) for digits in parts[1::2]]
    return (*(part for pair in zip(parts[::2], [*numbers, ()], strict=True) for part in pair), text)


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 and 3``, ``ranks 0, 3, 4 and 5``; of many the first few and how many more."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in (ranks if len(ranks) <= _MOST_RANKS else ranks[: _MOST_RANKS - 1])]
    last = shown.pop() if len(ranks) <= _MOST_RANKS else f"{len(ranks) - len(shown)} more"
    return f"ranks {', '.join(shown)} and {last}"


_MOST_RANKS = 8
