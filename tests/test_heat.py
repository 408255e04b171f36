"""The map of ranks by steps: every value in its cell, orders of rows, bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

from nsysddp.questions.communicators.pairs import PAIR
from nsysddp.questions.stragglers.matrix import LATENESS
from nsysddp.render.html import heat
from nsysddp.render.html.heat import heat_of, pairs_of


@dataclass
class Answer:
    tables: dict[str, pl.DataFrame]
    findings: tuple[Any, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[Any, ...] = field(default=())


def answer(ranks: int, steps: int) -> Answer:
    rows = [
        {
            "rank": rank,
            "host": f"host-{12 - rank}",
            "step": f"step {step}",
            "step_index": step,
            "lateness_ns": None if (rank, step) == (0, 0) else 1_000 * (100 * (rank == 1) + step),
            "exposed_communication_ns": 5_000 * rank,
        }
        for rank in range(ranks)
        for step in range(steps)
    ]
    return Answer({"lateness": LATENESS.frame(rows)})


def test_every_value_stands_in_the_cell_of_its_rank_and_step() -> None:
    made = heat_of(answer(3, 4))
    assert made is not None
    lateness, exposed = made["figures"]  # of the bandwidth nothing is known
    assert lateness["values"] == [[None, 1.0, 2.0, 3.0], [100.0, 101.0, 102.0, 103.0], [0.0, 1.0, 2.0, 3.0]]
    assert exposed["values"][2] == [10.0] * 4
    assert made["steps"] == ["step 0", "step 1", "step 2", "step 3"]


def test_rows_are_ordered_by_lateness_rank_and_host() -> None:
    made = heat_of(answer(3, 4))
    assert made is not None
    assert made["orders"] == {"lateness": [1, 0, 2], "rank": [0, 1, 2], "host": [2, 1, 0]}


@pytest.mark.parametrize(("ranks", "steps"), [(1, 5), (5, 1), (0, 0)])
def test_of_one_rank_or_one_step_there_is_no_map(ranks: int, steps: int) -> None:
    assert heat_of(answer(ranks, steps)) is None


def test_steps_that_do_not_fit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat, "_MOST_CELLS", 30)
    made = heat_of(answer(10, 8))
    assert made is not None
    assert (len(made["steps"]), made["left_out"]) == (3, 5)


def pairs(*rows: tuple[int, int, int | None, float | None]) -> Answer:
    """Sender, receiver, bytes, GB/s; messages are alone where a bandwidth is given."""
    frame = PAIR.frame(
        [
            {
                "sender": sender,
                "receiver": receiver,
                "messages": 1,
                "bytes": size,
                "alone": int(rate is not None),
                "transfer_ns": None if rate is None else 1_000,
                "busbw_gbps": rate,
            }
            for sender, receiver, size, rate in rows
        ]
    )
    return Answer({"pair": frame})


def test_pairs_that_send_nothing_are_neither_unknown_nor_zero() -> None:
    made = pairs_of(pairs((0, 1, 2_000_000, 5.0), (1, 2, None, None)), dict.fromkeys(range(3), "host-1"), 4)
    assert made is not None
    rate, sent = made["figures"]
    assert rate["values"] == [["-", 5.0, "-"], ["-", "-", None], ["-", "-", "-"]]
    assert sent["values"] == [["-", 2.0, "-"], ["-", "-", None], ["-", "-", "-"]]
    assert (made["rows"][2], made["ranks"][2], made["indexes"]) == ("rank 2", 2, [4, 4, 4])


def test_many_ranks_send_by_host_and_a_host_leads_to_its_first_rank() -> None:
    host_of = {rank: f"host-{rank // 8 + 1}" for rank in range(96)}
    made = pairs_of(pairs(*((rank, (rank + 8) % 96, 1_000_000, 2.0) for rank in range(96))), host_of, None)
    assert made is not None
    assert made["rows"] == [f"host-{number}" for number in range(1, 13)]
    assert made["ranks"] == list(range(0, 96, 8))
    assert made["figures"][1]["values"][0][1] == 8.0


def test_without_messages_there_is_no_matrix() -> None:
    assert pairs_of(pairs(), {}, 0) is None
    assert pairs_of(None, {}, 0) is None
