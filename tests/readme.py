"""Write the parts of README.md that are made from the code: ``python tests/readme.py`` (also `make readme`)."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def generated() -> dict[str, str]:
    """Section name to its text."""
    from nsysddp.cli import EXIT_CODES, cli
    from nsysddp.model.schema import TABLES
    from nsysddp.model.warnings import WARNING_CODES
    from nsysddp.questions import ANALYSES
    from nsysddp.questions.findings import CODES

    context = cli.make_context("nsysddp", ["doctor"], resilient_parsing=True)
    commands = "\n".join(
        f"| `{name}` | {(cli.get_command(context, name).get_short_help_str(110)).rstrip('.')} |"  # type: ignore[union-attr]
        for name in cli.list_commands(context)
    )
    questions = {analysis.table: analysis for analysis in ANALYSES}
    tables = []
    for name, table in TABLES.items():
        columns = "\n".join(f"| `{c.name}` | {c.dtype} | {_cell(c.meaning)} |" for c in table.columns)
        tables.append(
            f"<details><summary><b>{name}</b>: {questions[name].question} One row: {table.row}.</summary>\n\n"
            f"Needs: {questions[name].needs}.\n\n| column | type | meaning |\n|---|---|---|\n{columns}\n\n</details>"
        )
    return {
        "commands": commands,
        "tables": "\n".join(tables),
        "findings": _list(CODES),
        "warnings": _list(WARNING_CODES),
        "exit codes": _list({str(code): meaning for code, meaning in EXIT_CODES.items()}),
    }


def _list(meanings: dict[str, str]) -> str:
    rows = "\n".join(f"| `{code}` | {_cell(meaning)} |" for code, meaning in meanings.items())
    return f"| code | meaning |\n|---|---|\n{rows}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def filled(text: str) -> str:
    """The README with its generated parts replaced."""
    for name, part in generated().items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        assert marks.search(text), f"README.md has no place for {name}"
        text = marks.sub(lambda found, part=part: f"{found[1]}{part}\n{found[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
