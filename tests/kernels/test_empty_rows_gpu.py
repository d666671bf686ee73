"""Packed rows of no tokens that have a slot, alone and between others, for every packed operator on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels import catalog
from hybridge.trt_plugins.kernels.call import OpCall, PackedRows
from hybridge.trt_plugins.kernels.device import KernelDevice
from tests.kernels.test_drafts_gpu import CALLS
from tests.support import speculative_rows
from tests.support.empty_rows import PackedCall, check, interleaved, random_bits
from tests.support.kernel_calls import layout_of, op_call, run_op, run_plan
from tests.support.speculative_rows import advancing_rows, held_rows

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
NAN = float("nan")
# Alone, between rows of one token, of few, and of more than a chunk.
LENGTHS = {
    "alone": (0, 0, 0),
    "one": interleaved((1, 1, 1, 1)),
    "few": interleaved((3, 1, 5)),
    "chunks": interleaved((66, 1, 130)),
}
ROWS = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
SPARE = 3  # slots of no row


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def slots_of(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """In no order, some left out."""
    return tuple(
        torch.randperm(len(lengths) + SPARE, generator=torch.Generator().manual_seed(1))[: len(lengths)].tolist()
    )


def packed_call(lengths: tuple[int, ...], tokens: list[torch.Tensor], weights: list[torch.Tensor | None],
                pools: list[tuple[tuple[int, ...], torch.dtype]], launch: Any) -> PackedCall:  # fmt: skip
    slots = slots_of(lengths)
    made = tuple(random_bits(len(lengths) + SPARE, *shape, dtype=dtype) for shape, dtype in pools)
    return PackedCall(lengths, slots, tuple(tokens), tuple(weights), made, launch)


def conv(lengths: tuple[int, ...], dtype: torch.dtype = BF16, channels: int = 6656, width: int = 4) -> PackedCall:
    def launch(call: PackedCall, pools: list[torch.Tensor]) -> None:
        x, y = call.tokens
        run_op("causal_conv1d", [x, *call.weights, pools[0], None], [y, pools[0]], {}, call.starts, call.indices)

    total = max(1, sum(lengths))
    tokens = [30 * normal(total, channels, dtype=dtype), normal(total, channels, dtype=dtype)]
    weights = [normal(channels, 1, width, dtype=dtype), None]
    return packed_call(lengths, tokens, weights, [((channels, width), dtype)], launch)


def ssm(lengths: tuple[int, ...], dtype: torch.dtype = BF16, state: torch.dtype = F32, heads: int = 96,
        head_dim: int = 64, groups: int = 2, state_size: int = 128) -> PackedCall:  # fmt: skip
    def launch(call: PackedCall, pools: list[torch.Tensor]) -> None:
        x, B, C, dt, y = call.tokens
        A, D, bias = call.weights
        inputs = [x, A, B, C, D, dt, bias, pools[0], None]
        run_op("update_ssm_state", inputs, [y, pools[0]], {}, call.starts, call.indices)

    total, group = max(1, sum(lengths)), (groups, state_size)
    tokens = [
        normal(total, *shape, dtype=dtype) for shape in ((heads, head_dim), group, group, (heads,), (heads, head_dim))
    ]
    weights = [-8 * torch.rand(heads, device="cuda"), normal(heads, dtype=F32), normal(heads, dtype=F32)]
    return packed_call(lengths, tokens, weights, [((heads, head_dim, state_size), state)], launch)


def ssm_8bit(lengths: tuple[int, ...], state: torch.dtype) -> PackedCall:
    def launch(call: PackedCall, pools: list[torch.Tensor]) -> None:
        x, B, C, dt, y = call.tokens
        A, D, bias = call.weights
        inputs, outputs = [x, A, B, C, D, dt, bias, *pools, None], [y, *pools]
        run_op("update_ssm_state_8bit", inputs, outputs, {}, call.starts, call.indices)

    call = ssm(lengths, heads=16)
    scales = torch.rand(*call.pools[0].shape[:-1], device="cuda") + 0.01
    numbers = random_bits(*call.pools[0].shape, dtype=state)
    return replace(call, pools=(numbers, scales), launch=launch)


def delta(
    lengths: tuple[int, ...], dtype: torch.dtype = BF16, state: torch.dtype = F32, key_heads: int = 2,
    value_heads: int = 4, key_size: int = 128, value_size: int = 128, decay: str = "head",
) -> PackedCall:  # fmt: skip
    def launch(call: PackedCall, pools: list[torch.Tensor]) -> None:
        *inputs, y = call.tokens
        outputs = [y, pools[0]]
        run_op("gated_delta_rule", [*inputs, pools[0], None], outputs, {"decay": decay}, call.starts, call.indices)

    total, decays = max(1, sum(lengths)), key_size if decay == "key_channel" else 1
    keys, values = (total, key_heads, key_size), (total, value_heads, value_size)
    g = -torch.rand(total, value_heads, decays, device="cuda")
    beta = torch.rand(total, value_heads, device="cuda").to(dtype)
    tokens = [normal(*keys, dtype=dtype), normal(*keys, dtype=dtype), normal(*values, dtype=dtype), g, beta]
    pool = ((value_heads, key_size, value_size), state)
    return packed_call(lengths, [*tokens, normal(*values, dtype=dtype)], [], [pool], launch)


def mixer(lengths: tuple[int, ...], parts: bool, state: torch.dtype = F32, heads: int = 8, groups: int = 2,
          head_dim: int = 64, state_size: int = 128, kernel: int = 4) -> PackedCall:  # fmt: skip
    def launch(call: PackedCall, pools: list[torch.Tensor]) -> None:
        conv_input, gate, dt, y = call.tokens
        weight, bias, A, D, dt_bias = call.weights
        inputs = [conv_input, gate, dt, weight, bias, A, D, dt_bias, *pools, None]
        rows = PackedRows(len(call.lengths), max(1, *call.lengths))
        traits = KernelDevice.current().traits
        traits = replace(traits, capability=(8, 0)) if parts else traits
        chosen = catalog.plan(op_call("mamba2_conv_scan", inputs, [y, *pools], {}, rows), traits)
        run_plan(chosen, inputs, [y, *pools], (call.starts, call.indices))

    inner, channels = heads * head_dim, heads * head_dim + 2 * groups * state_size
    tokens = [normal(max(1, sum(lengths)), size) for size in (channels, inner, heads, inner)]
    weights = [normal(channels, 1, kernel), normal(channels), -8 * torch.rand(heads, device="cuda")]
    weights += [normal(heads, dtype=F32), normal(heads, dtype=F32)]
    pools = [((channels, kernel), BF16), ((heads, head_dim, state_size), state)]
    return packed_call(lengths, tokens, weights, pools, launch)


CASES: dict[str, Callable[[tuple[int, ...]], PackedCall]] = {
    "conv": conv,
    "conv-f32": partial(conv, dtype=F32, channels=1027, width=3),
    "ssm": ssm,
    "ssm-bf16-state": partial(ssm, state=BF16),
    "ssm-f32": partial(ssm, dtype=F32, heads=8),
    "ssm-odd-sizes": partial(ssm, head_dim=72, state_size=40, heads=6),
    "delta": delta,
    "delta-bf16-state": partial(delta, state=BF16),
    "delta-many-states": partial(delta, state=BF16, key_heads=16, value_heads=64),
    "delta-f32": partial(delta, dtype=F32),
    "delta-odd-sizes": partial(delta, key_size=40, value_size=24),
    "delta-key-channels": partial(delta, decay="key_channel"),
    "mixer": partial(mixer, parts=False),
    "mixer-one-group": partial(mixer, parts=False, heads=4, groups=1),
    "mixer-bf16-state": partial(mixer, parts=False, state=BF16),
    "mixer-parts": partial(mixer, parts=True),
}


@ROWS
@pytest.mark.parametrize("case", CASES)
def test_empty_rows_change_nothing(case, lengths):
    torch.manual_seed(0)
    check(CASES[case](lengths))


@pytest.mark.parametrize("lengths", [LENGTHS["alone"], LENGTHS["one"]], ids=["alone", "one"])
@pytest.mark.parametrize("state", [torch.int8, torch.uint8], ids=["int8", "e4m3"])
def test_empty_rows_change_no_state_of_8_bits(state, lengths):
    torch.manual_seed(0)
    check(ssm_8bit(lengths, state))


@pytest.mark.parametrize("lengths", [(0, 0, 0), (0, 5, 0, 1, 0), (0, 3, 0, 40, 0)], ids=["alone", "short", "mixed"])
@pytest.mark.parametrize("op", CALLS)
def test_empty_rows_of_draft_tokens_change_nothing(op, lengths):
    torch.manual_seed(0)
    rows = speculative_rows.draft_rows(lengths, 5)
    call = CALLS[op](rows)
    if sum(lengths):
        speculative_rows.check(call, rows, 8e-3, 8e-3)
    else:
        _, after = call.run(rows)
        before = call.inputs[call.pool]
        assert before is not None and torch.equal(after.nan_to_num(9.0), before.nan_to_num(9.0))


@pytest.mark.parametrize("op", CALLS)
def test_empty_rows_of_deferred_and_advanced_states_change_nothing(op):
    torch.manual_seed(0)
    lengths, slots = (0, 5, 0, 2, 0), (7, 0, 11, 3, 4)
    held = held_rows(lengths, slots)
    call = CALLS[op](held)
    speculative_rows.check(call, held, 8e-3, 8e-3)
    advancing = advancing_rows((5, 2), (0, 3), (3, 2))
    expected = call.run(advancing)[1]
    # The same tokens, with an empty row before, between and behind the rows.
    starts = torch.tensor([0, 0, 3, 5, 5, 7, 7, 7], dtype=torch.int32, device="cuda")
    table = torch.full((7, advancing.slots.shape[1]), -1, dtype=torch.int32, device="cuda")
    accepted = torch.ones(7, dtype=torch.int32, device="cuda")
    table[[1, 2, 4, 5]], accepted[[1, 2, 4, 5]] = advancing.slots, advancing.accepted
    table[[0, 3, 6], 0] = torch.tensor([7, 11, 4], dtype=torch.int32, device="cuda")
    _, after = call.run(replace(advancing, starts=starts, slots=table, accepted=accepted, padding=(2, 5)))
    assert torch.equal(after.nan_to_num(9.0), expected.nan_to_num(9.0))


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "e4m3"])
@pytest.mark.parametrize("lengths", [(0, 0, 0), (0, 1, 0, 1, 0), (0, 70, 0, 1, 0)], ids=["alone", "one", "chunks"])
def test_empty_rows_of_attention_change_nothing(lengths, fp8):
    """A row of no tokens has pages and a length all the same; its pages, and those of no row, are no numbers."""
    torch.manual_seed(0)
    heads, kv_heads, head_dim, size, past = 8, 2, 128, 16, 37
    rows, total = len(lengths), max(1, sum(lengths))
    needed = -(-(past + max(lengths)) // size)
    pool = normal(2, rows * needed + 2, size, kv_heads, head_dim)
    table = torch.randperm(rows * needed, device="cuda").to(torch.int32).view(rows, needed)
    query, y = normal(total, heads, head_dim), torch.full((total, heads, head_dim), NAN, dtype=BF16, device="cuda")
    pools = [pool]
    if fp8:
        pools = [torch.randint(0, 120, pool.shape, dtype=torch.uint8, device="cuda")]
        pools.append(torch.rand(2, rows * needed + 2, kv_heads, size, device="cuda"))
    op = PACKED_OPS["paged_attention_fp8" if fp8 else "paged_attention"]

    def run(chosen: list[int]) -> torch.Tensor:
        starts = torch.tensor([0, *torch.tensor([lengths[row] for row in chosen]).cumsum(0)], dtype=torch.int32).cuda()
        seen = torch.tensor([past + lengths[row] for row in chosen], dtype=torch.int32, device="cuda")
        inputs = [query, *pools, table[chosen].contiguous(), starts, seen, None]
        found = y.clone()
        layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
        call = OpCall(op, layouts, (layout_of(found),), op.complete_attributes({}))
        run_plan(catalog.plan(call, KernelDevice.current().traits), inputs, [found])
        return found

    before = [tensor.clone() for tensor in pools]
    found = run(list(range(rows)))
    assert all(torch.equal(a, b) for a, b in zip(pools, before, strict=True))
    if not sum(lengths):
        assert found.isnan().all()
    else:
        assert not found.isnan().any()
        alone = run([row for row in range(rows) if lengths[row]])
        assert (found - alone).double().norm() <= 3e-3 * alone.double().norm()


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "e4m3"])
@pytest.mark.parametrize("tokens", [1, 5])
def test_tokens_without_a_place_change_no_page(tokens, fp8):
    torch.manual_seed(0)
    key, value = normal(tokens, 2, 64), normal(tokens, 2, 64)
    places = torch.full((tokens,), -1, dtype=torch.int32, device="cuda")
    pools = [normal(2, 4, 16, 2, 64)]
    if fp8:
        pools = [
            torch.randint(0, 256, (2, 4, 16, 2, 64), dtype=torch.uint8, device="cuda"),
            torch.rand(2, 4, 2, 16, device="cuda"),
        ]
    before = [pool.clone() for pool in pools]
    op = PACKED_OPS["reshape_and_cache_fp8" if fp8 else "reshape_and_cache"]
    inputs = [key, value, *pools, places]
    call = OpCall(op, tuple(layout_of(tensor) for tensor in inputs), tuple(layout_of(pool) for pool in pools), {})
    run_plan(catalog.plan(call, KernelDevice.current().traits), inputs, pools)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(pools, before, strict=True))
