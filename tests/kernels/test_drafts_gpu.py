"""Rows of draft tokens on the GPU, for every recurrent operator, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.speculative_rows import NAN, Call, DraftRows, check, draft_rows

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64. A 16-bit state is rounded after every token, as it is by one-token calls.
TOLERANCE = {F32: 1e-5, F16: 3e-3, BF16: 8e-3}
DRAFTS = 5
SHORT = (5, 1, 0, 3, 2, 5, 4, 1, 5)
MIXED = (5, 66, 1, 0, 6, 3, 130, 4)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def pool_of(rows: DraftRows, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """NaN but in the slots that the rows begin with."""
    pool = torch.full((rows.slots.numel() + 3, *shape), NAN, dtype=dtype, device="cuda")
    for row in range(len(rows.lengths)):
        if row not in rows.padding:
            pool[rows.read_slot(row)] = normal(*shape).to(dtype)
    return pool


def slices(rows: DraftRows, sizes: list[int], dtype: torch.dtype, gap: int) -> list[torch.Tensor]:
    """Neighbouring parts of one tensor of all tokens, whose rows lie ``gap`` elements apart; NaN in padding rows."""
    wide = normal(int(rows.starts[-1]), sum(sizes) + gap).to(dtype)
    for row in rows.padding:
        wide[rows.tokens(row)] = NAN
    return list(wide[:, gap:].split(sizes, -1))


def conv_call(
    rows: DraftRows, dtype: torch.dtype = BF16, state: torch.dtype | None = None, gap: int = 0,
    channels: int = 264, width: int = 4, bias: bool = True, activation: str = "silu",
) -> Call:  # fmt: skip
    (x,) = slices(rows, [channels], dtype, gap)
    weight = normal(channels, 1, width).to(dtype)
    pool = pool_of(rows, (channels, width), dtype)
    inputs = [x, weight, normal(channels).to(dtype) if bias else None, pool, None]
    return Call("causal_conv1d", inputs, 3, {"activation": activation})


def ssm_call(
    rows: DraftRows, dtype: torch.dtype = BF16, state: torch.dtype | None = F32, gap: int = 0,
    heads: int = 6, head_dim: int = 64, groups: int = 2, state_size: int = 128, **attributes: Any,
) -> Call:  # fmt: skip
    sizes = [heads * head_dim, groups * state_size, groups * state_size, heads]
    x, B, C, dt = slices(rows, sizes, dtype, gap)
    group = (groups, state_size)
    A = -8.0 * torch.rand(heads, device="cuda")
    pool = pool_of(rows, (heads, head_dim, state_size), state or dtype)
    inputs = [x.unflatten(-1, (heads, head_dim)), A, B.unflatten(-1, group), C.unflatten(-1, group), normal(heads), dt]
    return Call("update_ssm_state", [*inputs, normal(heads), pool, None], 7, attributes)


def delta_call(
    rows: DraftRows, dtype: torch.dtype = BF16, state: torch.dtype | None = F32, gap: int = 0,
    key_heads: int = 2, value_heads: int = 4, key_size: int = 128, value_size: int = 128, decay: str = "head",
) -> Call:  # fmt: skip
    keys = key_heads * key_size
    q, k, v, beta = slices(rows, [keys, keys, value_heads * value_size, value_heads], dtype, gap)
    beta.copy_(torch.sigmoid(beta.float()))
    decays = key_size if decay == "key_channel" else 1
    g = -torch.rand(len(q), value_heads, decays, device="cuda")
    q, k = (tensor.unflatten(-1, (key_heads, key_size)) for tensor in (q, k))
    pool = pool_of(rows, (value_heads, key_size, value_size), state or dtype)
    inputs = [q, k, v.unflatten(-1, (value_heads, value_size)), g, beta, pool, None]
    return Call("gated_delta_rule", inputs, 5, {"decay": decay})


def scan_call(
    rows: DraftRows, dtype: torch.dtype = BF16, state: torch.dtype | None = F32, gap: int = 0,
    channels: int = 264, groups: int = 1, state_size: int = 16,
) -> Call:  # fmt: skip
    x, B, C, dt = slices(rows, [channels, groups * state_size, groups * state_size, channels], dtype, gap)
    A = -8.0 * torch.rand(channels, state_size, device="cuda")
    pool = pool_of(rows, (1, channels, state_size), state or dtype)
    group = (groups, state_size)
    inputs = [x, A, B.unflatten(-1, group), C.unflatten(-1, group), normal(channels), dt, normal(channels), pool, None]
    return Call("selective_scan", inputs, 7, {})


CALLS: dict[str, Callable[..., Call]] = {"conv": conv_call, "ssm": ssm_call, "delta": delta_call, "scan": scan_call}
OPS = pytest.mark.parametrize("op", CALLS)


def run(op: str, lengths: tuple[int, ...], padding: tuple[int, ...] = (), in_place: bool = True, **sizes: Any) -> None:
    torch.manual_seed(0)
    rows = draft_rows(lengths, DRAFTS, padding)
    call = CALLS[op](rows, **sizes)
    pool = call.inputs[call.pool]
    assert pool is not None
    y_tolerance = TOLERANCE[sizes.get("dtype", BF16)]
    # Chunks of longer rows are products of 16-bit matrices; the columns of a convolution are copies.
    state_tolerance = max(TOLERANCE[pool.dtype], y_tolerance if max(lengths) > DRAFTS else 0.0)
    check(call, rows, y_tolerance, 0.0 if op == "conv" else state_tolerance, in_place)


@OPS
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("dtype", "state"), [(F32, F32), (F16, F32), (F16, F16), (BF16, F32), (BF16, BF16)], ids=str)
def test_types(op, dtype, state, in_place):
    run(op, SHORT, in_place=in_place, dtype=dtype, state=state)


@OPS
@pytest.mark.parametrize("lengths", [(1,), (5,), (4, 5), (1,) * 9, (5,) * 40, (0, 0, 1)], ids=str)
def test_lengths(op, lengths):
    run(op, lengths)


@OPS
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_longer_rows_replace_the_state_that_they_read(op, dtype):
    run(op, MIXED, dtype=dtype)


@OPS
@pytest.mark.parametrize("lengths", [SHORT, MIXED], ids=["short", "mixed"])
def test_padding_rows_are_skipped(op, lengths):
    run(op, lengths, padding=(1, 5))


@OPS
@pytest.mark.parametrize("gap", [3, 6, 8, 64])
def test_slices_of_wider_tensors(op, gap):
    run(op, SHORT, gap=gap)


@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.parametrize("channels", [7, 257, 1022])
def test_convolutions(width, channels):
    run("conv", SHORT, width=width, channels=channels, bias=width % 2 == 0, activation="none" if width == 3 else "silu")


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize(("head_dim", "state_size"), [(8, 8), (24, 40), (72, 136), (80, 128), (64, 96), (256, 256)])
def test_state_sizes_of_mamba(head_dim, state_size, state):
    run("ssm", SHORT, head_dim=head_dim, state_size=state_size, state=state)


@pytest.mark.parametrize(
    "change", [{"groups": 1}, {"heads": 1, "groups": 1}, {"dt_softplus": 0}, {"time_step_max": 0.3}]
)
def test_one_factor_of_mamba(change):
    run("ssm", SHORT, **change)


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    ("channels", "groups", "state_size"), [(1, 1, 8), (33, 1, 24), (96, 2, 40), (1536, 1, 16), (90, 3, 64)]
)
def test_sizes_of_mamba1(channels, groups, state_size, state):
    run("scan", SHORT, channels=channels, groups=groups, state_size=state_size, state=state)


@pytest.mark.parametrize("decay", ["head", "key_channel"])
@pytest.mark.parametrize(("key_size", "value_size"), [(16, 16), (48, 80), (64, 128), (96, 192), (256, 256)])
def test_state_sizes_of_the_delta_rule(key_size, value_size, decay):
    run("delta", SHORT, key_size=key_size, value_size=value_size, decay=decay)


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
def test_rows_of_key_channels_are_walked_however_long(state):
    run("delta", MIXED, decay="key_channel", state=state)


@OPS
@pytest.mark.parametrize("state", [F32, BF16], ids=str)
def test_draft_tokens_equal_one_token_calls_bit_for_bit(op, state):
    torch.manual_seed(1)
    rows = draft_rows((5, 3), DRAFTS, seed=4)
    call = CALLS[op](rows, state=state)
    y, after = call.run(rows)
    for row, length in enumerate(rows.lengths):
        pool, read = call.inputs[call.pool], rows.read_slot(row)
        assert pool is not None
        state_now = pool[read][None]
        for t in range(length):
            at = rows.tokens(row).start + t
            one = call.with_tokens(slice(at, at + 1))
            one.inputs[one.pool] = state_now
            alone = draft_rows((1,), 1)
            alone = DraftRows(alone.starts, torch.zeros_like(alone.slots), torch.ones_like(alone.accepted), ())
            y_one, state_now = one.run(alone)
            assert torch.equal(y_one[0], y[at])
            slot = int(rows.slots[row, t])
            assert slot < 0 or torch.equal(after[slot], state_now[0])


@OPS
def test_results_are_the_same_from_run_to_run(op):
    torch.manual_seed(2)
    rows = draft_rows((5,) * 12, DRAFTS)
    call = CALLS[op](rows)
    first = [tensor.nan_to_num(9.0) for tensor in call.run(rows)]
    for _ in range(3):
        found = [tensor.nan_to_num(9.0) for tensor in call.run(rows)]
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))
