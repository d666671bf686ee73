"""Recurrent states with rings in standard operators, for function bodies and engines' graphs alike.

The eager form is reference/state_ring.py. Letters of shapes: b batch, h heads, s heads of B or keys, r heads of each of
these, t tokens of a ring; the state of a head is [p, n].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.e4m3 import Nodes, V
from hybridge.trt_plugins.specs.gated_delta_rule import GATED_DELTA_RULE
from hybridge.trt_plugins.specs.ring import RING


class RingNodes(Generic[V]):
    """The nodes of one operator over states with rings; ``operator``: its plain form.

    lengths: of the rings [b, 1] int32, as the graph has them.
    """

    def __init__(self, nodes: Nodes[V], operator: str, lengths: V) -> None:
        self._nodes, self._lengths = nodes, lengths
        self._is_delta = operator == GATED_DELTA_RULE.name
        wide = nodes.op("Cast", lengths, to=DType.INT64.onnx)
        self.stored = nodes.op("Max", nodes.op("Min", wide, self._ints(RING - 1)), self._ints(0))

    def flushed(self, state: V, ring: Sequence[V]) -> V:
        """The states [b, h, p, n] after the tokens of their rings [b, ., t, .], all float32.

        Token j adds an outer product, decayed by exp(a_{j+1} + ... + a_m); the sums start at the token itself.
        """
        op = self._nodes.op
        valid = op("Unsqueeze", op("Less", self._nodes.array(np.arange(RING)), self.stored), self._ints(1, 3))
        zero = self._nodes.array(np.array(0.0, np.float32))
        first, second, third = (op("Where", valid, tensor, zero) for tensor in ring)
        if self._is_delta:
            shared, own, log_decay = first, second, third
        else:
            log_decay, step = (op("Slice", third, self._ints(i), self._ints(i + 1), self._ints(3)) for i in (0, 1))
            shared, own = second, op("Mul", first, step)
        shared = op("Unsqueeze", shared, self._ints(2))  # [b, s, 1, t, .]
        own, log_decay = (self._grouped(tensor, shared) for tensor in (own, log_decay))  # [b, s, r, t, .]
        axis = self._nodes.array(np.array(3))
        to_end = op("Exp", op("CumSum", log_decay, axis, exclusive=1, reverse=1))
        total = op("Exp", op("ReduceSum", log_decay, self._ints(3), keepdims=1))  # [b, s, r, 1, .]
        left, right = (shared, own) if self._is_delta else (own, shared)
        written = op("MatMul", self._transposed(op("Mul", left, to_end)), right)  # [b, s, r, p, n]
        after = op("Add", op("Mul", self._transposed(total), self._grouped(state, shared)), written)
        return op("Reshape", after, op("Shape", state))

    def ssm_entry(self, x: V, B: V, step: V, A: V) -> tuple[V, ...]:
        """What the ring holds of one token of each row: x [b, 1, h, p], B [b, 1, s, n], step [b, 1, h]; A [h]."""
        op = self._nodes.op
        parts = (op("Unsqueeze", part, self._ints(3)) for part in (op("Mul", step, A), step))
        return tuple(map(self._by_head, (x, B, op("Concat", *parts, axis=3))))

    def delta_entry(self, state: V, k: V, norm: V | None, v: V, g: V, beta: V) -> tuple[V, ...]:
        """The same for k [b, 1, s, p] before its division by ``norm`` [b, 1, s, 1], v, g and beta [b, 1, h, .].

        state: before the token, float32.
        """
        op = self._nodes.op
        keys = self._by_head(k if norm is None else op("Div", k, norm))
        shared = op("Unsqueeze", keys, self._ints(2))  # [b, s, 1, 1, p]
        decay, value, strength = (
            self._grouped(self._by_head(tensor), shared) for tensor in (op("Exp", g), v, beta)
        )  # [b, s, r, 1, .]
        decayed = op("Mul", self._transposed(decay), self._grouped(state, shared))
        written = op("Mul", strength, op("Sub", value, op("MatMul", shared, decayed)))
        if norm is not None:
            written = op("Div", written, op("Unsqueeze", self._by_head(norm), self._ints(2)))
        value = self._by_head(v)
        return self._by_head(k), op("Reshape", written, op("Shape", value)), self._by_head(g)

    def outputs(
        self, single: V, has_tokens: V | None, before: Sequence[V], last: V, entry: Sequence[V]
    ) -> tuple[V, ...]:
        """The new state, tensors of the ring, and lengths.

        single: whether a row has one token in this call, has_tokens: whether it has any, both bool, [b, 1] or [1];
        None: all have. before: the state and the ring as they are. last: the state after the tokens, entry: see above;
        each in the type of what it replaces.
        """
        op = self._nodes.op
        adds = op("And", single, op("Less", self.stored, self._ints(RING - 1)))
        writes = op("Not", adds)
        if has_tokens is not None:
            adds, writes = op("And", has_tokens, adds), op("And", has_tokens, writes)
        state = op("Where", op("Unsqueeze", writes, self._ints(2, 3)), last, before[0])
        place = op("And", adds, op("Equal", self._nodes.array(np.arange(RING)), self.stored))
        place = op("Unsqueeze", place, self._ints(1, 3))
        ring = (op("Where", place, new, old) for new, old in zip(entry, before[1:], strict=True))
        lengths = op("Where", writes, self._ints(0), op("Add", self.stored, self._ints(1)))
        lengths = op("Cast", lengths, to=DType.INT32.onnx)
        if has_tokens is not None:
            lengths = op("Where", has_tokens, lengths, self._lengths)
        return state, *ring, lengths

    def _ints(self, *values: int) -> V:
        return self._nodes.array(np.array(values, np.int64))

    def _by_head(self, token: V) -> V:
        """[b, 1, heads, size] as [b, heads, 1, size]."""
        return self._nodes.op("Transpose", token, perm=[0, 2, 1, 3])

    def _transposed(self, tensor: V) -> V:
        return self._nodes.op("Transpose", tensor, perm=[0, 1, 2, 4, 3])

    def _grouped(self, tensor: V, shared: V) -> V:
        """[b, h, ., .] as [b, s, r, ., .], s as ``shared`` [b, s, ...] has."""
        op = self._nodes.op
        sizes = op("Shape", shared, start=0, end=2), self._ints(-1), op("Shape", tensor, start=2, end=4)
        return op("Reshape", tensor, op("Concat", *sizes, axis=0))
