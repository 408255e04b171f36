"""What a critical path is made of, in tables: kinds of pieces, and every column."""

from __future__ import annotations

import polars as pl

from nsysddp.dependencies.graph import EVIDENCE
from nsysddp.model.schema import FLAG, FLOAT, INT, NAME, SMALL, TEXT, Column, Table

KINDS = (
    "compute",
    "spin",
    "memory",
    "graph",
    "transfer",
    "unmatched_communication",
    "wait",
    "host",
    "sync",
    "host_gap",
    "gap",
    "queued",
    "unknown",
)
"""What a piece of a path can be; up to ``sync`` it is something that was recorded, from ``host_gap`` on inferred."""

KIND_WORDS = {
    "spin": "delay kernels",
    "memory": "copies",
    "graph": "CUDA graphs",
    "unmatched_communication": "communication without a match",
    "wait": "waiting for other ranks",
    "sync": "host waiting for the GPU",
    "host_gap": "host between calls",
    "gap": "start-up",
}
"""What a kind is called in sentences, where that is not its name."""

RECORDED_KINDS = KINDS[: KINDS.index("host_gap")]
COMMUNICATION_KINDS = ("transfer", "unmatched_communication")
KIND = pl.Enum(list(KINDS))
VIAS = ("stream", "event", "launch", "host", "arrival")
VIA = pl.Enum(list(VIAS))
GRADES = {
    "full": "host calls, CUDA events and streams were recorded",
    "no_events": "CUDA event records are missing: dependencies between streams are unknown, so a wait for another "
    "stream shows as a gap (capture with --cuda-event-trace=true)",
    "gpu_only": "host calls are missing: only the order in streams and collectives is known, so what the host did "
    "shows as a gap (capture with --trace=cuda)",
}
"""How much a path may rest on, best first."""

_STEP = Column("step", TEXT, "name of the step whose window this is; null for the whole capture")
_INDEX = Column("step_index", INT, "0-based order of the step; null for the whole capture")
_PATH = Column("path_rank", INT, "rank with whose last event the path ends; tied ranks have a path each")

PATH = Table(
    "critical_path",
    "one piece of a path, in order of time; the pieces of one (step, path_rank) tile its window",
    (
        Column("step", NAME, _STEP.meaning),
        _INDEX,
        _PATH,
        Column("start_ns", INT, "start of the piece"),
        Column("end_ns", INT, "end of the piece"),
        Column("kind", KIND, "what the piece is"),
        Column("via", VIA, "gaps: what the delayed event or call hung on; null otherwise"),
        Column("rank", INT, "rank on which it happened; null before the rank's first call in the capture"),
        Column(
            "stream", SMALL, "CUDA stream of the event (that ran, or that the gap delayed); null for calls"
        ),
        Column("thread", SMALL, "thread of the call (that ran, or that the gap delayed); null for events"),
        Column("name", NAME, "kernel, copy or API name (that ran, or that the gap delayed)"),
        Column("event", INT, "row of the trace's events; null for calls"),
        Column(
            "launched_step",
            SMALL,
            "step_index in which the event was launched; calls: of the event launched next",
        ),
        Column("phase", NAME, "phase in which the event was launched; calls: of the event launched next"),
        Column("bucket", SMALL, "DDP bucket of the communication, from the annotation; null without"),
        Column("waits_for", SMALL, "wait: the rank that arrived last; null otherwise"),
    ),
)

