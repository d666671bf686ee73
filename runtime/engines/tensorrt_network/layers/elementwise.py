"""ELEMENTWISE, SELECT, UNARY, ACTIVATION, CAST and IDENTITY, element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall


def elementwise(call: LayerCall) -> Tensor:
    """A binary operation on inputs of the same type and rank; sizes of 1 broadcast."""
    first, second = call.wide(0), call.wide(1)
    call.same_rank(first, second)
    if call.input(0).dtype != call.input(1).dtype:
        raise call.error(f"expected inputs of one type, found {call.input(0).dtype} and {call.input(1).dtype}")
    operation = _BINARY.get(call["op"])
    if operation is None:
        raise call.error(f"expected one of the operations {', '.join(_BINARY)}, found {call['op']}")
    if call["op"] in _EXACT and not first.is_floating_point() and not (first.is_meta or second.is_meta):
        _check_range(call, operation(first, second), operation(first.double(), second.double()))
    return operation(first, second)


def _check_range(call: LayerCall, found: Tensor, exact: Tensor) -> None:
    """EngineError if an integer overflows: sizes of tensors are computed from such integers."""
    outside = (found.double() - exact).abs() > torch.iinfo(found.dtype).max
    if outside.any():
        raise call.error(f"expected integers within {found.dtype}, found {exact[outside][0].item():.0f}")


def select(call: LayerCall) -> Tensor:
    """The second input where the condition is true, else the third."""
    condition, chosen, other = (call.input(index) for index in range(3))
    call.same_rank(condition, chosen, other)
    return torch.where(condition, chosen, other)


def unary(call: LayerCall) -> Tensor:
    """A unary operation; integers stay integers."""
    operation = _UNARY.get(call["op"])
    if operation is None:
        raise call.error(f"expected one of the operations {', '.join(_UNARY)}, found {call['op']}")
    return operation(call.wide(0))


def activation(call: LayerCall) -> Tensor:
    """An activation, some with attributes alpha and beta."""
    operation = _ACTIVATIONS.get(call["type"])
    if operation is None:
        raise call.error(f"expected one of the activations {', '.join(_ACTIVATIONS)}, found {call['type']}")
    return operation(call.wide(0), call["alpha"], call["beta"])


def cast(call: LayerCall) -> Tensor:
    """The input in the output's type: fractions are truncated, nonzero numbers are true."""
    value, dtype = call.input(0), call.dtypes[0]
    return value != 0 if dtype is torch.bool else value.to(dtype)


def identity(call: LayerCall) -> Tensor:
    """The input, unchanged."""
    return call.input(0)


def _divide(first: Tensor, second: Tensor) -> Tensor:
    return first / second if first.is_floating_point() else torch.div(first, second, rounding_mode="trunc")


# Operations on integers that may overflow.
_EXACT = ("SUM", "SUB", "PROD")
_BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "SUB": torch.sub,
    "PROD": torch.mul,
    "DIV": _divide,
    "FLOOR_DIV": torch.floor_divide,
    "POW": torch.pow,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
    "AND": torch.logical_and,
    "OR": torch.logical_or,
    "XOR": torch.logical_xor,
    "EQUAL": torch.eq,
    "GREATER": torch.gt,
    "LESS": torch.lt,
}
_UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "EXP": torch.exp,
    "LOG": torch.log,
    "SQRT": torch.sqrt,
    "RECIP": torch.reciprocal,
    "ABS": torch.abs,
    "NEG": torch.neg,
    "SIN": torch.sin,
    "COS": torch.cos,
    "TAN": torch.tan,
    "SINH": torch.sinh,
    "COSH": torch.cosh,
    "TANH": torch.tanh,
    "CEIL": torch.ceil,
    "FLOOR": torch.floor,
    "ERF": torch.erf,
    "NOT": torch.logical_not,
    "SIGN": torch.sign,
    "ROUND": torch.round,  # ties to even
    "ISINF": torch.isinf,
    "ISNAN": torch.isnan,
}


def _softplus(x: Tensor, alpha: float, beta: float) -> Tensor:
    return alpha * torch.logaddexp(beta * x, torch.zeros_like(x))


_ACTIVATIONS: Mapping[str, Callable[[Tensor, float, float], Tensor]] = {
    "RELU": lambda x, a, b: torch.relu(x),
    "SIGMOID": lambda x, a, b: torch.sigmoid(x),
    "TANH": lambda x, a, b: torch.tanh(x),
    "LEAKY_RELU": lambda x, a, b: torch.where(x >= 0, x, a * x),
    "ELU": lambda x, a, b: torch.where(x >= 0, x, a * torch.expm1(x)),
    "SELU": lambda x, a, b: torch.where(x > 0, b * x, b * a * torch.expm1(x)),
    "SOFTSIGN": lambda x, a, b: x / (1 + x.abs()),
    "SOFTPLUS": _softplus,
    "CLIP": lambda x, a, b: x.clamp(a, b),
    "HARD_SIGMOID": lambda x, a, b: (a * x + b).clamp(0, 1),
    "SCALED_TANH": lambda x, a, b: a * torch.tanh(b * x),
    "THRESHOLDED_RELU": lambda x, a, b: torch.where(x > a, x, torch.zeros_like(x)),
    "GELU_ERF": lambda x, a, b: functional.gelu(x),
    "GELU_TANH": lambda x, a, b: functional.gelu(x, approximate="tanh"),
}
