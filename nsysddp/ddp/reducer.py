"""What will DistributedDataParallel's Reducer do: which buckets, launched when, held up by whom?

A model of ``torch/csrc/distributed/c10d/reducer.cpp`` and ``torch/nn/parallel/distributed.py`` (torch 2.11 to
2.14) in the standard library alone, held equal to real torch by ``tests/test_reducer*.py``. It answers in
three steps, and ``Reducer`` strings them together over the iterations of a training run:

* ``initial_layout`` / ``rebuilt_layout``: parameters (and the order their gradients got ready in) -> buckets;
* ``schedule``: buckets, the time each gradient got ready and the time a transfer takes -> start and end of
  every collective, and for each bucket that had to wait the earlier bucket and parameter that it waited for.

Parameters are named by their index in registration order, as in torch. Times are integer nanoseconds on
whatever one clock the caller has (host times of hooks, or GPU times of the kernels that produce the
gradients).

Not modelled: the Python reducer of compiled autograd, DDP's own ``mixed_precision`` (its buckets are sent in
another dtype than they are sized in), ``skip_all_reduce_unused_params``, uneven inputs (``Join``), several
forward passes before one backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nsysddp.model.errors import UsageError
from nsysddp.model.units import BYTES_PER_MIB

DEFAULT_BUCKET_CAP_BYTES = 25 * BYTES_PER_MIB
DEFAULT_FIRST_BUCKET_CAP_BYTES = 1 * BYTES_PER_MIB
_BYTES_PER_USED_FLAG = 4  # the map of locally used parameters is an int32 tensor

# c10::ScalarType and c10::DeviceType by number: the numbers are hashed, and the hash decides an order.
# fmt: off
_SCALAR_TYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8",
    "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz",
    "float8_e4m3fnuz", "uint16", "uint32", "uint64",
)
_DEVICE_TYPES = (
    "cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan", "metal",
    "xpu", "mps", "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone",
)
# fmt: on


class UnfinishedReduction(UsageError):
    """The forward pass after a backward pass in which some bucket never got all its gradients."""


class GraphChanged(UsageError):
    """A gradient arrived for a parameter that ``static_graph=True`` had recorded as unused."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that requires a gradient, as DDP's bucket assignment sees it.

    Attributes:
        name: its fully qualified name.
        size_bytes: elements times element size of the parameter itself.
        dtype: torch's name of the scalar type without ``torch.``.
        device: torch's name of the device.
        sparse_gradient: whether it belongs to an ``Embedding(sparse=True)``, so that DDP gives it a bucket of
            its own.
    """

    name: str
    size_bytes: int
    dtype: str = "float32"
    device: str = "cuda:0"
    sparse_gradient: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of ``DistributedDataParallel`` that decide layout and launch order.

    Attributes:
        bucket_cap_bytes: ``bucket_cap_mb``. None is not the same as 25 MiB: only with None is the first
            bucket of a layout capped at 1 MiB; an explicit cap holds for all buckets.
        bucket_caps_bytes: ``bucket_cap_mb_list``, one cap a bucket, the last for all further ones; overrides
            the cap.
        find_unused_parameters: search the graph for unused parameters in every forward pass.
        static_graph: the graph never changes; unused parameters are learnt in the first synchronised
            iteration.
        small_last_bucket: environment variable ``DDP_SET_LAST_BUCKET_CAP=1``: a rebuilt layout is filled from
            its end.
    """

    bucket_cap_bytes: int | None = None
    bucket_caps_bytes: tuple[int, ...] = ()
    find_unused_parameters: bool = False
    static_graph: bool = False
    small_last_bucket: bool = False

    @property
    def rebuilds(self) -> bool:
        """Whether the buckets are laid out anew from the observed ready order, once."""
        return self.static_graph or not self.find_unused_parameters

    @property
    def searches_graph(self) -> bool:
        """Whether every iteration searches unused parameters, and reduces their map after the buckets."""
        return self.find_unused_parameters and not self.static_graph

    @property
    def initial_limits_bytes(self) -> tuple[int, ...]:
        """Size limits of the layout that DDP is constructed with.

        Where a rebuild will follow there is no limit: everything of one dtype and device is one bucket,
        because registration order says little about the order of gradients, and a wrong guess could reorder
        collectives.
        """
        if self.bucket_caps_bytes:
            return self.bucket_caps_bytes
        return (sys.maxsize,) if self.rebuilds else self._limits_bytes

    @property
    def rebuild_limits_bytes(self) -> tuple[int, ...]:
        """Size limits of the rebuilt layout."""
        return self.bucket_caps_bytes or self._limits_bytes

    @property
    def _limits_bytes(self) -> tuple[int, ...]:
        if self.bucket_cap_bytes is None:
            return (DEFAULT_FIRST_BUCKET_CAP_BYTES, DEFAULT_BUCKET_CAP_BYTES)
        return (self.bucket_cap_bytes,)


class Assignment(NamedTuple):
    """The parameters of one bucket, and the limit that closed it (0: a sparse gradient, no limit)."""

    parameters: tuple[int, ...]
    limit_bytes: int


