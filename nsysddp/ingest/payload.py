"""What do binary NVTX payloads say: communicator, message size, reduction, root, peer of an NCCL call?

A payload blob is ``u64 count``, then per payload ``u64 schema id, u64 size, u64 offset``, then the payloads. The
fields of a schema are described in the export's schema tables; nothing about NCCL's layout is assumed beyond the
labels of its fields. Raw bytes are never compared: the padding between fields is garbage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_UNSIGNED, _SIGNED, _FLOAT = "u", "i", "f"
_TYPES: Mapping[int, str] = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "i8", 8: "u8", 9: "i8", 10: "u8",
    11: "i1", 12: "u1", 13: "i2", 14: "u2", 15: "i4", 16: "u4", 17: "i8", 18: "u8", 19: "f4", 20: "f8",
    22: "u8", 23: "u8", 32: "u1",
}  # fmt: skip
"""NVTX payload entry type to numpy type on a 64-bit little-endian host (nvtxExtPayload: char .. byte)."""

_FIRST_SCHEMA_ID = 1 << 24
_MOST_BYTES, _MOST_RANKS = 1 << 42, 1 << 20
"""No message has more bytes (4 TiB), and no job more ranks: more is damage, and products of it would overflow."""

_LABELS = {
    "communicator": re.compile(r"(?i)nccl communicator( id)?|communicator( id)?|comm(unicator)? ?hash"),
    "bytes": re.compile(r"(?i)message size( \[bytes\])?|bytes|size \[bytes\]"),
    "reduction": re.compile(r"(?i)reduction( operation)?|redop"),
    "root": re.compile(r"(?i)root( rank)?"),
    "peer": re.compile(r"(?i)peer( rank)?"),
    "ranks": re.compile(r"(?i)no\. of ranks|number of ranks|nranks"),
    "own_rank": re.compile(r"(?i)rank"),
    "algorithm": re.compile(r"(?i)(nccl )?algo(rithm)?"),
    "protocol": re.compile(r"(?i)(nccl )?proto(col)?"),
    "channels": re.compile(r"(?i)((no\.|number) of |n)?channels"),
}

_NAMED = ("reduction", "algorithm", "protocol")
"""Fields whose numbers have names."""

_NUMBERED: Mapping[str, tuple[str, ...]] = {
    "algorithm": ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"),
    "protocol": ("ll", "ll128", "simple"),
}
"""NCCL's own numbers of algorithms and protocols, which its payloads hold without names."""


@dataclass(frozen=True)
class Field:
    """One field of a payload: what it means here, its numpy type, offset in bytes, and enum names if any."""

    meaning: str
    dtype: str
    offset: int
    names: Mapping[int, str] | None = None


@dataclass(frozen=True)
class Decoded:
    """Fields of many payloads, row by row with the blobs; null where a blob does not carry the field.

    Attributes:
        communicator: hex text.
        bytes: message size as NCCL recorded it.
        reduction: name of the reduction.
        root, peer, ranks, own_rank, channels: integers.
        algorithm, protocol: their names, or the numbers where the export has no names for them.
        skipped: blobs whose schema is unknown, ambiguous or malformed, or with numbers that cannot be.
    """

    communicator: list[str | None]
    bytes: list[int | None]
    reduction: list[str | None]
    root: list[int | None]
    peer: list[int | None]
    ranks: list[int | None]
    own_rank: list[int | None]
    algorithm: list[str | None]
    protocol: list[str | None]
    channels: list[int | None]
    skipped: int


