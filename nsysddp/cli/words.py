"""Options of which one takes several values, and the names that options had before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click


class Worded(click.Command):
    """A command that also knows how its options were called before, and options with several values.

    Args:
        many: options that take every value up to the next option (``--against a b``).
        old: name that an option had to the one that it has; the old one works and is not shown.
    """

    def __init__(
        self, *args: Any, many: Sequence[str] = (), old: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.many = tuple(many)
        self.old = dict(old or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say in click's words what was said in others."""
        words = spread(self.many, _renamed(self.old, args))
        try:
            return super().parse_args(ctx, [*words])
        except click.MissingParameter as error:
            taking = next((option for option in self.many if option in words), None)
            if taking is None or not isinstance(error.param, click.Argument):
                raise
            raise click.UsageError(
                f"{error.format_message()} {taking} takes every value up to the next option: what it is not "
                "for comes first.",
                ctx,
            ) from None


def _renamed(old: Mapping[str, str], args: Sequence[str]) -> list[str]:
    """The words with every option under the name that it has now, also in ``--option=value``."""
    renamed: list[str] = []
    for place, word in enumerate(args):
        if word == "--":
            return [*renamed, *args[place:]]
        name, equals, value = word.partition("=")
        if name in old:
            renamed += [old[name], *([value] if equals else [])]
        else:
            renamed.append(word)
    return renamed


def spread(options: Sequence[str], args: Sequence[str]) -> list[str]:
    """``--against a b --x`` as ``--against a --against b --x``, as click wants it."""
    spelled: list[str] = []
    taking: str | None = None
    for place, word in enumerate(args):
        if word in options:
            taking = word
            following = args[place + 1 : place + 2]
            if not following or following[0].startswith("-"):
                spelled.append(word)  # click says that a value is missing
        elif taking is not None and not word.startswith("-"):
            spelled += [taking, word]
        else:
            taking = None
            spelled.append(word)
    return spelled


def file_option(what: str, *, required: bool = True) -> Callable[[Any], Any]:
    """``-o FILE``: the one file that a command writes."""
    return click.option(
        "-o",
        "--out",
        required=required,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=what,
    )
