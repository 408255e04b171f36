"""The Perfetto trace, read back packet by packet with Perfetto's own message classes.

The trace processor itself is a program that the Python package downloads at run time; where it is not on the PATH, what
it would check (tracks, slices that nest, flows) is checked here by a reader of a few lines.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from builder import Export
from conftest import require
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysddp.cli import main
from nsysddp.join.load import load
from nsysddp.model.names import visible
from nsysddp.questions import Context, context_of
from nsysddp.questions.critical_path import critical_path
from nsysddp.questions.steps import Selection
from nsysddp.render.perfetto import Slice, lanes, write_perfetto

NASTY = "</script><img onerror=x> kernel<float, 4>"


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    require("perfetto", find_spec("perfetto") is not None)


@dataclass
class Read:
    """What a reader of the file sees."""

    tracks: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    slices: list[tuple[int, int, int, str, str, tuple[int, ...], dict[str, Any]]] = field(
        default_factory=list
    )

    def path(self, track: int) -> str:
        name, parent = self.tracks[track]
        return name if parent is None else f"{self.path(parent)} > {name}"

    def on(self, words: str) -> list[tuple[int, int, int, str, str, tuple[int, ...], dict[str, Any]]]:
        return [one for one in self.slices if words in self.path(one[0])]


def read(data: bytes) -> Read:
    """Read as the trace processor does: interned names per sequence, slices by a stack per track."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    trace = Trace()
    trace.ParseFromString(data)
    seen = Read()
    names: dict[int, str] = {}
    categories: dict[int, str] = {}
    stacks: dict[int, list[Any]] = defaultdict(list)
    cleared = False
    for packet in trace.packet:
        cleared = cleared or bool(packet.sequence_flags & 1)
        if packet.HasField("track_descriptor"):
            one = packet.track_descriptor
            assert one.uuid not in seen.tracks
            seen.tracks[one.uuid] = (one.name, one.parent_uuid if one.HasField("parent_uuid") else None)
        names.update({entry.iid: entry.name for entry in packet.interned_data.event_names})
        categories.update({entry.iid: entry.name for entry in packet.interned_data.event_categories})
        if not packet.HasField("track_event"):
            continue
        assert cleared
        assert packet.sequence_flags & 2
        event, stack = packet.track_event, stacks[packet.track_event.track_uuid]
        assert event.track_uuid in seen.tracks
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            notes = {note.name: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations}
            category = categories[event.category_iids[0]]
            stack.append((packet.timestamp, names[event.name_iid], category, tuple(event.flow_ids), notes))
        else:
            assert event.type == TrackEvent.TYPE_SLICE_END
            start, name, category, flows, notes = stack.pop()
            assert start <= packet.timestamp
            assert not stack or stack[-1][0] <= start
            seen.slices.append((event.track_uuid, start, packet.timestamp, name, category, flows, notes))
    assert not any(stacks.values())
    return seen


