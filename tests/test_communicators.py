"""Groups of ranks: what each is for, what it costs its ranks, and who sends how much to whom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builder import Export, Process
from command import run
from simulation.export import write
from simulation.jobs import Job, simulate

import nsysddp
from nsysddp.model.result import Result

MIB = 1 << 20


def asked(*paths: Path, **options: Any) -> Result:
    return nsysddp.ask(nsysddp.load(paths, host_calls=True), "communicators", **options)


def roles(result: Result) -> dict[str, str | None]:
    """Ranks of each group to its role; the role that is reported, where several groups have the same ranks."""
    named = result["communicator"].sort("role", nulls_last=False).drop_nulls("ranks")
    return dict(named.select("ranks", "role").iter_rows())


def job(kind: str, ranks: int, group: int, **changes: Any) -> Job:
    return Job(kind=kind, ranks=ranks, group=group, steps=3, layers=3, micro_batches=3, **changes)


# --- roles -----------------------------------------------------------------------------------------------------------


PARTS: list[tuple[Job, dict[str, tuple[str, ...]]]] = [
    (job("dp", 3, 1), {"data": ("0 to 2",)}),
    (job("dp", 4, 1, buffers=True, per_host=2), {"data": ("0 to 3",)}),
    (job("hsdp", 4, 4), {"shard": ("0 to 3",)}),
    (job("hsdp", 6, 3), {"shard": ("0 to 2", "3 to 5"), "replicate": ("0 and 3", "1 and 4", "2 and 5")}),
    (job("tp", 4, 4), {"tensor": ("0 to 3",)}),
    (job("tp", 6, 2), {"tensor": ("0 and 1", "2 and 3", "4 and 5"), "data": ("0, 2 and 4", "1, 3 and 5")}),
    (
        job("tp", 4, 2, on_compute_stream=True),
        {"tensor": ("0 and 1", "2 and 3"), "data": ("0 and 2", "1 and 3")},
    ),
    (job("pp", 3, 3), {"pipeline": ("0 and 1", "1 and 2")}),
    (job("pp", 4, 2), {"pipeline": ("0 and 2", "1 and 3"), "data": ("0 and 1", "2 and 3")}),
    (job("ep", 6, 3), {"expert": ("0 to 2", "3 to 5"), "data": ("0 to 5",)}),
]


@pytest.mark.parametrize(("made", "expected"), PARTS)
def test_a_simulated_group_gets_the_role_that_it_has(
    made: Job, expected: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    result = asked(*write(simulate(made), tmp_path))
    assert roles(result) == {ranks: role for role, groups in expected.items() for ranks in groups}
    assert result["communicator"]["evidence"].null_count() == 0


@pytest.mark.parametrize("kind", ["dp", "hsdp", "tp", "pp", "ep"])
def test_without_payloads_a_role_is_right_or_not_reported(kind: str, tmp_path: Path) -> None:
    made = job(kind, 4, 2)
    result = asked(*write(simulate(made), tmp_path, payload=False))
    right = {
        "dp": {"0 to 3": "data"},
        "hsdp": {"0 and 1": "shard", "2 and 3": "shard", "0 and 2": "replicate", "1 and 3": "replicate"},
        "tp": {"0 and 1": "tensor", "2 and 3": "tensor", "0 and 2": "data", "1 and 3": "data"},
        "pp": {"0 and 1": "data", "2 and 3": "data"},
        "ep": {"0 and 1": "expert", "2 and 3": "expert", "0 to 3": "data"},
    }[kind]
    for ranks, role in roles(result).items():
        assert role is None or right.get(ranks) == role, (ranks, role)


def reduce(
    process: Process, kind: str, at: int, size: int, communicator: int, stream: int = 17, **more: Any
) -> None:
    """One collective of 5 ms, launched at its start."""
    process.nccl(kind, stream, (at, at + 5), bytes=size, communicator=communicator, **more)


def drawn(
    tmp_path: Path,
    groups: Sequence[Sequence[int]],
    does: Sequence[tuple[str, str, int]],
    *,
    ranks: int = 4,
    phases: bool = True,
    extra: Sequence[tuple[Sequence[int], str, str, int]] = (),
) -> Path:
    """Three steps in which each group runs ``does``: (kind, phase, payload size); ``extra`` adds other groups."""
    export = Export()
    for rank in range(ranks):
        process = export.process(pid=100 + rank, device=rank)
        for step in range(3):
            begin = step * 400
            process.range(f"step {step}", begin, begin + 400)
            if phases:
                process.range("forward", begin, begin + 200)
                process.range("backward", begin + 200, begin + 400)
            process.kernel("gemm", at=(begin, begin + 399))
            at = {"forward": begin, "backward": begin + 200}
            work = [(group, *one) for group in groups for one in does] + list(extra)
            for number, (members, kind, phase, size) in enumerate(work):
                if rank in members:
                    communicator = 0xA000 + sum(1 << one for one in members)
                    reduce(process, kind, at[phase] + 8 * number, size, communicator, 17 + number)
    return export.write(tmp_path / "a.sqlite")


def test_ranks_in_any_order_form_the_same_partition(tmp_path: Path) -> None:
    """Tensor groups need not be neighbours, nor need groups be moved copies of each other."""
    tensor = [("AllReduce", "forward", 8 * MIB), ("AllReduce", "backward", 8 * MIB)]
    data = [(pair, "AllReduce", "backward", 24 * MIB) for pair in ((0, 1), (2, 3))]
    made = asked(drawn(tmp_path, [(0, 3), (1, 2)], tensor, extra=data))
    assert roles(made) == {"0 and 3": "tensor", "1 and 2": "tensor", "0 and 1": "data", "2 and 3": "data"}


def test_statistics_of_a_batch_in_forward_do_not_make_a_data_group_tensor_parallel(tmp_path: Path) -> None:
    does = [
        ("AllReduce", "forward", 8192),
        ("AllReduce", "backward", 24 * MIB),
        ("AllReduce", "backward", 8192),
    ]
    assert roles(asked(drawn(tmp_path, [range(4)], does))) == {"0 to 3": None}


def test_norms_and_losses_alone_are_the_whole_job(tmp_path: Path) -> None:
    does = [("AllReduce", "backward", 4)]
    data = [((0, 1, 2, 3), "AllReduce", "backward", 4)]
    assert roles(asked(drawn(tmp_path, [range(4)], does))) == {"0 to 3": "world"}
    pairs = asked(drawn(tmp_path, [(0, 1), (2, 3)], does, extra=data))
    assert roles(pairs) == {"0 and 1": None, "2 and 3": None, "0 to 3": "world"}


def test_without_phases_only_shards_with_replicas_are_unmistakable(tmp_path: Path) -> None:
    scatter = [("AllGather", "forward", 4 * MIB), ("ReduceScatter", "backward", 4 * MIB)]
    replicas = [(pair, "AllReduce", "backward", 4 * MIB) for pair in ((0, 2), (1, 3))]
    path = drawn(tmp_path, [(0, 1), (2, 3)], scatter, phases=False, extra=replicas)
    assert roles(asked(path)) == {
        "0 and 1": "shard",
        "2 and 3": "shard",
        "0 and 2": "replicate",
        "1 and 3": "replicate",
    }
    others = [(pair, "AllReduce", "backward", 5 * MIB) for pair in ((0, 2), (1, 3))]
    path = drawn(tmp_path, [(0, 1), (2, 3)], scatter, phases=False, extra=others)
    assert set(roles(asked(path)).values()) == {None}


def test_a_reduction_over_two_of_four_ranks_alone_is_no_data_group(tmp_path: Path) -> None:
    """Tied embeddings are reduced between the first and the last stage."""
    made = asked(drawn(tmp_path, [(0, 3)], [("AllReduce", "backward", 24 * MIB)]))
    assert roles(made) == {"0 and 3": None}


@pytest.mark.parametrize(("circle", "expected"), [(False, "pipeline"), (True, None)])
def test_sends_in_a_circle_are_no_pipeline(circle: bool, expected: str | None, tmp_path: Path) -> None:
    export = Export()
    hops = [(0, 1), (1, 2), *([(2, 0)] if circle else [])]
    for rank in range(3):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 200)
        process.range("forward", 0, 200)
        process.kernel("gemm", at=(0, 199))
        for number, (sender, receiver) in enumerate(hops):
            at = (10 + 20 * number, 20 + 20 * number)
            if rank == sender:
                process.nccl("Send", 30, at, bytes=MIB, communicator=0xB, peer=receiver)
            elif rank == receiver:
                process.nccl("Recv", 30, at, bytes=MIB, communicator=0xB, peer=sender)
    result = asked(export.write(tmp_path / "a.sqlite"))
    assert roles(result) == {"0 to 2": expected}
    pairs = result["pair"].select("sender", "receiver", "messages", "bytes").rows()
    assert pairs == [(sender, receiver, 1, MIB) for sender, receiver in hops]


def test_one_report_of_two_does_not_tell_what_a_group_of_both_is_for(tmp_path: Path) -> None:
    paths = write(simulate(job("dp", 4, 1, per_host=2)), tmp_path)
    assert set(roles(asked(paths[0])).values()) == {None}


# --- figures ---------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_group_are_those_of_its_rank_that_is_exposed_longest(tmp_path: Path) -> None:
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,100)   s7 g[0,50)    s17 c[20,80)
        rank 1 | host "step 0"[0,100)   s7 g[0,30)    s17 c[40,80)
    """)
    result = asked(export.write(tmp_path / "a.sqlite"))
    row = result["communicator"].row(0, named=True)
    ms = 1_000_000
    assert (row["rank"], row["time_ns"], row["exposed_ns"], row["exposed_least_ns"]) == (
        1,
        40 * ms,
        40 * ms,
        30 * ms,
    )
    first = result["communicator_rank"].row(0, named=True)
    assert (first["hidden_wait_ns"], first["exposed_wait_ns"]) == (20 * ms, 0)
    assert (first["hidden_transfer_ns"], first["exposed_transfer_ns"]) == (10 * ms, 30 * ms)
    role = result["communicator_role"].row(0, named=True)
    assert role["critical_ns"] == 40 * ms


