"""Which groups of ranks communicate, what is each for, and what does it cost?

One row a group (a communicator, or without payloads the ranks that were matched), with the figures of the rank on
which it is exposed longest, since a figure that no rank has helps nobody. Sums are over the steps used: those asked
for that are no warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.names import counted, members_text
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import FLAG, FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import ms
from nsysddp.questions.communicators.groups import IN_NO_GROUP, Groups, figures
from nsysddp.questions.communicators.nccl import NCCL_SAYS, nccl_table
from nsysddp.questions.communicators.pairs import EXCHANGE, PAIR, exchange_table, messages_of, pair_table
from nsysddp.questions.communicators.roles import Role, roles_of
from nsysddp.questions.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from nsysddp.questions.context import Context

_FIGURES = (
    Column("collectives", INT, "communication kernels of that rank"),
    Column("bytes", INT, "bytes of their messages; null where a size is unknown"),
    Column("time_ns", INT, "|its communication in the group|, the sum of the six parts"),
    Column(
        "hidden_transfer_ns",
        INT,
        "transfer under compute; hidden and exposed are null beside whole CUDA graphs",
    ),
    Column("exposed_transfer_ns", INT, "transfer under no compute"),
    Column("hidden_wait_ns", INT, "wait for later ranks under compute"),
    Column("exposed_wait_ns", INT, "wait for later ranks under no compute"),
    Column("hidden_unsplit_ns", INT, "under compute, without a valid match or usable clocks"),
    Column("exposed_unsplit_ns", INT, "under no compute, without a valid match or usable clocks"),
    Column("exposed_ns", INT, "the three exposed parts"),
    Column("busbw_gbps", FLOAT, "bus bytes / transfer of its collectives together, decimal GB/s"),
)

_GROUP = Column("group", INT, "number of the group; null: communication of which the group is not known")

COMMUNICATOR = Table(
    "communicator",
    "one group of ranks, with the figures of the rank on which it is exposed longest, summed over the steps used",
    (
        _GROUP,
        Column(
            "communicator", TEXT, "id in hex; null without payloads, where several of the same ranks are one"
        ),
        Column(
            "role",
            TEXT,
            "data, shard, replicate, tensor, pipeline, expert, context or world; null: not reported",
        ),
        Column("said", TEXT, "names that the job gives it (ranges, marks of annotate); null: none"),
        Column("inferred", TEXT, "role by what it does and who is in it; null: none"),
        Column("is_contradicted", FLAG, "the job names another role than the inferred one"),
        Column("size", INT, "ranks; null if not known"),
        Column("captured", INT, "of these captured"),
        Column("ranks", TEXT, "captured ranks"),
        Column("hosts", INT, "hosts of those"),
        Column("kinds", TEXT, "kinds of its collectives"),
        Column("steps", INT, "steps summed over; null for the whole capture"),
        Column("rank", INT, "the rank of the figures"),
        *_FIGURES,
        Column("exposed_least_ns", INT, "exposed on the rank on which it is exposed shortest"),
        Column("evidence", TEXT, "why the role is this, or what is missing"),
    ),
)

COMMUNICATOR_RANK = Table(
    "communicator_rank",
    "one group on one of its ranks, summed over the steps used",
    (_GROUP, Column("role", TEXT, "role of the group"), Column("rank", INT, "rank"), *_FIGURES),
)

COMMUNICATOR_ROLE = Table(
    "communicator_role",
    "one role, with the figures of the rank on which its groups are exposed longest, summed over the steps used",
    (
        Column("role", TEXT, "role; null: groups without one"),
        Column("groups", INT, "groups"),
        Column("steps", INT, "steps summed over; null for the whole capture"),
        Column("rank", INT, "the rank of the figures"),
        *_FIGURES,
        Column(
            "critical_ns",
            INT,
            "on the critical path of the steps (least of tied paths); null without host calls",
        ),
        Column("path_ns", INT, "length of those paths; null without host calls"),
    ),
)


@dataclass(frozen=True)
class Known:
    """What several questions ask about groups.

    Attributes:
        groups: the groups; their events carry the ``role`` of their group.
        messages: ``pairs.messages_of``.
        roles: role of each group by its number.
    """

    groups: Groups
    messages: pl.DataFrame
    roles: Mapping[int, Role]

    @property
    def role_of(self) -> Mapping[int, str | None]:
        """Name of the role of each group."""
        return {number: role.role for number, role in self.roles.items()}

    @cached_property
    def strips(self) -> Mapping[int, Mapping[str, NDArray[np.int64]]]:
        """What each rank runs in each role: rank to role to its events. Groups without a role stand for themselves.

        Empty where all groups have one role: there is nothing to tell apart.
        """
        named = {
            group.number: self.role_of.get(group.number) or f"group {group.number}"
            for group in self.groups.all
        }
        if len(set(named.values())) < 2:
            return {}
        found: dict[int, dict[str, NDArray[np.int64]]] = {}
        frame = self.groups.everywhere.filter(pl.col("group").is_in(list(named))).with_columns(
            role=pl.col("group").replace_strict(named, return_dtype=pl.String)
        )
        for (rank, role), part in frame.sort("rank", "role", "event").group_by(
            "rank", "role", maintain_order=True
        ):
            found.setdefault(int(rank), {})[str(role)] = part["event"].to_numpy()
        return found


def known_groups(context: Context) -> Known:
    """The groups of a run, what each is for, and who sends what to whom."""
    groups = Groups.of(context)
    messages = messages_of(groups)
    roles = roles_of(groups, messages)
    named = {number: role.role for number, role in roles.items()}
    return Known(replace(groups, events=_with_role(groups.events, named)), messages, roles)


def _with_role(frame: pl.DataFrame, named: Mapping[int, str | None]) -> pl.DataFrame:
    return frame.with_columns(
        role=pl.col("group").replace_strict(named, default=None, return_dtype=pl.String)
    )


def communicators(context: Context) -> Result:
    """The answer (see ``QUESTION``)."""
    known = context.groups
    groups, events = known.groups, known.groups.events
    on_ranks = _with_role(figures(context.trace, events, "group"), known.role_of)
    tables = {
        COMMUNICATOR.name: _communicators(groups, on_ranks, known.roles),
        COMMUNICATOR_ROLE.name: _roles(context, groups, events),
        COMMUNICATOR_RANK.name: COMMUNICATOR_RANK.check(_numbered(on_ranks)),
        NCCL_SAYS.name: nccl_table(groups),
        PAIR.name: pair_table(groups, known.messages),
        EXCHANGE.name: exchange_table(known.messages),
    }
    return Result(
        context.trace,
        tables,
        findings=tuple(_findings(tables, groups.steps)),
        warnings=context.windows.warnings,
        assumptions=context.windows.assumptions,
    )


def _numbered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(group=pl.when(pl.col("group") != IN_NO_GROUP).then("group"))


def _worst(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Of each value the rank that is exposed longest; of equals the one that communicates longest, then the first."""
    order = frame.sort(
        "exposed_ns", "time_ns", "rank", descending=[True, True, False], nulls_last=True, maintain_order=True
    )
    return order.unique(by, keep="first", maintain_order=True)


