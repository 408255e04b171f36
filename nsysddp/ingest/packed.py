"""Unpack a report, and not more than a report can be.

A few kilobytes can unpack to more than any disk holds. What comes out is looked at before it is written on: the first
bytes must be those of a report, a database ends where its header says, and whatever its header says, no report packs
better than ``_MOST_TIMES``.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from nsysddp.model.errors import NotAReport, ReportError

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
_ZSTD_HEAD_BYTES, _ZSTD_BLOCK_BYTES = 512, 4096
"""Packed bytes taken at a time: each four of them can become 128 KiB."""

_MOST_TIMES = 200
_ALWAYS_BYTES = 1 << 30
"""Real exports pack 5 to 20 times, empty tables better; small ones may be anything up to this."""


def promised_bytes(head: bytes) -> int | None:
    """The size of a database by its first 100 bytes; None where they do not say it."""
    page_size = int.from_bytes(head[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(head[28:32], "big")
    change_counter, valid_for = head[24:28], head[92:96]
    return pages * page_size if change_counter == valid_for and pages else None


def unpack(source: Path, target: Path, accept: Callable[[bytes], None]) -> None:
    """Unpack a gzip or zstd file.

    Args:
        source: the archive.
        target: the file to write, in a folder of ours.
        accept: raises for first bytes (up to 100) that no report has.

    Raises:
        NotAReport: damaged, empty, or holding more than a report can hold; ReportError: the system refused.
    """
    try:
        blocks = _blocks(source)
        first = _at_least(100, blocks)
        if not first:
            raise NotAReport("the archive holds nothing", file=source, do="export the report again")
        accept(first[:100])
        bound = _bound(source, target, first[:100])
        written = 0
        with target.open("wb") as out:
            for block in itertools.chain([first], blocks):
                written += len(block)
                if written > bound:
                    raise _too_much(source, bound)
                out.write(block)
    except OSError as error:
        if error.errno:
            raise ReportError(f"the archive cannot be unpacked: {error.strerror}", file=source) from error
        raise _damaged(source) from error
    except (EOFError, ValueError, zlib.error) as error:
        raise _damaged(source) from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise _damaged(source) from error
        raise


def _bound(source: Path, target: Path, head: bytes) -> int:
    """How many bytes may come out."""
    most = max(_ALWAYS_BYTES, _MOST_TIMES * source.stat().st_size)
    promised = promised_bytes(head) if head.startswith(b"SQLite format 3\0") and len(head) == 100 else None
    if promised is None:
        return most
    if promised > most:
        raise _too_much(source, most)
    free = shutil.disk_usage(target.parent).free
    if promised > free:
        raise ReportError(
            f"the archive unpacks to {promised / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free for temporary files",
            file=source,
            do="make room there, or set TMPDIR to a larger place",
        )
    return promised


def _too_much(source: Path, bound: int) -> NotAReport:
    return NotAReport(
        f"the archive unpacks to more than a report can be ({bound:,} bytes here)",
        file=source,
        do="do not trust it; if it is yours, unpack it and give the export itself",
    )


def _damaged(source: Path) -> NotAReport:
    return NotAReport("the archive is damaged or truncated", file=source, do="pack it again")


def _at_least(size: int, blocks: Iterator[bytes]) -> bytes:
    first = b""
    for block in blocks:
        first += block
        if len(first) >= size:
            break
    return first


def _blocks(source: Path) -> Iterator[bytes]:
    """What is in the archive, in blocks that fit in memory."""
    with source.open("rb") as raw:
        if raw.read(2) == _GZIP:
            with gzip.open(source, "rb") as packed:
                while block := packed.read(_BLOCK_BYTES):
                    yield block
            return
    yield from _zstd_blocks(source)


def _zstd_blocks(source: Path) -> Iterator[bytes]:
    """Every frame; unlike the reader of the library, this notices that the last one was cut off.

    Raises:
        EOFError: a frame is not complete; ZstdError: it is damaged.
    """
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    with source.open("rb") as raw:
        packed = raw.read(_ZSTD_HEAD_BYTES)
        while packed:
            while packed:
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(packed)
                packed = frame.unused_data if frame.eof else b""
            packed = raw.read(_ZSTD_BLOCK_BYTES)
    if not frame.eof:
        raise EOFError
