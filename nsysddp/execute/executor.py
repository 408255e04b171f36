"""Do one piece of work for each of many tasks, somewhere: results in the order of the tasks, and what was lost.

Nothing here schedules: ``concurrent.futures`` and ``dask.distributed`` do. What is added is the same for both: few
tasks are in flight at a time, and what was lost with a process that died is tried again, alone, so that of those in
flight the one that kills its process is known and the others are not lost with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")

IN_FLIGHT = 2
"""Tasks a process that are handed out: one that is worked on, one that waits."""


@dataclass(frozen=True)
class Lost:
    """A task without a result.

    Attributes:
        reason: why, one clause.
    """

    reason: str


_ALONE = 2
"""Times that a task is tried with no other beside it: that it was in flight when a process died says nothing of it."""

KILLED = "the process that worked on it was killed, twice (a signal, or the system ran out of memory)"
NO_MEMORY = "the process that worked on it had not enough memory, alone too"


class Executor(Protocol):
    """Where work is done; as a context, what does it (processes, a cluster) is kept from map to map."""

    def __enter__(self) -> Executor:
        """From now on it is kept."""

    def __exit__(self, *raised: object) -> None:
        """It ends."""

    def map(self, work: Callable[[S], T], tasks: Sequence[S], done: Callable[[S], None]) -> list[T | Lost]:
        """The result of ``work`` for each task, in their order.

        Args:
            work: a function of a module; what it raises, but for a lack of memory, is raised here.
            tasks: what can be sent to another process.
            done: called in this process, once for each task.
        """


class InProcess:
    """Here, one task after the other."""

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def map(self, work: Callable[[S], T], tasks: Sequence[S], done: Callable[[S], None]) -> list[T | Lost]:
        """As of ``Executor``; a lack of memory is raised, for the tasks to come would lack it too."""
        results: list[T | Lost] = []
        for task in tasks:
            results.append(work(task))
            done(task)
        return results


class Processes:
    """Processes of this machine, begun anew (``spawn``).

    Args:
        jobs: how many.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._is_kept = False
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        self._is_kept = True
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_kept = False
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def map(self, work: Callable[[S], T], tasks: Sequence[S], done: Callable[[S], None]) -> list[T | Lost]:
        """As of ``Executor``."""
        results: dict[int, T | Lost] = {}

        def keep(number: int, result: T | Lost) -> None:
            results[number] = result
            done(tasks[number])

        todo, failed = deque(range(len(tasks))), []
        while todo:
            failed += self._run(work, tasks, todo, IN_FLIGHT * self.jobs, keep)
        for number, reason in failed:
            for _ in range(_ALONE):
                again = self._run(work, tasks, deque([number]), 1, keep)
                if not again:
                    break
                reason = again[0][1]
            else:
                keep(number, Lost(reason))
        return [results[number] for number in range(len(tasks))]

    def _run(
        self,
        work: Callable[[S], T],
        tasks: Sequence[S],
        todo: deque[int],
        at_once: int,
        keep: Callable[[int, T], None],
    ) -> list[tuple[int, str]]:
        """Work on tasks until there are none or a process dies.

        Returns:
            Numbers of tasks that were in flight when a process died, and of those that lacked memory, with the reason.
        """
        failed: list[tuple[int, str]] = []
        running: dict[Future[T], int] = {}
        spawn = multiprocessing.get_context("spawn")
        pool = self._pool or ProcessPoolExecutor(self.jobs, mp_context=spawn, initializer=_begin)
        self._pool = None
        try:
            while todo or running:
                while todo and len(running) < at_once:
                    running[pool.submit(work, tasks[todo[0]])] = todo[0]
                    todo.popleft()
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in sorted(finished, key=lambda future: running[future]):
                    try:
                        result = future.result()
                    except MemoryError:
                        failed.append((running[future], NO_MEMORY))
                    else:
                        keep(running[future], result)
                    del running[future]
        except BrokenProcessPool:
            pool.shutdown()
            return failed + [(number, KILLED) for number in running.values()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        if self._is_kept:
            self._pool = pool
        else:
            pool.shutdown()
        return failed


def _begin() -> None:
    """A process begins: Ctrl-C is for the one that started it, and it does not outlive that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    with suppress(OSError):
        parent.join()
    os._exit(1)
