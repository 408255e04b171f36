"""Which bytes of an NVTX payload may be copied?"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

_PAYLOAD_INTEGERS = {3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 9: 8, 10: 8, 11: 1, 12: 1, 13: 2, 14: 2}
_PAYLOAD_INTEGERS |= {15: 4, 16: 4, 17: 8, 18: 8, 22: 8}
"""Type -> bytes of the fixed-size integers of NVTX payloads (nvToolsExtPayload.h); no characters, strings, pointers."""


Rows = Callable[..., list[tuple[Any, ...]]]
"""(table, *columns) -> the rows of the report."""


def known_fields(
    rows: Rows, names: re.Pattern[str]
) -> dict[tuple[object, object], frozenset[tuple[int, int]]]:
    """Offset and width of the numbers that may be copied, per (domainId, schemaId).

    Schemas are repeated per process without saying whose they are. A schema whose repetitions disagree about a
    known field, or whose known field cannot be placed, has none: a zero in its stead would be read as a number.

    Args:
        rows: reads the report.
        names: of the fields that may be copied.
    """
    enums: dict[tuple[object, object], set[object]] = defaultdict(set)
    for domain_id, schema_id, size in rows("NVTX_PAYLOAD_ENUMS", "domainId", "schemaId", "size"):
        enums[domain_id, schema_id].add(size)
    layouts: dict[tuple[object, object], list[set[tuple[int, int] | None]]] = defaultdict(list)
    position: int | None = 0
    for domain_id, schema_id, idx, flags, kind, name, offset in rows(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES",
        *("domainId", "schemaId", "idx", "flags", "type", "name", "offset"),
    ):
        repetitions = layouts[domain_id, schema_id]
        if idx == 0 or not repetitions:
            repetitions.append(set())
            position = 0
        sizes = enums.get((domain_id, kind), set())
        width = _PAYLOAD_INTEGERS.get(kind) or next((n for n in (1, 2, 4, 8) if sizes == {n}), None)
        # Without an offset a field follows the one before it, aligned to its own size.
        at = offset
        if offset is None and width is not None and position is not None:
            at = -(-position // width) * width
        position = at + width if isinstance(at, int) and width is not None else None
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
        if names.fullmatch(text):
            # Flags mark pointers and arrays.
            if flags or width is None or not isinstance(at, int) or at < 0:
                repetitions[-1].add(None)
            else:
                repetitions[-1].add((at, width))
    return {
        schema: frozenset(place for place in repetitions[0] if place is not None)
        for schema, repetitions in layouts.items()
        if repetitions[0] and None not in repetitions[0] and all(r == repetitions[0] for r in repetitions)
    }


class Payloads:
    """Which bytes of an NVTX payload may be copied, by the schemas in the report itself.

    Args:
        fields: (domainId, schemaId) -> (offset, width) of every number that may be copied.
    """

    def __init__(self, fields: Mapping[tuple[object, object], frozenset[tuple[int, int]]]) -> None:
        self._fields = fields
        self.kept = 0
        self.cleared = 0

    def copy(self, domain_id: object, blob: bytes) -> bytes | None:
        """The payload with every byte outside a known number as zero; None if its layout is not known.

        Layout: u64 count, then per payload u64 schemaId, u64 size, u64 offset, then the payloads. Padding goes to
        zero because it holds whatever was in memory there.
        """
        rebuilt = self._rebuilt(domain_id, blob)
        self.kept += rebuilt is not None
        self.cleared += rebuilt is None
        return rebuilt

    def _rebuilt(self, domain_id: object, blob: bytes) -> bytes | None:
        if len(blob) < 8:
            return None
        (count,) = struct.unpack_from("<Q", blob)
        header = 8 + 24 * count
        if not 1 <= count <= 64 or len(blob) < header:
            return None
        rebuilt = bytearray(len(blob))
        rebuilt[:header] = blob[:header]
        for index in range(count):
            schema_id, size, offset = struct.unpack_from("<QQQ", blob, 8 + 24 * index)
            allowed = self._fields.get((domain_id, schema_id))
            if not allowed or offset < header or offset + size > len(blob):
                return None
            for at, width in allowed:
                if at + width <= size:
                    rebuilt[offset + at : offset + at + width] = blob[offset + at : offset + at + width]
        return bytes(rebuilt)
