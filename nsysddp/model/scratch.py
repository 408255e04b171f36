"""What must not outlive the process: unpacked reports, outputs half written, programs that were started.

Everything of that kind is made here, so that it can be removed however the process ends:

* by itself: the context managers remove what they made;
* by a signal while ``signals_end`` holds: a thread of its own hears of it at once, whatever the main thread does (a
  query, a picture), ends the programs, removes the files and ends the process with 128 + the signal's number. Nothing
  appears under its final name after that, and nothing has to be unwound, so nobody can swallow it on the way;
* by SIGKILL or a crash: the next run removes what lies there. Every folder holds a file that its process keeps locked.
  The system lets go of the lock with the process, so whoever gets it knows that the owner is dead.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

ENDING_SIGNALS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "terminated: the terminal is gone",
}
"""Signals that end a command, and what is said then; its exit code is 128 + the number of the signal."""

_LOCK = ".lock"
_TRIES = 20
_GRACE_S = 2.0
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

_live: dict[Path, int] = {}
"""Folders of this process with the descriptors of their locks (-1: a folder without one)."""
_programs: set[subprocess.Popen[bytes]] = set()
_gate = threading.Lock()
"""Held while a file gets its final name or a folder is made; whoever ends the process takes it and keeps it."""


class _Signals:
    """What is known about signals. The watching thread and handlers in the main thread both write here."""

    held = 0
    """Blocks that unwind upon a signal instead of ending at once."""
    raised = 0
    heard = 0
    last: int | None = None
    at_the_gate = False
    """The main thread is inside the gate, so that it must go on."""
    ending = False
    """It did go on, and is to stand still once it is out."""


# Folders


def _machine() -> str:
    """A lock counts on one running system only: another host on the same network drive may not see it."""
    try:
        named = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        named = platform.node()
    return hashlib.sha256(named.encode()).hexdigest()[:8]


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """An empty private folder that goes away; what dead processes left beside it goes too.

    Args:
        parent: where to make it; the system's folder for temporary files if None.

    Raises:
        OSError: it cannot be made.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    remove_abandoned(place)
    with committing():
        path, lock = _make(place)
        _live[path] = lock
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _live.pop(path, None)
        os.close(lock)


def _make(place: Path) -> tuple[Path, int]:
    """A new folder and its lock; again where a cleaning process was faster than we could lock it."""
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=f".nsysddp-{_machine()}-", dir=place))
        with suppress(FileNotFoundError, BlockingIOError):
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _take(lock)
                if (path / _LOCK).stat().st_ino == os.fstat(lock).st_ino:
                    return path, lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
    raise FileNotFoundError(errno.ENOENT, "temporary folders vanish as soon as they are made", str(place))


def _take(lock: int) -> None:
    """Lock it; where the file system has no locks nobody can get one, so that nothing is ever removed there.

    Raises:
        BlockingIOError: somebody else has it.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def remove_abandoned(place: Path | None = None) -> None:
    """Remove folders of ours whose process is dead; what cannot be told for sure stays."""
    name = re.compile(rf"\.nsysddp-{_machine()}-[a-z0-9_]{{8}}")
    try:
        with os.scandir(place or tempfile.gettempdir()) as entries:
            found = [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]
    except OSError:
        return
    for path in found:
        if path not in _live:
            with suppress(OSError):
                _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    state = path.lstat()
    if state.st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        return
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        path.rmdir()  # killed before it could lock it, or about to: then it makes another
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


@contextmanager
def removed_by_signal(path: Path) -> Iterator[None]:
    """A folder that a signal removes, as long as this holds; whoever made it removes it otherwise."""
    _live[path] = -1
    try:
        yield
    finally:
        _live.pop(path, None)


# Final names


@contextmanager
def committing() -> Iterator[None]:
    """Short work that a signal lets finish, such as giving final names; after a signal it does not begin any more."""
    main = threading.current_thread() is threading.main_thread()
    with _gate:
        _Signals.at_the_gate = main
        try:
            yield
        finally:
            _Signals.at_the_gate = False
    if main and _Signals.ending:
        _stand_still()


def publish(beside: Path, target: Path, *, replace: bool) -> None:
    """Give a finished file its final name, in one step.

    Args:
        beside: the file, in a folder of the same file system.
        target: its name.
        replace: may there be a file already? Without, exactly one of several processes succeeds.

    Raises:
        FileExistsError: there is one; OSError: the place cannot be written.
    """
    with committing():
        if replace:
            beside.replace(target)
            return
        try:
            os.link(beside, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))  # the name is ours
            beside.replace(target)


# Programs


@contextmanager
def program(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends with us, with all that it starts; its output is piped.

    Raises:
        OSError: it cannot be started.
    """
    with committing():
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _programs.add(started)
    try:
        yield started
    finally:
        _end_program(started)
        _programs.discard(started)
        if started.stdout is not None:
            started.stdout.close()


def _end_program(started: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if started.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        with suppress(subprocess.TimeoutExpired):
            started.wait(_GRACE_S)


# Signals


@contextmanager
def signals_end() -> Iterator[None]:
    """Meanwhile Ctrl-C, SIGTERM and SIGHUP end the process, with nothing left behind.

    Outside the main thread, and for signals that are ignored (``nohup``), nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Signals.held = _Signals.raised = _Signals.heard = 0
    _Signals.last, _Signals.ending = None, False
    heard_at, written_at = os.pipe()
    os.set_blocking(written_at, False)
    watcher = threading.Thread(target=_watch, args=(heard_at,), name="signals", daemon=True)
    watcher.start()
    before_fd = signal.set_wakeup_fd(written_at, warn_on_full_buffer=False)
    before = {
        number: signal.signal(number, _on_signal)
        for number in ENDING_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        os.close(written_at)  # ends the watcher
        watcher.join()


@contextmanager
def signals_raise() -> Iterator[None]:
    """Meanwhile the same signals raise KeyboardInterrupt in the main thread: for work that has to be unwound."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, _raise)
        for number in ENDING_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    _Signals.held += 1
    try:
        yield
    finally:
        _Signals.held -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


def ended_by() -> int | None:
    """The signal that raised KeyboardInterrupt, None if there was none."""
    return _Signals.last


def _raise(number: int, _frame: FrameType | None) -> None:
    _Signals.raised += 1
    _Signals.last = number
    raise KeyboardInterrupt


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    """Stand still until the watcher has ended the process; but let go of the gate first."""
    _Signals.ending = True
    if not _Signals.at_the_gate:
        _stand_still()


def _stand_still() -> None:
    while True:
        time.sleep(60)


def _watch(heard_at: int) -> None:
    """Hear of signals as they come: unlike a handler, while the main thread is busy in a library too."""
    try:
        while numbers := os.read(heard_at, 1):
            if numbers[0] not in ENDING_SIGNALS:
                continue
            _Signals.heard += 1
            if not _Signals.held and _Signals.heard > _Signals.raised:
                _end(numbers[0])
    finally:
        os.close(heard_at)


def _end(number: int) -> None:
    _gate.acquire(timeout=10)
    for started in list(_programs):
        _end_program(started)
    until = time.monotonic() + _GRACE_S
    while (left := [path for path in list(_live) if path.exists()]) and time.monotonic() < until:
        for path in left:  # another thread may still write into it
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        # A progress display hides the cursor.
        shown = b"\r\x1b[K\x1b[?25h" if os.isatty(2) else b""
        os.write(2, shown + f"nsysddp: error: {ENDING_SIGNALS[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)
