"""A one-layer hybrid graph (attention, causal_conv1d, update_ssm_state) made by hand, without torch."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.functions import attach_functions

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 11, 24, 4, 2, 8
SSM_HEADS, SSM_HEAD_DIM, SSM_STATE, SSM_GROUPS, CONV_KERNEL = 3, 8, 10, 1, 4
CONV_DIM = SSM_HEADS * SSM_HEAD_DIM + 2 * SSM_GROUPS * SSM_STATE
ATTENTION_NAME, SSM_NAME = "layers.0.attention", "layers.1.ssm"


def tiny_bindings(dtype: DType) -> GraphBindings:
    """The inputs and outputs of the graph, states in the order of the contract."""
    cache = (dtype, ("batch", KV_HEADS, "max_seq", HEAD_DIM))
    states = (
        ("key_0", *cache),
        ("value_0", *cache),
        ("conv_state_0", dtype, ("batch", CONV_DIM, CONV_KERNEL)),
        ("recurrent_state_0", DType.FLOAT32, ("batch", SSM_HEADS, SSM_HEAD_DIM, SSM_STATE)),
    )
    past = {name: f"past_{name}" if "_state" not in name else name for name, _, _ in states}
    inputs = [
        Binding("input_ids", DType.INT64, ("batch", "seq")),
        Binding("context_lengths", DType.INT32, ("batch",)),
        Binding("past_lengths", DType.INT32, ("batch",)),
        *(Binding(past[name], kind, shape, f"present_{name}") for name, kind, shape in states),
    ]
    outputs = [
        Binding("logits", DType.FLOAT32, ("batch", VOCAB)),
        *(Binding(f"present_{name}", kind, shape) for name, kind, shape in states),
    ]
    return GraphBindings(tuple(inputs), tuple(outputs))


class TinyGraph:
    """Builds the graph; ``weights`` are bfloat16 (``A`` and ``D`` float32) and cast where ``dtype`` differs."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.weights: dict[str, np.ndarray] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def model(self) -> onnx.ModelProto:
        """The model; initializers of ``weights`` are declared with external data by ``tiny_artifact``."""
        hidden = self.op("Gather", self.weight("embedding", VOCAB, HIDDEN), "input_ids")
        hidden = self.op("Add", hidden, self._attention(self._norm(hidden)))
        hidden = self.op("Add", hidden, self._ssm(self._norm(hidden)))
        self._logits(hidden)
        bindings = tiny_bindings(self.dtype)
        inputs, outputs = (
            [helper.make_tensor_value_info(b.name, b.dtype.onnx, b.shape) for b in side]
            for side in (bindings.inputs, bindings.outputs)
        )
        graph = helper.make_graph(self._nodes, "tiny", inputs, outputs, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
        for name, array in self.weights.items():
            tensor = TensorProto(name=name, data_type=DType.from_numpy(array.dtype).onnx, dims=array.shape)
            model.graph.initializer.append(tensor)
        attach_functions(model)
        return model

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: object) -> str:
        name = out or f"{op_type}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], name=f"node_{name}", **attributes))
        return name

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A bfloat16 weight, cast to the compute type."""
        values = self._random.standard_normal(shape) / np.sqrt(shape[-1])
        self.weights[name] = values.astype(DType.BFLOAT16.numpy)
        if self.dtype is DType.BFLOAT16:
            return name
        return self.op("Cast", name, to=self.dtype.onnx)

    def linear(self, x: str, name: str, size_in: int, size_out: int) -> str:
        return self.op("MatMul", x, self.op("Transpose", self.weight(name, size_out, size_in), perm=[1, 0]))

    def _norm(self, x: str) -> str:
        return self.op("RMSNormalization", x, self.weight(f"norm_{x}", HIDDEN), axis=-1, epsilon=1e-5)

    def _attention(self, x: str) -> str:
        """Grouped-query attention whose padded positions leave the cache as it was."""
        query, key, value = (
            self._heads(self.linear(x, f"{name}_proj", HIDDEN, heads * HEAD_DIM), heads)
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        column = self.op("Unsqueeze", "past_lengths", self.constant([1]))
        seq = self.op("Cast", self.op("Shape", "input_ids", start=1, end=2), to=TensorProto.INT32)
        count = self.op("Squeeze", self.op("Shape", "input_ids", start=1, end=2))
        steps = self.op("Range", self.constant(0), count, self.constant(1))
        offsets = self.op("Cast", steps, to=TensorProto.INT32)
        angles = self._angles(self.op("Add", column, offsets))
        query, key = (self.op("RotaryEmbedding", tensor, *angles) for tensor in (query, key))
        capacity = self.op("Cast", self.op("Shape", "past_key_0", start=2, end=3), to=TensorProto.INT32)
        start = self.op("Min", "past_lengths", self.op("Sub", capacity, seq))
        start = self.op("Max", start, self.constant(0, np.int32))
        positions = self.op("Add", self.op("Unsqueeze", start, self.constant([1])), offsets)
        end = self.op("Unsqueeze", self.op("Add", "past_lengths", "context_lengths"), self.constant([1]))
        valid = self.op("And", self.op("GreaterOrEqual", positions, column), self.op("Less", positions, end))
        source = self.op("Min", self.op("Sub", positions, column), self.op("Sub", seq, self.constant(1, np.int32)))
        source = self.op("Max", source, self.constant(0, np.int32))
        for name, new in (("key_0", key), ("value_0", value)):
            self._cache_update(name, new, positions, source, valid, start)
        mask = self._mask(column, offsets, end, capacity)
        result = self.op("Attention", query, "present_key_0", "present_value_0", mask, out=ATTENTION_NAME)
        rows = self.op("Transpose", result, perm=[0, 2, 1, 3])
        rows = self.op("Reshape", rows, self.constant([0, 0, HEADS * HEAD_DIM]))
        return self.linear(rows, "o_proj", HEADS * HEAD_DIM, HIDDEN)

    def _heads(self, x: str, heads: int) -> str:
        split = self.op("Reshape", x, self.constant([0, 0, heads, HEAD_DIM]))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def _angles(self, positions: str) -> tuple[str, str]:
        frequencies = self.constant(1e4 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM), np.float32)
        tokens = self.op("Cast", self.op("Unsqueeze", positions, self.constant([2])), to=TensorProto.FLOAT)
        angles = self.op("Mul", tokens, frequencies)
        cos, sin = (self.op("Cast", self.op(name, angles), to=self.dtype.onnx) for name in ("Cos", "Sin"))
        return cos, sin

    def _cache_update(self, name: str, new: str, positions: str, source: str, valid: str, start: str) -> None:
        shape = self.op("Shape", new)
        picked = []
        for tensor, index in ((f"past_{name}", positions), (new, source)):
            wide = self.op("Unsqueeze", self.op("Cast", index, to=TensorProto.INT64), self.constant([1, 3]))
            picked.append(self.op("GatherElements", tensor, self.op("Expand", wide, shape), axis=2))
        rows = self.op("Where", self.op("Unsqueeze", valid, self.constant([1, 3])), picked[1], picked[0])
        at = self.op("Cast", start, to=TensorProto.INT64)
        self.op("TensorScatter", f"past_{name}", rows, at, out=f"present_{name}", axis=2, mode="linear")

    def _mask(self, past: str, offsets: str, end: str, capacity: str) -> str:
        zero, one = self.constant(0, np.int32), self.constant(1, np.int32)
        columns = self.op("Range", zero, self.op("Squeeze", capacity), one)
        query = self.op("Unsqueeze", self.op("Add", past, offsets), self.constant([2]))
        causal = self.op("LessOrEqual", columns, query)
        written = self.op("Less", columns, self.op("Unsqueeze", end, self.constant([2])))
        return self.op("Unsqueeze", self.op("And", causal, written), self.constant([1]))

    def _ssm(self, x: str) -> str:
        mixed = self.linear(x, "in_proj", HIDDEN, CONV_DIM)
        conv = [mixed, self.weight("conv", CONV_DIM, 1, CONV_KERNEL), self.weight("conv_bias", CONV_DIM)]
        outputs = ["conv_y", "present_conv_state_0"]
        self._operator("causal_conv1d", [*conv, "conv_state_0", "context_lengths"], outputs, activation="silu")
        inner, groups = SSM_HEADS * SSM_HEAD_DIM, SSM_GROUPS * SSM_STATE
        sizes = self.constant([inner, groups, groups])
        parts = ["ssm_x", "ssm_B", "ssm_C"]
        self._nodes.append(helper.make_node("Split", ["conv_y", sizes], parts, axis=-1))
        shapes = ((SSM_HEADS, SSM_HEAD_DIM), (SSM_GROUPS, SSM_STATE), (SSM_GROUPS, SSM_STATE))
        x_heads, B, C = (
            self.op("Reshape", part, self.constant([0, 0, *shape])) for part, shape in zip(parts, shapes, strict=True)
        )
        step = self.linear(x, "dt_proj", HIDDEN, SSM_HEADS)
        self.weights["layers.1.A"] = -np.linspace(1.0, 4.0, SSM_HEADS, dtype=np.float32)
        self.weights["layers.1.D"] = np.ones(SSM_HEADS, np.float32)
        bias = self.weight("dt_bias", SSM_HEADS)
        inputs = [x_heads, "layers.1.A", B, C, "layers.1.D", step, bias, "recurrent_state_0", "context_lengths"]
        self._operator("update_ssm_state", inputs, ["ssm_y", "present_recurrent_state_0"], name=SSM_NAME)
        flat = self.op("Reshape", "ssm_y", self.constant([0, 0, inner]))
        return self.linear(flat, "out_proj", inner, HIDDEN)

    def _operator(self, op: str, inputs: list[str], outputs: list[str], name: str = "", **attributes: object) -> None:
        self._nodes.append(
            helper.make_node(op, inputs, outputs, name=name or f"layers.1.{op}", domain="trt_edgellm", **attributes)
        )

    def _logits(self, x: str) -> None:
        last = self.op("Sub", "context_lengths", self.constant(1, np.int32))
        last = self.op("Cast", self.op("Max", last, self.constant(0, np.int32)), to=TensorProto.INT64)
        row = self.op("GatherND", x, self.op("Unsqueeze", last, self.constant([1])), batch_dims=1)
        self.op("Cast", self.linear(row, "head", HIDDEN, VOCAB), out="logits", to=TensorProto.FLOAT)