def test_the_bandwidth_of_a_group_is_that_of_its_transfers_together(tmp_path: Path) -> None:
    export = Export()
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 100)
        process.nccl("AllReduce", 17, (0 if rank else 5, 15), bytes=10_000_000, communicator=1)
        process.nccl("AllGather", 17, (20, 50), bytes=30_000_000, communicator=1)
    row = asked(export.write(tmp_path / "a.sqlite"))["communicator"].row(0, named=True)
    # all-reduce: 10 MB x 1 in 10 ms; all-gather: 2 x 30 MB x 1/2 in 30 ms
    assert row["busbw_gbps"] == pytest.approx(1.0)
    assert row["bytes"] == 70_000_000


def test_what_is_in_no_group_stays_in_the_sums(tmp_path: Path) -> None:
    result = asked(*write(simulate(job("pp", 4, 4)), tmp_path, payload=False))
    row = result["communicator"].filter(result["communicator"]["group"].is_null()).row(0, named=True)
    assert "who sends to whom is not recorded" in row["evidence"]
    assert row["hidden_unsplit_ns"] + row["exposed_unsplit_ns"] == row["time_ns"] > 0


@pytest.mark.parametrize("kind", ["hsdp", "pp", "ep"])
def test_a_bandwidth_of_a_pair_or_group_is_near_that_of_the_simulated_links(
    kind: str, tmp_path: Path
) -> None:
    made = job(kind, 4, 4, latency_ns=1, jitter=0.0, gbps=80.0)
    result = asked(*write(simulate(made), tmp_path))
    table, name = ("pair", "transfer_ns") if kind == "pp" else ("communicator", "exposed_transfer_ns")
    rows = result[table].filter(result[table][name] > 0)
    assert rows.height
    for value in rows["busbw_gbps"]:
        # Transfers of one link share it, and kernels end a little after their transfer.
        assert 0.4 * 80 < value <= 80.5


