"""Run the command line inside this process, as a user would see it: exit code, stdout, stderr."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysddp.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, and everything on stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that a refusal says; anything else on stdout or stderr is a failure."""
        assert self.code != 0, self.out
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("nsysddp: error: ")
        assert "Traceback" not in self.err
        assert "unforeseen" not in self.err, self.err
        return lines[0]


def run(*argv: str | Path) -> Ran:
    """``nsysddp ARGV...``"""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True, newline="") for _ in range(2)
    )
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(part) for part in argv])
        except SystemExit as leave:
            code = int(leave.code or 0)
        sys.stdout.flush()
    told = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]  # type: ignore[attr-defined]
    return Ran(code, *told)


def document(*argv: str | Path) -> dict[str, Any]:
    """The JSON document of ``nsysddp analyze ARGV... --format json``."""
    ran = run("analyze", *argv, "--format", "json")
    assert ran.code == 0, ran.err
    made: dict[str, Any] = json.loads(ran.out)
    return made


def tables(*argv: str | Path) -> dict[str, list[dict[str, Any]]]:
    """The tables of that document."""
    made: dict[str, list[dict[str, Any]]] = document(*argv)["tables"]
    return made


def overlap(*argv: str | Path, per: str = "capture") -> list[dict[str, Any]]:
    """Rows of the overlap table."""
    return tables(*argv, "--per", per)["overlap"]


def codes(made: dict[str, Any], what: str = "findings") -> set[str]:
    """Codes of the findings or warnings of a document."""
    return {one["code"] for one in made[what]}
