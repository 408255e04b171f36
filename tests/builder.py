"""Tiny synthetic nsys SQLite exports, drawn in a few lines.

A test draws what the GPUs and the host did and gets a file that looks like what ``nsys export
--include-blobs=true`` writes (schema 3.20.3: same tables, columns, identifiers, payload blobs, and no table
without rows)::

    export = Export(unit="ms")
    r0 = export.process(pid=100, device=0)
    r0.range("step 0", 0, 100)
    r0.kernel("sgemm", stream=7, at=(0, 50))
    r0.nccl("AllReduce", stream=17, at=(20, 60), bytes=4 << 20, communicator=0xABC)
    export.write(tmp_path / "a.sqlite")

or, in the notation of the case list (``K sN[a,b)``; c = NCCL all-reduce, g = compute kernel)::

    export.lanes('''
        rank 0 | host "step 0"[0,100)   s7 g[0,50) g[60,90)   s17 c[20,80)
        rank 1 | host "step 0"[0,100)   s7 g[0,50)            s17 c[40,80)
    ''')

Times are in ``unit`` (ms, us or ns) since session start. A launch call, unless told otherwise, begins where
its GPU event begins and lasts a thousandth of the unit (at least 1 ns). Everything can be overridden:
``launched=t`` or ``launched=(a, b)`` moves the call, ``launched=None`` leaves the runtime row out, and
``export.row(table, **columns)`` writes any row at all.
"""

from __future__ import annotations

import random
import re
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid5

#: Tables of schema 3.20.3, one a line: columns are INTEGER, ``:t`` TEXT, ``:r`` REAL, ``!`` NOT NULL.
#: Compared with a real export in test_builder.py. (GPU_METRICS is known from schema 3.7.2 only.)
SCHEMA_TEXT: Final = """
StringIds id! value:t!
ANALYSIS_FILE id! filename:t contentId globalPid!
ProcessStreams globalPid! filenameId! contentId!
NVTX_PAYLOAD_SCHEMAS domainId schemaId name:t type flags numEntries payloadSize alignTo
NVTX_PAYLOAD_SCHEMA_ENTRIES domainId! schemaId! idx! flags type name:t description:t arrayOrUnionDetail \
offset
NVTX_PAYLOAD_ENUMS domainId schemaId name:t numEntries size
NVTX_PAYLOAD_ENUM_ENTRIES domainId! schemaId! idx! name:t value isFlag
TARGET_INFO_SYSTEM_ENV globalVid devStateName:t! name:t! nameEnum! value:t!
TARGET_INFO_SESSION_START_TIME utcEpochNs utcTime:t localTime:t
ANALYSIS_DETAILS globalVid! duration! startTime! stopTime!
DIAGNOSTIC_EVENT timestamp! timestampType! source! severity! text:t! globalPid
NVTX_EVENTS start! end eventType! rangeId category color text:t globalTid endGlobalTid textId domainId \
uint64Value int64Value doubleValue:r uint32Value int32Value floatValue:r jsonTextId jsonText:t \
binaryData:t
CUPTI_ACTIVITY_KIND_CUDA_EVENT deviceId! contextId! greenContextId streamId! correlationId globalPid \
eventId! eventSyncId
CUPTI_ACTIVITY_KIND_RUNTIME start! end! eventClass! globalTid correlationId nameId! returnValue! \
callchainId
CUPTI_ACTIVITY_KIND_SYNCHRONIZATION start! end! deviceId! contextId! greenContextId streamId! \
correlationId globalPid deprecatedSyncType syncType! eventId! eventSyncId
CUPTI_ACTIVITY_KIND_KERNEL start! end! deviceId! contextId! greenContextId streamId! correlationId \
globalPid demangledName! shortName! mangledName launchType cacheConfig registersPerThread! gridX! gridY! \
gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! \
localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig
CUPTI_ACTIVITY_KIND_MEMCPY start! end! deviceId! contextId! greenContextId streamId! correlationId \
globalPid bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId \
dstContextId migrationCause graphNodeId virtualAddress copyCount
CUPTI_ACTIVITY_KIND_MEMSET start! end! deviceId! contextId! greenContextId streamId! correlationId \
globalPid value! bytes! graphNodeId memKind
CUPTI_ACTIVITY_KIND_GRAPH_TRACE start! end! deviceId! contextId! greenContextId streamId! correlationId \
globalPid graphId! graphExecId!
CUDA_GRAPH_NODE_EVENTS start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId
CUDA_GRAPH_EVENTS start! end! eventClass! globalTid nameId! graphId originalGraphId graphExecId
PROFILER_OVERHEAD start! end! globalTid nameId! returnValue!
PROCESSES globalPid pid name:t
ThreadNames nameId! priority globalTid
TARGET_INFO_GPU vmId! id! name:t busLocation:t isDiscrete l2CacheSize totalMemory memoryBandwidth \
clockRate smCount pwGpuId uuid:t luid chipName:t cuDevice ctxswDevPath:t ctrlDevPath:t revision nodeMask \
constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm \
maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX \
maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor
TARGET_INFO_CUDA_DEVICE gpuId cudaId! pid!
TARGET_INFO_CUDA_CONTEXT_INFO nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId \
isGreenContext
TARGET_INFO_CUDA_STREAM streamId! hwId! vmId! processId! contextId! priority! flag!
TARGET_INFO_GPU_METRICS typeId! sourceId! typeName:t! metricId! metricName:t!
GPU_METRICS timestamp typeId! metricId! value!
TARGET_INFO_NETWORK_METRICS metricsListId! metricsIdx! name:t! description:t! unit:t!
NIC_ID_MAP nicId! globalId!
NET_NIC_METRIC start! end! globalId! portId! metricsListId! metricsIdx! value!
NET_IB_SWITCH_METRIC start! end! globalId! metricsListId! metricsIdx! value!
META_DATA_CAPTURE name:t! value:t
META_DATA_EXPORT name:t! value:t
"""

