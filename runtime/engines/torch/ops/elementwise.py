"""Operators that work element by element, and constants."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.tensors import torch_from_dtype
from hybridge.runtime.engines.torch.weights import tensor_from_ir
from hybridge.trt_plugins.reference.activations import gelu, gelu_tanh

_CONSTANT_KINDS = {
    "value_int": torch.int64,
    "value_ints": torch.int64,
    "value_float": torch.float32,
    "value_floats": torch.float32,
}


def _plain(function: Callable[..., torch.Tensor]) -> Builder:
    return lambda context: function


def _folded(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Builder:
    """Any number of inputs, taken together two by two."""
    return lambda context: lambda *values: reduce(function, values)


def _cast(context: NodeContext) -> Run:
    dtype = torch_from_dtype(DType.from_onnx(int(context.attributes.take("to"))))
    # Both are about narrow types that the artifact does not have.
    context.attributes.take("saturate", 1)
    context.attributes.take("round_mode", "up")
    return lambda x: x.to(dtype)


def _cast_like(context: NodeContext) -> Run:
    context.attributes.take("saturate", 1)
    context.attributes.take("round_mode", "up")
    return lambda x, like: x.to(like.dtype)


def _reduce_max(context: NodeContext) -> Run:
    context.attributes.expect("keepdims", 1)
    context.attributes.expect("noop_with_empty_axes", 0)
    axes = context.ints(1)
    return lambda x: x.amax(axes, keepdim=True)


def _gelu(context: NodeContext) -> Run:
    return gelu_tanh if context.attributes.take("approximate", "none") == "tanh" else gelu


def _constant(context: NodeContext) -> Run:
    ((kind, value),) = context.attributes.rest().items()
    if kind == "value":
        tensor = tensor_from_ir(value)
    elif kind in _CONSTANT_KINDS:
        tensor = torch.tensor(value, dtype=_CONSTANT_KINDS[kind])
    else:
        raise EngineError(f"Constant: the torch engine does not know its form {kind}: use `engine='onnxruntime'`")
    return lambda: tensor


FUSED_ROWS: dict[str, Builder] = {"MulAdd": _plain(torch.addcmul), "Silu": _plain(F.silu)}
ROWS: dict[str, Builder] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(torch.add),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _plain(torch.clamp),
    "Constant": _constant,
    "Cos": _plain(torch.cos),
    "Div": _plain(torch.div),
    "Equal": _plain(torch.eq),
    "Gelu": _gelu,
    "Greater": _plain(torch.gt),
    "Less": _plain(torch.lt),
    "Max": _folded(torch.maximum),
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "ReduceMax": _reduce_max,
    "Relu": _plain(torch.relu),
    "Round": _plain(torch.round),
    "Sigmoid": _plain(torch.sigmoid),
    "Sin": _plain(torch.sin),
    "Softplus": _plain(F.softplus),
    "Sqrt": _plain(torch.sqrt),
    "Sub": _plain(torch.sub),
    "Tanh": _plain(torch.tanh),
    "Where": _plain(torch.where),
}
