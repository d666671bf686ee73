"""The form of a recurrent operator whose state has 8 bits, with a scale for every row of a head."""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.artifact.state_dtypes import LARGEST
from hybridge.trt_plugins.spec import OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.state_forms import SUFFIX_8BIT

STATE, STATE_SCALES = "state", "state_scales"
_TYPE = "Q"


def state_8bit_form(spec: OpSpec, summed: str) -> OpSpec:
    """``spec``, a dense operator, with int8 or e4m3 states (as bytes) and, behind them, their scales.

    summed: the dim of the state over which its readers sum. All numbers of a head that differ in it alone share a
    scale: the largest magnitude of them over that of the type (127 or 448), 0 where all are 0, not a number where one
    is not finite. They are divided by it and rounded to nearest even. A call reads the state as numbers times scales,
    computes in float32 as in ``spec``, however many tokens it has, and rounds what it stores.
    """
    doc = f"{spec.doc} The state has 8 bits and is multiplied by state_scales; only what is stored is rounded."
    return replace(
        spec,
        name=spec.name + SUFFIX_8BIT,
        doc=doc,
        inputs=tuple(tensor for given in spec.inputs for tensor in _with_scales(given, summed)),
        outputs=tuple(tensor for given in spec.outputs for tensor in _with_scales(given, summed)),
        type_variables=(*(v for v in spec.type_variables if v.name != "S"), TypeVariable(_TYPE, tuple(LARGEST))),
        has_kernels=False,
    )


def is_8bit(spec: OpSpec) -> bool:
    """Whether ``spec`` is of that form."""
    return any(tensor.name == STATE_SCALES for tensor in spec.inputs)


def scale_axis(spec: OpSpec) -> int:
    """The axis of the state, from its end, whose numbers share a scale."""
    dims = spec.inputs[spec.input_index(STATE)].dims
    (axis,) = (i for i, dim in enumerate(dims) if dim not in spec.inputs[spec.input_index(STATE_SCALES)].dims)
    return axis - len(dims)


def _with_scales(tensor: TensorSpec, summed: str) -> tuple[TensorSpec, ...]:
    if tensor.dtype != "S":
        return (tensor,)
    dims = tuple(dim for dim in tensor.dims if dim != summed)
    name = tensor.name.replace(STATE, STATE_SCALES)
    doc = f"what the numbers of {tensor.name} are multiplied by"
    return replace(tensor, dtype=_TYPE), TensorSpec(name, DType.FLOAT32, dims, doc)
