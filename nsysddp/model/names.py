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


def counted(number: int, what: str) -> str:
    """``1 rank``, ``2 ranks``, ``1,000 ranks``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 and 3``, ``ranks 0 to 3 and 5``; of many pieces the first few and how many ranks more."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    pieces = [piece for run in runs for piece in _pieces(run)]
    if len(pieces) <= _MOST_PIECES:
        shown = [text for text, _ in pieces]
    else:
        shown = [text for text, _ in pieces[: _MOST_PIECES - 1]]
        shown.append(f"{sum(count for _, count in pieces[_MOST_PIECES - 1 :])} more")
    return f"ranks {' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}"


def _pieces(run: list[int]) -> list[tuple[str, int]]:
    """Neighbouring ranks as text, each with how many ranks it stands for."""
    if len(run) < _RUN:
        return [(str(rank), 1) for rank in run]
    return [(f"{run[0]} to {run[-1]}", len(run))]


_MOST_PIECES = 6
_RUN = 3
"""Neighbours from which on they are written as one range."""
