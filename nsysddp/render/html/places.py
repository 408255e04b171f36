"""Where in the timeline and in the tables is a finding seen?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.render.html.tables import BUCKETS, LONG, NOUNS

if TYPE_CHECKING:
    from nsysddp.model.result import Finding, Result
    from nsysddp.questions import Context


_PLACE_BY = {
    "overlap_on_every_rank": "hidden_ns",
    "overlap_on_some_ranks": "hidden_ns",
    "overlap_unsplit": "hidden_ns",
    "overlap_is_waiting": "wait_ns",
    "exposed_is_waiting": "wait_ns",
    "no_overlap": "exposed_ns",
    "late_rank": "wait_ns",
    "bound_by_communication": "exposed_ns",
    "communication_on_compute_stream": "exposed_ns",
}
"""Findings about communication are shown at the collective that has most of this."""


class Places:
    """Where in the timeline and in the tables a finding is seen."""

    def __init__(
        self,
        result: Result,
        context: Context,
        path: pl.DataFrame | None,
        *,
        kept: pl.Series,
        buckets: bool,
        origin_ns: int,
    ) -> None:
        self._buckets = buckets
        self._path = path
        self._origin_ns = origin_ns
        self._collective = result["collective"][kept.to_list()].with_row_index("row")
        self._windows = {(window.rank, window.step): window for window in context.every_window.windows}
        self._steps = {
            name: index for index, name in context.attribution.steps.select("step_index", "name").iter_rows()
        }
        self._ranks = set(result["overlap"]["rank"].to_list())

    def finding(self, finding: Finding, name: str) -> dict[str, Any]:
        """The finding as the page shows it."""
        rows = [self._row(row) for row in finding.rows[:2]]
        place = self._place(finding)
        return {
            "id": name,
            "code": finding.code,
            "message": finding.message,
            "place": None if place is None else json.dumps(place, separators=(",", ":")),
            "rows": [row for row in rows if row],
        }

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        table, rank, step = row.get("table"), row.get("rank"), row.get("step")
        known = {table[0]: table for table in (*LONG, *([BUCKETS] if self._buckets else []))}
        if table in ("overlap", "rank") and step is None:
            if rank not in self._ranks:
                return {"anchor": "ranks", "label": "ranks", "filter": None}
            return {"anchor": f"rank-{rank}", "label": f"rank {rank}", "filter": None}
        if table in known:
            keys = {key: value for key, value in row.items() if key in known[table][2] and value is not None}
            where = " ".join(str(value) for key, value in keys.items() if key in ("step",))
            who = "" if rank is None else f" of rank {rank}"
            label = f"{NOUNS[str(table)]}{who}{f', {where}' if where else ''}"
            chosen = json.dumps({**keys, "table": table}, separators=(",", ":"))
            return {"anchor": f"table-of-{str(table).replace('_', '-')}", "label": label, "filter": chosen}
        return None

    def _place(self, finding: Finding) -> dict[str, Any] | None:
        """The collective, the piece of the critical path, the step or the rank that shows it best."""
        return self._worst_collective(finding) or self._longest_piece(finding) or self._window(finding)

    def _worst_collective(self, finding: Finding) -> dict[str, Any] | None:
        by = _PLACE_BY.get(finding.code)
        if by is None:
            return None
        part = self._collective.filter(pl.col(by).is_not_null())
        # Who waits for a late rank is another one.
        whose = "last_rank" if finding.code == "late_rank" else "rank"
        for column, value in ((whose, finding.rank), ("step", finding.step)):
            if value is not None:
                part = part.filter(pl.col(column) == value)
        streams = [row["stream"] for row in finding.rows if "stream" in row]
        if streams:
            part = part.filter(pl.col("stream").is_in(streams))
        if part.is_empty():
            return None
        return {"collective": part.sort(by, "row", descending=[True, False])["row"][0]}

    def _longest_piece(self, finding: Finding) -> dict[str, Any] | None:
        row = next((row for row in finding.rows if row.get("table") == "critical_path_cause"), None)
        if row is None or self._path is None:
            return None
        # Compared as they are: of millions of pieces no text is made.
        part = self._path.filter(
            pl.col(column).is_null() if row[column] is None else pl.col(column) == row[column]
            for column in ("kind", "rank", "phase", "name")
            if column in row
        )
        if part.is_empty():
            return None
        longest = part.sort(pl.col("start_ns") - pl.col("end_ns"), "start_ns").row(0, named=True)
        return self._span(longest["rank"], longest["start_ns"], longest["end_ns"], air=2)

    def _window(self, finding: Finding) -> dict[str, Any] | None:
        step = finding.step or next((row["step"] for row in finding.rows if row.get("step")), None)
        if step in self._steps:
            return {"step": self._steps[step], **({} if finding.rank is None else {"rank": finding.rank})}
        mine = [one for (owner, _), one in self._windows.items() if owner == finding.rank]
        if not mine:
            return None
        return self._span(
            finding.rank, min(window.start for window in mine), max(window.end for window in mine), air=0
        )

    def _span(self, rank: int | None, start_ns: int, end_ns: int, *, air: float) -> dict[str, Any]:
        return {"rank": rank, "from": start_ns - self._origin_ns, "to": end_ns - self._origin_ns, "air": air}
