"""Counters of links, where a capture has them, beside the collectives that used the links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from builder import Export
from command import run

import nsysddp
from nsysddp.evidence.redact import redact
from nsysddp.questions.stragglers.counters import LINK_COUNTER, evidence_of

MIB = 1 << 20
TX = "NVLink TX Responses User Data [Throughput %]"
SENT = "IB: Bytes sent"


def host(number: int, *, nvlink: bool = False, nic: bool = False) -> Export:
    """Two ranks of one host in four steps of 100 ms; an all-reduce of all four ranks runs from 60 to 80 of each."""
    export = Export(host=f"secret-node-{number}")
    for local in range(2):
        rank = 2 * number + local
        process = export.process(pid=100 + rank, device=local)
        process.mark(f"nsysddp:rank={rank} world=4 local={local} device={local}", 1)
        for step in range(4):
            begin = 100 * step
            process.range(f"step {step}", begin, begin + 100)
            process.kernel("gemm", at=(begin, begin + 60))
            process.nccl("AllReduce", 17, (begin + 60, begin + 80), bytes=64 * MIB)
            process.kernel("adam", at=(begin + 80, begin + 100))
        if nvlink:
            busy = {at: 50 + 10 * rank if 60 < at % 100 <= 80 else 0 for at in range(1, 400)}
            export.gpu_metric(TX, busy, gpu=local)
            export.gpu_metric("SMs Active [Throughput %]", dict.fromkeys(range(1, 400), 90), gpu=local)
    if nic:
        sent = {at: 1000 * (number + 1) if 60 <= at % 100 < 80 else 10 for at in range(400)}
        export.network_metric(SENT, sent, device=77)
    return export


def asked(tmp_path: Path, **traced: bool) -> Any:
    paths = [host(number, **traced).write(tmp_path / f"{number}.sqlite") for number in range(2)]
    trace = nsysddp.load(paths, metrics=True)
    return nsysddp.ask(trace, "stragglers")


def test_a_counter_of_a_gpu_stands_beside_the_collectives_of_its_rank(tmp_path: Path) -> None:
    table = asked(tmp_path, nvlink=True)["link_counter"]
    assert table["counter"].unique().to_list() == [TX]
    assert table.select("rank", "step").unique().height == 16
    row = table.filter(rank=3, step="step 1").to_dicts()[0]
    assert (row["device"], row["unit"], row["collectives"]) == ("GPU", "%", 1)
    assert row["samples"] == 100
    assert row["mean_value"] == pytest.approx(80 * 0.2)
    assert (row["transfer_samples"], row["transfer_value"], row["most_value"]) == (20, 80, 80)
    assert row["busbw_gbps"] == pytest.approx(64 * MIB * 1.5 / 20e6)


def test_a_counter_of_an_adapter_stands_beside_collectives_across_hosts(tmp_path: Path) -> None:
    table = asked(tmp_path, nic=True)["link_counter"]
    assert table.select("host", "rank", "device", "unit").unique().sort("host").rows() == [
        ("host-1", None, "NIC 0", "bytes/ms"),
        ("host-2", None, "NIC 0", "bytes/ms"),
    ]
    assert table.group_by("host").agg(pl.col("transfer_value").unique()).sort("host")[
        "transfer_value"
    ].to_list() == [
        [1000.0],
        [2000.0],
    ]
    assert table["collectives"].unique().to_list() == [1]


def test_collectives_inside_one_host_use_no_adapter(tmp_path: Path) -> None:
    path = host(0, nic=True).write(tmp_path / "a.sqlite")
    table = nsysddp.ask(nsysddp.load([path], metrics=True), "stragglers")["link_counter"]
    assert table["collectives"].sum() == 0
    assert table["transfer_value"].null_count() == table.height == 4
    assert table["busbw_gbps"].null_count() == table.height


def test_two_reports_of_one_host_count_its_adapters_once(tmp_path: Path) -> None:
    made = host(0, nic=True)
    paths = [
        made.write(tmp_path / f"{number}.sqlite", only=[process])
        for number, process in enumerate(made.processes)
    ]
    table = nsysddp.ask(nsysddp.load(paths, metrics=True), "stragglers")["link_counter"]
    assert table.height == 4
    assert table["samples"].unique().to_list() == [100]


def test_what_was_not_traced_is_said_with_its_flags(tmp_path: Path) -> None:
    result = asked(tmp_path)
    assert not result["link_counter"].height
    (warning,) = [one for one in result.warnings if one.code == "no_link_counters"]
    assert "--gpu-metrics-devices=all" in warning.message
    assert "--nic-metrics=true" in warning.message


def test_names_of_adapters_and_hosts_are_not_shown(tmp_path: Path) -> None:
    export = host(0, nic=True)
    export.row("NIC_ID_MAP", nicId=5, globalId=77)
    path = export.write(tmp_path / "a.sqlite")
    out = run("stragglers", path, "--format", "json").out
    assert json.loads(out)["tables"]["link_counter"]
    assert "secret-node" not in out
    assert "77" not in {
        str(value) for row in json.loads(out)["tables"]["link_counter"] for value in row.values()
    }


def test_a_sample_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    export = host(0, nic=True)
    for row in export.rows["NET_NIC_METRIC"][:10]:
        row["end"] = row["start"] - 1
    path = export.write(tmp_path / "a.sqlite")
    table = nsysddp.ask(nsysddp.load([path], metrics=True), "stragglers")["link_counter"]
    assert table["samples"].to_list() == [90, 100, 100, 100]


def counters(*rows: tuple[str, int | None, str, float | None]) -> pl.DataFrame:
    return LINK_COUNTER.frame(
        [
            {
                "host": where,
                "rank": rank,
                "device": "GPU" if rank is not None else "NIC 0",
                "counter": counter,
                "unit": "%",
                "step": "step 1",
                "step_index": 1,
                "samples": 10,
                "mean_value": 1.0,
                "most_value": 99.0,
                "transfer_samples": 5,
                "transfer_value": value,
                "collectives": 1,
                "busbw_gbps": None,
            }
            for where, rank, counter, value in rows
        ]
    )


def test_a_slow_link_is_shown_beside_the_others_by_the_counter_that_is_busiest() -> None:
    table = counters(
        ("host-1", 0, TX, 20.0),
        ("host-1", 1, TX, 22.0),
        ("host-2", 2, TX, 60.0),
        ("host-2", 3, TX, 64.0),
        ("host-1", 0, "PCIe TX Throughput [Throughput %]", 5.0),
        ("host-2", 2, "PCIe TX Throughput [Throughput %]", 5.0),
    )
    assert evidence_of(table, (0, 1), ()) == (
        " While it transfers, NVLink TX Responses User Data is 21.0 %, elsewhere 62.0 %."
    )
    assert evidence_of(table.head(2), (0, 1), ()) == ""  # nothing to compare with


def test_the_adapter_of_a_host_is_evidence_for_links_of_its_ranks() -> None:
    table = counters(("host-1", None, SENT, 10.0), ("host-2", None, SENT, 40.0))
    assert "IB: Bytes sent is 10.0 %, elsewhere 40.0 %" in evidence_of(table, (0, 1), ("host-1",))


# --- redacted copies ------------------------------------------------------------------------------------------------

SECRET = "tiger-wallaby"


def _zero(export: Export) -> None:
    for row in export.rows["NET_NIC_METRIC"]:
        row["value"] = 0


def _none(export: Export) -> None:
    export.rows["NET_NIC_METRIC"] = []


def _switch(export: Export) -> None:
    """The samples of the adapter are those of a switch, with fractions."""
    for row in export.rows.pop("NET_NIC_METRIC"):
        kept = {name: value for name, value in row.items() if name != "portId"}
        export.row("NET_IB_SWITCH_METRIC", **kept | {"value": row["value"] + 0.25})


@pytest.mark.parametrize("change", [None, _zero, _none, _switch, "untraced"])
def test_a_redacted_copy_says_the_same_of_links_and_names_no_device(change: Any, tmp_path: Path) -> None:
    """Sampled, all zero, no samples and not traced stay apart."""
    answers, hosts = [], dict[str, str]()
    for number in range(2):
        export = host(number, nic=change != "untraced")
        if callable(change):
            change(export)
        if change is None:
            for row in export.rows["NET_NIC_METRIC"]:
                row["globalId"] = 0x5EC2E7_00A1B2C3 + number
            export.row("NIC_ID_MAP", nicId=1, globalId=0x5EC2E7_00A1B2C3 + number)
            export.network_metric(f"{SECRET} Bytes sent", {5.0: 1}, device=3)
            export.rows["TARGET_INFO_NETWORK_METRICS"][0]["description"] = SECRET
        report = export.write(tmp_path / f"{number}.sqlite")
        redact(report, tmp_path / f"copy{number}.sqlite", hosts=hosts)
    for stem in ("", "copy"):
        trace = nsysddp.load([tmp_path / f"{stem}{number}.sqlite" for number in range(2)], metrics=True)
        result = nsysddp.ask(trace, "stragglers")
        counters = result["link_counter"].filter(~pl.col("counter").str.contains(SECRET))
        answers.append((counters.to_dicts(), [warning.code for warning in result.warnings]))
    assert answers[0] == answers[1]
    assert bool(answers[0][0]) == (change not in (_none, "untraced"))
    for number in range(2):
        copied = (tmp_path / f"copy{number}.sqlite").read_bytes()
        assert SECRET.encode() not in copied
        assert (0x5EC2E7_00A1B2C3 + number).to_bytes(8, "big") not in copied
