"""The Reducer model against real DistributedDataParallel: two gloo ranks run hundreds of generated models.

Run as a script this file is one of the two ranks; as a test module it starts both once and compares what they
saw (every gradient that got ready and every bucket that was launched, in host order) with what the model says.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import require

from nsysddp.ddp.reducer import (
    GraphChanged,
    Parameter,
    Reducer,
    Settings,
    UnfinishedReduction,
    initial_layout,
    rebuilt_layout,
    schedule,
)
from nsysddp.model.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
WORLD_SIZE = 2


# ---------------------------------------------------------------------------------------------- one real rank


def run_rank(rank: int, folder: Path) -> None:
    """Run all cases as one rank and write what happened."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    cases = json.loads((folder / "cases.json").read_text())
    seen = [run_case(case, rank) for case in cases]
    (folder / f"seen{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def run_case(case: dict[str, Any], rank: int) -> dict[str, Any] | None:
    import torch
    import torch.distributed as dist
    from torch import nn

    class Branch(nn.Module):
        def __init__(self, numel: int, dtype: str) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(numel, dtype=getattr(torch, dtype)))

        def forward(self) -> Any:
            weight = torch.view_as_real(self.weight) if self.weight.is_complex() else self.weight
            return weight.sum().float()

    class SparseBranch(nn.Embedding):
        def __init__(self, numel: int) -> None:
            super().__init__(numel, 1, sparse=True)

        def forward(self) -> Any:
            return super().forward(torch.tensor([0])).sum()

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(
                SparseBranch(numel) if sparse else Branch(numel, dtype)
                for numel, dtype, sparse in case["parameters"]
            )

        def forward(self, order: list[int]) -> Any:
            total = torch.zeros(())
            for index in order:  # the branch added last gets its gradient first
                total = total + self.branches[index]()
            return total

    if not case["ddp"].keys() <= inspect.signature(nn.parallel.DistributedDataParallel).parameters.keys():
        return None  # this torch has no bucket_cap_mb_list
    os.environ["DDP_SET_LAST_BUCKET_CAP"] = "1" if case["small_last_bucket"] else "0"
    model = nn.parallel.DistributedDataParallel(Branches(), gradient_as_bucket_view=True, **case["ddp"])
    index_of = {id(branch.weight): index for index, branch in enumerate(model.module.branches)}
    events: list[Any] = []
    for branch in model.module.branches:
        branch.weight.register_post_accumulate_grad_hook(
            lambda weight: events.append(["ready", index_of[id(weight)]])
        )

    def record_launch(_, bucket):  # DDP accepts no annotations but its own
        buffer = bucket.buffer()
        size = 0 if buffer.is_sparse else buffer.numel() * buffer.element_size()
        members = [index_of[id(parameter)] for parameter in bucket.parameters()]
        events.append(["launch", bucket.index(), members, size, bucket.is_last()])
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, record_launch)
    iterations = []
    for iteration in case["iterations"]:
        events.clear()
        error = None
        context = nullcontext() if iteration["synchronise"] else model.no_sync()
        profiler = torch.profiler.profile() if case.get("profile") else nullcontext()
        try:
            with context, profiler:
                model(iteration["use_order"][rank]).backward()
        except RuntimeError as caught:
            error = str(caught)
        iterations.append({"events": list(events), "error": error})
        if case.get("profile"):
            names = [event.name for event in profiler.events()]
            iterations[-1]["all_reduces"] = names.count("c10d::allreduce_")
        if error:
            break
    logged = model._get_ddp_logging_data()
    logged = {key: str(value) for key, value in logged.items()}
    return {"iterations": iterations, "logged": logged, "has_rebuilt": model._has_rebuilt_buckets}


# ------------------------------------------------------------------------------------------- generated models


