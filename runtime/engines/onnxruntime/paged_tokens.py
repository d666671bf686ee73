"""Attention of one token of each row as one node of the library of CPU kernels, over blocks in place.

It takes the step's block table, slot mapping and lengths as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.attention import given
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.reshapes import reshape_sources


def has_token_kernel(kernels: Kernels, cache: ir.Node) -> bool:
    """Whether there is the operator, and it takes the pool of reshape_and_cache ``cache``: float32, for one layer."""
    is_plain = len(cache.outputs) == 1 and len(cache.outputs[0].uses()) == 1
    return is_plain and kernels.own_operators and cpu_library().path is not None


def use_token_attention(
    insert: Inserter, node: ir.Node, cache: ir.Node, sinks: ir.Value | None, attributes: Mapping[str, Any]
) -> tuple[ir.Value, ir.Value]:
    """Replace paged_attention ``node`` and reshape_and_cache ``cache``; returns the pool before and after them.

    attributes: scale, softcap and window.
    """
    query, table, lengths = given(node.inputs[0]), node.inputs[2], node.inputs[4]
    key, value, pool, slots = given(cache.inputs[0]), given(cache.inputs[1]), given(cache.inputs[2]), cache.inputs[3]
    sizes, shape = fixed_shape(pool), fixed_shape(query)
    assert sizes is not None and shape is not None and shape[1] and shape[2]
    flat = _flat(query)
    y, updated = insert.op(
        "PagedTokenAttention",
        flat,
        _flat(key),
        None if sizes[0] == 1 else _flat(value),
        pool,
        slots,
        table,
        lengths,
        *([] if sinks is None else [sinks]),
        domain=CPU_DOMAIN,
        outputs=2,
        instructions=0,
        **attributes,
    )
    y.type, y.shape = flat.type, flat.shape
    replace_node(node, [insert.op("Reshape", y, insert.ints(-1, shape[1], shape[2]))])
    replace_node(cache, [updated])
    return pool, updated


def _flat(value: ir.Value) -> ir.Value:
    """``value`` [tokens, heads, size] before it was divided into heads."""
    sizes = fixed_shape(value)
    for source in reshape_sources(value):
        found = fixed_shape(source)
        if sizes and sizes[1] and sizes[2] and found is not None and found[1:] == (sizes[1] * sizes[2],):
            return source
    return value
