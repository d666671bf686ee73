"""The body of an ONNX function: how it reads its inputs and writes its outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.state_rings import RING_LENGTHS
from hybridge.trt_plugins import state_rounding
from hybridge.trt_plugins.functions import packed_rows
from hybridge.trt_plugins.functions.nodes import Nodes
from hybridge.trt_plugins.ring_nodes import RingNodes
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS
from hybridge.trt_plugins.specs.packed import has_rows, is_packed, is_pool
from hybridge.trt_plugins.specs.speculative import is_speculative
from hybridge.trt_plugins.specs.state_8bit import STATE, STATE_SCALES, is_8bit, scale_axis
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.specs.state_ring import is_ring, ring_names


class Body(Nodes):
    """The nodes of one function.

    Inside, values are float32: ``read`` casts inputs of other types, ``write`` casts back. Packed rows become
    right-padded rows [rows, longest, ...], and pools become the rows' states: ``read`` gathers, ``write`` scatters.
    """

    def read(self, name: str) -> str:
        """Input ``name`` as float32; packed tokens and pools as rows, a state with a ring after its tokens."""
        value, dtype, spec = self.rows(name), self.signature.type_of(name), self.signature.spec
        if name == STATE and is_8bit(spec):
            return state_rounding.exact_state(self, value, self.rows(STATE_SCALES), dtype, scale_axis(spec))
        value = value if dtype is DType.FLOAT32 else self.op("Cast", value, to=DType.FLOAT32.onnx)
        if name != STATE or not is_ring(spec):
            return value
        return self.ring().flushed(value, [self.read(tensor) for tensor in ring_names(spec)])

    def ring(self) -> RingNodes[str]:
        """Nodes for the ring of the state, for an operator of that form."""
        return RingNodes(self, base_name(self.signature.op), self.rows(RING_LENGTHS))

    def rows(self, name: str) -> str:
        """Input ``name`` in its own type, by row."""
        tensor = self.signature.input(name)
        if has_rows(self.signature.spec) and is_packed(tensor):
            return packed_rows.padded(self, name)
        if has_rows(self.signature.spec) and is_pool(tensor):
            return packed_rows.gathered(self, name)
        return name

    def write(self, value: str, name: str, like: str) -> None:
        """``value`` becomes output ``name`` in the type of input ``like``; rows as packed tokens or in their pool."""
        dtype, tensor = self.signature.type_of(like), self.signature.input(like)
        if dtype is not DType.FLOAT32:
            value = self.op("Cast", value, to=dtype.onnx)
        if has_rows(self.signature.spec) and is_packed(tensor):
            value = packed_rows.unpadded(self, value)
        elif has_rows(self.signature.spec) and is_pool(tensor):
            value = packed_rows.scattered(self, like, value)
        self.output(value, name)

    def write_state(self, last: str, after: Callable[[str], str], name: str, like: str) -> None:
        """States become output ``name`` in the type of input ``like``: those after the rows' last tokens.

        In a speculative form ``after`` gives those after each of the rows' first tokens too, [rows, count, ...] for an
        int64 tensor ``count`` of one element; values after a row's last token are ignored. States of 8 bits are
        followed by the output of their scales.
        """
        if is_8bit(self.signature.spec):
            self._write_8bit(last, after, name, like)
            return
        if not is_speculative(self.signature.spec):
            self.write(last, name, like)
            return
        states, dtype = after(packed_rows.stored_count(self)), self.signature.type_of(like)
        if dtype is not DType.FLOAT32:
            states, last = (self.op("Cast", value, to=dtype.onnx) for value in (states, last))
        self.output(packed_rows.scattered_states(self, like, states, last), name)

    def _write_8bit(self, last: str, after: Callable[[str], str], name: str, like: str) -> None:
        dtype, axis = self.signature.type_of(like), scale_axis(self.signature.spec)
        inputs, outputs = (like, STATE_SCALES), (name, name.replace(STATE, STATE_SCALES))
        stored = state_rounding.rounded_state(self, last, dtype, axis)
        if is_speculative(self.signature.spec):
            states = state_rounding.rounded_state(self, after(packed_rows.stored_count(self)), dtype, axis)
            for own, output, each, value in zip(inputs, outputs, states, stored, strict=True):
                self.output(packed_rows.scattered_states(self, own, each, value), output)
            return
        packed = has_rows(self.signature.spec)
        lengths = packed_rows.row_lengths(self) if packed else CONTEXT_LENGTHS.name
        has_tokens = self.op("Greater", lengths, self.array(np.array(0, np.int64 if packed else np.int32)))
        for own, output, value in zip(inputs, outputs, stored, strict=True):
            rank = len(self.signature.input(own).dims)
            # A row without tokens keeps its state bit for bit: rounding it again may change its scale.
            value = self.op("Where", self.unsqueeze(has_tokens, *range(1, rank)), value, self.rows(own))
            self.output(packed_rows.scattered(self, own, value) if packed else value, output)
