"""However a command ends: nothing of a report stays behind, no output is half there, and the exit code says how."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builder import Export

from nsysddp.model import scratch
from nsysddp.model.errors import UsageError
from nsysddp.render.files import whole_file

ROOT = Path(__file__).resolve().parent.parent
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,100)  s7 g[10,60) g[70,80)  s17 c[20,85)
        rank 1 | host "step 0"[0,100)  s7 g[10,60) g[70,80)  s17 c[40,85)
    """)
    (tmp_path / "in").mkdir()
    return export.write(tmp_path / "in" / "a.sqlite")


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.fixture
def packed(report: Path) -> Path:
    made = report.with_name("b.sqlite.gz")
    made.write_bytes(gzip.compress(report.read_bytes()))
    return made


def start(temporary: Path, before: str, *argv: str | Path) -> subprocess.Popen[str]:
    """``nsysddp ARGV...`` after the Python code ``before``, which can say ``here()`` where the signal is to come."""
    code = f"""
import os, signal, sys, time
# A shell that starts the tests in the background has SIGINT ignored, and so has everything they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
def here():
    os.write(1, b"here\\n")
def wait():
    here()
    while True:
        time.sleep(60)
{textwrap.dedent(before)}
from nsysddp.cli import main
main()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sent(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Exit code and stderr after the signal, sent once the process has said that it is there."""
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


IN_THE_QUERY = """
from nsysddp.ingest import report
connect = report.Report.connect
def looked_at(self):
    connection = connect(self)
    connection.set_trace_callback(lambda text: "RECURSIVE" in text and here())
    return connection
report.Report.connect = looked_at
"""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_ends_a_query_that_never_ends(
    number: int, code: int, packed: Path, temporary: Path, tmp_path: Path
) -> None:
    (tmp_path / "q.sql").write_text(ENDLESS)
    process = start(temporary, IN_THE_QUERY, "query", tmp_path / "q.sql", packed)
    found, errors = sent(process, number)
    assert found == code
    assert errors == f"nsysddp: error: {scratch.ENDING_SIGNALS[signal.Signals(number)]}\n"
    assert left(temporary) == []


AT = {
    "unpacking": "import nsysddp.ingest.packed as m\nm._bound = lambda *_: wait()",
    "reading": "import nsysddp.ingest.gpu as m\nm.read = lambda *_: wait()",
    "a picture": "import nsysddp.render.timeline as m\nm.draw_timeline = lambda *_, **__: wait()",
    "writing": "import nsysddp.render.files as m\nm.publish = lambda *_, **__: wait()",
}


@pytest.mark.parametrize(("number", "code"), SIGNALS[:2])
@pytest.mark.parametrize("place", AT)
def test_a_signal_leaves_no_unpacked_report_and_no_output(
    place: str, number: int, code: int, packed: Path, temporary: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    found, errors = sent(start(temporary, AT[place], "timeline", packed, "-o", out / "a.png"), number)
    assert (found, len(errors.splitlines())) == (code, 1), errors
    assert (left(temporary), left(out), left(packed.parent)) == ([], [], ["a.sqlite", "b.sqlite.gz"])


SWALLOWED = """
import signal
import nsysddp.evidence.redact.copier as m
redacted, first = m.Copier._redacted, []
def slow(self, kind, text):
    if not first:
        first.append(1)
        try:
            wait()
        except BaseException:
            pass
    return redacted(self, kind, text)
m.Copier._redacted = slow
"""


@pytest.mark.parametrize(("number", "code"), SIGNALS[:2])
def test_a_signal_in_a_callback_is_not_swallowed(
    number: int, code: int, packed: Path, temporary: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    found, errors = sent(start(temporary, SWALLOWED, "redact", packed, "-o", out / "a.sqlite"), number)
    assert (found, len(errors.splitlines())) == (code, 1), errors
    assert (left(temporary), left(out)) == ([], [])


def test_a_signal_ends_the_export_that_was_started(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "nsys").write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho > {tmp_path}/said\ntrap '' TERM\nwhile :; do sleep 0.1; done\n"
    )
    (tmp_path / "nsys").chmod(0o755)
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"anything")
    os.mkfifo(tmp_path / "said")
    before = f"os.environ['PATH'] = {str(tmp_path)!r} + ':' + os.environ['PATH']"
    process = start(temporary, before, "analyze", report)
    (tmp_path / "said").read_text()  # opened by both: the program runs
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, "nsysddp: error: terminated\n")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert left(temporary) == []


