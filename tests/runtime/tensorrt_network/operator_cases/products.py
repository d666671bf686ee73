"""Products of matrices, attention and rotary embedding."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

from tests.runtime.tensorrt_network.operator_cases.draw import (
    FLOATS,
    ONNX,
    SIZES,
    Case,
    Draw,
    draw_shape,
    draw_values,
    one_node,
)
from tests.runtime.tensorrt_network.small_network import Small


def _matmul(draw: Draw) -> Small:
    batch, (m, k, n) = draw_shape(draw, 0, 2), (draw(SIZES) for _ in range(3))
    dtype = draw(st.sampled_from(FLOATS))
    own = [[1 if draw(st.booleans()) else size for size in batch][draw(st.integers(0, len(batch))) :] for _ in range(2)]
    arrays = {
        "a": draw_values(draw, [*own[0], m, k], dtype, -1, 1),
        "b": draw_values(draw, [*own[1], k, n], dtype, -1, 1),
    }
    return one_node(draw, "MatMul", ["a", "b"], arrays, ONNX[dtype])


def _rotary(draw: Draw) -> Small:
    batch, heads, seq, pairs = (draw(SIZES) for _ in range(4))
    whole, interleaved = draw(st.booleans()), draw(st.integers(0, 1))
    size = 2 * pairs + (0 if whole else 2 * draw(st.integers(0, 2)))
    arrays = {"x": draw_values(draw, [batch, heads, seq, size], np.float32)}
    arrays |= {name: draw_values(draw, [batch, seq, pairs], np.float32, -1, 1) for name in ("cos", "sin")}
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": 0 if size == 2 * pairs else 2 * pairs}
    case = one_node(draw, "RotaryEmbedding", ["x", "cos", "sin"], arrays, TensorProto.FLOAT, **attributes)
    case.dynamic = False
    return case


def _attention(draw: Draw) -> Small:
    batch, kv_heads, groups, new, positions = (draw(SIZES) for _ in range(5))
    size, dtype = 8 * draw(st.integers(1, 2)), draw(st.sampled_from(FLOATS))
    arrays = {
        "q": draw_values(draw, [batch, kv_heads * groups, new, size], dtype, -1, 1),
        "k": draw_values(draw, [batch, kv_heads, positions, size], dtype, -1, 1),
        "v": draw_values(draw, [batch, kv_heads, positions, size], dtype, -1, 1),
    }
    mask = draw_values(draw, [batch, 1, new, positions], np.bool_)
    mask[..., 0] = True
    arrays["mask"] = mask if draw(st.booleans()) else np.where(mask, 0.5, -30).astype(dtype)
    scale = draw(st.sampled_from((0.25, 1.0, 0.3)))
    case = one_node(draw, "Attention", ["q", "k", "v", "mask"], arrays, ONNX[dtype], scale=scale)
    case.dynamic = False
    return case


CASES: dict[str, Case] = {
    "MatMul": _matmul,
    "RotaryEmbedding": _rotary,
    "Attention": _attention,
}
