"""What the join needs of a part: those of its events that may communicate, and all that is said of the others.

A run of many large reports is joined from these; the parts stay where they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nsysddp.model.schema import P2P_COPY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from nsysddp.ingest.part import Part
    from nsysddp.model.classify import Rules


def may_communicate(names: Iterable[tuple[str, str]], rules: Rules) -> NDArray[np.bool_]:
    """Of each name (group, text): are its events communication, or are they if an NCCL call launched them?"""
    verdict = {"kernel": rules.kernel, "memory": rules.memory}
    return np.array(
        [
            text == P2P_COPY or (group in verdict and verdict[group](text).class_ == "communication")
            for group, text in names
        ],
        dtype=bool,
    )


def brief(part: Part, rules: Rules) -> Part:
    """The part with only those events that may communicate, and their launches; counts and spans are of all."""
    events = part.events
    rows = np.flatnonzero(may_communicate(events.names, rules)[events.columns["name"]])
    return replace(
        part,
        events=replace(
            events,
            columns={name: values[rows] for name, values in events.columns.items()},
            ends=np.searchsorted(rows, events.ends).tolist(),
        ),
        # Launches that were sought at all were those of these events.
        launches=part.launches.of(rows) if part.launches and part.sought is None else part.launches,
        sought=None if part.sought is None else np.arange(rows.size),
        calls=None,
        records=None,
        syncs=None,
        shapes=None,
        metrics=None,
        network=None,
    )
