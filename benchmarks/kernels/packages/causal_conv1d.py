"""causal_conv1d: causal convolutions in CUDA."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

DISTRIBUTION = "causal_conv1d"
Run = Callable[[], tuple[Tensor, Tensor]]


def step(x: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Run:
    """y after SiLU and the state, which is updated in place.

    x: [rows, channels]. weight: [channels, 1, width]. bias: [channels]. state: [rows, channels, width].
    """
    from causal_conv1d import causal_conv1d_update

    taps = weight.squeeze(1)
    return lambda: (causal_conv1d_update(x, state, taps, bias, "silu"), state)


def prompt(x: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Run:
    """y after SiLU and the last width - 1 columns of the state; as ``step``, with x: [rows, time, channels]."""
    from causal_conv1d import causal_conv1d_fn

    taps = weight.squeeze(1)
    # It takes channels before tokens, by strides, and only the columns that the next token needs.
    before = state[..., 1:].transpose(1, 2).contiguous().transpose(1, 2)
    after = before.clone()
    options = {"initial_states": before, "return_final_states": True, "final_states_out": after, "activation": "silu"}

    def run() -> tuple[Tensor, Tensor]:
        y, last = causal_conv1d_fn(x.transpose(1, 2), taps, bias, **options)
        return y.transpose(1, 2), last

    return run
