"""Small real captures (2 x H200, redacted), so that the main job runs from an installed wheel.

Twelve parameters of 4 MiB, each behind a delay of 10,000,000 cycles in backward: with ``bucket_cap_mb=4`` DDP reduces
twelve buckets, with 64 one. And three steps of a GPT (219 million parameters, ``bucket_cap_mb=25``) over a slow link
(``NCCL_P2P_DISABLE=1``), with message sizes; ``GPT_PARAMETERS`` are the sizes of its gradients in bytes, in the order
in which they get ready.
"""

from __future__ import annotations

from pathlib import Path

TWELVE_BUCKETS = "delay_cap4.sqlite.gz"
ONE_BUCKET = "delay_cap64.sqlite.gz"
SLOW_LINK = "gpt_slow_link.sqlite.gz"
GPT_PARAMETERS = "gpt_parameters.json"


def path(name: str) -> Path:
    """Where a bundled capture is."""
    return Path(__file__).with_name(name)
