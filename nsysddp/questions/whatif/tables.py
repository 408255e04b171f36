"""The tables of the answer."""

from __future__ import annotations

from nsysddp.model.schema import FLAG, FLOAT, INT, TEXT, Column, Table

WHATIF = Table(
    "whatif",
    "one scenario",
    (
        Column(
            "scenario", TEXT, "unchanged, no_communication, faster_K, no_straggler, ..., cap_MIB, order_NAME"
        ),
        Column("step_ns", INT, "predicted mean steady step; null with a reason"),
        Column("low_ns", INT, "lower end of the band"),
        Column("high_ns", INT, "upper end of the band"),
        Column("change_ns", INT, "predicted - unchanged"),
        Column("change_ratio", FLOAT, "change_ns / unchanged"),
        Column("error_ratio", FLOAT, "half the band over the prediction"),
        Column("buckets", INT, "bucket scenarios: number of buckets"),
        Column("last_bucket_bytes", INT, "bucket scenarios: bytes of the last bucket"),
        Column(
            "excess_ratio",
            FLOAT,
            "caps: by how much it is longer than the shortest cap, at least, for all that the capture leaves open",
        ),
        Column("is_captured", FLAG, "bucket scenarios: the layout is the captured one"),
        Column("reason", TEXT, "why there is no prediction, or what limits it"),
    ),
)

WHATIF_REPLAY = Table(
    "whatif_replay",
    "one step: recorded, and replayed with nothing changed",
    (
        Column("step", TEXT, "name of the step; null for the whole capture"),
        Column("step_index", INT, "0-based order of the step; null for the whole capture"),
        Column("is_used", FLAG, "steady, and not the first"),
        Column(
            "recorded_ns",
            INT,
            "from the end of the steps before to the end of its last event, over all ranks",
        ),
        Column("replayed_ns", INT, "the same in the replay"),
        Column("error_ratio", FLOAT, "replayed / recorded - 1"),
    ),
)

WHATIF_LINK = Table(
    "whatif_link",
    "the fitted transfer time of gradient collectives",
    (
        Column("kind", TEXT, "collective kind"),
        Column("group_size", INT, "ranks in the communicator"),
        Column("latency_ns", INT, "time of an empty message; null if one size only was seen"),
        Column("bandwidth_gbps", FLOAT, "algorithm bandwidth of a large message, decimal GB/s"),
        Column("error_ratio", FLOAT, "median relative deviation of the collectives from the line"),
        Column("spread_ratio", FLOAT, "90th percentile of it"),
        Column("smallest_bytes", INT, "smallest message seen"),
        Column("largest_bytes", INT, "largest message seen"),
        Column("small_bytes", INT, "typical message far below these (a barrier); null if none was seen"),
        Column("small_ns", INT, "its time"),
        Column("samples", INT, "collectives"),
        Column("sizes", INT, "distinct sizes"),
    ),
)

TABLES = (WHATIF, WHATIF_REPLAY, WHATIF_LINK)
"""The tables of `nsysddp whatif`, in order."""