def assign_buckets(
    parameters: Sequence[Parameter], limits_bytes: Sequence[int], order: Sequence[int] | None = None
) -> list[Assignment]:
    """Which parameters share a bucket?

    ``compute_bucket_assignment_by_size``: a bucket holds whole parameters of one dtype and device, and is
    closed by the first one with which it reaches its limit (so it can exceed the limit). Each (dtype, device)
    goes through the limits by itself and stays at the last. A sparse gradient is alone.

    Args:
        parameters: all parameters, in registration order.
        limits_bytes: size limit of the first, second, ... bucket of each (dtype, device).
        order: indices in the order gradients got ready. Buckets then come in the order in which they were
            closed and those never filled at the end. Without it, parameters go in registration order and
            buckets are sorted by their smallest index.

    Returns:
        The buckets in launch order, for a given ``order``; in registration order without one.

    Raises:
        UsageError: no parameter, no limit, or a dtype or device that torch does not know.
    """
    if not parameters or not limits_bytes:
        raise UsageError("buckets need at least one parameter and one size limit")
    closed: list[Assignment] = []
    open_buckets = _TorchMapOrder()
    for index in range(len(parameters)) if order is None else order:
        parameter = parameters[index]
        if parameter.sparse_gradient:
            closed.append(Assignment((index,), 0))
            continue
        bucket = open_buckets.at(parameter.dtype, parameter.device)
        bucket.indices.append(index)
        bucket.size_bytes += parameter.size_bytes
        limit_bytes = limits_bytes[min(bucket.closed, len(limits_bytes) - 1)]
        if bucket.size_bytes >= limit_bytes:
            closed.append(Assignment(tuple(bucket.indices), limit_bytes))
            bucket.indices, bucket.size_bytes, bucket.closed = [], 0, bucket.closed + 1
    for bucket in open_buckets:
        if bucket.indices:
            limit_bytes = limits_bytes[min(bucket.closed, len(limits_bytes) - 1)]
            closed.append(Assignment(tuple(bucket.indices), limit_bytes))
    if order is None:
        closed.sort(key=lambda bucket: min(bucket.parameters))
    return closed


@dataclass(slots=True)
class _OpenBucket:
    indices: list[int] = field(default_factory=list)
    size_bytes: int = 0
    closed: int = 0  # buckets of this dtype and device that have been filled before


class _TorchMapOrder:
    """The unfilled buckets by (dtype, device), iterated in the order in which torch iterates them.

    torch keeps them in a ``std::unordered_map`` and appends what is left in its iteration order, so with
    several dtypes the order of the last buckets is that of a hash table. This is libstdc++'s, which torch's
    Linux builds use: a new key goes to the front of its hash bucket's run, or to the front of all where that
    bucket was empty; growing the table puts all keys in again, in the order they had.
    """

    _TABLE_SIZES = (13, 29, 59, 127, 257, 541)  # it grows before it would hold more keys than slots

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], _OpenBucket] = {}
        self._order: list[tuple[int, int]] = []
        self._table_size = self._TABLE_SIZES[0]

    def __iter__(self) -> Iterator[_OpenBucket]:
        return (self._buckets[key] for key in self._order)

    def at(self, dtype: str, device: str) -> _OpenBucket:
        key = _torch_numbers(dtype, device)
        if key not in self._buckets:
            self._buckets[key] = _OpenBucket()
            if len(self._buckets) > self._table_size:
                self._table_size = next(size for size in self._TABLE_SIZES if size > self._table_size)
                kept, self._order = self._order, []
                for old in kept:
                    self._insert(old)
            self._insert(key)
        return self._buckets[key]

    def _insert(self, key: tuple[int, int]) -> None:
        run = (at for at, other in enumerate(self._order) if self._slot(other) == self._slot(key))
        self._order.insert(next(run, 0), key)

    def _slot(self, key: tuple[int, int]) -> int:
        """``c10::hash_combine(device, scalar type)`` modulo the table's size."""
        scalar_type, device = key
        return (device ^ (scalar_type + 0x9E3779B9 + (device << 6) + (device >> 2))) % self._table_size


def _torch_numbers(dtype: str, device: str) -> tuple[int, int]:
    """The numbers under which torch hashes a scalar type and a device (255: no ordinal)."""
    kind, _, ordinal = device.partition(":")
    if dtype not in _SCALAR_TYPES or kind not in _DEVICE_TYPES or not (ordinal or "0").isdecimal():
        raise UsageError(f"torch knows no dtype {dtype!r} on a device {device!r}", do="use torch's names")
    return _SCALAR_TYPES.index(dtype), _DEVICE_TYPES.index(kind) << 16 | (int(ordinal) if ordinal else 0xFF)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of a layout.

    Attributes:
        index: its place in the launch order, which is DDP's own bucket index.
        parameters: indices of its parameters, in the order they lie in the flat buffer.
        size_bytes: bytes of that buffer. For a sparse gradient the dense size, an upper bound of what is
            sent.
        limit_bytes: the size limit it was filled against; 0 for a sparse gradient.
    """

    index: int
    parameters: tuple[int, ...]
    size_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All buckets in launch order, with what they were made from."""

    parameters: tuple[Parameter, ...]
    settings: Settings
    buckets: tuple[Bucket, ...]
    rebuilt: bool


