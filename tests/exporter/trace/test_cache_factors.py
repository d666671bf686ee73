"""Factors of keys and values in the graph: caches hold quotients, and attention computes the same as without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from hybridge.exporter.checkpoint.quantized.cache_scales import CacheFactors
from hybridge.exporter.trace.cache_factors import apply_cache_factors
from hybridge.trt_plugins.catalog import DOMAIN

HEADS, KV_HEADS, SIZE, TOKENS = 4, 2, 3, 5
MODEL = f"""
<ir_version: 10, opset_import: ["" : 24, "{DOMAIN}" : 2]>
agraph (float16[t, {HEADS}, {SIZE}] q, float16[t, {KV_HEADS}, {SIZE}] k, float16[t, {KV_HEADS}, {SIZE}] v,
    float[n] kv_pool_0, float[n] scales) => (float16[t, {HEADS}, {SIZE}] y, float16[m] pool)
<float16[t, {HEADS}, {SIZE}] query, float16[t, {KV_HEADS}, {SIZE}] key, float16[t, {KV_HEADS}, {SIZE}] value,
    float16[t, {HEADS}, {SIZE}] output>
{{
    query = Identity(q)
    key = Identity(k)
    value = Identity(v)
    pool, new_scales = {DOMAIN}.reshape_and_cache_fp8(key, value, kv_pool_0, scales)
    output = {DOMAIN}.paged_attention_fp8 <scale = 0.5> (query, pool, new_scales)
    y = Identity(output)
}}
"""


def operator(name: str, run: Callable[..., tuple[np.ndarray, ...]]) -> Any:
    """An operator of the evaluator that computes ``run`` of its inputs and attributes."""
    return type(name, (OpRun,), {"op_domain": DOMAIN, "_run": lambda self, *inputs, **given: run(*inputs, **given)})


def write(key: np.ndarray, value: np.ndarray, _pool: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.stack([key, value]), scales


def read(query: np.ndarray, pool: np.ndarray, _scales: np.ndarray, scale: float) -> tuple[np.ndarray, ...]:
    """Linear in queries, keys and values, as attention is in scores and values."""
    keys, values = np.repeat(pool.astype(np.float32), HEADS // KV_HEADS, axis=2)
    return ((scale * query * keys * values).astype(np.float16),)


@pytest.mark.parametrize(
    ("keys", "values"), [([1.5], [1.25]), ([1.0], [1.75]), ([1.75], [1.0]), ([1.25, 1.75], [1.5, 1.0])]
)
def test_attention_stays_the_same_and_caches_hold_quotients(keys: list[float], values: list[float]) -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    factors = CacheFactors(np.array(keys, np.float32), np.array(values, np.float32))
    apply_cache_factors(model.graph, [factors])
    proto = ir.to_proto(model)
    evaluator = ReferenceEvaluator(
        proto, new_ops=[operator("reshape_and_cache_fp8", write), operator("paged_attention_fp8", read)]
    )
    random = np.random.default_rng(0)
    query = random.standard_normal((TOKENS, HEADS, SIZE)).astype(np.float16)
    key, value = random.standard_normal((2, TOKENS, KV_HEADS, SIZE)).astype(np.float16)
    unused = np.zeros(1, np.float32)
    y, pool = evaluator.run(None, {"q": query, "k": key, "v": value, "kv_pool_0": unused, "scales": unused})
    np.testing.assert_allclose(pool[0], key / factors.keys[:, None], rtol=1e-3)
    np.testing.assert_allclose(pool[1], value / factors.values[:, None], rtol=1e-3)
    (expected,) = read(query, np.stack([key, value]), unused, 0.5)
    np.testing.assert_allclose(y, expected, rtol=5e-3, atol=1e-4)
