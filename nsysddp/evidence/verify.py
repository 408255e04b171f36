"""Is a bundle what it was when it was made, and do its reports really say what it says?

Three layers, each of which the one before cannot replace:

1. the bytes: the archive is rebuilt from its members and compared, and every member is hashed (``manifest.json``);
2. the bundle against itself: every CSV and Parquet table is made anew from ``evidence.json``;
3. the bundle against the reports: everything is computed anew, and every number, claim and member compared. Whoever
   edits a number and all hashes with it is found here. Reports are known by their hash, whatever they are called now;
   where the bundle holds redacted exports, those can stand in.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysddp.evidence import archive, bundle
from nsysddp.evidence.claims import parse
from nsysddp.evidence.sources import File, Loaded, Reading, Recorded, Source, load_one
from nsysddp.model.errors import EvidenceError, UsageError

_MOST = 200
"""Differences named; of more, the count."""

_DRAWN = (".png", ".svg", ".parquet", ".html", ".sqlite", ".md", ".schema.json")
"""Members whose bytes depend on the versions of this tool and of libraries too."""


@dataclass(frozen=True)
class Outcome:
    """What was checked and what was found.

    Attributes:
        problems: everything that is not as it should be; none: the bundle holds.
        notes: what could not be checked, and why.
        members: members whose hash was checked.
        runs: runs that were computed anew.
        values: values that were compared with what was computed anew.
        from_exports: the runs were computed from the exports in the bundle and not from the reports.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    members: int
    runs: int
    values: int
    from_exports: bool

    @property
    def holds(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "schema_version": 1,
            "holds": self.holds,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "members": self.members,
            "runs": self.runs,
            "values": self.values,
            "from_exports": self.from_exports,
        }


