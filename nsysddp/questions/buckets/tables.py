"""The table of buckets."""

from __future__ import annotations

from nsysddp.model.schema import FLAG, INT, IS_WARMUP, RANK_NUMBER, STEP_INDEX, STEP_NAME, TEXT, declare

BUCKET = declare(
    "bucket",
    "one DDP bucket (or FSDP unit) of one step on one rank, in order of launch",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("role", TEXT, "gradients (all-reduce), gather_forward, gather_backward or reduce_scatter"),
        (
            "bucket",
            INT,
            "number of the bucket: DDP's own from the annotation, else the order of launch in its role",
        ),
        ("source", TEXT, "annotation, or inferred from the order of launches"),
        ("micro_step", INT, "which backward (forward) range of the step, 0-based: gradient accumulation"),
        ("is_last", FLAG, "last bucket of its backward (by the annotation or the order)"),
        ("collective_id", INT, "of its first communication kernel; null where unmatched"),
        ("communicator", TEXT, "communicator id in hex; null if unknown"),
        ("stream", INT, "CUDA stream of its communication"),
        ("events", INT, "communication kernels of the bucket"),
        ("bytes", INT, "bytes: of the bucket by the annotation, else of the message; null if unknown"),
        ("parameters", INT, "parameters in it, from the annotation; null without"),
        ("hook_ns", INT, "host time at which its communication hook began; null without annotation"),
        (
            "launched_ns",
            INT,
            "start of the launch call of its first communication kernel; null without launch row",
        ),
        ("ready_ns", INT, "end of the last event of the producing queue that it waited for; null if unknown"),
        (
            "ready_source",
            TEXT,
            "event (a recorded CUDA event), launch_order (last compute launched before), or null",
        ),
        ("producer", TEXT, "name of that event"),
        ("started_ns", INT, "start of its first communication kernel"),
        ("ended_ns", INT, "end of its last communication kernel"),
        ("launch_late_ns", INT, "max(0, launched - ready): ready on the GPU, not yet launched by the host"),
        (
            "queued_ns",
            INT,
            "time, ready and launched, in which the communication ahead in its queue still ran",
        ),
        ("queued_behind", INT, "row of the trace's events that was ahead and held it; null if none"),
        (
            "pending_ns",
            INT,
            "time, ready, launched and first in its queue, until it started: latency, or no room on the GPU",
        ),
        (
            "held_by",
            INT,
            "head-of-line: earlier bucket of which its launch waited for (same role); null if none",
        ),
        (
            "arrival_skew_ns",
            INT,
            "latest - earliest start of its collective over the ranks; null where unmatched",
        ),
        ("last_rank", INT, "rank that arrived last"),
        ("wait_ns", INT, "sum over its kernels of the wait for later ranks; null where unmatched"),
        ("transfer_ns", INT, "sum over its kernels of the transfer; null where unmatched"),
        ("hidden_ns", INT, "|its kernels & P|"),
        ("exposed_ns", INT, "|its kernels - P|"),
        ("hidden_transfer_ns", INT, "transfer under compute; null where unmatched"),
        ("exposed_transfer_ns", INT, "transfer under no compute; null where unmatched"),
        ("tail_ns", INT, "part of its kernels after the step's last backward compute; null without backward"),
        ("consumer_ns", INT, "gathers: start of the first compute event that waited for it; null if unknown"),
        (
            "slack_ns",
            INT,
            "gathers: end of the work ahead of the consumer - ended; negative: compute waited that long",
        ),
        (
            "prefetch_distance",
            INT,
            "gathers: units launched up to this one whose consumer was not yet launched, less one",
        ),
    ],
)
