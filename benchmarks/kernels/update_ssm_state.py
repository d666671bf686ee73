"""Cases of ``update_ssm_state`` at the shapes of Nemotron-H and Granite 4, with a state updated in place.

One token a row with states in float32 and bfloat16, and those of 8 bits, int8 and e4m3; and many tokens
a row with a float32 state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.packages import flashinfer, mamba_ssm
from benchmarks.kernels.peers import Peer, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import error_of_parts, int32, normal, operator_call, poisoned, worst_error
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill import plan_prefill
from hybridge.trt_plugins.reference.quantized_state import LARGEST, exact_state, quantized_state
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

HEAD_DIM, STATE_SIZE = 64, 128
# y is bfloat16; a state of int8 is rounded to 1/254 of its row's largest magnitude, of e4m3 to 1/16 of the value.
TOLERANCE = 3e-3
STATE_TOLERANCE = {torch.int8: 1e-2, torch.float8_e4m3fn: 3.5e-2}
AT_LEAST = {1: 1.3, 8: 1.1}
BANDWIDTH_SINCE, BANDWIDTH_SHARE = 64, 0.9
STATES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "e4m3": torch.float8_e4m3fn}
_TOKEN_INPUTS = (0, 2, 3, 5)  # x, B, C, dt: the inputs with a token axis
_CHECKED_TOKENS = 4096  # of the first row: what the float64 reference holds in memory at once
_CHUNKS = (128, 256)  # of mamba_ssm's scan
Tensors = list[torch.Tensor]
# From x, A, B, C, D, dt, dt_bias and the state: what enqueues a call and returns y and the state after it.
Call = Callable[..., Callable[[], Sequence[torch.Tensor]]]


@dataclass(frozen=True)
class Model:
    """heads of HEAD_DIM channels in groups that share B and C."""

    heads: int
    groups: int

    @property
    def inner(self) -> int:
        """Channels of x."""
        return self.heads * HEAD_DIM

    @property
    def channels(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * STATE_SIZE

    def parts(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x, B and C as slices of the convolution's output."""
        width = self.groups * STATE_SIZE
        x, B, C = mixed.split([self.inner, width, width], -1)
        group = (self.groups, STATE_SIZE)
        return x.unflatten(-1, (self.heads, HEAD_DIM)), B.unflatten(-1, group), C.unflatten(-1, group)


MODELS = {"Nemotron": Model(128, 8), "Granite": Model(48, 1)}


def decode_cases() -> Iterator[KernelCase]:
    """1 to 256 rows of Nemotron's mixer, 1 to 64 of Granite's."""
    for model, most in (("Nemotron", 256), ("Granite", 64)):
        for rows in (rows for rows in (1, 8, 64, 256) if rows <= most):
            for state, dtype in STATES.items():
                name, narrow = f"{model} b{rows} {state} state", dtype in LARGEST
                yield KernelCase(
                    name,
                    _decode_bytes(MODELS[model], rows, dtype.itemsize, narrow),
                    STATE_TOLERANCE.get(dtype, TOLERANCE),
                    partial(_prepared_decode, MODELS[model], rows, dtype),
                    None if narrow else AT_LEAST.get(rows, 1.0),
                    BANDWIDTH_SHARE if rows >= BANDWIDTH_SINCE and not narrow else None,
                    dict if narrow else partial(_decode_peers, MODELS[model], rows, dtype),
                )


def _decode_bytes(model: Model, rows: int, item: int, scaled: bool) -> int:
    tokens = 2 * rows * (model.inner + model.channels + model.heads)
    return 2 * rows * model.inner * (STATE_SIZE * item + (4 if scaled else 0)) + tokens + 12 * model.heads


def _decode_peers(model: Model, rows: int, dtype: torch.dtype) -> Mapping[str, Peer]:
    calls: dict[str, Call] = {
        name: partial(flashinfer.state_update, algorithm=name) for name in ("simple", "vertical", "horizontal")
    }
    prepares = {name: partial(_decode_peer, model, rows, dtype, call, torch.bfloat16) for name, call in calls.items()}
    return {
        **package_peers(
            mamba_ssm.DISTRIBUTION, {"": partial(_decode_peer, model, rows, dtype, mamba_ssm.state_update)}
        ),
        **package_peers(flashinfer.DISTRIBUTION, prepares, flashinfer.NAME),
    }


def _decode_inputs(model: Model, rows: int) -> Tensors:
    """In the operator's order, up to a float32 state; x, B, C and dt are slices of wider tensors."""
    x, B, C = model.parts(normal(rows, model.channels, dtype=torch.bfloat16))
    dt = normal(rows, model.inner + model.channels + model.heads, dtype=torch.bfloat16)[:, -model.heads :]
    A, D, bias = -8 * torch.rand(model.heads, device="cuda"), normal(model.heads), normal(model.heads)
    return [x, A, B, C, D, dt, bias, normal(rows, model.heads, HEAD_DIM, STATE_SIZE)]


