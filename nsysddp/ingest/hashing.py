"""What is the SHA-256 of a file? Found in a thread of its own, beside other work.

Standard library only: hashing of a large report can start before the libraries that read it are imported.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path

_BLOCK_BYTES = 8 << 20  # long enough that waiting for the interpreter lock in between does not count


class Hashing:
    """The hash of a file, being computed.

    Args:
        path: a regular file.

    Attributes:
        error: what kept it from being read to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest: str | None = None
        self.error: OSError | None = None
        self._may_run = threading.Event()
        self._may_run.set()
        self._thread = threading.Thread(target=self._work, name="sha256", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        digest = hashlib.sha256()
        block = memoryview(bytearray(_BLOCK_BYTES))
        try:
            with self._path.open("rb", buffering=0) as handle:
                while size := handle.readinto(block):
                    digest.update(block[:size])
                    self._may_run.wait()
        except OSError as error:
            self.error = error
            return
        self._digest = digest.hexdigest()

    def pause(self) -> None:
        """Leave the cores to others, from the next block on."""
        self._may_run.clear()

    def resume(self) -> None:
        """Go on."""
        self._may_run.set()

    def result(self) -> str | None:
        """The hash, waited for; None if the file could not be read to its end (``error`` says why)."""
        self.resume()
        self._thread.join()
        return self._digest


_ahead: dict[tuple[Path, int, int, int], Hashing] = {}


def _version(path: Path) -> tuple[Path, int, int, int]:
    """Tells a file from what is written to its place later."""
    stat = path.stat()
    return path, stat.st_ino, stat.st_size, stat.st_mtime_ns


def hash_ahead(paths: Iterable[Path]) -> None:
    """Start on files that will be asked for soon; what is no regular file is somebody else's to refuse."""
    for path in paths:
        if path.is_file():
            _ahead[_version(path)] = Hashing(path)


def hashing_of(path: Path) -> Hashing:
    """The hash of a file, under way since ``hash_ahead`` or from now on."""
    ahead = _ahead.pop(_version(path), None) if path.is_file() else None
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
