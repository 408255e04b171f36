"""When does each bucket's all-reduce start and end, and what held it up?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.ddp.reducer.layout import Bucket, Layout


_BYTES_PER_USED_FLAG = 4  # the map of locally used parameters is an int32 tensor


class GraphChanged(UsageError):
    """A gradient arrived for a parameter that ``static_graph=True`` had recorded as unused."""


@dataclass(frozen=True, slots=True)
class Block:
    """A time in which a complete bucket waited for an earlier one (head-of-line blocking).

    Attributes:
        bucket: the bucket at the head of the launch order, which was not complete.
        parameter: the gradient that the head waited for last; if it never came, the first one missing.
        start_ns: when the wait for this bucket began.
        end_ns: when that bucket was complete; None: never.
    """

    bucket: int
    parameter: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Collective:
    """One all-reduce on the serial communication stream: ``start = max(launch, end of the one before)``."""

    launch_ns: int
    start_ns: int
    end_ns: int

    @property
    def queued_ns(self) -> int:
        """How long it waited for the collectives launched before it."""
        return self.start_ns - self.launch_ns


@dataclass(frozen=True, slots=True)
class Reduction:
    """What became of one bucket in one backward pass.

    Attributes:
        bucket: the bucket.
        complete_ns: when its last gradient was marked ready; None: never.
        last_parameter: the parameter of that gradient; None: never.
        collective: its all-reduce; None where it was never launched.
        blocks: what it waited for between ``complete_ns`` and its launch, without gaps.
    """

    bucket: Bucket
    complete_ns: int | None
    last_parameter: int | None
    collective: Collective | None
    blocks: tuple[Block, ...]

    @property
    def parked_ns(self) -> int | None:
        """How long it was complete but behind an incomplete one; None where it was never launched."""
        if self.collective is None or self.complete_ns is None:
            return None
        return self.collective.launch_ns - self.complete_ns


@dataclass(frozen=True, slots=True)
class Schedule:
    """All of one synchronised backward pass.

    Attributes:
        layout: the buckets used.
        reductions: one a bucket, in launch order.
        used_map: the all-reduce of the map of used parameters, which the search for unused ones adds.
        unmarked: parameters whose gradients never came and that were not known to be unused.
        backward_end_ns: when the last gradient got ready; None if none did.
    """

    layout: Layout
    reductions: tuple[Reduction, ...]
    used_map: Collective | None
    unmarked: tuple[int, ...]
    backward_end_ns: int | None

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every launched all-reduce in the order of the communication stream."""
        of_buckets = [r.collective for r in self.reductions if r.collective is not None]
        return tuple(sorted((*of_buckets, *([self.used_map] if self.used_map else ())), key=_place))

    @property
    def finalized(self) -> bool:
        """Whether all buckets were launched, so that DDP waits for them at the end of backward."""
        return all(reduction.collective is not None for reduction in self.reductions)

    @property
    def finish_ns(self) -> int | None:
        """When gradients are reduced and backward is over; None if that never happens."""
        if not self.finalized or self.backward_end_ns is None:
            return None
        return max(self.backward_end_ns, *(collective.end_ns for collective in self.collectives))

    @property
    def next_forward_error(self) -> str | None:
        """What the next forward pass on this rank raises, as DDP words it; None if it goes through.

        A pass in which no gradient at all arrived is not noticed by DDP.
        """
        if self.finalized or self.backward_end_ns is None:
            return None
        return (
            "Expected to have finished reduction in the prior iteration before starting a new one. "
            f"Parameter indices which did not receive grad: {' '.join(map(str, self.unmarked))}"
        )


def _place(collective: Collective) -> tuple[int, int]:
    return collective.start_ns, collective.end_ns