def _after_token(data: Tensors, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """y and the state after one token, in float64."""
    arguments: list[Any] = [*(tensor.double() for tensor in data), state, int32(len(state), 1), 1, 0.0, math.inf, 1]
    return update_ssm_state(*arguments)


def _decode_peer(
    model: Model, rows: int, dtype: torch.dtype, call: Call, weights: torch.dtype = torch.float32
) -> Prepared:
    """weights: type of D and dt_bias, ours unless the package wants that of dt."""
    *data, state = _decode_inputs(model, rows)
    data[4], data[6], state = data[4].to(weights), data[6].to(weights), state.to(dtype)
    run = call(*data, state)

    def error() -> float:
        expected = _after_token(data, state.double())
        return worst_error(run(), expected)

    return Prepared(run, error)


def _prepared_decode(model: Model, rows: int, dtype: torch.dtype) -> Prepared:
    *data, state = _decode_inputs(model, rows)
    scales: tuple[torch.Tensor, ...] = ()
    if dtype in LARGEST:
        state, scale = quantized_state(state, dtype)
        scales = (scale,)
    state, lengths, y = state.to(dtype), int32(rows, 1), poisoned(rows, model.heads, HEAD_DIM)
    spec = spec_of("update_ssm_state_8bit" if scales else "update_ssm_state")
    run = operator_call(spec, [*data, state, *scales, lengths], [y, state, *scales])

    def exact() -> torch.Tensor:
        return exact_state(state, scales[0]) if scales else state.double()

    def error() -> float:
        expected = _after_token(data, exact())
        run()
        return worst_error((y, exact()), expected)

    return Prepared(run, error)


def prefill_cases() -> Iterator[KernelCase]:
    """One row of 128 to 16,384 tokens, and eight rows of 1,024."""
    for name, model in MODELS.items():
        for rows, time in ((1, 128), (1, 1024), (1, 4096), (1, 16384), (8, 1024)):
            case = f"{name} b{rows} L{time}"
            tokens = 2 * rows * time * (model.inner + model.channels + model.heads)
            size = tokens + 8 * rows * model.inner * STATE_SIZE
            yield KernelCase(
                case,
                size,
                TOLERANCE,
                partial(_prepared_prefill, model, rows, time, _prefill_call),
                1.0,
                peers=partial(_prefill_peers, model, rows, time),
            )


def _prefill_peers(model: Model, rows: int, time: int) -> Mapping[str, Peer]:
    calls = {f"chunk {chunk}": partial(mamba_ssm.chunk_scan, chunk=chunk) for chunk in _CHUNKS}
    prepares = {name: partial(_prepared_prefill, model, rows, time, call) for name, call in calls.items()}
    return package_peers(mamba_ssm.DISTRIBUTION, prepares)


def _prefill_call(*inputs: torch.Tensor) -> Callable[[], Sequence[torch.Tensor]]:
    """Ours: the state is updated in place."""
    x, state = inputs[0], inputs[-1]
    y, lengths = torch.full_like(x, float("nan")), int32(*x.shape[:2])
    return operator_call(spec_of("update_ssm_state"), [*inputs, lengths], [y, state], planner=plan_prefill)


def _prepared_prefill(model: Model, rows: int, time: int, call: Call) -> Prepared:
    def data(*sizes: int) -> torch.Tensor:
        return normal(rows, time, *sizes, dtype=torch.bfloat16)

    x, B, C = data(model.heads, HEAD_DIM), data(model.groups, STATE_SIZE), data(model.groups, STATE_SIZE)
    A, D, bias = -1 - 15 * torch.rand(model.heads, device="cuda"), normal(model.heads), normal(model.heads) - 4
    state = normal(rows, model.heads, HEAD_DIM, STATE_SIZE)
    inputs = [x, A, B, C, D, data(model.heads), bias]
    run = call(*inputs, state)

    def error() -> float:
        """Relative error of the first row."""
        carried, parts = state[:1].double(), []
        y, last = run()
        for begin in range(0, time, _CHECKED_TOKENS):
            tokens = slice(begin, begin + _CHECKED_TOKENS)
            part = [each[:1, tokens] if index in _TOKEN_INPUTS else each for index, each in enumerate(inputs)]
            lengths = int32(1, part[0].shape[1])
            arguments: list[Any] = [*(each.double() for each in part), carried, lengths, 1, 0.0, math.inf, 64]
            expected, carried = update_ssm_state(*arguments)
            parts.append((y[:1, tokens], expected))
        return max(error_of_parts(parts), worst_error([last[:1]], [carried]))

    return Prepared(run, error)