def _communicators(groups: Groups, on_ranks: pl.DataFrame, roles: Mapping[int, Role]) -> pl.DataFrame:
    kinds = groups.events.group_by("group").agg(pl.col("kind").unique().sort().str.join(", ").alias("kinds"))
    least = on_ranks.group_by("group").agg(exposed_least_ns=pl.col("exposed_ns").min())
    made = (
        _worst(on_ranks, "group")
        .join(_facts(groups, roles), on="group", how="left")
        .join(kinds, on="group")
        .join(least, on="group")
        .with_columns(steps=pl.lit(groups.steps, pl.Int64))
        .sort("exposed_ns", "time_ns", "group", descending=[True, True, False], nulls_last=True)
    )
    return COMMUNICATOR.check(_numbered(made))


def _facts(groups: Groups, roles: Mapping[int, Role]) -> pl.DataFrame:
    """Who is in each group, and the evidence for its role; of what is in no group, why."""
    alone = groups.events.filter(pl.col("group") == IN_NO_GROUP)["match"].unique().sort().to_list()
    why = "; ".join(dict.fromkeys(reason.removeprefix("unmatched:") for reason in alone))
    rows = [
        (
            group.number,
            group.communicator,
            group.size,
            len(group.ranks),
            members_text(group.ranks),
            groups.hosts(group.ranks),
            roles[group.number].evidence,
            roles[group.number].said,
            roles[group.number].inferred,
            roles[group.number].is_contradicted,
        )
        for group in groups.all
    ]
    text, whole = pl.String(), pl.Int64()
    return pl.DataFrame(
        [*rows, (IN_NO_GROUP, None, None, None, None, None, why, None, None, None)],
        schema={
            "group": whole,
            "communicator": text,
            "size": whole,
            "captured": whole,
            "ranks": text,
            "hosts": whole,
            "evidence": text,
            "said": text,
            "inferred": text,
            "is_contradicted": pl.Boolean(),
        },
        orient="row",
    )


