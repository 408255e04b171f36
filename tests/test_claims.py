"""Claims: what the language says, what it refuses, and when an answer is pass, fail or undecidable."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import Export
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compare import steady_run

from nsysddp import cli, samples
from nsysddp.evidence.claims import check
from nsysddp.evidence.claims.claim import COMPARATORS, STATISTICS, Claim, Verdict, metric_names
from nsysddp.evidence.claims.reading import parse, read_claims
from nsysddp.evidence.sources import Loaded, Reading, load_one, ranks_of_one_run
from nsysddp.model.errors import UsageError
from nsysddp.questions.compare import compare
from nsysddp.render import claims as render

# --- the language -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "metric", "statistic", "comparator", "number", "where"),
    [
        ("overlap on every rank: hidden_transfer_ns > 0", "hidden_transfer_ns", "total", ">", 0, "every"),
        ("overlap on every rank", "hidden_transfer_ns", "total", ">", 0, "every"),
        ("Overlap on any rank", "hidden_transfer_ns", "total", ">", 0, "any"),
        (
            "overlap on rank 3: hidden_transfer_ns >= 1.5 ms",
            "hidden_transfer_ns",
            "median",
            ">=",
            1_500_000,
            3,
        ),
        ("no overlap on any rank", "hidden_communication_ns", "total", "==", 0, "every"),
        ("exposed_communication_ns p95 <= 2ms", "exposed_communication_ns", "p95", "<=", 2_000_000, "every"),
        ("exposed_communication p99 < 500us on rank 0", "exposed_communication_ns", "p99", "<", 500_000, 0),
        ("overlap_ratio >= 90%", "overlap_ratio", "median", ">=", 0.9, "every"),
        ("overlap >= 0.9 on any rank", "overlap_ratio", "median", ">=", 0.9, "any"),
        ("step median <= 1 s", "step_ns", "median", "<=", 10**9, "job"),
        ("kernels max = 12", "kernels", "max", "==", 12, "every"),
        ("  idle_ns   total  ==  0 ", "idle_ns", "total", "==", 0, "every"),
        ("tail_communication_ns <= 1e6", "tail_communication_ns", "median", "<=", 1e6, "every"),
    ],
)
def test_conditions(
    text: str, metric: str, statistic: str, comparator: str, number: float, where: str | int
) -> None:
    claim = parse(text)
    assert (claim.metric, claim.statistic, claim.comparator, claim.where) == (
        metric,
        statistic,
        comparator,
        where,
    )
    assert claim.number == pytest.approx(number)
    assert claim.change is None


@pytest.mark.parametrize(
    ("text", "metric", "change", "comparator", "number", "confident"),
    [
        ("step improves by >= 3% with 95% confidence", "step_ns", "improves", ">=", 0.03, True),
        ("step worsens by <= 2% with 95 % confidence", "step_ns", "worsens", "<=", 0.02, True),
        ("throughput improves by > 10%", "throughput", "improves", ">", 0.1, False),
        ("backward improves by >= 5% on rank 1", "backward_ns", "improves", ">=", 0.05, False),
    ],
)
def test_changes(
    text: str, metric: str, change: str, comparator: str, number: float, confident: bool
) -> None:
    claim = parse(text, "name")
    assert claim.name == "name"
    assert (claim.metric, claim.change, claim.comparator, claim.confident) == (
        metric,
        change,
        comparator,
        confident,
    )
    assert claim.number == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("overlapp on every rank", "did you mean overlap"),
        ("hidden_transfre_ns > 0", "did you mean hidden_transfer_ns"),
        ("> 3", "does not begin with a metric"),
        ("step", "compares with nothing"),
        ("step improves", "a change is METRIC improves by"),
        ("step improves by >= 3", "a change is in per cent"),
        ("step improves by >= 3% with 99% confidence", "intervals are at 95 %"),
        ("step improves by == 3%", "never exactly"),
        ("kernels improves by >= 3%", "neither more nor less"),
        ("communication_ns improves by >= 3%", "not compared"),
        ("step p95 <= 3 GB", "no unit of time"),
        ("kernels <= 3 ms", "has no unit"),
        ("overlap_ratio >= 3 ms", "is a share"),
        ("step <= 3ms on rank 1", "is the job's"),
        ("overlap on every rank: step <= 3ms", "is the job's"),
        ("no overlap on every rank", "no overlap on any rank"),
        ("overlap on every rank: idle_ns > 0 on rank 1", "says twice"),
        ("window_ns >", "a condition is METRIC"),
    ],
)
def test_what_cannot_be_understood_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


WORDS = st.sampled_from(
    ["overlap", "no", "on", "every", "any", "rank", "1", ":", "hidden_transfer_ns", "step", "improves", "by", ">=", "3",
     "%", "ms", "p95", "with", "95%", "confidence", "(", "x\x1b[2J"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(text=st.lists(WORDS, max_size=9).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_claim_or_a_clear_refusal(text: str) -> None:
    said = ""
    try:
        claim = parse(text)
    except UsageError as error:
        said = str(error)
    else:
        assert claim.comparator in COMPARATORS
        assert claim.statistic in STATISTICS or claim.change is not None
    assert "\n" not in said
    assert "\x1b" not in said


def test_every_metric_can_be_claimed_about() -> None:
    for name, meaning in metric_names():
        assert parse(f"{name} <= 5").metric == name
        assert meaning


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    file.write_text(
        'question = "Is it hidden?"\n[claims]\noverlap = "overlap on every rank"\nfast = "step <= 1s"\n'
    )
    read = read_claims(file)
    assert read.question == "Is it hidden?"
    assert [(claim.name, claim.metric) for claim in read.claims] == [
        ("overlap", "hidden_transfer_ns"),
        ("fast", "step_ns"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("claims = [", "not TOML"),
        ("[claims]\n", "no table [claims]"),
        ("[claims]\na = 3\n", "'a' is no text"),
        ("question = 3\n[claims]\na = 'step <= 1s'\n", "'question' is no text"),
        ("other = 1\n[claims]\na = 'step <= 1s'\n", "unknown key 'other'"),
        ("[claims]\na = 'stepp <= 1s'\n", "did you mean"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "claims.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_claims(file)
    assert said in str(raised.value)
    assert str(raised.value).startswith("claims.toml: ")


# --- deciding -----------------------------------------------------------------------------------------------


def load(*paths: Path) -> list[Loaded]:
    return [load_one(source, Reading()) for source in ranks_of_one_run(paths)]


def decide(text: str, runs: list[Loaded]) -> Verdict:
    return check([parse(text)], runs)[0]


@pytest.fixture(scope="module")
def twelve() -> list[Loaded]:
    return load(samples.path(samples.TWELVE_BUCKETS))


@pytest.fixture(scope="module")
def one() -> list[Loaded]:
    return load(samples.path(samples.ONE_BUCKET))


def test_the_known_answer_of_the_bundled_captures(twelve: list[Loaded], one: list[Loaded]) -> None:
    assert decide("overlap on every rank: hidden_transfer_ns > 0", twelve).outcome == "pass"
    assert decide("no overlap on any rank", twelve).outcome == "fail"
    assert decide("overlap on every rank", one).outcome == "fail"
    assert decide("overlap on any rank", one).outcome == "fail"
    assert decide("no overlap on any rank", one).outcome == "pass"


def test_an_answer_has_its_numbers_and_rows(twelve: list[Loaded]) -> None:
    answer = decide("overlap on every rank: hidden_transfer_ns > 0", twelve)
    assert [(row["rank"], row["value"], row["holds"]) for row in answer.rows] == [
        (0, 337_118, True),
        (1, 349_175, True),
    ]
    assert "0.337118 ms" in answer.reason
    assert {row["table"] for row in answer.rows} == {"overlap"}
    answer = decide("exposed_wait_ns <= 1 ms", twelve)
    assert answer.outcome == "fail"
    assert "rank 1" in answer.reason
    assert "rank 0" not in answer.reason, "only what decided"


@pytest.mark.parametrize(
    ("text", "outcome", "why", "capture"),
    [
        (
            "exposed_transfer_ns p95 <= 2ms",
            "undecidable",
            "needs at least 20 steps, there are 1",
            "more steps",
        ),
        ("exposed_communication_ns p95 <= 2ms", "fail", "median exposed_communication_ns 3.05", None),
        ("window_ns <= 1s on rank 7", "undecidable", "rank 7 is not in", "every rank"),
        ("step improves by >= 3%", "undecidable", "no base", "--against"),
        ("measured_step_ns <= 1s", "undecidable", "not recorded", "nsysddp capture"),
        ("contention_ns <= 1ms", "undecidable", "unknown", "without communication"),
    ],
)
def test_undecidable_says_why_and_what_to_capture(
    twelve: list[Loaded], text: str, outcome: str, why: str, capture: str | None
) -> None:
    answer = decide(text, twelve)
    assert answer.outcome == outcome
    assert why in answer.reason
    assert answer.capture == capture if capture is None else capture in (answer.capture or "")


def draw(path: Path, drawing: str) -> Path:
    export = Export(unit="ms")
    export.lanes(drawing)
    export.write(path)
    return path


def test_ranks_without_communication_have_no_overlap_to_deny(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.sqlite", 'rank 0 | host "step 0"[0,100)  s7 g[0,50)')
    answer = decide("no overlap on any rank", load(path))
    assert answer.outcome == "undecidable"
    assert "ran no communication" in answer.reason
    assert decide("overlap_ratio >= 90%", load(path)).outcome == "undecidable"
    assert decide("overlap on every rank", load(path)).outcome == "fail"


def test_without_steps_there_is_no_step_to_claim_about(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.sqlite", "rank 0 | s7 g[0,50) s17 c[20,80)\nrank 1 | s7 g[0,50) s17 c[40,80)")
    runs = load(path)
    assert decide("step <= 1s", runs).outcome == "undecidable"
    assert decide("window_ns <= 1s", runs).outcome == "undecidable"
    assert decide("overlap on every rank", runs).outcome == "pass"


def test_unmatched_communication_leaves_a_range(tmp_path: Path) -> None:
    """One rank alone: its communication cannot be split, so a transfer claim cannot be decided by it."""
    path = draw(tmp_path / "a.sqlite", 'rank 0 | host "step 0"[0,100)  s7 g[0,50)  s17 c[20,80)')
    answer = decide("overlap on every rank: hidden_transfer_ns > 0", load(path))
    assert answer.outcome == "undecidable"
    assert "wait and transfer" in answer.reason or "not matched" in answer.reason
    assert decide("hidden_communication_ns >= 30 ms", load(path)).outcome == "pass"


def test_whole_graphs_decide_nothing(unpacked: Callable[[str], Path]) -> None:
    answer = decide("no overlap on any rank", load(unpacked("h200/graph_graph")))
    assert answer.outcome == "undecidable"
    assert "--cuda-graph-trace=node" in (answer.capture or "")


@pytest.mark.parametrize(
    ("name", "text", "outcome"),
    [
        ("delay_cap4", "overlap on every rank: hidden_transfer_ns > 0", "pass"),
        ("tp", "no overlap on any rank", "pass"),
        ("graph_node", "no overlap on any rank", "pass"),
        ("nodelay_cap16", "overlap on every rank: hidden_transfer_ns > 0", "fail"),
        ("cvd", "overlap on every rank: hidden_transfer_ns > 0", "pass"),
    ],
)
def test_real_captures(unpacked: Callable[[str], Path], name: str, text: str, outcome: str) -> None:
    assert decide(text, load(unpacked(f"h200/{name}"))).outcome == outcome


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("step improves by >= 3% with 95% confidence", "pass"),
        ("step improves by >= 20% with 95% confidence", "fail"),
        ("step improves by >= 10.0% with 95% confidence", "undecidable"),
        ("step worsens by <= 2% with 95% confidence", "pass"),
        ("step worsens by >= 2% with 95% confidence", "fail"),
        ("step improves by > 50%", "fail"),
        ("window_ns improves by >= 3% with 95% confidence", "pass"),
        ("window_ns improves by >= 3% on rank 1", "pass"),
        ("exposed_memory_ns improves by >= 3%", "undecidable"),
    ],
)
def test_changes_are_decided_by_the_whole_interval(text: str, outcome: str) -> None:
    rng = random.Random(5)
    base = [steady_run(f"base {n}", rng, step_ns=100_000) for n in range(4)]
    new = [steady_run(f"new {n}", rng, step_ns=90_000) for n in range(4)]
    answer = check([parse(text)], [], compare(base, new))[0]
    assert answer.outcome == outcome, answer.reason
    if outcome != "undecidable":
        assert "%" in answer.reason


def test_confidence_needs_repeats() -> None:
    rng = random.Random(5)
    base, new = [steady_run("base", rng, step_ns=100_000)], [steady_run("new", rng, step_ns=50_000)]
    comparison = compare(base, new)
    answer = check([parse("step improves by >= 3% with 95% confidence")], [], comparison)[0]
    assert answer.outcome == "undecidable"
    assert "repeats" in (answer.capture or "")
    assert check([parse("step improves by >= 3%")], [], comparison)[0].outcome == "pass", "of these very runs"


# --- the command --------------------------------------------------------------------------------------------

Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    def run(*argv: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in argv])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


SAMPLE = samples.path(samples.TWELVE_BUCKETS)


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        (["overlap on every rank"], 0),
        (["overlap on every rank", "no overlap on any rank"], 1),
        (["overlap on every rank", "exposed_transfer_ns p95 <= 2ms"], 6),
        (["exposed_transfer_ns p95 <= 2ms", "no overlap on any rank"], 1),
        (["overlapp"], 2),
        ([], 2),
    ],
)
def test_exit_codes(tool: Tool, claims: list[str], code: int) -> None:
    words = [word for claim in claims for word in ("--claim", claim)]
    assert tool("check", SAMPLE, *words)[0] == code


def test_output_for_ci(tool: Tool, tmp_path: Path) -> None:
    file, junit = tmp_path / "claims.toml", tmp_path / "junit.xml"
    file.write_text(
        'question = "Hidden?"\n[claims]\n"a <b>, c: 100%" = "overlap on every rank"\nnone = "no overlap on any rank"\n'
        'few = "exposed_transfer_ns p95 <= 2ms"\n'
    )
    code, out, _ = tool("check", SAMPLE, "--claims", file, "--junit", junit, "--annotations", "github")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("::notice title=PASS a <b>%2C c%3A 100%25::")
    assert lines[1].startswith("::error title=FAIL none::")
    assert lines[2].startswith("::warning title=UNDECIDABLE few::")
    suite = ElementTree.parse(junit).getroot()[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped", "errors")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
        "errors": "0",
    }
    assert [case.get("name") for case in suite] == ["a <b>, c: 100%", "none", "few"]
    code, out, _ = tool("check", SAMPLE, "--claims", file, "--annotations", "gitlab")
    found = json.loads(out)
    assert [(one["severity"], one["description"].split()[0]) for one in found] == [
        ("major", "FAIL"),
        ("info", "UNDECIDABLE"),
    ]
    assert len({one["fingerprint"] for one in found}) == 2
    code, out, _ = tool("check", SAMPLE, "--claims", file, "--format", "json")
    document = json.loads(out)
    assert document["question"] == "Hidden?"
    assert [claim["outcome"] for claim in document["claims"]] == ["pass", "fail", "undecidable"]


def test_names_cannot_steer_a_terminal_or_break_xml() -> None:
    claim = Claim("x\x1b[2J", "n\x00\x1b]0;", "idle_ns", ">", 0.0, "every", "total")
    answer = Verdict(claim, "fail", "because \x1b[1m")
    assert "\x1b" not in render.github([answer]) + render.junit([answer])
    ElementTree.fromstring(render.junit([answer]))


def test_metrics_are_listed(tool: Tool) -> None:
    code, out, _ = tool("check", "--metrics")
    assert code == 0
    assert "hidden_transfer_ns" in out
