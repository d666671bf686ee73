"""Cache update and attention of a paged graph as nodes whose cost follows the tokens, not the pools.

The engine holds a KV pool as [parts, num_blocks, kv_heads, block_size, head_dim], so that gathering the blocks of a row
gives the keys of each head in one piece: keys, then values, or one part that is both. New tokens are scattered into the
pool in place; then the blocks of each row are gathered from it, up to those of the longest row. Which ones, and what a
token may see of them, comes from the engine (paged_feeds.py) as graph inputs that all layers of one shape share.

Prompts take kernels that never hold the scores of all tokens at all positions (paged_prompts.py), rows of one token an
operator of the library of CPU kernels where it can be compiled (paged_tokens.py).
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.attention import given
from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape
from hybridge.runtime.engines.onnxruntime.graph_edit import (
    Inserter,
    add_input,
    fixed_shape,
    op_attributes,
    replace_node,
)
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.paged_prompts import attention_in_place, has_prompt_kernel, prompt_attention
from hybridge.runtime.engines.onnxruntime.paged_tokens import has_token_kernel, use_token_attention
from hybridge.runtime.engines.onnxruntime.ragged_rows import rows_from_tokens, tokens_from_rows
from hybridge.trt_plugins import e4m3
from hybridge.trt_plugins.catalog import DOMAIN

KV_POOL_ORDER = (0, 1, 3, 2, 4)
"""Axes of a declared KV pool in the order in which this engine holds them."""
POOL_ORDER = "engine.pool_order"
"""Key in the ``meta`` of a pool's graph input: the order in which the session holds its axes."""

_ATTENTION = ("paged_attention", "paged_attention_fp8")


def use_paged_attention(model: ir.Model, form: PagedForm, kernels: Kernels | None = None) -> None:
    """Rewrite every paged_attention with the reshape_and_cache before it, and their forms over pools of e4m3.

    ``form``: a step is one row of any number of tokens (ONE_ROW), rows of a few tokens each (RAGGED), or else every row
    has one token. ``kernels``: for prompts (ONE_ROW), and for rows of one token.
    """
    for node in list(model.graph):
        if node.domain == DOMAIN and node.op_type in _ATTENTION:
            _replace(model.graph, node, form, kernels)


