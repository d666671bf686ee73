"""The gated delta rule over a long text, with its state in 32 or in 16 bits, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.agreement import error_gate, relative_error
from benchmarks.runner import Report, Target, require
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule

MOST_ERROR, LEAST_RATIO = 3e-3, 10.0
# Data type, state type.
CURVES: Mapping[str, tuple[torch.dtype, torch.dtype]] = {
    "float16 data, float32 state": (torch.float16, torch.float32),
    "float16 data, float16 state": (torch.float16, torch.float16),
    "bfloat16 data, float32 state": (torch.bfloat16, torch.float32),
    "bfloat16 data, bfloat16 state": (torch.bfloat16, torch.bfloat16),
}
GOOD, BAD = "float16 data, float32 state", "float16 data, float16 state"


@dataclass(frozen=True)
class PrecisionSettings:
    """A head that forgets slowly: log decays in [-slowest_decay, 0], beta in [0, strongest_write].

    Errors are those of ``window`` tokens together.
    """

    tokens: int = 16384
    window: int = 256
    key_heads: int = 2
    value_heads: int = 4
    key_size: int = 64
    value_size: int = 64
    slowest_decay: float = 1e-4
    strongest_write: float = 0.01
    seed: int = 0


@dataclass(frozen=True)
class _Tokens:
    """Inputs of the operator for one row, [1, tokens, heads, size]; beta [1, tokens, heads]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def rounded(self, dtype: torch.dtype) -> _Tokens:
        """Values of ``dtype``; the log of the decay stays in float32, as the operator takes it."""
        return _Tokens(self.q.to(dtype), self.k.to(dtype), self.v.to(dtype), self.g, self.beta.to(dtype))

    def double(self) -> _Tokens:
        return _Tokens(*(value.double() for value in (self.q, self.k, self.v, self.g, self.beta)))


def run(settings: PrecisionSettings) -> Report:
    """Decode the same random tokens with every pair of types; one call of the eager operator a token."""
    tokens = _random_tokens(settings)
    exact = tokens.rounded(torch.float16).double()
    expected = step_loop(exact)
    gates = require(error_gate("eager operator in float64 against a step loop", [_prefill(exact)], [expected], 1e-9))
    at = list(range(settings.window, settings.tokens + 1, settings.window))
    errors = {}
    for name, (data, state) in CURVES.items():
        given = tokens.rounded(data)
        reference = expected if data is torch.float16 else step_loop(given.double())
        found = _decode(given, state)
        errors[name] = [
            relative_error(found[end - settings.window : end], reference[end - settings.window : end]) for end in at
        ]
    targets = (
        Target(f"{GOOD}: largest error", max(errors[GOOD]), "at most", MOST_ERROR, ""),
        Target(f"{BAD}: error at the end over that", errors[BAD][-1] / errors[GOOD][-1], "at least", LEAST_RATIO, "x"),
    )
    return Report(gates, {"tokens": at, "relative_error": errors}, targets)


def step_loop(tokens: _Tokens) -> np.ndarray:
    """The rule of arXiv 2412.06464, equation 10, with NumPy in float64: outputs [tokens, value_heads, value_size]."""
    q, k, v, g, beta = (value[0].numpy() for value in (tokens.q, tokens.k, tokens.v, tokens.g, tokens.beta))
    ratio, size = v.shape[1] // q.shape[1], q.shape[2]
    q, k = (np.repeat(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), ratio, axis=1) for x in (q, k))
    state, outputs = np.zeros((v.shape[1], size, v.shape[2])), np.empty_like(v)
    for t in range(len(v)):
        state *= np.exp(g[t])[:, :, None]
        written = beta[t][:, None] * (v[t] - np.matmul(k[t][:, None], state)[:, 0])
        state += k[t][:, :, None] * written[:, None]
        outputs[t] = np.matmul(q[t][:, None], state)[:, 0] * size**-0.5
    return outputs


def _random_tokens(settings: PrecisionSettings) -> _Tokens:
    generator = torch.Generator().manual_seed(settings.seed)
    keys = (1, settings.tokens, settings.key_heads, settings.key_size)
    values = (1, settings.tokens, settings.value_heads, settings.value_size)
    q, k = torch.randn(keys, generator=generator), torch.randn(keys, generator=generator)
    v = torch.randn(values, generator=generator)
    g = -settings.slowest_decay * torch.rand((*values[:3], 1), generator=generator)
    return _Tokens(q, k, v, g, settings.strongest_write * torch.rand(values[:3], generator=generator))


def _prefill(tokens: _Tokens) -> np.ndarray:
    """All tokens in one call from an empty state."""
    state = torch.zeros(1, tokens.v.shape[2], tokens.q.shape[3], tokens.v.shape[3], dtype=torch.float64)
    lengths = torch.tensor([tokens.v.shape[1]], dtype=torch.int32)
    arguments = (tokens.q, tokens.k, tokens.v, tokens.g, tokens.beta)
    return gated_delta_rule(*arguments, state, lengths, "head", 1, 0.0, 64)[0][0].numpy()


def _decode(tokens: _Tokens, dtype: torch.dtype) -> np.ndarray:
    """Token by token; between two tokens the state is stored in ``dtype``."""
    state = torch.zeros(1, tokens.v.shape[2], tokens.q.shape[3], tokens.v.shape[3], dtype=dtype)
    one, outputs = torch.ones(1, dtype=torch.int32), torch.empty_like(tokens.v[0])
    for t in range(tokens.v.shape[1]):
        arguments = (tokens.q[:, t], tokens.k[:, t], tokens.v[:, t], tokens.g[:, t], tokens.beta[:, t])
        output, state = gated_delta_rule(*arguments, state, one, "head", 1, 0.0, 64)
        outputs[t] = output[0]
    return outputs.double().numpy()
