"""fla-core: the gated delta rule and causal convolutions in Triton."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

DISTRIBUTION = NAME = "fla-core"
os.environ["FLA_FLASH_QLA"] = "0"  # FlashQLA, which it would use where that is installed, is a peer of its own
Run = Callable[[], tuple[Tensor, Tensor]]
_OPTIONS = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}


def gated_delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Run:
    """o, and the states as a new tensor in float32.

    q, k: [rows, key_heads, size]. v: [rows, value_heads, size]. g: [rows, value_heads, 1]. beta: [rows, value_heads].
    state: [rows, value_heads, size, size].
    """
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    q, k, v, g, beta = (each.unsqueeze(1).contiguous() for each in (q, k, v, g.squeeze(-1), beta))
    call = partial(fused_recurrent_gated_delta_rule, q, k, v, g=g, beta=beta, initial_state=state, **_OPTIONS)

    def run() -> tuple[Tensor, Tensor]:
        o, last = call()
        return o.squeeze(1), last

    return run


def gated_delta_prompt(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Run:
    """As ``gated_delta_step``, with a token axis after the first of all but the state, which is float32."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    tokens = [each.contiguous() for each in (q, k, v, g.squeeze(-1), beta)]
    return partial(chunk_gated_delta_rule, *tokens, initial_state=state, **_OPTIONS)


def channel_delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Run:
    """o and the state, which is updated in place; as ``gated_delta_step``, with g: [rows, value_heads, size]."""
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    tokens = [each.unsqueeze(1).contiguous() for each in (q, k, v, g, beta)]
    o = torch.empty_like(tokens[2])
    call = partial(
        fused_recurrent_kda_fwd,
        *tokens,
        initial_state=state,
        inplace_final_state=True,
        use_qk_l2norm_in_kernel=True,
        out=o,
    )

    def run() -> tuple[Tensor, Tensor]:
        call()
        return o.squeeze(1), state

    return run


def channel_delta_prompt(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, bounded: bool = False
) -> Run:
    """As ``gated_delta_prompt``, with g: [rows, time, value_heads, size]. bounded: no value of g is below -5."""
    from fla.ops.kda import chunk_kda

    tokens = [each.contiguous() for each in (q, k, v, g, beta)]
    return partial(chunk_kda, *tokens, initial_state=state, safe_gate=bounded, **_OPTIONS)


def convolution_step(x: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Run:
    """y after SiLU and the state, which is updated in place.

    x: [rows, channels]. weight: [channels, 1, width]. bias: [channels]. state: [rows, channels, width].
    """
    from fla.modules.causal_conv1d import causal_conv1d_update

    return partial(causal_conv1d_update, x=x, cache=state, weight=weight.squeeze(1), bias=bias, activation="silu")


def convolution_prompt(x: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Run:
    """y after SiLU and the last state, as new tensors; as ``convolution_step``, with x: [rows, time, channels]."""
    from fla.modules.causal_conv1d import causal_conv1d_fwd

    return partial(
        causal_conv1d_fwd,
        x=x,
        weight=weight.squeeze(1),
        bias=bias,
        residual=None,
        initial_state=state,
        output_final_state=True,
        activation="silu",
    )
