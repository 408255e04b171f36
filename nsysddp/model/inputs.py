"""Read small files that somebody names: rules, claims, queries. Whatever is there, reading it ends."""

from __future__ import annotations

import errno
from pathlib import Path

_MOST_BYTES = 16 << 20


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it cannot be read, is a pipe or a device (which may never end), or has more than ``most`` bytes.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", str(path))
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EINVAL, f"larger than {most >> 20} MiB", str(path))
    return content


def read_text(path: Path) -> str:
    """The same as text.

    Raises:
        OSError: as ``read_bytes``; UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")
