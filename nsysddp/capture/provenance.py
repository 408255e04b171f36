"""Where does a capture come from? Everything in run.json: enough to repeat the run, nothing private.

The environment enters by an allow-list of names (``ENVIRONMENT``), paths by their last part or relative to the
working directory, host and user never.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysddp.capture.failures import Failure, torch_missing
from nsysddp.ingest.hashing import sha256_of
from nsysddp.model.scratch import publish, scratch_folder

ENVIRONMENT = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CTA_POLICY",
    "NCCL_CUMEM_ENABLE",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_LAUNCH_MODE",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_HIGH_PRIORITY",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
)
"""Settings of CUDA, NCCL and torch that change what a capture shows. Names that can hold a host, an address, a
path or a key (NCCL_COMM_ID, NCCL_SOCKET_IFNAME, NCCL_DEBUG_FILE ...) are not among them."""

_PLAIN = re.compile(r"[\w.,:=^;\-+ \[\]>]*")


@dataclass(frozen=True)
class Machine:
    """What the launch can use: versions and GPUs as torch sees them, driver and topology as nvidia-smi does.

    Attributes:
        versions: python, torch, cuda, nccl, driver; None where unknown.
        gpus: one object a visible GPU.
        topology: ``nvidia-smi topo -m``, None without it.
    """

    versions: Mapping[str, str | None]
    gpus: tuple[dict[str, Any], ...]
    topology: str | None


def inspect_machine(python: str) -> Machine:
    """What can the Python of the launch use here?

    Raises:
        Failure: it does not run, or its torch fails to load.
    """
    probe = Path(__file__).with_name("probe.py")
    try:
        done = subprocess.run([python, str(probe)], capture_output=True, text=True, timeout=300, check=False)
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise torch_missing() from error
    gpus = tuple(found.pop("gpus"))
    return Machine({**found, "driver": _driver()}, gpus, _nvidia_smi("topo", "-m"))


def launch_python(target: Sequence[str], default: str) -> str:
    """Which Python runs the ranks of this launch? torchrun's is the one beside it."""
    program = shutil.which(target[0]) or target[0]
    if re.fullmatch(r"python[\d.]*", Path(program).name):
        return program
    beside = Path(program).parent / "python"
    return str(beside) if Path(program).name == "torchrun" and beside.exists() else default


def require_gpus(machine: Machine, ranks: int | None) -> None:
    """Are there enough GPUs for these ranks (None: any number)?

    Raises:
        Failure: torch is missing, no GPU is visible, or fewer than ranks.
    """
    if machine.versions["torch"] is None:
        raise torch_missing()
    visible = len(machine.gpus)
    if visible == 0:
        raise Failure(
            "no_gpu",
            "no GPU is visible to torch",
            do="check nvidia-smi, or run on CPU ranks with --backend gloo",
        )
    if ranks is not None and ranks > visible:
        raise Failure(
            "too_few_gpus",
            f"{ranks} ranks were asked for and {visible} GPUs are visible",
            do=f"--nproc {visible}",
        )


def _nvidia_smi(*arguments: str) -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout).strip() or None if done.returncode == 0 else None


def _driver() -> str | None:
    listed = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    return listed.splitlines()[0].strip() if listed else None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Which commit does the working directory hold, and is it changed? None outside a repository."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def public_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Which settings of CUDA, NCCL and torch were set? A value that is no plain setting is left out."""
    return {
        name: environment[name]
        for name in ENVIRONMENT
        if name in environment and _PLAIN.fullmatch(environment[name])
    }


def hash_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file below ``folder``, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = {
                "bytes": path.stat().st_size,
                "sha256": sha256_of(path),
            }
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write beside, then rename, so that a reader never sees half of it."""
    with scratch_folder(path.parent) as scratch:
        beside = scratch / "content"
        beside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        publish(beside, path, replace=True)
