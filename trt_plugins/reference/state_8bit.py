"""Recurrent operators over states of 8 bits: the operator in float32 between reading and rounding them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridge.trt_plugins.reference.lengths import clamped_lengths
from hybridge.trt_plugins.reference.quantized_state import exact_state, quantized_state
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS
from hybridge.trt_plugins.specs.state_8bit import STATE, STATE_SCALES, scale_axis

STORED = {torch.int8: torch.int8, torch.uint8: torch.float8_e4m3fn}
"""The numbers that the bytes of a state of each type are."""


def state_8bit_reference(spec: OpSpec, dense: Callable) -> Callable:
    """The eager form of ``spec``, a dense declaration over 8-bit states, from that of the operator over float32 ones.

    A row without tokens keeps its state and scales bit for bit.
    """
    state, scales, axis = spec.input_index(STATE), spec.input_index(STATE_SCALES), scale_axis(spec)
    lengths = spec.input_index(CONTEXT_LENGTHS.name)

    def eager(*arguments: object) -> tuple[Tensor, ...]:
        values, factors, counts = arguments[state], arguments[scales], arguments[lengths]
        assert isinstance(values, Tensor) and isinstance(factors, Tensor) and isinstance(counts, Tensor)
        exact = exact_from_bytes(values, factors, axis)
        y, last = dense(*arguments[:state], exact, *arguments[scales + 1 :])
        new, new_scales = quantized_state(last, STORED[values.dtype], axis)
        fed = clamped_lengths(counts, 1)[:, None, None] > 0
        return (
            y,
            torch.where(fed.unsqueeze(-1), new.view(values.dtype), values),
            torch.where(fed, new_scales.to(factors.dtype), factors),
        )

    return eager


def exact_from_bytes(values: Tensor, scales: Tensor, axis: int) -> Tensor:
    """``values`` (int8, or bytes of e4m3) times ``scales``, in the type of ``scales``."""
    return exact_state(values.view(STORED[values.dtype]), scales, axis).to(scales.dtype)
