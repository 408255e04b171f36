"""Parts as files: what was read of a report, for another process or for the next run.

A file is a preamble (what it is, the hash of all that follows), tables as Arrow streams, which are mapped into memory
and not copied, and a header at the end (JSON: the facts, and where each table lies). A file of a cache is believed if
its hash and the key in it are right, else it is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa

import nsysddp
from nsysddp.ingest import facts, host, queries
from nsysddp.ingest.ordered import Ordered
from nsysddp.ingest.part import Part, Wanted
from nsysddp.model.errors import UsageError
from nsysddp.model.names import visible
from nsysddp.model.scratch import publish, scratch_folder
from nsysddp.model.trace import Input

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAGIC = b"nsysddp part 1\n\0"
_HASH = slice(len(_MAGIC), len(_MAGIC) + 32)
_END = slice(_HASH.stop, _HASH.stop + 8)
"""Where the size of the tables is, behind which the header begins."""
_PREAMBLE = 64
_ALIGNED = 64
_FRAMES = ("ranges", "operations", "calls", "records", "syncs", "shapes", "metrics", "network")
_BOOLEANS = ("graph_node", "known")


def key_of(path: Path, digest: str, wanted: Wanted) -> str:
    """What a part depends on, as one word: the report's content and name, what is wanted, and this program."""
    rules = [
        [
            rule.pattern.pattern, rule.class_, rule.kind, rule.full, rule.hints,
            rule.unless.pattern if rule.unless else None,
        ]
        for rule in wanted.rules.rules
    ]  # fmt: skip
    asked = {
        field.name: getattr(wanted, field.name)
        for field in fields(wanted)
        if field.name not in ("rules", "nsys")
    }
    text = json.dumps(
        [_MAGIC.decode(), _program(), digest, visible(path.name), asked, rules, wanted.rules.own]
    )
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _program() -> str:
    """This version, to the letter of what reads reports."""
    digest = hashlib.sha256(nsysddp.__version__.encode())
    for folder, kind in ((Path(__file__).parent, "*.py"), (queries.folder(), "*.sql")):
        for path in sorted(folder.glob(kind)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class _Hashed:
    """A stream that hashes what is written to it; Arrow writes through it."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append."""
        self.digest.update(data)
        self.size += memoryview(data).nbytes
        return self._stream.write(data)

    def flush(self) -> None:
        """Nothing is held back."""


def write(part: Part, stream: BinaryIO, key: str = "") -> None:
    """Write a part to an empty stream, as it is read: never all of it in memory twice."""
    part.hashed_input()
    stream.write(bytes(_PREAMBLE))
    body = _Hashed(stream)
    places: dict[str, tuple[int, int]] = {}
    for name, table in _tables(part).items():
        body.write(bytes(-body.size % _ALIGNED))
        first = body.size
        with pa.ipc.new_stream(pa.PythonFile(body, mode="w"), table.schema) as arrow:
            arrow.write_table(table)
        places[name] = (first, body.size - first)
    end = body.size.to_bytes(8, "little")
    body.write(json.dumps({"key": key, "tables": places, **_facts(part)}).encode())
    body.digest.update(end)
    stream.seek(0)
    stream.write(_MAGIC + body.digest.digest() + end)


def decoded(content: pa.Buffer, path: Path) -> Part:
    """The part of the report at ``path``, from the bytes of its file."""
    header, body = _split(content)
    tables = {
        name: pa.ipc.open_stream(body[first : first + size]).read_all()
        for name, (first, size) in header["tables"].items()
    }
    launches = _columns(tables["launches"]) if "launches" in tables else None
    given, about, events = header["input"], header["about"], header["events"]
    part = Part(
        path=path,
        name=header["name"],
        input=Input(
            **{
                **given,
                "tables": frozenset(given["tables"]),
                "capabilities": frozenset(given["capabilities"]),
                "diagnostics": tuple(given["diagnostics"]),
            }
        ),
        anchor=header["anchor"],
        processes=tuple(header["processes"]),
        about=facts.About(
            host=about["host"],
            gpu_of={(pid, device): gpu for pid, device, gpu in about["gpu_of"]},
            gpus={gpu: (name, uuid, bus) for gpu, name, uuid, bus in about["gpus"]},
            environment=about["environment"],
            observing=tuple(about["observing"]),
            silent=tuple(about["silent"]),
            shown=about["shown"],
        ),
        events=Ordered(
            columns=_columns(tables["events"]),
            lanes=[(process, device) for process, device in events["lanes"]],
            ends=events["ends"],
            spans=[(first, last) for first, last in events["spans"]],
            names=[(group, text) for group, text in events["names"]],
            kernels=events["kernels"],
        ),
        launches=host.Launches(**launches) if launches else None,
        sought=_columns(tables["sought"])["row"] if "sought" in tables else None,
        families=tuple(header["families"]),
        notes=tuple((code, count, message) for code, count, message in header["notes"]),
    )
    for name in _FRAMES:
        if name in tables:
            setattr(part, name, _frame(tables[name]))
    return part


def is_intact(content: pa.Buffer, key: str = "") -> bool:
    """Is this the file of a part, whole and unchanged, and (with ``key``) the one that is meant?"""
    view = memoryview(content)
    if len(view) < _PREAMBLE or bytes(view[: _HASH.start]) != _MAGIC:
        return False
    digest = hashlib.sha256(view[_PREAMBLE:])
    digest.update(view[_END])
    return digest.digest() == bytes(view[_HASH]) and (not key or bool(_split(content)[0]["key"] == key))


def _split(content: pa.Buffer) -> tuple[dict[str, Any], pa.Buffer]:
    """The header, and the tables before it."""
    view = memoryview(content)
    end = _PREAMBLE + int.from_bytes(view[_END], "little")
    return json.loads(bytes(view[end:])), content[_PREAMBLE:end]


def _tables(part: Part) -> dict[str, pa.Table]:
    found = {"events": _table(part.events.columns)}
    if part.launches is not None:
        found["launches"] = _table(vars(part.launches))
    if part.sought is not None:
        found["sought"] = _table({"row": part.sought})
    frames = {name: getattr(part, name) for name in _FRAMES}
    return found | {name: frame.to_arrow() for name, frame in frames.items() if frame is not None}


def _table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Columns without copying; true and false as bytes, because Arrow's bits are no numpy array."""
    return pa.table(
        {
            name: pa.array(values.view(np.uint8) if values.dtype == bool else values)
            for name, values in columns.items()
        }
    )


def _columns(table: pa.Table) -> dict[str, np.ndarray]:
    found = {name: table[name].combine_chunks().to_numpy() for name in table.column_names}
    return {name: values.view(bool) if name in _BOOLEANS else values for name, values in found.items()}


def _frame(table: pa.Table) -> pl.DataFrame:
    """The table; texts are copied, for those that a trace keeps would keep the whole file in memory."""
    made = pl.from_arrow(table)
    assert isinstance(made, pl.DataFrame)
    return made.with_columns(pl.col(pl.String) + "")


def _facts(part: Part) -> dict[str, Any]:
    about, events, given = part.about, part.events, part.input
    return {
        "name": part.name,
        "input": {
            **asdict(given),
            "tables": sorted(given.tables),
            "capabilities": sorted(given.capabilities),
        },
        "anchor": part.anchor,
        "processes": part.processes,
        "about": {
            **vars(about),
            "gpu_of": [(*key, gpu) for key, gpu in about.gpu_of.items()],
            "gpus": [(gpu, *told) for gpu, told in about.gpus.items()],
        },
        "events": {name: getattr(events, name) for name in ("lanes", "ends", "spans", "names", "kernels")},
        "families": part.families,
        "notes": part.notes,
    }


class Folder:
    """A folder of parts, which several runs may use at once; whatever goes wrong with it raises UsageError.

    Args:
        path: the folder; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def locked(self, key: str) -> Iterator[Folder]:
        """Meanwhile no other run makes this part: it waits and finds it. Where locks are not known, both make it."""
        with self._refusing():
            self._place(key).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._place(key).parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield self
        finally:
            os.close(lock)

    def get(self, key: str) -> Path | None:
        """The file of the part with this key; None if there is none that can be believed."""
        path = self._place(key)
        try:
            return path if is_intact(opened(path), key) else None
        except (OSError, ValueError):
            return None

    def put(self, key: str, part: Part) -> Path:
        """Keep a part, whole or not at all; whatever was there under its key is replaced."""
        path = self._place(key)
        with self._refusing(), scratch_folder(path.parent) as beside:
            with (beside / path.name).open("w+b") as stream:
                write(part, stream, key)
            publish(beside / path.name, path, replace=True)
        return path

    def _place(self, key: str) -> Path:
        return self._path / key[:2] / f"{key}.part"

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"the cache {visible(self._path.name)} cannot be written: {error.strerror}",
                do="name another --cache",
            ) from error


def opened(path: Path) -> pa.Buffer:
    """The content of a file, mapped into memory."""
    with pa.memory_map(str(path)) as source:
        return source.read_buffer()
