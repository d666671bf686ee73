"""The inputs of ``update_ssm_state`` in the form that its bodies share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter


@dataclass(frozen=True)
class SsmInputs:
    """scaled [b, t, heads * head_dim]: x times the time step; B, C [b, t, groups * state_size]; log_decay
    [b, t, heads]: A times the time step; state [b, heads, state_size, head_dim].
    """

    scaled: ir.Value
    B: ir.Value
    C: ir.Value
    log_decay: ir.Value
    state: ir.Value
    heads: int
    head_dim: int
    groups: int
    state_size: int

    @property
    def heads_per_group(self) -> int:
        return self.heads // self.groups

    def tokens(self, insert: Inserter, count: int) -> Iterator[SsmInputs]:
        """The inputs of each of the ``count`` tokens alone, all with this state."""
        given = (self.scaled, self.B, self.C, self.log_decay)
        for scaled, B, C, log_decay in zip(*(split_tokens(insert, value, count) for value in given), strict=True):
            yield replace(self, scaled=scaled, B=B, C=C, log_decay=log_decay)

    def after(self, state: ir.Value) -> SsmInputs:
        """These inputs with another initial state."""
        return replace(self, state=state)


def split_tokens(insert: Inserter, value: ir.Value, count: int) -> tuple[ir.Value, ...]:
    """[batch, count, ...] as ``count`` values [batch, 1, ...]."""
    if count == 1:
        return (value,)
    parts: tuple[ir.Value, ...] = insert.op("Split", value, outputs=count, axis=1, num_outputs=count)
    return parts
