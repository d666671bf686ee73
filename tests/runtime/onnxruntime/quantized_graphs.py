"""Quantised matrices in a file, and graphs that multiply by them or look up their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.fused_linear import use_fused_linear
from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code
from hybridge.runtime.engines.onnxruntime.graph_weights import serialised_model
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.linear import use_stored_weights
from hybridge.runtime.engines.onnxruntime.model_file import gather_weights
from hybridge.runtime.engines.onnxruntime.op_bodies import use_op_bodies
from hybridge.runtime.engines.onnxruntime.packed_tables import use_packed_tables
from hybridge.runtime.engines.onnxruntime.quantized_experts import use_quantized_experts
from hybridge.runtime.engines.onnxruntime.quantized_products import use_quantized_products
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.engines.onnxruntime.session_graph import SessionGraph
from hybridge.runtime.engines.onnxruntime.stored_experts import use_stored_experts
from hybridge.runtime.engines.onnxruntime.stored_products import use_stored_products
from hybridge.runtime.engines.onnxruntime.weights import WeightStore

_LIMITS = {DType.INT4: (-8, 8), DType.INT8: (-128, 128)}


@dataclass(frozen=True)
class Form:
    """A quantised matrix: ``group`` columns share a scale; None: one scale per row, 0: one scale for the matrix."""

    dtype: DType
    group: int | None
    zeros: bool = False
    scales: DType = DType.FLOAT32
    is_scaled_twice: bool = False


def numbers(dtype: DType, count: int, random: np.random.Generator) -> np.ndarray:
    """Random numbers of the type as float64 [count], including its extremes."""
    if dtype in _LIMITS:
        low, high = _LIMITS[dtype]
        whole = random.integers(low, high, count).astype(np.float64)
        whole[:2] = (low, high - 1)[:count]
        return whole
    kind = {DType.FLOAT4E2M1: ml_dtypes.float4_e2m1fn, DType.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn}[dtype]
    found = random.standard_normal(count) * 2
    found[:2] = float(ml_dtypes.finfo(kind).max), float(ml_dtypes.finfo(kind).min)
    return found.astype(kind).astype(np.float64)


def stored_bytes(values: np.ndarray, dtype: DType) -> bytes:
    """Numbers as stored in a file: two 4-bit numbers per byte, the first in the low half."""
    if dtype is DType.INT4:
        halves = values.reshape(-1).astype(np.int8).view(np.uint8) & 15
    elif dtype is DType.FLOAT4E2M1:
        halves = values.reshape(-1).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    else:
        return values.astype(dtype.numpy).tobytes()
    halves = np.append(halves, np.zeros(len(halves) % 2, np.uint8))
    return (halves[::2] | halves[1::2] << 4).astype(np.uint8).tobytes()


class QuantizedGraph:
    """A graph under construction over ``folder``/weights.bin."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._bytes = folder, bytearray()
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": 23, "trt_edgellm": 1}, name="quantised")

    def stored(self, name: str, values: np.ndarray, dtype: DType) -> ir.Value:
        """An initializer in the file."""
        raw = stored_bytes(values, dtype)
        kind, shape = ir.DataType(dtype.onnx), ir.Shape(values.shape)
        tensor = ir.ExternalTensor(
            "weights.bin", len(self._bytes), len(raw), kind, shape=shape, name=name, base_dir=self._folder
        )
        self._bytes += raw
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(kind), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def matrix(self, name: str, form: Form, rows: int, columns: int) -> tuple[ir.Value, np.ndarray]:
        """The dequantised matrix in the graph, and its values in float64."""
        random = np.random.default_rng(len(self._bytes))
        values = numbers(form.dtype, rows * columns, random).reshape(rows, columns)
        groups = columns // form.group if form.group else 1
        shape = () if form.group == 0 else (rows, groups) if form.group else (rows,)
        scales = (random.uniform(0.01, 0.05, shape) * random.choice([-1, 1], shape)).astype(form.scales.numpy)
        scale = self.stored(f"{name}_scale", scales, form.scales)
        meant_scales = scales.astype(np.float64)
        if form.is_scaled_twice:
            whole = np.float32(0.375)
            scale = self.op("DequantizeLinear", scale, self.stored(f"{name}_global", whole, DType.FLOAT32))
            meant_scales = meant_scales * float(whole)
        elif form.scales is not DType.FLOAT32:
            scale = self.op("Cast", scale, to=int(ir.DataType.FLOAT))
        inputs, zeros = [self.stored(name, values, form.dtype), scale], np.zeros(shape)
        if form.zeros:
            zeros = numbers(form.dtype, int(np.prod(shape)), random).reshape(shape)
            inputs.append(self.stored(f"{name}_zero_point", zeros, form.dtype))
        attributes = {"axis": 1, "block_size": form.group} if form.group else {"axis": 0}
        value = self.op("DequantizeLinear", *inputs, **attributes)
        value.name, value.shape = f"{name}.dequantized", ir.Shape((rows, columns))
        value.type = ir.TensorType(ir.DataType.FLOAT)
        spread = [
            np.repeat(
                np.broadcast_to(each, (rows,) if form.group is None else each.shape).reshape(-1, groups)
                if each.shape
                else each.reshape(1, 1),
                columns // groups,
                axis=1,
            )
            for each in (zeros, meant_scales)
        ]
        return value, (values - spread[0]) * spread[1]

    def op(self, op_type: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        """Append a node; returns its first output."""
        node = ir.node(op_type, inputs, attributes or None)
        self.graph.append(node)
        return node.outputs[0]

    def experts(self, name: str, form: Form, shape: tuple[int, int, int], halves: int) -> tuple[ir.Value, np.ndarray]:
        """A weight [experts, rows, columns] as exported, of one part or two ``halves`` per expert; its values."""
        experts, rows, columns = shape
        parts = [self.matrix(f"{name}.{index}", form, rows // halves, columns) for index in range(experts * halves)]
        joined = self.op("Concat", *(value for value, _ in parts), axis=0)
        constant = ir.node("Constant", [], {"value_ints": list(shape)})
        self.graph.append(constant)
        whole = self.op("Reshape", joined, constant.outputs[0])
        whole.name, whole.shape, whole.type = name, ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
        for value in (joined, whole):
            value.type = ir.TensorType(ir.DataType.FLOAT)
        return whole, np.concatenate([meant for _, meant in parts]).reshape(shape)

    def input(self, name: str, dtype: ir.DataType, *shape: int | str) -> ir.Value:
        """A new graph input."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.graph.inputs.append(value)
        return value

    def product(self, name: str, x: ir.Value, matrix: ir.Value) -> None:
        """The graph output ``name``: x times the transposed matrix."""
        self.output(name, self.op("MatMul", x, self.op("Transpose", matrix, perm=[1, 0])))

    def rows(self, name: str, indices: ir.Value, matrix: ir.Value) -> None:
        """The graph output ``name``: rows of the matrix."""
        self.output(name, self.op("Gather", matrix, indices))

    def session(self, exact: bool = False, linear: bool = False) -> tuple[ort.InferenceSession, WeightStore, list[str]]:
        """A session as the engine creates it, its weight store, and its operators; linear: with our CPU library."""
        (self._folder / "weights.bin").write_bytes(self._bytes)
        model = ir.Model(self.graph, ir_version=10)
        gather_weights(model)
        use_stored_weights(model)
        if linear:
            use_stored_products(model, exact)
            use_fused_linear(model)
        use_quantized_products(model, installed_kernels(), exact)
        use_packed_tables(model)
        if linear:
            use_stored_experts(model, exact)
        use_quantized_experts(model, installed_kernels(), exact)
        use_op_bodies(model, installed_kernels(), padded=False)
        remove_dead_code(model)
        types = [node.op_type for node in model.graph]
        serialised, weights = serialised_model(model)
        store = WeightStore(self._folder)
        graph = SessionGraph(serialised, weights, frozenset(), frozenset())
        return create_session(graph, store, self._folder, 1), store, types

    def run(self, feeds: Mapping[str, np.ndarray], exact: bool = False) -> list[np.ndarray]:
        """The outputs of one session."""
        session, store, _ = self.session(exact)
        outputs = list(session.run(None, dict(feeds)))
        del store  # the session has read its arrays
        return outputs

    def output(self, name: str, value: ir.Value) -> None:
        """Let ``value`` be the graph output ``name``."""
        value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
        self.graph.outputs.append(value)
