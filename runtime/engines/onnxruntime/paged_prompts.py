"""Attention of a prompt by kernels that never hold the scores of all tokens.

PagedAttention of the library of CPU kernels reads the blocks where they are. Without the library, GroupQueryAttention
reads gathered blocks, and writes them again with the new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.attention import HEAD_DIM_MULTIPLE, SINKS_INPUT
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input
from hybridge.runtime.engines.onnxruntime.kernels import Kernels


def attention_in_place(
    insert: Inserter,
    query: ir.Value,
    pool: ir.Value,
    shape: KvShape,
    sinks: ir.Value | None,
    kernels: Kernels,
    attributes: Mapping[str, Any],
) -> ir.Value | None:
    """The outputs [tokens, heads, head_dim] of one row, over a pool with its new tokens; None without the library.

    attributes: scale and softcap.
    """
    if not kernels.own_operators or cpu_library().path is None:
        return None
    blocks = add_input(insert.graph, shape.blocks("key"), ir.DataType.INT64, ["rows", "kv_heads", "blocks"])
    seen = add_input(insert.graph, shape.seen, ir.DataType.INT32, [1])
    y: ir.Value = insert.op(
        "PagedAttention",
        query,
        pool,
        blocks,
        seen,
        *([] if sinks is None else [sinks]),
        domain=CPU_DOMAIN,
        window=shape.window,
        instructions=0,
        **attributes,
    )
    return y


def has_prompt_kernel(kernels: Kernels, shape: KvShape, head_dim: int, sinks: ir.Value | None) -> bool:
    """Whether the kernel computes a layer of ``head_dim`` with these ``sinks``."""
    has_window = not shape.window or shape.window != kernels.window_margin
    return has_window and head_dim % HEAD_DIM_MULTIPLE == 0 and (sinks is None or kernels.attention_sinks)


def prompt_attention(
    insert: Inserter,
    new: Sequence[ir.Value],
    blocks: Sequence[ir.Value],
    shape: KvShape,
    sinks: ir.Value | None,
    kernels: Kernels,
    attributes: Mapping[str, Any],
) -> ir.Value:
    """The outputs [tokens, heads, head_dim] of one row.

    new: queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim]. blocks: keys and values
    [1, kv_heads, s, head_dim] of all positions that the row sees, the new ones included. attributes: of the node.
    """
    lengths = [add_input(insert.graph, name, ir.DataType.INT32, [1]) for name in (shape.last_seen, shape.seen)]
    given = dict(attributes, kv_num_heads=shape.kv_heads)
    if shape.window:
        given["local_window_size"] = shape.window - kernels.window_margin
    flat = [insert.op("Unsqueeze", insert.reshape(tensor, 0, -1), insert.ints(0)) for tensor in new]
    inputs: list[ir.Value | None] = [*flat, *blocks, *lengths]
    if sinks is not None:
        inputs += [None] * (SINKS_INPUT - len(inputs)) + [sinks]
    y, *_ = insert.microsoft("GroupQueryAttention", *inputs, outputs=3, **given)
    found: ir.Value = insert.op("Reshape", y, insert.op("Shape", new[0]))
    return found
