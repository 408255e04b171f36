"""Work on the workers of a dask scheduler, or of one that is started here (``local:N``)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from nsysddp.execute.executor import IN_FLIGHT, KILLED, NO_MEMORY, Lost
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from distributed import Client

S = TypeVar("S")
T = TypeVar("T")

_LOCAL = re.compile(r"local:([1-9]\d{0,3})")
_CONNECT_S = 30
_LOOK_S = 2.0
_DESERTED_S = 30.0
"""Without any worker for so long none will come: dask starts one anew within seconds, but not always."""


class _Deserted(Exception):
    """No worker is left, and none has come."""


class Cluster:
    """The workers of a dask scheduler.

    Args:
        address: of the scheduler (``tcp://host:8786``); ``local:N`` starts N workers on this machine.

    Raises:
        UsageError: dask.distributed is not installed.
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed  # noqa: F401 - only whether it is there
        except ImportError:
            raise UsageError(
                "--scheduler needs dask.distributed", do="pip install 'nsysddp[cluster]'"
            ) from None
        self.address = address
        self._is_kept = False
        self._connected: Client | None = None
        self._connection = ExitStack()

    def __enter__(self) -> Cluster:
        self._is_kept = True
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_kept = False
        self._disconnect()

    def map(self, work: Callable[[S], T], tasks: Sequence[S], done: Callable[[S], None]) -> list[T | Lost]:
        """As of ``Executor``; dask tries again what was lost with a worker, and what it blames then runs alone.

        Where no worker is left those that were started here are started anew, and others are not waited for.
        """
        results: dict[int, T | Lost] = {}

        def keep(number: int, result: T | Lost) -> None:
            results[number] = result
            done(tasks[number])

        def run(numbers: Sequence[int]) -> list[tuple[int, str]]:
            try:
                return _run(self._client(), work, tasks, numbers, keep)
            except _Deserted:
                self._disconnect()
                return [(number, KILLED) for number in numbers if number not in results]

        try:
            blamed = run(range(len(tasks)))
            while blamed:
                (number, reason), *blamed = blamed
                if self._connected is None and not _LOCAL.fullmatch(self.address):
                    keep(number, Lost(reason))
                    continue
                for _, last in run([number]):
                    keep(number, Lost(last))
        finally:
            if not self._is_kept:
                self._disconnect()
        return [results[number] for number in range(len(tasks))]

    def _client(self) -> Client:
        if self._connected is None:
            self._connected = self._connection.enter_context(self._connect())
        return self._connected

    def _disconnect(self) -> None:
        self._connected = None
        self._connection.close()

    @contextmanager
    def _connect(self) -> Iterator[Client]:
        import dask
        from distributed import Client, LocalCluster

        local = _LOCAL.fullmatch(self.address)
        if local:
            quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
            with (
                dask.config.set({"distributed.scheduler.allowed-failures": 1}),
                LocalCluster(n_workers=int(local[1]), threads_per_worker=1, **quiet) as cluster,
                Client(cluster) as client,
            ):
                yield client
            return
        try:
            client = Client(self.address, timeout=_CONNECT_S)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no scheduler answers at {self.address} ({type(error).__name__})",
                do="start one with `dask scheduler` and `dask worker`, or give local:N",
            ) from None
        with client:
            if not client.scheduler_info()["workers"]:
                raise UsageError(
                    f"the scheduler at {self.address} has no workers", do="start some with `dask worker`"
                )
            yield client


def _run(
    client: Client,
    work: Callable[[S], T],
    tasks: Sequence[S],
    numbers: Iterable[int],
    keep: Callable[[int, T], None],
) -> list[tuple[int, str]]:
    """Work on the tasks of these numbers, few in flight at a time.

    Returns:
        Numbers of the tasks whose workers died or lacked memory, each with the reason. dask blames every task that was
        on a worker when it died, so one of these is lost for certain only when it ran alone.

    Raises:
        _Deserted: no worker is left.
    """
    from distributed.scheduler import KilledWorker

    failed: list[tuple[int, str]] = []
    todo = iter(numbers)
    at_once = IN_FLIGHT * max(1, sum(client.nthreads().values()))
    in_flight: dict[Any, int] = {}

    def submit(some: Iterable[int]) -> None:
        in_flight.update((client.submit(work, tasks[number], pure=False), number) for number in some)

    submit(islice(todo, at_once))
    while in_flight:
        completed = _completed(client, in_flight)
        for future in completed:
            number = in_flight.pop(future)
            try:
                result = future.result()
            except KilledWorker:
                failed.append((number, KILLED))
            except MemoryError:
                failed.append((number, NO_MEMORY))
            else:
                keep(number, result)
        submit(islice(todo, len(completed)))
    return failed


def _completed(client: Client, futures: Iterable[Any]) -> set[Any]:
    """Those that have ended, as soon as one has.

    Raises:
        _Deserted: none has, and there is no worker.
    """
    from distributed import TimeoutError as NoneEnded
    from distributed import wait

    deserted = 0.0
    while deserted < _DESERTED_S:
        try:
            return set(wait(list(futures), timeout=_LOOK_S, return_when="FIRST_COMPLETED").done)
        except NoneEnded:
            deserted = 0.0 if client.scheduler_info()["workers"] else deserted + _LOOK_S
    raise _Deserted
