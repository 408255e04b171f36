"""Whoever forges a bundle knows all of this: every hash and the seal are made to fit again. Nothing forged "holds"."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import require
from test_evidence import ONE, TWELVE, Tool, make, members_of, resealed, tool

from nsysddp.evidence import archive, bundle, gathered, signature
from nsysddp.evidence.verify import verify
from nsysddp.model.errors import EvidenceError, NsysddpError
from nsysddp.render import drawn

__all__ = ["tool"]  # a fixture


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A bundle of the bundled captures, with redacted exports."""
    return members_of(make(tmp_path_factory.mktemp("evidence") / "claims.zip", "--with-export"))


@pytest.fixture(autouse=True)
def computed_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from the same input is computed once for all forgeries.

    That is: the runs of one request, the members of a bundle, a picture of the same drawn data, a packed member.
    """
    prepare, build, picture, packed = gathered.prepare, bundle.build, bundle._picture, archive._packed

    def prepared(request: Any, new: Any, base: Any, scratch: Path, *_where: Any) -> Any:
        key = repr(
            (
                request,
                [[(one.name, [path.name for path in one.files]) for one in side] for side in (new, base)],
            )
        )
        if key not in _PREPARED:
            _PREPARED[key] = prepare(request, new, base, tmp_path_factory.mktemp("copies"))
        return _PREPARED[key]

    def built(evidence: Any, copies: Mapping[str, bytes]) -> Any:
        key = (id(evidence), *sorted((name, hash(data)) for name, data in copies.items()))
        if key not in _BUILT or evidence not in _PREPARED.values():
            _BUILT[key] = build(evidence, copies)
        return _BUILT[key]

    def drawn_once(figure: Any, kind: str, data: str) -> bytes:
        if (kind, data) not in _PICTURES:
            _PICTURES[kind, data] = picture(figure, kind, data)
        return _PICTURES[kind, data]

    def packed_once(content: bytes) -> bytes:
        if content not in _PACKED:
            _PACKED[content] = packed(content)
        return _PACKED[content]

    monkeypatch.setattr(gathered, "prepare", prepared)
    monkeypatch.setattr(bundle, "build", built)
    monkeypatch.setattr(bundle, "_picture", drawn_once)
    monkeypatch.setattr(archive, "_packed", packed_once)


_PREPARED: dict[str, Any] = {}
_BUILT: dict[Any, Any] = {}
_PICTURES: dict[tuple[str, str], bytes] = {}
_PACKED: dict[bytes, bytes] = {}


def checked(members: dict[str, bytes], out: Path, given: list[Path] | None = None) -> Any:
    return verify(resealed(members, out), [TWELVE, ONE] if given is None else given)


def test_the_bundle_itself_is_verified(members: dict[str, bytes], tmp_path: Path) -> None:
    outcome = checked(members, tmp_path / "same.zip")
    assert outcome.verified, (outcome.problems, outcome.unverified)


def test_no_member_can_be_forged(members: dict[str, bytes], tmp_path: Path) -> None:
    """Each in turn: a byte more, a byte other, emptied, another member in its place, left out."""
    for name in sorted(set(members) - {"manifest.json"}):
        data = members[name]
        others = {
            "more": data + b" ",
            "changed": data[: len(data) // 2]
            + bytes([data[len(data) // 2] ^ 1])
            + data[len(data) // 2 + 1 :],
            "emptied": b"",
            "another": members["evidence.md"] if name != "evidence.md" else b"# fine",
        }
        for kind, forged in others.items():
            if forged == data:
                continue
            try:
                outcome = checked({**members, name: forged}, tmp_path / "forged.zip")
            except EvidenceError:
                continue
            assert outcome.problems, (name, kind)
            assert any(name in problem or "form of one" in problem for problem in outcome.problems), (
                name,
                kind,
            )
        left_out = {member: content for member, content in members.items() if member != name}
        if name != "evidence.json":
            assert checked(left_out, tmp_path / "forged.zip").problems, name


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in a JSON document with the way to it, containers too."""
    yield place, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*place, key))