def verify(file: Path, given: Sequence[Path] = ()) -> Outcome:
    """Check a bundle, and with its reports compute everything anew.

    Args:
        file: the bundle.
        given: reports and what else the runs were read from, or folders that hold them, in any order.

    Raises:
        EvidenceError: it is no bundle, or of a version that this nsysddp does not know.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise EvidenceError(f"cannot be read ({error.strerror})", file=file) from None
    try:
        members, problems = archive.read(content)
    except EvidenceError as error:
        raise EvidenceError(error.what, file=file, do=error.do) from None
    manifest = _json_member(members, "manifest.json", file)
    if manifest.get("format") != bundle.FORMAT:
        raise EvidenceError(
            f"a bundle of another format ({str(manifest.get('format'))[:40]!r}, not {bundle.FORMAT!r})",
            file=file,
            do="use the nsysddp that made it",
        )
    notes: list[str] = []
    problems += _hashes(members, manifest)
    document = _json_member(members, "evidence.json", file)
    runs, values, from_exports = 0, 0, False
    try:
        problems += _against_itself(members, document)
        plan = _plan(manifest, document)
    except _MALFORMED as error:
        problems.append(
            f"the bundle does not have the form of one ({type(error).__name__}: {str(error)[:80]})"
        )
    except UsageError as error:
        problems.append(f"manifest.json: {error}")
    else:
        again = _again(members, plan, given, notes)
        if again is not None:
            evidence, exports, from_exports = again
            runs = len(evidence.sides)
            found, values, more = _against_reports(
                members, manifest, document, bundle.build(evidence, exports)
            )
            problems += found
            notes += more
    distinct = list(dict.fromkeys(problems))
    if len(distinct) > _MOST:
        distinct = [*distinct[:_MOST], f"and {len(distinct) - _MOST} more differences"]
    return Outcome(tuple(distinct), tuple(notes), len(members), runs, values, from_exports)


def _json_member(members: Mapping[str, bytes], name: str, file: Path) -> dict[str, Any]:
    try:
        content = json.loads(members[name])
    except KeyError:
        raise EvidenceError(f"holds no {name}: not a bundle of nsysddp evidence", file=file) from None
    except (ValueError, RecursionError):
        raise EvidenceError(f"its {name} is damaged", file=file, do="get the bundle again") from None
    if not isinstance(content, dict):
        raise EvidenceError(f"its {name} is damaged", file=file, do="get the bundle again")
    return content


def _hashes(members: Mapping[str, bytes], manifest: Mapping[str, Any]) -> list[str]:
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        return ["manifest.json lists no files"]
    problems = []
    for name in sorted({*members, *listed} - {"manifest.json"}):
        if name not in members:
            problems.append(f"{name}: is listed and not there")
        elif name not in listed:
            problems.append(f"{name}: is there and not listed")
        else:
            entry = listed[name] if isinstance(listed[name], dict) else {}
            if entry.get("sha256") != hashlib.sha256(members[name]).hexdigest():
                problems.append(f"{name}: its hash is not the one in manifest.json")
            elif entry.get("bytes") != len(members[name]):
                problems.append(f"{name}: its size is not the one in manifest.json")
    return problems


# --- the bundle against itself ------------------------------------------------------------------------------


def _against_itself(members: Mapping[str, bytes], document: Mapping[str, Any]) -> list[str]:
    """Tables whose CSV or Parquet does not say what evidence.json says."""
    import polars as pl

    tables: dict[str, list[dict[str, Any]]] = {}
    for run in document["runs"]:
        for name, rows in run["tables"].items():
            tables.setdefault(name, []).extend(
                {"side": run["side"], "run": run["name"], **row} for row in rows
            )
    for name, rows in ((document.get("comparison") or {}).get("tables") or {}).items():
        tables[name] = rows
    problems = []
    for name, rows in sorted(tables.items()):
        member = f"tables/{name}.parquet"
        if member not in members or f"tables/{name}.csv" not in members:
            problems.append(f"{member}: is missing, evidence.json has that table")
            continue
        try:
            frame = pl.read_parquet(io.BytesIO(members[member]))
        except pl.exceptions.PolarsError:
            problems.append(f"{member}: is no Parquet file")
            continue
        said = json.loads(frame.write_json()) if frame.height else []
        problems += [
            f"{member}: {difference}, evidence.json says otherwise"
            for difference, _ in _differences(rows, said, name)
        ]
        if frame.write_csv().encode() != members[f"tables/{name}.csv"]:
            problems.append(f"tables/{name}.csv: differs from its Parquet table")
    return problems


# --- the bundle against the reports -------------------------------------------------------------------------


_MALFORMED = (KeyError, TypeError, AttributeError, IndexError, ValueError)
"""What reading a foreign JSON document of another form ends in."""


@dataclass(frozen=True)
class _PlannedRun:
    side: str
    name: str
    files: tuple[File, ...]
    reports: int
    recorded: Recorded


@dataclass(frozen=True)
class _Plan:
    """How the bundle was made, as it says itself."""

    request: bundle.Request
    runs: tuple[_PlannedRun, ...]


def _plan(manifest: Mapping[str, Any], document: Mapping[str, Any]) -> _Plan:
    wanted = manifest["request"]
    request = bundle.Request(
        question=str(wanted["question"]),
        claims=tuple(parse(str(claim["claim"]), str(claim["name"])) for claim in wanted["claims"]),
        reading=Reading.of(wanted["reading"]),
        allow_unlike=bool(wanted["allow_unlike"]),
        with_export=bool(wanted["with_export"]),
        command=tuple(map(str, manifest["command"])),
    )
    runs = []
    for run, said in zip(manifest["runs"], document["runs"], strict=True):
        files = tuple(
            File(Path(str(file["name"])).name, int(file["bytes"]), str(file["sha256"]))
            for file in run["files"]
        )
        measured = {str(name): [float(one) for one in values] for name, values in said["measured"].items()}
        facts = (
            None if said["facts"] is None else {str(key): str(value) for key, value in said["facts"].items()}
        )
        if run["side"] not in ("new", "base") or not 1 <= int(run["reports"]) <= len(files):
            raise ValueError(f"run {run['name']}")
        runs.append(
            _PlannedRun(
                run["side"],
                str(run["name"]),
                files,
                int(run["reports"]),
                Recorded(facts, run["capture"], measured),
            )
        )
    if not any(run.side == "new" for run in runs):
        raise ValueError("no run")
    return _Plan(request, tuple(runs))


def _again(
    members: Mapping[str, bytes], plan: _Plan, given: Sequence[Path], notes: list[str]
) -> tuple[bundle.Evidence, dict[str, bytes], bool] | None:
    """The evidence computed anew, its exports, and whether it is from them; None where nothing is there to do it."""
    if not given and not any(name.startswith("exports/") for name in members):
        notes.append("nothing was computed anew: give the reports to check every number")
        return None
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if given:
            sources = _found(scratch / "given", plan, given)
            evidence = bundle.prepare(plan.request, sources["new"], sources["base"], scratch / "copies")
            return evidence, bundle.exports(evidence) if plan.request.with_export else {}, False
        notes.append(
            "computed anew from the redacted exports in the bundle; that they are true, only the reports can show"
        )
        sides: dict[str, list[Loaded]] = {"new": [], "base": []}
        for side, run in _from_exports(scratch, members, plan):
            sides[side].append(run)
        evidence = bundle.gather(plan.request, sides["new"], sides["base"])
    return evidence, {name: data for name, data in members.items() if name.startswith("exports/")}, True


def _found(scratch: Path, plan: _Plan, given: Sequence[Path]) -> dict[str, list[Source]]:
    """The runs of each side from the files that have the hashes in the manifest, under the names that they had."""
    found: dict[str, Path] = {}
    for path in given:
        inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        for one in inside:
            found.setdefault(File.of(one).sha256, one.resolve())
    missing = [
        f"{file.name} of {run.name}" for run in plan.runs for file in run.files if file.sha256 not in found
    ]
    if missing:
        raise EvidenceError(
            f"no file given has the hash of {', '.join(missing[:5])}"
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            + ": another version, or not given",
            do="give every file that manifest.json lists under runs, or none",
        )
    sides: dict[str, list[Source]] = {"new": [], "base": []}
    for number, run in enumerate(plan.runs):
        places = []
        for place_number, file in enumerate(run.files):
            # Reports of one run may share a name; what the capture recorded lies together.
            report = place_number < run.reports
            place = scratch / str(number) / (str(place_number) if report else "recorded") / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(found[file.sha256])
            places.append(place)
        sides[run.side].append(Source(run.name, tuple(places[: run.reports]), tuple(places[run.reports :])))
    return sides


def _from_exports(scratch: Path, members: Mapping[str, bytes], plan: _Plan) -> Iterator[tuple[str, Loaded]]:
    """Every run from the redacted exports, under the names and hashes of the reports that they stand for."""
    counts = {"new": 0, "base": 0}
    for number, run in enumerate(plan.runs):
        counts[run.side] += 1
        places = []
        for report, file in enumerate(run.files[: run.reports], 1):
            member = bundle.export_member(run.side, counts[run.side], report, file.name)
            if member not in members:
                raise EvidenceError(f"holds no {member}", do="give the reports instead")
            place = scratch / str(number) / str(report) / member.rpartition("/")[2]
            place.parent.mkdir(parents=True)
            place.write_bytes(members[member])
            places.append(place)
        source = Source(run.name, tuple(places))
        yield run.side, load_one(source, plan.request.reading, stands_for=run.files, kept=run.recorded)


def _against_reports(
    members: Mapping[str, bytes],
    manifest: Mapping[str, Any],
    document: Mapping[str, Any],
    again: Mapping[str, bytes],
) -> tuple[list[str], int, list[str]]:
    """Problems, how many values were compared, and notes."""
    problems: list[str] = []
    notes: list[str] = []
    expected, remade = json.loads(again["evidence.json"]), json.loads(again["manifest.json"])
    same = all(remade[key] == manifest.get(key) for key in ("versions", "tool"))
    if remade["tool"] != manifest.get("tool"):
        # Another version of this tool words and draws differently; its numbers have to be the same.
        expected["tool"] = document.get("tool")
    values = 0
    for difference, counted in _differences(expected, document, "evidence.json", count=True):
        values += counted
        if difference:
            problems.append(difference)
    for key in ("request", "runs"):
        problems += [
            text for text, _ in _differences(remade[key], manifest.get(key), f"manifest.json: {key}")
        ]
    if not same:
        made_with = {**_named(manifest.get("tool")), **_named(manifest.get("versions"))}
        spelled = ", ".join(f"{name} {value}" for name, value in made_with.items()) or "not recorded"
        notes.append(
            f"pages, pictures and exports were made with other versions ({spelled}), so their bytes were not compared "
            "with what these versions make"
        )
    for name in sorted({*again, *members} - {"evidence.json", "manifest.json"}):
        if name not in again:
            problems.append(f"{name}: does not belong to a bundle of these runs")
        elif name not in members:
            problems.append(f"{name}: is missing")
        elif members[name] != again[name] and (same or not name.endswith(_DRAWN)):
            problems.append(_changed(name, members[name], again[name]))
    return problems, values, notes


def _named(versions: Any) -> dict[str, str]:
    """Names and versions as the manifest lists them, of the tool under its name."""
    if not isinstance(versions, dict):
        return {}
    if set(versions) == {"name", "version"}:
        return {str(versions["name"]): str(versions["version"])}
    return {str(name): str(value) for name, value in versions.items()}


def _changed(name: str, said: bytes, computed: bytes) -> str:
    """Which line of a member differs first; of what is no text, only that it does."""
    if name.endswith((".png", ".parquet", ".sqlite")):
        return f"{name}: differs from what the reports give"
    lines = [part.decode("utf-8", "replace").splitlines() for part in (said, computed)]
    for number, (one, other) in enumerate(zip(*lines, strict=False), 1):
        if one != other:
            return f"{name}, line {number}: {_short(one)} in the bundle, {_short(other)} from the reports"
    return f"{name}: {len(lines[0])} lines in the bundle, {len(lines[1])} from the reports"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _differences(expected: Any, said: Any, where: str, *, count: bool = False) -> Iterator[tuple[str, int]]:
    """Every place in which ``said`` differs from ``expected``; with ``count`` also ``("", 1)`` where they agree."""
    if isinstance(expected, dict) and isinstance(said, dict):
        for key in dict.fromkeys([*expected, *said]):
            place = f"{where}.{key}" if where else str(key)
            if key not in expected or key not in said:
                yield f"{place}: {'is not in the bundle' if key not in said else 'does not belong there'}", 1
            else:
                yield from _differences(expected[key], said[key], place, count=count)
    elif isinstance(expected, list) and isinstance(said, list):
        if len(expected) != len(said):
            yield f"{where}: {len(said)} rows in the bundle, {len(expected)} from the reports", 1
        for number, (one, other) in enumerate(zip(expected, said, strict=False)):
            yield from _differences(one, other, f"{where}[{number}]", count=count)
    elif _equal(expected, said):
        if count:
            yield "", 1
    else:
        yield f"{where}: {_short(said)} in the bundle, {_short(expected)} computed", 1


def _equal(expected: Any, said: Any) -> bool:
    if isinstance(expected, bool) or isinstance(said, bool) or expected is None or said is None:
        return expected is said
    if isinstance(expected, float) or isinstance(said, float):
        # Libraries of other versions may sum in another order: the last digits of a float are not evidence.
        numbers = isinstance(expected, int | float) and isinstance(said, int | float)
        return numbers and math.isclose(expected, said, rel_tol=1e-9, abs_tol=1e-9)
    return bool(type(expected) is type(said) and expected == said)
