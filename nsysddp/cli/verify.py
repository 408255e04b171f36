"""``nsysddp verify``: is a bundle what it says?"""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("verify", short_help="Check a bundle, and with its reports compute everything anew.")
@click.argument("bundle", type=click.Path(path_type=Path), metavar="BUNDLE")
@click.argument("reports", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[REPORT...]")
@click.option(
    "--signer",
    type=click.Path(path_type=Path),
    metavar="PUB",
    help="Public key of OpenSSH (.pub) of whoever must have signed it.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(bundle: Path, reports: tuple[Path, ...], signer: Path | None, form: str) -> int:
    """Check every byte of a bundle of `nsysddp evidence`; with its REPORTs compute everything in it anew.

    REPORTs are files or folders in any order; they are known by their hashes. Without them the redacted exports in the
    bundle are used, where it holds some. Exits 1 if anything differs, and names it; 7 if nothing differs but something
    that a person reads could not be checked here, and names that.
    """
    from nsysddp.evidence.verify import verify
    from nsysddp.model.names import counted, visible

    found = verify(bundle, reports, signer=signer)
    code = 0 if found.verified else _NOT_VERIFIED if found.holds else 1
    if form == "json":
        click.echo(json.dumps(found.as_dict(), ensure_ascii=False))
        return code
    for problem in found.problems:
        click.echo(visible(problem))
    for member in found.unverified:
        click.echo(f"not verified: {visible(member)}")
    for note in found.notes:
        click.echo(f"note: {visible(note)}")
    done = f"{found.members} members hashed"
    if found.runs:
        what = "redacted exports" if found.from_exports else "reports"
        done += f", {found.values:,} values of {counted(found.runs, 'run')} computed anew from the {what}"
    word = "holds" if found.verified else "NOT VERIFIED" if found.holds else "DOES NOT HOLD"
    click.echo(f"{word}: {done}")
    return code


_NOT_VERIFIED = 7
