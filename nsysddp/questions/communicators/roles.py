"""What is each group of ranks for: data, tensor, pipeline or expert parallelism, sharding, replicas, or the whole job?

From what a group does (kinds, phases, sizes), from who is in it, and above both from what the job calls it. Ranks run
one program, so groups that do the same and share no rank are one *family*; a family that covers all ranks splits the
job into parts.
Evidence is a sentence; where it is thin there is no role, and the sentence says what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.questions.communicators.groups import IN_NO_GROUP
from nsysddp.questions.communicators.pairs import activations_of, edges_of
from nsysddp.questions.communicators.said import Said, said_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from nsysddp.questions.communicators.groups import Group, Groups

_SMALL_BYTES = 1024
"""Reductions up to this are norms and losses (definitions, "Tail")."""

_MANY_FORWARD = 4
"""Without sizes: reductions in a forward from which on they are no metrics."""

_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_IDLE_KINDS = ("broadcast", "barrier", "unknown")
"""Kinds that any group may run beside what it is for."""

_PASSES = ("forward", "backward")

_OF_DATA = ("shard", "replicate")
"""Roles that a name of data parallelism can mean more exactly."""

_OF_ONE_GROUP = ({"all_reduce"}, {"all_gather", "reduce_scatter"}, {"all_to_all"})
"""Kinds that one communicator alone runs; together they can be several that share their ranks."""


@dataclass(frozen=True)
class Use:
    """What a group runs of one kind in one phase.

    Attributes:
        kind, phase: of the collectives; phase is None where it is not known.
        calls: of one rank.
        sizes: message sizes and how often; empty where one is unknown.
        in_bucket: were they launched inside annotated buckets?
    """

    kind: str
    phase: str | None
    calls: int
    sizes: dict[int, int]
    in_bucket: bool

    @property
    def is_small(self) -> bool:
        """Norms and losses only, by their sizes."""
        return bool(self.sizes) and max(self.sizes) <= _SMALL_BYTES


@dataclass
class Family:
    """Groups that do the same and share no rank.

    Attributes:
        size: ranks of each, as captured.
        groups: the groups.
        uses: what they do, apart from small reductions.
        small: whether they do small reductions.
        covers: every captured rank is in one of them.
    """

    size: int
    groups: list[Group]
    uses: list[Use]
    small: bool
    covers: bool = False
    ranks: set[int] = field(default_factory=set)

    def of(self, kinds: Iterable[str], phase: str | None = "*") -> list[Use]:
        """Uses of these kinds in this phase."""
        return [use for use in self.uses if use.kind in kinds and phase in ("*", use.phase)]

    @property
    def is_named(self) -> bool:
        """Payloads say that this is one communicator."""
        return all(group.communicator is not None for group in self.groups)

    def is_orthogonal(self, other: Family) -> bool:
        """Every group of this one meets every group of the other in one rank at most, and both cover the ranks."""
        if not (self.covers and other.covers) or self.size < 2 or other.size < 2:
            return False
        owner = {rank: group.number for group in other.groups for rank in group.ranks}
        return all(len({owner[rank] for rank in group.ranks}) == len(group.ranks) for group in self.groups)


@dataclass(frozen=True)
class _Told:
    """What a capture tells beside what each family does.

    Attributes:
        world: ranks of the job.
        phases: it marks both forward and backward, so what is in neither was launched outside both.
        flows: messages (``pairs.messages_of``), which tell where a pipeline leads.
        after_messages: groups whose every large reduction begins after the last message of its rank in its step.
    """

    world: int
    phases: bool
    flows: pl.DataFrame
    after_messages: frozenset[int]


@dataclass(frozen=True)
class Role:
    """What a group is for (None: not reported), and why that is so or why it is not known.

    Attributes:
        role: what it is for; what the job says stands above what it does.
        evidence: a sentence.
        said: names that the job gives it; None if it gives none.
        inferred: the role by what it does and who is in it.
    """

    role: str | None
    evidence: str
    said: str | None = None
    inferred: str | None = None

    @property
    def is_contradicted(self) -> bool:
        """The job says another role than the one that the group looks like."""
        return self.inferred is not None and self.role != self.inferred


def roles_of(groups: Groups, flows: pl.DataFrame) -> dict[int, Role]:
    """The role of each group by its number.

    Args:
        groups: the groups.
        flows: messages (``pairs.messages_of``), which tell where a pipeline leads.
    """
    ranks = set(groups.trace.rank_numbers)
    declared = groups.trace.ranks["world_size"].max()
    world = max(len(ranks), int(declared) if isinstance(declared, int) else 0)
    families = _families(groups, ranks)
    told = _Told(world, groups.marks_passes, flows, _after_messages(groups.events))
    found: dict[int, Role] = {}
    for family in families:
        role = _role(family, families, told)
        found |= {group.number: role for group in family.groups}
    idle = Role(None, "nothing of it in the steps used")
    said = said_of(groups)
    return {
        group.number: _with_said(found.get(group.number, idle), said.get(group.number, Said()))
        for group in groups.all
    }


def _with_said(looks: Role, said: Said) -> Role:
    """What the job says, above what the group looks like; a difference between the two is told."""
    if not said.names:
        return Role(looks.role, looks.evidence, None, looks.role)
    names = ", ".join(f'"{name}"' for name in said.names)
    words = f"said by the job: {names}"
    role = stated = next(iter(said.roles)) if len(said.roles) == 1 else None
    if stated == "data" and looks.role in _OF_DATA:
        role, words = looks.role, f"{words}; more exactly {looks.role}: {looks.evidence}"
    elif stated is None or looks.role == stated:
        role, words = looks.role, f"{words}; {looks.evidence}"
    elif looks.role is None:
        words = f"{words}; what it does tells no role ({looks.evidence})"
    else:
        words = f"{words}; but it looks like {looks.role}: {looks.evidence}"
    return Role(role, words, names, looks.role)


# --- families --------------------------------------------------------------------------------------------------------


def _families(groups: Groups, ranks: set[int]) -> list[Family]:
    uses, has_small = _uses(groups)
    made: list[tuple[tuple[object, ...], Family]] = []
    for group in sorted(groups.all, key=_shape):
        mine = uses.get(group.number, [])
        if not mine and group.number not in has_small:
            continue
        key = (len(group.ranks), frozenset((use.kind, use.phase) for use in mine))
        fitting = (
            family for its_key, family in made if its_key == key and family.ranks.isdisjoint(group.ranks)
        )
        family = next(fitting, None)
        if family is None:
            family = Family(len(group.ranks), [], mine, group.number in has_small)
            made.append((key, family))
        family.groups.append(group)
        family.ranks |= set(group.ranks)
    for _, family in made:
        whole = all(group.size == len(group.ranks) for group in family.groups)
        family.covers = whole and family.ranks == ranks
    return [family for _, family in made]


def _shape(group: Group) -> tuple[object, ...]:
    """Groups of one partition are usually moved copies of each other."""
    first = group.ranks[0]
    return (len(group.ranks), [rank - first for rank in group.ranks], first)


def _uses(groups: Groups) -> tuple[dict[int, list[Use]], set[int]]:
    """What each group does beside small reductions, and which groups run some."""
    trace = groups.trace
    in_bucket = trace.ranges.filter(pl.col("text").str.starts_with("nsysddp:bucket=")).height > 0
    events = groups.events.filter(pl.col("group") != IN_NO_GROUP)
    counted = (
        events.group_by("group", "kind", "phase", "bytes", "rank")
        .len()
        .group_by("group", "kind", "phase", "bytes")
        .agg(pl.col("len").max())
        .sort("group", "kind", "phase", "bytes", nulls_last=True)
    )
    made: dict[int, list[Use]] = {}
    small: set[int] = set()
    for (group, kind, phase), part in counted.group_by("group", "kind", "phase", maintain_order=True):
        sizes = {} if part["bytes"].null_count() else dict(part.select("bytes", "len").iter_rows())
        # The annotation names buckets of gradients: what is reduced in backward then is one of them.
        marked = in_bucket and kind in _REDUCTIONS and phase == "backward"
        use = Use(str(kind), phase if phase is None else str(phase), int(part["len"].sum()), sizes, marked)
        if use.kind in _REDUCTIONS and use.is_small:
            small.add(int(group))
        else:
            made.setdefault(int(group), []).append(use)
    return made, small


# --- the role of a family --------------------------------------------------------------------------------------------


def _role(family: Family, families: Sequence[Family], told: _Told) -> Role:
    kinds = {use.kind for use in family.uses} - set(_IDLE_KINDS)
    if kinds == {"send_recv"}:
        return _pipeline(family, told)
    if not family.is_named and kinds and kinds not in _OF_ONE_GROUP:
        return Role(
            None,
            f"{_listed(kinds)}: without payloads several groups can look like one (--include-blobs=true)",
        )
    if "all_to_all" in kinds:
        return _expert(family, kinds)
    if not kinds:
        return _world(family, told.world)
    others = [other for other in families if other is not family]
    if not told.phases and all(use.phase not in _PASSES for use in family.uses):
        return _without_phases(family, others, told)
    forward = [use for use in family.of(_REDUCTIONS, "forward") if not use.in_bucket]
    if forward:
        return _tensor(family, forward)
    return _gradients(family, others)


def _pipeline(family: Family, told: _Told) -> Role:
    """Activations go one way in forward, and never come back in it; so do the first messages of a step."""
    numbers = [group.number for group in family.groups]
    every = told.flows.filter((pl.col("kind") == "send_recv") & pl.col("peer").is_not_null())
    if not every.filter(pl.col("group").is_in(numbers)).height:
        return Role(None, "sends and receives, but not who sends to whom (export with --include-blobs=true)")
    edges = edges_of(activations_of(told.flows, phases=told.phases))
    in_forward = told.phases or bool(every.filter(pl.col("phase") == "forward").height)
    when = "in forward they" if in_forward else "the first of every step"
    if not edges:
        return Role(None, "sends and receives, but none in a forward range that would tell which way they go")
    if _goes_in_a_circle(edges):
        return Role(
            None, "sends and receives in a circle: stages that are visited twice, or a ring of sequence parts"
        )
    return Role("pipeline", f"sends and receives only; {when} go one way and never in a circle")


def _goes_in_a_circle(edges: set[tuple[int, int]]) -> bool:
    left = set(edges)
    while left:
        senders = {sender for sender, _ in left}
        kept = {edge for edge in left if edge[1] in senders}
        if kept == left:
            return True
        left = kept
    return False


def _expert(family: Family, kinds: set[str]) -> Role:
    uses = family.of(("all_to_all",))
    sizes = {size for use in uses for size in use.sizes}
    also = "" if kinds == {"all_to_all"} else f", beside {_listed(kinds - {'all_to_all'})}"
    if len(sizes) > 1:
        return Role("expert", f"all-to-alls of {len(sizes)} sizes{also}")
    shares = "equal shares" if sizes else "sizes are not recorded"
    return Role("expert", f"all-to-alls{also} ({shares}: parts of sequences are exchanged alike)")


def _world(family: Family, world: int) -> Role:
    if family.size == world and family.covers:
        return Role("world", "all ranks; nothing but small reductions, broadcasts and barriers")
    return Role(None, "nothing but small reductions, broadcasts and barriers")


def _tensor(family: Family, forward: Sequence[Use]) -> Role:
    """Activations are reduced in forward, and their gradients, of the same sizes, in backward."""
    backward = family.of(_REDUCTIONS, "backward")
    names = _listed({use.kind for use in forward})
    if all(use.sizes for use in (*forward, *backward)):
        seen = {size for use in forward for size in use.sizes}
        moved = sum(size * count for use in backward for size, count in use.sizes.items())
        same = sum(size * count for use in backward for size, count in use.sizes.items() if size in seen)
        if backward and 2 * same >= moved:
            return Role("tensor", f"{names} in forward, and in backward of the same sizes")
        rest = ", in backward mostly of other sizes" if backward else ", none in backward"
        return Role(None, f"{names} in forward{rest}")
    calls, back = (sum(use.calls for use in uses) for uses in (forward, backward))
    if calls >= _MANY_FORWARD and back in (calls, 2 * calls):
        return Role("tensor", f"{calls} x {names} in forward and {back} in backward (sizes are not recorded)")
    return Role(None, f"{names} in forward and backward; sizes would tell of what (--include-blobs=true)")


def _gradients(family: Family, others: Sequence[Family]) -> Role:
    """What is reduced after forward are gradients: scattered, or over copies of the model."""
    scattered, gathered = family.of(("reduce_scatter",)), family.of(("all_gather",))
    if scattered and gathered:
        where = _where({use.phase for use in gathered})
        when = _where({use.phase for use in scattered})
        return Role("shard", f"gathers {where}, reduce-scatter {when}, nothing reduced in forward")
    reduced = family.of(("all_reduce", "reduce", "reduce_scatter"))
    if not reduced:
        return Role(None, f"only {_listed({use.kind for use in family.uses})}")
    known = any(use.phase == "backward" or use.sizes for use in reduced)
    if not known:
        return Role(None, "reduced after backward, of unknown size: gradients, or a norm")
    if not family.covers:
        return Role(
            None, "reduced in or after backward, but the groups alike do not hold every rank of the job"
        )
    across = [other for other in others if family.is_orthogonal(other)]
    when = "in or after backward" if any(use.phase == "backward" for use in reduced) else _where({None})
    if any(map(_shards, across)):
        return Role("replicate", f"reduced {when}, one rank of every shard group")
    crossing = " orthogonal to groups that reduce in forward;" if any(map(_reduces_forward, across)) else ""
    said = "annotated buckets" if any(use.in_bucket for use in reduced) else f"reduced {when}"
    return Role("data", f"{said}, nothing reduced in forward;{crossing} the groups alike hold every rank")


def _shards(family: Family) -> bool:
    scatters = bool(family.of(("reduce_scatter",)) and family.of(("all_gather",)))
    return scatters and not _reduces_forward(family)


def _reduces_forward(family: Family) -> bool:
    return bool(family.of(_REDUCTIONS, "forward"))


def _where(phases: Collection[str | None]) -> str:
    """In words: what is in no phase of a capture that marks both passes was launched outside them."""
    named = {phase for phase in phases if phase}
    inside = [f"in {_listed(named)}"] if named else []
    return " and ".join([*inside, *(["outside forward and backward"] if None in phases else [])])


def _without_phases(family: Family, others: Sequence[Family], told: _Told) -> Role:
    """Without forward and backward little is unmistakable: scattered parts reduced again, and the end of a pipeline."""
    shards = _scattered_parts(family)
    for other in others:
        if not family.is_orthogonal(other):
            continue
        if shards and shards <= _reduced_sizes(other):
            return Role("shard", "what it scatters is reduced again, in the same sizes, by groups across it")
        if _scattered_parts(other) and _scattered_parts(other) <= _reduced_sizes(family):
            return Role("replicate", "reduces what groups across it have scattered, in the same sizes")
    piped = any(family.is_orthogonal(other) and other.of(("send_recv",)) for other in others)
    if piped and {group.number for group in family.groups} <= told.after_messages:
        return Role(
            "data", "reduced after the last message of every step, by groups orthogonal to those that send"
        )
    return Role(None, "no forward or backward range is known (--phase-pattern)")


def _after_messages(events: pl.DataFrame) -> frozenset[int]:
    """Groups whose every large reduction begins after the last message of its rank in its step."""
    last = (
        events.filter(pl.col("kind") == "send_recv").group_by("rank", "step").agg(last=pl.col("end_ns").max())
    )
    large = pl.col("bytes").is_null() | (pl.col("bytes") > _SMALL_BYTES)
    reduced = events.filter(pl.col("kind").is_in(_REDUCTIONS) & large)
    after = (
        reduced.join(last, on=["rank", "step"], how="left")
        .group_by("group")
        .agg((pl.col("start_ns") >= pl.col("last")).fill_null(value=False).all().alias("after"))
        .filter("after")
    )
    return frozenset(after["group"].to_list())


def _scattered_parts(family: Family) -> set[int]:
    """Sizes of the parts that a reduce-scatter leaves each rank; empty if it does not also gather."""
    if not family.of(("all_gather",)):
        return set()
    return {size // family.size for use in family.of(("reduce_scatter",)) for size in use.sizes}


def _reduced_sizes(family: Family) -> set[int]:
    return {size for use in family.of(("all_reduce",)) for size in use.sizes}


def _listed(words: Iterable[str]) -> str:
    ordered = [word.replace("_", "-") for word in sorted(words)]
    return " and ".join(filter(None, (", ".join(ordered[:-1]), ordered[-1]))) if ordered else "nothing"
