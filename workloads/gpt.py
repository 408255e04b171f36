"""A small GPT, and its data: the model that the gpt and straggler workloads train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from common import Job
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Shape of the model and of one rank's batch."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int

    @property
    def tokens(self) -> int:
        """Tokens that one rank trains on in one step."""
        return self.sequence * self.batch


SIZES = {
    "tiny": Size(layers=2, width=64, heads=2, vocabulary=256, sequence=32, batch=2),
    "small": Size(layers=4, width=512, heads=8, vocabulary=8192, sequence=512, batch=8),
    "medium": Size(layers=12, width=1024, heads=16, vocabulary=32768, sequence=1024, batch=8),
}
"""``tiny`` is for CPU ranks and tests."""


class Block(nn.Module):
    """Attention and MLP, each on a normalised input, each added to its input."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)
        self.mlp_norm = nn.LayerNorm(size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: batch, sequence, width."""
        batch, sequence, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, sequence, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A decoder whose forward pass returns the loss of predicting each next token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.place = nn.Parameter(torch.randn(size.sequence, size.width) * 0.02)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens``: batch, sequence + 1."""
        x = self.token(tokens[:, :-1]) + self.place
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def size_of(job: Job, default: str) -> tuple[str, Size]:
    """The size asked for by ``--model``; CPU ranks train the tiny one unless told otherwise."""
    name = job.args.model or (default if job.on_gpu else "tiny")
    return name, SIZES[name]


def tokens_for(job: Job, size: Size) -> torch.Tensor:
    """This rank's own batch."""
    random = torch.Generator().manual_seed(job.args.seed * 1000 + job.rank + 1)
    shape = (size.batch, size.sequence + 1)
    return torch.randint(size.vocabulary, shape, generator=random).to(job.device)
