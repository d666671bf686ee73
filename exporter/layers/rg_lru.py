"""The recurrent block of Griffin around the operators causal_conv1d and selective_scan (arXiv 2402.19427)."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.rg_lru import RgLruConfig
from hybridge.exporter.layers.head_products import by_head
from hybridge.exporter.layers.mamba2 import DepthwiseConv
from hybridge.exporter.layers.mlp import ACTIVATIONS
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step

# A time step of 0 would be divided by. In wider types than float16, a smaller one than this loses nothing.
LEAST_STEP = 1e-30


class RgLruGates(nn.Module):
    """The parameters of the unit: gates by matrices of each head, and its decays.

    ``open_log_decays`` [width], the logs of the decays where the recurrent gate is 1, is -c softplus(recurrent_param)
    in float32.
    """

    def __init__(self, config: RgLruConfig) -> None:
        super().__init__()
        heads, size = config.num_heads, config.head_dim
        self.open_log_decays = nn.Parameter(torch.empty(config.width, dtype=torch.float32))
        self.input_gate_weight = nn.Parameter(torch.empty(heads, size, size))
        self.input_gate_bias = nn.Parameter(torch.empty(heads, size))
        self.recurrent_gate_weight = nn.Parameter(torch.empty(heads, size, size))
        self.recurrent_gate_bias = nn.Parameter(torch.empty(heads, size))


class RgLru(nn.Module):
    """linear_x -> causal convolution -> h = a h + sqrt(1 - a^2) i x -> times the activated linear_y -> linear_out.

    ``i`` and ``r`` are sigmoids of gates, a = exp(-c softplus(recurrent_param) r). That is Mamba1's recurrence with one
    number a channel: the time step is r, and what the scan multiplies by it is divided by r before. The first token of
    a sequence is not multiplied by the root.
    """

    def __init__(self, config: RgLruConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.activation = config, ACTIVATIONS[config.activation]
        self.linear_y = nn.Linear(hidden_size, config.width)
        self.linear_x = nn.Linear(hidden_size, config.width)
        self.linear_out = nn.Linear(config.width, hidden_size)
        self.conv1d = DepthwiseConv(config.width, config.conv_kernel, bias=True)
        self.rg_lru = RgLruGates(config)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, conv_state: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [..., hidden]; conv_state [b, width, k]; state [b, 1, width, 1] -> y and new states.

        The states of a packed step are pools.
        """
        inputs = (self.linear_x(x), self.conv1d.weight, self.conv1d.bias, conv_state)
        inner, conv_state_out = step.recurrent("causal_conv1d", inputs, ("none",))
        gates, log_decays = self.rg_lru, self.rg_lru.open_log_decays
        opened = self._gate(inner, gates.recurrent_gate_weight, gates.recurrent_gate_bias)
        opened = opened.clamp(min=max(torch.finfo(x.dtype).tiny, LEAST_STEP))
        entering = self._gate(inner, gates.input_gate_weight, gates.input_gate_bias) * inner.float()
        # sqrt(1 - exp(-2 d)) by the hyperbolic tangent of d, which is exact where d is small.
        tanh = torch.tanh(opened * -log_decays)
        root = torch.sqrt(2.0 * tanh / (1.0 + tanh))
        entering = torch.where(step.at_start(), entering, entering * root) / opened
        any_number, _ = opened.split([1, self.config.width - 1], dim=-1)
        one, none = (any_number * 0.0 + 1.0).to(x.dtype).unsqueeze(-1), log_decays * 0.0
        y, state_out = step.recurrent(
            "selective_scan",
            (entering.to(x.dtype), log_decays.unsqueeze(-1), one, one, none, opened.to(x.dtype), none, state),
            (0, 0.0, float("inf")),
        )
        return self.linear_out(y * self.activation(self.linear_y(x))), conv_state_out, state_out

    def _gate(self, x: torch.Tensor, matrices: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """The sigmoid of x times ``matrices`` plus ``bias``, float32 [..., width]."""
        heads = by_head(x.unflatten(-1, (self.config.num_heads, self.config.head_dim)), matrices) + bias
        return torch.sigmoid(heads.flatten(-2).float())
