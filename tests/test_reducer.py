"""The Reducer model: bucket assignment against torch's own, launches and blocking against their definitions."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
from conftest import require
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysddp.ddp import reducer as model
from nsysddp.ddp.reducer import (
    Block,
    GraphChanged,
    Layout,
    Parameter,
    Reducer,
    Settings,
    UnfinishedReduction,
    assign_buckets,
    initial_layout,
    rebuilt_layout,
    schedule,
)
from nsysddp.ddp.reducer import layout as layouts
from nsysddp.model.errors import UsageError

MIB = 1 << 20
FLOATS = ["float32", "float16", "bfloat16", "float64"]

# ------------------------------------------------------------------------------- bucket assignment against torch


@st.composite
def assignments(draw: st.DrawFn) -> tuple[list[Any], list[int], list[int] | None]:
    """Parameters (elements, dtype, device, sparse), size limits, ready order or None."""
    dtypes = draw(st.lists(st.sampled_from(layouts._SCALAR_TYPES), min_size=1, max_size=30, unique=True))
    kind = st.tuples(
        st.integers(0, 40), st.sampled_from(dtypes), st.sampled_from(["cpu", "meta"]), st.integers(0, 9)
    )
    parameters = draw(st.lists(kind, min_size=1, max_size=60))
    limit = st.one_of(st.integers(0, 400), st.just(sys.maxsize))
    limits = draw(st.lists(limit, min_size=1, max_size=4))
    order = draw(st.one_of(st.none(), st.permutations(range(len(parameters)))))
    return parameters, limits, order


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_assignment_is_torchs() -> None:
    require("torch", importlib.util.find_spec("torch") is not None)
    import torch
    import torch.distributed as dist

    @settings(max_examples=2500, deadline=None)
    @given(assignments())
    def holds(case: tuple[list[Any], list[int], list[int] | None]) -> None:
        drawn, limits, order = case
        tensors, parameters = [], []
        for index, (numel, dtype, device, sparseness) in enumerate(drawn):
            tensor = torch.empty(numel, dtype=getattr(torch, dtype), device=device)
            tensors.append(tensor)
            size_bytes = tensor.numel() * tensor.element_size()
            parameters.append(Parameter(str(index), size_bytes, dtype, device, sparseness == 0))
        sparse = [parameter.sparse_gradient for parameter in parameters]
        if order is None:
            members, closed_at = dist._compute_bucket_assignment_by_size(tensors, limits, sparse)
        else:
            in_order = [tensors[index] for index in order]
            members, closed_at = dist._compute_bucket_assignment_by_size(in_order, limits, sparse, order)
        buckets = assign_buckets(parameters, limits, order)
        assert [list(bucket.parameters) for bucket in buckets] == members
        assert [bucket.limit_bytes for bucket in buckets] == closed_at

    holds()


def test_scalar_types_and_first_bucket_cap_are_torchs() -> None:
    require("torch", importlib.util.find_spec("torch") is not None)
    import torch
    import torch.distributed as dist

    assert all(isinstance(getattr(torch, name), torch.dtype) for name in layouts._SCALAR_TYPES)
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == model.DEFAULT_FIRST_BUCKET_CAP_BYTES


def test_a_bucket_may_exceed_its_limit_but_only_by_its_last_parameter() -> None:
    buckets = assign_buckets(
        [Parameter(name, size) for name, size in zip("abcd", [3, 3, 9, 1], strict=True)], [4]
    )
    assert [bucket.parameters for bucket in buckets] == [(0, 1), (2,), (3,)]


def test_small_bucket_is_last_at_first_and_first_after_the_rebuild() -> None:
    parameters = [Parameter(str(index), MIB) for index in range(60)]
    dynamic = initial_layout(parameters, Settings(find_unused_parameters=True))
    rebuilt = rebuilt_layout(parameters, range(60)[::-1], Settings())
    reversed_caps = rebuilt_layout(parameters, range(60)[::-1], Settings(small_last_bucket=True))
    assert [bucket.size_bytes // MIB for bucket in dynamic.buckets] == [9, 25, 25, 1]
    assert [bucket.size_bytes // MIB for bucket in rebuilt.buckets] == [1, 25, 25, 9]
    assert [bucket.size_bytes // MIB for bucket in reversed_caps.buckets] == [9, 25, 25, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [1]), "at least one parameter"),
        (([Parameter("a", 1)], []), "one size limit"),
        (([Parameter("a", 1, dtype="torch.float32")], [1]), "no dtype 'torch.float32'"),
        (([Parameter("a", 1, device="gpu:0")], [1]), "device 'gpu:0'"),
        (([Parameter("a", 1, device="cuda:x")], [1]), "device 'cuda:x'"),
    ],
)
def test_assignment_refuses(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        assign_buckets(*arguments)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 2]])
def test_rebuild_refuses_an_order_that_is_none(order: list[int]) -> None:
    with pytest.raises(UsageError, match="every parameter exactly once"):
        rebuilt_layout([Parameter(name, 1) for name in "abc"], order)


def test_rebuild_refuses_settings_that_never_rebuild() -> None:
    with pytest.raises(UsageError, match="never rebuilds"):
        rebuilt_layout([Parameter("a", 1)], [0], Settings(find_unused_parameters=True))


# --------------------------------------------------------------------- launches and blocking against definitions


@st.composite
def passes(draw: st.DrawFn) -> tuple[Layout, dict[int, int], dict[int, int]]:
    """A layout of some kind, ready times (of all parameters or some), wire time by size."""
    count = draw(st.integers(1, 12))
    parameters = [
        Parameter(str(index), draw(st.integers(1, 6)), draw(st.sampled_from(FLOATS[:2])))
        for index in range(count)
    ]
    chosen = Settings(
        bucket_cap_bytes=draw(st.integers(1, 20)),
        find_unused_parameters=draw(st.booleans()),
        static_graph=draw(st.booleans()),
    )
    if chosen.rebuilds and draw(st.booleans()):
        layout = rebuilt_layout(parameters, draw(st.permutations(range(count))), chosen)
    else:
        layout = initial_layout(parameters, chosen)
    used = range(count) if draw(st.booleans()) else draw(st.lists(st.integers(0, count - 1), unique=True))
    ready_ns = {index: draw(st.integers(0, 30)) for index in used}
    wire = {size: draw(st.integers(0, 9)) for size in {b.size_bytes for b in layout.buckets} | {4 * count}}
    return layout, ready_ns, wire


@settings(max_examples=600, deadline=None)
@given(passes())
def test_schedule_is_its_definition(case: tuple[Layout, dict[int, int], dict[int, int]]) -> None:
    layout, ready_ns, wire = case
    done = schedule(layout, ready_ns, wire.__getitem__)
    chosen, never = layout.settings, float("inf")

    detects = chosen.find_unused_parameters or chosen.static_graph
    first = min(ready_ns.values(), default=never)
    marked = {
        index: ready_ns.get(index, first if detects else never) for index in range(len(layout.parameters))
    }
    complete = [max(marked[index] for index in bucket.parameters) for bucket in layout.buckets]
    launch = [max(complete[: at + 1]) for at in range(len(complete))]

    assert done.unmarked == tuple(index for index, at in marked.items() if at == never)
    assert done.finalized == (launch[-1] < never)
    assert (done.next_forward_error is not None) == (bool(ready_ns) and launch[-1] == never)

    sizes = [bucket.size_bytes for bucket in layout.buckets]
    for at, reduction in enumerate(done.reductions):
        assert reduction.bucket is layout.buckets[at]
        assert reduction.complete_ns == (complete[at] if complete[at] < never else None)
        if reduction.last_parameter is not None:
            assert marked[reduction.last_parameter] == complete[at]
        if launch[at] == never:
            assert reduction.collective is None
            assert reduction.parked_ns is None
        else:
            assert reduction.collective is not None
            assert reduction.collective.launch_ns == launch[at]
            # the stream is busy from some launch on without a break
            end = max(launch[k] + sum(wire[size] for size in sizes[k : at + 1]) for k in range(at + 1))
            assert reduction.collective.end_ns == end
            assert reduction.collective.start_ns == end - wire[sizes[at]]
            assert reduction.collective.queued_ns == end - wire[sizes[at]] - launch[at]
            assert reduction.parked_ns == launch[at] - complete[at]
            assert sum(block.end_ns - block.start_ns for block in reduction.blocks) == reduction.parked_ns
        if complete[at] == never:
            assert not reduction.blocks
            continue
        ends = [complete[at], *(block.end_ns for block in reduction.blocks)]
        assert [block.start_ns for block in reduction.blocks] == ends[:-1]
        assert all(block.end_ns is None or block.end_ns > block.start_ns for block in reduction.blocks)
        for now in range(int(complete[at]), int(min(launch[at], 32))):
            head = next(k for k in range(len(complete)) if complete[k] > now)
            [block] = [
                b for b in reduction.blocks if b.start_ns <= now < (32 if b.end_ns is None else b.end_ns)
            ]
            assert block.bucket == head
            assert block.end_ns == (complete[head] if complete[head] < never else None)
            assert block.parameter in layout.buckets[head].parameters
            assert marked[block.parameter] == complete[head]

    searched = chosen.find_unused_parameters and not chosen.static_graph
    assert (done.used_map is not None) == (searched and done.finalized)
    assert len(done.collectives) == sum(at < never for at in launch) + (done.used_map is not None)
    for before, after in zip(done.collectives, done.collectives[1:], strict=False):
        assert before.end_ns <= after.start_ns
    if done.finalized:
        ends = [r.collective.end_ns for r in done.reductions if r.collective]
        if done.used_map is not None:
            assert done.used_map.start_ns == max(ends)
            ends.append(done.used_map.start_ns + wire[4 * len(layout.parameters)])
        assert done.finish_ns == max(*ends, *ready_ns.values())
    else:
        assert done.finish_ns is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.data())
def test_a_layout_rebuilt_from_an_order_parks_nothing_in_that_order(sizes: list[int], data: Any) -> None:
    parameters = [Parameter(str(index), size) for index, size in enumerate(sizes)]
    order = data.draw(st.permutations(range(len(sizes))))
    layout = rebuilt_layout(parameters, order, Settings(bucket_cap_bytes=data.draw(st.integers(1, 30))))
    done = schedule(layout, {index: at for at, index in enumerate(order)}, lambda size: size)
    assert all(reduction.parked_ns == 0 for reduction in done.reductions)


def four(settings: Settings) -> Layout:
    return initial_layout([Parameter(name, 8) for name in "abcd"], settings)


def test_who_blocked_whom_and_for_how_long() -> None:
    # buckets in launch order: d, c, b, a
    layout = four(Settings(bucket_caps_bytes=(8,)))
    done = schedule(layout, {3: 50, 2: 90, 1: 10, 0: 60}, lambda _: 30)
    d, c, b, a = done.reductions
    assert d.blocks == c.blocks == ()
    assert b.blocks == (Block(0, 3, 10, 50), Block(1, 2, 50, 90))
    assert a.blocks == (Block(1, 2, 60, 90),)
    assert [r.parked_ns for r in done.reductions] == [0, 0, 80, 30]
    assert [(r.collective.start_ns, r.collective.end_ns) for r in done.reductions if r.collective] == [
        (50, 80),
        (90, 120),
        (120, 150),
        (150, 180),
    ]
    assert [r.collective.queued_ns for r in done.reductions if r.collective] == [0, 0, 30, 60]
    assert done.finish_ns == 180


def test_a_gradient_that_never_comes_holds_everything_behind_it() -> None:
    layout = four(Settings(bucket_caps_bytes=(8,)))
    done = schedule(layout, {3: 1, 1: 2, 0: 3}, lambda _: 1)
    assert [reduction.collective is not None for reduction in done.reductions] == [True, False, False, False]
    assert done.reductions[2].blocks == (Block(1, 2, 2, None),)
    assert done.unmarked == (2,)
    assert done.finish_ns is None
    assert str(done.next_forward_error).endswith("did not receive grad: 2")


def test_an_unused_bucket_goes_with_the_first_gradient() -> None:
    layout = four(Settings(bucket_cap_bytes=8, find_unused_parameters=True))
    done = schedule(layout, {0: 7, 1: 5, 2: 3}, lambda _: 1)
    assert [reduction.complete_ns for reduction in done.reductions] == [3, 3, 5, 7]
    assert done.used_map is not None
    assert done.used_map.launch_ns == 7


def test_equal_times_keep_the_order_of_the_mapping() -> None:
    layout = four(Settings())
    assert schedule(layout, {2: 5, 0: 5, 3: 5, 1: 5}, lambda _: 1).reductions[0].last_parameter == 1


def test_schedule_refuses_strangers_and_surprises() -> None:
    layout = four(Settings(static_graph=True))
    with pytest.raises(UsageError, match="4 parameters, there is no number 4"):
        schedule(layout, {4: 1}, lambda _: 1)
    with pytest.raises(GraphChanged, match="parameter 1 was recorded as unused"):
        schedule(layout, {1: 1}, lambda _: 1, unused=[1])


# ---------------------------------------------------------------------------------------------- over iterations

IN_ORDER = {3: 1, 2: 2, 1: 3, 0: 4}


@pytest.mark.parametrize(
    ("chosen", "rebuilt"),
    [
        (Settings(bucket_cap_bytes=8), [False, True, True, True]),
        (Settings(bucket_cap_bytes=8, static_graph=True), [False, False, True, True]),
        (Settings(bucket_cap_bytes=8, find_unused_parameters=True), [False] * 4),
        (
            Settings(bucket_cap_bytes=8, static_graph=True, find_unused_parameters=True),
            [False, False, True, True],
        ),
    ],
)
def test_when_the_layout_is_rebuilt(chosen: Settings, rebuilt: list[bool]) -> None:
    reducer = Reducer([Parameter(name, 8) for name in "abcd"], chosen)
    done = [reducer.iterate(IN_ORDER, lambda _: 1) for _ in rebuilt]
    assert [one.layout.rebuilt for one in done if one] == rebuilt


def test_no_sync_learns_nothing_and_a_forward_in_it_rebuilds() -> None:
    reducer = Reducer([Parameter(name, 8) for name in "abcd"], Settings(bucket_cap_bytes=8))
    assert reducer.iterate({0: 1, 1: 2, 2: 3, 3: 4}, lambda _: 1, synchronise=False) is None
    reducer.iterate(IN_ORDER, lambda _: 1)
    assert not reducer.layout.rebuilt
    assert reducer.iterate({}, lambda _: 1, synchronise=False) is None
    assert [bucket.parameters for bucket in reducer.layout.buckets] == [(3,), (2,), (1,), (0,)]


def test_first_static_iteration_overlaps_nothing() -> None:
    reducer = Reducer(
        [Parameter(name, 8) for name in "abcd"], Settings(bucket_caps_bytes=(8,), static_graph=True)
    )
    done = reducer.iterate(IN_ORDER, lambda _: 5)
    assert done is not None
    assert done.used_map is not None
    assert [collective.start_ns for collective in done.collectives] == [4, 9, 14, 19, 24]
    assert done.collectives[0] is done.used_map


def test_undetected_unused_fails_the_next_forward() -> None:
    reducer = Reducer([Parameter(name, 8) for name in "abcd"])
    reducer.iterate({3: 1, 2: 2, 1: 3}, lambda _: 1)
    with pytest.raises(
        UnfinishedReduction, match="Expected to have finished reduction in the prior iteration"
    ):
        reducer.iterate(IN_ORDER, lambda _: 1)


def test_needs_neither_torch_nor_polars() -> None:
    code = "import sys, nsysddp.ddp.reducer; print(sorted({'torch', 'polars', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
