"""A program under change: dependencies set anew, nodes added."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.dependencies.condensed import Structure, Weights
from nsysddp.dependencies.replay import Program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.integer[Any]]


class Draft:
    """A program under change: its dependencies can be set, nodes be added; ``program`` closes it.

    Node arrays can be written to, and are copied when they are first asked for; nodes that are added get what ``add``
    says.
    """

    def __init__(self, base: Program) -> None:
        self.base = base
        these, of = base.structure, base.weights
        self.waiting, self.awaited, self.wait_lag = these.waiting.copy(), these.awaited.copy(), of.wait_lag
        self.holding, self.held_by, self.hold_lag = these.holding.copy(), these.held_by.copy(), of.hold_lag
        self.arrivals = int(max(these.arrival.max(initial=-1), these.meeting.max(initial=-1))) + 1
        self.added: list[dict[str, float]] = []
        self._waits: list[tuple[int, int, float]] = []
        self._members: list[tuple[int, int]] = []

    @cached_property
    def duration(self) -> Floats:
        """See ``Weights``."""
        return np.copy(self.base.weights.duration)

    @cached_property
    def ahead_lag(self) -> Floats:
        """See ``Weights``."""
        return np.copy(self.base.weights.ahead_lag)

    @cached_property
    def excess(self) -> Floats:
        """See ``Weights``."""
        return np.copy(self.base.weights.excess)

    @cached_property
    def ahead(self) -> Ints:
        """See ``Structure``."""
        return np.copy(self.base.structure.ahead)

    @cached_property
    def arrival(self) -> Ints:
        """See ``Structure``."""
        return np.copy(self.base.structure.arrival)

    def add(self, **facts: float) -> int:
        """A node by its fields (those of ``Structure`` and ``Weights``; ``origin`` is about when it runs)."""
        self.added.append(facts)
        return self.base.is_call.size + len(self.added) - 1

    def wait(self, node: int, other: int, lag: float) -> None:
        """The start of a node waits for the end of another."""
        self._waits.append((node, other, lag))

    def meet(self, arrival: int, node: int) -> None:
        """An arrival waits for the start of a node."""
        self._members.append((arrival, node))

    def new_arrival(self) -> int:
        """A number for an arrival."""
        self.arrivals += 1
        return self.arrivals - 1

    def forget_waits(self, dropped: Flags) -> None:
        """Leave out waits; shape (waits,)."""
        kept = ~dropped
        self.waiting, self.awaited = self.waiting[kept], self.awaited[kept]
        self.wait_lag = self.wait_lag[kept]

    def take_out(self, nodes: Ints) -> None:
        """These nodes take no time and wait for nothing but the calls ahead of them."""
        if not nodes.size:
            return
        self.duration[nodes] = self.excess[nodes] = 0
        self.arrival[nodes] = -1
        self.forget_waits(np.isin(self.waiting, nodes))
        kept = ~np.isin(self.holding, nodes)
        self.holding, self.held_by = self.holding[kept], self.held_by[kept]
        self.hold_lag = self.hold_lag[kept]

    def redirect(self, replaced: Mapping[int, int]) -> None:
        """What waits for the end of one node waits for that of another instead."""
        old = np.fromiter(replaced, dtype=np.int64)
        for name in ("ahead", "awaited", "held_by"):
            column = getattr(self, name)
            for place in np.flatnonzero(np.isin(column, old)).tolist():
                if name != "ahead" or place not in replaced:
                    column[place] = replaced[int(column[place])]

    def program(self) -> Program:
        """Everything together."""
        base, size = self.base, self.base.is_call.size
        these, of = base.structure, base.weights

        def longer(have: NDArray[Any], more: Sequence[float]) -> NDArray[Any]:
            return np.concatenate([have, np.asarray(more, dtype=have.dtype)]) if more else have

        def column(name: str, base: NDArray[Any], missing: float = -1) -> NDArray[Any]:
            have = vars(self).get(name, base)  # of those that were asked for the copy
            return longer(have, [node.get(name, missing) for node in self.added])

        structure = Structure(
            along=longer(these.along, range(size, size + len(self.added))),
            opens=longer(these.opens, [True] * len(self.added)),  # each in a lane of its own
            ahead=column("ahead", these.ahead),
            launcher=column("launcher", these.launcher),
            from_start=column("from_start", these.from_start, 0),
            waiting=longer(self.waiting, [wait[0] for wait in self._waits]),
            awaited=longer(self.awaited, [wait[1] for wait in self._waits]),
            holding=self.holding,
            held_by=self.held_by,
            arrival=column("arrival", these.arrival),
            meeting=longer(these.meeting, [member[0] for member in self._members]),
            member=longer(these.member, [member[1] for member in self._members]),
            calls=these.calls,
        )
        weights = Weights(
            duration=column("duration", of.duration, 0),
            ahead_lag=column("ahead_lag", of.ahead_lag, 0),
            launch_lag=column("launch_lag", of.launch_lag, 0),
            excess=column("excess", of.excess, 0),
            origin=column("origin", of.origin, 0),
            wait_lag=longer(self.wait_lag, [wait[2] for wait in self._waits]),
            hold_lag=self.hold_lag,
        )
        assert structure.along.size == size + len(self.added)
        return Program(structure, weights, base.latency, base.events, column("is_call", base.is_call, 0))