#: table -> column -> its SQL declaration
SCHEMA: Final[dict[str, dict[str, str]]] = {}
for _line in SCHEMA_TEXT.strip().splitlines():
    _table, *_columns = _line.split()
    SCHEMA[_table] = {}
    for _column in _columns:
        _name, _, _kind = _column.rstrip("!").partition(":")
        SCHEMA[_table][_name] = (
            {"": "INTEGER", "t": "TEXT", "r": "REAL"}[_kind]
            + (" NOT NULL" if _column.endswith("!") else "")
            + (" PRIMARY KEY" if _name == "id" and _table in ("StringIds", "ANALYSIS_FILE") else "")
        )

UNIT_NS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000}
TIME_COLUMNS: Final = ("start", "end", "timestamp")
COPY_KINDS: Final = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10, "UvmHtoD": 11, "UvmDtoH": 12, "UvmDtoD": 13}
NVTX_PUSH_POP, NVTX_START_END, NVTX_MARK, NVTX_THREAD_NAME = 59, 60, 34, 39
NVTX_DOMAIN_CREATE = 75
NCCL_DOMAIN: Final = 1
SYNC_EVENT, SYNC_STREAM_WAIT, SYNC_STREAM, SYNC_CONTEXT = 1, 2, 3, 4
NO_STREAM = NO_EVENT = 0xFFFFFFFF  # how CUPTI writes "none"

_STATIC_SCHEMA = (
    0x0100_0000  # NVTX_PAYLOAD_ENTRY_TYPE_SCHEMA_ID_STATIC_START: schemas that a library registers itself
)
_UINT64, _SIZE, _INT = 18, 22, 5  # NVTX payload entry types
_REDUCTION = _STATIC_SCHEMA + 20
REDUCTIONS: Final = ("Sum", "Product", "Max", "Min", "Avg")
_COMM, _BYTES = ("NCCL communicator ID", _UINT64, 0), ("Message size [bytes]", _SIZE, 8)
_REDUCE_ENTRIES = (_COMM, _BYTES, ("Reduction operation", _REDUCTION, 16))
_ROOT_ENTRIES = (_COMM, _BYTES, ("Root", _INT, 16))
_PEER_ENTRIES = (_COMM, _BYTES, ("Peer rank", _INT, 16))
#: NCCL operation -> (schema id, payload size, entries (name, type, offset)), as NCCL 2.28 registers them
NCCL_PAYLOADS: Final[dict[str, tuple[int, int, tuple[tuple[str, int, int], ...]]]] = {
    "AllGather": (_STATIC_SCHEMA + 4, 16, (_COMM, _BYTES)),
    "AllReduce": (_STATIC_SCHEMA + 5, 24, _REDUCE_ENTRIES),
    "Broadcast": (_STATIC_SCHEMA + 6, 24, _ROOT_ENTRIES),
    "ReduceScatter": (_STATIC_SCHEMA + 7, 24, _REDUCE_ENTRIES),
    "Reduce": (_STATIC_SCHEMA + 8, 24, (*_ROOT_ENTRIES, ("Reduction operation", _REDUCTION, 20))),
    "Send": (_STATIC_SCHEMA + 9, 24, _PEER_ENTRIES),
    "Recv": (_STATIC_SCHEMA + 10, 24, _PEER_ENTRIES),
}
NCCL_KERNELS: Final = {
    "AllGather": "ncclDevKernel_AllGather_RING_LL",
    "AllReduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "Broadcast": "ncclDevKernel_Broadcast_RING_LL",
    "ReduceScatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    "Reduce": "ncclDevKernel_Reduce_Sum_f32_RING_LL",
    "Send": "ncclDevKernel_SendRecv",
    "Recv": "ncclDevKernel_SendRecv",
}

Span = tuple[float, float]
Text = str | bytes  # bytes: text that need not be UTF-8
AT_EVENT: Final = object()  # the launch call begins where its GPU event begins


def global_pid(pid: int, *, host: int = 1) -> int:
    """How nsys packs a process: hardware and VM id above, pid in bits 24..47, zero below."""
    return host << 48 | pid << 24


def global_tid(pid: int, tid: int, *, host: int = 1) -> int:
    """How nsys packs a thread: its process, with the tid in the lowest 24 bits."""
    return global_pid(pid, host=host) | tid