def _replace(graph: ir.Graph, node: ir.Node, form: PagedForm, kernels: Kernels | None) -> None:
    query, cached = node.inputs[0], node.inputs[1]
    query_shape, pool_shape = fixed_shape(query), fixed_shape(cached)
    cache = cached.producer() if cached is not None else None
    assert cache is not None and query_shape is not None and pool_shape is not None, "the exporter gives these"
    query, key, value = (given(tensor) for tensor in (query, *cache.inputs[:2]))
    heads, head_dim, kv_heads, parts = query_shape[1], query_shape[2], pool_shape[3], pool_shape[0]
    assert heads is not None and head_dim is not None and kv_heads is not None and parts is not None
    attributes = op_attributes(node)
    shape = KvShape(kv_heads, int(attributes["sliding_window"]), parts)
    insert = Inserter(graph, node)
    sinks = None if _is_absent(node.inputs[-1]) else node.inputs[-1]
    scale = float(attributes["scale"]) or head_dim**-0.5
    numbers = {"scale": scale, "softcap": float(attributes["softcap"])}
    if form in (PagedForm.ONE_TOKEN, PagedForm.TOKEN_PER_ROW):
        if kernels is not None and has_token_kernel(kernels, cache):
            _lay_out(*use_token_attention(insert, node, cache, sinks, numbers | {"window": shape.window}))
            return
        kernels = None
    pool, scales = _updated_pools(graph, cache, shape, head_dim)
    own = None
    if kernels is not None and scales is None:
        own = attention_in_place(insert, query, pool, shape, sinks, kernels, numbers)
    if own is not None:
        replace_node(node, [own])
        return
    if kernels is not None and scales is None and has_prompt_kernel(kernels, shape, head_dim, sinks):
        blocks = _keys_and_values(graph, insert, pool, None, shape, head_dim, PagedForm.TOKEN_PER_ROW)
        y = prompt_attention(insert, (query, key, value), blocks, shape, sinks, kernels, numbers | {"num_heads": heads})
        replace_node(node, [y])
        return
    keys, values = _keys_and_values(graph, insert, pool, scales, shape, head_dim, form)
    by_head = (kv_heads, heads // kv_heads)
    q = _by_kv_head(insert, query, by_head, head_dim, form)
    scores = insert.microsoft("FusedMatMul", q, keys, transB=1, alpha=scale)
    bias = add_input(graph, shape.bias, ir.DataType.FLOAT, ["bias_rows", 1, "bias_tokens", "positions"])
    if form is PagedForm.RAGGED:
        # Tokens have their own axis where they see different keys: [rows, kv_heads, ratio, time, s].
        scores = insert.op("Reshape", scores, insert.shape(0, *by_head, -1, insert.size(bias, 3)))
        bias = insert.op("Unsqueeze", bias, insert.ints(1))
    scores = insert.op("Add", _capped(insert, scores, float(attributes["softcap"])), bias)
    weights = _weights(insert, scores, sinks, by_head, form)
    if form is PagedForm.RAGGED:
        weights = insert.op("Reshape", weights, insert.shape(0, kv_heads, -1, insert.size(bias, 4)))
    y = insert.op("MatMul", weights, values)
    if form is PagedForm.RAGGED:
        y = insert.op("Transpose", insert.reshape(y, 0, *by_head, -1, head_dim), perm=[0, 3, 1, 2, 4])
        y = tokens_from_rows(insert, insert.reshape(y, -1, heads, head_dim))
    elif form is PagedForm.ONE_ROW:
        y = insert.op("Transpose", insert.reshape(y, heads, -1, head_dim), perm=[1, 0, 2])
    else:
        y = insert.reshape(y, 0, heads, head_dim)
    replace_node(node, [y])


def _updated_pools(graph: ir.Graph, cache: ir.Node, shape: KvShape, head_dim: int) -> tuple[ir.Value, ir.Value | None]:
    """The pool with the new tokens, in the engine's order of axes, and its scales; they replace the node ``cache``."""
    insert = Inserter(graph, cache)
    key, value, pool = cache.inputs[0], cache.inputs[1], cache.inputs[2]
    assert key is not None and pool is not None
    kv_indices = add_input(graph, shape.kv_indices, ir.DataType.INT64, ["kv_indices", 4])
    updates, scales = key if shape.parts == 1 else insert.op("Concat", key, value, axis=0), None
    if len(cache.outputs) == 2:
        updates, factors = e4m3.quantized(insert, updates)
        scales = insert.op("ScatterND", cache.inputs[3], kv_indices, insert.reshape(factors, -1))
        scales.shape = cache.outputs[1].shape
    updated = insert.op("ScatterND", pool, kv_indices, insert.reshape(updates, -1, head_dim))
    replace_node(cache, [updated] if scales is None else [updated, scales])
    _lay_out(pool, updated)
    return updated, scales


def _lay_out(pool: ir.Value, updated: ir.Value) -> None:
    """Give both, of the declared shape, the engine's order of axes."""
    for value in (pool, updated):
        assert value.shape is not None
        value.shape = ir.Shape([value.shape.dims[axis] for axis in KV_POOL_ORDER])
    pool.meta[POOL_ORDER] = KV_POOL_ORDER


def _keys_and_values(
    graph: ir.Graph,
    insert: Inserter,
    pool: ir.Value,
    scales: ir.Value | None,
    shape: KvShape,
    head_dim: int,
    form: PagedForm,
) -> list[ir.Value]:
    """Keys and values, each [rows, kv_heads, s, head_dim], for one row [kv_heads, 1, s, head_dim]."""

    def by_block(laid_out: ir.Value, width: int) -> ir.Value:
        """[blocks * kv_heads of each part, block_size, width]"""
        blocks: ir.Value = insert.op("Reshape", laid_out, _block_shape(insert, pool, width))
        return blocks

    blocks, factors = by_block(pool, head_dim), None if scales is None else by_block(scales, 1)
    gathered: list[ir.Value] = []
    for kind in ("key", "value")[: shape.parts]:
        rows = add_input(graph, shape.blocks(kind), ir.DataType.INT64, ["rows", "kv_heads", "blocks"])
        found = insert.op("Gather", blocks, rows, axis=0)
        if factors is not None:
            found = insert.op("Mul", e4m3.floats(insert, found), insert.op("Gather", factors, rows, axis=0))
        if form is PagedForm.ONE_ROW:
            gathered.append(insert.op("Reshape", found, insert.shape(insert.size(found, 1), 1, -1, head_dim)))
        else:
            gathered.append(insert.reshape(found, 0, 0, -1, head_dim))
    return [gathered[0], gathered[-1]]


def _block_shape(insert: Inserter, pool: ir.Value, width: int) -> ir.Value:
    """The shape [-1, block_size, width]: all layers share it, as all pools have blocks of one size."""
    shared: dict[int, ir.Value] = insert.graph.meta.setdefault("block_shapes", {})
    if width not in shared:
        shared[width] = insert.shape(-1, insert.size(pool, 3), width)
    return shared[width]


def _by_kv_head(
    insert: Inserter, query: ir.Value | None, heads: tuple[int, int], head_dim: int, form: PagedForm
) -> ir.Value:
    """[rows, kv_heads, ratio, head_dim], for ragged rows [rows, kv_heads, ratio * time, head_dim], for one row
    [kv_heads, ratio, tokens, head_dim]; ``heads`` are KV heads and query heads of each."""
    assert query is not None
    if form is PagedForm.ONE_ROW:
        return insert.reshape(insert.op("Transpose", query, perm=[1, 0, 2]), *heads, -1, head_dim)
    if form is PagedForm.RAGGED:
        rows = insert.reshape(rows_from_tokens(insert, query), 0, 0, *heads, head_dim)
        return insert.reshape(insert.op("Transpose", rows, perm=[0, 2, 3, 1, 4]), 0, heads[0], -1, head_dim)
    return insert.reshape(query, 0, *heads, head_dim)


def _capped(insert: Inserter, scores: ir.Value, softcap: float) -> ir.Value:
    if not softcap:
        return scores
    bound = insert.constant(np.array(softcap, np.float32))
    capped: ir.Value = insert.op("Mul", insert.op("Tanh", insert.op("Div", scores, bound)), bound)
    return capped


def _weights(
    insert: Inserter, scores: ir.Value, sinks: ir.Value | None, heads: tuple[int, int], form: PagedForm
) -> ir.Value:
    """Softmax over the positions and the sink of each head; ``heads`` are KV heads and query heads of each."""
    if sinks is None:
        return insert.op("Softmax", scores, axis=-1)
    has_tokens = form in (PagedForm.ONE_ROW, PagedForm.RAGGED)
    by_head = insert.reshape(sinks, *((*heads, 1, 1) if has_tokens else (1, *heads, 1)))
    size = insert.op("Concat", insert.op("Shape", scores, start=0, end=-1), insert.ints(1), axis=0)
    column = insert.op("Expand", by_head, size)
    weights = insert.op("Softmax", insert.op("Concat", scores, column, axis=-1), axis=-1)
    return insert.op("Slice", weights, insert.ints(0), insert.ints(-1), insert.ints(-1))


def _is_absent(sinks: ir.Value | None) -> bool:
    tensor = None if sinks is None else sinks.const_value
    return (
        tensor is not None and not isinstance(tensor, ir.ExternalTensor) and bool((tensor.numpy() == -math.inf).all())
    )