def other_than(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str):
        return value[:-1] + ("1" if value[-1:] != "1" else "2")
    return value + 1


def at(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


@pytest.mark.parametrize("name", ["manifest.json", "evidence.json"])
def test_no_value_or_key_of_the_json_can_be_forged(
    members: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    """Every value changed, every key left out, and one too many in every object; of long tables, the first rows."""
    document = json.loads(members[name])
    tried = 0
    for place, value in list(places(document)):
        if place[:1] == ("files",) and len(place) > 0:
            continue  # the list of hashes is written anew with the seal; see below
        if any(isinstance(step, int) and step > 1 for step in place) or (
            name == "evidence.json" and ("tables" in place or "rows" in place) and tried % 23
        ):
            tried += 1
            continue
        tried += 1
        forgeries: list[Callable[[Any], None]] = []
        if isinstance(value, dict):
            forgeries.append(lambda made, place=place: at(made, place).update(better=True))
        elif not isinstance(value, list):
            forgeries.append(
                lambda made, place=place, value=value: at(made, place[:-1]).__setitem__(
                    place[-1], other_than(value)
                )
            )
        if place:
            forgeries.append(lambda made, place=place: at(made, place[:-1]).__delitem__(place[-1]))
        for forge in forgeries:
            made = json.loads(members[name])
            forge(made)
            try:
                outcome = checked({**members, name: bundle.json_bytes(made)}, tmp_path / "forged.zip")
            except NsysddpError:
                continue
            assert not outcome.verified, place
            if place[:1] not in (("versions",), ("tool",)):
                assert outcome.problems, (place, outcome.unverified)
    assert tried > 50


def test_sizes_and_unknown_keys_in_the_list_of_files_are_checked(
    members: dict[str, bytes], tmp_path: Path
) -> None:
    for forge in (
        lambda files: files["evidence.md"].update(bytes=files["evidence.md"]["bytes"] + 1),
        lambda files: files["evidence.md"].update(checked=True),
        lambda files: files.update({"better.md": {"bytes": 1, "sha256": "0"}}),
        lambda files: files.pop("report.html"),
    ):
        manifest = json.loads(members["manifest.json"])
        forge(manifest["files"])
        out = tmp_path / "forged.zip"
        out.write_bytes(archive.write({**members, "manifest.json": bundle.json_bytes(manifest)}))
        assert verify(out, [TWELVE, ONE]).problems


def test_a_key_that_is_there_twice_is_found(members: dict[str, bytes], tmp_path: Path) -> None:
    twice = members["evidence.json"].replace(
        b'{\n "schema_version"', b'{\n "request": "x",\n "schema_version"', 1
    )
    assert json.loads(twice) == json.loads(members["evidence.json"])
    outcome = checked({**members, "evidence.json": twice}, tmp_path / "forged.zip")
    assert any("evidence.json: is not written as" in problem for problem in outcome.problems)


MAKERS = {
    "figures/timeline.png": ("matplotlib", "pillow", "numpy", "python"),
    "figures/comparison.svg": ("matplotlib", "numpy", "python"),
}
"""Versions that cannot be told from a forgery; of any other, the forgery itself is found."""


@pytest.mark.parametrize(
    "library", ["nsysddp", "matplotlib", "pillow", "jinja2", "polars", "python", "numpy", "sqlite"]
)
@pytest.mark.parametrize(
    "name",
    ["evidence.md", "report.html", "figures/timeline.png", "figures/comparison.svg", "tables/overlap.csv",
     "tables/overlap.parquet"],
)  # fmt: skip
def test_a_forged_version_excuses_nothing(
    members: dict[str, bytes], tmp_path: Path, tool: Tool, name: str, library: str
) -> None:
    """A version that is not the one here, and a page, picture or table that says something else."""
    manifest, document = json.loads(members["manifest.json"]), json.loads(members["evidence.json"])
    if library == "nsysddp":
        manifest["tool"]["version"] = document["tool"]["version"] = "99.0"
    else:
        manifest["versions"][library] = "99.0"
    made = {
        **members,
        "manifest.json": bundle.json_bytes(manifest),
        "evidence.json": bundle.json_bytes(document),
        name: better(name, members[name]),
    }
    out = resealed(made, tmp_path / "forged.zip")
    outcome = verify(out, [TWELVE, ONE])
    assert not outcome.verified
    assert any(f"made with {library} 99.0 (here " in one for one in outcome.unverified)
    assert any(name in one for one in (*outcome.problems, *outcome.unverified))
    code, said, _ = tool("verify", out, TWELVE, ONE)
    assert code == (1 if outcome.problems else 7)
    assert said.splitlines()[-1].startswith("DOES NOT HOLD" if outcome.problems else "NOT VERIFIED")
    if library not in ("nsysddp", *MAKERS.get(name, ())):
        assert any(name in one for one in outcome.problems)


def better(name: str, data: bytes) -> bytes:
    if name.endswith(".png"):
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        picture = Image.open(io.BytesIO(data))
        chunks = PngInfo()
        chunks.add_text(drawn.KEY, picture.info[drawn.KEY], zip=True)
        made = io.BytesIO()
        Image.new("RGB", picture.size, "green").save(made, "PNG", pnginfo=chunks)
        return made.getvalue()
    if name.endswith(".parquet"):
        frame = pl.read_parquet(io.BytesIO(data)).with_columns(pl.col("hidden_transfer_ns") * 10)
        packed = io.BytesIO()
        frame.write_parquet(packed)
        return packed.getvalue()
    old, new = {
        "evidence.md": (b"0.34 to 0.35 ms", b"3.40 to 3.50 ms"),
        "report.html": (b"</body>", b"<script>document.title='fine'</script></body>"),
        "figures/comparison.svg": (b"</svg>", b"<text>faster</text></svg>"),
        "tables/overlap.csv": (b"337118", b"337119"),
    }[name]
    assert old in data
    return data.replace(old, new)


def test_a_picture_of_another_library_is_compared_by_its_data(
    members: dict[str, bytes], tmp_path: Path
) -> None:
    manifest = json.loads(members["manifest.json"])
    manifest["versions"]["matplotlib"] = "99.0"
    for name in ("figures/timeline.png", "figures/timeline.svg"):
        made = {**members, "manifest.json": bundle.json_bytes(manifest)}
        made[name] = better(name, members[name]) if name.endswith("png") else members[name] + b"<!-- -->"
        outcome = checked(made, tmp_path / "forged.zip")
        assert outcome.holds, outcome.problems
        assert any(
            one.startswith(f"{name}: drawn from the data that the reports give") for one in outcome.unverified
        )
        made[name] = members[name.replace("timeline", "comparison")]
        outcome = checked(made, tmp_path / "forged.zip")
        assert f"{name}: drawn from other data than the reports give" in outcome.problems


def test_the_data_of_a_picture_are_in_it(members: dict[str, bytes]) -> None:
    for name in ("timeline", "decomposition", "comparison"):
        data = {drawn.data_of(members[f"figures/{name}.{kind}"], kind) for kind in ("png", "svg")}
        assert len(data) == 1
        content = json.loads(data.pop() or "")
        assert any(axes["bars"] or axes["shapes"] or axes["lines"] for axes in content["axes"])
    assert drawn.data_of(b"no picture", "png") is None
    assert drawn.data_of(b"<svg", "svg") is None


# --- signatures ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two pairs of keys, mine and theirs."""
    require("ssh-keygen", shutil.which("ssh-keygen") is not None)
    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "theirs"):
        words = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "someone@somewhere",
            "-f",
            str(folder / name),
        ]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return folder


