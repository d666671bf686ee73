"""The folder that an export of the tiny graph would be: model.onnx, weights in a safetensors file, config.json."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from hybridge.artifact.config import RuntimeConfig, config_text
from hybridge.artifact.dtypes import DType
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from tests.build import tiny_graph as tiny

MAX_BATCH, MAX_SEQ_LEN = 5, 600


def tiny_config(dtype: DType) -> RuntimeConfig:
    """config.json of the tiny graph."""
    return RuntimeConfig(
        model_type="tiny",
        layout="dense",
        dtype=dtype,
        vocab_size=tiny.VOCAB,
        hidden_size=tiny.HIDDEN,
        max_batch_size=MAX_BATCH,
        max_seq_len=MAX_SEQ_LEN,
        layer_types=("attention", "mamba"),
        kv_layers=(KVLayerConfig(tiny.KV_HEADS, tiny.HEAD_DIM),),
        kv_cache_dtype=dtype,
        recurrent_layers=(
            RecurrentLayerConfig(tiny.SSM_HEADS, tiny.SSM_HEAD_DIM, tiny.SSM_STATE, tiny.CONV_DIM, tiny.CONV_KERNEL),
        ),
        recurrent_state_dtype=DType.FLOAT32,
        conv_state_dtype=dtype,
        eos_token_ids=(2,),
        bindings=tiny.tiny_bindings(dtype),
    )


def write_tiny_artifact(
    folder: Path, dtype: DType = DType.FLOAT16, edit: Callable[[onnx.ModelProto], None] = lambda model: None
) -> Path:
    """Write the artifact into ``folder``; ``edit`` may change the model first."""
    graph = tiny.TinyGraph(dtype)
    model = graph.model()
    (folder / "weights").mkdir(parents=True)
    offsets = write_safetensors(folder / "weights" / "model.safetensors", graph.weights)
    for tensor in model.graph.initializer:
        if tensor.name in offsets:
            refer(tensor, "weights/model.safetensors", *offsets[tensor.name])
    edit(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "config.json").write_text(config_text(tiny_config(dtype).check()), encoding="utf-8")
    return folder


def refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Make ``tensor`` point to bytes of another file."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Write ``arrays``; returns the offset in the file and the size of each, in bytes."""
    header, position = {}, 0
    for name, array in arrays.items():
        span = [position, position + array.nbytes]
        header[name] = {
            "dtype": DType.from_numpy(array.dtype).safetensors,
            "shape": list(array.shape),
            "data_offsets": span,
        }
        position = span[1]
    text = json.dumps(header).encode()
    start = 8 + len(text)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))
    return {
        name: (start + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
    }
