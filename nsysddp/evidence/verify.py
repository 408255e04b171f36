"""Is a bundle what it was when it was made, and do its reports really say what it says?

Four layers, each of which the one before cannot replace:

1. the bytes: the archive is rebuilt from its members and compared, and every member is hashed (``manifest.json``);
2. the bundle against itself: every CSV and Parquet table is made anew from ``evidence.json``;
3. the bundle against the reports: everything is computed anew, and every number, claim, page and picture compared.
   Whoever edits a number and all hashes with it is found here. Reports are known by their hash, whatever they are
   called now; where the bundle holds redacted exports, those can stand in;
4. the bundle against its signer: a signature covers the hash of every member, so that nobody else can have made it.

What a person reads is computed anew and compared, or named as *not verified*, which is an outcome of its own: neither
sound nor wrong. Pages, tables and the data of pictures depend on the version of this tool alone and are always
compared. The bytes of a picture depend on those of libraries too: where they differ from the ones here, the data that
it was drawn from are compared, and its pixels are not verified.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nsysddp
from nsysddp.evidence import archive, bundle, gathered, signature
from nsysddp.evidence.differences import alike_but_last_digits, changed, differences
from nsysddp.evidence.sources import File, Loaded, Recorded, Source, load_one
from nsysddp.ingest.columnar import is_export
from nsysddp.model.errors import EvidenceError, NoGpuEvents, UsageError
from nsysddp.model.inputs import read_bytes
from nsysddp.model.names import visible
from nsysddp.model.scratch import scratch_folder
from nsysddp.render.tables import csv

_MOST = 200
"""Differences named; of more, the count."""

_LIBRARIES_OF = {
    "png": ("matplotlib", "pillow", "numpy", "python"),
    "svg": ("matplotlib", "numpy", "python"),
    "parquet": ("polars",),
    "sqlite": ("sqlite", "python"),
}
"""On whose versions the bytes of a member depend, by its ending; those of any other on this tool alone."""

_SEALS = ("manifest.json", signature.MEMBER)
"""Members that no list of hashes can hold."""


@dataclass(frozen=True)
class Outcome:
    """What was checked and what was found.

    Attributes:
        problems: everything that is not as it should be; none: the bundle holds.
        unverified: everything that a person reads and that could not be checked here, and what would check it.
        notes: what else is worth knowing.
        members: members whose hash was checked.
        runs: runs that were computed anew.
        values: values that were compared with what was computed anew.
        from_exports: the runs were computed from the exports in the bundle and not from the reports.
    """

    problems: tuple[str, ...]
    unverified: tuple[str, ...]
    notes: tuple[str, ...]
    members: int
    runs: int
    values: int
    from_exports: bool

    @property
    def holds(self) -> bool:
        """Nothing is wrong, as far as it could be checked."""
        return not self.problems

    @property
    def verified(self) -> bool:
        """Nothing is wrong, and everything was checked."""
        return not self.problems and not self.unverified

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "schema_version": 1,
            "holds": self.holds,
            "verified": self.verified,
            "problems": list(self.problems),
            "not_verified": list(self.unverified),
            "notes": list(self.notes),
            "members": self.members,
            "runs": self.runs,
            "values": self.values,
            "from_exports": self.from_exports,
        }


@dataclass
class _Found:
    """What has been found so far; the lists are those of ``Outcome``."""

    problems: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    values: int = 0


def verify(file: Path, given: Sequence[Path] = (), *, signer: Path | None = None) -> Outcome:
    """Check a bundle, and with its reports compute everything anew.

    Args:
        file: the bundle.
        given: reports and what else the runs were read from, or folders that hold them, in any order.
        signer: public keys of OpenSSH, of which one must have signed the bundle.

    Raises:
        EvidenceError: it is no bundle, of a version that this nsysddp does not know, or of other reports than those
            given.
        UsageError: ``signer`` holds no public key.
    """
    members, problems = _read(file)
    manifest = _json_member(members, "manifest.json", file)
    if manifest.get("format") != bundle.FORMAT:
        raise EvidenceError(
            f"a bundle of another format ({str(manifest.get('format'))[:40]!r}, not {bundle.FORMAT!r})",
            file=file,
            do="use the nsysddp that made it",
        )
    document = _json_member(members, "evidence.json", file)
    found = _Found([*problems, *_hashes(members, manifest), *_spelling(members)])
    signed = _signature(members, signer, found)
    runs, from_exports = 0, False
    try:
        found.problems += _against_itself(members, document)
        plan = _plan(manifest, document)
    except _MALFORMED as error:
        found.problems.append(
            f"the bundle does not have the form of one ({type(error).__name__}: {str(error)[:80]})"
        )
    except UsageError as error:
        found.problems.append(f"manifest.json: {error}")
    else:
        again = _again(file, members, plan, given, found, signed=signed)
        if again is not None:
            evidence, exports, from_exports = again
            runs = len(evidence.sides)
            _against_reports(members, manifest, document, bundle.build(evidence, exports), found)
    distinct = list(dict.fromkeys(found.problems))
    if len(distinct) > _MOST:
        distinct = [*distinct[:_MOST], f"and {len(distinct) - _MOST} more differences"]
    return Outcome(
        problems=tuple(distinct),
        unverified=tuple(dict.fromkeys(found.unverified)),
        notes=tuple(found.notes),
        members=len(members),
        runs=runs,
        values=found.values,
        from_exports=from_exports,
    )


def _read(file: Path) -> tuple[dict[str, bytes], list[str]]:
    try:
        return archive.read(read_bytes(file, archive.MOST_BYTES))
    except OSError as error:
        raise EvidenceError(f"cannot be read ({error.strerror})", file=file) from None
    except EvidenceError as error:
        raise EvidenceError(error.what, file=file, do=error.do) from None


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
    for name in sorted({*members, *listed} - {*_SEALS}):
        if name not in members:
            problems.append(f"{name}: is listed and not there")
        elif name not in listed:
            problems.append(f"{name}: is there and not listed")
        else:
            entry = listed[name] if isinstance(listed[name], dict) else {}
            if entry.get("sha256") != hashlib.sha256(members[name]).hexdigest():
                problems.append(f"{name}: its hash is not the one in manifest.json")
            elif entry != {"bytes": len(members[name]), "sha256": entry["sha256"]}:
                problems.append(f"{name}: its size is not the one in manifest.json")
    return problems


def _spelling(members: Mapping[str, bytes]) -> list[str]:
    """JSON that a person can read otherwise than a program does, with a key twice for example."""
    problems = []
    for name in ("manifest.json", "evidence.json"):
        try:
            same = bundle.json_bytes(json.loads(members[name])) == members[name]
        except (ValueError, RecursionError):
            same = False
        if not same:
            problems.append(
                f"{name}: is not written as nsysddp writes it (a key that is there twice, or spaces)"
            )
    return problems


def _signature(members: Mapping[str, bytes], signer: Path | None, found: _Found) -> bool:
    """Did the signer sign it?"""
    signed = members.get(signature.MEMBER)
    if signer is None:
        if signed is not None:
            found.unverified.append(
                f"{signature.MEMBER}: who signed it was not checked; give --signer PUB, the signer's public key"
            )
        return False
    if signed is None:
        found.problems.append(f"it is not signed, and {signer.name} is to have signed it")
        return False
    by = signature.check(members["manifest.json"], signed, signer)
    if by is None:
        found.problems.append(f"{signature.MEMBER}: is no signature by {signer.name} over this bundle")
        return False
    found.notes.append(f"signed by {by} ({signer.name})")
    return True


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
            f"{member}: {difference.text}, evidence.json says otherwise"
            for difference in differences(rows, said, name)
            if not difference.agrees and not difference.last_digits
        ]
        if csv(frame).encode() != members[f"tables/{name}.csv"]:
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

    request: gathered.Request
    runs: tuple[_PlannedRun, ...]


def _plan(manifest: Mapping[str, Any], document: Mapping[str, Any]) -> _Plan:
    runs = []
    for run, said in zip(manifest["runs"], document["runs"], strict=True):
        files = tuple(
            File(Path(str(file["name"])).name, int(file["bytes"]), str(file["sha256"]))
            for file in run["files"]
        )
        measured = {
            str(name): [float(value) for value in values] for name, values in said["measured"].items()
        }
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
    return _Plan(gathered.Request.of(manifest["request"]), tuple(runs))


def _again(
    file: Path,
    members: Mapping[str, bytes],
    plan: _Plan,
    given: Sequence[Path],
    found: _Found,
    *,
    signed: bool,
) -> tuple[gathered.Evidence, dict[str, bytes], bool] | None:
    """The evidence computed anew, its exports, and whether it is from them; None where nothing is there to do it."""
    if not given and not any(name.startswith("exports/") for name in members):
        found.unverified.append("every number, page and picture: nothing was computed anew; give the reports")
        return None
    with scratch_folder() as scratch:
        try:
            if given:
                sources = _sources(file, scratch / "given", plan, given, found)
                evidence = gathered.prepare(plan.request, sources["new"], sources["base"], scratch / "copies")
                return evidence, bundle.exports(evidence) if plan.request.with_export else {}, False
            evidence = _from_exports(scratch, members, plan)
        except (UsageError, NoGpuEvents) as error:
            found.problems.append(f"manifest.json: what it asks for cannot be computed: {error}")
            return None
    if not signed:
        found.unverified.append(
            "exports/: all was computed anew from the redacted exports in the bundle; that they and what was "
            "recorded beside them are true, only the reports or a signature can show; give the reports or --signer"
        )
    return evidence, {name: data for name, data in members.items() if name.startswith("exports/")}, True


def _sources(
    bundle_file: Path, scratch: Path, plan: _Plan, given: Sequence[Path], found: _Found
) -> dict[str, list[Source]]:
    """The runs of each side from the files that have the hashes in the manifest, under the names that they had."""
    by_hash: dict[str, list[Path]] = {}
    for path in given:
        for one in _files_of(path):
            by_hash.setdefault(File.of(one).sha256, []).append(one.absolute())
    _refuse_others(bundle_file, plan, by_hash)
    sides: dict[str, list[Source]] = {"new": [], "base": []}
    for number, run in enumerate(plan.runs):
        places = []
        folders: set[str] = set()
        for place_number, file in enumerate(run.files):
            # Reports of one run may share a name; what the capture recorded lies together.
            report = place_number < run.reports
            place = scratch / str(number) / (str(place_number) if report else "recorded") / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            here = by_hash[file.sha256]
            place.symlink_to(here[0])
            places.append(place)
            folders |= {visible(path.parent.resolve().name) for path in here}
            if all(visible(path.name) != file.name for path in here):
                found.unverified.append(
                    f"the name {file.name}: the file with its hash is called {visible(here[0].name)} here"
                )
        reports = ", ".join(file.name for file in run.files[: run.reports])
        unnumbered = re.sub(r" \(\d+\)$", "", run.name)
        if not {run.name, unnumbered} & {reports, *folders}:
            found.unverified.append(
                f"the name {run.name}: no folder with the files of that run is called so here"
            )
        sides[run.side].append(Source(run.name, tuple(places[: run.reports]), tuple(places[run.reports :])))
    return sides


def _files_of(path: Path) -> list[Path]:
    """The files in a folder, of which a folder that is an export counts as one; else the path itself."""
    if not path.is_dir() or is_export(path):
        return [path]
    return [one for inside in sorted(path.iterdir()) for one in _files_of(inside)]


def _refuse_others(bundle_file: Path, plan: _Plan, by_hash: Mapping[str, Sequence[Path]]) -> None:
    """Refuse to compare with other files than the bundle was made from, and name both."""
    wanted = [(run, file) for run in plan.runs for file in run.files]
    missing = [(run, file) for run, file in wanted if file.sha256 not in by_hash]
    if not missing:
        return
    known = {file.sha256 for _, file in wanted}
    foreign = [
        f"{visible(path.name)} (SHA-256 {digest[:12]}…)"
        for digest, paths in by_hash.items()
        if digest not in known
        for path in paths[:1]
    ]
    lacking = [f"{file.name} of {run.name} (SHA-256 {file.sha256[:12]}…)" for run, file in missing]
    if foreign:
        what = f"{_listed(foreign)} is not what it was made from, and no file given is {_listed(lacking)}"
    else:
        what = f"it was also made from {_listed(lacking)}, which was not given"
    raise EvidenceError(
        what, file=bundle_file, do="give every file that manifest.json lists under runs, or none"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _from_exports(scratch: Path, members: Mapping[str, bytes], plan: _Plan) -> gathered.Evidence:
    """Everything from the redacted exports, under the names and hashes of the reports that they stand for."""
    sides: dict[str, list[Loaded]] = {"new": [], "base": []}
    for number, run in enumerate(plan.runs):
        places = []
        for report, file in enumerate(run.files[: run.reports], 1):
            member = gathered.export_member(run.side, len(sides[run.side]) + 1, report, file.name)
            if member not in members:
                raise EvidenceError(f"holds no {member}", do="give the reports instead")
            place = scratch / str(number) / str(report) / member.rpartition("/")[2]
            place.parent.mkdir(parents=True)
            place.write_bytes(members[member])
            places.append(place)
        source = Source(run.name, tuple(places))
        sides[run.side].append(
            load_one(source, plan.request.reading, stands_for=run.files, kept=run.recorded)
        )
    return gathered.gather(plan.request, sides["new"], sides["base"])


def _against_reports(
    members: Mapping[str, bytes],
    manifest: Mapping[str, Any],
    document: Mapping[str, Any],
    again: Mapping[str, bytes],
    found: _Found,
) -> None:
    """Compare everything with what was computed anew."""
    expected, remade = json.loads(again["evidence.json"]), json.loads(again["manifest.json"])
    others = _other_versions(manifest, document, remade, found)
    # Another version of this tool words differently; its numbers have to be the same.
    wording = "nsysddp" in others
    for key in ("tool", "versions", "files"):
        del remade[key]
    said = {key: value for key, value in manifest.items() if key not in ("tool", "versions", "files")}
    found.problems += [
        f"manifest.json: {difference.text}"
        for difference in differences(remade, said, "")
        if not difference.agrees
    ]
    for one in differences({**expected, "tool": document.get("tool")}, document, "evidence.json"):
        found.values += 1
        if one.agrees:
            continue
        (found.unverified if one.last_digits or (wording and one.words) else found.problems).append(one.text)
    for name in sorted({*again, *members} - {"evidence.json", *_SEALS}):
        if name not in again:
            found.problems.append(f"{name}: does not belong to a bundle of these runs")
        elif name not in members:
            found.problems.append(f"{name}: is missing")
        elif members[name] != again[name]:
            _compare(name, members[name], again[name], others, found)


def _other_versions(
    manifest: Mapping[str, Any], document: Mapping[str, Any], remade: Mapping[str, Any], found: _Found
) -> dict[str, str]:
    """What the bundle says it was made with and is not here: name and its version there."""
    tool, versions = manifest.get("tool"), manifest.get("versions")
    form = isinstance(tool, dict) and set(tool) == {"name", "version"} and tool["name"] == "nsysddp"
    if document.get("tool") != tool or not form or not isinstance(tool, dict):
        found.problems.append("manifest.json and evidence.json do not name the tool alike")
        return {}
    if not isinstance(versions, dict) or {*versions} != {*remade["versions"]}:
        found.problems.append(f"manifest.json: versions are not those of {', '.join(remade['versions'])}")
        return {}
    here = {"nsysddp": nsysddp.__version__, **remade["versions"]}
    there = {"nsysddp": tool["version"], **versions}
    others = {name: str(version) for name, version in there.items() if version != here[name]}
    if others:
        named = ", ".join(f"{name} {version} (here {here[name]})" for name, version in others.items())
        found.unverified.append(f"manifest.json: that it was made with {named}; use these to check it")
    return others


def _compare(name: str, said: bytes, computed: bytes, others: Mapping[str, str], found: _Found) -> None:
    """A member that is not the same bytes as the one computed: wrong, or made by versions that are not here?"""
    kind = name.rpartition(".")[2]
    makers = [maker for maker in ("nsysddp", *_LIBRARIES_OF.get(kind, ())) if maker in others]
    by = ", ".join(f"{maker} {others[maker]}" for maker in makers)
    if kind in ("png", "svg") and makers:
        from nsysddp.render.drawn import data_of

        data = data_of(said, kind)
        if data is not None and data == data_of(computed, kind):
            found.unverified.append(
                f"{name}: drawn from the data that the reports give, but {by} cannot draw it again here"
            )
        elif "nsysddp" in makers:
            found.unverified.append(f"{name}: drawn by {by}, which cannot draw it again here")
        else:
            found.problems.append(f"{name}: drawn from other data than the reports give")
    elif kind not in _LIBRARIES_OF and alike_but_last_digits(said, computed):
        found.unverified.append(f"{name}: the last digits of some numbers are others here")
    elif kind == "parquet" and makers:
        pass  # its content was compared with evidence.json and with its CSV, both of which are compared
    elif makers:
        found.unverified.append(f"{name}: made by {by}, which cannot make it again here")
    else:
        found.problems.append(changed(name, said, computed))
