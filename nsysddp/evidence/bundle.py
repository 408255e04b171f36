"""What does a reviewer get? One archive: the verdict to paste, pictures, tables, and all that is needed to check it.

    evidence.md  report.html  figures/*.png, *.svg  tables/*.csv, *.parquet
    evidence.json  evidence.schema.json  manifest.json  [exports/SIDE/RUN/REPORT/*.sqlite]

Everything is computed from redacted copies of the reports: what the redaction leaves out cannot be in a bundle, and
whoever has the copies gets the same bytes. The same input gives the same bytes: no times, no folders, everything in
order. ``manifest.json`` holds the hash of every other member and of every file that was read, and all that changes a
number, so that ``verify`` can make it anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sqlite3
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import polars as pl

import nsysddp
from nsysddp.evidence.gathered import export_member
from nsysddp.evidence.schema import SCHEMA_VERSION, schema_text
from nsysddp.evidence.sources import Loaded
from nsysddp.model.names import visible
from nsysddp.model.result import Finding, Result
from nsysddp.model.scratch import scratch_folder
from nsysddp.model.warnings import Warning
from nsysddp.render.tables import csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nsysddp.evidence.gathered import Evidence, Request
    from nsysddp.evidence.review import Answer


FORMAT = "nsysddp evidence 2"
QUESTION = "How much communication is hidden, and what is exposed?"
LIBRARIES = ("numpy", "polars", "matplotlib", "pillow", "jinja2")
"""Libraries whose version can change a byte of a bundle."""


def build(evidence: Evidence, copies: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every member of the bundle, by name.

    Args:
        evidence: the runs and what follows.
        copies: redacted exports that go in, by member name.
    """
    from nsysddp.evidence.review import answer_of, review

    first = evidence.new[0]
    # What costs time on the critical path is of whole steps.
    diagnosis = None if first.path is None else first.context.diagnosis
    answer = answer_of(evidence, None if diagnosis is None else diagnosis["diagnosis_unjudged"])
    members: dict[str, bytes] = dict(copies)
    members.update(_figures(evidence))
    members.update(_tables(evidence))
    members["evidence.json"] = json_bytes(document(evidence))
    members["evidence.schema.json"] = schema_text().encode()
    members["report.html"] = _page(evidence, answer, diagnosis).encode()
    members["evidence.md"] = review(evidence, answer, sorted(members)).encode()
    members["manifest.json"] = json_bytes(manifest(evidence, members))
    return members


def exports(evidence: Evidence) -> dict[str, bytes]:
    """The redacted copies of ``prepare`` as members."""
    counts = {"new": 0, "base": 0}
    made = {}
    for side, run in evidence.sides:
        counts[side] += 1
        for number, copy in enumerate(run.source.reports, 1):
            made[export_member(side, counts[side], number, copy.name)] = copy.read_bytes()
    return made


# --- evidence.json ------------------------------------------------------------------------------------------


def document(evidence: Evidence) -> dict[str, Any]:
    """Everything that was found, as plain JSON values; ``evidence.schema.json`` is its form."""
    from nsysddp.render.compare.document import as_dict as comparison_dict

    compared = None if evidence.comparison is None else comparison_dict(evidence.comparison)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "nsysddp", "version": nsysddp.__version__},
        "request": evidence.request.as_dict(),
        "claims": [answer.as_dict() for answer in evidence.answers],
        "comparison": compared,
        "runs": [_run(side, run) for side, run in evidence.sides],
    }


def _run(side: str, run: Loaded) -> dict[str, Any]:
    from nsysddp.render.document import as_dict

    content = as_dict(run.result)
    for key in ("schema_version", "tool", "request"):
        del content[key]  # the bundle says it once
    content["tables"] |= {name: json.loads(frame.write_json()) for name, frame in sorted(run.more.items())}
    return {
        "side": side,
        "name": run.source.name,
        "facts": dict(sorted((run.recorded.facts or {}).items())) if run.recorded.facts is not None else None,
        "settings": run.recorded.settings,
        "measured": {name: list(values) for name, values in sorted(run.recorded.measured.items())},
        **content,
    }


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """A JSON member as this package writes it."""
    return (json.dumps(content, indent=1, ensure_ascii=False, sort_keys=False) + "\n").encode()


# --- tables, pictures, page ---------------------------------------------------------------------------------


def _tables(evidence: Evidence) -> dict[str, bytes]:
    """Every table over all runs, with the side and name of the run in front."""
    frames: dict[str, list[pl.DataFrame]] = {}
    for side, run in evidence.sides:
        for name, frame in {**run.result.tables, **run.more}.items():
            frames.setdefault(name, []).append(
                frame.select(pl.lit(side).alias("side"), pl.lit(run.source.name).alias("run"), pl.all())
            )
    whole = {name: pl.concat(parts) for name, parts in frames.items()}
    if evidence.comparison is not None:
        whole.update(evidence.comparison.tables)
    made = {}
    for name, frame in whole.items():
        made[f"tables/{name}.csv"] = csv(frame).encode()
        packed = io.BytesIO()
        frame.write_parquet(packed, compression="zstd", compression_level=3, statistics=False)
        made[f"tables/{name}.parquet"] = packed.getvalue()
    return made