class Schemas:
    """The payload schemas of one report.

    The tables repeat them per process without saying which process; equal repetitions are one schema, and where
    two processes define the same (domain, schema) differently the pair is ambiguous and its blobs are skipped.

    Args:
        entries: rows of ``payload_entries.sql``.
        enums: rows of ``payload_enums.sql``.
    """

    def __init__(
        self, entries: Sequence[Mapping[str, object]], enums: Sequence[Mapping[str, object]]
    ) -> None:
        self._enums = _enum_tables(enums)
        variants: dict[tuple[int, int], list[tuple[Field, ...]]] = defaultdict(list)
        for key, rows in _alternatives(entries).items():
            for alternative in rows:
                fields = self._layout(key[0], alternative)
                if fields is not None and fields not in variants[key]:
                    variants[key].append(fields)
        self._schemas = {key: found[0] for key, found in variants.items() if len(found) == 1}

    def _layout(self, domain: int, rows: Sequence[Mapping[str, object]]) -> tuple[Field, ...] | None:
        """Known fields with their offsets; None if a field before a known one has an unknown size."""
        fields: list[Field] = []
        position: int | None = 0
        for row in rows:
            code = _int(row.get("type"))
            names = self._enums.get((domain, code)) if code >= _FIRST_SCHEMA_ID else None
            dtype = names[0] if names else _TYPES.get(code)
            offset = row.get("byte_offset")
            if dtype is None:
                position = None  # its size is unknown, so what follows needs an offset of its own
                continue
            size = int(dtype[1:])
            if offset is None and position is None:
                return None
            at = -(-(position or 0) // size) * size if offset is None else _int(offset)
            position = at + size
            flags = _int(row.get("flags"))
            meaning = _meaning(str(row.get("name") or ""))
            # Pointers and arrays are not the value itself, and nothing asked for is a real number.
            if meaning and not flags & 0x6 and at >= 0 and not dtype.startswith(_FLOAT):
                fields.append(Field(meaning, dtype, at, names[1] if names else None))
        return tuple(fields)

    def decode(self, domains: Sequence[int], blobs: Sequence[bytes]) -> Decoded:
        """The NCCL fields of each blob.

        Args:
            domains: NVTX domain of each blob, inside its process.
            blobs: the blobs; an empty one carries nothing and is not counted as skipped.
        """
        count = len(blobs)
        out = {name: np.full(count, None, dtype=object) for name in _LABELS}
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (domain, blob) in enumerate(zip(domains, blobs, strict=True)):
            if blob:
                groups[int(domain), len(blob)].append(row)
        skipped = 0
        for (domain, size), rows in groups.items():
            if size < 32:
                skipped += len(rows)
                continue
            matrix = np.frombuffer(b"".join(blobs[row] for row in rows), dtype=np.uint8).reshape(-1, size)
            header = np.ascontiguousarray(matrix[:, :32]).view("<u8")
            at_row = np.asarray(rows)
            for schema, length, offset in np.unique(header[:, 1:4], axis=0):
                same = (header[:, 0] >= 1) & (header[:, 1:4] == (schema, length, offset)).all(axis=1)
                fields = self._schemas.get((domain, int(schema)))
                if fields is None or int(offset) + int(length) > size:
                    skipped += int(same.sum())
                    continue
                skipped += self._extract(fields, matrix[same], at_row[same], int(offset), int(length), out)
            skipped += int((header[:, 0] < 1).sum())
        return Decoded(**{name: column.tolist() for name, column in out.items()}, skipped=skipped)

    @staticmethod
    def _extract(
        fields: tuple[Field, ...],
        matrix: np.ndarray,
        rows: np.ndarray,
        offset: int,
        length: int,
        out: Mapping[str, np.ndarray],
    ) -> int:
        """Fill ``out``; in how many payloads is a number that cannot be?"""
        wrong = np.zeros(rows.size, dtype=bool)
        for field in fields:
            size = int(field.dtype[1:])
            if field.offset + size > length:
                continue
            first = offset + field.offset
            values = np.ascontiguousarray(matrix[:, first : first + size]).view(f"<{field.dtype}")[:, 0]
            distinct, inverse = np.unique(values, return_inverse=True)
            spelled = np.empty(distinct.size, dtype=object)
            for index, value in enumerate(distinct.tolist()):
                if field.meaning == "communicator":
                    spelled[index] = f"0x{int(value) & (2**64 - 1):x}"
                elif field.meaning in _NAMED:
                    spelled[index] = _name(field, int(value))
                elif 0 <= value <= (_MOST_BYTES if field.meaning == "bytes" else _MOST_RANKS):
                    spelled[index] = int(value)
            out[field.meaning][rows] = spelled[inverse.ravel()]
            wrong |= np.array([text is None for text in spelled], dtype=bool)[inverse.ravel()]
        return int(np.count_nonzero(wrong))


def _name(field: Field, value: int) -> str:
    """What an enumerated number is called; the number itself where that is not known."""
    usual = _NUMBERED.get(field.meaning, ())
    named = field.names or dict(enumerate(usual))
    return named.get(value, str(value)).lower()


def _meaning(label: str) -> str | None:
    return next((name for name, pattern in _LABELS.items() if pattern.fullmatch(label.strip())), None)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _alternatives(
    rows: Sequence[Mapping[str, object]],
) -> dict[tuple[int, int], list[list[Mapping[str, object]]]]:
    """Entries by (domain, schema): every layout that they can mean, in order of their index.

    Rows come in any order, so repetitions are told by content: one where all processes agree, two where some index
    has two definitions (the first of each index, and the last), which is enough to see whether they differ.
    """
    grouped: dict[tuple[int, int], dict[int, dict[str, Mapping[str, object]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in rows:
        key = (_int(row.get("domain")), _int(row.get("schema_id")))
        content = repr([row.get(name) for name in ("type", "flags", "name", "detail", "byte_offset")])
        grouped[key][_int(row.get("idx"))][content] = row
    made = {}
    for key, by_index in grouped.items():
        ordered = [[found[text] for text in sorted(found)] for _, found in sorted(by_index.items())]
        made[key] = [[found[end] for found in ordered] for end in (0, -1)]
    return made


def _enum_tables(rows: Sequence[Mapping[str, object]]) -> dict[tuple[int, int], tuple[str, dict[int, str]]]:
    """(domain, enum) to its numpy type and names."""
    tables: dict[tuple[int, int], tuple[str, dict[int, str]]] = {}
    for row in rows:
        key = (_int(row.get("domain")), _int(row.get("schema_id")))
        size = row.get("size_bytes")
        dtype = f"i{size}" if size in (1, 2, 4, 8) else "i4"
        tables.setdefault(key, (dtype, {}))[1].setdefault(_int(row.get("value")), str(row.get("name")))
    return tables
