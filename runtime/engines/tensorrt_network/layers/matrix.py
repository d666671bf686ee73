"""MATRIX_MULTIPLY and EINSUM: products are summed in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall

_NONE, _TRANSPOSE, _VECTOR = "NONE", "TRANSPOSE", "VECTOR"


def matrix_multiply(call: LayerCall) -> Tensor:
    """Products of matrices or vectors; leading sizes of 1 broadcast."""
    operations = [call.expect(name, _NONE, _TRANSPOSE, _VECTOR) for name in ("op0", "op1")]
    if call.input(0).dtype != call.input(1).dtype:
        raise call.error(f"expected inputs of one type, found {call.input(0).dtype} and {call.input(1).dtype}")
    first, second = _matrix(call.wide(0), operations[0], -2), _matrix(call.wide(1), operations[1], -1)
    call.same_rank(first, second)
    if first.shape[-1] != second.shape[-2]:
        raise call.error(f"expected matrices to multiply, found {list(first.shape)} and {list(second.shape)}")
    product = first @ second
    if operations[1] == _VECTOR:
        product = product.squeeze(-1)
    return product.squeeze(-2 if operations[1] != _VECTOR else -1) if operations[0] == _VECTOR else product


def _matrix(value: Tensor, operation: str, vector_axis: int) -> Tensor:
    if operation == _VECTOR:
        return value.unsqueeze(vector_axis)
    return value.mT if operation == _TRANSPOSE else value


def einsum(call: LayerCall) -> Tensor:
    """The sum of products given by an einsum equation."""
    return torch.einsum(call["equation"], *(call.wide(index) for index in range(len(call.inputs))))
