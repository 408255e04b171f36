"""How does a command end, with everything that it started?

nsys detaches an agent and a launcher into sessions of their own, and torchrun starts each rank, so neither a
process group nor a session holds the family together. While a command runs we are a *subreaper* (Linux): what
loses its parent becomes our child instead of init's, so the family is exactly our descendants, and all of it can be
ended. Linux only, like the tools that are run here.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nsysddp.model.scratch import signals_raise

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 3.0


@dataclass(frozen=True)
class StuckRank:
    """A rank that still ran at the time limit, and where."""

    rank: int
    where: str
    """The innermost Python frame of its main thread, ``function (file:line)``, or why it is unknown."""
    stack: str
    """What faulthandler printed for all of its threads."""


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``returncode`` is None where the time limit ended it."""

    returncode: int | None
    seconds: float
    stuck: tuple[StuckRank, ...] = ()


def run_command(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, timeout_s: float
) -> Ended:
    """How did this command end? Nothing that it started outlives the call, however the call ends.

    Standard output and error go to ``log``. At the time limit the stacks of all ranks are taken before anything
    is ended. Ctrl-C and SIGTERM raise KeyboardInterrupt after everything has been ended.

    Raises:
        KeyboardInterrupt: we were interrupted.
        OSError: the command could not be started, or its log could not be written.
    """
    family = _Family()
    began = time.monotonic()
    with _subreaper(), signals_raise(), log.open("ab") as out:
        try:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            family.popened = child.pid
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                stuck = _stacks(family.members(), log)
                family.end(grace_s=0)
                child.wait()
                return Ended(None, time.monotonic() - began, stuck)
            family.wait_gone(_GRACE_S)  # nsys's agent ends by itself a moment after nsys
            return Ended(code, time.monotonic() - began)
        finally:
            family.end(grace_s=_GRACE_S)


def _stat(pid: int) -> tuple[int, str] | None:
    """Parent and state of a process, None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return int(parent), state


def _processes() -> dict[int, tuple[int, str]]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return {pid: stat for pid in pids if (stat := _stat(pid))}


class _Family:
    """All descendants of this process but for those of children that it already had."""

    def __init__(self) -> None:
        self.popened: int | None = None
        """The child whose exit status a Popen object waits for."""
        self._others = {pid for pid, (parent, _) in _processes().items() if parent == os.getpid()}

    def members(self) -> list[int]:
        """Who is still there, parents first? Our own dead children are reaped on the way."""
        processes = _processes()
        below: dict[int, list[int]] = {}
        for pid, (parent, _) in processes.items():
            below.setdefault(parent, []).append(pid)
        found: list[int] = []
        waiting = [pid for pid in below.get(os.getpid(), []) if pid not in self._others]
        while waiting:
            pid = waiting.pop(0)
            waiting += below.get(pid, [])
            parent, state = processes[pid]
            if state != "Z":
                found.append(pid)
            elif parent != os.getpid():
                found.append(pid)  # its parent reaps it, or we do once the parent is gone
            elif pid != self.popened:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return found

    def wait_gone(self, seconds: float) -> None:
        """Wait until nobody is left, ``seconds`` at most."""
        limit = time.monotonic() + seconds
        while self.members() and time.monotonic() < limit:
            time.sleep(0.02)

    def end(self, *, grace_s: float) -> None:
        """End everyone: politely first where ``grace_s`` is given. A second Ctrl-C does not stop this."""
        with _uninterrupted():
            if grace_s and (members := self.members()):
                _signal(members, signal.SIGTERM)
                self.wait_gone(grace_s)
            limit = time.monotonic() + 5 * _GRACE_S
            while (members := self.members()) and time.monotonic() < limit:
                _signal(members, signal.SIGKILL)
                time.sleep(0.02)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def _subreaper() -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def _handler(number: signal.Signals, handler: object) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    with _handler(signal.SIGINT, signal.SIG_IGN), _handler(signal.SIGTERM, signal.SIG_IGN):
        yield


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (word.decode(errors="replace").partition("=") for word in words)
    return {name: value for name, equals, value in pairs if equals}


def _is_python(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    except OSError:
        return False


def _rank_processes(family: Sequence[int]) -> dict[int, int]:
    """The process of each rank: the topmost Python process of the family that has RANK in its environment."""
    ranks: dict[int, int] = {}
    for pid in family:
        rank = _environment(pid).get("RANK", "")
        if rank.isdecimal() and _is_python(pid):
            ranks.setdefault(int(rank), pid)
    return ranks


def _stacks(family: Sequence[int], log: Path) -> tuple[StuckRank, ...]:
    """Where is every rank? Each gets SIGABRT, upon which faulthandler (PYTHONFAULTHANDLER=1) prints its stacks.

    The launcher is stopped first, since it would end the other ranks as soon as it sees the first one die. One
    rank after the other, so that each finds its text alone at the end of the log.
    """
    ranks = _rank_processes(family)
    launchers = [pid for pid in family if _is_python(pid) and "RANK" not in _environment(pid)]
    _signal(launchers, signal.SIGSTOP)
    return tuple(StuckRank(rank, *_stack(pid, log)) for rank, pid in sorted(ranks.items()))


def _stack(pid: int, log: Path) -> tuple[str, str]:
    start = log.stat().st_size
    with suppress(OSError):  # no core file of a process that we abort
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    _signal([pid], signal.SIGABRT)
    text = ""
    limit = time.monotonic() + _GRACE_S
    while time.monotonic() < limit:
        stat = _stat(pid)
        time.sleep(0.1)  # nsys passes the output on through a pipe
        text = log.read_bytes()[start:].decode(errors="replace")
        if stat is None or stat[1] == "Z":
            break
    return innermost_frame(text), text.strip()


def innermost_frame(stack: str) -> str:
    """Where was the main thread? faulthandler prints it last, its innermost frame first."""
    threads = re.split(r"^(?:Current thread|Thread) 0x.*$", stack, flags=re.MULTILINE)
    frame = re.search(r'File "(.*?)", line (\d+) in (.+)', threads[-1]) if len(threads) > 1 else None
    return f"{frame[3]} ({Path(frame[1]).name}:{frame[2]})" if frame else "no Python stack was printed"
