"""The evidence bundle: what is in it, that it is the same twice, and that no edit of it goes unnoticed."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from builder import Export
from test_compare import write_capture

from nsysddp import cli, samples
from nsysddp.evidence import archive, bundle, gathered
from nsysddp.evidence.schema import json_schema, schema_text
from nsysddp.evidence.sources import Reading, Source, load_one
from nsysddp.evidence.verify import verify
from nsysddp.model.errors import EvidenceError

TWELVE, ONE = samples.path(samples.TWELVE_BUCKETS), samples.path(samples.ONE_BUCKET)
CLAIMS = """\
question = "Does DDP hide its all-reduces?"
[claims]
overlap = "overlap on every rank: hidden_transfer_ns > 0"
tail = "exposed_transfer_ns p95 <= 2ms"
"""

Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    def run(*argv: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in argv])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def make(out: Path, *extra: str | Path) -> Path:
    claims = out.with_suffix(".toml")
    claims.write_text(CLAIMS)
    with pytest.raises(SystemExit) as ended:
        cli.main(
            [
                str(word)
                for word in ("evidence", TWELVE, "--compare", ONE, "--claims", claims, *extra, "-o", out)
            ]
        )
    assert not ended.value.code
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the bundled captures, with redacted exports."""
    return make(tmp_path_factory.mktemp("evidence") / "claims.zip", "--with-export")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without exports."""
    return make(tmp_path_factory.mktemp("evidence") / "claims.zip")


def members_of(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


# --- what is in it ------------------------------------------------------------------------------------------


def test_it_holds_what_a_reviewer_needs(made: Path) -> None:
    members = members_of(made)
    assert {
        "evidence.md",
        "report.html",
        "evidence.json",
        "evidence.schema.json",
        "manifest.json",
        "exports/new/1/1/delay_cap4.sqlite",
        "exports/base/1/1/delay_cap64.sqlite",
        *(
            f"figures/{name}.{kind}"
            for name in ("timeline", "decomposition", "comparison")
            for kind in ("png", "svg")
        ),
        *(
            f"tables/{name}.{kind}"
            for name in ("overlap", "collective", "comparison", "account")
            for kind in ("csv", "parquet")
        ),
    } <= set(members)
    page = members["evidence.md"].decode()
    assert page.startswith("# Does DDP hide its all-reduces?\n")
    for part in (
        "## Claims: 1 passed, 1 undecidable",
        "## Each rank",
        "## Comparison",
        "## Method",
        "## Limits",
    ):
        assert part in page
    assert "\n**Rank 0 is late: rank 1 waits 3.02 of 65.98 ms a step for it" in page
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page):
        assert picture in members
    overlap = pl.read_parquet(io.BytesIO(members["tables/overlap.parquet"]))
    transfers = overlap.filter(pl.col("side") == "new").sort("rank")["hidden_transfer_ns"].to_list()
    assert transfers == [337_118, 349_175]
    assert overlap.filter(pl.col("side") == "base")["hidden_transfer_ns"].sum() == 0
    assert members["tables/overlap.csv"].decode() == overlap.write_csv()


def test_the_document_has_the_form_of_its_schema(made: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    members = members_of(made)
    schema = json.loads(members["evidence.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(members["evidence.json"]), schema)
    assert members["evidence.schema.json"].decode() == schema_text()


def test_the_shipped_schema_is_the_one_of_the_tables() -> None:
    assert json.loads(schema_text()) == json_schema(), (
        "write the shipped file anew: json.dumps(json_schema(), indent=1, ensure_ascii=False)"
    )


def test_the_manifest_says_from_what_and_with_what(made: Path) -> None:
    members = members_of(made)
    manifest = json.loads(members["manifest.json"])
    for name, content in members.items():
        if name != "manifest.json":
            entry = manifest["files"][name]
            assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert set(manifest["files"]) == set(members) - {"manifest.json"}
    for run, path in zip(manifest["runs"], (TWELVE, ONE), strict=True):
        assert run["files"] == [
            {
                "name": path.name,
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
        ]
        assert {clock["clock_method"] for clock in run["clocks"]} == {"shared"}
        assert run["unmatched"] == []
        assert run["inputs"][0]["schema"] == "3.20.3"
    assert manifest["command"][:3] == ["nsysddp", "evidence", "delay_cap4.sqlite.gz"]
    assert {"python", "polars", "matplotlib"} <= set(manifest["versions"])


def test_the_same_input_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    """Also from another folder and under another name of the archive."""
    claims = tmp_path / "claims.toml"
    claims.write_text(CLAIMS)
    copies = [Path(shutil.copy(path, tmp_path)) for path in (TWELVE, ONE)]
    out = tmp_path / "other.zip"
    words = ("evidence", copies[0], "--compare", copies[1], "--claims", claims, "--with-export", "-o", out)
    with pytest.raises(SystemExit):
        cli.main([str(word) for word in words])
    assert out.read_bytes() == made.read_bytes()


def test_an_archive_is_not_replaced_unasked_and_never_half_written(
    plain: Path, tool: Tool, tmp_path: Path
) -> None:
    before = plain.read_bytes()
    code, _, err = tool("evidence", TWELVE, "-o", plain)
    assert code == 2
    assert "--force" in err
    assert plain.read_bytes() == before
    code, _, err = tool("evidence", tmp_path / "none.sqlite", "-o", tmp_path / "out.zip")
    assert code == 3
    assert list(tmp_path.iterdir()) == []


def test_nothing_private_is_in_it(tmp_path: Path) -> None:
    """A secret planted in every place that a report has for one, and in the folder's name, is in no byte."""
    secret = "s3cr3t-h0st-4711"
    export = Export(unit="ms")
    for number in range(2):
        rank = export.process(pid=100 + number, device=number)
        rank.range("step 0", 0, 100)
        rank.kernel("sgemm", stream=7, at=(1, 50 + number), launched=0.5)
        rank.nccl(
            "AllReduce", stream=17, at=(20 + number, 60), bytes=4 << 20, communicator=0xABC, launched=0.6
        )
    export.plant_secret(secret)
    folder = tmp_path / secret / "capture"
    folder.mkdir(parents=True)
    export.write(folder / "report.sqlite")
    content = {
        "format": "nsysddp run 1",
        "outcome": {"kind": "ok", "message": secret},
        "command": {
            "profile": [
                "nsys",
                "profile",
                "--trace=cuda",
                f"--env-var=A={secret}",
                "python",
                "t.py",
                "--key",
                secret,
            ]
        },
        "configuration": {"warmup": 5},
        "diagnostics": [secret],
        "topology": secret,
    }
    (folder / "run.json").write_text(json.dumps(content))
    out = tmp_path / "out.zip"
    with pytest.raises(SystemExit) as ended:
        cli.main(["evidence", str(folder), "--with-export", "-o", str(out)])
    assert not ended.value.code
    for name, data in members_of(out).items():
        for form in (secret.encode(), secret.encode("utf-16-le"), str(tmp_path).encode()):
            assert form not in data, name
    assert secret.encode() not in out.read_bytes()
    outcome = verify(out, [folder])
    assert outcome.holds, outcome.problems


