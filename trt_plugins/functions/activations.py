"""Activations in standard operators that every engine has."""

from __future__ import annotations

from math import pi, sqrt

from trt_plugins.functions.body import Body


def activated(body: Body, x: str, name: str) -> str:
    """``name`` of ``x``, a float32 value of any shape; names are those of torch's eager forms."""
    if name == "silu":
        return body.op("Mul", x, body.op("Sigmoid", x))
    if name == "gelu":
        return _half_of(body, x, body.op("Erf", body.op("Mul", x, body.float32(sqrt(0.5)))))
    if name == "gelu_pytorch_tanh":
        cubed = body.op("Mul", body.op("Mul", x, x), body.op("Mul", x, body.float32(0.044715)))
        inner = body.op("Mul", body.op("Add", x, cubed), body.float32(sqrt(2.0 / pi)))
        return _half_of(body, x, body.op("Tanh", inner))
    positive = body.op("Relu", x)
    return positive if name == "relu" else body.op("Mul", positive, positive)


def _half_of(body: Body, x: str, odd: str) -> str:
    """x / 2 * (1 + odd)."""
    return body.op("Mul", body.op("Mul", x, body.float32(0.5)), body.op("Add", odd, body.float32(1.0)))