def test_a_bundle_rebuilt_from_altered_exports_is_refused_without_the_reports(
    keys: Path, members: dict[str, bytes], tool: Tool, tmp_path: Path
) -> None:
    signed = make(tmp_path / "signed.zip", "--with-export", "--sign", keys / "mine")
    assert {**members, signature.MEMBER: b""}.keys() == members_of(signed).keys()
    outcome = verify(signed, signer=keys / "mine.pub")
    assert outcome.verified, (outcome.problems, outcome.unverified)
    assert any(note.startswith("signed by SHA256:") for note in outcome.notes)
    assert b"someone@somewhere" not in signed.read_bytes()
    # With the reports and without a signer, who signed it stays open.
    assert [one.partition(":")[0] for one in verify(signed, [TWELVE, ONE]).unverified] == [signature.MEMBER]
    assert verify(signed, [TWELVE, ONE], signer=keys / "mine.pub").verified

    altered = tmp_path / "altered"
    altered.mkdir()
    for name in ("exports/new/1/1/delay_cap4.sqlite", "exports/base/1/1/delay_cap64.sqlite"):
        copy = altered / name.rpartition("/")[2]
        copy.write_bytes(members[name])
        with sqlite3.connect(copy) as opened:
            opened.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end - 1000 WHERE end - start > 5000")
        opened.close()
    rebuilt = tmp_path / "rebuilt.zip"
    words = (
        "evidence",
        altered / "delay_cap4.sqlite",
        "--compare",
        altered / "delay_cap64.sqlite",
        "--with-export",
    )
    for more in ((), ("--sign", keys / "theirs")):
        code, _, err = tool(*words, *more, "-o", rebuilt, "--force")
        assert code == 0, err
        assert verify(rebuilt).holds, "by itself nothing shows it"
        assert tool("verify", rebuilt)[0] == 7, "and that is said"
        code, out, _ = tool("verify", rebuilt, "--signer", keys / "mine.pub")
        assert code == 1
        assert "mine.pub" in out
    taken = {**members_of(rebuilt), signature.MEMBER: members_of(signed)[signature.MEMBER]}
    rebuilt.write_bytes(archive.write(taken))
    assert (
        f"{signature.MEMBER}: is no signature by mine.pub over this bundle"
        in verify(rebuilt, signer=keys / "mine.pub").problems
    )


