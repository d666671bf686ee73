"""Recurrent operators with rings: random tokens of a few rows, step by step, and the same at once in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from hybridge.trt_plugins.specs.ring import RINGS

DENSE = {"update_ssm_state": update_ssm_state, "gated_delta_rule": gated_delta_rule}
STATE = {name: OPS[name].input_index("state") for name in DENSE}


@dataclass
class RingCase:
    """``tokens`` of ``rows`` rows. inputs: the dense operator's, [rows, tokens, ...]; the state [rows, ...]."""

    name: str
    inputs: list[torch.Tensor]
    attributes: Mapping[str, Any]
    of_tokens: tuple[int, ...]
    state: torch.Tensor
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def token(self, rows: Sequence[int], at: Sequence[int]) -> list[torch.Tensor]:
        """The inputs of token ``at`` of each of ``rows``, without a token axis."""
        picked = [
            each[list(rows), list(at)] if index in self.of_tokens else each for index, each in enumerate(self.inputs)
        ]
        picked[STATE[self.name]] = self.state[list(rows)]
        return picked

    def rings(self, slots: int) -> list[torch.Tensor]:
        """Rings of ``slots`` slots, full of NaN."""
        spec, data = OPS[self.name], self.inputs[0]
        shapes = {tensor.name: tuple(value.shape) for tensor, value in zip(spec.inputs, self.inputs, strict=False)}
        shapes["state"] = tuple(self.state.shape)
        made = []
        for tensor in RINGS[self.name]:
            dtype = (
                data.dtype if tensor.dtype is None else torch.float64 if data.dtype is torch.float64 else torch.float32
            )
            made.append(torch.full((slots, *tensor.shape(spec, shapes)), math.nan, dtype=dtype, device=data.device))
        return made

    def expected(self, row: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and state of a row after its first ``tokens`` tokens, in float64."""
        part = [
            each[row : row + 1, :tokens] if index in self.of_tokens else each for index, each in enumerate(self.inputs)
        ]
        part[STATE[self.name]] = self.state[row : row + 1]
        lengths = torch.tensor([tokens], dtype=torch.int32, device=self.state.device)
        given = [each.double() for each in part]
        y, state = DENSE[self.name](*given, lengths, *self.attributes.values())
        return y[0], state[0]


def ssm_case(
    rows: int, tokens: int, heads: int, groups: int, head_dim: int, state_size: int, dtype: torch.dtype, device: str
) -> RingCase:
    """``update_ssm_state`` with decays from almost 1 to almost 0."""
    torch.manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    A = -torch.logspace(-2, 1, heads, device=device)
    B, C = (normal(rows, tokens, groups, state_size).to(dtype) for _ in range(2))
    inputs = [normal(rows, tokens, heads, head_dim).to(dtype), A, B, C, normal(heads)]
    inputs += [normal(rows, tokens, heads).to(dtype), normal(heads) - 1]
    state = normal(rows, heads, head_dim, state_size)
    attributes = OPS["update_ssm_state"].complete_attributes({})
    return RingCase("update_ssm_state", [*inputs, state], attributes, (0, 2, 3, 5), state)


def delta_case(
    rows: int,
    tokens: int,
    heads: int,
    key_heads: int,
    key_size: int,
    value_size: int,
    dtype: torch.dtype,
    device: str,
    channels: bool = False,
    normed: bool = True,
) -> RingCase:
    """``gated_delta_rule``. ``channels``: one decay a key channel. Similar keys, so that differences matter."""
    torch.manual_seed(2)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    k = normal(rows, 1, key_heads, key_size) + 0.5 * normal(rows, tokens, key_heads, key_size)
    if not normed:
        k = k / k.norm(dim=-1, keepdim=True)
    g = -(torch.rand(rows, tokens, heads, key_size if channels else 1, device=device) ** 8) * 6
    inputs = [normal(rows, tokens, key_heads, key_size).to(dtype), k.to(dtype)]
    inputs += [
        normal(rows, tokens, heads, value_size).to(dtype),
        g,
        torch.rand(rows, tokens, heads, device=device).to(dtype),
    ]
    state = normal(rows, heads, key_size, value_size)
    chosen = {"decay": "key_channel" if channels else "head", "use_qk_l2norm": int(normed)}
    attributes = OPS["gated_delta_rule"].complete_attributes(chosen)
    return RingCase("gated_delta_rule", [*inputs, state], attributes, (0, 1, 2, 3, 4), state)