def test_every_rank_of_a_group_has_a_row_and_its_parts_tile_its_time(tmp_path: Path) -> None:
    result = asked(*write(simulate(job("hsdp", 6, 3)), tmp_path))
    rows = result["communicator_rank"]
    assert rows.height == sum(result["communicator"]["captured"])
    parts = [
        f"{side}_{part}_ns" for side in ("hidden", "exposed") for part in ("transfer", "wait", "unsplit")
    ]
    assert (rows.select(parts).sum_horizontal() == rows["time_ns"]).all()


# --- all-to-all ------------------------------------------------------------------------------------------------------


def exchanges(tmp_path: Path, counts: Sequence[Sequence[int]]) -> Path:
    """One all-to-all in which rank r sends counts[r][s] bytes to rank s."""
    export = Export()
    size = len(counts)
    for rank in range(size):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 100)
        process.kernel("gemm", at=(0, 99))
        operations = [
            one
            for peer in range(size)
            for one in (
                ("Send", {"bytes": counts[rank][peer], "peer": peer, "communicator": 7}),
                ("Recv", {"bytes": counts[peer][rank], "peer": peer, "communicator": 7}),
            )
        ]
        process.nccl_group(operations, 24, (20 + 5 * rank, 60), launched=(1, 20))
    return export.write(tmp_path / "a.sqlite")


def test_unequal_shares_of_an_all_to_all_are_experts_and_their_ranks_are_named(tmp_path: Path) -> None:
    result = asked(exchanges(tmp_path, [[9, 100, 300], [100, 9, 300], [100, 100, 9]]))
    assert roles(result) == {"0 to 2": "expert"}
    rows = result["exchange"].select("rank", "sent_bytes", "received_bytes").rows()
    assert rows == [(0, 400, 200), (1, 400, 200), (2, 200, 600)]
    assert result["exchange"]["received_ratio"].to_list() == pytest.approx([0.6, 0.6, 1.8])
    assert result["exchange"]["group_ratio"].to_list() == pytest.approx([1.8] * 3)
    assert "rank 2 of group 0 receives up to 1.80 times" in " ".join(one.message for one in result.findings)
    sent = {(a, b): size for a, b, size in result["pair"].select("sender", "receiver", "bytes").iter_rows()}
    assert sent == {(0, 1): 100, (0, 2): 300, (1, 0): 100, (1, 2): 300, (2, 0): 100, (2, 1): 100}
    assert result["pair"]["busbw_gbps"].null_count() == 6  # one kernel moves all of them


