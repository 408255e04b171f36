"""Which runs is a new one checked against? Named baselines: one side of a comparison, kept whole under a name.

What is kept is what ``questions.compare`` needs of each run, so that a comparison with a baseline gives the numbers
that one with its reports would give. Deleting a kept run takes nothing from a baseline.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import undefer

import nsysddp
from nsysddp.model.errors import EvidenceError
from nsysddp.questions.compare.run import Run
from nsysddp.store import models
from nsysddp.store.connection import exclusive, transaction
from nsysddp.store.database import printable_name


@dataclass(frozen=True)
class Baseline:
    """One baseline.

    Attributes:
        name: its name.
        created_at: when it was set, UTC.
        tool_version: the nsysddp that analysed its runs.
        reading: how they were read, as plain JSON values.
        reports: SHA-256 of every report that they were read from.
        runs: the repeats.
    """

    name: str
    created_at: datetime
    tool_version: str
    reading: Mapping[str, Any]
    reports: tuple[str, ...]
    runs: tuple[Run, ...]

    def as_dict(self) -> dict[str, Any]:
        """What it is, without its samples, as plain JSON values."""
        return {
            "name": self.name,
            "created_at": self.created_at.isoformat(timespec="seconds"),
            "tool_version": self.tool_version,
            "reading": dict(self.reading),
            "reports": list(self.reports),
            "runs": [
                {"name": run.name, "ranks": run.ranks, "steps": steps_of(run), "facts": dict(run.facts)}
                for run in self.runs
            ],
        }


def steps_of(run: Run) -> int:
    """Steady steps of a run: of the rank that has most."""
    return max((len(steps) for steps in run.windows.values()), default=0)


def set_baseline(
    name: str,
    runs: Sequence[Run],
    *,
    reading: Mapping[str, Any],
    reports: Sequence[str],
    url: str | None = None,
) -> bool:
    """Keep these runs under a name, in place of what it stood for before.

    Args:
        name: 1 to 100 printable characters.
        runs: the repeats, at least one.
        reading: how they were read, as plain JSON values.
        reports: SHA-256 of the reports that they were read from.
        url: database (``connection.resolve_url``); made if it is not there.

    Returns:
        Whether there was a baseline of this name.

    Raises:
        UsageError: the name cannot be one. EvidenceError: the database cannot take it.
    """
    import zstandard

    content = json.dumps(
        {"reading": dict(reading), "reports": list(reports), "runs": [_plain(run) for run in runs]},
        separators=(",", ":"),
    ).encode()
    row = models.Baseline(
        name=printable_name(name, "baseline's name"),
        created_at=datetime.now(timezone.utc),
        tool_version=nsysddp.__version__,
        content_sha256=hashlib.sha256(content).hexdigest(),
        content_zstd=zstandard.compress(content, level=9),
    )
    with transaction(url, write=True, create=True) as session:
        # Two who set one name: the second waits, and then replaces what the first one set.
        exclusive(session.connection(), int(hashlib.sha256(row.name.encode()).hexdigest()[:15], 16))
        before = session.get(models.Baseline, row.name)
        session.merge(row)
        return before is not None


def baselines(*, url: str | None = None) -> list[Baseline]:
    """Every baseline, in order of name."""
    query = select(models.Baseline).order_by(models.Baseline.name)
    with transaction(url) as session:
        return [
            _baseline(row) for row in session.scalars(query.options(undefer(models.Baseline.content_zstd)))
        ]


def load_baseline(name: str, *, url: str | None = None) -> Baseline:
    """The baseline of this name.

    Raises:
        EvidenceError: there is none, or its stored bytes no longer give its hash.
    """
    with transaction(url) as session:
        return _baseline(_find(session, name))


def delete_baseline(name: str, *, url: str | None = None) -> None:
    """Forget a baseline; runs that are kept stay.

    Raises:
        EvidenceError: there is none of this name.
    """
    with transaction(url, write=True) as session:
        session.delete(_find(session, name))


def _find(session: Any, name: str) -> models.Baseline:
    query = select(models.Baseline).where(models.Baseline.name == name.strip())
    row = session.scalar(query.options(undefer(models.Baseline.content_zstd)))
    if row is None:
        raise EvidenceError(f"there is no baseline {name[:100]!r}", do="see nsysddp baseline list")
    assert isinstance(row, models.Baseline)
    return row


def _baseline(row: models.Baseline) -> Baseline:
    import zstandard

    try:
        content = zstandard.decompress(row.content_zstd)
        if hashlib.sha256(content).hexdigest() != row.content_sha256:
            raise ValueError
    except (zstandard.ZstdError, ValueError):
        raise EvidenceError(
            f"baseline {row.name!r} was changed after it was set", do="set it again from its reports"
        ) from None
    read = json.loads(content)
    return Baseline(
        name=row.name,
        created_at=row.created_at,
        tool_version=row.tool_version,
        reading=read["reading"],
        reports=tuple(read["reports"]),
        runs=tuple(_run(run) for run in read["runs"]),
    )


def _plain(run: Run) -> dict[str, Any]:
    """A run as plain JSON values; a float comes back to the last digit."""
    return {
        "name": run.name,
        "samples": [[metric, rank, steps.tolist()] for (metric, rank), steps in run.samples.items()],
        "unknown": [[metric, rank, why] for (metric, rank), why in run.unknown.items()],
        "windows": [[rank, [dict(step) for step in steps]] for rank, steps in run.windows.items()],
        "paths": [dict(step) for step in run.paths],
        "facts": dict(run.facts),
        "recorded": run.recorded,
    }


def _run(content: Mapping[str, Any]) -> Run:
    return Run(
        name=content["name"],
        samples={(metric, rank): np.asarray(steps, np.float64) for metric, rank, steps in content["samples"]},
        unknown={(metric, rank): why for metric, rank, why in content["unknown"]},
        windows=dict(content["windows"]),
        paths=content["paths"],
        facts=content["facts"],
        recorded=content["recorded"],
    )
