"""Work that goes wrong in another process, by what its task is called; nothing depends on how long anything takes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from nsysddp.ingest import reading
from nsysddp.model.errors import ReportError
from nsysddp.questions import apart


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


def suffer(report: Path) -> None:
    """Die or lack memory if a file beside the report says so."""
    for said in sorted(report.parent.glob(f"{report.name}.*")):
        work(said.parent / f"{said.suffix[1:]}-{said.name}")


def make(task: reading.Task) -> Path | bytes | ReportError:
    """``reading.make``, with bad luck."""
    suffer(task.path)
    return reading.make(task)


def make_apart(task: reading.Task) -> reading.Source | ReportError:
    """``reading.make_apart``, with bad luck."""
    suffer(task.path)
    return reading.make_apart(task)


def tell(task: apart.Task) -> apart.Told:
    """``apart.tell``, with bad luck."""
    for source in task.share.sources:
        suffer(source.task.path)
    return apart.tell(task)
