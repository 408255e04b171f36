"""Who sends how much to whom, how fast, and how unequal are the shares of an all-to-all?

A message is a send or receive that NCCL's payload names with its peer. Kernels that carry messages to several ranks
move all of them at once, so only kernels with one peer tell the speed of a pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.ingest.attribute import Carried, carried_operations
from nsysddp.join.members import places
from nsysddp.model.schema import FLAG, FLOAT, INT, Column, Table
from nsysddp.questions.communicators.groups import IN_NO_GROUP

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace
    from nsysddp.questions.communicators.groups import Groups

PAIR = Table(
    "pair",
    "one direction between two ranks, summed over the steps used",
    (
        Column("sender", INT, "rank that sends"),
        Column("receiver", INT, "rank that receives"),
        Column("same_host", FLAG, "both are on one host"),
        Column("messages", INT, "messages"),
        Column("bytes", INT, "bytes sent; null where a size is unknown"),
        Column("alone", INT, "of the messages, those whose kernel had no other peer"),
        Column("transfer_ns", INT, "of those: time from the later start to the end; null if none is known"),
        Column("sender_wait_ns", INT, "of those: wait of the sender's kernels for the receiver"),
        Column("receiver_wait_ns", INT, "of those: wait of the receiver's kernels for the sender"),
        Column("busbw_gbps", FLOAT, "bytes of those / transfer, decimal GB/s"),
    ),
)

EXCHANGE = Table(
    "exchange",
    "one rank in the all-to-alls of one group, summed over the steps used",
    (
        Column("group", INT, "number of the group"),
        Column("rank", INT, "rank"),
        Column("exchanges", INT, "all-to-alls of which all sizes are known"),
        Column("sent_bytes", INT, "bytes sent to other ranks"),
        Column("received_bytes", INT, "bytes received from other ranks"),
        Column("sent_ratio", FLOAT, "sent / mean over the ranks of the group"),
        Column("received_ratio", FLOAT, "received / mean over the ranks of the group"),
        Column(
            "worst_ratio",
            FLOAT,
            "mean over the exchanges of received / mean of that exchange's ranks, where above",
        ),
        Column(
            "group_ratio",
            FLOAT,
            "of the whole group: mean over its exchanges of the most that a rank receives / mean of the ranks",
        ),
        Column("wait_ns", INT, "wait of its kernels for later ranks"),
        Column("transfer_ns", INT, "transfer of its kernels"),
    ),
)


def messages_of(groups: Groups) -> pl.DataFrame:
    """Every message of the steps used, once from either end.

    Returns:
        event, rank, group, kind, step, phase, collective_id, time_ns, wait_ns, shortest_ns, sends (else it receives),
        peer (the other rank; null if it is not known), bytes, peers (of the kernel).
    """
    trace = groups.trace
    events = groups.events.filter(pl.col("group") != IN_NO_GROUP)
    carried = _carried(trace, events["event"].to_numpy())
    known = [group for group in groups.all if group.communicator is not None]
    members = {str(group.communicator): group.ranks for group in known}
    whole = {str(group.communicator) for group in known if group.size == len(group.ranks)}
    found = places(trace.operations, members, trace.process_of_rank)
    place = pl.DataFrame(
        [(communicator, at, rank) for (rank, communicator), at in found.items() if communicator in whole],
        schema={"communicator": pl.String, "place": pl.Int64, "peer": pl.Int64},
        orient="row",
    )
    return (
        carried.join(
            events.select(
                "event",
                "rank",
                "group",
                "communicator",
                "kind",
                "step",
                "phase",
                "collective_id",
                "shortest_ns",
                time_ns=pl.col("end_ns") - pl.col("start_ns"),
                wait_ns=pl.col("transfer_start_ns") - pl.col("start_ns"),
            ),
            on="event",
        )
        .join(place, on=["communicator", "place"], how="left")
        .with_columns(peers=pl.col("place").n_unique().over("event").cast(pl.Int64))
        .drop("communicator", "place")
        .sort("rank", "event", "sends", "peer")
    )


def activations_of(messages: pl.DataFrame, *, phases: bool) -> pl.DataFrame:
    """Sends and receives that tell which way a pipeline leads: those in forward.

    Where the capture marks no passes: the first message of each rank in each step.

    Args:
        messages: of ``messages_of``.
        phases: forward and backward are marked.
    """
    known = messages.filter((pl.col("kind") == "send_recv") & pl.col("peer").is_not_null())
    forward = known.filter(pl.col("phase") == "forward")
    if forward.height or phases:
        return forward
    return known.filter(pl.col("event") == pl.col("event").min().over("rank", "step"))


def edges_of(messages: pl.DataFrame) -> set[tuple[int, int]]:
    """Sender and receiver of each of these messages."""
    return {
        (rank, peer) if sends else (peer, rank)
        for rank, peer, sends in messages.select("rank", "peer", "sends").iter_rows()
    }


def _carried(trace: Trace, event: np.ndarray) -> pl.DataFrame:
    """The sends and receives that these kernels carry: event, sends, place (of the peer), bytes."""
    empty = {"event": pl.Int64, "sends": pl.Boolean, "place": pl.Int64, "bytes": pl.Int64}
    if trace.launches is None or not trace.operations.height or not event.size:
        return pl.DataFrame(schema=empty)
    carried = carried_by(trace, event)
    single = np.flatnonzero(carried.only >= 0)
    several = {kernel: rows for kernel, rows in carried.several.items() if kernel not in carried.shared}
    pairs = pl.concat(
        [
            pl.DataFrame({"kernel": single, "operation": carried.only[single]}),
            pl.DataFrame(
                {"kernel": list(several), "operation": [list(rows) for rows in several.values()]},
                schema={"kernel": pl.Int64, "operation": pl.List(pl.Int64)},
            ).explode("operation"),
        ]
    )
    operations = trace.operations[pairs["operation"].to_numpy()].select("call", "peer", "bytes")
    rows = pairs.with_columns(event=pl.Series(event[pairs["kernel"].to_numpy()], dtype=pl.Int64))
    return (
        pl.concat([rows, operations], how="horizontal")
        .filter(pl.col("call").is_in(["ncclSend", "ncclRecv"]) & pl.col("peer").is_not_null())
        .select("event", sends=pl.col("call") == "ncclSend", place="peer", bytes="bytes")
    )


def carried_by(trace: Trace, event: np.ndarray) -> Carried:
    """The NCCL calls that each of these kernels carries; the trace has launches."""
    assert trace.launches is not None
    rank = trace.events["rank"].to_numpy()[event]
    process = np.array([trace.process_of_rank[number] for number in rank.tolist()], dtype=np.int64)
    calls = trace.launches[event]
    return carried_operations(
        trace.operations,
        process,
        calls["thread"].fill_null(-1).to_numpy(),
        calls["launch_ns"].fill_null(0).to_numpy(),
        calls["launch_ns"].is_not_null().to_numpy(),
        rank,
    )


def pair_table(groups: Groups, messages: pl.DataFrame) -> pl.DataFrame:
    """The table ``pair``: linear in the pairs that talk."""
    known = messages.filter(pl.col("peer").is_not_null() & (pl.col("peer") != pl.col("rank")))
    alone = pl.col("peers") == 1
    ends = known.group_by("rank", "peer", "sends").agg(
        messages=pl.len().cast(pl.Int64),
        bytes=pl.when(pl.col("bytes").null_count() == 0).then(pl.col("bytes").sum()),
        alone=alone.sum().cast(pl.Int64),
        alone_bytes=pl.when(alone.any()).then(pl.col("bytes").filter(alone).sum()),
        transfer_ns=pl.when((alone & pl.col("shortest_ns").is_not_null()).any()).then(
            pl.col("shortest_ns").filter(alone).sum()
        ),
        wait_ns=pl.when((alone & pl.col("wait_ns").is_not_null()).any()).then(
            pl.col("wait_ns").filter(alone).sum()
        ),
    )
    sent = ends.filter("sends").rename({"rank": "sender", "peer": "receiver", "wait_ns": "sender_wait_ns"})
    received = ends.filter(~pl.col("sends")).select(
        pl.col("peer").alias("sender"),
        pl.col("rank").alias("receiver"),
        pl.col("wait_ns").alias("receiver_wait_ns"),
    )
    host = groups.host_of
    made = sent.join(received, on=["sender", "receiver"], how="left").with_columns(
        same_host=pl.col("sender").replace_strict(host, default=None, return_dtype=pl.String)
        == pl.col("receiver").replace_strict(host, default=None, return_dtype=pl.String),
        busbw_gbps=pl.when(pl.col("transfer_ns") > 0).then(pl.col("alone_bytes") / pl.col("transfer_ns")),
    )
    return PAIR.check(made.sort("sender", "receiver"))


def exchange_table(messages: pl.DataFrame) -> pl.DataFrame:
    """The table ``exchange``: how unequal the shares of the all-to-alls are."""
    of_all = messages.filter((pl.col("kind") == "all_to_all") & pl.col("peer").is_not_null())
    other = pl.col("peer") != pl.col("rank")
    each = (
        of_all.group_by("group", "rank", "event")
        .agg(
            pl.col("collective_id").first(),
            sent=pl.col("bytes").filter(other & pl.col("sends")).sum(),
            received=pl.col("bytes").filter(other & ~pl.col("sends")).sum(),
            unknown=pl.col("bytes").null_count(),
            wait_ns=pl.col("wait_ns").first(),
            transfer_ns=(pl.col("time_ns") - pl.col("wait_ns")).first(),
        )
        .filter((pl.col("unknown") == 0) & pl.col("collective_id").is_not_null())
        .with_columns(
            mean=pl.col("received").mean().over("collective_id"),
            most=pl.col("received").max().over("collective_id"),
        )
    )
    whole = (
        each.unique("collective_id")
        .group_by("group")
        .agg(group_ratio=(pl.col("most") / pl.col("mean")).fill_nan(1.0).mean())
    )
    made = each.group_by("group", "rank").agg(
        exchanges=pl.len().cast(pl.Int64),
        sent_bytes=pl.col("sent").sum(),
        received_bytes=pl.col("received").sum(),
        worst_ratio=(pl.col("received") / pl.col("mean")).clip(lower_bound=1.0).mean(),
        wait_ns=pl.col("wait_ns").sum(),
        transfer_ns=pl.col("transfer_ns").sum(),
    )
    made = made.with_columns(
        sent_ratio=pl.col("sent_bytes") / pl.col("sent_bytes").mean().over("group"),
        received_ratio=pl.col("received_bytes") / pl.col("received_bytes").mean().over("group"),
    )
    return EXCHANGE.check(made.join(whole, on="group").sort("group", "rank"))
