"""What can be asked of a what-if, and how it is written on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysddp.model.errors import UsageError
from nsysddp.model.inputs import read_text
from nsysddp.model.units import ns_from_ms


@dataclass(frozen=True)
class Ask:
    """What to predict.

    Attributes:
        caps_mib: bucket caps.
        faster: factors by which communication is faster.
        orders: ``ready`` or ``reverse``: the order in which buckets are filled, with the captured bucket sizes' cap.
        parameter_bytes: bytes of the parameters in ready order; None spreads a bucket's bytes evenly.
        measured_step_ns: mean step without the profiler, for which predictions are made.
        standard: also the scenarios that need no argument.
    """

    caps_mib: tuple[float, ...] = ()
    faster: tuple[float, ...] = (2.0,)
    orders: tuple[str, ...] = ()
    parameter_bytes: tuple[int, ...] | None = None
    measured_step_ns: int | None = None
    standard: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Ask:
        """From the values of the question's options."""
        measured = options["measured_step"]
        return cls(
            caps_mib=tuple(options["bucket_cap"]),
            faster=tuple(options["faster"]),
            orders=tuple(options["bucket_order"]),
            parameter_bytes=options["parameters"],
            measured_step_ns=None if measured is None else ns_from_ms(measured),
        )


def numbers(text: str) -> tuple[float, ...]:
    """Different numbers above 0 from `1,4,16`."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} is no list of numbers", do="write 1,4,16") from None
    if not all(0 < value < 1e6 for value in values) or len(set(values)) < len(values):
        raise UsageError(f"{text!r}: each number must be above 0 and given once")
    return values


def sizes(path: str) -> tuple[int, ...]:
    """Bytes of parameters from a JSON list."""
    file = Path(path)
    try:
        read = json.loads(read_text(file))
    except OSError as error:
        raise UsageError(f"cannot read the parameter sizes: {error.strerror}", file=file.name) from error
    except ValueError as error:
        raise UsageError("the parameter sizes are not JSON", file=file.name) from error
    if not isinstance(read, list) or not read or not all(type(size) is int and size > 0 for size in read):
        raise UsageError(
            "the parameter sizes are no list of bytes",
            file=file.name,
            do="write [4096, 4194304, ...] in ready order",
        )
    return tuple(read)


def milliseconds(text: str) -> float:
    """A step's length above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{text!r} is no step", do="give milliseconds above 0")
    return value
