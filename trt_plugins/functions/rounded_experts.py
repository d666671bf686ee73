"""``rounded_experts`` in standard operators: ``routed_experts`` with rounded inputs of its products."""

from __future__ import annotations

import onnx

from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.routed_experts import experts_function
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.specs.rounded_experts import INT8, NVFP4, STATIC

_LARGEST = {"int8": 127.0, "fp8": 448.0, "nvfp4": 6.0}
_LEAST_SCALE = 1e-30
_SCALES = {"up_weight": "up_input_scale", "down_weight": "down_input_scale"}
_E4M3 = onnx.TensorProto.FLOAT8E4M3FN


def rounded_experts_function(signature: Signature) -> onnx.FunctionProto:
    """The steps of the scan round the rows of a block, with the scale of the block's expert."""
    return experts_function(signature, _rounded)


def _rounded(body: Body, rows: str, expert: str, weight: str) -> str:
    """rows [q, features] rounded to numbers of the type times scales, float32."""
    rounding, group = str(body.signature.attribute("rounding")), int(body.signature.attribute("group"))
    own = body.op("Gather", _SCALES[weight], expert)
    values = rows
    if group > 0:
        values = body.reshape(rows, body.size(rows, 0), body.constant([-1]), body.constant([group]))
    if rounding != NVFP4 and group == STATIC:
        result = body.op("Mul", _numbers(body, body.op("Div", values, own), rounding), own)
    else:
        largest = body.op("ReduceMax", body.op("Abs", values), body.constant([-1]), keepdims=1)
        scale = body.op("Div", largest, body.float32(_LARGEST[rounding]))
        if rounding == NVFP4:
            scale = body.op("Mul", _e4m3(body, body.op("Div", scale, own)), own)
        divisor = body.op("Max", scale, body.float32(_LEAST_SCALE))
        numbers = _numbers(body, body.op("Div", values, divisor), rounding)
        result = body.op("Mul", numbers, scale if rounding == NVFP4 else divisor)
    return body.op("Reshape", result, body.op("Shape", rows)) if group > 0 else result


def _numbers(body: Body, values: str, rounding: str) -> str:
    """The nearest numbers of the type; ties go to even ones."""
    if rounding == INT8:
        return body.op("Clip", body.op("Round", values), body.float32(-128.0), body.float32(127.0))
    return _e2m1(body, values) if rounding == NVFP4 else _e4m3(body, values)


def _e4m3(body: Body, values: str) -> str:
    one = body.float32(1.0)
    return body.op("DequantizeLinear", body.op("QuantizeLinear", values, one, output_dtype=_E4M3), one)


def _e2m1(body: Body, values: str) -> str:
    """Numbers below 2 are multiples of 1/2, those below 4 of 1, others of 2."""
    sizes = body.op("Abs", values)
    step = body.op("Where", body.op("Less", sizes, body.float32(4.0)), body.float32(1.0), body.float32(2.0))
    step = body.op("Where", body.op("Less", sizes, body.float32(2.0)), body.float32(0.5), step)
    numbers = body.op("Mul", body.op("Round", body.op("Div", values, step)), step)
    return body.op("Clip", numbers, body.float32(-6.0), body.float32(6.0))
