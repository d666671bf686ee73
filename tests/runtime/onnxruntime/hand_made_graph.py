"""The graph of a hand-made artifact."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.names import conv_state, past_key, past_value, present, recurrent_state
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.functions.catalog import function_for
from hybridge.trt_plugins.functions.signature import Signature
from tests.runtime.onnxruntime.hand_made_plan import (
    CONV_DIM,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KERNEL,
    KV_HEADS,
    M_DIM,
    M_GROUPS,
    M_HEADS,
    M_STATE,
    VOCAB,
    Plan,
)


class GraphMaker:
    """Builds model.onnx of one hand-made artifact, node by node in the exporter's forms."""

    def __init__(
        self,
        plan: Plan,
        config: RuntimeConfig,
        shapes: dict[str, tuple[int, ...]],
        stored: dict[str, DType],
        offsets: dict[str, tuple[int, int]],
    ) -> None:
        """``shapes``, ``stored`` and ``offsets`` (byte offset and length) describe every weight."""
        self.plan, self.config, self.weight_shapes = plan, config, shapes
        self.stored, self.offsets = stored, offsets
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tuple[list, DType]] = {}
        self.functions: dict[str, onnx.FunctionProto] = {}

    def op(
        self, op_type: str, *inputs: str, outputs: tuple[str, ...] = (), domain: str = "", **attributes: object
    ) -> str:
        names = list(outputs) or [f"{op_type}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, domain=domain, **attributes))
        return names[0]

    def const(self, values: object, dtype: type = np.int64) -> str:
        array: np.ndarray = np.array(values, dtype)
        name = f"const_{array.dtype}_{array.shape}_{array.tolist()}"
        self.constants[name] = array
        return name

    def shaped(self, name: str, *shape: int | str, dtype: DType | None = None) -> str:
        self.shapes[name] = (list(shape), dtype or self.plan.dtype)
        return name

    def weight(self, name: str) -> str:
        """The weight in the compute type: a Cast follows where the checkpoint's type differs."""
        if self.stored[name] is self.plan.dtype or self.stored[name] is DType.FLOAT32:
            return name
        return self.shaped(self.op("Cast", name, to=self.plan.dtype.onnx), *self.weight_shapes[name])

    def linear(self, x: str, name: str) -> str:
        y = self.op("MatMul", x, self.op("Transpose", self.weight(name), perm=[1, 0]))
        return self.shaped(y, "batch", "seq", self.weight_shapes[name][0])

    def norm(self, x: str, name: str) -> str:
        return self.op("RMSNormalization", x, self.weight(name), axis=-1, epsilon=EPS)

    def model(self) -> onnx.ModelProto:
        config = self.config
        attention = mamba = 0
        x = self.shaped(self.op("Gather", self.weight("embedding"), "input_ids"), "batch", "seq", HIDDEN)
        if "a" in self.plan.layers:
            self._lengths()
        for i, kind in enumerate(self.plan.layers):
            normed = self.norm(x, f"{i}.norm")
            if kind == "m":
                y, mamba = self._mamba(i, normed, mamba), mamba + 1
            else:
                y, attention = self._attention(i, normed, attention), attention + 1
            x = self.shaped(self.op("Add", x, y), "batch", "seq", HIDDEN)
        self._logits(x)
        initializers = [self._external(name) for name in self.weight_shapes]
        initializers += [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(
            self.nodes,
            "hand_made",
            [helper.make_tensor_value_info(b.name, b.dtype.onnx, b.shape) for b in config.bindings.inputs],
            [helper.make_tensor_value_info(b.name, b.dtype.onnx, b.shape) for b in config.bindings.outputs],
            initializers,
            value_info=[helper.make_tensor_value_info(n, d.onnx, s) for n, (s, d) in self.shapes.items()],
        )
        opsets = [helper.make_opsetid("", 24), helper.make_opsetid("trt_edgellm", 1)]
        return helper.make_model(graph, opset_imports=opsets, functions=list(self.functions.values()), ir_version=11)

    def _lengths(self) -> None:
        self.step = ("start", "slots", "source", "valid", "visible")
        inputs = ["input_ids", "context_lengths", "past_lengths", "past_key_0"]
        self._edge_op("attention_step", inputs, self.step, sliding_window=self.plan.window or 0)

    def _heads(self, x: str, heads: int) -> str:
        split = self.op("Reshape", x, self.const([0, 0, heads, HEAD_DIM]))
        turned = self.op("Transpose", split, perm=[0, 2, 1, 3])
        return self.shaped(turned, "batch", heads, "seq", HEAD_DIM)

    def _attention(self, i: int, x: str, k: int) -> str:
        query = self._heads(self.linear(x, f"{i}.q"), HEADS)
        key, value = (self._heads(self.linear(x, f"{i}.{n}"), KV_HEADS) for n in "kv")
        caches = [past_key(k), past_value(k)]
        outputs = (f"{i}.attention", *(present(cache) for cache in caches))
        y = self._edge_op("cached_attention", [query, key, value, *caches, *self.step], outputs, scale=HEAD_DIM**-0.5)
        self.shaped(y, "batch", HEADS, "seq", HEAD_DIM)
        merged = self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), self.const([0, 0, -1]))
        return self.linear(merged, f"{i}.o")

    def _mamba(self, i: int, x: str, r: int) -> str:
        columns, dt = f"{i}.columns", f"{i}.dt"
        projected = self.linear(x, f"{i}.in_proj")
        self.op("Split", projected, self.const([CONV_DIM, M_HEADS]), outputs=(columns, dt), axis=2)
        self.shaped(columns, "batch", "seq", CONV_DIM)
        self.shaped(dt, "batch", "seq", M_HEADS)
        bias = self.weight(f"{i}.conv_bias") if self.plan.conv_bias else ""
        conv_inputs = [columns, self.weight(f"{i}.conv"), bias, conv_state(r), "context_lengths"]
        mixed = self._edge_op(
            "causal_conv1d", conv_inputs, (f"{i}.mixed", present(conv_state(r))), activation=self.plan.activation
        )
        self.shaped(mixed, "batch", "seq", CONV_DIM)
        parts = (f"{i}.inner", f"{i}.B", f"{i}.C")
        width = M_GROUPS * M_STATE
        self.op("Split", mixed, self.const([INNER, width, width]), outputs=parts, axis=2)
        inner = self.op("Reshape", parts[0], self.const([0, 0, M_HEADS, M_DIM]))
        B, C = (self.op("Reshape", p, self.const([0, 0, M_GROUPS, M_STATE])) for p in parts[1:])
        self.shaped(inner, "batch", "seq", M_HEADS, M_DIM)
        for value in (B, C):
            self.shaped(value, "batch", "seq", M_GROUPS, M_STATE)
        ssm_inputs = [inner, f"{i}.A", B, C, f"{i}.D", dt, f"{i}.dt_bias", recurrent_state(r), "context_lengths"]
        y = self._edge_op("update_ssm_state", ssm_inputs, (f"{i}.y", present(recurrent_state(r))), chunk_size=16)
        self.shaped(y, "batch", "seq", M_HEADS, M_DIM)
        return self.linear(self.op("Reshape", y, self.const([0, 0, -1])), f"{i}.out_proj")

    def _edge_op(self, name: str, inputs: list[str], outputs: tuple[str, ...], **given: object) -> str:
        attributes = spec_of(name).complete_attributes(given)
        float32 = ("A", "D", "dt_bias", "state")
        declared = spec_of(name).inputs
        complete = [*inputs, *[""] * (len(declared) - len(inputs))]
        types = tuple(
            None
            if t.selects and not value
            else t.dtype
            if isinstance(t.dtype, DType)
            else DType.FLOAT32
            if t.name in float32
            else self.plan.dtype
            for t, value in zip(declared, complete, strict=True)
        )
        kernel = KERNEL if name == "causal_conv1d" else 0
        self.functions[name] = function_for(Signature(name, True, types, tuple(attributes.items()), kernel))
        return self.op(name, *inputs, outputs=outputs, domain="trt_edgellm", **attributes)

    def _logits(self, x: str) -> None:
        if not self.plan.all_logits:
            new = self.op("Cast", "context_lengths", to=TensorProto.INT64)
            last = self.op("Max", self.op("Sub", new, self.const(1)), self.const(0))
            index = self.op("Unsqueeze", last, self.const([1]))
            x = self.op("GatherND", x, index, batch_dims=1)
        else:
            index = ""
        if index:
            x = self.op("Reshape", x, self.const([-1, HIDDEN]))
        normed = self.norm(x, "final_norm")
        name = "embedding" if self.plan.tied else "lm_head"
        narrow = self.plan.dtype is not DType.FLOAT32
        transposed = self.op("Transpose", self.weight(name), perm=[1, 0])
        output = () if narrow else ("logits",)
        product = self.op("MatMul", normed, transposed, outputs=output)
        if narrow:
            self.shaped(product, *(("batch", "seq") if self.plan.all_logits else ("batch",)), VOCAB)
            self.op("Cast", product, outputs=("logits",), to=TensorProto.FLOAT)

    def _external(self, name: str) -> onnx.TensorProto:
        tensor = TensorProto(name=name, data_type=self.stored[name].onnx, dims=self.weight_shapes[name])
        tensor.data_location = TensorProto.EXTERNAL
        offset, length = self.offsets[name]
        for key, value in (("location", "weights/model.safetensors"), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
