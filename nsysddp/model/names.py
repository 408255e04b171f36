"""Names as text: safe to show (names in a report are data, and data can hold anything), in order, and listed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

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
    pieces = [piece for run in _runs(ranks) for piece in _pieces(run)]
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


def members_text(ranks: Sequence[int]) -> str:
    """All ranks of a group without the word: ``0 to 3 and 5``; of many at equal distances what they are.

    ``0, 8, ..., 504 (64 ranks, every 8th)``, ``0 to 3, 8 to 11, ..., 24 to 27 (16 ranks)``; nothing is left out.
    """
    runs = _runs(ranks)
    pieces = [text for run in runs for text, _ in _pieces(run)]
    if len(pieces) <= _MOST_PIECES:
        return ranks_text(ranks).partition(" ")[2]
    if not _is_regular(runs):
        return f"{', '.join(pieces)} ({len(ranks):,} ranks)"
    step = "" if len(runs[0]) > 1 else f", every {_ordinal(runs[1][0] - runs[0][0])}"
    first, second, last = (_run_text(run) for run in (runs[0], runs[1], runs[-1]))
    return f"{first}, {second}, ..., {last} ({len(ranks):,} ranks{step})"


def members_brief(ranks: Sequence[int]) -> str:
    """Who is in a group in a cell of a table: ``7 and 23``, ``0 to 7``, ``0 to 504 by 8``, ``0, 3 ... 97 (12)``."""
    runs = _runs(ranks)
    if len(ranks) < _RUN or len(runs) == 1:
        return " and ".join(map(str, ranks)) if len(ranks) < _RUN else _run_text(runs[0])
    if _is_regular(runs) and len(runs[0]) == 1 and len(runs) >= _RUN:
        return f"{ranks[0]} to {ranks[-1]} by {ranks[1] - ranks[0]}"
    return f"{_run_text(runs[0])} ... {ranks[-1]} ({len(ranks):,})"


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    """Neighbouring ranks together."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return runs


def _is_regular(runs: Sequence[Sequence[int]]) -> bool:
    """Do several runs of one length follow each other at one distance?"""
    firsts = [run[0] for run in runs]
    apart = {after - before for before, after in pairwise(firsts)}
    return len(apart) == 1 and len({len(run) for run in runs}) == 1


def _run_text(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}"


def _ordinal(number: int) -> str:
    """``2nd``, ``11th``, ``23rd``."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


_MOST_PIECES = 6
_RUN = 3
"""Neighbours from which on they are written as one range."""
