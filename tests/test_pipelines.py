"""Bubbles of pipelines against the schedule that the simulator runs, and what all-to-alls wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import Export
from simulation.export import write
from simulation.jobs import MIB, US, Job, simulate

import nsysddp
from nsysddp.model.result import Result


def asked(made: Job, folder: Path, **options: Any) -> Result:
    paths = write(simulate(made), folder, payload=options.get("payload", True))
    return nsysddp.ask(nsysddp.load(paths), "pipelines")


@pytest.mark.parametrize(
    ("ranks", "stages", "micro"), [(2, 2, 3), (4, 2, 4), (3, 3, 5), (4, 4, 3), (6, 3, 4)]
)
def test_a_stage_stands_in_a_bubble_for_one_forward_and_backward_of_every_other_stage(
    ranks: int, stages: int, micro: int, tmp_path: Path
) -> None:
    job = Job(
        kind="pp",
        ranks=ranks,
        group=stages,
        steps=4,
        layers=2,
        micro_batches=micro,
        jitter=0.0,
        activation_bytes=MIB,
        optimizer_ns=200 * US,
    )
    table = asked(job, tmp_path)["pipeline_stage"].filter(step_index=2)
    assert table["stage"].to_list() == [rank // (ranks // stages) for rank in range(ranks)]
    assert table["micro_batches"].to_list() == [micro] * ranks
    bubble = (stages - 1) * 3 * job.layers * job.layer_ns
    for row in table.iter_rows(named=True):
        assert row["bubble_ns"] == pytest.approx(bubble, rel=0.12)
        assert row["warm_up_ns"] + row["steady_ns"] + row["cool_down_ns"] == row["bubble_ns"]
    last = table.filter(stage=stages - 1)
    assert (last["cool_down_ns"] < 0.1 * bubble).all()


def test_without_payloads_no_stage_is_named(tmp_path: Path) -> None:
    result = asked(Job(kind="pp", ranks=2, group=2, steps=2, layers=1), tmp_path, payload=False)
    assert not result["pipeline_stage"].height
    assert result.findings[0].code == "no_pipeline"
    assert "who to whom is not recorded (export with --include-blobs=true)" in result.findings[0].message


def test_where_nothing_is_sent_and_received_no_payload_is_asked_for(tmp_path: Path) -> None:
    result = asked(Job(kind="dp", ranks=2, steps=2, layers=1), tmp_path)
    assert result.findings[0].message == "No pipeline and no all-to-all is known in this run."


def test_of_equal_shares_all_waiting_is_lateness(tmp_path: Path) -> None:
    table = asked(Job(kind="ep", ranks=4, group=2, steps=3, layers=2), tmp_path)["expert_wait"]
    assert table["by_load_ns"].to_list() == [0] * 4
    assert (table["by_lateness_ns"] == table["wait_ns"]).all()


@pytest.mark.parametrize(("busier", "by_load"), [(1, True), (0, False)])
def test_waiting_for_the_rank_with_more_to_compute_is_load(
    busier: int, by_load: bool, tmp_path: Path
) -> None:
    """Rank 1 comes 20 ms late to the second exchange; in the first one more went to it, or to the other."""
    export = Export(unit="ms")
    counts = [[10, 300], [100, 10]] if busier == 1 else [[10, 100], [300, 10]]
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank)
        process.range("step 0", 0, 200)
        process.kernel("gemm", at=(0, 150))
        for begin, start in ((20, 25), (80, 100 + 20 * rank)):
            operations = [
                one
                for peer in range(2)
                for one in (
                    ("Send", {"bytes": counts[rank][peer], "peer": peer, "communicator": 7}),
                    ("Recv", {"bytes": counts[peer][rank], "peer": peer, "communicator": 7}),
                )
            ]
            end = 40 if begin == 20 else 140
            process.nccl_group(operations, 24, (start, end), launched=(begin, begin + 4))
    table = nsysddp.ask(nsysddp.load(export.write(tmp_path / "a.sqlite")), "pipelines")["expert_wait"]
    row = table.row(0, named=True)
    assert row["wait_ns"] == 20_000_000
    assert row["by_load_ns"] == (20_000_000 if by_load else 0)
    assert row["by_lateness_ns"] == (0 if by_load else 20_000_000)
