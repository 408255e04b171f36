"""Where do two members of a bundle, or two JSON values, differ?"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_REAL = re.compile(rb"-?\d+\.\d+(?:e[-+]?\d+)?")


def alike_but_last_digits(one: bytes, other: bytes) -> bool:
    """Machines sum in different orders: are the texts the same but for the ends of long numbers?"""
    if _REAL.split(one) != _REAL.split(other):
        return False
    pairs = zip(_REAL.findall(one), _REAL.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs)


def changed(name: str, said: bytes, computed: bytes) -> str:
    """Which line of a member differs first; of what is no text, only that it does."""
    if name.endswith((".png", ".parquet", ".sqlite")):
        return f"{name}: differs from what the reports give"
    lines = [part.decode("utf-8", "replace").splitlines() for part in (said, computed)]
    for number, (one, other) in enumerate(zip(*lines, strict=False), 1):
        if one != other:
            return f"{name}, line {number}: {_short(one)} in the bundle, {_short(other)} from the reports"
    return f"{name}: {len(lines[0])} lines in the bundle, {len(lines[1])} from the reports"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return repr(text if len(text) <= 60 else text[:57] + "...")


@dataclass(frozen=True)
class Place:
    """One place of two JSON values.

    Attributes:
        text: how they differ there.
        agrees: they do not.
        words: both are text.
        last_digits: both are numbers that differ in their last digits only, as sums in another order do.
    """

    text: str
    agrees: bool = False
    words: bool = False
    last_digits: bool = False


def differences(expected: Any, said: Any, where: str) -> Iterator[Place]:
    """Every leaf of two JSON values, and every place at which one of them has none."""
    if isinstance(expected, dict) and isinstance(said, dict):
        for key in dict.fromkeys([*expected, *said]):
            place = f"{where}.{key}" if where else str(key)
            if key not in expected or key not in said:
                yield Place(
                    f"{place}: {'is not in the bundle' if key not in said else 'does not belong there'}"
                )
            else:
                yield from differences(expected[key], said[key], place)
    elif isinstance(expected, list) and isinstance(said, list):
        if len(expected) != len(said):
            yield Place(f"{where}: {len(said)} rows in the bundle, {len(expected)} from the reports")
        for number, (one, other) in enumerate(zip(expected, said, strict=False)):
            yield from differences(one, other, f"{where}[{number}]")
    else:
        if type(expected) is type(said) and expected == said:
            yield Place("", agrees=True)
            return
        text = f"{where}: {_short(said)} in the bundle, {_short(expected)} computed"
        if isinstance(expected, float) and isinstance(said, float):
            yield Place(text, last_digits=math.isclose(expected, said, rel_tol=1e-9, abs_tol=1e-9))
        else:
            yield Place(text, words=isinstance(expected, str) and isinstance(said, str))