# --- checking it --------------------------------------------------------------------------------------------


def test_it_holds_with_and_without_the_reports(made: Path, plain: Path, tool: Tool, tmp_path: Path) -> None:
    outcome = verify(plain)
    assert outcome.holds
    assert outcome.runs == 0
    assert not outcome.verified
    assert any("nothing was computed anew" in one for one in outcome.unverified)
    # Under other names, in one folder: files are known by their hash.
    shutil.copy(TWELVE, tmp_path / "renamed.gz")
    shutil.copy(ONE, tmp_path / "also.gz")
    outcome = verify(made, [tmp_path])
    assert outcome.holds, outcome.problems
    assert outcome.runs == 2
    assert outcome.values > 2000
    assert not outcome.from_exports
    assert [one.partition(":")[0] for one in outcome.unverified] == [
        "the name delay_cap4.sqlite.gz",
        "the name delay_cap64.sqlite.gz",
    ]
    code, out, _ = tool("verify", plain, TWELVE, ONE)
    assert code == 0
    assert out.splitlines()[-1].startswith("holds: ")
    code, out, _ = tool("verify", plain)
    assert code == 7
    assert out.splitlines()[-1].startswith("NOT VERIFIED: ")
    code, out, _ = tool("verify", plain, "--format", "json")
    said = json.loads(out)
    assert (code, said["holds"], said["verified"]) == (7, True, False)


def test_others_can_compute_it_anew_from_the_redacted_exports(made: Path) -> None:
    """Everything but that the exports are true: that is said."""
    outcome = verify(made)
    assert outcome.holds, outcome.problems
    assert [one.partition(":")[0] for one in outcome.unverified] == ["exports/"]
    assert outcome.from_exports
    assert outcome.runs == 2


def test_a_report_of_another_run_is_named(plain: Path, tool: Tool) -> None:
    code, _, err = tool("verify", plain, TWELVE)
    assert code == 1
    assert "delay_cap64.sqlite.gz" in err
    assert "delay_cap4.sqlite.gz" not in err


