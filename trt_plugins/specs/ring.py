"""Recurrent operators whose states have rings: a state is read in every step, and written once in RING steps.

The ring of a slot holds the updates of its last tokens (at most RING - 1), which the stored state does not have yet. A
call on packed rows of one token reads both:

* If the ring has fewer than RING - 1 tokens, the token is added to it, and the state in memory does not change.
* Otherwise the ring and the token are written into the state, and the ring becomes empty.
* A row without a token has its ring flushed into the state.

The engine stores the rings and their lengths beside the pools of states. The torch engine uses this form of the
operators of a graph without rings; that of graphs with rings is in state_ring.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hybridge.artifact.dtypes import DType
from hybridge.artifact.state_rings import RING_TOKENS
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.gated_delta_rule import GATED_DELTA_RULE
from hybridge.trt_plugins.specs.update_ssm_state import UPDATE_SSM_STATE

RING = RING_TOKENS
"""Tokens per write of a state; a ring holds at most one fewer."""


@dataclass(frozen=True)
class RingTensor:
    """One tensor of a ring, [slots, outer, RING, inner], contiguous.

    dtype: None for that of the operator's data. outer, inner: dims of the operator's inputs, or sizes.
    """

    name: str
    dtype: DType | None
    outer: str
    inner: str | int
    doc: str

    def shape(self, spec: OpSpec, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int]:
        """The shape for one slot, where the operator's inputs have ``shapes`` (the trailing axes of each)."""
        inner = self.inner if isinstance(self.inner, int) else _size(spec, shapes, self.inner)
        return _size(spec, shapes, self.outer), RING, inner


RINGS: Mapping[str, tuple[RingTensor, ...]] = MappingProxyType(
    {
        UPDATE_SSM_STATE.name: (
            RingTensor("x", None, "heads", "head_dim", "x"),
            RingTensor("B", None, "groups", "state_size", "B"),
            RingTensor("steps", DType.FLOAT32, "heads", 2, "log decay A * d, and d, the time step"),
        ),
        GATED_DELTA_RULE.name: (
            RingTensor("k", None, "key_heads", "key_size", "k, not normalised"),
            RingTensor("written", DType.FLOAT32, "value_heads", "value_size", "u / |k|; it adds outer(k, written)"),
            RingTensor("decays", DType.FLOAT32, "value_heads", "decay_size", "g"),
        ),
    }
)
"""The tensors of a ring by operator, in the order in which its kernels take them; the rings' lengths follow."""


def _size(spec: OpSpec, shapes: Mapping[str, tuple[int, ...]], dim: str) -> int:
    for tensor in spec.inputs:
        if tensor.name in shapes and dim in tensor.dims:
            return shapes[tensor.name][tensor.dims.index(dim) - len(tensor.dims)]
    raise AssertionError(f"{spec.name} has no {dim}")
