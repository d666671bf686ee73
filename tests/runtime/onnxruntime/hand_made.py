"""A small hybrid model as an artifact made by hand, and its float64 oracle: no torch, no exporter.

The graph has the exporter's forms: weights as [out, in] behind a Transpose (and a Cast where the type differs),
cache update by TensorScatter of masked tokens, Attention with a boolean mask, the operators with their functions.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from artifact.bindings import Binding, GraphBindings
from artifact.config import KVLayerConfig, RecurrentLayerConfig, RuntimeConfig, config_text
from artifact.dtypes import DType
from artifact.names import conv_state, past_key, past_value, present, recurrent_state
from trt_plugins.catalog import spec_of
from trt_plugins.functions.catalog import function_for
from trt_plugins.functions.signature import Signature

VOCAB, HIDDEN = 61, 24
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 10
M_HEADS, M_DIM, M_GROUPS, M_STATE, KERNEL = 6, 5, 3, 7, 4
INNER, CONV_DIM = M_HEADS * M_DIM, M_HEADS * M_DIM + 2 * M_GROUPS * M_STATE
EPS = 1e-5


@dataclass(frozen=True)
class Plan:
    """What one hand-made artifact consists of; layers are "m" (mamba) and "a" (attention)."""

    layers: str = "ma"
    dtype: DType = DType.FLOAT32
    weight_dtype: DType | None = None
    tied: bool = True
    all_logits: bool = False
    window: int | None = None
    max_seq_len: int = 600
    max_batch_size: int = 4
    activation: str = "silu"
    conv_bias: bool = True

    @property
    def stored(self) -> DType:
        return self.weight_dtype or self.dtype


@dataclass
class HandMade:
    """The artifact's plan and its weights as float64 (exactly what the file holds)."""

    plan: Plan
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)
        shapes = {"embedding": (VOCAB, HIDDEN), "final_norm": (HIDDEN,)}
        if not self.plan.tied:
            shapes["lm_head"] = (VOCAB, HIDDEN)
        for i, kind in enumerate(self.plan.layers):
            shapes[f"{i}.norm"] = (HIDDEN,)
            if kind == "m":
                shapes |= {
                    f"{i}.in_proj": (CONV_DIM + M_HEADS, HIDDEN),
                    f"{i}.conv": (CONV_DIM, 1, KERNEL),
                    f"{i}.conv_bias": (CONV_DIM,),
                    f"{i}.out_proj": (HIDDEN, INNER),
                }
            else:
                shapes |= {
                    f"{i}.q": (HEADS * HEAD_DIM, HIDDEN),
                    f"{i}.k": (KV_HEADS * HEAD_DIM, HIDDEN),
                    f"{i}.v": (KV_HEADS * HEAD_DIM, HIDDEN),
                    f"{i}.o": (HIDDEN, HEADS * HEAD_DIM),
                }
        stored = self.plan.stored.numpy
        for name, shape in shapes.items():
            scale = 1.0 if len(shape) != 2 else shape[1] ** -0.5
            values = rng.standard_normal(shape) * scale + ("norm" in name)
            self.weights[name] = values.astype(stored).astype(np.float64)
        for i in range(len(self.plan.layers)):
            for name, values in (
                ("A", -rng.uniform(0.1, 4.0, M_HEADS)),
                ("D", rng.standard_normal(M_HEADS)),
                ("dt_bias", rng.standard_normal(M_HEADS) - 2.0),
            ):
                self.weights[f"{i}.{name}"] = values.astype(np.float32).astype(np.float64)

    # The oracle -----------------------------------------------------------------------------------------------

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """float64 logits [len(tokens), vocab] of one row, computed from its first token."""
        return self.run(tokens)[0]

    def run(self, tokens: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Logits of every token, and each state after the last one as one row [..., without batch]."""
        states: dict[str, np.ndarray] = {}
        x = self.weights["embedding"][tokens]
        attention = mamba = 0
        for i, kind in enumerate(self.plan.layers):
            normed = _rms(x) * self.weights[f"{i}.norm"]
            if kind == "m":
                y, states[conv_state(mamba)], states[recurrent_state(mamba)] = self._mamba(i, normed)
                mamba += 1
            else:
                y, states[past_key(attention)], states[past_value(attention)] = self._attention(i, normed)
                attention += 1
            x = x + y
        x = _rms(x) * self.weights["final_norm"]
        return x @ self.weights["embedding" if self.plan.tied else "lm_head"].T, states

    def _mamba(self, i: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        projected = x @ self.weights[f"{i}.in_proj"].T
        columns, dt = projected[:, :CONV_DIM], projected[:, CONV_DIM:]
        padded = np.concatenate([np.zeros((KERNEL, CONV_DIM)), columns])
        taps = self.weights[f"{i}.conv"][:, 0]
        mixed = np.stack([(padded[t + 1 : t + 1 + KERNEL] * taps.T).sum(0) for t in range(len(x))])
        if self.plan.conv_bias:
            mixed = mixed + self.weights[f"{i}.conv_bias"]
        if self.plan.activation == "silu":
            mixed = mixed / (1 + np.exp(-mixed))
        inner, B, C = np.split(mixed, [INNER, INNER + M_GROUPS * M_STATE], axis=1)
        state, ratio = np.zeros((M_HEADS, M_DIM, M_STATE)), M_HEADS // M_GROUPS
        out = np.zeros((len(x), M_HEADS, M_DIM))
        for t in range(len(x)):
            step = np.logaddexp(0, dt[t] + self.weights[f"{i}.dt_bias"])
            head_x = inner[t].reshape(M_HEADS, M_DIM)
            b, c = (np.repeat(v[t].reshape(M_GROUPS, M_STATE), ratio, axis=0) for v in (B, C))
            state = np.exp(step * self.weights[f"{i}.A"])[:, None, None] * state
            state = state + (step[:, None] * head_x)[:, :, None] * b[:, None]
            out[t] = np.einsum("hpn,hn->hp", state, c) + self.weights[f"{i}.D"][:, None] * head_x
        return out.reshape(len(x), INNER) @ self.weights[f"{i}.out_proj"].T, padded[-KERNEL:].T, state

    def _attention(self, i: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = (x @ self.weights[f"{i}.{n}"].T for n in "qkv")
        q, k, v = (m.reshape(len(x), -1, HEAD_DIM).swapaxes(0, 1) for m in (q, k, v))
        scores = np.einsum("htd,hsd->hts", q, np.repeat(k, HEADS // KV_HEADS, axis=0)) / HEAD_DIM**0.5
        position = np.arange(len(x))
        hidden = position[None, :] > position[:, None]
        if self.plan.window is not None:
            hidden |= position[None, :] <= position[:, None] - self.plan.window
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        y = np.einsum("hts,hsd->thd", weights, np.repeat(v, HEADS // KV_HEADS, axis=0))
        return y.reshape(len(x), -1) @ self.weights[f"{i}.o"].T, k, v

    # The artifact ---------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> Path:
        """Write config.json, model.onnx and the weights into ``folder``."""
        (folder / "weights").mkdir(parents=True)
        stored = {name: self._type_of(name) for name in self.weights}
        offsets = _write_safetensors(
            folder / "weights" / "model.safetensors",
            {name: value.astype(stored[name].numpy) for name, value in self.weights.items()},
        )
        model = _GraphMaker(self, stored, offsets).model()
        onnx.save(model, folder / "model.onnx")
        (folder / "config.json").write_text(config_text(self.config()))
        return folder

    def _type_of(self, name: str) -> DType:
        return DType.FLOAT32 if name.split(".")[-1] in ("A", "D", "dt_bias") else self.plan.stored

    def config(self) -> RuntimeConfig:
        plan = self.plan
        attention, mamba = plan.layers.count("a"), plan.layers.count("m")
        states: list[tuple[str, DType, tuple]] = []
        for k in range(attention):
            shape = ("batch", KV_HEADS, "max_seq", HEAD_DIM)
            states += [(past_key(k), plan.dtype, shape), (past_value(k), plan.dtype, shape)]
        for r in range(mamba):
            states.append((conv_state(r), plan.dtype, ("batch", CONV_DIM, KERNEL)))
            states.append((recurrent_state(r), DType.FLOAT32, ("batch", M_HEADS, M_DIM, M_STATE)))
        logits = ("batch", "seq", VOCAB) if plan.all_logits else ("batch", VOCAB)
        inputs = (
            Binding("input_ids", DType.INT64, ("batch", "seq")),
            Binding("context_lengths", DType.INT32, ("batch",)),
            Binding("past_lengths", DType.INT32, ("batch",)),
            *(Binding(name, dtype, shape, present(name)) for name, dtype, shape in states),
        )
        outputs = (
            Binding("logits", DType.FLOAT32, logits),
            *(Binding(present(name), dtype, shape) for name, dtype, shape in states),
        )
        return RuntimeConfig(
            model_type="hand_made",
            layout="dense",
            dtype=plan.dtype,
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            max_batch_size=plan.max_batch_size,
            max_seq_len=plan.max_seq_len,
            layer_types=tuple("mamba" if kind == "m" else "attention" for kind in plan.layers),
            kv_layers=(KVLayerConfig(KV_HEADS, HEAD_DIM, plan.window),) * attention,
            kv_cache_dtype=plan.dtype,
            recurrent_layers=(RecurrentLayerConfig(M_HEADS, M_DIM, M_STATE, CONV_DIM, KERNEL),) * mamba,
            recurrent_state_dtype=DType.FLOAT32,
            conv_state_dtype=plan.dtype,
            eos_token_ids=(2,),
            bindings=GraphBindings(inputs, outputs),
        )


class _GraphMaker:
    def __init__(self, made: HandMade, stored: dict[str, DType], offsets: dict[str, tuple[int, int]]) -> None:
        self.made, self.plan, self.stored, self.offsets = made, made.plan, stored, offsets
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
        return self.shaped(self.op("Cast", name, to=self.plan.dtype.onnx), *self.made.weights[name].shape)

    def linear(self, x: str, name: str) -> str:
        y = self.op("MatMul", x, self.op("Transpose", self.weight(name), perm=[1, 0]))
        return self.shaped(y, "batch", "seq", self.made.weights[name].shape[0])

    def norm(self, x: str, name: str) -> str:
        return self.op("RMSNormalization", x, self.weight(name), axis=-1, epsilon=EPS)

    def model(self) -> onnx.ModelProto:
        config = self.made.config()
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
        initializers = [self._external(name) for name in self.made.weights]
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
        past = self.op("Cast", "past_lengths", to=TensorProto.INT64)
        new = self.op("Cast", "context_lengths", to=TensorProto.INT64)
        seq = self.op("Squeeze", self.op("Shape", "input_ids", start=1, end=2))
        size = self.op("Squeeze", self.op("Shape", "past_key_0", start=2, end=3))
        token = self.op("Range", self.const(0), seq, self.const(1))
        past_column = self.op("Unsqueeze", past, self.const([1]))
        positions = self.op("Add", past_column, token)
        query = self.op("Unsqueeze", positions, self.const([1, 3]))
        key = self.op("Range", self.const(0), size, self.const(1))
        mask = self.op("LessOrEqual", key, query)
        if self.plan.window is not None:
            oldest = self.op("Sub", query, self.const(self.plan.window))
            mask = self.op("And", mask, self.op("Greater", key, oldest))
        start = self.op("Max", self.op("Min", past, self.op("Sub", size, seq)), self.const(0))
        slots = self.op("Add", self.op("Unsqueeze", start, self.const([1])), token)
        offset = self.op("Sub", slots, past_column)
        fits = self.op("Less", offset, self.op("Unsqueeze", new, self.const([1])))
        valid = self.op("And", self.op("GreaterOrEqual", offset, self.const(0)), fits)
        source = self.op("Max", self.op("Min", offset, self.op("Sub", seq, self.const(1))), self.const(0))
        self.mask, self.start = mask, start
        self.slots, self.source, self.valid = (
            self.op("Unsqueeze", v, self.const([1, 3])) for v in (slots, source, valid)
        )

    def _cache(self, new: str, past: str) -> str:
        shape = self.op("Shape", new)
        old = self.op("GatherElements", past, self.op("Expand", self.slots, shape), axis=2)
        moved = self.op("GatherElements", new, self.op("Expand", self.source, shape), axis=2)
        update = self.op("Where", self.valid, moved, old)
        return self.op("TensorScatter", past, update, self.start, outputs=(present(past),), axis=2, mode="linear")

    def _heads(self, x: str, heads: int) -> str:
        split = self.op("Reshape", x, self.const([0, 0, heads, HEAD_DIM]))
        turned = self.op("Transpose", split, perm=[0, 2, 1, 3])
        return self.shaped(turned, "batch", heads, "seq", HEAD_DIM)

    def _attention(self, i: int, x: str, k: int) -> str:
        query = self._heads(self.linear(x, f"{i}.q"), HEADS)
        key, value = (self._heads(self.linear(x, f"{i}.{n}"), KV_HEADS) for n in "kv")
        keys, values = self._cache(key, past_key(k)), self._cache(value, past_value(k))
        y = self.op("Attention", query, keys, values, self.mask, scale=HEAD_DIM**-0.5)
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

    def _edge_op(self, name: str, inputs: list[str], outputs: tuple[str, str], **given: object) -> str:
        attributes = spec_of(name).complete_attributes(given)
        float32 = ("A", "D", "dt_bias", "state")
        types = tuple(
            None
            if not value
            else t.dtype
            if isinstance(t.dtype, DType)
            else DType.FLOAT32
            if t.name in float32
            else self.plan.dtype
            for t, value in zip(spec_of(name).inputs, inputs, strict=True)
        )
        kernel = KERNEL if name == "causal_conv1d" else 0
        self.functions[name] = function_for(Signature(name, True, types, tuple(attributes.items()), kernel))
        return self.op(name, *inputs, outputs=outputs, domain="trt_edgellm", **attributes)

    def _logits(self, x: str) -> None:
        if not self.plan.all_logits:
            new = self.op("Cast", "context_lengths", to=TensorProto.INT64)
            last = self.op("Max", self.op("Sub", new, self.const(1)), self.const(0))
            index = self.op("Unsqueeze", last, self.const([1]))
            x = self.op("Squeeze", self.op("GatherND", x, index, batch_dims=1))
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
        tensor = TensorProto(name=name, data_type=self.stored[name].onnx, dims=self.made.weights[name].shape)
        tensor.data_location = TensorProto.EXTERNAL
        offset, length = self.offsets[name]
        for key, value in (("location", "weights/model.safetensors"), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def _rms(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def _write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Write ``tensors``; returns byte offset in the file and length of each."""
    header, position = {}, 0
    for name, value in tensors.items():
        dtype = DType.from_numpy(value.dtype).safetensors
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [position, position + value.nbytes]}
        position += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))
    start = 8 + len(text)
    return {
        name: (start + e["data_offsets"][0], e["data_offsets"][1] - e["data_offsets"][0]) for name, e in header.items()
    }