def test_a_wrong_report_and_the_one_it_is_not_are_both_named(plain: Path, tool: Tool, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    export = Export(unit="ms")
    export.process(pid=1, device=0).kernel("sgemm", stream=7, at=(1, 50))
    export.write(other)
    code, _, err = tool("verify", plain, TWELVE, other)
    assert code == 1
    assert re.search(
        r"claims\.zip: other\.sqlite \(SHA-256 [0-9a-f]{12}…\) is not what it was made from, and no file given is "
        r"delay_cap64\.sqlite\.gz of delay_cap64\.sqlite\.gz \(SHA-256 [0-9a-f]{12}…\)",
        err,
    )


def test_any_edited_byte_is_noticed(plain: Path, tmp_path: Path) -> None:
    """Every kind of place: names, times, sizes, compressed data and its padding, table of contents, end, seal."""
    content = plain.read_bytes()
    rng = random.Random(11)
    with zipfile.ZipFile(plain) as opened:
        infos = opened.infolist()
    places = {rng.randrange(len(content)) for _ in range(60)} | set(
        range(len(content) - 130, len(content), 3)
    )
    places |= set(range(40)) | {
        info.header_offset - 1 for info in infos[1:]
    }  # the last bytes of streams hold padding
    edited = tmp_path / "edited.zip"
    for place in sorted(places):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        edited.write_bytes(changed)
        assert _refused(edited), f"byte {place}"
    for cut in (0, 1, 100, len(content) // 2, len(content) - 1):
        edited.write_bytes(content[:cut])
        assert _refused(edited), f"cut at {cut}"
    for more in (content + b"\0", b"\0" + content, content + content):
        edited.write_bytes(more)
        assert _refused(edited)


def _refused(file: Path) -> bool:
    try:
        _, problems = archive.read(file.read_bytes())
    except EvidenceError:
        return True
    return bool(problems)


def test_an_edited_archive_fails_the_command(plain: Path, tool: Tool, tmp_path: Path) -> None:
    members = members_of(plain)
    edited = tmp_path / "edited.zip"
    with zipfile.ZipFile(edited, "w") as packed:
        for name, data in members.items():
            packed.writestr(name, data)
        packed.writestr("note.txt", "hidden")
    code, out, _ = tool("verify", edited)
    assert code == 1
    assert "note.txt: is there and not listed" in out
    assert "DOES NOT HOLD" in out
    edited.write_bytes(b"no zip at all")
    code, _, err = tool("verify", edited)
    assert code == 1
    assert "not a ZIP file" in err
    edited.write_bytes(archive.write({"a.txt": b"a"}))
    assert "holds no manifest.json" in tool("verify", edited)[2]


def resealed(members: dict[str, bytes], out: Path) -> Path:
    """What someone would write who knows all of this: every hash made to fit again."""
    manifest = json.loads(members["manifest.json"])
    manifest["files"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sorted(members.items())
        if name != "manifest.json"
    }
    out.write_bytes(archive.write({**members, "manifest.json": bundle.json_bytes(manifest)}))
    return out


def forged(members: dict[str, bytes], change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """evidence.json with a change, and its tables made to say the same."""
    document = json.loads(members["evidence.json"])
    change(document)
    made = {**members, "evidence.json": bundle.json_bytes(document)}
    frame = pl.read_parquet(io.BytesIO(members["tables/overlap.parquet"]))
    values = [row["hidden_transfer_ns"] for run in document["runs"] for row in run["tables"]["overlap"]]
    frame = frame.with_columns(pl.Series("hidden_transfer_ns", values, dtype=pl.Int64))
    packed = io.BytesIO()
    frame.write_parquet(packed)
    return {
        **made,
        "tables/overlap.csv": frame.write_csv().encode(),
        "tables/overlap.parquet": packed.getvalue(),
    }


def test_a_consistent_forgery_fails_against_the_reports(made: Path, plain: Path, tmp_path: Path) -> None:
    def better(document: dict[str, Any]) -> None:
        document["runs"][0]["tables"]["overlap"][1]["hidden_transfer_ns"] = 33_000_000

    for file, given in ((plain, [TWELVE, ONE]), (made, [])):
        out = resealed(forged(members_of(file), better), tmp_path / "forged.zip")
        outcome = verify(out, given)
        assert not outcome.holds
        place = "evidence.json.runs[0].tables.overlap[1].hidden_transfer_ns"
        expected = f"{place}: '33000000' in the bundle, '349175' computed"
        assert expected in outcome.problems


EDITS = [
    ("evidence.md", b"0.34 to 0.35 ms", b"3.40 to 3.50 ms", "evidence.md, line"),
    ("report.html", b"rank 1 waits 3.02", b"rank 1 waits 0.32", "report.html, line"),
    ("figures/timeline.svg", b"rank 0", b"rank 9", "figures/timeline.svg, line"),
    ("figures/comparison.png", b"IDAT", b"IDAU", "figures/comparison.png: differs"),
    ("tables/account.csv", b"window", b"windoe", "tables/account.csv, line"),
    ("tables/matrix.parquet", b"PAR1", b"PAR2", "tables/matrix.parquet: differs"),
    ("evidence.json", b'"outcome": "undecidable"', b'"outcome": "pass"', "claims[1].outcome"),
    ("evidence.json", b'"verdict": "not enough data"', b'"verdict": "faster"', "comparison.verdict"),
    (
        "manifest.json",
        b'"clock_method": "shared"',
        b'"clock_method": "anchor"',
        "manifest.json: runs[0].clocks[0]",
    ),
    ("evidence.schema.json", b'"integer"', b'"number"', "evidence.schema.json, line"),
]


def test_resealed_edits_are_found_and_every_one_is_named(plain: Path, tmp_path: Path) -> None:
    members = members_of(plain)
    for member, old, new, _ in EDITS:
        assert old in members[member], member
        members[member] = members[member].replace(old, new, 1)
    problems = verify(resealed(members, tmp_path / "forged.zip"), [TWELVE, ONE]).problems
    for *_, said in EDITS:
        assert any(said in problem for problem in problems), (said, problems)


def test_a_request_that_cannot_be_is_named(plain: Path, tmp_path: Path) -> None:
    members = members_of(plain)
    members["manifest.json"] = members["manifest.json"].replace(b'"skip_warmup": 0', b'"skip_warmup": null')
    problems = verify(resealed(members, tmp_path / "forged.zip"), [TWELVE, ONE]).problems
    assert any("skip_warmup" in problem for problem in problems)


def test_another_version_of_the_tool_compares_numbers_and_not_pages(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nsysddp

    monkeypatch.setattr(nsysddp, "__version__", "99.0")
    outcome = verify(plain, [TWELVE, ONE])
    assert outcome.holds, outcome.problems
    assert any("made with nsysddp 0" in one and "(here 99.0)" in one for one in outcome.unverified)
    assert any(one.startswith("report.html: made by nsysddp 0") for one in outcome.unverified)

    def better(document: dict[str, Any]) -> None:
        document["runs"][0]["tables"]["overlap"][0]["hidden_transfer_ns"] += 1

    forgery = verify(resealed(forged(members_of(plain), better), tmp_path / "forged.zip"), [TWELVE, ONE])
    assert any(
        "hidden_transfer_ns: '337119' in the bundle, '337118' computed" in one for one in forgery.problems
    )


def test_an_added_or_missing_member_is_found_although_resealed(plain: Path, tmp_path: Path) -> None:
    members = members_of(plain)
    outcome = verify(resealed({**members, "figures/better.png": b"x"}, tmp_path / "a.zip"), [TWELVE, ONE])
    assert "figures/better.png: does not belong to a bundle of these runs" in outcome.problems
    del members["figures/timeline.png"]
    outcome = verify(resealed(members, tmp_path / "b.zip"), [TWELVE, ONE])
    assert "figures/timeline.png: is missing" in outcome.problems


def test_a_forged_export_is_found_with_the_reports(made: Path, tmp_path: Path) -> None:
    import sqlite3

    members = members_of(made)
    database = tmp_path / "x.sqlite"
    database.write_bytes(members["exports/new/1/1/delay_cap4.sqlite"])
    with sqlite3.connect(database) as opened:
        opened.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 1000 WHERE rowid = 5")
    opened.close()
    members["exports/new/1/1/delay_cap4.sqlite"] = database.read_bytes()
    out = resealed(members, tmp_path / "forged.zip")
    assert not verify(out, [TWELVE, ONE]).holds
    assert not verify(out).holds, "and by itself: the numbers are those of the true export"


@pytest.mark.parametrize(
    "damage", ["{}", "[]", "{", '{"format": "nsysddp evidence 9"}', '{"format": "nsysddp evidence 2"}']
)
def test_a_foreign_manifest_is_one_clear_line(plain: Path, tool: Tool, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "x.zip"
    out.write_bytes(archive.write({**members_of(plain), "manifest.json": damage.encode()}))
    code, said, err = tool("verify", out, TWELVE)
    assert code == 1
    assert "Traceback" not in err
    assert "unforeseen" not in err
    assert said or err.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["h200/blobs_ddp", "h200/graph_graph", "public/r2026.2.1_s3.25.0__2gpu_sendrecv_after"]
)
def test_the_redacted_copy_gives_the_numbers_of_the_report(
    unpacked: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    source = Source(Path(name).name, (unpacked(name),))
    direct = load_one(source, Reading())
    shared = gathered.prepare(gathered.Request("?", (), Reading()), [source], [], tmp_path).new[0]
    for table, frame in {**direct.result.tables, **direct.more}.items():
        assert frame.equals({**shared.result.tables, **shared.more}[table]), table
    assert [one.message for one in direct.result.findings] == [one.message for one in shared.result.findings]


# --- repeats ------------------------------------------------------------------------------------------------


def test_repeats_of_captures_on_both_sides(tmp_path: Path, tool: Tool) -> None:
    for number in range(3):
        write_capture(tmp_path / f"base-{number}", seed=number, scale=1.0, cap=25)
        write_capture(tmp_path / f"new-{number}", seed=10 + number, scale=0.9, cap=4)
    out = tmp_path / "e.zip"
    sides = [sorted(tmp_path.glob(f"{name}-*")) for name in ("new", "base")]
    claim = "step improves by >= 1% with 95% confidence"
    code, _, err = tool(
        "evidence", *sides[0], "--compare", *sides[1], "--claim", claim, "--with-export", "-o", out
    )
    assert code == 0, err
    members = members_of(out)
    document = json.loads(members["evidence.json"])
    assert document["claims"][0]["outcome"] == "pass"
    assert document["comparison"]["verdict"] == "faster"
    assert [run["name"] for run in document["runs"]] == [
        f"{side}-{n}" for side in ("new", "base") for n in range(3)
    ]
    assert document["runs"][0]["facts"]["bucket cap mib"] == "4"
    page = members["evidence.md"].decode()
    verdict = page.partition("## Claims")[0]
    parts = (
        "**Computation fills ",
        "new-1, new-2 say the same",
        "The new side is faster",
        "**Not known:**",
    )
    assert [verdict.index(part) for part in parts] == sorted(verdict.index(part) for part in parts)
    assert "95 % interval" in verdict
    assert "the cost of link contention: PCIe, NVLink and NIC were not sampled" in verdict
    html = members["report.html"].decode()
    assert 0 < html.index("<dt>Against the base</dt><dd>The new side is faster") < html.index('id="ranks"')
    section = html[html.index('<section id="comparison">') :]
    assert section.count('class="line') > 5, "every interval is drawn in the page too"
    for given in ([tmp_path], []):
        outcome = verify(out, given)
        assert outcome.holds, outcome.problems
        assert outcome.runs == 6


def test_reports_of_one_run_may_share_a_name(tmp_path: Path, tool: Tool) -> None:
    reports = []
    for number in range(2):
        export = Export(unit="ms")
        rank = export.process(pid=100 + number, device=number)
        rank.range("step 0", 0, 100)
        rank.kernel("sgemm", stream=7, at=(1, 50 + number), launched=0.5)
        rank.nccl(
            "AllReduce", stream=17, at=(20 + number, 60), bytes=4 << 20, communicator=0xABC, launched=0.6
        )
        (tmp_path / str(number)).mkdir()
        reports.append(tmp_path / str(number) / "report.sqlite")
        export.write(reports[-1])
    out = tmp_path / "e.zip"
    code, _, err = tool("evidence", *reports, "--with-export", "-o", out)
    assert code == 0, err
    assert {"exports/new/1/1/report.sqlite", "exports/new/1/2/report.sqlite"} <= set(members_of(out))
    for given in (reports, []):
        outcome = verify(out, given)
        assert outcome.holds, outcome.problems


# --- the archive --------------------------------------------------------------------------------------------


def test_the_archive_is_a_sound_zip(tmp_path: Path) -> None:
    members = {"b/ü.txt": b"x" * 1000, "a.txt": b"", "c.bin": bytes(range(256))}
    file = tmp_path / "a.zip"
    file.write_bytes(archive.write(members))
    with zipfile.ZipFile(file) as opened:
        assert opened.testzip() is None
        assert opened.namelist() == sorted(members)
        assert {name: opened.read(name) for name in opened.namelist()} == members
        assert {info.date_time for info in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert archive.read(file.read_bytes()) == (members, [])
    assert archive.read(archive.write({})) == ({}, [])
