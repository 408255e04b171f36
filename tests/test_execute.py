"""Work in other processes: results in order, what was lost is tried again, and what stays lost is named."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import unlucky

from nsysddp.execute import HERE, Place, cluster
from nsysddp.execute.executor import KILLED, NO_MEMORY, InProcess, Lost, Processes
from nsysddp.execute.place import _MANY_FILES
from nsysddp.model.errors import UsageError

PLACES = [HERE, Place(jobs=2), Place(scheduler="local:2")]
ELSEWHERE = PLACES[1:]


def names(place: Place, tasks: list[Path]) -> list[str | Lost]:
    done: list[Path] = []
    results = place.executor().map(unlucky.work, tasks, done.append)
    assert sorted(done) == sorted(tasks)
    return results


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_results_are_in_the_order_of_the_tasks(place: Place) -> None:
    tasks = [Path(f"task{number}") for number in (9, 3, 7, 1, 8, 2, 0)]
    assert names(place, tasks) == [task.name for task in tasks]
    assert names(place, []) == []


@pytest.mark.parametrize("place", ELSEWHERE, ids=str)
def test_what_dies_once_or_lacks_memory_once_is_tried_again(place: Place, tmp_path: Path) -> None:
    tasks = [Path("a"), tmp_path / "killed-once", Path("b"), tmp_path / "memory-once", Path("c"), Path("d")]
    assert names(place, tasks) == [task.name for task in tasks]


@pytest.mark.parametrize("place", ELSEWHERE, ids=str)
def test_what_always_dies_or_lacks_memory_is_lost_alone(place: Place) -> None:
    tasks = [Path("a"), Path("killed-always"), Path("b"), Path("memory-always"), *map(Path, "cdefgh")]
    expected = ["a", Lost(KILLED), "b", Lost(NO_MEMORY), *"cdefgh"]
    assert names(place, tasks) == expected


@pytest.mark.parametrize("place", ELSEWHERE, ids=str)
def test_what_runs_beside_tasks_that_die_is_not_blamed_for_them(place: Place) -> None:
    tasks = [
        Path(name)
        for turn in range(4)
        for name in (f"killed-always{turn}", f"a{turn}", f"memory-always{turn}")
    ]
    expected = [result for turn in range(4) for result in (Lost(KILLED), f"a{turn}", Lost(NO_MEMORY))]
    assert names(place, tasks) == expected


def test_workers_that_never_come_back_are_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """dask does not always start a worker again; without this the run would wait for ever."""
    monkeypatch.setattr(cluster, "_LOOK_S", 0.2)
    monkeypatch.setattr(cluster, "_DESERTED_S", 1.0)
    tasks = [Path(name) for name in "abc"]
    with cluster.Cluster("local:1") as executor:
        assert executor.map(unlucky.work, tasks, lambda _: None) == ["a", "b", "c"]
        client = executor._connected
        assert client is not None
        client.cluster.scale(0)
        while client.scheduler_info()["workers"]:
            time.sleep(0.05)
        assert executor.map(unlucky.work, tasks, lambda _: None) == ["a", "b", "c"]
        assert executor._connected is not client


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_defect_is_raised_and_not_lost(place: Place) -> None:
    with pytest.raises(ZeroDivisionError, match="defect"):
        names(place, [Path("a"), Path("defect"), Path("b")])


def test_a_lack_of_memory_here_is_raised() -> None:
    with pytest.raises(MemoryError):
        names(HERE, [Path("a"), Path("memory-always")])


def test_the_place_that_suits_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{number}.sqlite" for number in range(_MANY_FILES)]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    assert Place.of(None, None, files) == Place(jobs=4)
    assert Place.of(None, None, files[:8]) == HERE
    with files[0].open("wb") as large:
        large.truncate(1 << 30)
    assert Place.of(None, None, files[:3]) == Place(jobs=3)
    assert Place.of(None, None, files[:1]) == Place.of(8, None, files[:1]) == HERE
    assert Place.of(8, None, files[:3]) == Place(jobs=3)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1), raising=False)
    assert Place.of(None, None, files) == HERE
    assert isinstance(HERE.executor(), InProcess)
    assert isinstance(Place(jobs=2).executor(), Processes)


def test_two_places_or_a_scheduler_that_is_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="two places"):
        Place.of(2, "local:2", [])
    monkeypatch.setattr("nsysddp.execute.cluster._CONNECT_S", 0.2)
    with pytest.raises(UsageError, match="no scheduler answers"):
        names(Place(scheduler="tcp://127.0.0.1:9"), [Path("a")])
    with pytest.raises(UsageError, match="no scheduler answers"):
        names(Place(scheduler="local:0"), [Path("a")])
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'nsysddp\[cluster\]'"):
        Place(scheduler="local:2").executor()
