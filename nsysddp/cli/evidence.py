"""``nsysddp evidence``: everything a reviewer needs in one archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysddp.cli.check import gather as gather_claims
from nsysddp.cli.options import Request, reading_options
from nsysddp.cli.saying import say
from nsysddp.cli.sides import AGAINST, Side, against_option, side_of
from nsysddp.cli.words import Worded, file_option
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.evidence.sources import Source


@click.command(
    "evidence",
    cls=Worded,
    many=(AGAINST,),
    old={"--compare": AGAINST},
    short_help="Write a bundle for a review that can be checked again.",
)
@reading_options
@against_option("Runs to compare with, reports or captures")
@click.option(
    "--claim", "texts", multiple=True, metavar="TEXT", help="A claim (see nsysddp check); repeatable."
)
@click.option(
    "--claims", "file", type=click.Path(path_type=Path), metavar="FILE", help="Claims as a TOML file."
)
@click.option("--question", metavar="TEXT", help="What the reviewer wants to know; else that of --claims.")
@click.option(
    "--allow-unlike", is_flag=True, help="Compare although GPU, ranks, warm-up or nsys flags differ."
)
@click.option(
    "--with-export", is_flag=True, help="Put redacted minimal exports in, so that others can compute it anew."
)
@click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign it with this private key of OpenSSH (ssh-keygen does it, and asks for a passphrase).",
)
@file_option("The archive (.zip).")
@click.option("--force", is_flag=True, help="Replace an existing archive.")
def command(
    request: Request,
    against: tuple[str, ...],
    texts: tuple[str, ...],
    file: Path | None,
    question: str | None,
    allow_unlike: bool,
    with_export: bool,
    key: Path | None,
    out: Path,
    force: bool,
) -> None:
    """Write one archive for a review: a page to paste, an HTML report, pictures, tables, and how to check it.

    REPORTs are the ranks of one run; each folder of `nsysddp capture` is a repeat. The archive holds no paths, hosts,
    users or command lines, and the same input gives the same bytes. `nsysddp verify` checks it.
    """
    from nsysddp.cli.reading import inputs_of, reading_of, where_of
    from nsysddp.evidence import archive, bundle, gathered, signature
    from nsysddp.evidence.claims.reading import Claims
    from nsysddp.evidence.sources import check_alike, ranks_of_one_run
    from nsysddp.model.scratch import scratch_folder
    from nsysddp.render.files import check_file, whole_file

    sources, base_sources = ranks_of_one_run(request.reports), _files(side_of(against, baselines=True))
    inputs = inputs_of(request, [*sources, *base_sources], file)
    check_file(out, force=force, inputs=inputs if key is None else (*inputs, key))
    if key is not None:
        signature.check_key(key)
    claims = gather_claims(texts, file) if texts or file else Claims(None, ())
    check_alike(base_sources, sources)
    reading = reading_of(request)
    wanted = gathered.Request(
        question=question or claims.question or bundle.QUESTION,
        claims=claims.claims,
        reading=reading,
        allow_unlike=allow_unlike,
        with_export=with_export,
    )
    with scratch_folder() as scratch:
        found = gathered.prepare(wanted, sources, base_sources, scratch, where_of(request))
        copies = bundle.exports(found) if with_export else {}
    members = bundle.build(found, copies)
    if key is not None:
        members[signature.MEMBER] = signature.sign(members["manifest.json"], key)
    content = archive.write(members)
    with whole_file(out, force=force) as stream:
        stream.write(content)
    say(f"wrote {out} ({len(content):,} bytes)")


def _files(side: Side) -> list[Source]:
    """The other side's runs: an archive is made of files, so that it can be made again.

    Raises:
        UsageError: it is a baseline or has kept runs.
    """
    if side.baseline is not None or side.kept:
        given = f"baseline {side.baseline}" if side.baseline is not None else f"run:{side.kept[0]}"
        raise UsageError(
            f"an archive is made from reports, and {given} holds none",
            do=f"give reports or captures {AGAINST}",
        )
    return side.sources