def _figures(evidence: Evidence) -> dict[str, bytes]:
    from nsysddp.render.compare.picture import draw_comparison
    from nsysddp.render.decomposition import draw_decomposition
    from nsysddp.render.drawn import drawn
    from nsysddp.render.timeline import draw_timeline

    first = evidence.new[0]
    pictures: dict[str, Figure] = {
        "timeline": draw_timeline(first.context),
        "decomposition": draw_decomposition(first.result),
    }
    if evidence.comparison is not None:
        pictures["comparison"] = draw_comparison(evidence.comparison)
    made: dict[str, bytes] = {}
    for name, figure in pictures.items():
        # Before it is drawn: that can move what it holds.
        data = drawn(figure)
        made |= {f"figures/{name}.{kind}": _picture(figure, kind, data) for kind in ("png", "svg")}
    return made


def _picture(figure: Figure, kind: str, data: str) -> bytes:
    from nsysddp.render.timeline import save

    with scratch_folder() as scratch:
        path = scratch / f"picture.{kind}"
        save(figure, path, data=data)
        return path.read_bytes()


def _page(evidence: Evidence, answer: Answer, diagnosis: Result | None) -> str:
    from nsysddp.render.compare.words import sentence, which_is_which
    from nsysddp.render.html import html_report

    first = evidence.new[0]
    comparison = None
    if evidence.comparison is not None:
        comparison = Result(
            first.result.trace,
            dict(evidence.comparison.tables),
            tuple(
                Finding("comparison", text)
                for text in (sentence(evidence.comparison), *which_is_which(evidence.comparison))
            ),
            evidence.comparison.assumptions,
            tuple(Warning("comparison", 1, text) for text in evidence.comparison.warnings),
        )
    return html_report(
        first.result,
        context=first.context,
        critical_path=first.path,
        buckets=first.context.buckets,
        diagnosis=diagnosis,
        comparison=comparison,
        answers=answer.parts(),
        provenance=dict(sorted((first.recorded.facts or {}).items())),
    )


# --- manifest.json ------------------------------------------------------------------------------------------


def manifest(evidence: Evidence, members: Mapping[str, bytes]) -> dict[str, Any]:
    """From what, with what and how the bundle was made, and the hash of every other member."""
    request = evidence.request
    return {
        "format": FORMAT,
        "tool": {"name": "nsysddp", "version": nsysddp.__version__},
        "versions": versions(),
        "command": command(
            request,
            [
                (side, run.source.name, [file.name for file in run.files], len(run.source.reports))
                for side, run in evidence.sides
            ],
        ),
        "request": evidence.request.as_dict(),
        "runs": [_provenance(side, run) for side, run in evidence.sides],
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in sorted(members.items())
        },
    }


def command(request: Request, runs: Sequence[tuple[str, str, Sequence[str], int]]) -> list[str]:
    """A command line that makes the bundle, by base names; it follows from the request, so that it can be checked.

    Args:
        request: what was wanted.
        runs: side and name of each run, names of its files, and how many of those are reports.
    """
    inputs: dict[str, list[str]] = {"new": [], "base": []}
    for side, name, of_run, reports in runs:
        own = list(of_run[:reports])
        inputs[side] += own if name.startswith(", ".join(own)) else [name]
    words = ["nsysddp", "evidence", *inputs["new"]]
    if inputs["base"]:
        words += ["--against", *inputs["base"]]
    if request.question != QUESTION:
        words += ["--question", request.question]
    for claim in request.claims:
        words += ["--claim", claim.text]
    words += request.reading.options
    words += ["--allow-unlike"] if request.allow_unlike else []
    return [visible(word) for word in (*words, *(["--with-export"] if request.with_export else []))]


def versions() -> dict[str, str]:
    """Python and the libraries that can change a byte."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: metadata.version(name) for name in LIBRARIES},
    }


def _provenance(side: str, run: Loaded) -> dict[str, Any]:
    ranks = run.result["rank"]
    unmatched = (
        run.result["collective"]
        .filter(pl.col("match").str.starts_with("unmatched"))
        .group_by("rank", "match")
        .len()
        .sort("rank", "match")
    )
    return {
        "side": side,
        "name": run.source.name,
        "reports": len(run.source.reports),
        "files": [{"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in run.files],
        "inputs": [
            {"name": report.name, "nsys_version": report.nsys_version, "schema": report.schema}
            for report in run.result.trace.inputs
        ],
        "capture": run.recorded.settings,
        "clocks": ranks.select("rank", "clock_method", "clock_offset_ns", "clock_residual_ns").to_dicts(),
        "unmatched": [
            {"rank": rank, "reason": match.removeprefix("unmatched:"), "count": count}
            for rank, match, count in unmatched.iter_rows()
        ],
        "collectives": run.result["collective"].height,
    }
