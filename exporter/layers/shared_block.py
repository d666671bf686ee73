"""A transformer block that several layers share, with low-rank adapters of each layer (Zamba, Zamba2)."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.shared_block import ADAPTED, SharedBlockConfig
from hybridge.exporter.layers.attention import Attention
from hybridge.exporter.layers.mlp import MLPS
from hybridge.exporter.layers.norm import RmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step


class AdaptedLinear(nn.Linear):
    """A shared projection plus one of low rank: W x + b + up(down(x))."""

    def __init__(self, shared: nn.Linear, rank: int) -> None:
        super().__init__(shared.in_features, shared.out_features, bias=shared.bias is not None)
        self.down = nn.Linear(shared.in_features, rank, bias=False)
        self.up = nn.Linear(rank, shared.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., columns] -> [..., rows]."""
        return super().forward(x) + self.up(self.down(x))


class SharedBlock(nn.Module):
    """linear(mlp(norm(attention(norm(x, embeddings))))): ``linear`` is of one layer, the other weights of several."""

    def __init__(self, config: SharedBlockConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.norm = RmsNorm(2 * hidden_size, eps)
        self.attention = Attention(config.attention, hidden_size, eps, input_size=2 * hidden_size)
        self.mlp_norm = RmsNorm(hidden_size, eps)
        self.mlp = MLPS[config.mlp.projections](config.mlp, hidden_size)
        self.linear = nn.Linear(hidden_size, hidden_size, bias=False)
        if config.adapter_rank is not None:
            adapted: list[tuple[nn.Module, str]] = [(self.mlp, "input_linear")]
            adapted += [(self.attention, name) for name in ADAPTED if config.attention_adapters]
            for module, name in adapted:
                shared = module.get_submodule(name)
                assert isinstance(shared, nn.Linear)
                setattr(module, name, AdaptedLinear(shared, config.adapter_rank))

    def forward(self, x: torch.Tensor, step: Step | PackedStep, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [..., hidden] and the attention's caches as ``step`` has them -> what is added to x, and the new caches."""
        both = torch.cat([x, step.embeddings.to(x.dtype)], dim=-1)
        attended, *new_caches = self.attention(self.norm(both), step, *caches)
        return self.linear(self.mlp(self.mlp_norm(attended))), *new_caches
