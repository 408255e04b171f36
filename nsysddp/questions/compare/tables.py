"""The tables of a comparison."""

from __future__ import annotations

from nsysddp.model.schema import FLAG, FLOAT, INT, TEXT, Column, Table

COMPARISON = Table(
    "comparison",
    "one metric of the job or of one rank, base against new",
    (
        Column("metric", TEXT, "name of the metric"),
        Column("rank", INT, "rank; null: the job"),
        Column("unit", TEXT, "unit of all values of the row"),
        Column("base", FLOAT, "mean over the base runs of a run's median step"),
        Column("new", FLOAT, "the same of the new runs"),
        Column("difference", FLOAT, "new - base"),
        Column("change_ratio", FLOAT, "difference / base; null when base is 0"),
        Column(
            "low", FLOAT, "lower end of the 95 % interval of the difference; null where the data allows none"
        ),
        Column("high", FLOAT, "its upper end"),
        Column("detectable", FLOAT, "smallest difference that this data would have shown (4 times of 5)"),
        Column("scope", TEXT, "runs: holds for further runs; these_runs: only for the runs measured; none"),
        Column("verdict", TEXT, "faster, slower, lower, higher, no difference shown, or not enough data"),
        Column("base_runs", INT, "runs of the base"),
        Column("new_runs", INT, "runs of the new side"),
        Column("base_steps", INT, "steady steps of all base runs"),
        Column("new_steps", INT, "the same of the new side"),
        Column("reason", TEXT, "why a value or verdict is missing; null otherwise"),
    ),
)

ACCOUNT = Table(
    "account",
    "one part of a step, base against new; the parts of one (view, rank) sum to its 'step' row exactly",
    (
        Column("view", TEXT, "window: time on the rank's GPU; critical_path: what the job's step hung on"),
        Column("rank", INT, "rank; null: the job"),
        Column("part", TEXT, "step (the whole), or what it is made of"),
        Column("base_ns", INT, "mean over steps, then over runs"),
        Column("new_ns", INT, "the same of the new side"),
        Column("change_ns", INT, "new_ns - base_ns"),
    ),
)

MATRIX = Table(
    "matrix",
    "one metric on one rank of one side, over the steady steps of all its runs",
    (
        Column("side", TEXT, "base or new"),
        Column("metric", TEXT, "name of the metric"),
        Column("rank", INT, "rank"),
        Column("steps", INT, "steps"),
        Column("median", FLOAT, "median"),
        Column("p95", FLOAT, "95th percentile, a value that occurred; null under 20 steps"),
        Column("p99", FLOAT, "99th percentile, a value that occurred; null under 100 steps"),
        Column("largest", FLOAT, "largest"),
        Column(
            "is_slowest",
            FLAG,
            "no rank of this side has a larger median, and some a smaller",
        ),
    ),
)

UNLIKE = Table(
    "unlike",
    "one thing besides the times in which the two sides, or the runs of one side, are not alike",
    (
        Column("what", TEXT, "what differs"),
        Column("base", TEXT, "its values in the base runs"),
        Column("new", TEXT, "its values in the new runs"),
        Column(
            "refused", FLAG, "a difference of this kind makes the comparison meaningless unless it is wanted"
        ),
    ),
)

TABLES = {table.name: table for table in (COMPARISON, ACCOUNT, MATRIX, UNLIKE)}
