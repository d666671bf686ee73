"""Activations as ONNX nodes whose relative error stays below 1e-5 on both tails, in float32.

ONNX Runtime's own kernels of Sigmoid, QuickGelu and Gelu bound the absolute error only: sigmoid(-16) is off by half of
itself. Their Exp, Erf, Softplus and Tanh are exact to a few roundings. The same nodes serve function bodies and
engines' graphs, as those of e4m3.py do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import pi, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridge.trt_plugins.e4m3 import Nodes, V

# Phi(-a) = t R(t) exp(-a^2 / 2) with t = 1 / (1 + _SLOPE a), Phi the normal distribution. R is a minimax fit to the
# relative error over a in [0, 14], 1.5e-7; highest power first.
_SLOPE = 0.3
_TAIL = (
    0.0356748059,
    -0.15720317,
    0.206353587,
    -0.05368366,
    0.128561608,
    0.099913505,
    0.120753953,
    0.119629299,
)


def activated(nodes: Nodes[V], x: V, name: str) -> V:
    """``name`` of ``x``, a float32 value of any shape; names are those of torch's eager forms."""
    return _ACTIVATIONS[name](nodes, x)


def sigmoid_divisor(nodes: Nodes[V], x: V) -> V:
    """1 + exp(-x), by which 1 is divided for a sigmoid of ``x``; infinite where it overflows."""
    return _plus(nodes, nodes.op("Exp", nodes.op("Neg", x)), 1.0)


def silu(nodes: Nodes[V], x: V) -> V:
    """x sigmoid(x) = x / (1 + exp(-x))."""
    return nodes.op("Div", x, sigmoid_divisor(nodes, x))


def gelu(nodes: Nodes[V], x: V) -> V:
    """relu(x) - |x| Phi(-|x|), where x (1 + erf(x / sqrt(2))) / 2 would cancel."""
    a = nodes.op("Abs", x)
    t = nodes.op("Reciprocal", _plus(nodes, _times(nodes, a, _SLOPE), 1.0))
    R = reduce(lambda sum_, c: _plus(nodes, nodes.op("Mul", sum_, t), c), _TAIL[1:], _number(nodes, _TAIL[0]))
    power = nodes.op("Exp", nodes.op("Mul", nodes.op("Mul", a, a), _number(nodes, -0.5)))
    below = nodes.op("Mul", nodes.op("Mul", nodes.op("Mul", a, t), R), power)
    return nodes.op("Sub", nodes.op("Relu", x), below)


def gelu_tanh(nodes: Nodes[V], x: V) -> V:
    """x sigmoid(2 u) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3): x (1 + tanh(u)) / 2."""
    # The two terms of -2 u apart: their sum, up to 69, would be rounded again.
    linear, cubic = -2.0 * sqrt(2.0 / pi), -2.0 * sqrt(2.0 / pi) * 0.044715
    cube = nodes.op("Mul", x, _times(nodes, nodes.op("Mul", x, x), cubic))
    power = nodes.op("Mul", nodes.op("Exp", _times(nodes, x, linear)), nodes.op("Exp", cube))
    return nodes.op("Div", x, _plus(nodes, power, 1.0))


def relu(nodes: Nodes[V], x: V) -> V:
    return nodes.op("Relu", x)


def relu2(nodes: Nodes[V], x: V) -> V:
    positive = nodes.op("Relu", x)
    return nodes.op("Mul", positive, positive)


def _plus(nodes: Nodes[V], x: V, number: float) -> V:
    return nodes.op("Add", x, _number(nodes, number))


def _times(nodes: Nodes[V], x: V, number: float) -> V:
    return nodes.op("Mul", x, _number(nodes, number))


def _number(nodes: Nodes[V], value: float) -> V:
    return nodes.array(np.array(value, np.float32))


_ACTIVATIONS: Mapping[str, Callable[[Nodes[Any], Any], Any]] = MappingProxyType(
    {"silu": silu, "gelu": gelu, "gelu_pytorch_tanh": gelu_tanh, "relu": relu, "relu2": relu2}
)
