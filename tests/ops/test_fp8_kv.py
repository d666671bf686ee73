"""The operators over pools of e4m3: bytes, scales and attention, eager and as ONNX function."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import PACKED_OPS
from tests.ops.packed_calls import packed_model, run_model
from tests.ops.test_paged_attention import CASES, SIZES, cache_arrays, check

SLOTS = {"some": [7, -1, 0, 9, -1, 3], "first-has-none": [-1, 5], "none": [-1, -1], "one": [11]}


def attention_arrays(name: str, dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of paged_attention_fp8 with random bytes, and those of paged_attention that mean the same, float64."""
    plain, rng = CASES[name].arrays(), np.random.default_rng(1)
    there = ~np.isnan(plain["kv_pool"])
    numbers = rng.integers(0, 256, there.shape, dtype=np.uint8)
    numbers[numbers % 128 == 127] = 1
    numbers[~there] = 127
    scales = np.exp2(rng.integers(-10, -5, there.shape[:-1])).astype(np.float32)
    scales[~there[..., 0]] = np.nan
    pool = numbers.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales[..., None]
    query = torch.from_numpy(plain["query"]).to(getattr(torch, dtype)).double().numpy()
    exact = {**plain, "query": query, "kv_pool": pool}
    if exact["sinks"] is not None and dtype != "float64":
        exact["sinks"] = exact["sinks"].astype(np.float32).astype(np.float64)
    given = {"query": query, "kv_pool": numbers, "kv_scales": np.ascontiguousarray(scales.swapaxes(2, 3))}
    return {**given, **{n: a for n, a in exact.items() if n not in given}}, exact


def tensors_of(arrays: dict[str, Any], dtype: str) -> list[torch.Tensor | None]:
    wide = torch.float64 if dtype == "float64" else torch.float32
    made = []
    for name, array in arrays.items():
        tensor = None if array is None else torch.from_numpy(array)
        if tensor is not None and tensor.is_floating_point():
            tensor = tensor.to(wide if name in ("kv_scales", "sinks") else getattr(torch, dtype))
        made.append(tensor)
    return made


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_eager_attention_equals_the_loop(name: str, dtype: str) -> None:
    torch_ops.register()
    arrays, exact = attention_arrays(name, dtype)
    attributes = PACKED_OPS["paged_attention_fp8"].complete_attributes(CASES[name].attributes).values()
    found = torch.ops.trt_edgellm.paged_attention_fp8.packed(*tensors_of(arrays, dtype), *attributes)
    check(CASES[name], exact, found.double().numpy(), dtype)


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float32") for name in CASES), ("all", "float16")])
def test_attention_in_onnx_equals_the_loop(name: str, dtype: str) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    arrays, exact = attention_arrays(name, dtype)
    types = {"query": dtype, **({"sinks": "float32"} if CASES[name].sinks else {})}
    (found,) = run_model(packed_model("paged_attention_fp8", types, SIZES, CASES[name].attributes), arrays)
    check(CASES[name], exact, found, dtype)


def write_arrays(block_size: int, slots: list[int]) -> dict[str, Any]:
    """Tokens with numbers of every binade, ties and zeros, and a pool of random bytes."""
    arrays, rng = cache_arrays(block_size, slots), np.random.default_rng(4)
    for name in ("key", "value"):
        arrays[name] = (arrays[name] * np.exp2(rng.integers(-18, 1, arrays[name].shape))).astype(np.float32)
    arrays["key"][-1, 0] = 0.0
    # Of a head with a scale of 1: ties to even, half of the smallest number and less.
    arrays["value"][-1, 0] = np.array([448.0, 17.0, -19.0, 2.0**-10, -1.01 * 2.0**-10], np.float32)
    shape = arrays["kv_pool"].shape
    numbers = rng.integers(0, 256, shape, dtype=np.uint8)
    scales = rng.standard_normal((*shape[:2], shape[3], shape[2])).astype(np.float32)
    return {**{n: arrays[n] for n in ("key", "value")}, "kv_pool": numbers, "kv_scales": scales,
            "slot_mapping": arrays["slot_mapping"]}  # fmt: skip