def _roles(context: Context, groups: Groups, events: pl.DataFrame) -> pl.DataFrame:
    counts = (
        events.filter(pl.col("group") != IN_NO_GROUP)
        .group_by("role")
        .agg(groups=pl.col("group").n_unique().cast(pl.Int64))
    )
    critical, path = _on_the_path(context, events)
    made = (
        _worst(figures(context.trace, events, "role"), "role")
        .join(counts, on="role", how="left", nulls_equal=True)
        .join(critical, on="role", how="left", nulls_equal=True)
        .with_columns(
            pl.col("groups").fill_null(0),
            critical_ns=pl.lit(None) if path is None else pl.col("critical_ns").fill_null(0),
            path_ns=pl.lit(path, pl.Int64),
            steps=pl.lit(groups.steps, pl.Int64),
        )
        .sort("exposed_ns", "time_ns", "role", descending=[True, True, False], nulls_last=True)
    )
    return COMMUNICATOR_ROLE.check(made)


def _on_the_path(context: Context, events: pl.DataFrame) -> tuple[pl.DataFrame, int | None]:
    """What each role takes of the critical paths of the steps used, and how long these are together.

    Of tied paths of a step the least counts, since what only one of them suffers from saves nothing.
    """
    empty = pl.DataFrame(schema={"role": events.schema["role"], "critical_ns": pl.Int64})
    calls = context.trace.calls
    if calls is None or not calls.height:
        return empty, None
    steps, pieces = context.paths["critical_path_step"], context.paths["critical_path"]
    if context.used_steps:
        steps = steps.filter(pl.col("step_index").is_in(context.used_steps))
        pieces = pieces.filter(pl.col("step_index").is_in(context.used_steps))
    path = int(steps.unique("step_index")["path_ns"].sum())
    own = events.select("role", pl.col("event").cast(pl.Int64))
    on_path = (
        pieces.filter(pl.col("kind").cast(pl.String).is_in(["transfer", "unmatched_communication"]))
        .join(own, on="event")
        .group_by("role", "step_index", "path_rank")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("length"))
    )
    each = steps.select("step_index", "path_rank").join(on_path.select("role").unique(), how="cross")
    made = (
        each.join(on_path, on=["role", "step_index", "path_rank"], how="left", nulls_equal=True)
        .group_by("role", "step_index")
        .agg(pl.col("length").fill_null(0).min())
        .group_by("role")
        .agg(critical_ns=pl.col("length").sum())
    )
    return made, path


