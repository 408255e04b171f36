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

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION, _UTF8, _DEFLATE = 20, 0x800, 8
_TIME, _DATE = 0, 0x21
"""Midnight of the first day that the format knows, 1980-01-01."""

_ATTRIBUTES = 0o100644 << 16
_SEAL = b"nsysddp evidence, sha256 of what precedes: "
_LIMIT = 0xFFFF_FFFE


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
    made = []
    for name in sorted(members):
        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        content = members[name]
        made.append(
            _Member(name, zlib.crc32(content), len(content), packer.compress(content) + packer.flush())
        )
    if sum(len(member.packed) for member in made) > _LIMIT or any(member.size > _LIMIT for member in made):
        raise EvidenceError("the bundle would be larger than 4 GB", do="bundle fewer steps with --steps")
    return _container(made)


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
    problems: list[str] = []
    found: list[_Member] = []
    members: dict[str, bytes] = {}
    place = index_at
    for _ in range(count):
        if place + _CENTRAL.size > at or content[place : place + 4] != b"PK\1\2":
            raise EvidenceError("damaged: its table of contents cannot be read", do="get the bundle again")
        entry = _CENTRAL.unpack_from(content, place)
        crc, packed_size, full_size, name_size, extra, comment, offset = (
            *entry[7:10], entry[10], entry[11], entry[12], entry[16],
        )  # fmt: skip
        raw_name = content[place + _CENTRAL.size : place + _CENTRAL.size + name_size]
        place += _CENTRAL.size + name_size + extra + comment
        name = raw_name.decode("utf-8", "backslashreplace")
        if offset + _LOCAL.size > index_at:
            raise EvidenceError(f"damaged: {name} is not where it should be", do="get the bundle again")
        local = _LOCAL.unpack_from(content, offset)
        start = offset + _LOCAL.size + local[9] + local[10]
        packed = content[start : start + packed_size]
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        stored = entry[4] == 0  # by another program: still said what differs, below
        try:
            # A bound: a damaged or hostile stream must not unpack without end.
            data = packed if stored else unpacker.decompress(packed, full_size + 1)
        except zlib.error:
            data = b""
        if len(data) != full_size or zlib.crc32(data) != crc or unpacker.unused_data:
            problems.append(f"{name}: its bytes are damaged")
        if name in members:
            problems.append(f"{name}: is in the archive twice")
        found.append(_Member(name, crc, full_size, packed))
        members[name] = data
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
