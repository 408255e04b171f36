"""Which groups or pairs of ranks transfer slower than those that do the same?

Only like is compared with like: groups of one role, of as many hosts, whose ranks play the same part (other groups join
them rank by rank), in the same collective of the same step; pairs between the same two stages of a pipeline. Of a job
with one group nothing tells which of its links is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.questions.stragglers.kinds import Late, find_late

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsysddp.questions.communicators import Known
    from nsysddp.questions.communicators.groups import Group

LEAST = 0.1
"""Transfers that take less than this much longer are of no account."""

_LARGE_BYTES = 1 << 20
"""Smaller messages tell the latency, not the link."""

_ALIKE = ("data", "shard", "replicate", "tensor", "expert", "context")
"""Roles whose groups join ranks that play the same part."""


@dataclass(frozen=True)
class SlowLink:
    """One group or pair that transfers slower than those that do the same.

    Attributes:
        ranks: the ranks of the group, or sender and receiver.
        is_pair: one direction between two ranks.
        late: in what way; its lateness is the share by which transfers take longer.
        steps: index of the steps of ``late``.
        like: how many others it was compared with.
    """

    ranks: tuple[int, ...]
    is_pair: bool
    late: Late
    steps: NDArray[np.int64]
    like: int


def slow_links(known: Known) -> list[SlowLink]:
    """All slow groups and pairs."""
    return [*_slow_groups(known), *_slow_pairs(known)]


def _slow_groups(known: Known) -> list[SlowLink]:
    groups, found = known.groups, []
    events = groups.events.filter(
        (pl.col("shortest_ns") > 0) & (pl.col("bytes").fill_null(_LARGE_BYTES) >= _LARGE_BYTES),
        pl.col("step") >= 0,
    )
    once = (
        events.sort("start_ns")
        .unique("collective_id", keep="first", maintain_order=True)
        .with_columns(nth=pl.int_range(pl.len()).over("group", "step", "kind", "bytes"))
        .select("group", "step", "kind", "bytes", "nth", "shortest_ns")
    )
    for members in _comparable(known):
        numbers = [group.number for group in members]
        mine = once.filter(pl.col("group").is_in(numbers))
        for row, late, steps in _late_rows(mine, "group", numbers):
            found.append(SlowLink(members[row].ranks, False, late, steps, len(members) - 1))
    return found


def _comparable(known: Known) -> list[list[Group]]:
    """Groups that do the same, each list at least two.

    Two groups do the same if their i-th ranks are in one group of an equal part.
    """
    role_of, groups = known.role_of, known.groups
    joined: dict[int, set[int]] = {}
    for group in groups.all:
        if role_of[group.number] in _ALIKE:
            for rank in group.ranks:
                joined.setdefault(rank, set()).add(group.number)
    classes: dict[tuple[object, ...], list[list[Group]]] = {}
    for group in groups.all:
        role = role_of[group.number]
        if role not in _ALIKE:
            continue
        key = (role, len(group.ranks), groups.hosts(group.ranks))
        for other in classes.setdefault(key, []):
            first = other[0]
            if first.number != group.number and all(
                joined[a] & joined[b] for a, b in zip(first.ranks, group.ranks, strict=True)
            ):
                other.append(group)
                break
        else:
            classes[key].append([group])
    return [members for lists in classes.values() for members in lists if len(members) > 1]


def _slow_pairs(known: Known) -> list[SlowLink]:
    messages = known.messages.filter(
        pl.col("sends")
        & (pl.col("peers") == 1)
        & pl.col("peer").is_not_null()
        & (pl.col("shortest_ns") > 0)
        & (pl.col("bytes") >= _LARGE_BYTES)
        & (pl.col("step") >= 0)
    ).with_columns(pair=pl.struct("rank", "peer").rank("dense").cast(pl.Int64))
    part = {
        rank: group.number
        for group in known.groups.all
        if known.role_of[group.number] in ("data", "shard", "replicate")
        for rank in group.ranks
    }
    host = known.groups.host_of
    found = []
    rows = messages.select("pair", "rank", "peer").unique("pair", maintain_order=True)
    classes: dict[tuple[object, ...], list[tuple[int, int, int]]] = {}
    for pair, sender, receiver in rows.iter_rows():
        if sender in part and receiver in part:
            key = (part[sender], part[receiver], host[sender] == host[receiver])
            classes.setdefault(key, []).append((pair, sender, receiver))
    once = messages.with_columns(nth=pl.int_range(pl.len()).over("pair", "step", "kind", "bytes"))
    for members in classes.values():
        if len(members) < 2:
            continue
        numbers = [pair for pair, _, _ in members]
        mine = once.filter(pl.col("pair").is_in(numbers))
        for row, late, steps in _late_rows(mine, "pair", numbers):
            found.append(SlowLink(members[row][1:], True, late, steps, len(members) - 1))
    return found


def _late_rows(
    transfers: pl.DataFrame, by: str, numbers: Sequence[int]
) -> list[tuple[int, Late, NDArray[np.int64]]]:
    """Which of these take longer for the same transfers, step by step: row, in what way, and the steps."""
    place = ["step", "kind", "bytes", "nth"]
    whole = transfers.filter(pl.len().over(place) == len(numbers))
    if not whole.height:
        return []
    ratio = (
        whole.with_columns(beyond=pl.col("shortest_ns") / pl.col("shortest_ns").median().over(place) - 1)
        .group_by(by, "step")
        .agg(pl.col("beyond").median())
    )
    steps = ratio["step"].unique().sort().to_numpy()
    matrix = np.full((len(numbers), steps.size), np.nan)
    at = {number: row for row, number in enumerate(numbers)}
    row = [at[number] for number in ratio[by].to_list()]
    matrix[row, np.searchsorted(steps, ratio["step"].to_numpy())] = ratio["beyond"].to_numpy()
    if len(numbers) == 2:  # the median of two lies between them
        matrix = matrix - matrix[::-1]
    return [(late.row, late, steps) for late in find_late(matrix, LEAST)]
