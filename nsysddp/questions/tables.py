"""Every table that leaves this package, from where it is declared: with its question."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from nsysddp.questions.compare.tables import TABLES as OF_COMPARISONS
from nsysddp.questions.question import asked, question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysddp.model.schema import Table


@cache
def every_table() -> Mapping[str, Table]:
    """Every table of every question and of comparisons, by name."""
    of_questions = {table.name: table for name in asked() for table in question(name).tables}
    return {**of_questions, **OF_COMPARISONS}
