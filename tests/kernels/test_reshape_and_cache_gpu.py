"""``reshape_and_cache`` and its form that rounds to e4m3 on the GPU, compared bit for bit."""

from __future__ import annotations

import pytest
import torch

from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import OpCall
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.reshape_and_cache import plan, plan_fp8
from hybridge.trt_plugins.reference.reshape_and_cache import reshape_and_cache, reshape_and_cache_fp8
from tests.support.kernel_calls import layout_of, run_plan

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def halves(wide: torch.Tensor, heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [tokens, heads, head_dim] as the two ends of the projection ``wide``."""
    key = wide[:, : heads * head_dim].unflatten(-1, (heads, head_dim))
    return key, wide[:, -heads * head_dim :].unflatten(-1, (heads, head_dim))


def some_slots(tokens: int, places: int, generator: torch.Generator) -> torch.Tensor:
    """A different slot for each token, none for a third of them."""
    slots = torch.randperm(places, generator=generator)[:tokens].to(torch.int32)
    slots[torch.rand(tokens, generator=generator) < 0.3] = -1
    return slots.cuda()


def check(
    tokens: int = 37,
    heads: int = 3,
    head_dim: int = 128,
    size: int = 16,
    dtype: torch.dtype = BF16,
    gap: int = 0,
    parts: int = 2,
) -> None:
    """Keys and values as slices of one projection where ``gap``; a third of the tokens has no place."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(tokens, 2 * heads * head_dim + gap, generator=generator).to(dtype).cuda()
    key, value = halves(wide, heads, head_dim)
    value = value if parts == 2 else key
    blocks = -(-tokens // size) + 2
    slots = some_slots(tokens, blocks * size, generator)
    pool = torch.randn(parts, blocks, size, heads, head_dim, generator=generator).to(dtype).cuda()
    pool[:, -1, 0] = float("nan")
    expected = reshape_and_cache(key, value, pool, slots)
    inputs = [key, value, pool, slots]
    spec = PACKED_OPS["reshape_and_cache"]
    call = OpCall(spec, tuple(layout_of(tensor) for tensor in inputs), (layout_of(pool),), {})
    run_plan(plan(call, KernelDevice.current().traits), inputs, [pool])
    bits = torch.int32 if dtype is F32 else torch.int16
    assert torch.equal(pool.view(bits), expected.view(bits))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("head_dim", [1, 6, 64, 72, 100, 128, 256])
def test_head_dims_and_types(head_dim, dtype):
    check(head_dim=head_dim, dtype=dtype)


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 500, 4096, 70000])
def test_tokens(tokens):
    check(tokens=tokens, heads=1, head_dim=64)


@pytest.mark.parametrize("heads", [1, 2, 8, 33])
@pytest.mark.parametrize("size", [1, 5, 16, 128])
def test_heads_and_block_sizes(heads, size):
    check(heads=heads, size=size)


@pytest.mark.parametrize("gap", [1, 2, 8, 1000])
def test_slices_of_one_projection(gap):
    check(gap=gap)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 576), (3, 100)])
def test_keys_that_are_values(heads, head_dim):
    check(heads=heads, head_dim=head_dim, parts=1)


def check_fp8(
    tokens: int = 37,
    heads: int = 3,
    head_dim: int = 128,
    size: int = 16,
    dtype: torch.dtype = BF16,
    gap: int = 0,
    parts: int = 2,
) -> None:
    """As ``check``, with numbers of many binades, a head of zeros and one that is no number."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(tokens, 2 * heads * head_dim + gap, generator=generator)
    wide *= torch.exp2(torch.randint(-16, 4, wide.shape, generator=generator))
    wide[0, :head_dim], wide[-1, -1] = 0.0, float("nan")
    wide = wide.to(dtype).cuda()
    key, value = halves(wide, heads, head_dim)
    value = value if parts == 2 else key
    blocks = -(-tokens // size) + 2
    slots = some_slots(tokens, blocks * size, generator)
    pool = torch.randint(0, 256, (parts, blocks, size, heads, head_dim), generator=generator).to(torch.uint8).cuda()
    scales = torch.randn(parts, blocks, heads, size, generator=generator).cuda()
    expected, expected_scales = reshape_and_cache_fp8(key, value, pool, scales, slots)
    inputs, outputs = [key, value, pool, scales, slots], [pool, scales]
    spec = PACKED_OPS["reshape_and_cache_fp8"]
    call = OpCall(spec, tuple(map(layout_of, inputs)), tuple(map(layout_of, outputs)), {})
    run_plan(plan_fp8(call, KernelDevice.current().traits), inputs, outputs)
    no_number = expected_scales.isnan()
    assert torch.equal(scales.isnan(), no_number)
    assert torch.equal(scales[~no_number], expected_scales[~no_number])
    there = ~no_number.transpose(2, 3)
    assert torch.equal(pool[there], expected[there])


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("head_dim", [4, 64, 80, 100, 128, 192, 256])
def test_rounding_to_e4m3(head_dim, dtype):
    check_fp8(head_dim=head_dim, dtype=dtype)


@pytest.mark.parametrize("tokens", [1, 65, 500, 70000])
def test_tokens_of_e4m3(tokens):
    check_fp8(tokens=tokens, heads=1, head_dim=64)


@pytest.mark.parametrize("heads", [1, 2, 33])
@pytest.mark.parametrize("size", [1, 5, 16, 128])
def test_heads_and_block_sizes_of_e4m3(heads, size):
    check_fp8(heads=heads, size=size)


@pytest.mark.parametrize("gap", [4, 1000])
def test_e4m3_of_slices_of_one_projection(gap):
    check_fp8(gap=gap)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 576), (3, 100), (5, 64)])
def test_keys_that_are_values_in_e4m3(heads, head_dim):
    check_fp8(heads=heads, head_dim=head_dim, parts=1)