def test_what_a_killed_process_left_is_removed_by_the_next_run(packed: Path, temporary: Path) -> None:
    found, _ = sent(start(temporary, AT["reading"], "analyze", packed), signal.SIGKILL)
    assert found == -signal.SIGKILL
    assert len(left(temporary)) == 1
    process = start(temporary, "", "analyze", packed)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert left(temporary) == []


def test_what_a_living_process_or_somebody_else_made_stays(packed: Path, temporary: Path) -> None:
    process = start(temporary, AT["reading"], "analyze", packed)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    (name,) = left(temporary)
    others = [f"{name}x", f".nsysddp-{'0' * 8}-abcdefgh", "nsysddp-abc"]
    for other in others:
        (temporary / other).mkdir()
        (temporary / other / ".lock").touch()
    (temporary / f"{name[:-8]}zzzzzzzz").symlink_to(packed.parent)
    before = left(temporary)
    again = start(temporary, "", "analyze", packed)
    again.communicate(timeout=60)
    assert again.returncode == 0
    assert left(temporary) == before
    assert left(packed.parent) == ["a.sqlite", "b.sqlite.gz"]
    process.terminate()
    process.communicate(timeout=60)
    assert name not in left(temporary)


def test_outputs_half_written_by_a_killed_process_are_removed_by_the_next_one(
    report: Path, temporary: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    sent(start(temporary, AT["writing"], "timeline", report, "-o", out / "a.png"), signal.SIGKILL)
    assert len(left(out)) == 1
    with whole_file(out / "b", force=False) as stream:
        stream.write(b"b")
    assert left(out) == ["b"]


@pytest.mark.parametrize("links", [True, False])
def test_of_two_writers_of_one_new_file_one_fails(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def refused(*_: object) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refused)
    place = tmp_path / "a"

    def write(text: bytes, meanwhile: Callable[[], None] = lambda: None) -> None:
        with whole_file(place, force=False) as stream:
            stream.write(text)
            meanwhile()

    with pytest.raises(UsageError, match="there already"):
        write(b"late", lambda: write(b"early"))
    assert (place.read_bytes(), left(tmp_path)) == (b"early", ["a"])


def together(temporary: Path, before: str, *argv: str | Path) -> Iterator[tuple[int, str]]:
    """Two processes that both found the place free, and then write it."""
    pair = [start(temporary, before, *argv) for _ in range(2)]
    for process in pair:
        assert process.stdout is not None
        while process.stdout.readline() != "here\n":
            pass
    for process in pair:
        process.send_signal(signal.SIGUSR1)
    for process in pair:
        _, errors = process.communicate(timeout=60)
        yield process.returncode, errors


WAITS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
import nsysddp.{module} as m
write = m.{name}
def waits(*given, **named):
    here()
    signal.sigwait([signal.SIGUSR1])
    return write(*given, **named)
m.{name} = waits
"""


@pytest.mark.parametrize(
    ("module", "name", "argv"),
    [
        ("render.files", "publish", ["timeline", "-o"]),
        ("render.files", "publish", ["report", "-o"]),
        ("evidence.redact", "publish", ["redact", "-o"]),
        ("render.document", "_move", ["analyze", "--out"]),
    ],
)
def test_of_two_processes_that_write_one_new_place_one_fails(
    module: str, name: str, argv: list[str], report: Path, temporary: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    place = out / ("a.png" if argv[0] == "timeline" else "a")
    codes, errors = zip(
        *together(temporary, WAITS.format(module=module, name=name), argv[0], report, argv[1], place),
        strict=True,
    )
    assert sorted(codes) == [0, 2], errors
    assert "--force" in "".join(errors)
    assert left(out) == [place.name]
