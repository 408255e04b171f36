"""The tables of contention: each slowed kernel, each window, each sampled metric."""

from __future__ import annotations

from nsysddp.model.schema import FLOAT, INT, IS_WARMUP, RANK_NUMBER, STEP_INDEX, STEP_NAME, TEXT, declare

CONTENTION = declare(
    "contention",
    "one kernel (or one kind and size of collective) that ran beside the other side, on one rank and in one phase",
    [
        RANK_NUMBER,
        ("side", TEXT, "compute: kernels beside communication; communication: transfers beside compute"),
        ("phase", TEXT, "phase in which it was launched; null if none"),
        ("name", TEXT, "kernel name; collective kind on the communication side"),
        ("grid", TEXT, "grid dimensions; null on the communication side"),
        ("block", TEXT, "block dimensions; null on the communication side"),
        (
            "after",
            TEXT,
            "kernel ahead of it in its queue: a shape does other work in other places; null if none",
        ),
        ("bytes", INT, "message size; null on the compute side"),
        ("alone", INT, "executions with nothing of the other side beside them"),
        ("accompanied", INT, "executions of which at least half has the other side beside it"),
        ("partial", INT, "executions between the two: not compared, but their time beside it has its cost"),
        ("alone_median_ns", INT, "median duration alone, rounded down; null if never"),
        ("accompanied_median_ns", INT, "median duration accompanied, rounded down; null if never"),
        ("ratio", FLOAT, "accompanied median / alone median; null with a reason"),
        ("ratio_low", FLOAT, "2.5 % of the bootstrap"),
        ("ratio_high", FLOAT, "97.5 % of the bootstrap"),
        ("beside_ns", INT, "sum over its executions of the time beside the other side"),
        (
            "cost_per_step_ns",
            INT,
            "beside x (1 - 1 / ratio) per window; negative where it was faster; null with a reason",
        ),
        ("reason", TEXT, "why there is no ratio: too_few_alone, too_few_accompanied or mixed_work"),
    ],
)

CONTENTION_STEP = declare(
    "contention_step",
    "what overlap gained and cost in one window of one rank",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("hidden_communication_ns", INT, "|C & P|"),
        ("hidden_transfer_ns", INT, "transfer part of it: what overlap saved"),
        (
            "measured_ratio",
            FLOAT,
            "share of the time beside communication whose kernels have a ratio; null if none ran",
        ),
        ("contention_ns", INT, "compute time that communication beside it cost; null with a reason"),
        ("contention_low_ns", INT, "2.5 % of the bootstrap"),
        ("contention_high_ns", INT, "97.5 % of the bootstrap"),
        ("net_overlap_gain_ns", INT, "hidden_transfer - contention; null with a reason"),
        ("net_overlap_gain_low_ns", INT, "hidden_transfer - contention_high"),
        ("net_overlap_gain_high_ns", INT, "hidden_transfer - contention_low"),
        ("reason", TEXT, "why a figure is null, and what to capture"),
    ],
)

CONTENTION_METRIC = declare(
    "contention_metric",
    "one sampled GPU metric on one rank in one situation",
    [
        RANK_NUMBER,
        ("metric", TEXT, "name of the metric"),
        ("situation", TEXT, "compute_alone, both, communication_alone or neither"),
        ("samples", INT, "samples whose whole sampling interval (nine tenths of it) lies in the situation"),
        ("mean_value", FLOAT, "mean of those samples, in the unit of the metric"),
        ("median_value", FLOAT, "median of those samples"),
    ],
)
