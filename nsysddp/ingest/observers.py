"""What in the captured environment changes what is measured?

Only names of variables that are set so come out of a report (``observing_environment.sql``): an environment holds
secrets, and no value of it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysddp.ingest import sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsysddp.ingest.report import Report

_TIMING = "every NCCL operation is timed by events of its own, which cost host time"
_DETERMINISTIC = "kernels are chosen to give the same bits each time, and can be slower"
_WAITS = "the host waits for every NCCL operation, so nothing is launched ahead of it"

EFFECTS = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "with one hardware queue, what is ready waits for all that was launched before it",
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel, so nothing overlaps and the host is always late",
    "CUBLAS_WORKSPACE_CONFIG": "cuBLAS is made deterministic, and its kernels can be slower",
    "FLASH_ATTENTION_DETERMINISTIC": _DETERMINISTIC,
    "NCCL_BLOCKING_WAIT": _WAITS,
    "NCCL_DEBUG": "NCCL writes a log while it runs, which costs host time",
    "NCCL_DESYNC_DEBUG": _TIMING,
    "NCCL_ENABLE_TIMING": _TIMING,
    "NCCL_PROFILER_PLUGIN": "a plugin of NCCL records every operation, which costs host time",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": _DETERMINISTIC,
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "memory is allocated and freed by CUDA itself, which holds up the host",
    "TF_CUDNN_DETERMINISTIC": _DETERMINISTIC,
    "TF_DETERMINISTIC_OPS": _DETERMINISTIC,
    "TORCH_DISTRIBUTED_DEBUG": "every collective is checked by another one before it",
    "TORCH_NCCL_BLOCKING_WAIT": _WAITS,
    "TORCH_NCCL_DESYNC_DEBUG": _TIMING,
    "TORCH_NCCL_ENABLE_TIMING": _TIMING,
    "TORCH_NCCL_NAN_CHECK": "a kernel looks for NaN ahead of every collective",
    "XLA_FLAGS": _DETERMINISTIC,
}
"""Variable to what it does to a measurement."""


def observing(report: Report) -> tuple[str, ...]:
    """The variables that are set in the environment of a report and change what is measured, by name."""
    found = {str(row["variable"]) for row in sql.rows(report, "observing_environment")}
    return tuple(sorted(found & EFFECTS.keys()))


def effects_of(variables: Iterable[str]) -> list[str]:
    """A sentence for each of these variables."""
    return [f"{name} is set ({EFFECTS[name]})" for name in sorted(set(variables))]
