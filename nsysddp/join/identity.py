"""Who is who: which (process, device) is which rank, on which host and physical GPU.

Definitions, "Who". A rank number comes from the first source that is there: a mark that our annotation wrote, RANK
in the captured environment, the file name, else it is inferred from host, physical GPU and pid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nsysddp.model.errors import RankConflict
from nsysddp.model.markers import RankMark
from nsysddp.model.names import natural

_FILE_RANK = re.compile(r"(?i)(?<![a-z])rank[._-]?(\d{1,9})(?!\d)")


@dataclass(frozen=True)
class Lane:
    """One (process, device) that ran GPU work, before it has a rank number.

    Attributes:
        report: index of its report.
        report_name: base name, for messages.
        process: row of the processes frame.
        pid: process id; None in reduced exports.
        device: CUDA ordinal.
        host_key: what identifies the host; None if the export does not say.
        first_ns, last_ns: span of its events on the common axis.
        is_anchored: does the report name its session start, so that the span is comparable with others?
        gpu_key: order of the physical GPU (bus location); None if unknown.
        gpu_uuid: the physical GPU; None if unknown.
    """

    report: int
    report_name: str
    process: int
    pid: int | None
    device: int
    host_key: str | None
    first_ns: int
    last_ns: int
    is_anchored: bool
    gpu_key: str | None = None
    gpu_uuid: str | None = None
    rank: int | None = None
    source: str = "inferred"
    world_size: int | None = None


def rank_in_name(name: str) -> int | None:
    """The rank that a file name tells (``report_rank12.sqlite``); None if it tells none."""
    found = _FILE_RANK.findall(name)
    return int(found[-1]) if found else None


_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables that tell the rank and the size of the job: torchrun's first, then of launchers the nearest to the process
(mpirun inside an allocation of SLURM leaves the number of the batch task in SLURM_PROCID)."""


def rank_claims(variables: Mapping[str, int]) -> list[tuple[str, int, int | None]]:
    """Every variable that tells a rank, the one that counts first: its name, the rank, the size of the job if told."""
    return [(name, variables[name], variables.get(size)) for name, size in _LAUNCHERS if name in variables]


def host_aliases(keys: Sequence[str | None]) -> list[str]:
    """An alias for the host of each report, in natural order of their names; a report without one is its own."""
    named = sorted({key for key in keys if key is not None}, key=natural)
    unnamed = [number for number, key in enumerate(keys) if key is None]
    place: dict[object, int] = {host: number for number, host in enumerate([*named, *unnamed], 1)}
    return [f"host-{place[number if key is None else key]}" for number, key in enumerate(keys)]


def assign_ranks(
    lanes: Sequence[Lane],
    marks: Mapping[int, Sequence[RankMark]],
    environment: Mapping[int, Mapping[str, int]],
) -> list[Lane]:
    """Give every lane its rank number and say where it comes from.

    Args:
        lanes: all lanes of all reports, in report order.
        marks: process row to the rank marks seen in it.
        environment: report index to the variables of its environment that tell ranks and sizes.

    Returns:
        The lanes with ``rank``, ``source`` and ``world_size``, ordered by rank.

    Raises:
        RankConflict: two lanes claim one rank, or reports are repeated captures of one rank.
    """
    per_report: dict[int, list[Lane]] = {}
    for lane in lanes:
        per_report.setdefault(lane.report, []).append(lane)
    known = [_known(lane, per_report[lane.report], marks, environment) for lane in lanes]
    _refuse_repeated(known)
    _refuse_conflicts(known)
    taken = {lane.rank for lane in known if lane.rank is not None}
    free = (number for number in range(len(known) + len(taken) + 1) if number not in taken)
    inferred = sorted((lane for lane in known if lane.rank is None), key=_natural_place)
    numbers = {(lane.process, lane.device): next(free) for lane in inferred}
    done = [
        lane if lane.rank is not None else replace(lane, rank=numbers[lane.process, lane.device])
        for lane in known
    ]
    return sorted(done, key=lambda lane: lane.rank if lane.rank is not None else 0)


def _known(
    lane: Lane,
    siblings: Sequence[Lane],
    marks: Mapping[int, Sequence[RankMark]],
    environment: Mapping[int, Mapping[str, int]],
) -> Lane:
    variables = environment.get(lane.report, {})
    world = variables.get("WORLD_SIZE")
    own_lanes = [other for other in siblings if other.process == lane.process]
    for mark in sorted(marks.get(lane.process, ()), key=lambda mark: mark.device != lane.device):
        if mark.device == lane.device or len(own_lanes) == 1:
            return replace(lane, rank=mark.rank, source="marker", world_size=mark.world_size)
    claims = rank_claims(variables) if len(siblings) == 1 else []
    if claims:
        _, rank, size = claims[0]
        return replace(lane, rank=rank, source="environment", world_size=size)
    named = rank_in_name(lane.report_name)
    if len(siblings) == 1 and named is not None:
        return replace(lane, rank=named, source="file_name", world_size=world)
    return replace(lane, world_size=world)


def _natural_place(lane: Lane) -> tuple[object, ...]:
    return (
        lane.host_key is None,
        natural(lane.host_key) if lane.host_key is not None else lane.report,
        lane.gpu_key is None,
        lane.gpu_key or "",
        lane.pid if lane.pid is not None else -1,
        lane.device,
        lane.report,
    )


def _refuse_repeated(lanes: Sequence[Lane]) -> None:
    """Reports of one process and device are windows of one rank, not ranks, unless something tells them apart.

    That is another host, another GPU, the claim of another rank, or work at the same time, which only reports that name
    their session start can prove.
    """
    seen: dict[tuple[int, int], list[Lane]] = {}
    for lane in lanes:
        if lane.pid is None:
            continue
        others = seen.setdefault((lane.pid, lane.device), [])
        for other in others:
            if other.report == lane.report or any(
                None not in pair and pair[0] != pair[1]
                for pair in (
                    (other.host_key, lane.host_key),
                    (other.gpu_uuid, lane.gpu_uuid),
                    (other.rank, lane.rank),
                )
            ):
                continue
            comparable = other.is_anchored and lane.is_anchored
            disjoint = other.last_ns <= lane.first_ns or lane.last_ns <= other.first_ns
            same = (other.first_ns, other.last_ns) == (lane.first_ns, lane.last_ns)
            names = f"{other.report_name} and {lane.report_name}"
            what = f"(pid {lane.pid}, device {lane.device}"
            if comparable and same and lane.host_key is not None is not other.host_key:
                raise RankConflict(
                    f"{names} are copies of one report {what}, the same events)", do="leave one out"
                )
            if disjoint or not comparable:
                raise RankConflict(
                    f"{names} are repeated captures of one rank {what}), not two ranks",
                    do="analyse them one at a time, or compare them with `nsysddp compare`; if they are two ranks, "
                    "name the files rank0, rank1 ...",
                )
        others.append(lane)


def _refuse_conflicts(lanes: Sequence[Lane]) -> None:
    claims: dict[int, Lane] = {}
    for lane in lanes:
        if lane.rank is None:
            continue
        other = claims.setdefault(lane.rank, lane)
        if other is not lane:
            raise RankConflict(
                f"{other.report_name} and {lane.report_name} both claim rank {lane.rank} "
                f"(by {other.source} and {lane.source})",
                do="leave one out, or rename the file that is wrong",
            )