def initial_layout(parameters: Sequence[Parameter], settings: Settings | None = None) -> Layout:
    """Which buckets does DDP start with?

    Registration order is filled into buckets, then the list of buckets is reversed, since backward runs
    roughly backwards: the small first bucket of a default cap is the one launched last.

    Raises:
        UsageError: as ``assign_buckets``.
    """
    settings = settings or Settings()
    assignments = assign_buckets(parameters, settings.initial_limits_bytes)
    return _layout(parameters, settings, reversed(assignments), rebuilt=False)


def rebuilt_layout(
    parameters: Sequence[Parameter], ready_order: Sequence[int], settings: Settings | None = None
) -> Layout:
    """Which buckets does DDP use once it has seen in which order gradients get ready?

    Args:
        parameters: all parameters in registration order.
        ready_order: indices in the order their gradients got ready on rank 0, whose layout all ranks receive.
            It is the order of the first synchronised backward pass, with ``static_graph`` of the second. With
            ``static_graph`` unused parameters may be left out: they follow the others in registration order.
        settings: DDP's arguments.

    Raises:
        UsageError: DDP would never rebuild with these settings, or the order does not name every parameter
            once.
    """
    settings = settings or Settings()
    if not settings.rebuilds:
        raise UsageError(
            "DDP never rebuilds its buckets with find_unused_parameters=True", do="use the initial layout"
        )
    order = list(ready_order)
    if settings.static_graph:
        order += sorted(set(range(len(parameters))).difference(order))
    if sorted(order) != list(range(len(parameters))):
        raise UsageError("the ready order must name every parameter exactly once")
    if settings.small_last_bucket:
        assignments = assign_buckets(parameters, settings.rebuild_limits_bytes, order[::-1])[::-1]
    else:
        assignments = assign_buckets(parameters, settings.rebuild_limits_bytes, order)
    return _layout(parameters, settings, assignments, rebuilt=True)


def _layout(
    parameters: Sequence[Parameter], settings: Settings, assignments: Iterable[Assignment], *, rebuilt: bool
) -> Layout:
    buckets = tuple(
        Bucket(index, members, sum(parameters[member].size_bytes for member in members), limit_bytes)
        for index, (members, limit_bytes) in enumerate(assignments)
    )
    return Layout(tuple(parameters), settings, buckets, rebuilt)


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
    return _run(layout, marks, transfer_ns, used_map="last" if layout.settings.searches_graph else None)


def _run(
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


class Reducer:
    """What does DDP do over consecutive iterations (rank 0, which decides the rebuilt layout)?

    Attributes:
        layout: the buckets in use; replaced once, if the settings let DDP rebuild them.
    """

    def __init__(self, parameters: Sequence[Parameter], settings: Settings | None = None) -> None:
        self.layout = initial_layout(parameters, settings)
        self._synchronised = 0
        self._ready_order: list[int] = []  # what the next forward pass rebuilds from
        self._static_unused: list[int] = []
        self._error: str | None = None

    def iterate(
        self, ready_ns: Mapping[int, int], transfer_ns: Callable[[int], int], *, synchronise: bool = True
    ) -> Schedule | None:
        """Run one forward and backward pass.

        Args:
            ready_ns: as for ``schedule``.
            transfer_ns: as for ``schedule``.
            synchronise: False inside ``no_sync()``: gradients accumulate, no bucket is launched, nothing is
                learnt.

        Returns:
            The schedule; None without synchronisation.

        Raises:
            UnfinishedReduction: the backward pass before left buckets incomplete.
            GraphChanged: as ``schedule``.
            UsageError: ``no_sync()`` in the first iteration of a static graph, which DDP does not survive.
        """
        settings, parameters = self.layout.settings, self.layout.parameters
        if self._error:
            raise UnfinishedReduction(self._error)
        if self._ready_order:  # also a forward pass inside no_sync() rebuilds
            self.layout = rebuilt_layout(parameters, self._ready_order, settings)
            self._ready_order = []
        if not synchronise:
            if settings.static_graph and self._synchronised == 0:
                raise UsageError(
                    "DDP fails an internal assertion when static_graph=True and training starts in no_sync()",
                    do="synchronise the first iteration",
                )
            return None
        self._synchronised += 1

        if settings.static_graph and self._synchronised == 1:
            # Hooks only count here: everything is launched from a callback at the end of backward (and a
            # communication hook sees bucket index 0 for every bucket, since nothing advances next_bucket_).
            self._static_unused = [index for index in range(len(parameters)) if index not in ready_ns]
            end_ns = max(ready_ns.values(), default=0)
            marks = [(index, end_ns) for index in range(len(parameters))]
            return _run(self.layout, marks, transfer_ns, used_map="first")

        unused = self._static_unused if settings.static_graph else None
        done = schedule(self.layout, ready_ns, transfer_ns, unused=unused)
        self._error = done.next_forward_error
        if settings.rebuilds and not self.layout.rebuilt:
            self._ready_order = sorted(ready_ns, key=lambda index: ready_ns[index])
        return done
