"""How can a report be shared without sharing what it says about people and machines?

An allow-list, ``allow.toml``, names every table and column that may be copied and the form that each text may
have; for the copy nothing else exists, later versions' tables and columns included. Values are copied row by row
into a fresh database (pages never are), so free pages, indexes, views, triggers and statistics cannot travel along.

The timeline keeps its rowids and order, so an analysis of the copy gives the numbers of the original. Two things
are kept on purpose, and a reader of the copy learns them: the wall-clock start of the session (reports of several
hosts are aligned by it), and kernel names, without the paths in them (``Policy.hide`` replaces those that say too
much). Process ids, GPU names, PCI addresses and GPU UUIDs stay too: ranks are told apart by them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from nsysddp.evidence.copied import write_folder
from nsysddp.evidence.redact.allowed import allow_list
from nsysddp.evidence.redact.copier import Copier
from nsysddp.evidence.redact.names import HOST_SETTING, Names
from nsysddp.evidence.redact.outcome import DroppedTables as DroppedTables
from nsysddp.evidence.redact.outcome import KeptTable as KeptTable
from nsysddp.evidence.redact.outcome import Policy as Policy
from nsysddp.evidence.redact.outcome import Redaction as Redaction
from nsysddp.ingest.report import open_report
from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.model.names import natural
from nsysddp.model.scratch import committing, publish, scratch_folder


def redact(
    report: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    policy: Policy | None = None,
    hosts: dict[str, str] | None = None,
    force: bool = False,
) -> Redaction:
    """Which copy of this report can be shared? Writes it, and says what it kept and dropped.

    Args:
        report: an export of Nsight Systems, also compressed or a folder of tables; opened read-only and never changed.
        output: the copy; written beside and renamed, so it is complete or absent. It is a SQLite file; of a folder of
            tables a folder of Parquet files, unless its name ends in ``.sqlite``.
        policy: what to keep and hide beyond the defaults.
        hosts: host name -> alias (``host-1`` ...), shared and extended by the calls for the reports of one job.
        force: replace an existing ``output`` that is a file.

    Raises:
        UsageError: ``output`` exists (without ``force``) or is the report; a pattern or window is malformed.
        ReportError: the input is not a readable export.
        EvidenceError: the copy cannot be written.
    """
    report, output = Path(report), Path(output)
    policy = policy or Policy()
    names = Names(policy, {} if hosts is None else hosts)
    if policy.window_ns is not None and policy.window_ns[0] >= policy.window_ns[1]:
        raise UsageError(f"the window [{policy.window_ns[0]}, {policy.window_ns[1]}) ns is empty")
    if output.exists() and report.exists() and output.samefile(report):
        raise UsageError("the copy would replace the report itself", file=output, do="choose another -o")
    if output.is_dir():
        raise UsageError("is a folder", file=output, do="choose another -o")
    if output.exists() and not force:
        raise UsageError("exists already", file=output, do="choose another -o or add --force")
    if not output.parent.is_dir():
        raise UsageError("the folder for the copy does not exist", file=output)
    with open_report(report, every_table=True) as opened:
        opened.supply(*(table for table in opened.tables if allow_list().rule_for(table)), counted=True)
        try:
            with scratch_folder(output.parent) as folder:
                copy = folder / "copy.sqlite"
                outcome = Copier(opened.uri, copy, policy, names).run(report, output.name)
                if opened.columnar is None or output.suffix == ".sqlite":
                    publish(copy, output, replace=force)
                else:
                    write_folder(copy, folder / "copy")
                    with committing():
                        (folder / "copy").replace(output)
        except FileExistsError:
            raise UsageError("exists already", file=output, do="choose another -o or add --force") from None
        except OSError as error:
            raise EvidenceError(f"the copy cannot be written ({error.strerror})", file=output) from error
    return outcome


def aliases_of_hosts(reports: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """Which alias has each host of these reports, for ``redact(..., hosts=...)``?

    Aliases sort like the names they stand for, because ranks without a number are ordered by host.
    """
    found: set[str] = set()
    for report in reports:
        with open_report(Path(report)) as opened, contextlib.closing(opened.connect()) as db:
            if opened.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
                opened.supply("TARGET_INFO_SYSTEM_ENV")
                settings = db.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV").fetchall()
                found |= {str(value) for name, value in settings if HOST_SETTING.fullmatch(str(name))}
    return {host: f"host-{n:0{len(str(len(found)))}}" for n, host in enumerate(sorted(found, key=natural), 1)}
