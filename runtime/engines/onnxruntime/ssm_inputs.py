"""The inputs of ``update_ssm_state`` as its bodies share them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class SsmInputs:
    """x [b, t, heads, head_dim]; B, C [b, t, groups, state_size]; step and log_decay [b, t, heads]: the time step
    that x is scaled with, and A times it; state [b, heads, state_size, head_dim].
    """

    x: ir.Value
    B: ir.Value
    C: ir.Value
    step: ir.Value
    log_decay: ir.Value
    state: ir.Value
    heads: int
    head_dim: int
    groups: int
    state_size: int

    @property
    def heads_per_group(self) -> int:
        return self.heads // self.groups
