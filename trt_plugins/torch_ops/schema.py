"""The torch schema string of an operator, and the check of a call that torch makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.call_check import CheckedCall, TensorType, check_call
from hybridge.trt_plugins.catalog import DENSE_VERSION
from hybridge.trt_plugins.spec import OpSpec, TensorSpec
from hybridge.trt_plugins.specs.packed import PACKED_VERSION
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION

OVERLOADS = {DENSE_VERSION: "default", PACKED_VERSION: "packed", SPECULATIVE_VERSION: "speculative"}
"""Name of the overload of each version's operators."""
_KINDS = {"int": "int", "float": "float", "string": "str"}


def overload_name(spec: OpSpec) -> str:
    """``domain::name`` of the dense form, ``domain::name.packed`` of the packed one, and so on."""
    return spec.qualified_name if spec.version == DENSE_VERSION else f"{spec.qualified_name}.{OVERLOADS[spec.version]}"


def torch_schema(spec: OpSpec) -> str:
    """``(Tensor x, ..., str activation) -> (Tensor y, ...)`` in declared order.

    Attributes have no defaults there: torch cannot write an infinite default, and a caller states them all. A single
    output is not a tuple.
    """
    inputs = [f"Tensor{'?' if tensor.optional else ''} {tensor.name}" for tensor in spec.inputs]
    attributes = [f"{_KINDS[attribute.kind]} {attribute.name}" for attribute in spec.attributes]
    outputs = ", ".join(f"Tensor {output.name}" for output in spec.outputs)
    return f"({', '.join(inputs + attributes)}) -> ({outputs})"


def check_torch_call(spec: OpSpec, arguments: Sequence[object]) -> CheckedCall:
    """Check the positional arguments of a torch call; UnsupportedError naming operator and argument."""
    count = len(spec.inputs)
    tensors = [_tensor_type(tensor, value) for tensor, value in zip(spec.inputs, arguments[:count], strict=True)]
    names = (attribute.name for attribute in spec.attributes)
    attributes: Mapping[str, object] = dict(zip(names, arguments[count:], strict=True))
    return check_call(spec, tensors, attributes, allow_float64=True)


def _tensor_type(spec: TensorSpec, value: object) -> TensorType | None:
    if value is None:
        return None
    if not isinstance(value, Tensor):
        raise UnsupportedError(f"expected a tensor for {spec.name}, found {type(value).__name__}; pass a torch.Tensor")
    return TensorType(dtype_from_torch(value.dtype), tuple(value.shape))


def dtype_from_torch(dtype: torch.dtype) -> DType:
    """The DType of the same name; UnsupportedError for a type outside the table."""
    return DType.parse(str(dtype).removeprefix("torch."))