def schedule(
    layout: Layout,
    ready_ns: Mapping[int, int],
    transfer_ns: Callable[[int], int],
    *,
    unused: Iterable[int] | None = None,
) -> Schedule:
    """When does each bucket's all-reduce start and end, and what held it up?

    A bucket is launched when all its gradients are ready **and** all earlier buckets have been launched; on
    the communication stream collectives run one after another in that order:

        complete = max(ready of its parameters)
        launch   = max(complete, launch of the bucket before)
        start    = max(launch, end of the collective before)
        end      = start + transfer_ns(size)

    Args:
        layout: the buckets in use.
        ready_ns: time at which each parameter's gradient is ready (with several uses, the last). Equal times
            keep the mapping's order. Parameters left out get no gradient in this pass.
        transfer_ns: time the wire needs for so many bytes, without waiting for a late rank.
        unused: parameters that DDP knows to be unused; by default those without a ready time, if the settings
            let DDP find them, else none. They are marked ready just before the first gradient that arrives.

    Raises:
        UsageError: a parameter the layout does not hold.
        GraphChanged: a gradient for a parameter in ``unused``.
    """
    count = len(layout.parameters)
    if unused is None:
        detected = layout.settings.find_unused_parameters or layout.settings.static_graph
        unused = [index for index in range(count) if index not in ready_ns] if detected else []
    unused = sorted(set(unused))
    if strangers := [index for index in (*ready_ns, *unused) if not 0 <= index < count]:
        raise UsageError(f"the layout holds {count} parameters, there is no number {strangers[0]}")
    if changed := [index for index in unused if index in ready_ns]:
        raise GraphChanged(f"parameter {changed[0]} was recorded as unused and now receives a gradient")

    arrivals = sorted(ready_ns.items(), key=lambda item: item[1])
    marks = [(index, arrivals[0][1]) for index in unused] + arrivals if arrivals else []
    return run_marks(layout, marks, transfer_ns, used_map="last" if layout.settings.searches_graph else None)


def run_marks(
    layout: Layout,
    marks: Sequence[tuple[int, int]],
    transfer_ns: Callable[[int], int],
    *,
    used_map: str | None,
) -> Schedule:
    """Go through the gradients in the order they are marked ready, as ``mark_variable_ready`` does."""
    home = {index: bucket.index for bucket in layout.buckets for index in bucket.parameters}
    pending = [len(bucket.parameters) for bucket in layout.buckets]
    complete: dict[int, tuple[int, int]] = {}  # bucket -> time, parameter
    launch_ns: list[int] = []  # by bucket; its length is torch's next_bucket_
    for index, at_ns in marks:
        pending[home[index]] -= 1
        if pending[home[index]] == 0:
            complete[home[index]] = (at_ns, index)
        while len(launch_ns) < len(pending) and pending[len(launch_ns)] == 0:
            launch_ns.append(at_ns)

    map_bytes = _BYTES_PER_USED_FLAG * len(layout.parameters)
    launches = [(at_ns, layout.buckets[bucket].size_bytes) for bucket, at_ns in enumerate(launch_ns)]
    if used_map and len(launches) == len(layout.buckets):
        launches.insert(0 if used_map == "first" else len(launches), (launches[-1][0], map_bytes))
    else:
        used_map = None
    collectives = _serial(launches, transfer_ns)
    map_collective = collectives.pop(0 if used_map == "first" else -1) if used_map else None

    marked = {index for index, _ in marks}
    missing = tuple(index for index in range(len(layout.parameters)) if index not in marked)
    reductions = []
    for bucket in layout.buckets:
        if bucket.index in complete:
            complete_ns, last_parameter = complete[bucket.index]
            collective = collectives[bucket.index] if bucket.index < len(collectives) else None
            blocks = _blocks(layout, complete, missing, bucket.index)
            reductions.append(Reduction(bucket, complete_ns, last_parameter, collective, blocks))
        else:
            reductions.append(Reduction(bucket, None, None, None, ()))
    backward_end_ns = marks[-1][1] if marks else None
    return Schedule(layout, tuple(reductions), map_collective, missing, backward_end_ns)


def _serial(launches: Iterable[tuple[int, int]], transfer_ns: Callable[[int], int]) -> list[Collective]:
    collectives: list[Collective] = []
    for launch_ns, size_bytes in launches:
        start_ns = max(launch_ns, collectives[-1].end_ns) if collectives else launch_ns
        collectives.append(Collective(launch_ns, start_ns, start_ns + transfer_ns(size_bytes)))
    return collectives


def _blocks(
    layout: Layout, complete: Mapping[int, tuple[int, int]], missing: Collection[int], waiting: int
) -> tuple[Block, ...]:
    """Who stood at the head of the launch order while bucket ``waiting`` was complete but not launched."""
    blocks = []
    now_ns = complete[waiting][0]
    for head in range(waiting):
        if head not in complete:
            first_missing = next(index for index in layout.buckets[head].parameters if index in missing)
            blocks.append(Block(head, first_missing, now_ns, None))
            break
        end_ns, parameter = complete[head]
        if end_ns > now_ns:
            blocks.append(Block(head, parameter, now_ns, end_ns))
            now_ns = end_ns
    return tuple(blocks)
