"""The tables of idle time and of the launch queue."""

from __future__ import annotations

import polars as pl

from nsysddp.model.schema import (
    FLAG,
    FLOAT,
    INT,
    IS_WARMUP,
    RANK_NUMBER,
    STEP_INDEX,
    STEP_NAME,
    TEXT,
    declare,
)

IDLE_CAUSES = (
    "launch_late",
    "event_wait",
    "communication_wait",
    "memory_copy",
    "synchronisation",
    "stream_latency",
    "allocation",
    "other_process",
    "unexplained",
    "end_of_work",
    "unknown",
)
"""Why a GPU was idle; see ``questions.idle``."""

IDLE = declare(
    "idle",
    "one piece of an idle gap of one rank, with its cause; the pieces of all causes tile the idle time",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        ("gap", INT, "number of the gap on its rank, in order of time; a gap over a window's edge is two"),
        ("start_ns", INT, "start of the piece"),
        ("end_ns", INT, "end of the piece"),
        ("cause", pl.Enum(list(IDLE_CAUSES)), "why"),
        (
            "activity",
            TEXT,
            "what went on: call, host_gap (host between calls), sync, latency, other_rank, nothing",
        ),
        (
            "name",
            TEXT,
            "call or host gap: API name of the call (after the gap); other_rank: the event that ran there",
        ),
        ("thread", INT, "thread of that call"),
        ("delayed_event", INT, "row of the trace's events: what ended the gap; null at the end of work"),
        ("delayed_name", TEXT, "its name"),
        ("phase", TEXT, "phase in which that was launched"),
        (
            "awaited_event",
            INT,
            "row of the trace's events that the event or synchronising call waited for; null if none or not known",
        ),
        ("awaited_name", TEXT, "its name"),
        (
            "waits_for",
            INT,
            "rank that arrived last in the awaited collective (or on which the awaited event ran)",
        ),
        (
            "call",
            TEXT,
            "synchronising, copying or allocating call that this piece is part or consequence of; null if none",
        ),
        ("call_start_ns", INT, "its start, which tells the call apart"),
        ("consequence", FLAG, "the idle time came after that call, out of the lead that the host lost in it"),
    ],
)

IDLE_STEP = declare(
    "idle_step",
    "one cause of idle time in one window of one rank",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("cause", pl.Enum(list(IDLE_CAUSES)), "why"),
        ("idle_ns", INT, "sum of the pieces, which do not overlap"),
        ("pieces", INT, "number of pieces"),
        ("longest_ns", INT, "longest piece"),
        ("window_ratio", FLOAT, "idle_ns / window"),
    ],
)

LAUNCH_QUEUE = declare(
    "launch_queue",
    "one change of the number of launched and not yet started events of one rank",
    [
        RANK_NUMBER,
        ("time_ns", INT, "from this time"),
        ("depth", INT, "events launched and not yet started"),
    ],
)

LAUNCH_QUEUE_STEP = declare(
    "launch_queue_step",
    "launch-queue depth in one window of one rank",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("mean_depth", FLOAT, "mean over time; null when the window is empty"),
        ("max_depth", INT, "largest depth"),
        ("empty_ns", INT, "time in which nothing was launched ahead"),
        ("unlaunched", INT, "events that started in it without a launch row: not in the depth"),
    ],
)