def nccl_blob(
    operation: str,
    *,
    bytes: int,
    communicator: int,
    op: str = "Sum",
    root: int = 0,
    peer: int = 0,
    padding: int = 0,
) -> bytes:
    """An NCCL payload as NVTX_EVENTS.binaryData holds it.

    Four u64 (count, schema id, payload size, header size), then the payload. ``padding`` fills the bytes
    behind the last field, which hold garbage in real exports.
    """
    schema_id, size, entries = NCCL_PAYLOADS[operation]
    payload = bytearray(padding.to_bytes(1, "little") * size)
    fields = {
        "NCCL communicator ID": communicator,
        "Message size [bytes]": bytes,
        "Root": root,
        "Peer rank": peer,
    }
    fields["Reduction operation"] = REDUCTIONS.index(op)
    for name, kind, offset in entries:
        code = {_UINT64: "<Q", _SIZE: "<Q", _INT: "<i", _REDUCTION: "<I"}[kind]
        struct.pack_into(code, payload, offset, fields[name])
    return struct.pack("<4Q", 1, schema_id, size, 32) + payload


class Export:
    """One nsys export being drawn; ``rows`` (table -> column dicts) may be edited before ``write``."""

    def __init__(
        self,
        unit: str = "ms",
        *,
        utc_epoch_ns: int | None = 1_795_972_367_577_878_054,
        schema: str | None = "3.20.3",
        product: str = "2025.3.2.0",
        host: str = "node0",
        graph_mode: str = "Graph",
        first_string: int = 0,
    ) -> None:
        self.scale = UNIT_NS[unit]
        self.host = host
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.processes: list[Process] = []
        self._strings: dict[Text, int] = {}
        self._first_string = first_string
        self.string("")
        if utc_epoch_ns is not None:
            self.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_epoch_ns)
        self.row(
            "TARGET_INFO_SYSTEM_ENV",
            globalVid=1 << 48,
            devStateName="Local (CLI)",
            name="Hostname",
            nameEnum=600,
            value=host,
        )
        self.capture("CAPTURE_EVENT_TYPE", "NvtxEvents")
        self.capture("CAPTURE_EVENT_TYPE", "Cuda")
        self.capture("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", graph_mode)
        if schema is not None:
            for key, value in {
                "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
                "EXPORT_PRODUCT_VERSION": product,
                "EXPORT_SCHEMA_VERSION": schema,
                **dict(zip(("MAJOR", "MINOR", "MICRO"), schema.split("."), strict=False)),
                "EXPORT_PARAM_TIME_NORMALIZE": "false",
                "EXPORT_PARAM_TIME_SHIFT": "0",
            }.items():
                name = f"EXPORT_SCHEMA_VERSION_{key}" if key in ("MAJOR", "MINOR", "MICRO") else key
                self.row("META_DATA_EXPORT", name=name, value=value)

    # Rows

    def ns(self, time: float) -> int:
        """A time of the drawing in integer nanoseconds."""
        return round(time * self.scale)

    def span(self, at: Span) -> dict[str, int]:
        """``start`` and ``end`` columns of an interval of the drawing."""
        return {"start": self.ns(at[0]), "end": self.ns(at[1])}

    def row(self, table: str, **columns: Any) -> None:
        """Append one row; columns that are not named are NULL."""
        self.rows.setdefault(table, []).append(columns)

    def string(self, text: Text) -> int:
        """Id of a text in StringIds, added when new."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) and len(self._strings) + self._first_string
            self.row("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def capture(self, name: str, value: str) -> None:
        """One META_DATA_CAPTURE row (settings, environment, command line of the capture)."""
        self.row("META_DATA_CAPTURE", name=name, value=value)

    def diagnostic(self, text: Text, *, severity: int = 2, at: float = 0, source: int = 1) -> None:
        """A message of the profiler (severity 1 info, 2 warning, 3 error)."""
        self.row(
            "DIAGNOSTIC_EVENT",
            timestamp=self.ns(at),
            timestampType=1,
            source=source,
            severity=severity,
            text=text,
        )

    def gpu_metric(self, name: str, samples: Mapping[float, int], *, gpu: int = 0) -> None:
        """Samples (time -> per cent) of one metric of a physical GPU."""
        type_id = 0x4700_0000_0000_0000 | gpu
        known = self.rows.setdefault("TARGET_INFO_GPU_METRICS", [])
        metric = next((r["metricId"] for r in known if r["metricName"] == name), len(known) + 1)
        if not any(r["metricName"] == name and r["typeId"] == type_id for r in known):
            known.append(
                {
                    "typeId": type_id,
                    "sourceId": 0,
                    "typeName": "GPU Metrics",
                    "metricId": metric,
                    "metricName": name,
                }
            )
        for at, value in samples.items():
            self.row("GPU_METRICS", timestamp=self.ns(at), typeId=type_id, metricId=metric, value=value)

    def network_metric(
        self,
        name: str,
        samples: Mapping[float, int],
        *,
        device: int = 0,
        unit: str = "bytes/ms",
        every: float = 1,
    ) -> None:
        """Samples (begin -> mean of the ``every`` ms from there on) of a counter of an adapter."""
        known = self.rows.setdefault("TARGET_INFO_NETWORK_METRICS", [])
        place = next((r["metricsIdx"] for r in known if r["name"] == name), len(known))
        if place == len(known):
            known.append(
                {"metricsListId": 0, "metricsIdx": place, "name": name, "description": "", "unit": unit}
            )
        for at, value in samples.items():
            self.row(
                "NET_NIC_METRIC",
                **self.span((at, at + every)),
                globalId=device,
                portId=0,
                metricsListId=0,
                metricsIdx=place,
                value=value,
            )

    def plant_secret(self, secret: str) -> None:
        """Put a sentinel wherever a capture keeps private text: environment, command, files, paths."""
        pid = self.processes[0].global_pid if self.processes else global_pid(1)
        for name, value in {
            "PROCESS_0:ENVIRONMENT_VARIABLE": f'API_TOKEN="{secret}"',
            "PROCESS_0:COMMAND": f"/home/{secret}/train.py",
            "PROCESS_0:ARGUMENT_0": f"--token={secret}",
            "PROCESS_0:WORKING_DIR": f"/home/{secret}",
        }.items():
            self.capture(name, value)
        self.row(
            "TARGET_INFO_SYSTEM_ENV",
            globalVid=1 << 48,
            devStateName="Local (CLI)",
            name="EnvironmentVariables",
            nameEnum=606,
            value=f"API_TOKEN={secret}",
        )
        self.row("PROCESSES", globalPid=global_pid(9), pid=9, name=f"/opt/{secret}/daemon")
        path, text = self.string(f"/home/{secret}/stdout.log"), self.string(f"logged in with {secret}")
        self.row("ProcessStreams", globalPid=pid, filenameId=path, contentId=text)
        self.row(
            "ANALYSIS_FILE",
            id=1,
            filename=f"/home/{secret}/out",
            contentId=self.string(f"env {secret}"),
            globalPid=pid,
        )
        self.diagnostic(f"program output is in /home/{secret}/stdout.log", severity=1)

    # Processes

    def process(
        self,
        pid: int | None = None,
        device: int = 0,
        *,
        gpu: int | None = None,
        gpus: Mapping[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        name: str = "python",
        first_correlation: int = 1,
        first_event_sync: int = 1,
    ) -> Process:
        """Add a process whose events run on CUDA ordinal ``device``.

        ``gpu`` is the physical GPU behind the ordinal (default: the same number; under CUDA_VISIBLE_DEVICES
        every process has ``device=0`` and its own ``gpu``). ``gpus`` maps ordinals to physical GPUs for a
        process that uses several. ``env`` goes where nsys keeps the environment of the n-th launched process.
        """
        pid = 100 + len(self.processes) if pid is None else pid
        mapping = dict(gpus) if gpus is not None else {device: device if gpu is None else gpu}
        process = Process(self, pid, device, first_correlation, first_event_sync)
        number = len(self.processes)
        self.processes.append(process)
        self.row("PROCESSES", globalPid=process.global_pid, pid=pid, name=name)
        for key, value in (env or {}).items():
            self.capture(f"PROCESS_{number}:ENVIRONMENT_VARIABLE", f'{key}="{value}"')
        for cuda_id, gpu_id in mapping.items():
            self.row("TARGET_INFO_CUDA_DEVICE", gpuId=gpu_id, cudaId=cuda_id, pid=pid)
            self._gpu(gpu_id)
        return process

    def _gpu(self, gpu: int) -> None:
        if any(row["id"] == gpu for row in self.rows.get("TARGET_INFO_GPU", ())):
            return
        self.row(
            "TARGET_INFO_GPU",
            vmId=1 << 48,
            id=gpu,
            name="NVIDIA H200",
            busLocation=f"0000:00:{6 + gpu:02x}.0",
            isDiscrete=1,
            totalMemory=150109880320,
            memoryBandwidth=4814304000000,
            clockRate=1980000000,
            smCount=132,
            pwGpuId=gpu,
            uuid=str(uuid5(UUID(int=0), f"{self.host}/{gpu}")),
            chipName="GH100",
            cuDevice=gpu,
            computeMajor=9,
            computeMinor=0,
            smMajor=9,
            smMinor=0,
        )

    def lanes(self, drawing: str) -> list[Process]:
        """Draw ranks line by line and return the processes in rank order.

        ``rank R |`` names the R-th process (added when missing). ``sN`` chooses a stream for what follows,
        ``K sN[a,b)`` for one event; after ``host``, ``NAME[a,b)`` are push/pop ranges of the main thread
        until the next ``sN``. ``K`` is ``c`` (NCCL all-reduce), ``g`` (gemm), ``spin``, ``memset``,
        ``memcpy``, ``graph``, or any other word: a kernel of that name.
        """
        token = re.compile(
            r"""(?P<name>"[^"]+"|[^\s"\[|]+)(?:\s+s(?P<own>\d+))?\[(?P<a>[^,\]]+),(?P<b>[^)]+)\)"""
            r"""|s(?P<stream>\d+)|(?P<host>host)"""
        )
        for line in filter(None, map(str.strip, drawing.splitlines())):
            header, _, body = line.partition("|")
            match = re.fullmatch(r"rank\s+(\d+)\s*", header)
            if match is None:
                raise ValueError(f"a lane starts with 'rank N |': {line!r}")
            while len(self.processes) <= int(match[1]):
                self.process(device=len(self.processes))
            process = self.processes[int(match[1])]
            stream: int | None = 7
            position = 0
            for part in token.finditer(body):
                if body[position : part.start()].strip(" ,;"):
                    raise ValueError(f"cannot read {body[position : part.start()]!r} in lane {line!r}")
                position = part.end()
                if part["host"]:
                    stream = None
                elif part["stream"]:
                    stream = int(part["stream"])
                else:
                    at = (float(part["a"]), float(part["b"]))
                    own = int(part["own"]) if part["own"] else stream
                    process.draw(part["name"].strip('"'), own, at)
            if body[position:].strip(" ,;"):
                raise ValueError(f"cannot read {body[position:]!r} in lane {line!r}")
        return self.processes

    # File

    def write(
        self,
        path: Path,
        *,
        shuffle: int | None = None,
        lazy: bool = True,
        only: Sequence[Process] | None = None,
        shift_ns: int = 0,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        add: Mapping[str, str] | None = None,
    ) -> Path:
        """Write the export and return its path.

        Args:
            path: The file; an existing one is replaced.
            shuffle: Seed that brings the rows of every table into another order; None keeps the order drawn.
            lazy: Leave tables without rows out, as nsys does by default; False writes them empty.
            only: Keep the rows of these processes, as if the report had been split.
            shift_ns: Added to every event time.
            drop: ``TABLE`` or ``TABLE.column`` to leave out.
            rename: ``TABLE`` or ``TABLE.column`` to its new name.
            add: ``TABLE.column`` to the declaration of a foreign column (filled with its default or NULL).
        """
        path.unlink(missing_ok=True)
        names = dict(rename or {})
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            for table in {**SCHEMA, **self.rows}:
                if table in drop:
                    continue
                rows = [row for row in self.rows.get(table, ()) if only is None or _belongs(row, only)]
                if not rows and lazy:
                    continue
                if shuffle is not None:
                    random.Random(f"{shuffle} {table}").shuffle(rows)
                declared = dict(SCHEMA.get(table, {}))
                for row in rows:
                    for column in row:
                        declared.setdefault(column, "")
                columns = {c: d for c, d in declared.items() if f"{table}.{c}" not in drop}
                body = [f'"{names.get(f"{table}.{c}", c)}" {d}' for c, d in columns.items()]
                body += [
                    f'"{n.split(".")[1]}" {d}' for n, d in (add or {}).items() if n.split(".")[0] == table
                ]
                target = names.get(table, table)
                connection.execute(f'CREATE TABLE "{target}" ({", ".join(body)})')
                listed = ", ".join(f'"{names.get(f"{table}.{c}", c)}"' for c in columns)
                for row in rows:
                    values = [row.get(c) for c in columns]
                    if shift_ns:
                        values = [
                            v + shift_ns if c in TIME_COLUMNS and v is not None else v
                            for c, v in zip(columns, values, strict=True)
                        ]
                    marks = ", ".join(
                        "CAST(? AS TEXT)" if isinstance(v, bytes) and c != "binaryData" else "?"
                        for c, v in zip(columns, values, strict=True)
                    )
                    connection.execute(f'INSERT INTO "{target}" ({listed}) VALUES ({marks})', values)
            connection.execute("COMMIT")
        finally:
            connection.close()
        return path


def _belongs(row: Mapping[str, Any], processes: Sequence[Process]) -> bool:
    """Whether a row is of one of these processes, or of none in particular."""
    pids = {process.pid for process in processes}
    for column in ("globalPid", "globalTid"):
        if row.get(column) is not None:
            return (row[column] >> 24) & 0xFFFFFF in pids
    own = row.get("pid", row.get("processId"))
    return own is None or own in pids


@dataclass
class Process:
    """One process of an export: what it ran on its device and what its host threads did.

    Threads are named by their tid; the main thread's tid is the pid. GPU calls return their correlation id.
    """

    export: Export
    pid: int
    device: int
    next_correlation: int = 1
    next_event_sync: int = 1
    grid: int = 0
    _recorded: dict[int, int] = field(default_factory=dict)
    _domains: dict[str, int] = field(default_factory=dict)

    @property
    def global_pid(self) -> int:
        """Serialized id of this process."""
        return global_pid(self.pid)

    def tid(self, thread: int | None) -> int:
        """Serialized id of a thread; None is the main thread."""
        return global_tid(self.pid, self.pid if thread is None else thread)

    # Host

    def call(
        self,
        api: str,
        at: Span,
        *,
        thread: int | None = None,
        correlation: int | None = None,
        result: int = 0,
    ) -> int:
        """A CUDA API call (the driver's unless named ``cuda...``) without GPU work of its own."""
        if correlation is None:
            correlation = self.next_correlation
            self.next_correlation += 1
        self.export.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            **self.export.span(at),
            eventClass=0 if api.startswith("cuda") else 1,
            globalTid=self.tid(thread),
            correlationId=correlation,
            nameId=self.export.string(api),
            returnValue=result,
        )
        return correlation

    def range(
        self,
        name: Text,
        start: float,
        end: float | None,
        *,
        thread: int | None = None,
        kind: str = "push",
        end_thread: int | None = None,
        domain: str | None = None,
        registered: bool = False,
        **columns: Any,
    ) -> None:
        """An NVTX range, ``push`` (push/pop) or ``start_end``, which ``end_thread`` may end.

        ``end`` None: never closed. ``registered`` keeps the name in ``textId`` instead of ``text``;
        ``domain`` names another NVTX domain.
        """
        named: dict[str, Any] = {"textId": self.export.string(name)} if registered else {"text": name}
        if kind == "start_end":
            ranges = [r for r in self.export.rows.get("NVTX_EVENTS", ()) if r["eventType"] == NVTX_START_END]
            named |= {
                "rangeId": len(ranges) + 1,
                "endGlobalTid": self.tid(thread if end_thread is None else end_thread),
            }
        self.export.row(
            "NVTX_EVENTS",
            start=self.export.ns(start),
            end=None if end is None else self.export.ns(end),
            eventType={"push": NVTX_PUSH_POP, "start_end": NVTX_START_END}[kind],
            globalTid=self.tid(thread),
            domainId=0 if domain is None else self.domain(domain),
            **named,
            **columns,
        )

    def mark(self, name: Text, at: float, *, thread: int | None = None, domain: str | None = None) -> None:
        """An NVTX mark."""
        self.export.row(
            "NVTX_EVENTS",
            start=self.export.ns(at),
            eventType=NVTX_MARK,
            text=name,
            globalTid=self.tid(thread),
            domainId=0 if domain is None else self.domain(domain),
        )

    def domain(self, name: str) -> int:
        """Id of an NVTX domain of this process, created when new (NCCL's is always 1)."""
        if name not in self._domains:
            taken = len(self._domains) + ("NCCL" not in self._domains)
            self._domains[name] = NCCL_DOMAIN if name == "NCCL" else taken + 1
            self.export.row(
                "NVTX_EVENTS",
                start=-1_000_000_000,
                eventType=NVTX_DOMAIN_CREATE,
                text=name,
                globalTid=self.tid(None),
                domainId=self._domains[name],
            )
            if name == "NCCL":
                self._nccl_schemas()
        return self._domains[name]

    def thread_name(self, thread: int | None, name: Text) -> None:
        """The operating system's name of a thread."""
        self.export.row(
            "ThreadNames", nameId=self.export.string(name), priority=0, globalTid=self.tid(thread)
        )

    # GPU work

    def _gpu_columns(
        self, at: Span, stream: int, correlation: int | None, device: int | None, context: int
    ) -> dict[str, Any]:
        return {
            **self.export.span(at),
            "deviceId": self.device if device is None else device,
            "contextId": context,
            "greenContextId": 0,
            "streamId": stream,
            "correlationId": correlation,
            "globalPid": self.global_pid,
        }

    def _launch(
        self, api: str, at: Span, launched: object, thread: int | None, correlation: int | None
    ) -> tuple[int, Span]:
        """Correlation id and span of the launch call of an event at ``at``, written unless there is none."""
        begin: Any = at[0] if launched is AT_EVENT or launched is None else launched
        length = max(0.001, 1 / self.export.scale)
        call: Span = begin if isinstance(begin, tuple) else (begin, begin + length)
        if correlation is not None:
            return correlation, call
        if launched is None:
            correlation = self.next_correlation
            self.next_correlation += 1
            return correlation, call
        return self.call(api, call, thread=thread), call

    def kernel(
        self,
        name: Text = "sgemm",
        stream: int = 7,
        at: Span = (0, 1),
        *,
        launched: object = AT_EVENT,
        thread: int | None = None,
        device: int | None = None,
        context: int = 1,
        correlation: int | None = None,
        graph_node: int | None = None,
        demangled: Text | None = None,
        api: str = "cudaLaunchKernel_v7000",
        **columns: Any,
    ) -> int:
        """A kernel; ``correlation`` attaches it to a call written before (a graph launch)."""
        correlation, _ = self._launch(api, at, launched, thread, correlation)
        self.grid += 1
        short = self.export.string(name)
        defaults = {
            "demangledName": short if demangled is None else self.export.string(demangled),
            "shortName": short,
            "launchType": 1,
            "cacheConfig": 1,
            "registersPerThread": 32,
            **dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1),
            "blockX": 128,
            **dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread"), 0),
            "localMemoryTotal": 0,
            "gridId": self.grid,
            "sharedMemoryExecuted": 32768,
            "graphNodeId": graph_node,
            "sharedMemoryLimitConfig": 0,
        }
        gpu = self._gpu_columns(at, stream, correlation, device, context)
        self.export.row("CUPTI_ACTIVITY_KIND_KERNEL", **{**gpu, **defaults, **columns})
        return correlation

    def copy(
        self,
        kind: str = "HtoD",
        at: Span = (0, 1),
        bytes: int = 1 << 20,
        stream: int = 7,
        *,
        launched: object = AT_EVENT,
        thread: int | None = None,
        device: int | None = None,
        context: int = 1,
        correlation: int | None = None,
        **columns: Any,
    ) -> int:
        """A memory copy of a kind of ``COPY_KINDS``."""
        correlation, _ = self._launch("cudaMemcpyAsync_v3020", at, launched, thread, correlation)
        gpu = self._gpu_columns(at, stream, correlation, device, context)
        extra = {
            "bytes": bytes,
            "copyKind": COPY_KINDS[kind],
            "srcKind": 1 if kind == "HtoD" else 2,
            "copyCount": 1,
            "dstKind": 1 if kind == "DtoH" else 2,
        }
        self.export.row("CUPTI_ACTIVITY_KIND_MEMCPY", **{**gpu, **extra, **columns})
        return correlation

    def memset(
        self,
        at: Span = (0, 1),
        bytes: int = 4,
        stream: int = 7,
        *,
        launched: object = AT_EVENT,
        thread: int | None = None,
        device: int | None = None,
        context: int = 1,
        correlation: int | None = None,
        **columns: Any,
    ) -> int:
        """A memset."""
        correlation, _ = self._launch("cudaMemsetAsync_v3020", at, launched, thread, correlation)
        gpu = self._gpu_columns(at, stream, correlation, device, context)
        self.export.row(
            "CUPTI_ACTIVITY_KIND_MEMSET", **{**gpu, "value": 0, "bytes": bytes, "memKind": 2, **columns}
        )
        return correlation

    def graph(
        self,
        at: Span = (0, 1),
        stream: int = 7,
        *,
        graph_id: int = 1,
        launched: object = AT_EVENT,
        thread: int | None = None,
        context: int = 1,
    ) -> int:
        """A CUDA graph traced as one span."""
        correlation, _ = self._launch("cudaGraphLaunch_v10000", at, launched, thread, None)
        gpu = self._gpu_columns(at, stream, correlation, None, context)
        self.export.row("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **gpu, graphId=graph_id, graphExecId=graph_id + 1)
        return correlation

    def graph_nodes(
        self, launched: Span, kernels: Sequence[tuple[str, int, Span]], *, thread: int | None = None
    ) -> int:
        """A CUDA graph traced by nodes: one call, whose id all kernels ``(name, stream, at)`` share."""
        correlation = self.call("cudaGraphLaunch_v10000", launched, thread=thread)
        for index, (name, stream, at) in enumerate(kernels):
            node = (2 << 32) + index
            self.export.row(
                "CUDA_GRAPH_NODE_EVENTS",
                start=-1_000_000,
                end=-1_000_000,
                eventClass=77,
                globalTid=self.tid(thread),
                nameId=self.export.string("Graph Node Creation"),
                graphNodeId=node,
            )
            self.kernel(name, stream, at, correlation=correlation, graph_node=node)
        return correlation

    # NCCL

    def _nccl_schemas(self) -> None:
        """The payload schemas of NCCL's domain; every process writes its own copy."""
        row = self.export.row
        for schema, size, entries in NCCL_PAYLOADS.values():
            row(
                "NVTX_PAYLOAD_SCHEMAS",
                domainId=NCCL_DOMAIN,
                schemaId=schema,
                type=1,
                numEntries=len(entries),
                payloadSize=size,
            )
            for index, (name, kind, offset) in enumerate(entries):
                row(
                    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                    domainId=NCCL_DOMAIN,
                    schemaId=schema,
                    idx=index,
                    type=kind,
                    name=name,
                    offset=offset or None,
                )
        row("NVTX_PAYLOAD_ENUMS", domainId=NCCL_DOMAIN, schemaId=_REDUCTION, numEntries=5, size=4)
        for value, name in enumerate(REDUCTIONS):
            row(
                "NVTX_PAYLOAD_ENUM_ENTRIES",
                domainId=NCCL_DOMAIN,
                schemaId=_REDUCTION,
                idx=value,
                name=name,
                value=value or None,
            )

    def nccl_call(
        self,
        operation: str,
        at: Span,
        *,
        thread: int | None = None,
        bytes: int = 4 << 20,
        communicator: int = 0xC0FFEE,
        op: str = "Sum",
        root: int = 0,
        peer: int = 0,
        padding: int = 0,
        payload: bool = True,
    ) -> None:
        """The range that NCCL pushes around an operation, ``GroupStart`` or ``GroupEnd``; no kernel."""
        domain = self.domain("NCCL")
        blob = None
        if payload and operation in NCCL_PAYLOADS:
            blob = nccl_blob(
                operation,
                bytes=bytes,
                communicator=communicator,
                op=op,
                root=root,
                peer=peer,
                padding=padding,
            )
        self.export.row(
            "NVTX_EVENTS",
            **self.export.span(at),
            eventType=NVTX_PUSH_POP,
            globalTid=self.tid(thread),
            textId=self.export.string(f"nccl{operation}"),
            domainId=domain,
            binaryData=blob,
        )

    def nccl(
        self,
        operation: str = "AllReduce",
        stream: int = 17,
        at: Span = (0, 1),
        *,
        launched: object = AT_EVENT,
        thread: int | None = None,
        name: str | None = None,
        device: int | None = None,
        context: int = 1,
        **payload: Any,
    ) -> int:
        """A collective, send or receive: kernel, launch, and NCCL's range with the payload around the launch.

        ``payload``: bytes, communicator, op, root, peer, padding; ``payload=False`` leaves the blob out.
        """
        correlation, call = self._launch("cuLaunchKernelEx", at, launched, thread, None)
        if launched is not None:
            self.nccl_call(operation, call, thread=thread, **payload)
        return self.kernel(
            name or NCCL_KERNELS[operation],
            stream,
            at,
            device=device,
            context=context,
            correlation=correlation,
        )

    def nccl_group(
        self,
        operations: Sequence[tuple[str, Mapping[str, Any]]],
        stream: int = 17,
        at: Span = (0, 1),
        *,
        launched: Span,
        thread: int | None = None,
        name: str | None = None,
        nested: int = 0,
    ) -> int:
        """One kernel for several operations between ncclGroupStart and ncclGroupEnd, which launches it.

        ``launched`` is the host time of the whole group; ``nested`` further pairs of group calls lie inside.
        """
        begin, end = launched
        names = [
            "GroupStart",
            *["GroupStart"] * nested,
            *[o for o, _ in operations],
            *["GroupEnd"] * nested,
            "GroupEnd",
        ]
        payloads: list[Mapping[str, Any]] = (
            [{}] * (1 + nested) + [p for _, p in operations] + [{}] * (1 + nested)
        )
        step = (end - begin) / len(names)
        for index, (operation, payload) in enumerate(zip(names, payloads, strict=True)):
            self.nccl_call(
                operation, (begin + index * step, begin + (index + 1) * step), thread=thread, **payload
            )
        kernel = name or NCCL_KERNELS[operations[0][0]]
        call = (end - 0.75 * step, end - 0.25 * step)
        return self.kernel(kernel, stream, at, launched=call, thread=thread, api="cuLaunchKernelEx")

    # Order between streams, and waiting on the host

    def record(
        self, event: int, stream: int, at: float | Span, *, thread: int | None = None, context: int = 1
    ) -> int:
        """Record a CUDA event on a stream by a call at ``at``; returns its sync id."""
        correlation, _ = self._launch("cudaEventRecord_v3020", (0, 0), at, thread, None)
        sync = self.next_event_sync
        self.next_event_sync += 1
        self._recorded[event] = sync
        self.export.row(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            deviceId=self.device,
            contextId=context,
            greenContextId=0,
            streamId=stream,
            correlationId=correlation,
            globalPid=self.global_pid,
            eventId=event,
            eventSyncId=sync,
        )
        return sync

    def _sync_row(
        self, call: Span, sync_type: int, stream: int, event: int, sync: int, correlation: int
    ) -> None:
        self.export.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            **self.export.span(call),
            deviceId=0,  # as in real exports: 0 on every rank
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=self.global_pid,
            syncType=sync_type,
            eventId=event,
            eventSyncId=sync,
        )

    def wait(
        self,
        event: int,
        stream: int,
        at: float | Span,
        *,
        thread: int | None = None,
        sync_id: int | None = None,
    ) -> int:
        """Make a stream wait for the newest record of an event (``sync_id`` names another one)."""
        correlation, call = self._launch("cudaStreamWaitEvent_v3020", (0, 0), at, thread, None)
        sync = self._recorded.get(event, 0) if sync_id is None else sync_id
        self._sync_row(call, SYNC_STREAM_WAIT, stream, event, sync, correlation)
        return correlation

    def sync(
        self,
        what: str,
        at: Span,
        *,
        stream: int = 7,
        event: int = 0,
        thread: int | None = None,
        row: bool | None = None,
    ) -> int:
        """A blocking call (``device``, ``stream``, ``event``) or a ``query``, which does not block.

        ``row`` says whether CUPTI's synchronisation row is there (default: as in real exports).
        """
        api, sync_type, on, of, sync = {
            "device": ("cudaDeviceSynchronize_v3020", SYNC_CONTEXT, NO_STREAM, NO_EVENT, 0),
            "stream": ("cudaStreamSynchronize_v3020", SYNC_STREAM_WAIT, stream, NO_EVENT, NO_EVENT),
            "event": ("cudaEventSynchronize_v3020", SYNC_EVENT, NO_STREAM, event, 0),
            "query": ("cudaEventQuery_v3020", SYNC_EVENT, NO_STREAM, event, 0),
        }[what]
        correlation = self.call(api, at, thread=thread)
        if row if row is not None else what != "device":
            self._sync_row(at, sync_type, on, of, sync, correlation)
        return correlation

    def draw(self, kind: str, stream: int | None, at: Span) -> None:
        """One element of ``Export.lanes``."""
        if stream is None:
            self.range(kind, *at)
        elif kind == "c":
            self.nccl("AllReduce", stream, at)
        elif kind == "memset":
            self.memset(at, stream=stream)
        elif kind == "memcpy":
            self.copy("HtoD", at, stream=stream)
        elif kind == "graph":
            self.graph(at, stream)
        else:
            self.kernel({"g": "sgemm", "spin": "spin_kernel"}.get(kind, kind), stream, at)
