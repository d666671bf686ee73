"""ONNX Runtime's LinearAttention node, which computes a row token by token."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter


def linear_attention(
    insert: Inserter,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    state: ir.Value,
    log_decay: ir.Value,
    beta: ir.Value | None = None,
    *,
    key_heads: int,
    value_heads: int,
    scale: float = 1.0,
) -> tuple[ir.Value, ir.Value]:
    """o [b, t, value_heads * m] and the state [b, value_heads, n, m] after the last token.

    query, key: [b, t, key_heads * n]; value: [b, t, value_heads * m]; log_decay: [b, t, value_heads], or one for each
    of n. S = exp(log_decay) S + outer(key, value), or with ``beta`` [b, t, value_heads] the delta rule, which first
    subtracts ``key`` S from ``value``; o = scale * query S.
    """
    o, new_state = insert.microsoft(
        "LinearAttention",
        query,
        key,
        value,
        state,
        log_decay,
        *(() if beta is None else (beta,)),
        outputs=2,
        q_num_heads=key_heads,
        kv_num_heads=value_heads,
        update_rule="gated" if beta is None else "gated_delta",
        scale=scale,
    )
    return o, new_state
