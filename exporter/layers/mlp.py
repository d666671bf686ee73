"""Feed-forward blocks in the layouts that checkpoints use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from hybridge.exporter.families.activation_names import QUICK_GELU_ALPHA
from hybridge.exporter.families.mlp_config import MlpConfig


def relu2(x: torch.Tensor) -> torch.Tensor:
    """Squared ReLU."""
    positive = F.relu(x)
    return positive * positive


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x) (https://github.com/hendrycks/GELUs)."""
    return x * torch.sigmoid(x * QUICK_GELU_ALPHA)


def _times(x: torch.Tensor, multiplier: float) -> torch.Tensor:
    return x if multiplier == 1.0 else x * multiplier


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
    "quick_gelu": quick_gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


class GatedMlp(nn.Module):
    """down(act(gate(x)) * up(x)), with the multipliers of ``config``."""

    def __init__(self, config: MlpConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.activation = config, ACTIVATIONS[config.activation]
        self.gate_proj = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias)
        self.up_proj = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, hidden_size, bias=config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] -> [..., hidden]."""
        gate = _times(self.gate_proj(x), self.config.gate_multiplier)
        return _times(self.down_proj(self.activation(gate) * self.up_proj(x)), self.config.down_multiplier)


class PlainMlp(nn.Module):
    """down(act(up(x)))."""

    def __init__(self, config: MlpConfig, hidden_size: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up_proj = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, hidden_size, bias=config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] -> [..., hidden]."""
        return self.down_proj(self.activation(self.up_proj(x)))


class FusedMlp(nn.Module):
    """Gated MLP whose gate and up projections are in one matrix, gate first."""

    def __init__(self, config: MlpConfig, hidden_size: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.input_linear = nn.Linear(hidden_size, 2 * config.intermediate_size, bias=config.bias)
        self.output_linear = nn.Linear(config.intermediate_size, hidden_size, bias=config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] -> [..., hidden]."""
        gate, up = self.input_linear(x).chunk(2, dim=-1)
        return self.output_linear(self.activation(gate) * up)


MLPS: dict[str, type[nn.Module]] = {"gated": GatedMlp, "plain": PlainMlp, "fused": FusedMlp}
