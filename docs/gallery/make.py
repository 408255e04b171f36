"""Make the pages of the gallery from captures and simulated jobs: ``python docs/gallery/make.py --out DIR [NAME...]``.

Each page shows one pathology: the picture, the first lines of output, the number that gives it away, the fix, and the
same run after the fix. What a page claims is checked while it is made: the cause that must come first, and that the
step got shorter. Where a claim does not hold, nothing is written and the script ends with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from pathologies import PATHOLOGIES, Pathology, Side  # noqa: E402

from nsysddp.evidence.sources import Loaded, Reading, load_one, repeats  # noqa: E402
from nsysddp.questions import Selection, context_of  # noqa: E402
from nsysddp.questions.compare import Comparison, compare  # noqa: E402
from nsysddp.questions.question import question  # noqa: E402
from nsysddp.render.compare.tables import print_comparison  # noqa: E402
from nsysddp.render.diagnosis import print_diagnosis  # noqa: E402
from nsysddp.render.screen import console  # noqa: E402
from nsysddp.render.text import print_result  # noqa: E402
from nsysddp.render.timeline import draw_timeline, save  # noqa: E402
from tests.simulation.export import write  # noqa: E402
from tests.simulation.jobs import simulate  # noqa: E402

SEEDS = 3
"""Runs of a simulated job on each side: the least for a verdict."""

DRAWN = 2
"""Steps in a picture."""

CAPTURES = ROOT / "tests" / "fixtures" / "h200"
WIDTH = "92"


class Untrue(Exception):
    """What a page claims does not hold."""


def page(one: Pathology, folder: Path) -> str:
    """The page of one pathology; its picture goes into the folder.

    Raises:
        Untrue: the cause is not the first, or the step is not shorter after the fix.
    """
    with tempfile.TemporaryDirectory() as scratch:
        before, after = (
            _runs(side, Path(scratch), name) for name, side in (("before", one.before), ("after", one.after))
        )
        comparison = compare([run.run for run in before], [run.run for run in after], allow_unlike=True)
        shown = _shown(one, before[0])
        _check(one, before[0], comparison)
        save(_timeline(before[0]), folder / f"{one.name}.svg")
        given = " ".join(f"before-{number + 1}.sqlite" for number in range(len(before)))
        return _text(
            one,
            screen=f"$ nsysddp {one.command} before-1.sqlite\n{shown}",
            number=one.number(before[0], after[0]),
            proof=f"$ nsysddp compare {given.replace('before', 'after')} --against {given}\n{_verdict(comparison)}",
        )


def _runs(side: Side, scratch: Path, name: str) -> list[Loaded]:
    """The runs of one side: of a capture one, of a simulated job several that differ in their seed."""
    paths = []
    if isinstance(side, str):
        paths.append(scratch / f"{name}-1.sqlite")
        paths[0].write_bytes(gzip.decompress((CAPTURES / f"{side}.sqlite.gz").read_bytes()))
    else:
        for seed in range(SEEDS):
            (written,) = write(simulate(replace(side, seed=seed)), scratch, per_rank=False, payload=True)
            paths.append(written.rename(scratch / f"{name}-{seed + 1}.sqlite"))
    return [load_one(source, Reading()) for source in repeats(paths)]


def _timeline(run: Loaded) -> Figure:
    """A picture of two steps, the first of several left out."""
    steps = run.context.attribution.steps.height
    first = 1 if steps > DRAWN else 0
    return draw_timeline(context_of(run.context.trace, Selection(first_step=first, last_step=first + DRAWN)))


def _check(one: Pathology, run: Loaded, comparison: Comparison) -> None:
    causes = question("diagnosis").answer(run.context)["diagnosis"]["cause"].to_list()
    if one.cause is not None and causes[:1] != [one.cause]:
        raise Untrue(f"{one.name}: the first cause is {causes[:1]}, not {one.cause}")
    found = {finding.code for finding in run.result.findings}
    if one.finding is not None and one.finding not in found:
        raise Untrue(f"{one.name}: no finding {one.finding} among {sorted(found)}")
    decided = comparison.headline
    if one.shortens and not decided["difference"] < 0:
        raise Untrue(f"{one.name}: the step is not shorter after the fix ({decided['difference']} ns)")
    if one.shortens and len(comparison.base) >= SEEDS and decided["verdict"] != "faster":
        raise Untrue(f"{one.name}: the comparison says {decided['verdict']}")


def _shown(one: Pathology, run: Loaded) -> str:
    """The first lines of the answer, up to the first finding or cause."""
    if one.command == "analyze":
        lines = _printed(lambda: print_result(run.result))
        return _until(lines, "Findings")
    answer = question("diagnosis").answer(run.context)
    lines = _printed(lambda: print_diagnosis(answer))
    second = next((n for n, line in enumerate(lines) if line.startswith((" 2 ", "below "))), len(lines))
    return "\n".join(lines[:second]).rstrip()


def _verdict(comparison: Comparison) -> str:
    """The first lines of the comparison: the verdict and the job's own metrics."""
    lines = _printed(lambda: print_comparison(comparison, console()))
    heading = next((n for n, line in enumerate(lines) if line.startswith("Rank ")), len(lines))
    return "\n".join(lines[:heading]).rstrip()


def _until(lines: Sequence[str], heading: str) -> str:
    return "\n".join(lines[: lines.index(heading)] if heading in lines else lines).rstrip()


def _printed(show: Callable[[], None]) -> list[str]:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        show()
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def _text(one: Pathology, *, screen: str, number: str, proof: str) -> str:
    parts = [
        f"# {one.title}",
        one.what,
        f"*{one.source}*",
        f"![Timeline of a run with this fault: {one.title.lower()}]({one.name}.svg)",
        f"```console\n{screen}\n```",
        f"**The number that gives it away.** {number}",
        f"**The fix.** {one.fix}",
    ]
    if one.lookalike:
        parts.append(f"**Not to be confused with.** {one.lookalike}")
    parts += ["## The same run after the fix", one.afterwards, f"```console\n{proof}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def make(name: str, folder: Path) -> str | None:
    """Write the page of one pathology and its picture; what is not true of it is handed back."""
    os.environ["COLUMNS"] = WIDTH
    one = next(one for one in PATHOLOGIES if one.name == name)
    try:
        text = page(one, folder)
    except Untrue as error:
        return str(error)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return None


def main() -> None:
    """Command line: two pages at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    names = given.names or [one.name for one in PATHOLOGIES]
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as pool:
        wrong = [said for said in pool.map(make, names, [given.out] * len(names)) if said]
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
