"""Work that goes wrong in another process, by what its task is called; nothing depends on how long anything takes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from nsysddp.ingest import reading
from nsysddp.model.errors import ReportError


def _once(marker: Path) -> bool:
    """True for the first to ask, in whichever process."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def work(task: Path) -> str:
    """The name of the task; or what its name says happens."""
    name = task.name
    if name.startswith("killed-always") or (name.startswith("killed-once") and _once(task)):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("memory-always") or (name.startswith("memory-once") and _once(task)):
        raise MemoryError
    if name.startswith("defect"):
        raise ZeroDivisionError(name)
    return name


def make(task: reading.Task) -> Path | bytes | ReportError:
    """``reading.make``, in a process that dies or lacks memory if a file beside the report says so."""
    for said in sorted(task.path.parent.glob(f"{task.path.name}.*")):
        work(said.parent / f"{said.suffix[1:]}-{said.name}")
    return reading.make(task)
