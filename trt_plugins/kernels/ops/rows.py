"""The rows of a call, dense or packed: their tokens, strides and pointers."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.trt_plugins.kernels.call import Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.ring import RINGS


def token_count(call: OpCall) -> int:
    """An upper bound of the tokens of a row, for an operator with an input dt [batch, (time), heads]."""
    if call.packed is not None:
        return call.packed.max_row_tokens
    shape = call.input("dt").shape
    return shape[1] if len(shape) == 3 else 1


def row_and_token_stride(call: OpCall, layout: TensorLayout, trailing: int) -> tuple[int, int]:
    """Strides of the axes in front of the last ``trailing`` ones: packed [tokens], dense [rows, (tokens)]."""
    if call.packed is not None:
        return 0, layout.strides[0]
    return layout.strides[0], layout.strides[1] if len(layout.shape) == trailing + 2 else 0


def row_pointers(call: OpCall, prefix: str) -> dict[str, PointerSource]:
    """Pointers of the Rows that a parameter struct holds at ``prefix``."""
    if call.packed is None:
        return {f"{prefix}context_lengths": PointerSource(Memory.INPUT, call.spec.input_index("context_lengths"))}
    pointers = {f"{prefix}query_start_loc": PointerSource(Memory.PACKED, 0)}
    if call.packed.has_state_indices:
        pointers[f"{prefix}state_indices"] = PointerSource(Memory.PACKED, 1)
    return pointers


def ring_pointers(spec: OpSpec, decode: Mapping[str, PointerSource]) -> dict[str, PointerSource]:
    """Those of a struct that has the parameters of plain decoding as ``decode``, and then the tensors of a ring."""
    names = (*(tensor.name for tensor in RINGS[spec.name]), "lengths")
    rings = {name: PointerSource(Memory.INPUT, len(spec.inputs) + index) for index, name in enumerate(names)}
    return {f"decode.{name}": source for name, source in decode.items()} | rings
