"""The body of an ONNX function: how it reads its inputs and writes its outputs."""

from __future__ import annotations

from collections.abc import Callable

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.functions import packed_rows
from hybridge.trt_plugins.functions.nodes import Nodes
from hybridge.trt_plugins.specs.packed import has_rows, is_packed, is_pool
from hybridge.trt_plugins.specs.speculative import is_speculative


class Body(Nodes):
    """The nodes of one function.

    Inside, values are float32: ``read`` casts inputs of other types, ``write`` casts back. Packed rows become
    right-padded rows [rows, longest, ...], and pools become the rows' states: ``read`` gathers, ``write`` scatters.
    """

    def read(self, name: str) -> str:
        """Input ``name`` as float32; packed tokens and pools as rows."""
        value, tensor = name, self.signature.input(name)
        if has_rows(self.signature.spec) and is_packed(tensor):
            value = packed_rows.padded(self, name)
        elif has_rows(self.signature.spec) and is_pool(tensor):
            value = packed_rows.gathered(self, name)
        is_float32 = self.signature.type_of(name) is DType.FLOAT32
        return value if is_float32 else self.op("Cast", value, to=DType.FLOAT32.onnx)

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
        int64 tensor ``count`` of one element; values after a row's last token are ignored.
        """
        if not is_speculative(self.signature.spec):
            self.write(last, name, like)
            return
        states, dtype = after(packed_rows.stored_count(self)), self.signature.type_of(like)
        if dtype is not DType.FLOAT32:
            states, last = (self.op("Cast", value, to=dtype.onnx) for value in (states, last))
        self.output(packed_rows.scattered_states(self, like, states, last), name)
