"""mamba_ssm: Mamba2's kernels in Triton, Mamba1's scan in CUDA."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

DISTRIBUTION = "mamba_ssm"
Run = Callable[[], tuple[Tensor, Tensor]]


def state_update(
    x: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt: Tensor, dt_bias: Tensor, state: Tensor
) -> Run:
    """y and the state, which is updated in place.

    x: [rows, heads, head_dim]. A, D, dt_bias: [heads]. B, C: [rows, groups, state_size]. dt: [rows, heads].
    state: [rows, heads, head_dim, state_size].
    """
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    call = of_heads(selective_state_update, x, A, B, C, D, dt, dt_bias, state)
    return lambda: (call(), state)


def of_heads(
    update: Callable[..., Tensor],
    x: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    **options: object,
) -> Callable[[], Tensor]:
    """``update`` with the arguments of selective_state_update, from tensors as in ``state_update``.

    One number for all channels of a head, by strides of 0: kernels have a way of their own for these.
    """
    sizes = (-1, *state.shape[2:])
    return partial(
        update,
        state,
        x,
        dt[..., None].expand_as(x),
        A[:, None, None].expand(sizes),
        B,
        C,
        D[:, None].expand(sizes[:2]),
        dt_bias=dt_bias[:, None].expand(sizes[:2]),
        dt_softplus=True,
        **options,
    )


def chunk_scan(
    x: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt: Tensor, dt_bias: Tensor, state: Tensor, chunk: int
) -> Run:
    """y and the last state, as new tensors; as ``state_update``, with a token axis after the first of x, B, C, dt."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return partial(
        mamba_chunk_scan_combined,
        x,
        dt,
        A,
        B,
        C,
        chunk,
        D=D,
        dt_bias=dt_bias,
        initial_states=state,
        dt_softplus=True,
        return_final_states=True,
    )


def selective_scan(x: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt: Tensor, dt_bias: Tensor) -> Run:
    """y and the last state from a state of zeros, without a gate.

    x, dt: [rows, time, channels]. A: [channels, state_size]. B, C: [rows, time, 1, state_size]. D, dt_bias: [channels].
    """
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    # Its layout is [rows, channels, time].
    x, dt, B, C = (each.transpose(1, 2).contiguous() for each in (x, dt, B[:, :, 0], C[:, :, 0]))

    def run() -> tuple[Tensor, Tensor]:
        y, last = selective_scan_fn(x, dt, A, B, C, D, None, dt_bias, True, True)
        return y.transpose(1, 2), last

    return run