def generate_cases() -> list[dict[str, Any]]:
    rng = random.Random(20)
    makers = [
        plain_case,
        ranks_differ_case,
        static_case,
        static_no_sync_case,
        dynamic_case,
        no_sync_case,
        undetected_case,
        changed_graph_case,
    ]
    cases = [maker(rng) for maker in makers for _ in range(50)]
    parameters = [[100, "float32", False]] * 5
    orders = [[0, 1, 2, 3]] * 3
    for name, ddp in PROFILED.items():
        used = [[*order, 4] for order in orders] if name == "plain" else orders
        ddp = ddp | {"bucket_cap_mb": 800 / MIB}
        cases.append(case_of("profiled", parameters, ddp, used, name=name, profile=True))
    starts_in_no_sync = {"static_graph": True}
    cases.append(
        case_of("unsupported", parameters, starts_in_no_sync, orders, synchronise=[False, True, True])
    )
    return cases + known_cases()


PROFILED: dict[str, dict[str, Any]] = {
    "plain": {},
    "dynamic": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


def case_of(
    kind: str, parameters: list[Any], ddp: dict[str, Any], orders: list[Any], **more: Any
) -> dict[str, Any]:
    """``orders`` holds for each iteration the order of use, of both ranks or of each."""
    synchronise = more.pop("synchronise", [True] * len(orders))
    iterations = [
        {"use_order": order if order and isinstance(order[0], list) else [order, order], "synchronise": sync}
        for order, sync in zip(orders, synchronise, strict=True)
    ]
    case = {"kind": kind, "parameters": parameters, "ddp": ddp, "iterations": iterations}
    return case | {"small_last_bucket": more.pop("small_last_bucket", False)} | more


def random_parameters(rng: random.Random, *, sparse: bool = True) -> list[Any]:
    count = rng.randint(1, 14)
    dtypes = rng.sample(sorted(ELEMENT_BYTES), rng.choice([1, 1, 2, 3]))
    parameters = []
    for _ in range(count):
        if sparse and rng.random() < 0.08:
            parameters.append([rng.randint(1, 300), "float32", True])
        else:
            parameters.append([rng.randint(1, 600), rng.choice(dtypes), False])
    return parameters


def random_caps(rng: random.Random) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.2:
        return {}
    if kind < 0.35:
        return {"bucket_cap_mb_list": [rng.randint(1, 4000) / MIB for _ in range(rng.randint(1, 3))]}
    return {"bucket_cap_mb": rng.choice([1, rng.randint(1, 8000)]) / MIB}


def shuffled(rng: random.Random, items: Any) -> list[int]:
    items = list(items)
    rng.shuffle(items)
    return items


def plain_case(rng: random.Random) -> dict[str, Any]:
    parameters = random_parameters(rng)
    everything = range(len(parameters))
    orders = [shuffled(rng, everything) for _ in range(3)]
    small_last = rng.random() < 0.3
    return case_of("plain", parameters, random_caps(rng), orders, small_last_bucket=small_last)


def ranks_differ_case(rng: random.Random) -> dict[str, Any]:
    parameters = random_parameters(rng, sparse=False)
    everything = range(len(parameters))
    orders = [[shuffled(rng, everything) for _ in range(WORLD_SIZE)] for _ in range(2)]
    return case_of("ranks_differ", parameters, random_caps(rng), orders)


def static_no_sync_case(rng: random.Random) -> dict[str, Any]:
    case = static_case(rng)
    for iteration in case["iterations"][1:]:
        iteration["synchronise"] = rng.random() < 0.6
    return case | {"kind": "static_no_sync"}


def static_case(rng: random.Random) -> dict[str, Any]:
    parameters = random_parameters(rng, sparse=False)
    used = rng.sample(range(len(parameters)), rng.randint(1, len(parameters)))
    ddp = random_caps(rng) | {"static_graph": True, "find_unused_parameters": rng.random() < 0.3}
    return case_of("static", parameters, ddp, [shuffled(rng, used) for _ in range(4)])


def dynamic_case(rng: random.Random) -> dict[str, Any]:
    parameters = random_parameters(rng, sparse=False)
    everything = range(len(parameters))
    orders = [
        [rng.sample(everything, rng.randint(1, len(parameters))) for _ in range(WORLD_SIZE)] for _ in range(3)
    ]
    return case_of("dynamic", parameters, random_caps(rng) | {"find_unused_parameters": True}, orders)


def no_sync_case(rng: random.Random) -> dict[str, Any]:
    parameters = random_parameters(rng, sparse=False)
    orders = [shuffled(rng, range(len(parameters))) for _ in range(6)]
    ddp = random_caps(rng) | {"find_unused_parameters": rng.random() < 0.3}
    synchronise = [rng.random() < 0.5 for _ in orders]
    return case_of("no_sync", parameters, ddp, orders, synchronise=synchronise)


def undetected_case(rng: random.Random) -> dict[str, Any]:
    parameters = random_parameters(rng, sparse=False)
    if len(parameters) < 2:
        parameters *= 2
    everything = range(len(parameters))
    orders = [shuffled(rng, everything) for _ in range(rng.randint(0, 3))]
    orders.append(rng.sample(everything, rng.randint(1, len(parameters) - 1)))
    return case_of("undetected", parameters, random_caps(rng), [*orders, list(everything)])


def changed_graph_case(rng: random.Random) -> dict[str, Any]:
    parameters = random_parameters(rng, sparse=False)
    if len(parameters) < 2:
        parameters *= 2
    everything = range(len(parameters))
    some = rng.sample(everything, rng.randint(1, len(parameters) - 1))
    before, after = (some, list(everything)) if rng.random() < 0.5 else (list(everything), some)
    orders = [shuffled(rng, before) for _ in range(rng.randint(1, 3))] + [
        shuffled(rng, after) for _ in range(2)
    ]
    return case_of("changed_graph", parameters, random_caps(rng) | {"static_graph": True}, orders)


FLOATS_OF_MIB = MIB // 4
NAMED = {
    # name: (parameters of so many MiB, how many, DDP's arguments, used, initial MiB, final MiB)
    "fine1_cap4": (1, 48, {"bucket_cap_mb": 4}, 48, [48], [4] * 12),
    "coarse4_cap4": (4, 12, {"bucket_cap_mb": 4}, 12, [48], [4] * 12),
    "coarse4_cap16": (4, 12, {"bucket_cap_mb": 16}, 12, [48], [16] * 3),
    "coarse4_cap64": (4, 12, {"bucket_cap_mb": 64}, 12, [48], [48]),
    "delay_cap4": (4, 12, {"bucket_cap_mb": 4}, 12, [48], [4] * 12),
    "delay_cap64": (4, 12, {"bucket_cap_mb": 64}, 12, [48], [48]),
    "dynamic_unused": (
        4,
        13,
        {"bucket_cap_mb": 16, "find_unused_parameters": True},
        12,
        [4, 16, 16, 16],
        [4, 16, 16, 16],
    ),
    "static_unused": (4, 13, {"bucket_cap_mb": 16, "static_graph": True}, 12, [52], [16, 16, 16, 4]),
    "default_cap_fine": (1, 48, {}, 48, [48], [1, 25, 22]),
    "default_cap": (4, 12, {}, 12, [48], [4, 28, 16]),
    "explicit_cap25": (4, 12, {"bucket_cap_mb": 25}, 12, [48], [28, 20]),
    "default_cap_dynamic": (4, 12, {"find_unused_parameters": True}, 12, [16, 28, 4], [16, 28, 4]),
}


def known_cases() -> list[dict[str, Any]]:
    return [
        case_of(
            "known",
            [[mib * FLOATS_OF_MIB, "float32", False]] * count,
            ddp,
            [list(range(used))] * 4,
            name=name,
        )
        for name, (mib, count, ddp, used, _, _) in NAMED.items()
    ]


# -------------------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True)
class Run:
    cases: list[dict[str, Any]]
    seen: list[list[Any]]  # by rank, by case; None where this torch lacks an argument

    def of_kind(self, kind: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        return [
            (case, [self.seen[rank][at] for rank in range(WORLD_SIZE)])
            for at, case in enumerate(self.cases)
            if case["kind"] == kind and self.seen[0][at] is not None
        ]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Run:
    require("torch", importlib.util.find_spec("torch") is not None)
    folder = tmp_path_factory.mktemp("ddp")
    cases = generate_cases()
    (folder / "cases.json").write_text(json.dumps(cases))
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    logs = [(folder / f"log{rank}").open("w") for rank in range(WORLD_SIZE)]
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)], env=env, stdout=log, stderr=log)
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [rank.wait(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
        for log in logs:
            log.close()
    assert codes == [0] * WORLD_SIZE, "".join((folder / f"log{rank}").read_text()[-3000:] for rank in (0, 1))
    return Run(cases, [json.loads((folder / f"seen{rank}.json").read_text()) for rank in range(WORLD_SIZE)])


def parameters_of(case: dict[str, Any]) -> list[Parameter]:
    return [
        Parameter(f"branches.{index}.weight", numel * ELEMENT_BYTES[dtype], dtype, "cpu", sparse)
        for index, (numel, dtype, sparse) in enumerate(case["parameters"])
    ]


def settings_of(case: dict[str, Any]) -> Settings:
    ddp = case["ddp"]
    return Settings(
        bucket_cap_bytes=int(ddp["bucket_cap_mb"] * MIB) if "bucket_cap_mb" in ddp else None,
        bucket_caps_bytes=tuple(int(cap * MIB) for cap in ddp.get("bucket_cap_mb_list", ())),
        find_unused_parameters=ddp.get("find_unused_parameters", False),
        static_graph=ddp.get("static_graph", False),
        small_last_bucket=case["small_last_bucket"],
    )


def ready_times(events: list[Any]) -> dict[int, int]:
    """The n-th gradient that got ready has time n."""
    return {event[1]: at for at, event in enumerate(e for e in events if e[0] == "ready")}


def launches(events: list[Any]) -> list[Any]:
    """(index, members, bytes, is last, time of the newest ready gradient) of every launched bucket."""
    ready = -1
    found = []
    for kind, *what in events:
        if kind == "ready":
            ready += 1
        else:
            index, members, size_bytes, is_last = what
            found.append((index, tuple(members), size_bytes, is_last, ready))
    return found


def predicted(done: Any, parameters: list[Parameter]) -> list[Any]:
    return [
        (
            reduction.bucket.index,
            reduction.bucket.parameters,
            0 if parameters[reduction.bucket.parameters[0]].sparse_gradient else reduction.bucket.size_bytes,
            reduction.bucket.index == len(done.reductions) - 1,
            reduction.collective.launch_ns,
        )
        for reduction in done.reductions
        if reduction.collective is not None
    ]


def sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(", ") if size]


def assert_same_error(error: UsageError, of_ddp: str, rank: int) -> None:
    if isinstance(error, GraphChanged):
        assert of_ddp.startswith("Your training graph has changed")
    else:
        assert str(error).split(".")[0] == of_ddp.split(".")[0]
        _, _, indices = str(error).partition("receive grad: ")
        assert f"rank {rank}: {indices}\n" in of_ddp


def replay(case: dict[str, Any], seen: dict[str, Any], rank: int) -> str | None:
    """Hold the model to one rank's run, iteration by iteration; returns the error both ended with."""
    parameters = parameters_of(case)
    settings = settings_of(case)
    reducer = Reducer(parameters, settings)
    assert sizes(seen["logged"]["bucket_sizes"]) == [b.size_bytes for b in reducer.layout.buckets]
    for iteration, happened in zip(case["iterations"], seen["iterations"], strict=False):
        ready_ns = ready_times(happened["events"])
        if happened["error"] is None:
            assert list(ready_ns) == iteration["use_order"][rank][::-1]
        else:  # a graph that changed stops the backward pass at the first surprise
            ready_ns = {index: at for at, index in enumerate(reversed(iteration["use_order"][rank]))}
        error: UsageError | None = None
        try:
            done = reducer.iterate(ready_ns, lambda _: 0, synchronise=iteration["synchronise"])
        except (UnfinishedReduction, GraphChanged) as raised:
            error = raised
        if error is not None:
            assert happened["error"] is not None, f"the model raises, DDP does not: {error}"
            assert_same_error(error, happened["error"], rank)
            return str(error)
        assert happened["error"] is None, f"DDP raises, the model does not: {happened['error']}"
        if done is None:
            assert not launches(happened["events"])
        else:
            expected = predicted(done, parameters)
            if settings.static_graph and iteration is case["iterations"][0]:
                # launched from a callback after backward, which calls every bucket number 0
                expected = [(0, *launch[1:3], len(expected) == 1, launch[4]) for launch in expected]
            assert launches(happened["events"]) == expected
    assert seen["has_rebuilt"] == reducer.layout.rebuilt
    return None


@pytest.mark.parametrize("kind", ["plain", "static", "static_no_sync", "dynamic", "no_sync", "known"])
def test_every_launch_of_every_iteration_is_predicted(real: Run, kind: str) -> None:
    cases = real.of_kind(kind)
    assert cases
    for case, seen in cases:
        for rank in range(WORLD_SIZE):
            assert replay(case, seen[rank], rank) is None


@pytest.mark.parametrize("kind", ["undetected", "changed_graph"])
def test_the_same_error_in_the_same_iteration(real: Run, kind: str) -> None:
    for case, seen in real.of_kind(kind):
        for rank in range(WORLD_SIZE):
            assert replay(case, seen[rank], rank) is not None, case


def test_the_rebuilt_layout_of_every_rank_is_that_of_rank_0(real: Run) -> None:
    for case, seen in real.of_kind("ranks_differ"):
        parameters, settings = parameters_of(case), settings_of(case)
        order = list(ready_times(seen[0]["iterations"][0]["events"]))
        layout = rebuilt_layout(parameters, order, settings)
        for rank in range(WORLD_SIZE):
            events = seen[rank]["iterations"][1]["events"]
            expected = predicted(schedule(layout, ready_times(events), lambda _: 0), parameters)
            assert launches(events) == expected


@pytest.mark.parametrize("name", PROFILED)
def test_number_of_collectives_with_the_map_of_used_parameters(real: Run, name: str) -> None:
    case, seen = next((c, s) for c, s in real.of_kind("profiled") if c["name"] == name)
    for rank in range(WORLD_SIZE):
        reducer = Reducer(parameters_of(case), settings_of(case))
        for happened in seen[rank]["iterations"]:
            done = reducer.iterate(ready_times(happened["events"]), lambda _: 1)
            assert done is not None
            assert happened["all_reduces"] == len(done.collectives)


def test_static_graph_cannot_start_in_no_sync(real: Run) -> None:
    [(case, seen)] = real.of_kind("unsupported")
    with pytest.raises(UsageError, match="internal assertion"):
        Reducer(parameters_of(case), settings_of(case)).iterate({0: 0}, lambda _: 0, synchronise=False)
    for rank in range(WORLD_SIZE):
        assert "INTERNAL ASSERT FAILED" in seen[rank]["iterations"][0]["error"]


@pytest.mark.parametrize("name", NAMED)
def test_known_layout(real: Run, name: str) -> None:
    mib, count, _, used, initial_mib, final_mib = NAMED[name]
    case, seen = next((c, s) for c, s in real.of_kind("known") if c["name"] == name)
    parameters, settings = parameters_of(case), settings_of(case)
    assert [b.size_bytes for b in initial_layout(parameters, settings).buckets] == [
        m * MIB for m in initial_mib
    ]
    final = (
        rebuilt_layout(parameters, range(used)[::-1], settings)
        if settings.rebuilds
        else initial_layout(parameters, settings)
    )
    assert [bucket.size_bytes for bucket in final.buckets] == [m * MIB for m in final_mib]
    for rank in range(WORLD_SIZE):
        last = [launch[2] for launch in launches(seen[rank]["iterations"][-1]["events"])]
        assert last == [m * MIB for m in final_mib]
        logged = seen[rank]["logged"]
        assert sizes(logged["bucket_sizes"]) == [m * MIB for m in initial_mib]
        assert int(logged.get("has_rebuilt_buckets", 0)) == settings.rebuilds
        if settings.rebuilds:
            assert sizes(logged["rebuilt_bucket_sizes"]) == [m * MIB for m in final_mib]
        order = sizes(logged["prev_iteration_grad_ready_order_indices"])
        assert order == list(range(used))[::-1]
    assert mib * count == sum(initial_mib)


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), Path(sys.argv[2]))
