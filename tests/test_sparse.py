"""Columns of the dependency graph that hold only what says something: equal to arrays, and smaller."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysddp.dependencies.graph import build
from nsysddp.dependencies.queues import Sets
from nsysddp.dependencies.sparse import Gathered, Sparse
from nsysddp.join.load import load

H200 = Path(__file__).parent / "fixtures" / "h200"


@pytest.mark.parametrize("stored", [0, 1, 7, 100])
def test_a_sparse_column_is_indexed_like_the_array_that_it_stands_for(stored: int) -> None:
    rng = np.random.default_rng(stored)
    dense = np.full(100, -1, dtype=np.int32)
    at = np.sort(rng.choice(100, stored, replace=False))
    dense[at] = rng.integers(0, 100, stored)
    sparse = Sparse.of(np.arange(100), dense, 100)
    rows = rng.integers(0, 100, 300)
    assert np.array_equal(sparse[rows], dense[rows])
    assert np.array_equal(sparse[:], dense)
    assert np.array_equal(sparse[20:61], dense[20:61])
    assert [int(sparse[row]) for row in range(100)] == dense.tolist()


def test_gathered_values_are_indexed_like_the_array_that_they_make() -> None:
    value, row = np.arange(10) ** 2, np.asarray([3, 3, 9, 0])
    gathered = Gathered(value, row)
    assert gathered.size == 4
    assert gathered[:].tolist() == [9, 9, 81, 0]
    assert gathered[np.asarray([2, 0])].tolist() == [81, 9]
    assert int(gathered[1]) == 9


def test_of_a_set_of_events_the_latest_counts_and_others_have_none() -> None:
    sets = Sets.of({4: [0, 2], 1: [], 7: [1]})
    end = np.asarray([5, 9, 5])
    assert sets.latest(end, 9)[:].tolist() == [-1, -1, -1, -1, 2, -1, -1, 1, -1], (
        "of equal ends the later row"
    )
    assert sets.latest(end, 9, np.asarray([True, False, True]))[:].tolist() == [
        -1,
        -1,
        -1,
        -1,
        0,
        -1,
        -1,
        1,
        -1,
    ]
    entry, event = sets.entries(np.asarray([7, -1, 1, 4]))
    assert (entry.tolist(), event.tolist()) == ([0, 3, 3], [1, 0, 2])
    assert [sets.event[sets.of_things(*span)].tolist() for span in ((0, 4), (4, 5), (5, 8), (8, 9))] == [
        [],
        [0, 2],
        [1],
        [],
    ]


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("nsysddp.dependencies"):
        return [array for field in dataclasses.fields(value) for array in _arrays(getattr(value, field.name))]
    return []


def test_the_graph_takes_little_memory_for_each_event_and_call() -> None:
    graph = build(load(H200 / "gpt_ddp.sqlite.gz", host_calls=True))
    owners = [array if array.base is None else array.base for array in _arrays(graph)]
    held = {
        id(owner): owner.nbytes for owner in owners if isinstance(owner, np.ndarray)
    }  # not those of the trace
    assert sum(held.values()) < 36 * (graph.events + graph.lines.row.size)
