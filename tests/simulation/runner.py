"""Judges many jobs, each in a process of its own, so that one that fails, hangs or is killed is one row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]

ONE_THREAD = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Of each process: there are as many of them as the machine has cores."""

COMMAND = ("-m", "tests.simulation.judge")


def judged(
    numbers: Iterable[int],
    arguments: Sequence[str],
    *,
    seed: int,
    processes: int = 1,
    seconds: float = 900.0,
    minutes: float | None = None,
) -> Iterator[Row]:
    """The row of every job, as soon as it is there; one that has no answer is a row with ``error``.

    Args:
        numbers: the jobs.
        arguments: of the command line that judges one of them, without its number.
        seed: for the rows of jobs that fail.
        processes: so many at a time.
        seconds: a job that takes longer has failed.
        minutes: after that no job begins; what was not begun has no row.
    """
    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    with ThreadPoolExecutor(processes) as threads:
        started = [threads.submit(_one, number, arguments, seed, seconds, until) for number in numbers]
        for each in started:
            if (row := each.result()) is not None:
                yield row


def _one(number: int, arguments: Sequence[str], seed: int, seconds: float, until: float) -> Row | None:
    if time.monotonic() > until:
        return None
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        row = Path(scratch) / "row.json"
        command = [sys.executable, *COMMAND, *arguments]
        try:
            ended = subprocess.run(
                [*command, "--job", str(number), "--json", str(row)],
                env=os.environ | ONE_THREAD | {"TMPDIR": scratch},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=seconds,
                check=False,
            )
            if ended.returncode == 0 and row.exists():
                (made,) = json.loads(row.read_text())
                return made | {"took_s": time.monotonic() - began}
            last = ended.stderr.strip().rpartition("\n")[2]
            error = f"ended with {ended.returncode}: {last}"
        except subprocess.TimeoutExpired:
            error = f"took longer than {seconds:g} s"
    return failed(seed, number, error)


def failed(seed: int, number: int, error: str, kind: str = "?", cause: str = "?") -> Row:
    """The row of a job without an answer."""
    return {"seed": seed, "job": number, "kind": kind, "cause": cause, "error": error}
