"""Random calls of every ONNX operator that exported graphs hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.runtime.tensorrt_network.small_network import Small

Draw = Callable[[st.SearchStrategy[Any]], Any]
FLOATS = (np.dtype(np.float32), np.dtype(np.float16))
INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))
ONNX = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.bool_): TensorProto.BOOL,
}
SIZES = st.integers(1, 5)


def _shape(draw: Draw, least: int = 1, most: int = 4) -> list[int]:
    return draw(st.lists(SIZES, min_size=least, max_size=most))


def _values(draw: Draw, shape: Any, dtype: Any, low: float = -4, high: float = 4) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if np.dtype(dtype) == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if np.dtype(dtype).kind == "i":
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def _small(
    draw: Draw,
    op: str,
    inputs: list[str],
    arrays: dict[str, np.ndarray],
    out: int,
    constants: Any = None,
    **attributes: Any,
) -> Small:
    node = helper.make_node(op, inputs, ["y"], **attributes)
    return Small([node], arrays, {"y": out}, constants or {}, draw(st.booleans()))


def _axis(draw: Draw, rank: int) -> int:
    return int(draw(st.integers(-rank, rank - 1)))


def _unary(op: str, low: float = -4, high: float = 4) -> Callable[[Draw], Small]:
    def case(draw: Draw) -> Small:
        dtype = draw(st.sampled_from(FLOATS))
        return _small(draw, op, ["x"], {"x": _values(draw, _shape(draw, 0), dtype, low, high)}, ONNX[dtype])

    return case


def _binary(op: str, types: tuple[np.dtype, ...], compares: bool = False, low: float = -4) -> Callable[[Draw], Small]:
    def case(draw: Draw) -> Small:
        dtype, shape = draw(st.sampled_from(types)), _shape(draw)
        arrays = {}
        for name in ("a", "b"):
            own = [1 if draw(st.booleans()) and draw(st.booleans()) else n for n in shape]
            arrays[name] = _values(draw, own[draw(st.integers(0, len(own))) :], dtype, low)
        out = TensorProto.BOOL if compares or dtype == np.bool_ else ONNX[dtype]
        return _small(draw, op, ["a", "b"], arrays, out)

    return case


def _cast(draw: Draw) -> Small:
    source, target = draw(st.sampled_from(list(ONNX))), draw(st.sampled_from(list(ONNX)))
    return _small(draw, "Cast", ["x"], {"x": _values(draw, _shape(draw), source)}, ONNX[target], to=ONNX[target])


def _softmax(draw: Draw) -> Small:
    x = _values(draw, _shape(draw, 2), draw(st.sampled_from(FLOATS)))
    return _small(draw, "Softmax", ["x"], {"x": x}, ONNX[x.dtype], axis=_axis(draw, x.ndim))


def _shape_of(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), np.float32)
    ends = {"start": draw(st.integers(-x.ndim, x.ndim)), "end": draw(st.integers(-x.ndim, x.ndim))}
    start, end = (v + x.ndim if v < 0 else v for v in ends.values())
    if start >= end:
        ends = {}
    return _small(draw, "Shape", ["x"], {"x": x}, TensorProto.INT64, **ends)


def _range(draw: Draw) -> Small:
    x = _values(draw, [draw(st.integers(1, 40))], np.float32)
    start, step = draw(st.integers(-5, 0)), draw(st.integers(1, 3))
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Squeeze", ["n"], ["stop"]),
        helper.make_node("Range", ["start", "stop", "step"], ["y"]),
    ]
    constants = {"start": np.array(start, np.int64), "step": np.array(step, np.int64)}
    return Small(nodes, {"x": x}, {"y": TensorProto.INT64}, constants, draw(st.booleans()))


def _expand(draw: Draw) -> Small:
    like = _values(draw, _shape(draw), np.float32)
    own = [1 if draw(st.booleans()) else n for n in like.shape][draw(st.integers(0, like.ndim)) :]
    dtype = draw(st.sampled_from((*FLOATS, *INTEGERS)))
    nodes = [helper.make_node("Shape", ["like"], ["sizes"]), helper.make_node("Expand", ["x", "sizes"], ["y"])]
    arrays = {"x": _values(draw, own, dtype), "like": like}
    return Small(nodes, arrays, {"y": ONNX[dtype]}, {}, draw(st.booleans()))


def _reshape(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from(FLOATS)))
    order = draw(st.permutations(x.shape))
    sizes, split = [int(n) for n in order], draw(st.integers(0, x.ndim))
    if draw(st.booleans()):
        sizes = [int(np.prod(sizes[:split], dtype=np.int64)), *sizes[split:]]
    given = [
        0 if index < x.ndim and x.shape[index] == n and draw(st.booleans()) else n for index, n in enumerate(sizes)
    ]
    if draw(st.booleans()):
        given[draw(st.integers(0, len(given) - 1))] = -1
    constants = {"sizes": np.array(given, np.int64)}
    return _small(draw, "Reshape", ["x", "sizes"], {"x": x}, ONNX[x.dtype], constants, allowzero=0)


def _reshape_to_empty(draw: Draw) -> Small:
    x = _values(draw, [0, draw(SIZES)], np.float32)
    constants = {"sizes": np.array([draw(SIZES), 0], np.int64)}
    return _small(draw, "Reshape", ["x", "sizes"], {"x": x}, TensorProto.FLOAT, constants, allowzero=1)


def _transpose(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS))))
    return _small(draw, "Transpose", ["x"], {"x": x}, ONNX[x.dtype], perm=draw(st.permutations(range(x.ndim))))


def _concat(draw: Draw) -> Small:
    shape, dtype = _shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS)))
    axis, count = _axis(draw, len(shape)), draw(st.integers(1, 4))
    arrays = {}
    for index in range(count):
        own = list(shape)
        own[axis] = draw(st.integers(0, 4))
        arrays[f"x{index}"] = _values(draw, own, dtype)
    return _small(draw, "Concat", list(arrays), arrays, ONNX[dtype], axis=axis)


def _split(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from(FLOATS)))
    axis = _axis(draw, x.ndim)
    first = draw(st.integers(0, x.shape[axis]))
    nodes = [helper.make_node("Split", ["x", "sizes"], ["y", "z"], axis=axis)]
    constants = {"sizes": np.array([first, x.shape[axis] - first], np.int64)}
    return Small(nodes, {"x": x}, {"y": ONNX[x.dtype], "z": ONNX[x.dtype]}, constants, draw(st.booleans()))


def _split_evenly(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), np.float32)
    axis = _axis(draw, x.ndim)
    nodes = [helper.make_node("Split", ["x"], ["y", "z"], axis=axis, num_outputs=2)]
    x = np.concatenate([x, x], axis)
    return Small(nodes, {"x": x}, {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}, {}, draw(st.booleans()))


def _slice(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS))))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1))
    step = draw(st.sampled_from((1, 1, 2, -1)))
    bounds = st.integers(-6, 6)
    constants = {
        "starts": np.array([draw(bounds) for _ in axes], np.int64),
        "ends": np.array([draw(bounds) for _ in axes], np.int64),
        "axes": np.array(axes, np.int64),
        "steps": np.array([step] * len(axes), np.int64),
    }
    return _small(draw, "Slice", ["x", *constants], {"x": x}, ONNX[x.dtype], constants)


def _slice_by_shape(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), np.float32)
    axis, like = draw(st.integers(0, x.ndim - 1)), _values(draw, [draw(st.integers(1, 6))], np.float32)
    nodes = [
        helper.make_node("Shape", ["like"], ["end"]),
        helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"]),
    ]
    constants = {
        "start": np.array([draw(st.integers(-3, 2))], np.int64),
        "axis": np.array([axis], np.int64),
        "step": np.array([1], np.int64),
    }
    return Small(nodes, {"x": x, "like": like}, {"y": TensorProto.FLOAT}, constants, draw(st.booleans()))


def _pad(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from(FLOATS)))
    axis = draw(st.integers(0, x.ndim - 1))
    constants = {
        "pads": np.array([draw(st.integers(0, 3)), draw(st.integers(0, 3))], np.int64),
        "value": np.array(draw(st.sampled_from((0.0, -1.5))), x.dtype),
        "axis": np.array([axis], np.int64),
    }
    return _small(draw, "Pad", ["x", "pads", "value", "axis"], {"x": x}, ONNX[x.dtype], constants)


def _unsqueeze(draw: Draw) -> Small:
    x = _values(draw, _shape(draw, 0, 3), draw(st.sampled_from(FLOATS)))
    rank = x.ndim + draw(st.integers(1, 2))
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=rank - x.ndim, max_size=rank - x.ndim))
    axes = [axis - rank if draw(st.booleans()) else axis for axis in axes]
    return _small(draw, "Unsqueeze", ["x", "axes"], {"x": x}, ONNX[x.dtype], {"axes": np.array(axes, np.int64)})


def _squeeze(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from(FLOATS)))
    axis = draw(st.integers(0, x.ndim))
    x = np.expand_dims(x, axis)
    case = _small(draw, "Squeeze", ["x", "axes"], {"x": x}, ONNX[x.dtype], {"axes": np.array([axis], np.int64)})
    case.dynamic = False
    return case


def _gather(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS))))
    axis, size = _axis(draw, x.ndim), 0
    size = x.shape[axis]
    indices = _values(draw, _shape(draw, 0, 2), draw(st.sampled_from(INTEGERS)), -size, size - 1)
    return _small(draw, "Gather", ["x", "i"], {"x": x, "i": indices}, ONNX[x.dtype], axis=axis)


def _gather_elements(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from(FLOATS)))
    axis = _axis(draw, x.ndim)
    shape = list(x.shape)
    shape[axis] = draw(SIZES)
    indices = _values(draw, shape, np.int64, -x.shape[axis], x.shape[axis] - 1)
    return _small(draw, "GatherElements", ["x", "i"], {"x": x, "i": indices}, ONNX[x.dtype], axis=axis)


def _tuples(draw: Draw, shape: list[int], leading: list[int], count: int) -> np.ndarray:
    rows = [_values(draw, leading, np.int64, -n, n - 1) for n in shape[:count]]
    return np.stack(rows, -1)


def _gather_nd(draw: Draw) -> Small:
    x = _values(draw, _shape(draw, 2), draw(st.sampled_from(FLOATS)))
    batch = draw(st.integers(0, 1))
    count = draw(st.integers(1, x.ndim - batch))
    leading = [*x.shape[:batch], *_shape(draw, 1, 2)]
    indices = _tuples(draw, list(x.shape[batch:]), leading, count)
    case = _small(draw, "GatherND", ["x", "i"], {"x": x, "i": indices}, ONNX[x.dtype], batch_dims=batch)
    case.dynamic = False  # TensorRT requires a fixed last axis of the indices
    return case


def _scatter_nd(draw: Draw) -> Small:
    x = _values(draw, _shape(draw, 2), draw(st.sampled_from(FLOATS)))
    count = draw(st.integers(1, x.ndim))
    rows = int(np.prod(x.shape[:count]))
    chosen = draw(st.lists(st.integers(0, rows - 1), unique=True, min_size=1, max_size=min(rows, 5)))
    indices = np.stack(np.unravel_index(np.array(chosen), x.shape[:count]), -1).astype(np.int64)
    updates = _values(draw, [len(chosen), *x.shape[count:]], x.dtype)
    case = _small(draw, "ScatterND", ["x", "i", "u"], {"x": x, "i": indices, "u": updates}, ONNX[x.dtype])
    case.dynamic = False
    return case


def _topk(draw: Draw) -> Small:
    shape = _shape(draw)
    axis = _axis(draw, len(shape))
    # No two equal numbers: their order is not defined.
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(int(np.prod(shape)))
    x = order.reshape(shape).astype(draw(st.sampled_from(FLOATS)))
    count = draw(st.integers(1, shape[axis]))
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis, largest=draw(st.integers(0, 1)), sorted=1)]
    outputs = {"y": ONNX[x.dtype], "i": TensorProto.INT64}
    return Small(nodes, {"x": x}, outputs, {"k": np.array([count], np.int64)}, draw(st.booleans()))


def _arg_max(draw: Draw) -> Small:
    shape = _shape(draw, 2)
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(int(np.prod(shape)))
    keep, axis = draw(st.integers(0, 1)), _axis(draw, len(shape))
    x = order.reshape(shape).astype(np.float32)
    return _small(draw, "ArgMax", ["x"], {"x": x}, TensorProto.INT64, axis=axis, keepdims=keep)


def _cumsum(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), np.float32)
    ends = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    axis = {"axis": np.array(_axis(draw, x.ndim), np.int64)}
    return _small(draw, "CumSum", ["x", "axis"], {"x": x}, TensorProto.FLOAT, axis, **ends)


def _reduce(op: str) -> Callable[[Draw], Small]:
    def case(draw: Draw) -> Small:
        x = _values(draw, _shape(draw), draw(st.sampled_from(FLOATS)))
        axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1))
        keep = draw(st.integers(0, 1))
        constants = {"axes": np.array(axes, np.int64)}
        return _small(draw, op, ["x", "axes"], {"x": x}, ONNX[x.dtype], constants, keepdims=keep)

    return case


def _reduce_all(draw: Draw) -> Small:
    x = _values(draw, _shape(draw), draw(st.sampled_from(INTEGERS)))
    return _small(draw, "ReduceMax", ["x"], {"x": x}, ONNX[x.dtype], keepdims=draw(st.integers(0, 1)))


def _matmul(draw: Draw) -> Small:
    batch, (m, k, n) = _shape(draw, 0, 2), (draw(SIZES) for _ in range(3))
    dtype = draw(st.sampled_from(FLOATS))
    own = [[1 if draw(st.booleans()) else size for size in batch][draw(st.integers(0, len(batch))) :] for _ in range(2)]
    arrays = {"a": _values(draw, [*own[0], m, k], dtype, -1, 1), "b": _values(draw, [*own[1], k, n], dtype, -1, 1)}
    return _small(draw, "MatMul", ["a", "b"], arrays, ONNX[dtype])


def _where(draw: Draw) -> Small:
    shape, dtype = _shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS)))
    arrays = {}
    for name, own_type in (("c", np.bool_), ("a", dtype), ("b", dtype)):
        own = [1 if draw(st.booleans()) and draw(st.booleans()) else n for n in shape]
        arrays[name] = _values(draw, own[draw(st.integers(0, len(own))) :], own_type)
    return _small(draw, "Where", ["c", "a", "b"], arrays, ONNX[dtype])


def _rms_norm(draw: Draw) -> Small:
    x = _values(draw, _shape(draw, 2), draw(st.sampled_from(FLOATS)))
    scale = {"scale": _values(draw, [x.shape[-1]], x.dtype)}
    return _small(draw, "RMSNormalization", ["x", "scale"], {"x": x}, ONNX[x.dtype], scale, axis=-1, epsilon=1e-5)


def _rotary(draw: Draw) -> Small:
    batch, heads, seq, pairs = (draw(SIZES) for _ in range(4))
    whole, interleaved = draw(st.booleans()), draw(st.integers(0, 1))
    size = 2 * pairs + (0 if whole else 2 * draw(st.integers(0, 2)))
    arrays = {"x": _values(draw, [batch, heads, seq, size], np.float32)}
    arrays |= {name: _values(draw, [batch, seq, pairs], np.float32, -1, 1) for name in ("cos", "sin")}
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": 0 if size == 2 * pairs else 2 * pairs}
    case = _small(draw, "RotaryEmbedding", ["x", "cos", "sin"], arrays, TensorProto.FLOAT, **attributes)
    case.dynamic = False
    return case


def _attention(draw: Draw) -> Small:
    batch, kv_heads, groups, new, positions = (draw(SIZES) for _ in range(5))
    size, dtype = 8 * draw(st.integers(1, 2)), draw(st.sampled_from(FLOATS))
    arrays = {
        "q": _values(draw, [batch, kv_heads * groups, new, size], dtype, -1, 1),
        "k": _values(draw, [batch, kv_heads, positions, size], dtype, -1, 1),
        "v": _values(draw, [batch, kv_heads, positions, size], dtype, -1, 1),
    }
    mask = _values(draw, [batch, 1, new, positions], np.bool_)
    mask[..., 0] = True
    arrays["mask"] = mask if draw(st.booleans()) else np.where(mask, 0.5, -30).astype(dtype)
    scale = draw(st.sampled_from((0.25, 1.0, 0.3)))
    case = _small(draw, "Attention", ["q", "k", "v", "mask"], arrays, ONNX[dtype], scale=scale)
    case.dynamic = False
    return case


def _tensor_scatter(draw: Draw) -> Small:
    batch, heads, size, positions = (draw(SIZES) for _ in range(4))
    new = draw(st.integers(1, positions))
    arrays = {
        "cache": _values(draw, [batch, heads, positions, size], np.float32),
        "update": _values(draw, [batch, heads, new, size], np.float32),
        "start": _values(draw, [batch], np.int64, 0, positions - new),
    }
    nodes = [helper.make_node("TensorScatter", ["cache", "update", "start"], ["y"], axis=2, mode="linear")]
    return Small(nodes, arrays, {"y": TensorProto.FLOAT})


def _scan(draw: Draw) -> Small:
    rows, size = draw(st.integers(1, 5)), draw(SIZES)
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "decay"], ["carried"]),
            helper.make_node("Add", ["carried", "row"], ["next"]),
            helper.make_node("Mul", ["state", "row"], ["shown"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in ("state", "row", "decay")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in ("next", "shown")],
    )
    node = helper.make_node("Scan", ["first", "rows", "decays"], ["last", "y"], body=body, num_scan_inputs=2)
    arrays = {"first": _values(draw, [size], np.float32)}
    arrays |= {name: _values(draw, [rows, size], np.float32, -1, 1) for name in ("rows", "decays")}
    return Small([node], arrays, {"last": TensorProto.FLOAT, "y": TensorProto.FLOAT})


def _dequantize(draw: Draw) -> Small:
    blocks, block, columns = draw(SIZES), draw(st.integers(2, 4)), 2 * draw(SIZES)
    kind = draw(st.sampled_from((TensorProto.INT8, TensorProto.INT4)))
    limits = (-128, 127) if kind == TensorProto.INT8 else (-8, 7)
    numbers = _values(draw, [blocks * block, columns], np.int64, *limits)
    weights = helper.make_tensor("w", kind, numbers.shape, numbers.reshape(-1).tolist())
    how = draw(st.sampled_from(("blocks", "axis") if kind == TensorProto.INT4 else ("blocks", "axis", "tensor")))
    shape: list[int] = {"blocks": [blocks, columns], "axis": [columns], "tensor": []}[how]
    attributes: Mapping[str, int] = {"blocks": {"axis": 0, "block_size": block}, "axis": {"axis": 1}, "tensor": {}}[how]
    if how == "axis" and kind == TensorProto.INT4:
        shape, attributes = [blocks, columns], {"axis": 0, "block_size": block}
    constants = {"w": weights, "scale": _values(draw, shape, np.float32, 0.1, 2)}
    x = _values(draw, [columns], np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"], **attributes),
        helper.make_node("Add", ["wide", "x"], ["y"]),
    ]
    return Small(nodes, {"x": x}, {"y": TensorProto.FLOAT}, constants)


BOOLEANS = (np.dtype(np.bool_),)
CASES: dict[str, Callable[[Draw], Small]] = {
    **{op: _unary(op) for op in ("Neg", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Relu", "Softplus", "Identity")},
    **{op: _unary(op, 0.1) for op in ("Sqrt", "Reciprocal")},
    **{op: _binary(op, (*FLOATS, *INTEGERS)) for op in ("Add", "Sub", "Mul", "Max", "Min")},
    "Div": _binary("Div", (*FLOATS, *INTEGERS), low=1),
    "Mod": _binary("Mod", INTEGERS, low=1),
    **{op: _binary(op, BOOLEANS) for op in ("And", "Or")},
    **{
        op: _binary(op, (*INTEGERS, FLOATS[0]), True)
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    "Cast": _cast,
    "Softmax": _softmax,
    "Shape": _shape_of,
    "Range": _range,
    "Expand": _expand,
    "Reshape": _reshape,
    "Reshape to no elements": _reshape_to_empty,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Split evenly": _split_evenly,
    "Slice": _slice,
    "Slice by a shape": _slice_by_shape,
    "Pad": _pad,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "TopK": _topk,
    "ArgMax": _arg_max,
    "CumSum": _cumsum,
    **{op: _reduce(op) for op in ("ReduceSum", "ReduceSumSquare", "ReduceMax")},
    "ReduceMax of all": _reduce_all,
    "MatMul": _matmul,
    "Where": _where,
    "RMSNormalization": _rms_norm,
    "RotaryEmbedding": _rotary,
    "Attention": _attention,
    "TensorScatter": _tensor_scatter,
    "Scan": _scan,
    "DequantizeLinear": _dequantize,
}
