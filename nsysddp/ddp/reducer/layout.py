"""Which parameters share a bucket, and in which order are the buckets launched?"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nsysddp.model.errors import UsageError
from nsysddp.model.units import BYTES_PER_MIB

DEFAULT_BUCKET_CAP_BYTES = 25 * BYTES_PER_MIB
DEFAULT_FIRST_BUCKET_CAP_BYTES = 1 * BYTES_PER_MIB

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
