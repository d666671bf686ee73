"""A small hybrid model as an artifact made by hand, and its float64 oracle: no torch, no exporter.

The graph has the exporter's forms: weights as [out, in] behind a Transpose (and a Cast where the type differs),
the operators with their functions.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.config import RuntimeConfig, config_text
from hybridge.artifact.dtypes import DType
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.artifact.names import conv_state, past_key, past_value, present, recurrent_state
from tests.runtime.onnxruntime.hand_made_graph import GraphMaker
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
        shapes = {name: value.shape for name, value in self.weights.items()}
        model = GraphMaker(self.plan, self.config(), shapes, stored, offsets).model()
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
