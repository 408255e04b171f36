"""The page about a run: what it packs is what the trace holds, and nothing from a trace can be markup or program."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builder import Export
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

from nsysddp.cli import main
from nsysddp.join.load import load
from nsysddp.model.intervals import Intervals
from nsysddp.model.names import visible
from nsysddp.model.result import Result
from nsysddp.questions import Context, analyze, context_of
from nsysddp.questions.buckets import buckets
from nsysddp.questions.compare.tables import COMPARISON, MATRIX
from nsysddp.questions.critical_path import critical_path
from nsysddp.questions.diagnosis import diagnose
from nsysddp.render import per_rank
from nsysddp.render.html import _timeline_notes, html_report
from nsysddp.render.html.packed import brief, outline, resolution, timeline_of, varints
from nsysddp.render.html.program import imports, module, order, program
from nsysddp.render.html.tables import _cells, short_table

NASTY = (
    "</script><img src=x onerror=alert(1)>",
    "void at::native::vectorized_elementwise_kernel<4, float>(int, std::array<char*, 2>)",
    "kernel<float, 4> & \u2028 {{ 7*7 }} \"'`",
    "<!--<script>",
)


def decode(data: bytes, place: list[int]) -> list[int]:
    """LEB128 by the book, one number at a time."""
    at, count = place
    numbers = []
    for _ in range(count):
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        numbers.append(value)
    return numbers


def ascending(data: bytes, place: list[int]) -> list[int]:
    return np.cumsum(decode(data, place)).tolist() if place[1] else []


def pieces(data: bytes, packed: dict[str, list[int]]) -> list[tuple[int, int]]:
    made, at = [], 0
    for gap, length in zip(decode(data, packed["gap"]), decode(data, packed["length"]), strict=True):
        made.append((at + gap, at + gap + length))
        at += gap + length
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, two steps, names that look like markup, and a secret that no output may hold."""
    export = Export(unit="us")
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank, env={"API_TOKEN": "hunter2-secret"})
        for step in range(2):
            at = 1_000 * step
            process.range(f"step {step}", at, at + 900)
            process.range("forward", at, at + 300)
            process.range("backward", at + 300, at + 800)
            for number, name in enumerate(NASTY):
                process.kernel(name, 7, (at + 10 + 150 * number, at + 140 + 150 * number))
            process.kernel("gemm", 9, (at + 700, at + 790))
            for number in range(2):
                begin = at + 350 + 200 * number + 40 * rank
                process.nccl("AllReduce", 17, (begin, at + 500 + 200 * number), bytes=4 << 20)
    path = tmp_path_factory.mktemp("html") / "run.sqlite"
    export.write(path)
    return path


@pytest.fixture(scope="module")
def answered(run: Path) -> tuple[Result, Context]:
    trace = load([run], launches=True, host_calls=True)
    return analyze(trace), context_of(trace)


@pytest.fixture(scope="module")
def page(answered: tuple[Result, Context]) -> str:
    result, context = answered
    return html_report(result, context=context, critical_path=critical_path(result.trace))


# --- bytes


@given(st.lists(st.integers(0, 2**63 - 1), max_size=60))
@settings(max_examples=80, deadline=None)
def test_varints_come_back(numbers: list[int]) -> None:
    data = varints(np.array(numbers, dtype=np.int64))
    assert decode(data, [0, len(numbers)]) == numbers
    assert len(data) == sum(max(1, -(-number.bit_length() // 7)) for number in numbers)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        varints([1, -1])


SETS = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 60)), max_size=40).map(
    lambda some: Intervals.union_of([a for a, _ in some], [a + b for a, b in some])
)


@given(SETS, st.integers(0, 300))
@settings(max_examples=80, deadline=None)
def test_an_outline_covers_the_set_and_knows_how_much(some: Intervals, apart: int) -> None:
    made = outline(some, apart)
    assert int(made.covered.sum()) == some.length_ns
    assert np.all(made.start[1:] - made.end[:-1] >= max(apart, 1))
    assert (some - Intervals(made.start, made.end)).length_ns == 0
    assert some.length_within(made.start, made.end).tolist() == made.covered.tolist()
    gaps = Intervals(made.start, made.end) - some
    assert np.all(gaps.end - gaps.start < max(apart, 1))
    if apart <= 1:
        assert Intervals(made.start, made.end) == some


