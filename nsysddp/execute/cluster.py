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
        self._kept: ExitStack | None = None
        self._connected: Client | None = None

    def __enter__(self) -> Cluster:
        self._kept = ExitStack()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = self._connected = None

    def map(self, work: Callable[[S], T], tasks: Sequence[S], done: Callable[[S], None]) -> list[T | Lost]:
        """As of ``Executor``; dask tries again what was lost with a worker, and what it blames then runs alone."""
        results: dict[int, T | Lost] = {}

        def keep(number: int, result: T | Lost) -> None:
            results[number] = result
            done(tasks[number])

        with ExitStack() as alone:
            client = self._connected or (self._kept or alone).enter_context(self._client())
            self._connected = client if self._kept else None
            for number, _ in _run(client, work, tasks, range(len(tasks)), keep):
                for _, reason in _run(client, work, tasks, [number], keep):
                    keep(number, Lost(reason))
        return [results[number] for number in range(len(tasks))]

    @contextmanager
    def _client(self) -> Iterator[Client]:
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
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    failed: list[tuple[int, str]] = []
    in_flight: dict[Any, int] = {}
    todo = iter(numbers)

    def submit(number: int) -> object:
        future = client.submit(work, tasks[number], pure=False)
        in_flight[future.key] = number
        return future

    at_once = IN_FLIGHT * max(1, sum(client.nthreads().values()))
    completed = as_completed([submit(number) for number in islice(todo, at_once)])
    for future in completed:
        number = in_flight.pop(future.key)
        try:
            result = future.result()
        except KilledWorker:
            failed.append((number, KILLED))
        except MemoryError:
            failed.append((number, NO_MEMORY))
        else:
            keep(number, result)
        following = next(todo, None)
        if following is not None:
            completed.add(submit(following))
    return failed