def write_expected(arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """One head of one token after the other."""
    pool, scales, size = arrays["kv_pool"].copy(), arrays["kv_scales"].copy(), arrays["kv_pool"].shape[2]
    for token, slot in enumerate(arrays["slot_mapping"]):
        for half, name in enumerate(("key", "value")):
            for head, numbers in enumerate(arrays[name][token] if slot >= 0 else ()):
                scale = np.float32(2.0**-126)
                while np.abs(numbers).max() > 448 * scale:
                    scale *= np.float32(2.0)
                rounded = (numbers / scale).astype(ml_dtypes.float8_e4m3fn)
                pool[half, slot // size, slot % size, head] = rounded.view(np.uint8)
                scales[half, slot // size, head, slot % size] = scale
    return pool, scales


@pytest.mark.parametrize("name", SLOTS)
@pytest.mark.parametrize("block_size", [3, 16])
def test_new_tokens_are_rounded_into_their_places(name: str, block_size: int) -> None:
    torch_ops.register()
    arrays = write_arrays(block_size, SLOTS[name])
    tensors = [torch.from_numpy(array) for array in arrays.values()]
    expected = write_expected(arrays)
    found = torch.ops.trt_edgellm.reshape_and_cache_fp8.packed(*tensors)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    types = dict.fromkeys(("key", "value"), "float32")
    in_onnx = run_model(packed_model("reshape_and_cache_fp8", types, SIZES, {}), arrays)
    for one, other in zip(in_onnx, expected, strict=True):
        np.testing.assert_array_equal(one, other.astype(np.float32))


def test_every_number_of_e4m3_is_its_own_byte() -> None:
    """Rounding in ONNX against ml_dtypes: all numbers, everything halfway between two, and next to it."""
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    positive = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    halfway = (positive[1:] + positive[:-1]) / 2
    near = [np.nextafter(halfway, np.float32(side)) for side in (-np.inf, np.inf)]
    numbers = np.concatenate([positive, halfway, *near])
    width = SIZES["head_dim"]
    rows = np.concatenate([numbers, -numbers[numbers > 0]])
    rows = np.resize(rows, (-(-len(rows) // (width - 1)), width - 1))
    # The first of each head makes its scale 1.
    rows = np.concatenate([np.full((len(rows), 1), 448.0, np.float32), rows], axis=1)
    rows = np.resize(rows, (-(-len(rows) // SIZES["kv_heads"]), SIZES["kv_heads"], width))
    tokens = len(rows)
    pool = np.zeros((2, tokens, 1, SIZES["kv_heads"], width), np.uint8)
    scales = np.zeros((2, tokens, SIZES["kv_heads"], 1), np.float32)
    arrays = {"key": rows, "value": 0.0 - rows, "kv_pool": pool, "kv_scales": scales}
    arrays["slot_mapping"] = np.arange(tokens, dtype=np.int32)
    types = dict.fromkeys(("key", "value"), "float32")
    found, _ = run_model(packed_model("reshape_and_cache_fp8", types, SIZES, {}), arrays)
    expected, _ = write_expected(arrays)
    np.testing.assert_array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("binade", [-120, -9, 0, 1, 7, 100])
def test_scales_next_to_powers_of_two(binade: int) -> None:
    """448 times a power of two, and the numbers next to it: the largest that a scale takes, and the first beyond it."""
    torch_ops.register()
    edge = np.float32(448.0) * np.float32(2.0) ** np.float32(binade)
    largest = [np.nextafter(edge, np.float32(0)), edge, np.nextafter(edge, np.float32(np.inf))]
    arrays = write_arrays(4, [0, 1, 2])
    arrays["key"] = np.zeros_like(arrays["key"])
    arrays["key"][:, 0, 3], arrays["key"][:, 1, 2] = largest, np.negative(largest)
    _, expected = write_expected(arrays)
    assert sorted(set(np.log2(expected[0, 0, 0, :3]))) == [binade, binade + 1]
    _, scales = torch.ops.trt_edgellm.reshape_and_cache_fp8.packed(*map(torch.from_numpy, arrays.values()))
    np.testing.assert_array_equal(scales.numpy(), expected)
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    types = dict.fromkeys(("key", "value"), "float32")
    _, in_onnx = run_model(packed_model("reshape_and_cache_fp8", types, SIZES, {}), arrays)
    np.testing.assert_array_equal(in_onnx, expected)


def test_a_head_dim_that_is_no_number_is_refused() -> None:
    torch_ops.register()
    arrays = write_arrays(4, [2])
    arrays["key"][0, 1, 2] = np.nan
    tensors = [torch.from_numpy(array) for array in arrays.values()]
    numbers, scales = torch.ops.trt_edgellm.reshape_and_cache_fp8.packed(*tensors)
    read = numbers.view(torch.float8_e4m3fn).float()[0, 0, 2, 1] * scales[0, 0, 1, 2]
    assert read.isnan().all()
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    types = dict.fromkeys(("key", "value"), "float32")
    _, in_onnx = run_model(packed_model("reshape_and_cache_fp8", types, SIZES, {}), arrays)
    np.testing.assert_array_equal(np.isnan(in_onnx), scales.isnan().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_read_back_is_close(dtype: str) -> None:
    """A number keeps 4 digits of its mantissa: its error is at most a 16th, 2.6 % over many."""
    torch_ops.register()
    key, value = torch.randn(2, 64, 2, 96, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    pool, scales = torch.zeros(2, 4, 16, 2, 96, dtype=torch.uint8), torch.zeros(2, 4, 2, 16)
    slots = torch.arange(64, dtype=torch.int32)
    numbers, scales = torch.ops.trt_edgellm.reshape_and_cache_fp8.packed(key, value, pool, scales, slots)
    read = numbers.view(torch.float8_e4m3fn).float() * scales.transpose(2, 3).unsqueeze(-1)
    for half, given in enumerate((key, value)):
        wrong = read[half].flatten(0, 1) - given.float()
        assert wrong.norm() < 0.03 * given.float().norm()
        bound = given.float().abs() / 16 + scales[half].transpose(1, 2).flatten(0, 1).unsqueeze(-1) * 2.0**-10
        assert (wrong.abs() <= bound * 1.0001).all()


def test_schemas_and_fakes_agree_with_the_eager_forms() -> None:
    torch_ops.register()
    tests = ("test_schema", "test_faketensor")
    arrays, _ = attention_arrays("all", "float32")
    arrays["kv_scales"] = np.nan_to_num(arrays["kv_scales"])
    arrays["kv_pool"] = arrays["kv_pool"] & np.uint8(0x3F)
    tensors = tensors_of(arrays, "float32")
    torch.library.opcheck(torch.ops.trt_edgellm.paged_attention_fp8.packed, (*tensors, 0.0, 5, 1.3), test_utils=tests)
    tensors = [torch.nan_to_num(torch.from_numpy(array)) for array in write_arrays(4, [1, 2]).values()]
    torch.library.opcheck(torch.ops.trt_edgellm.reshape_and_cache_fp8.packed, tuple(tensors), test_utils=tests)


def test_other_pools_than_bytes_are_refused() -> None:
    torch_ops.register()
    arrays, _ = attention_arrays("decode", "float32")
    tensors = tensors_of(arrays, "float32")
    tensors[1] = torch.zeros(tensors[1].shape)
    with pytest.raises(Exception, match="expected kv_pool of type uint8, found float32"):
        torch.ops.trt_edgellm.paged_attention_fp8.packed(*tensors, 0.0, 0, 0.0)