PATH_STEP = Table(
    "critical_path_step",
    "one path: a step (or the capture), and the rank with whose last event the path ends",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("is_warmup", FLAG, "a leading step longer than 1.5 x the median of the rest"),
        Column("tied", FLAG, "other ranks' last events end within 50 us: no rank may be named as the last"),
        Column("window_start_ns", INT, "start of the window: end of the previous step's last event"),
        Column("window_end_ns", INT, "end of the path's last event"),
        Column("path_ns", INT, "window_end_ns - window_start_ns, the sum of the pieces"),
        Column("critical_communication_ns", INT, "transfer and unmatched communication on the path"),
        Column("recorded_ns", INT, "pieces that are recorded activity rather than inferred gaps"),
        Column("recorded_ratio", FLOAT, "recorded_ns / path_ns; null when the window is empty"),
        Column("rank_changes", INT, "times that the path moves to a rank that arrived later"),
        Column("thread_hops", INT, "inferred steps from a call to a call of another thread"),
        Column("ambiguous_launches", INT, "events of which launch and predecessor cannot be told apart"),
        Column("unmatched_communication", INT, "communication pieces without a usable match"),
        Column("grade", TEXT, "what the path could rest on: full, no_events or gpu_only"),
    ),
)

PATH_KIND = Table(
    "critical_path_kind",
    "one kind of piece of one path",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("kind", KIND, "what the pieces are"),
        Column("duration_ns", INT, "sum of the pieces, which do not overlap"),
        Column("pieces", INT, "number of pieces"),
        Column("path_ratio", FLOAT, "duration_ns / path_ns"),
    ),
)

PATH_CAUSE = Table(
    "critical_path_cause",
    "one thing that a path consists of: pieces of one kind, rank, phase and name",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("kind", KIND, "what the pieces are"),
        Column("rank", INT, "rank on which they happened; null before its first call in the capture"),
        Column("phase", TEXT, "phase; null if none"),
        Column("name", TEXT, "kernel, copy or API name"),
        Column("waits_for", INT, "wait: the rank that arrived last"),
        Column("duration_ns", INT, "sum of the pieces, which do not overlap"),
        Column("pieces", INT, "number of pieces"),
    ),
)

PATH_COMMUNICATION = Table(
    "critical_path_communication",
    "communication of one rank in one path's step, by three measures that answer three questions: the rank on which "
    "the path ends, others with communication on it; ranks on which no path of the step ends stand with the first",
    (
        _STEP,
        _INDEX,
        _PATH,
        Column("rank", INT, "rank"),
        Column(
            "critical_communication_ns",
            INT,
            "pieces on the critical path that are this rank's communication; 0 on tied paths without a row of it",
        ),
        Column(
            "exposed_communication_ns",
            INT,
            "communication of the rank under no compute; contains wait; like all that follows the same for each path",
        ),
        Column("exposed_wait_ns", INT, "the part of exposed that is waiting for later ranks: never critical"),
        Column("tail_communication_ns", INT, "communication after the rank's last backward compute, a span"),
    ),
)

PATH_EVIDENCE = Table(
    "critical_path_evidence",
    "one count of what the graph of the whole capture rests on or could not resolve",
    (
        Column("name", TEXT, "what is counted"),
        Column("count", INT, "how many"),
        Column("meaning", TEXT, "in words"),
    ),
)


DOUBTS = (
    "unresolved_waits",
    "late_waits",
    "negative_launches",
    "ambiguous_launches",
    "unmatched_communication",
    "ended_before_arrival",
    "unresolved_calls",
)
"""Counts of the graph that are a warning where they are not 0."""

WARNINGS = {
    **{f"critical_path_{grade}": why for grade, why in GRADES.items() if grade != "full"},
    **{f"critical_path_{name}": EVIDENCE[name] for name in DOUBTS},
    "critical_path_tied": "windows in which several ranks end within 50 us: all are given",
}
"""Warnings about paths, which the diagnosis repeats."""

TABLES = (PATH, PATH_STEP, PATH_KIND, PATH_CAUSE, PATH_COMMUNICATION, PATH_EVIDENCE)
"""The tables of `nsysddp critical-path`, in order."""

KEY = ["step", "step_index", "path_rank"]
"""What a path is known by."""

CAUSE = ["kind", "rank", "phase", "name", "waits_for"]
"""What a thing that a path consists of is known by, in a path."""
