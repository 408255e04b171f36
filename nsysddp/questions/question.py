"""What a question is, and which there are.

A question is one module (or package) of this room that defines ``QUESTION``. Its command, its Python call, the JSON
Schema of its document, its pages in the reference and its row in the README are made from that. The first line of the
module's docstring is the question as it is asked; listing the questions reads these lines and imports none of the
modules.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from nsysddp.model.errors import UsageError
from nsysddp.model.result import Finding
from nsysddp.model.warnings import OF_THE_WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsysddp.model.result import Result
    from nsysddp.model.schema import Table
    from nsysddp.questions.context import Context
    from nsysddp.questions.steps import Selection

Reads = Literal["launches", "host_calls", "shapes", "metrics"]
"""What must be read of a report beside its GPU events and ranges; keywords of ``load``."""


VERBS = {"analysis": "analyze", "diagnosis": "diagnose"}
"""Questions whose commands are verbs; the others are called as their modules."""


def command_of(name: str) -> str:
    """The command that asks the question of this name."""
    return VERBS.get(name, name.replace("_", "-"))


@dataclass(frozen=True)
class Option:
    """One thing that can be asked differently.

    Attributes:
        name: of the keyword in Python; on the command line with hyphens.
        help: one sentence.
        parse: from the text given on the command line to the value; None for a flag.
        default: the value if nothing is given.
        metavar: what stands for the text in the help.
        choices: the texts that are allowed; empty if any is.
        multiple: may it be given several times? The value is then a tuple.
    """

    name: str
    help: str
    parse: Callable[[str], Any] | None = None
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    multiple: bool = False


@dataclass(frozen=True)
class Question:
    """One question about a run.

    Attributes:
        name: of its module.
        ask: the question, one line; the first line of the module's docstring.
        more: what the answer holds, for the help of its command.
        tables: the tables of the answer, in order.
        run: from what is shared and the values of all ``options`` to the answer.
        shown: the table that csv and markdown print if none is named.
        reads: what must have been read for a full answer.
        options: what can be asked differently.
        rankwise: of events that do not communicate it asks no more than the tables of ``questions.rankwise``.
        whole_steps: its windows are steps or the capture, never a cut in time.
        whole_capture: it is always about every step.
        examples: arguments of its command after its name, for the help.
        findings: every code that its findings can have, with its meaning.
        warnings: the same of warnings, beside those of reading (``WARNING_CODES``).
    """

    name: str
    ask: str
    more: str
    tables: tuple[Table, ...]
    run: Callable[[Context, Mapping[str, Any]], Result]
    shown: str
    reads: frozenset[Reads] = frozenset()
    options: tuple[Option, ...] = ()
    rankwise: bool = False
    whole_steps: bool = False
    whole_capture: bool = False
    examples: tuple[str, ...] = ("report.sqlite", "report.sqlite --format json")
    findings: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that asks it."""
        return command_of(self.name)

    def check(self, chosen: Selection) -> None:
        """Refuse a part of the run that the question cannot be about, before anything is read.

        Raises:
            UsageError: the selection cuts time, or chooses steps.
        """
        if (self.whole_steps or self.whole_capture) and (
            chosen.from_ns is not None or chosen.to_ns is not None
        ):
            raise UsageError(
                "this question is about whole steps",
                do="leave out --from and --to"
                + ("" if self.whole_capture else "; choose steps with --steps or --skip-warmup"),
            )
        steps = (chosen.first_step, chosen.last_step) != (None, None) or chosen.skip_warmup
        if self.whole_capture and (steps or chosen.per != "step"):
            raise UsageError(
                "this question is about the whole capture, step by step",
                do="leave out --per, --steps and --skip-warmup",
            )

    def answer(self, context: Context, **options: Any) -> Result:
        """The answer, with what was asked.

        Raises:
            UsageError: there is no such option, or the selection is not one for this question.
        """
        from nsysddp.questions.request import request_of

        unknown = sorted(set(options) - {option.name for option in self.options})
        if unknown:
            known = ", ".join(option.name for option in self.options) or "none"
            raise UsageError(
                f"there is no option {unknown[0]!r} of this question", do=f"its options: {known}"
            )
        self.check(context.selection)
        values = {option.name: option.default for option in self.options} | options
        result = self.run(context, values)
        whole = [warning for warning in context.trace.warnings if warning.code in OF_THE_WHOLE]
        warnings = (*whole, *(warning for warning in result.warnings if warning not in whole))
        request = request_of(context.trace, context.selection, self.command, self.name, values)
        found = result.findings
        if not any(finding.code == "report_missing" for finding in found):
            missing = (warning for warning in warnings if warning.code == "report_missing")
            found = (*(Finding.of_warning(warning, warning.code) for warning in missing), *found)
        return replace(result, findings=found, warnings=warnings, request=request.as_dict())


_DEFINES = re.compile(rb"^QUESTION\b", re.MULTILINE)
_ASKS = re.compile(rb'\A\s*[rR]?"""(.+)')


@cache
def asked() -> dict[str, str]:
    """Every question: its name (of its module) and the first line of its module's docstring; imports none of them.

    The sources are searched and not parsed: every start of the command does this, and it takes a few ms.
    """
    from nsysddp import questions

    found = {}
    for finder, name, _ in pkgutil.iter_modules(questions.__path__):
        spec = finder.find_spec(f"{questions.__name__}.{name}", None)
        read: Callable[[str], bytes] | None = getattr(spec.loader if spec else None, "get_data", None)
        source = read(spec.origin) if spec and spec.origin and read else b""
        if _DEFINES.search(source):
            asks = _ASKS.match(source)
            found[name] = asks[1].decode("utf-8").rstrip().removesuffix('"""') if asks else ""
    return found


def question(name: str) -> Question:
    """The question of this name; hyphens and underscores are alike.

    Raises:
        UsageError: there is none.
    """
    verbs = {verb: key for key, verb in VERBS.items()}
    key = verbs.get(name, name.replace("-", "_"))
    if key not in asked():
        from difflib import get_close_matches

        close = get_close_matches(key, asked(), n=1)
        raise UsageError(
            f"there is no question {name!r}",
            do=f"did you mean {close[0]!r}?" if close else f"ask one of {', '.join(sorted(asked()))}",
        )
    found = import_module(f"nsysddp.questions.{key}").QUESTION
    assert isinstance(found, Question)
    return found