def _findings(tables: Mapping[str, pl.DataFrame], steps: int | None) -> Iterator[Finding]:
    """What each role costs, the longest exposed first; then pairs that are slow and exchanges that are unequal."""
    each, span = steps or 1, " a step" if steps else ""
    if not tables[COMMUNICATOR.name].height:
        yield Finding("no_communication", "No rank ran a communication kernel.", value=0, unit="ns")
    for row in tables[COMMUNICATOR_ROLE.name].iter_rows(named=True):
        what = f"{row['role']} ({counted(row['groups'], 'group')})" if row["role"] else _unnamed(row)
        if row["exposed_ns"] is None:
            said = f"{ms(row['time_ns'] / each):.2f} ms{span}, beside whole CUDA graphs"
        else:
            hidden = row["time_ns"] - row["exposed_ns"]
            parts = ", ".join(
                f"{ms(row[f'exposed_{part}_ns'] / each):.2f} {part}"
                for part in ("transfer", "wait", "unsplit")
                if row[f"exposed_{part}_ns"]
            )
            said = (
                f"{ms(row['exposed_ns'] / each):.2f} ms exposed{span}{f' ({parts})' if parts else ''}, "
                f"{ms(hidden / each):.2f} hidden, on rank {row['rank']}"
            )
        if row["critical_ns"] is not None:
            said += f"; {ms(row['critical_ns'] / each):.2f} ms on the critical path"
        yield Finding(
            "communicator_role",
            f"{what}: {said}.",
            rank=row["rank"],
            value=row["exposed_ns"],
            unit="ns",
            rows=({"table": COMMUNICATOR_ROLE.name, "role": row["role"]},),
            severity=row["exposed_ns"] or 0,
        )
    yield from _contradicted(tables[COMMUNICATOR.name])
    yield from _unequal(tables[EXCHANGE.name])


def _contradicted(groups: pl.DataFrame) -> Iterator[Finding]:
    """Groups that the job calls by another role than the one that they look like."""
    named = groups.filter(pl.col("is_contradicted").fill_null(False)).sort("group")
    for row in named.iter_rows(named=True):
        yield Finding(
            "role_contradicted",
            f"Group {row['group']} (ranks {row['ranks']}) is {row['role']} by its name ({row['said']}), but what it "
            f"does looks like {row['inferred']}.",
            value=row["exposed_ns"],
            unit="ns",
            rows=({"table": COMMUNICATOR.name, "group": row["group"]},),
        )


def _unnamed(row: Mapping[str, Any]) -> str:
    return f"role not reported ({counted(row['groups'], 'group')})" if row["groups"] else "group not known"


_UNEQUAL = 1.1
"""From this ratio of the most to the mean on an all-to-all is said to be unequal."""


def _unequal(exchange: pl.DataFrame) -> Iterator[Finding]:
    most = exchange.sort("worst_ratio", "rank", descending=[True, False]).head(1)
    for row in most.filter(pl.col("worst_ratio") >= _UNEQUAL).iter_rows(named=True):
        yield Finding(
            "unequal_exchange",
            f"All-to-alls are unequal: rank {row['rank']} of group {row['group']} receives up to "
            f"{row['worst_ratio']:.2f} times the mean of its group.",
            rank=row["rank"],
            value=row["worst_ratio"],
            unit="ratio",
            rows=({"table": EXCHANGE.name, "group": row["group"], "rank": row["rank"]},),
        )


QUESTION = Question(
    name="communicators",
    ask=(__doc__ or "").partition("\n")[0],
    more="Members, hosts, kinds, bytes, hidden, exposed, wait, transfer and busbw of each group, its role with the "
    "evidence, roles summed, what NCCL says of algorithms and protocols, pairs of ranks that send to each other, and "
    "unequal all-to-alls.",
    tables=(COMMUNICATOR, COMMUNICATOR_ROLE, COMMUNICATOR_RANK, NCCL_SAYS, PAIR, EXCHANGE),
    run=lambda context, _: communicators(context),
    shown=COMMUNICATOR.name,
    reads=frozenset({"launches", "host_calls"}),
    examples=("report.sqlite", "report.sqlite --table pair"),
    findings={
        "communicator_role": "what the groups of one role cost: exposed, hidden, on the critical path",
        "role_contradicted": "the job calls a group by another role than the one that it looks like",
        "unequal_exchange": "a rank receives far more in all-to-alls than its group does in the mean",
        "no_communication": "no rank ran a communication kernel",
    },
)
