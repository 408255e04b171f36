"""What was asked? The one record that a document, a kept result and a bundle keep of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from nsysddp.questions.steps import Selection

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace


@dataclass(frozen=True)
class Request:
    """Everything that was asked and that shapes a number or a sentence.

    Attributes:
        command: of nsysddp, such as ``analyze``.
        question: the question that the tables answer.
        selection: the part of the run.
        step_pattern, phase_patterns: which ranges are steps and phases.
        rules_sha256: hash of the user's kernel rules; None if only the shipped ones decide.
        clock_tolerance_ns: clock residual up to which wait and transfer are told apart.
        options: what else the command was asked, by name.
    """

    command: str
    question: str
    selection: Selection
    step_pattern: str
    phase_patterns: Mapping[str, str]
    rules_sha256: str | None
    clock_tolerance_ns: int
    options: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values, the selection's fields among the others."""
        return {
            "command": self.command,
            "question": self.question,
            **asdict(self.selection),
            "step_pattern": self.step_pattern,
            "phase_patterns": dict(self.phase_patterns),
            "rules_sha256": self.rules_sha256,
            "clock_tolerance_ns": self.clock_tolerance_ns,
            "options": {name: _plain(value) for name, value in self.options.items()},
        }

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Request:
        """What ``as_dict`` wrote.

        Raises:
            ValueError: it is something else.
        """
        wrong = [name for name, kinds in KINDS.items() if type(content.get(name)) not in kinds]
        patterns = content.get("phase_patterns")
        if wrong or set(content) != set(KINDS) or content["per"] not in ("step", "capture"):
            raise ValueError(f"what was asked: {wrong or sorted(content)}")
        if not all(isinstance(text, str) for text in dict(patterns or {}).values()):
            raise ValueError("phase patterns that are no text")
        selection = {field.name: content[field.name] for field in fields(Selection)}
        rest = {name: content[name] for name in KINDS if name not in selection}
        return cls(selection=Selection(**selection), **rest)


def request_of(
    trace: Trace, selection: Selection, command: str, question: str, options: Mapping[str, Any]
) -> Request:
    """What is asked of a run that was read."""
    return Request(
        command=command,
        question=question,
        selection=selection,
        step_pattern=trace.step_pattern,
        phase_patterns=trace.phase_patterns,
        rules_sha256=trace.rules_sha256,
        clock_tolerance_ns=trace.clock_tolerance_ns,
        options=options,
    )


KINDS: dict[str, tuple[type, ...]] = {
    "command": (str,),
    "question": (str,),
    "per": (str,),
    "from_ns": (int, type(None)),
    "to_ns": (int, type(None)),
    "first_step": (int, type(None)),
    "last_step": (int, type(None)),
    "skip_warmup": (int,),
    "step_pattern": (str,),
    "phase_patterns": (dict,),
    "rules_sha256": (str, type(None)),
    "clock_tolerance_ns": (int,),
    "options": (dict,),
}
"""The JSON object of a request: each key with the kinds of its value."""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