def test_equal_shares_are_not_called_unequal(tmp_path: Path) -> None:
    result = asked(exchanges(tmp_path, [[50, 50], [50, 50]]))
    assert not [one for one in result.findings if one.code == "unequal_exchange"]
    assert result["exchange"]["worst_ratio"].to_list() == [1.0, 1.0]
    assert result["exchange"]["group_ratio"].to_list() == [1.0, 1.0]


def test_imbalance_of_a_group_is_that_of_its_exchanges_and_not_of_their_sums(tmp_path: Path) -> None:
    """Each rank is the busy one once: the sums are equal, the exchanges are not."""
    export = Export()
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 200)
        process.kernel("gemm", at=(0, 199))
        for turn, counts in enumerate(([[0, 300], [100, 0]], [[0, 100], [300, 0]])):
            operations = [
                ("Send", {"bytes": counts[rank][1 - rank], "peer": 1 - rank, "communicator": 7}),
                ("Send", {"bytes": 0, "peer": rank, "communicator": 7}),
                ("Recv", {"bytes": counts[1 - rank][rank], "peer": 1 - rank, "communicator": 7}),
                ("Recv", {"bytes": 0, "peer": rank, "communicator": 7}),
            ]
            at = 90 * turn
            process.nccl_group(operations, 24, (at + 20, at + 60), launched=(at + 1, at + 20))
    rows = asked(export.write(tmp_path / "a.sqlite"))["exchange"]
    assert rows["received_ratio"].to_list() == [1.0, 1.0]
    assert rows["group_ratio"].to_list() == pytest.approx([1.5, 1.5])


@pytest.mark.parametrize(("ranks", "stages", "micro"), [(4, 4, 3), (6, 2, 5), (8, 4, 2)])
def test_the_matrix_of_pairs_is_that_of_the_simulated_pipeline(
    ranks: int, stages: int, micro: int, tmp_path: Path
) -> None:
    made = Job(
        kind="pp",
        ranks=ranks,
        group=stages,
        steps=4,
        layers=2,
        micro_batches=micro,
        jitter=0.0,
        per_host=ranks,
    )
    result = asked(*write(simulate(made), tmp_path))
    steps, width = result["communicator"]["steps"].max(), ranks // stages
    neighbours = {(rank, rank + width) for rank in range(ranks - width)}
    expected = neighbours | {(b, a) for a, b in neighbours}
    table = result["pair"]
    assert set(table.select("sender", "receiver").iter_rows()) == expected
    assert table["messages"].to_list() == [micro * steps] * len(expected)
    assert table["bytes"].to_list() == [micro * steps * made.activation_bytes] * len(expected)
    alone = made.latency_ns + made.activation_bytes / made.gbps
    for row in table.iter_rows(named=True):
        assert (
            0.99 * alone <= row["transfer_ns"] / row["alone"] <= 2.2 * alone
        )  # both directions share a link
        assert row["busbw_gbps"] == pytest.approx(row["bytes"] / row["transfer_ns"])


@pytest.mark.parametrize(("ranks", "group"), [(4, 2), (6, 3), (8, 8)])
def test_the_shares_of_a_simulated_exchange_are_those_that_were_sent(
    ranks: int, group: int, tmp_path: Path
) -> None:
    made = Job(kind="ep", ranks=ranks, group=group, steps=3, layers=2)
    result = asked(*write(simulate(made), tmp_path))
    share = made.activation_bytes // group
    exchange = result["exchange"]
    assert exchange.height == ranks
    each = exchange["exchanges"][0]
    assert exchange["exchanges"].to_list() == [each] * ranks
    assert exchange["sent_bytes"].to_list() == [each * share * (group - 1)] * ranks
    assert exchange["sent_bytes"].to_list() == exchange["received_bytes"].to_list()
    pairs = result["pair"]
    assert pairs.height == ranks * (group - 1)
    assert pairs["bytes"].to_list() == [each * share] * pairs.height


# --- screens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_screen_fits_and_says_what_each_role_costs(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = run("communicators", *write(simulate(job("tp", 4, 2)), tmp_path))
    assert ran.code == 0, ran.err
    assert max(map(len, ran.out.splitlines())) <= int(columns)
    assert "tensor (2 groups): " in ran.out
    assert "on the critical path" in " ".join(ran.out.split())
    assert "data: reduced in or after backward" in " ".join(ran.out.split())