@given(st.lists(SETS, max_size=6), st.integers(0, 80))
@settings(max_examples=80, deadline=None)
def test_sets_are_merged_no_further_than_needed(sets: list[Intervals], most: int) -> None:
    exact, apart = resolution(sets, most)
    kept = [len(outline(one, 0 if len(one) <= exact else apart).start) for one in sets]
    if sum(len(one) for one in sets) <= most:
        assert apart == 0
    else:
        assert sum(kept) <= max(most, sum(1 for one in sets if len(one)))
        if apart > 1 and sum(kept) < most:
            finer = [len(outline(one, 0 if len(one) <= exact else apart // 2).start) for one in sets]
            assert sum(finer) > most or not any(len(one) > exact for one in sets)


@given(st.lists(st.integers(0, 1000), max_size=50), st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_brief_events_go_first(lengths: list[int], most: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    never = np.zeros(array.size, dtype=bool)
    least = brief(array, never, most)
    assert np.count_nonzero(array >= least) <= most
    if least > 1:
        assert np.count_nonzero(array >= least // 2) > most


# --- the timeline holds what the trace holds


def unpacked(document: dict[str, Any], data: bytes) -> list[tuple[int, int, int, str, str]]:
    found = []
    for rank in document["ranks"]:
        for lane in rank["lanes"]:
            if "boxes" not in lane:
                continue
            boxes = lane["boxes"]
            for start, length, name in zip(
                ascending(data, boxes["start"]),
                decode(data, boxes["length"]),
                decode(data, boxes["name"]),
                strict=True,
            ):
                start += document["origin_ns"]
                found.append((rank["rank"], start, start + length, document["names"][name], lane["name"]))
    return sorted(found)


def test_every_event_is_in_the_page(answered: tuple[Result, Context]) -> None:
    _, context = answered
    document, text = timeline_of(context)
    trace = context.trace
    names = trace.names["text"]
    expected = sorted(
        (rank, start, end, visible(names[name]), kind)
        for rank, start, end, name, kind in trace.events.select(
            "rank", "start_ns", "end_ns", "name", pl.col("class").cast(pl.String)
        ).iter_rows()
    )
    assert unpacked(document, base64.b64decode(text)) == expected
    assert document["events"] == len(expected)
    assert (document["left_out"], document["brief_ns"], document["resolution_ns"]) == (0, 0, 0)


def test_sets_and_windows_are_those_of_the_analyses(answered: tuple[Result, Context]) -> None:
    _, context = answered
    document, text = timeline_of(context)
    data, origin = base64.b64decode(text), document["origin_ns"]
    for rank in document["ranks"]:
        number = rank["rank"]
        split = context.splits[number]
        communication = context.trace.union(number, ["communication"])
        busy = context.trace.union(number, ["compute", "spin"])
        expected = {
            "compute": context.trace.union(number, ["compute"]),
            "transfer": split.transfer,
            "wait": split.wait,
            "exposed": communication - busy,
        }
        seen = {part["look"]: part["set"] for lane in rank["lanes"] for part in lane["parts"]}
        for look, some in expected.items():
            found = [(a + origin, b + origin) for a, b in pieces(data, seen[look])]
            assert found == list(zip(some.start.tolist(), some.end.tolist(), strict=True)), look
        windows = [one for one in context.windows.windows if one.rank == number]
        starts = [start + origin for start in ascending(data, rank["windows"]["start"])]
        assert starts == [one.start for one in windows]
        assert decode(data, rank["windows"]["length"]) == [one.end - one.start for one in windows]


def test_a_crowded_timeline_keeps_communication_and_says_what_it_left_out(
    answered: tuple[Result, Context],
) -> None:
    result, context = answered
    document, text = timeline_of(context, most_events=16, most_pieces=9)
    found = unpacked(document, base64.b64decode(text))
    assert len(found) == document["events"] <= 16
    assert sum(lane == "communication" for *_, lane in found) == 8
    assert document["events"] + document["left_out"] == context.trace.events.height
    assert document["resolution_ns"] > 1
    notes = " ".join(_timeline_notes(document))
    assert f"{document['left_out']:,} shorter ones have none" in notes
    assert "held merged" in notes
    del result


def test_fewer_events_are_kept_where_bytes_run_out(answered: tuple[Result, Context]) -> None:
    _, context = answered
    whole, text = timeline_of(context)
    size = len(base64.b64decode(text))
    less, text = timeline_of(context, most_bytes=size - 40)
    assert len(base64.b64decode(text)) <= size - 40
    assert 0 < less["events"] < whole["events"]


def test_a_page_draws_no_picture_and_takes_no_more_pieces_of_the_path_than_it_shows(
    answered: tuple[Result, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, context = answered
    path = critical_path(result.trace)["critical_path"]
    every, _ = timeline_of(context, path)

    def drawn(*_: object) -> None:
        raise AssertionError("numbers and bars are for a picture")

    for name in ("_numbers", "_in_columns", "_notes"):
        monkeypatch.setattr(f"nsysddp.render.lanes.{name}", drawn)
    pieces = sum(row["length"][1] for row in every["path"]["rows"])
    monkeypatch.setattr("nsysddp.render.html.packed.MOST_PATH_PIECES", pieces - 1)
    few, _ = timeline_of(context, path)
    shown = sum(row["length"][1] for row in few["path"]["rows"])
    assert 0 < shown < pieces
    assert shown + few["path"]["left_out"] == pieces
    assert few["ranks"] == every["ranks"]


def test_bars_add_up_to_their_windows(answered: tuple[Result, Context]) -> None:
    result, _ = answered
    for bar in per_rank.bars(result):
        assert sum(ns for _, _, ns, _ in bar.parts) == bar.window_ns > 0
    assert {bar.rank for bar in per_rank.bars(result)} == {0, 1}


# --- the page is one safe file


class Elements(HTMLParser):
    """Every element with its attributes and its own text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == self.found[-1][0]:
            self.found[-1][2].append(data)


def test_the_page_is_well_formed_and_refers_to_nothing_outside(page: str) -> None:
    elements = Elements(page)
    assert elements.open == []
    ids = [attributes["id"] for _, attributes, _ in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes, _ in elements.found:
        assert tag not in ("img", "link", "iframe", "object", "embed", "base", "form", "audio", "video"), tag
        assert not any(name.startswith("on") or name in ("src", "srcset", "style") for name in attributes), (
            attributes
        )
        if "href" in attributes:
            target = attributes["href"] or ""
            assert target.startswith("#"), target
            assert target[1:] in ids, target
    style = next("".join(text) for tag, _, text in elements.found if tag == "style")
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_names_exactly_the_pages_own_programs(page: str) -> None:
    elements = Elements(page)
    policy = next(
        attributes["content"] or ""
        for tag, attributes, _ in elements.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy

    def hashes(tag: str) -> list[str]:
        return [
            f"'sha256-{base64.b64encode(hashlib.sha256(''.join(text).encode()).digest()).decode()}'"
            for name, attributes, text in elements.found
            if name == tag and "type" not in attributes
        ]

    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["script-src"].split() == hashes("script")
    assert directives["style-src"].split() == hashes("style")
    assert len(hashes("script")) == 2


def test_names_are_data(page: str) -> None:
    elements = Elements(page)
    assert "<img" not in page
    held = [
        json.loads("".join(text))
        for tag, attributes, text in elements.found
        if attributes.get("type") == "application/json"
    ]
    names = next(one for one in held if "brief_ns" in one)["names"]
    kernels = next(one for one in held if one.get("name") == "kernel_class")
    words = next(column["words"] for column in kernels["columns"] if column["name"] == "name")
    for name in NASTY:
        assert visible(name) in names
        assert visible(name) in words
    for text in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S):
        assert not set("<>&\u2028\u2029") & set(text)


def test_no_secret_of_the_trace_is_in_the_page(page: str, run: Path) -> None:
    assert "hunter2" not in page
    assert str(run.parent) not in page


def test_findings_lead_to_places_that_exist(page: str, answered: tuple[Result, Context]) -> None:
    result, context = answered
    elements = Elements(page)
    places = [json.loads(a["data-place"] or "") for _, a, _ in elements.found if "data-place" in a]
    assert places
    steps = set(context.attribution.steps["step_index"].to_list())
    for place in places:
        if "collective" in place:
            assert 0 <= place["collective"] < result["collective"].height
        elif "step" in place:
            assert place["step"] in steps
        else:
            assert place["from"] < place["to"]
    first = next(place for place in places if "collective" in place)
    hidden = result["collective"]["hidden_ns"]
    assert hidden[first["collective"]] == hidden.max()
    tables = {a["data-table"] for _, a, _ in elements.found if "data-table" in a}
    for _, attributes, _ in elements.found:
        if "data-rows" in attributes:
            assert json.loads(attributes["data-rows"] or "")["table"] in tables


def test_every_table_tells_its_caption_and_headers(page: str) -> None:
    elements = Elements(page)
    tags = [tag for tag, _, _ in elements.found]
    assert tags.count("table") == tags.count("caption") > 4
    assert all("scope" in attributes for tag, attributes, _ in elements.found if tag == "th")
    ranks = re.findall(r'id="rank-(\d+)"', page)
    assert ranks == ["0", "1"]


def test_sections_come_in_the_order_of_their_weight(page: str) -> None:
    order = re.findall(r'<section id="([a-z-]+)"', page)
    assert order[:5] == ["verdict", "ranks", "timeline", "decomposition", "table-of-collective"]
    assert order[-2:] == ["critical-path", "provenance"]


def test_further_sections_are_shown_where_they_are_given(answered: tuple[Result, Context]) -> None:
    result, context = answered
    other = Result(
        result.trace, {"straggler": result["straggler"]}, result.findings[:1], ("taken for granted",), ()
    )
    page = html_report(
        result, context=context, diagnosis=other, comparison=other, provenance={"capture preset": "ddp"}
    )
    order = re.findall(r'<section id="([a-z-]+)"', page)
    assert order[-3:] == ["diagnosis", "comparison", "provenance"]
    assert page.count("taken for granted") == 2
    assert "capture preset" in page


def test_buckets_and_diagnosis_have_their_place(answered: tuple[Result, Context]) -> None:
    result, context = answered
    found, causes = buckets(context), diagnose(context)
    page = html_report(result, context=context, buckets=found, diagnosis=causes)
    elements = Elements(page)
    held = [json.loads("".join(text)) for _, a, text in elements.found if a.get("id") == "table-bucket"]
    assert held[0]["rows"] == found["bucket"].height > 0
    order = re.findall(r'<section id="([a-z-]+)"', page)
    assert order.index("table-of-collective") + 1 == order.index("table-of-bucket")
    for row in causes["diagnosis"].iter_rows(named=True):
        assert str(escape(row["claim"])) in page
        assert str(escape(row["try_next"])) in page


def test_values_of_a_comparison_are_shown_in_the_unit_that_is_told() -> None:
    row = {
        "metric": "step_ns",
        "unit": "ns",
        "base": 2_500_000.0,
        "difference": -500_000.0,
        "change_ratio": -0.2,
    }
    assert _cells(row) == ["step", "ms", "2.500", "−0.500", "-20.0 %"]
    row = {"metric": "throughput", "unit": "per s", "base": 2_500.0, "difference": None, "change_ratio": None}
    assert _cells(row) == ["throughput", "per s", "2,500", "", ""]


def test_the_tables_of_a_comparison_show_times_in_ms_and_not_in_powers_of_ten() -> None:
    one = {
        "metric": "step_ns",
        "unit": "ns",
        "base": 5_770_000.0,
        "new": 5_000_000.0,
        "difference": -770_000.0,
    }
    table = short_table("comparison", COMPARISON.frame([one]))
    assert table["rows"][0]["cells"] == ["step", "ms", "5.770", "5.000", "−0.770"]
    one = {"side": "base", "metric": "window_ns", "rank": 0, "steps": 3, "median": 5_770_000.0}
    table = short_table("matrix", MATRIX.frame([one]))
    assert table["rows"][0]["cells"] == ["base", "window (ms)", "0", "3", "5.770"]


def test_the_page_is_the_same_in_every_process(run: Path, page: str) -> None:
    program = (
        "import sys, pathlib; from nsysddp.join.load import load; from nsysddp.questions import analyze, context_of\n"
        "from nsysddp.questions.critical_path import critical_path; from nsysddp.render.html import html_report\n"
        "trace = load([pathlib.Path(sys.argv[1])], launches=True, host_calls=True)\n"
        "page = html_report(analyze(trace), context=context_of(trace), critical_path=critical_path(trace))\n"
        "sys.stdout.buffer.write(page.encode())"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, str(run)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
    )
    assert made.stdout.decode() == page


def test_real_captures(unpacked: Any) -> None:
    for name in ("h200/delay_cap4", "h200/graph_graph", "h200/tp"):
        trace = load([unpacked(name)], launches=True, host_calls=True)
        result = analyze(trace)
        page = html_report(result, context=context_of(trace), critical_path=critical_path(trace))
        assert Elements(page).open == []
        assert str(escape(result.findings[0].message)) in page


# --- command


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return int(stopped.value.code or 0)


def test_the_command_writes_the_page_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert call("report", run, "-o", out) == 0
    first = out.read_bytes()
    assert first.startswith(b"<!DOCTYPE html>")
    assert call("report", run, "-o", out) == 2
    assert "the file is there already" in capsys.readouterr().err
    assert out.read_bytes() == first
    assert call("report", run, "-o", out, "--force") == 0
    assert out.read_bytes() == first
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_the_command_refuses_a_place_that_is_none(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("report", run, "-o", tmp_path / "nowhere" / "page.html") == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_the_time_has_no_critical_path(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert call("report", run, "-o", out, "--per", "capture", "--from", "0.2", "--to", "1.5") == 0
    page = out.read_text(encoding="utf-8")
    assert 'id="critical-path"' not in page
    assert "part of the time" in page


def test_each_module_of_the_program_takes_only_what_another_gives() -> None:
    modules = order()
    assert {one.stem for one in (ROOT / "nsysddp/render/html/page").glob("*.mjs")} == set(modules)
    given = {
        name: re.findall(r"^export (?:const|class) (\w+)", module(name), re.MULTILINE) for name in modules
    }
    taken = [(source, one) for name in modules for source, names in imports(name).items() for one in names]
    assert [(source, one) for source, one in taken if one not in given[source]] == []
    assert [(name, one) for name in modules for one in given[name] if (name, one) not in taken] == []
    for place, name in enumerate(modules):
        assert set(imports(name)) <= set(modules[:place])
        assert module(name).count("import ") == len(imports(name)), "a form of import that is not joined"


def test_no_two_modules_of_the_program_share_a_name() -> None:
    names = [
        one
        for name in order()
        for one in re.findall(r"^(?:export )?(?:const|let|class|function) (\w+)", module(name), re.MULTILINE)
    ]
    assert sorted(names) == sorted(set(names))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not available on this machine")
def test_the_program_and_each_of_its_modules_can_be_read(tmp_path: Path) -> None:
    joined = tmp_path / "joined.js"
    joined.write_text(program(), encoding="utf-8")
    for path in (joined, *sorted((ROOT / "nsysddp/render/html/page").glob("*.mjs"))):
        done = subprocess.run(
            [str(shutil.which("node")), "--check", path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
