"""Which nsys is there, and can it do what a capture needs?"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nsysddp.capture.failures import Failure

NEWEST_TESTED = (2026, 2)
"""Newest release whose exports were seen; a newer one is used as long as it knows the options asked for."""

_USUAL_PLACES = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-x64/nsys",
    "usr/local/cuda*/bin/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
)


@dataclass(frozen=True)
class Nsys:
    """An nsys program: its path, version (``2025.3.1.90-...``) and the long options that it knows."""

    path: str
    version: str
    profile_options: frozenset[str]
    export_options: frozenset[str]

    @property
    def release(self) -> tuple[int, int]:
        """Year and release of the year, by which versions are ordered."""
        year, release = self.version.split(".")[:2]
        return int(year), int(release)

    @property
    def exports_blobs(self) -> bool:
        """Can the export hold NVTX payloads (message sizes and communicators of NCCL)?"""
        return "--include-blobs" in self.export_options

    def require(self, argv: Iterable[str]) -> None:
        """Does it know every long option of this ``nsys profile`` command?

        Raises:
            Failure: it lacks one; said is whether it's older or newer than the releases that were tested.
        """
        asked = {word.partition("=")[0] for word in argv if word.startswith("--")}
        if lacking := sorted(asked - self.profile_options):
            age = "new" if self.release > NEWEST_TESTED else "old"
            raise Failure(
                f"nsys_too_{age}",
                f"nsys {self.version} is too {age}: it does not know {', '.join(lacking)}",
                do="name another one with --nsys PATH (2023.4 to 2026.2 were tested)",
            )


def find_nsys(path: str | None, *, root: Path = Path("/")) -> str:
    """Where is nsys: at ``path``, on PATH, or where NVIDIA's installers put it?

    Raises:
        Failure: nowhere.
    """
    if path is not None:
        found = shutil.which(path)
        if found is None:
            raise Failure(
                "nsys_missing", f"--nsys {path} is not a program", do="give the path of nsys itself"
            )
        return found
    usual = (str(place) for pattern in _USUAL_PLACES for place in sorted(root.glob(pattern), reverse=True))
    found = shutil.which("nsys") or next(usual, None)
    if found is None:
        raise Failure(
            "nsys_missing",
            "nsys is neither on PATH nor where its installers put it",
            do="install Nsight Systems, or name it with --nsys PATH",
        )
    return found


def inspect_nsys(path: str) -> Nsys:
    """What is this nsys?

    Raises:
        Failure: it does not run, or what it prints is not Nsight Systems' version.
    """
    version = re.search(r"version (\d{4}\.\d+[\w.-]*)", _output(path, "--version"))
    if version is None:
        raise Failure(
            "nsys_missing",
            f"{path} does not say which Nsight Systems it is",
            do="name another with --nsys PATH",
        )
    return Nsys(path, version[1], _options(path, "profile"), _options(path, "export"))


def _options(path: str, command: str) -> frozenset[str]:
    """The long options listed at the start of a line of its help; ``--nvtx-domain-[include|exclude]`` is cut."""
    listed = re.findall(r"^\s*(?:-\w,\s*)?(--[a-z][\w-]*)", _output(path, command, "--help"), re.MULTILINE)
    return frozenset(listed)


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(
            "nsys_missing", f"{argv[0]} does not run: {error}", do="name another with --nsys PATH"
        ) from error
    return done.stdout + done.stderr
