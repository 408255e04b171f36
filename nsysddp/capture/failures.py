"""Why did a capture fail, in one line and with what to do about it?

Everything is told from what can be observed afterwards: exit states, which files exist, and the log.
"""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from nsysddp.model.errors import CaptureError

KINDS = {
    "nsys_missing": "there is no usable nsys",
    "nsys_too_old": "nsys lacks an option and is older than those tested",
    "nsys_too_new": "nsys lacks an option and is newer than those tested",
    "no_gpu": "no GPU is visible",
    "too_few_gpus": "fewer GPUs are visible than ranks asked for",
    "torch_missing": "the Python of the launch cannot import torch",
    "workload_failed": "the program under nsys ended with an error",
    "checks_failed": "the program ran and found itself that something is wrong",
    "hang": "the time limit ended it",
    "empty_capture": "the program ended well and nothing was captured",
    "incomplete_report": "nsys recorded less than the whole run, by its own diagnostics or by what is missing",
    "importer_failed": "nsys recorded, but could not make a report of the recording",
    "export_failed": "nsys could not export its report",
    "analysis_failed": "captured and exported well; the analysis of the export failed",
    "refused": "the operating system refused something that a capture needs",
    "disk_full": "no space was left",
    "interrupted": "Ctrl-C or SIGTERM",
}
"""Every class of failure, as written into run.json."""

_LAST_LINES = 12
_NO_SPACE = re.compile(
    r"no space left on device|ENOSPC|disk quota exceeded|not enough (?:disk )?space", re.IGNORECASE
)
_NOT_THE_PROGRAMS = re.compile(
    r"^[EWIF]\d{4} [\d:.]+ \d+ torch/distributed/|^Generating '|^Generated:|^\[\d+/\d+\] |^\s+/.*\.(nsys-rep|qdstrm)$"
)
"""Lines of torchrun and of nsys between those of the program."""
_LAUNCHER_GIVES_UP = re.compile(r"^E\d{4} .*torch/distributed/elastic|ChildFailedError")
_ROOT_CAUSE = re.compile(
    r"Root Cause.*?rank\s*:\s*(?P<rank>\d+).*?exitcode\s*:\s*(?P<code>-?\d+)", re.DOTALL | re.IGNORECASE
)
_ERROR_LINE = re.compile(r"^(?:\[\w+\]:\s*)?((?:[A-Za-z_][\w.]*)(?:Error|Exception|Interrupt|Exit)\b.*)")


class Failure(CaptureError):
    """A capture that failed.

    Args:
        kind: one of ``KINDS``.
        what: as in NsysddpError.
        do: as in NsysddpError.
        details: lines that help to find the cause (the end of the log, stacks), shown apart from the one line.
        ranks: the ranks it happened on, as far as known.
    """

    def __init__(
        self, kind: str, what: str, *, do: str, details: tuple[str, ...] = (), ranks: tuple[int, ...] = ()
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown class of failure: {kind}")
        self.kind = kind
        self.ranks = ranks
        self.details = details
        super().__init__(what, do=do)


def log_lines(text: str) -> list[str]:
    """The log without blank lines and without what progress bars overwrote."""
    lines = (line.rstrip().rsplit("\r", 1)[-1] for line in text.split("\n"))
    return [line for line in lines if line]


def last_line(text: str) -> str:
    """The last thing that a log says."""
    lines = log_lines(text)
    return lines[-1].strip() if lines else "it printed nothing"


def names_failed_rank(log: str) -> bool:
    """Does torchrun name a rank that failed?"""
    return _ROOT_CAUSE.search(log) is not None


def workload_failure(log: str, code: int) -> Failure:
    """Which rank failed first, with what last words?

    The rank and its exit code come from torchrun's root cause. Torch marks a rank's traceback with ``[rankN]:``;
    without such lines the last lines before the launcher's own are taken.
    """
    if re.search(r"No module named '?torch\b", log):
        return torch_missing()
    cause = None
    for cause in _ROOT_CAUSE.finditer(log):  # noqa: B007
        pass
    lines = log_lines(log)
    rank = cause["rank"] if cause else None
    marked = [line for line in lines if re.match(rf"\[(?:rank|default){rank}\]:", line)] if rank else []
    end = next((at for at, line in enumerate(lines) if _LAUNCHER_GIVES_UP.search(line)), len(lines))
    own = [line for line in lines[:end] if not _NOT_THE_PROGRAMS.search(line)]
    last = (marked or own or lines)[-_LAST_LINES:]
    words = next((found[1] for line in reversed(last) if (found := _ERROR_LINE.match(line))), None)
    who = f"rank {rank} of the workload" if rank else "the workload"
    code = int(cause["code"]) if cause else code
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    said = words or (last[-1] if last else "it printed nothing")
    return Failure(
        "workload_failed",
        f"{who} {how}: {said}",
        do="see log.txt of the run",
        details=tuple(last),
        ranks=(int(rank),) if rank else (),
    )


def torch_missing() -> Failure:
    """The Python that runs the workload has no torch."""
    return Failure(
        "torch_missing",
        "torch is not installed for the Python of the launch",
        do="pip install 'nsysddp[workloads]'",
    )


def disk_full(folder: Path, *, error: OSError | None = None, log: str = "") -> Failure | None:
    """Did it fail for want of space, by the system's error or by what the programs said?"""
    if not _NO_SPACE.search(log) and (error is None or error.errno not in (errno.ENOSPC, errno.EDQUOT)):
        return None
    free = shutil.disk_usage(folder).free
    return Failure(
        "disk_full",
        f"no space was left on the device ({free / 1e6:.0f} MB are free at the output folder now)",
        do="free some, or choose another place with --out",
    )
