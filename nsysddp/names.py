"""Make text from a trace safe to show: names in a report are data, and data can hold anything."""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with control, direction-changing and lone surrogate characters spelled out, as in ``\x1b``.

    Terminals obey escape sequences, so a kernel called ``\x1b[2J`` must never reach one as such.
    """
    return _UNSAFE.sub(
        lambda found: found[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text
    )
