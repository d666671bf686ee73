"""paged_attention and reshape_and_cache: eager and as ONNX function, against float64 loops over tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import PACKED_OPS
from tests.ops.oracle import relative_error
from tests.ops.packed_calls import packed_model, run_model

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}
SIZES = {"heads": 6, "kv_heads": 2, "head_dim": 5}


@dataclass(frozen=True)
class Rows:
    """Rows of ``new`` tokens after ``past`` ones in pages of ``block_size``; a padding row where ``past`` is -1.

    parts: 1 where keys are the values too.
    """

    new: tuple[int, ...] = (1, 4, 1, 9, 0)
    past: tuple[int, ...] = (6, 0, -1, 5, 3)
    block_size: int = 4
    sinks: bool = False
    parts: int = 2
    attributes: dict[str, Any] = field(default_factory=dict)

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray | None]:
        """Inputs in declared order; pages in random order, and what no token of a row sees is NaN."""
        rng = np.random.default_rng(seed)
        totals = [max(0, n + p) if p >= 0 else 0 for n, p in zip(self.new, self.past, strict=True)]
        needed = [-(-total // self.block_size) for total in totals]
        pages = rng.permutation(sum(needed) + 3)
        pool = np.full((self.parts, len(pages), self.block_size, SIZES["kv_heads"], SIZES["head_dim"]), np.nan)
        table = np.full((len(totals), max(needed) + 2), -1, np.int32)
        window, used = self.attributes.get("sliding_window", 0), 0
        for row, (total, past, count) in enumerate(zip(totals, self.past, needed, strict=True)):
            own, used = pages[used : used + count], used + count
            seen = max(0, past - window + 1) if window else 0
            for position in range(seen, total):
                page, offset = own[position // self.block_size], position % self.block_size
                pool[:, page, offset] = rng.standard_normal((self.parts, SIZES["kv_heads"], SIZES["head_dim"]))
                table[row, position // self.block_size] = page
        bounds = np.array([0, *np.cumsum(self.new)], np.int32)
        query = rng.standard_normal((bounds[-1], SIZES["heads"], SIZES["head_dim"]))
        sinks = rng.standard_normal(SIZES["heads"]) if self.sinks else None
        return {
            "query": query, "kv_pool": pool, "block_table": table, "query_start_loc": bounds,
            "seq_lens": np.array(totals, np.int32), "sinks": sinks,
        }  # fmt: skip

    def expected(self, arrays: dict[str, Any]) -> np.ndarray:
        """One token and head after the other, in float64; zero for padding rows."""
        y, size = np.zeros_like(arrays["query"]), self.block_size
        scale = self.attributes.get("scale", 0.0) or SIZES["head_dim"] ** -0.5
        cap, window = self.attributes.get("softcap", 0.0), self.attributes.get("sliding_window", 0)
        for row, (begin, past) in enumerate(zip(arrays["query_start_loc"], self.past, strict=False)):
            for t in range(begin, begin + self.new[row] if past >= 0 else begin):
                last = past + t - begin
                visible = range(max(0, last - window + 1) if window else 0, last + 1)
                places = [(arrays["block_table"][row, p // size], p % size) for p in visible]
                for head in range(SIZES["heads"]):
                    group = head // (SIZES["heads"] // SIZES["kv_heads"])
                    pool = arrays["kv_pool"]
                    keys, values = (np.array([pool[i, b, o, group] for b, o in places]) for i in (0, self.parts - 1))
                    scores = keys @ arrays["query"][t, head] * scale
                    scores = cap * np.tanh(scores / cap) if cap else scores
                    weights = np.exp(scores)
                    total = weights.sum() + (np.exp(arrays["sinks"][head]) if self.sinks else 0.0)
                    y[t, head] = weights @ values / total
        return y

    def taking_part(self) -> np.ndarray:
        return np.repeat([past >= 0 for past in self.past], self.new)


BASE = Rows()
CASES = {
    "base": BASE,
    "decode": replace(BASE, new=(1, 1, 1), past=(0, 12, 4)),
    "one-row": replace(BASE, new=(7,), past=(0,)),
    "page-of-one": replace(BASE, block_size=1),
    "page-of-sixteen": replace(BASE, block_size=16),
    "sinks": replace(BASE, sinks=True),
    "scale": replace(BASE, attributes={"scale": 0.3}),
    "softcap": replace(BASE, attributes={"softcap": 0.7}),
    "window": replace(BASE, attributes={"sliding_window": 3}),
    "window-of-one": replace(BASE, attributes={"sliding_window": 1}),
    "keys-are-values": replace(BASE, parts=1),
    "all": replace(BASE, sinks=True, attributes={"scale": 0.9, "softcap": 1.3, "sliding_window": 5}),
}


def check(case: Rows, arrays: dict[str, Any], found: np.ndarray, dtype: str) -> None:
    kept = case.taking_part()
    assert relative_error(found[kept], case.expected(arrays)[kept]) < TOLERANCE[dtype]


def as_type(arrays: dict[str, Any], dtype: str) -> tuple[dict[str, Any], dict[str, torch.Tensor | None]]:
    """The arrays rounded to ``dtype`` (sinks and integers apart), and the tensors of that type."""
    tensors: dict[str, torch.Tensor | None] = {}
    for name, array in arrays.items():
        tensor = None if array is None else torch.from_numpy(array)
        if tensor is not None and tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, dtype) if name != "sinks" or dtype == "float64" else torch.float32)
        tensors[name] = tensor
    rounded = {
        name: tensor.double().numpy() if tensor is not None and tensor.is_floating_point() else arrays[name]
        for name, tensor in tensors.items()
    }
    return rounded, tensors


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_eager_equals_the_loop(name: str, dtype: str) -> None:
    torch_ops.register()
    case = CASES[name]
    arrays, tensors = as_type(case.arrays(), dtype)
    attributes = PACKED_OPS["paged_attention"].complete_attributes(case.attributes).values()
    found = torch.ops.trt_edgellm.paged_attention.packed(*tensors.values(), *attributes)
    check(case, arrays, found.double().numpy(), dtype)


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float32") for name in CASES), ("all", "float16")])
def test_onnx_function_equals_the_loop(name: str, dtype: str) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    case = CASES[name]
    arrays, _ = as_type(case.arrays(), dtype)
    types = {"query": dtype, "kv_pool": dtype, **({"sinks": "float32"} if case.sinks else {})}
    sizes = {**SIZES, "parts": case.parts}
    (found,) = run_model(packed_model("paged_attention", types, sizes, case.attributes), arrays)
    check(case, arrays, found, dtype)


def cache_arrays(block_size: int, slots: list[int], parts: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    new = rng.standard_normal((parts, len(slots), SIZES["kv_heads"], SIZES["head_dim"]))
    new[:, np.array(slots) < 0] = np.nan
    pool = rng.standard_normal((parts, 5, block_size, SIZES["kv_heads"], SIZES["head_dim"]))
    pool[:, 4] = np.nan
    return {"key": new[0], "value": new[-1], "kv_pool": pool, "slot_mapping": np.array(slots, np.int32)}


def cache_expected(arrays: dict[str, Any]) -> np.ndarray:
    pool, size = arrays["kv_pool"].copy(), arrays["kv_pool"].shape[2]
    for token, slot in enumerate(arrays["slot_mapping"]):
        if slot >= 0:
            pool[0, slot // size, slot % size] = arrays["key"][token]
            pool[-1, slot // size, slot % size] = arrays["value"][token]
    return pool


SLOTS = {"some": [7, -1, 0, 9, -1, 3], "first-has-none": [-1, 5], "none": [-1, -1], "one": [11]}


@pytest.mark.parametrize("name", SLOTS)
@pytest.mark.parametrize(("block_size", "parts"), [(3, 2), (16, 2), (16, 1)])
def test_new_tokens_are_the_only_change_of_the_pool(name: str, block_size: int, parts: int) -> None:
    torch_ops.register()
    arrays, tensors = as_type(cache_arrays(block_size, SLOTS[name], parts), "float32")
    expected = cache_expected(arrays).astype(np.float32)
    found = torch.ops.trt_edgellm.reshape_and_cache.packed(*tensors.values()).numpy()
    np.testing.assert_array_equal(found, expected)
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    types = dict.fromkeys(("key", "value", "kv_pool"), "float32")
    (in_onnx,) = run_model(packed_model("reshape_and_cache", types, {**SIZES, "parts": parts}, {}), arrays)
    np.testing.assert_array_equal(in_onnx, expected)


def test_a_pool_has_one_or_two_parts() -> None:
    torch_ops.register()
    _, tensors = as_type(cache_arrays(4, [1, 2], parts=3), "float32")
    with pytest.raises(UnsupportedError, match="expected parts from 1 to 2, found 3"):
        torch.ops.trt_edgellm.reshape_and_cache.packed(*tensors.values())


def test_schemas_and_fakes_agree_with_the_eager_forms() -> None:
    torch_ops.register()
    _, tensors = as_type(CASES["all"].arrays(), "float32")
    tensors["kv_pool"] = torch.nan_to_num(tensors["kv_pool"])
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.trt_edgellm.paged_attention.packed, (*tensors.values(), 0.0, 5, 1.3), test_utils=tests
    )
    _, tensors = as_type(cache_arrays(4, [1, 2]), "float32")
    finite = [torch.nan_to_num(t) for t in tensors.values()]
    torch.library.opcheck(torch.ops.trt_edgellm.reshape_and_cache.packed, tuple(finite), test_utils=tests)