def test_a_signature_that_is_none_is_refused(keys: Path, members: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "forged.zip"
    for signed in (b"", b"-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----\n", b"\0" * 1000):
        out.write_bytes(archive.write({**members, signature.MEMBER: signed}))
        assert verify(out, [TWELVE, ONE], signer=keys / "mine.pub").problems
        assert not verify(out, [TWELVE, ONE]).verified
    other_use = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", str(keys / "mine"), "-n", "git"],
        input=members["manifest.json"], capture_output=True, check=True,
    ).stdout  # fmt: skip
    out.write_bytes(archive.write({**members, signature.MEMBER: other_use}))
    assert verify(out, [TWELVE, ONE], signer=keys / "mine.pub").problems, "made for something else"


def test_what_is_no_key_is_one_clear_line(
    keys: Path, members: dict[str, bytes], tool: Tool, tmp_path: Path
) -> None:
    out = tmp_path / "e.zip"
    code, _, err = tool("evidence", TWELVE, "--sign", tmp_path / "none", "-o", out)
    assert (code, "none: the key cannot be read" in err, err.count("\n")) == (2, True, 1)
    (tmp_path / "text").write_text("no key\n")
    code, _, err = tool("evidence", TWELVE, "--sign", tmp_path / "text", "-o", out)
    assert (code, "text: ssh-keygen cannot sign with it" in err) == (2, True)
    assert str(tmp_path) not in err
    assert not out.exists()
    signed = resealed(members, tmp_path / "s.zip")
    signed.write_bytes(archive.write({**members_of(signed), signature.MEMBER: b"x"}))
    for given in ("text", "none"):
        code, _, err = tool("verify", signed, "--signer", tmp_path / given)
        assert (code, given in err, ".pub" in err) == (2, True, True)
    assert "is no public key" in tool("verify", signed, "--signer", keys / "mine")[2]
