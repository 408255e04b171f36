"""What is the SHA-256 of a file? Found in one thread beside other work, file after file.

That of a folder of tables is what ``sha256sum *.parquet | sha256sum`` prints in it (names in byte order).

Standard library only: hashing of a large report can start before the libraries that read it are imported.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from nsysddp.ingest.columnar import is_export, table_files

_BLOCK_BYTES = 8 << 20  # long enough that waiting for the interpreter lock in between does not count


class _Worker:
    """One thread with one buffer that hashes file after file, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._files: queue.SimpleQueue[Hashing] = queue.SimpleQueue()
        self._may_run = threading.Event()
        self._may_run.set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, hashing: Hashing) -> None:
        """Hash this one when its turn comes."""
        self._files.put(hashing)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="sha256", daemon=True)
                self._thread.start()

    def pause(self) -> None:
        """Leave the cores to others, from the next block on."""
        self._may_run.clear()

    def resume(self) -> None:
        """Go on."""
        self._may_run.set()

    def _work(self) -> None:
        block = memoryview(bytearray(_BLOCK_BYTES))
        while True:
            self._files.get().compute(block, self._may_run.wait)


_worker = _Worker()


class Hashing:
    """The hash of a file, being computed.

    Args:
        path: a regular file, or a folder that is an export.

    Attributes:
        error: what kept it from being read to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest: str | None = None
        self.error: OSError | None = None
        self._done = threading.Event()
        _worker.add(self)

    def compute(self, block: memoryview, between: Callable[[], object]) -> None:
        """Find the hash, with this buffer; ``between`` is called after each block."""

        def of(file: Path) -> str:
            digest = hashlib.sha256()
            with file.open("rb", buffering=0) as handle:
                while size := handle.readinto(block):
                    digest.update(block[:size])
                    between()
            return digest.hexdigest()

        try:
            if self._path.is_dir():
                files = sorted(table_files(self._path), key=lambda path: os.fsencode(path.name))
                lines = [f"{of(file)}  ".encode() + os.fsencode(file.name) for file in files]
                self._digest = hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
            else:
                self._digest = of(self._path)
        except OSError as error:
            self.error = error
        finally:
            self._done.set()

    def pause(self) -> None:
        """Leave the cores to others, from the next block on."""
        _worker.pause()

    def resume(self) -> None:
        """Go on."""
        _worker.resume()

    def result(self) -> str | None:
        """The hash, waited for; None if the file could not be read to its end (``error`` says why)."""
        self.resume()
        self._done.wait()
        return self._digest


_ahead: dict[tuple[Path, int, int, int], Hashing] = {}


def _version(path: Path) -> tuple[Path, int, int, int]:
    """Tells a file from what is written to its place later."""
    stat = path.stat()
    return path, stat.st_ino, stat.st_size, stat.st_mtime_ns


def hash_ahead(paths: Iterable[Path]) -> None:
    """Start on reports that will be asked for soon; what is no regular file is somebody else's to refuse."""
    for path in paths:
        if _can_be_hashed(path):
            _ahead[_version(path)] = Hashing(path)


def _can_be_hashed(path: Path) -> bool:
    return path.is_file() or is_export(path)


def hashing_of(path: Path) -> Hashing:
    """The hash of a file, under way since ``hash_ahead`` or from now on."""
    ahead = _ahead.pop(_version(path), None) if _can_be_hashed(path) else None
    return ahead or Hashing(path)


def sha256_of(path: Path) -> str:
    """The hash of a file.

    Raises:
        OSError: it could not be read to its end.
    """
    hashing = hashing_of(path)
    digest = hashing.result()
    if digest is None:
        assert hashing.error is not None
        raise hashing.error
    return digest