def test_the_reader_refuses_what_does_not_nest() -> None:
    """The check below can fail: an end without a begin is an error here."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    data = written_of([Slice(0, 5, "a", "x")])
    trace = Trace()
    trace.ParseFromString(data)
    del trace.packet[-2]
    with pytest.raises(IndexError):
        read(trace.SerializeToString())


def written_of(slices: list[Slice]) -> bytes:
    from nsysddp.render.perfetto import _Writer

    stream = io.BytesIO()
    writer = _Writer(stream, 0)
    writer.write("track", writer.track("group", None, 0), 0, slices)
    return stream.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    export = Export(unit="us")
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank, env={"TOKEN": "hunter2-secret"})
        for step in range(2):
            at = 1_000 * step
            process.range(f"step {step}", at, at + 900)
            process.range("forward", at, at + 300)
            process.range("backward", at + 300, at + 800)
            process.kernel(NASTY, 7, (at + 50, at + 250))
            process.kernel("gemm", 7, (at + 300, at + 700))
            process.nccl("AllReduce", 17, (at + 400 + 50 * rank, at + 600), bytes=4 << 20)
    path = tmp_path_factory.mktemp("perfetto") / "run.sqlite"
    export.write(path)
    return path


def written(context: Context, with_path: bool = True) -> bytes:
    stream = io.BytesIO()
    path = critical_path(context.trace, attribution=context.attribution) if with_path else None
    count = write_perfetto(context, stream, critical_path=path)
    assert count == len(read(stream.getvalue()).slices)
    return stream.getvalue()


@pytest.fixture(scope="module")
def context(run: Path) -> Context:
    return context_of(load([run], launches=True, host_calls=True))


@pytest.fixture(scope="module")
def seen(context: Context) -> Read:
    return read(written(context))


def test_every_event_is_on_its_stream(context: Context, seen: Read) -> None:
    trace = context.trace
    expected = Counter(
        (f"rank {rank} ", f"stream {stream}", start, end, visible(trace.names["text"][name]), kind)
        for rank, stream, start, end, name, kind in trace.events.select(
            "rank", "stream", "start_ns", "end_ns", "name", pl.col("class").cast(pl.String)
        ).iter_rows()
    )
    found = Counter()
    for track, start, end, name, category, _, _ in seen.slices:
        words = seen.path(track).split(" > ")
        if words[-1].startswith("stream "):
            found[(words[0][:7], words[-1], start, end, name, category)] += 1
    assert found == expected


def test_a_launch_leads_to_its_kernel_and_no_other(context: Context, seen: Read) -> None:
    kernels = {
        flow: (start, end)
        for track, start, end, _, _, flows, _ in seen.slices
        if "stream" in seen.path(track)
        for flow in flows
        if flow < 1 << 48
    }
    calls = {
        flow: start
        for track, start, _, _, category, flows, _ in seen.slices
        if "thread" in seen.path(track) and category == "call"
        for flow in flows
    }
    assert kernels.keys() == calls.keys()
    trace = context.trace
    assert trace.launches is not None
    for flow, at in calls.items():
        event = flow - 1
        assert trace.launches["launch_ns"][event] == at
        assert (trace.events["start_ns"][event], trace.events["end_ns"][event]) == kernels[flow]


def test_the_kernels_of_a_collective_are_joined_over_the_ranks(context: Context, seen: Read) -> None:
    joined = defaultdict(set)
    for track, start, _, name, _, flows, notes in seen.slices:
        for flow in flows:
            if flow >= 1 << 48:
                joined[flow].add((seen.path(track)[:6], start, name))
                assert notes["kind"] == "all_reduce"
                assert notes["bytes"] == 4 << 20
    assert len(joined) == 2
    for kernels in joined.values():
        assert {rank for rank, _, _ in kernels} == {"rank 0", "rank 1"}
    waits = [notes["wait_ns"] for *_, notes in seen.on("rank 0") if "wait_ns" in notes]
    assert waits == [50_000, 50_000]
    del context


def test_steps_ranges_and_sets(context: Context, seen: Read) -> None:
    steps = [(start, end, name) for _, start, end, name, *_ in seen.on("rank 1 ") if name.startswith("step ")]
    windows = [(one.start, one.end) for one in context.windows.windows if one.rank == 1]
    assert {(start, end) for start, end, _ in steps} >= set(windows)
    assert [
        name for *_, name, category, _, _ in seen.on("rank 1 ") if category == "range" and name == "backward"
    ]
    for rank in (0, 1):
        for name, some in (("transfer", context.splits[rank].transfer), ("wait", context.splits[rank].wait)):
            found = [(start, end) for _, start, end, word, *_ in seen.on(f"rank {rank} ") if word == name]
            assert found == list(zip(some.start.tolist(), some.end.tolist(), strict=True))


def test_the_critical_path_tiles(context: Context, seen: Read) -> None:
    path = critical_path(context.trace)["critical_path"]
    found = sorted((start, end) for _, start, end, *_ in seen.on("critical path > "))
    assert found == sorted(path.select("start_ns", "end_ns").iter_rows())
    assert read(written(context, with_path=False)).on("critical path") == []


def test_only_the_chosen_steps_are_written(context: Context) -> None:
    chosen = context_of(context.trace, Selection(first_step=1))
    found = read(written(chosen, with_path=False)).on("stream ")
    assert len(found) == 6
    assert {notes["launched in"] for *_, notes in found} == {"step 1"}


def test_names_are_text_and_no_secret_is_written(context: Context, run: Path) -> None:
    data = written(context)
    assert NASTY in {name for *_, name, _, _, _ in read(data).slices}
    assert b"hunter2" not in data
    assert str(run.parent).encode() not in data


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=25))
@settings(max_examples=80, deadline=None)
def test_slices_of_a_lane_nest(drawn: list[tuple[int, int]]) -> None:
    slices = [Slice(start, start + length, str(number), "x") for number, (start, length) in enumerate(drawn)]
    made = lanes(slices)
    assert sorted(one.name for lane in made for one in lane) == sorted(one.name for one in slices)
    for lane in made:
        for place, one in enumerate(lane):
            for two in lane[place + 1 :]:
                assert two.start_ns >= one.end_ns or two.end_ns <= one.end_ns
    assert len(made) <= max(
        (sum(one.start_ns <= at < max(one.end_ns, one.start_ns + 1) for one in slices) for at in range(91)),
        default=0,
    )
    if slices:
        found = read(written_of(slices)).slices
        assert Counter((start, end, name) for _, start, end, name, *_ in found) == Counter(
            (one.start_ns, one.end_ns, one.name) for one in slices
        )


def test_the_file_is_the_same_in_every_process(run: Path, tmp_path: Path) -> None:
    made = []
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.pftrace"
        subprocess.run(
            [sys.executable, "-m", "nsysddp", "export", str(run), "--perfetto", str(out)]
            if find_spec("nsysddp.__main__")
            else [
                sys.executable,
                "-c",
                "from nsysddp.cli import main; main()",
                "export",
                str(run),
                "--perfetto",
                str(out),
            ],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_the_command_writes_whole_files_only(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.pftrace"
    for words, code in (([], 0), ([], 2), (["--force"], 0)):
        with pytest.raises(SystemExit) as stopped:
            main(["export", str(run), "--perfetto", str(out), *words])
        assert stopped.value.code == code
    assert "the file is there already" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["run.pftrace"]
    assert read(out.read_bytes()).slices


def test_without_the_library_the_command_says_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nsysddp.render.perfetto

    monkeypatch.setattr(nsysddp.render.perfetto, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(run), "--perfetto", str(tmp_path / "run.pftrace")])
    assert stopped.value.code == 2
    assert "pip install 'nsysddp[perfetto]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_real_captures(unpacked: Any) -> None:
    for name in ("h200/delay_cap4", "h200/graph_node", "h200/hook"):
        trace = load([unpacked(name)], launches=True, host_calls=True)
        seen = read(written(context_of(trace)))
        streams = [one for one in seen.slices if "stream" in seen.path(one[0])]
        assert len(streams) == trace.events.height


def test_the_trace_processor_reads_it(context: Context, tmp_path: Path) -> None:
    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None:
        pytest.skip(
            "no trace_processor_shell on the PATH; the file was read with Perfetto's message classes instead"
        )
    path = tmp_path / "run.pftrace"
    path.write_bytes(written(context))
    (tmp_path / "query.sql").write_text("select count(*) from slice; select count(*) from flow;")
    said = subprocess.run(
        [shell, "query", "-f", str(tmp_path / "query.sql"), str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(len(read(path.read_bytes()).slices)) in said
