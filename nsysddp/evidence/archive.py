"""A ZIP file with one way to write it: the same members give the same bytes, and any other bytes are noticed.

Members are in order of name, deflated, without times, attributes or extra fields. The archive comment seals it: it
holds the SHA-256 of everything before the end record. Reading rebuilds the container from the members' compressed
bytes and compares, so that nothing can hide between, before or behind them.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from nsysddp.model.errors import EvidenceError
from nsysddp.model.names import visible

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION, _UTF8, _DEFLATE = 20, 0x800, 8
_TIME, _DATE = 0, 0x21
"""Midnight of the first day that the format knows, 1980-01-01."""

_ATTRIBUTES = 0o100644 << 16
_SEAL = b"nsysddp evidence, sha256 of what precedes: "
MOST_BYTES = 0xFFFF_FFFE
"""Of an archive, and of a member: more the format cannot say."""
_MOST_TIMES = 200
_ALWAYS_BYTES = 256 << 20
"""Tables, pages and exports pack 3 to 30 times; a small bundle may unpack to this in any case."""


@dataclass(frozen=True)
class _Member:
    name: str
    crc: int
    size: int
    packed: bytes


def write(members: Mapping[str, bytes]) -> bytes:
    """The archive of these members.

    Raises:
        EvidenceError: it would be larger than the format allows (4 GB).
    """
    made = [
        _Member(name, zlib.crc32(content), len(content), _packed(content))
        for name, content in sorted(members.items())
    ]
    if sum(len(member.packed) for member in made) > MOST_BYTES or any(
        member.size > MOST_BYTES for member in made
    ):
        raise EvidenceError("the bundle would be larger than 4 GB", do="bundle fewer steps with --steps")
    return _container(made)


def _packed(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


def _container(members: list[_Member]) -> bytes:
    body: list[bytes] = []
    directory: list[bytes] = []
    offset = 0
    for member in members:
        name = member.name.encode()
        shared = (_UTF8, _DEFLATE, _TIME, _DATE, member.crc, len(member.packed), member.size, len(name), 0)
        local = _LOCAL.pack(b"PK\3\4", _VERSION, *shared) + name
        # Made on Unix (3), so that the permissions count.
        directory.append(
            _CENTRAL.pack(b"PK\1\2", 3 << 8 | _VERSION, _VERSION, *shared, 0, 0, 0, _ATTRIBUTES, offset)
            + name
        )
        body += [local, member.packed]
        offset += len(local) + len(member.packed)
    index = b"".join(directory)
    content = b"".join(body) + index
    seal = _SEAL + hashlib.sha256(content).hexdigest().encode()
    end = _END.pack(b"PK\5\6", 0, 0, len(members), len(members), len(index), offset, len(seal))
    return content + end + seal


def read(content: bytes) -> tuple[dict[str, bytes], list[str]]:
    """The members of an archive, and everything in which its bytes are not those of ``write``.

    Raises:
        EvidenceError: it is no archive of this kind, or is too damaged to be read.
    """
    size = _END.size + len(_SEAL) + 64
    at = len(content) - size
    if at < 0 or content[at : at + 4] != b"PK\5\6":
        at = content.rfind(b"PK\5\6")
    if at < 0 or len(content) < at + _END.size:
        raise EvidenceError("not a ZIP file, or its end is missing", do="get the bundle again")
    _, _, _, _, count, index_size, index_at, seal_size = _END.unpack_from(content, at)
    if index_at + index_size > at:
        raise EvidenceError("damaged: its table of contents is not where it says", do="get the bundle again")
    entries = _entries(content, count, index_at, at)
    _refuse_bombs(entries, len(content))
    problems: list[str] = []
    found: list[_Member] = []
    members: dict[str, bytes] = {}
    for entry in entries:
        packed = content[entry.start : entry.start + entry.packed_size]
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # A bound: a damaged or hostile stream must not unpack without end.
            data = packed if entry.is_stored else unpacker.decompress(packed, entry.size + 1)
        except zlib.error:
            data = b""
        if len(data) != entry.size or zlib.crc32(data) != entry.crc or unpacker.unused_data:
            problems.append(f"{entry.name}: its bytes are damaged")
        if entry.name in members:
            problems.append(f"{entry.name}: is in the archive twice")
        found.append(_Member(entry.name, entry.crc, entry.size, packed))
        members[entry.name] = data
    if [member.name for member in found] != sorted({member.name for member in found}):
        problems.append("the members are not in their order")
    if _container(found) != content:
        seal = content[at + _END.size : at + _END.size + seal_size]
        sound = seal == _SEAL + hashlib.sha256(content[:at]).hexdigest().encode()
        problems.append(
            "the archive was repacked or holds more than its members"
            if sound
            else "the archive was changed after it was written (its seal does not fit)"
        )
    return members, problems


@dataclass(frozen=True)
class _Entry:
    """What the table of contents says of a member."""

    name: str
    crc: int
    size: int
    packed_size: int
    start: int
    is_stored: bool
    """By another program: read nevertheless, to say what differs."""


def _entries(content: bytes, count: int, index_at: int, end_at: int) -> list[_Entry]:
    """The table of contents.

    Raises:
        EvidenceError: it cannot be read.
    """
    entries = []
    place = index_at
    for _ in range(count):
        if place + _CENTRAL.size > end_at or content[place : place + 4] != b"PK\1\2":
            raise EvidenceError("damaged: its table of contents cannot be read", do="get the bundle again")
        fields = _CENTRAL.unpack_from(content, place)
        crc, packed_size, size, name_size, extra, comment = fields[7:13]
        name = content[place + _CENTRAL.size : place + _CENTRAL.size + name_size].decode(
            "utf-8", "backslashreplace"
        )
        place += _CENTRAL.size + name_size + extra + comment
        offset = fields[16]
        if offset + _LOCAL.size > index_at:
            raise EvidenceError(
                f"damaged: {visible(name)} is not where it should be", do="get the bundle again"
            )
        local = _LOCAL.unpack_from(content, offset)
        start = offset + _LOCAL.size + local[9] + local[10]
        entries.append(_Entry(name, crc, size, packed_size, start, is_stored=fields[4] == 0))
    return entries


def _refuse_bombs(entries: list[_Entry], archive_size: int) -> None:
    """Refuse an archive that unpacks to more than a bundle can be, before anything is unpacked.

    Members that share packed bytes could unpack to any size, so the packed sizes count too.

    Raises:
        EvidenceError: it is one.
    """
    unpacked = sum(entry.size for entry in entries)
    if unpacked > max(_ALWAYS_BYTES, _MOST_TIMES * archive_size):
        raise EvidenceError(
            f"the archive would unpack to {unpacked:,} bytes, more than a bundle of its size can hold",
            do="do not trust it; get the bundle again",
        )
    if sum(entry.packed_size for entry in entries) > archive_size:
        raise EvidenceError(
            "the archive has members that lie in each other",
            do="do not trust it; get the bundle again",
        )
