"""A small runtime config and safetensors files, written by the safetensors package (the oracle)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from hybridge.artifact.bindings import BATCH, MAX_SEQ, SEQ, Binding, GraphBindings
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig

F32, I64, I32 = DType.FLOAT32, DType.INT64, DType.INT32
CONV, RECURRENT, KV = (BATCH, 30, 4), (BATCH, 3, 5, 7), (BATCH, 2, MAX_SEQ, 9)


def sample_config() -> RuntimeConfig:
    """One attention layer, one recurrent layer and one without state."""
    states = {"past_key_0": KV, "past_value_0": KV, "conv_state_0": CONV, "recurrent_state_0": RECURRENT}
    outputs = {name: f"present_{name.removeprefix('past_')}" for name in states}
    return RuntimeConfig(
        model_type="nemotron_h",
        layout="dense",
        dtype=DType.BFLOAT16,
        vocab_size=97,
        hidden_size=48,
        max_batch_size=3,
        max_seq_len=65,
        layer_types=("mamba", "mlp", "attention"),
        kv_layers=(KVLayerConfig(2, 9, 33),),
        kv_cache_dtype=F32,
        recurrent_layers=(RecurrentLayerConfig(3, 5, 7, 30, 4),),
        recurrent_state_dtype=F32,
        conv_state_dtype=F32,
        eos_token_ids=(2, 11),
        bindings=GraphBindings(
            (
                Binding("input_ids", I64, (BATCH, SEQ)),
                Binding("context_lengths", I32, (BATCH,)),
                Binding("past_lengths", I32, (BATCH,)),
                *(Binding(name, F32, shape, outputs[name]) for name, shape in states.items()),
            ),
            (
                Binding("logits", F32, (BATCH, 97)),
                *(Binding(outputs[name], F32, shape) for name, shape in states.items()),
            ),
        ),
    )


def sample_tensors() -> dict[str, np.ndarray]:
    """Tensors of several types and odd shapes, an empty one and a scalar among them."""
    rng = np.random.default_rng(3)
    return {
        "b": rng.standard_normal((3, 5)).astype(DType.BFLOAT16.numpy),
        "f": rng.standard_normal((7,)).astype(np.float32),
        "h": rng.standard_normal((1, 9)).astype(np.float16),
        "i": rng.integers(-9, 9, (2, 3)),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.5, np.float32),
        "flag": np.array([True, False, True]),
    }


def save_sample(path: Path) -> dict[str, np.ndarray]:
    """Save ``sample_tensors`` with the safetensors package."""
    tensors = sample_tensors()
    save_file(tensors, path, metadata={"format": "pt"})
    return tensors


def save_raw(path: Path, header: object, data: bytes = b"") -> Path:
    """A file with any JSON as header (text is taken as it stands) and any data."""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
