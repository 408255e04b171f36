"""Where is work done?

Standard library only: a command asks before it imports what it works with.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.execute.executor import Executor

_MANY_FILES, _MANY_BYTES = 32, 256 << 20
"""Fewer files than this, with fewer bytes than that, are read faster than processes begin."""

_APART_BYTES = 64 << 20
"""Several files of more bytes than this are not held together in one process."""


@dataclass(frozen=True)
class Place:
    """Where work is done.

    Attributes:
        jobs: processes of this machine; with one, it is done in this process.
        scheduler: address of a dask scheduler, ``local:N`` to start one with N workers here; None: no scheduler.
    """

    jobs: int = 1
    scheduler: str | None = None

    @classmethod
    def of(cls, jobs: int | None, scheduler: str | None, files: Sequence[Path]) -> Place:
        """The place that somebody asks for, or that suits these files.

        Raises:
            UsageError: two places are asked for.
        """
        if scheduler is not None:
            if jobs is not None:
                raise UsageError("--jobs and --scheduler name two places", do="leave one out")
            return cls(scheduler=scheduler)
        return cls(min(jobs or _suiting(files), max(len(files), 1)))

    @staticmethod
    def is_much(files: Sequence[Path]) -> bool:
        """Are the files so much that what is read of them stays apart, where the question allows it?"""
        return len(files) > 1 and sum(map(_bytes, files)) >= _APART_BYTES

    @property
    def is_here(self) -> bool:
        """Is it this process?"""
        return self.jobs == 1 and self.scheduler is None

    def executor(self) -> Executor:
        """Who does work there.

        Raises:
            UsageError: a scheduler is asked for, and dask.distributed is not installed.
        """
        from nsysddp.execute.executor import InProcess, Processes

        if self.scheduler is not None:
            from nsysddp.execute.cluster import Cluster

            return Cluster(self.scheduler)
        return InProcess() if self.is_here else Processes(self.jobs)


HERE = Place()
"""This process."""


def _suiting(files: Sequence[Path]) -> int:
    """How many processes suit these files: as many as cores, where reading them takes long enough.

    One large file keeps two cores busy in one process, so that a few large files need more cores to gain by more.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores == 1 or len(files) < 2:
        return 1
    large = cores > 2 and sum(map(_bytes, files)) >= _MANY_BYTES
    return cores if large or len(files) >= _MANY_FILES else 1


def _bytes(path: Path) -> int:
    try:
        return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0
