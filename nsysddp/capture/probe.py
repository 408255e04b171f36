"""What can this Python run? Prints one JSON object; run as a file by the Python of the launch (torch is optional).

Standard library only at the top: this file is started by whichever Python runs the workload, which may have
neither nsysddp nor torch.
"""

from __future__ import annotations

import json
import platform
import sys
from typing import Any


def probe() -> dict[str, Any]:
    """Versions and GPUs as torch sees them: CUDA_VISIBLE_DEVICES is heeded, and no context is created."""
    found: dict[str, Any] = {"python": platform.python_version(), "torch": None, "cuda": None, "nccl": None}
    found["gpus"] = []
    try:
        import torch
    except (ImportError, OSError):  # OSError: a library of torch is missing
        return found
    found["torch"] = str(torch.__version__)
    found["cuda"] = torch.version.cuda
    for device in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(device)
        found["gpus"].append(
            {
                "device": device,
                "name": properties.name,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    if found["gpus"] and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
