"""Write a checkpoint with random weights for any supported configuration, without building a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.limits import MIB
from hybridge.artifact.safetensors_header import safetensors_header
from tools.published_configs import PUBLISHED
from tools.sparse_checkpoint import tensors_of_config

# Matrices are cut out of one pool of random numbers. Its odd length keeps rows different from each other.
POOL_LENGTH = 2**22 + 7919
BLOCK_ELEMENTS = 2**20
INITIALIZER_RANGE = 0.02

Config = Mapping[str, Any]
_NEMOTRON_H = {
    name: value for name, value in PUBLISHED["Nemotron-H-8B-Base-8K"].items() if name != "attention_head_dim"
}


def nemotron_h(pattern: str, **sizes: int) -> Config:
    """config.json of a Nemotron-H with a layer per letter of ``pattern``: M Mamba2, * attention, - MLP.

    Sizes that are not given are those of the published model of 8 B parameters.
    """
    layers = {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
    return {**_NEMOTRON_H, "head_dim": 128, **layers, **sizes}


# 0.85 G parameters, 1.7 GB.
EXPORT_MODEL = nemotron_h(
    "M-M-M-M*-M-M-M-M*-MM",
    hidden_size=2048,
    vocab_size=65536,
    intermediate_size=8192,
    mamba_num_heads=64,
    num_attention_heads=16,
    num_key_value_heads=4,
)
# About 150 M parameters.
DECODE_MODEL = nemotron_h(
    "M-M-M*-M-M-M*-M-M-M*-M-M",
    hidden_size=768,
    vocab_size=32768,
    intermediate_size=3072,
    mamba_num_heads=24,
    n_groups=2,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
)
# The sizes of state-spaces/mamba-130m.
MAMBA_MODEL: Config = {
    **PUBLISHED["falcon-mamba-7B"],
    "model_type": "mamba",
    "expand": 2,
    "hidden_size": 768,
    "intermediate_size": 1536,
    "num_hidden_layers": 24,
    "time_step_rank": 48,
    "tie_word_embeddings": True,
    "vocab_size": 50280,
}
# About 150 M parameters each.
LFM2_MODEL: Config = {
    **PUBLISHED["LFM2.5-1.2B-Thinking"],
    "block_dim": 768,
    "conv_dim": 768,
    "hidden_size": 768,
    "intermediate_size": 4608,
    "layer_types": ["conv", "conv", "full_attention"] * 4 + ["conv", "conv"],
    "num_attention_heads": 12,
    "num_heads": 12,
    "num_hidden_layers": 14,
    "num_key_value_heads": 4,
    "vocab_size": 32768,
}
FALCON_H1_MODEL: Config = {
    **PUBLISHED["Falcon-H1-0.5B-Base"],
    "hidden_size": 768,
    "mamba_d_ssm": 1152,
    "mamba_n_heads": 18,
    "num_hidden_layers": 12,
}
# The sizes of SmolLM2-135M.
LLAMA_MODEL: Config = {
    **PUBLISHED["Meta-Llama-3.1-8B"],
    "head_dim": 64,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
# About 280 M parameters.
QWEN3_5_MODEL: Config = {
    **PUBLISHED["Qwen3.5-27B"]["text_config"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 3,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "mtp_num_hidden_layers": 0,
    "num_attention_heads": 8,
    "num_hidden_layers": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 65536,
}
# Twelve layers of the model of 8 B parameters, 2.65 B parameters.
GPU_MODEL = nemotron_h("M-M-M*-M-M-M")


# huggingface_hub writes downloads in such chunks. Linux keeps what is written at once in large pages of its cache, so a
# file that is written in smaller ones is mapped more slowly than a downloaded one.
_WRITTEN_BYTES = 10 * MIB


def write_random_checkpoint(folder: Path, config: Config, seed: int = 0) -> int:
    """Write config.json and model.safetensors into the new ``folder``; returns the bytes of the weights.

    Matrices are bfloat16; A_log, D and dt_bias are float32, as in published checkpoints. The values give activations of
    ordinary size, so that logits can be compared.
    """
    tensors = tensors_of_config(config)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", **config}, indent=2) + "\n", "utf-8")
    path, random = folder / "model.safetensors", np.random.default_rng(seed)
    pool = random.standard_normal(POOL_LENGTH, np.float32) * INITIALIZER_RANGE
    with path.open("wb", _WRITTEN_BYTES) as file:
        file.write(safetensors_header(tensors))
        for name, (dtype, shape) in tensors.items():
            for block in random_values(name, shape, pool, random):
                file.write(np.ascontiguousarray(block, dtype.numpy).view(np.uint8).data)
    return path.stat().st_size


def random_values(
    name: str, shape: tuple[int, ...], pool: np.ndarray, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """Values of the tensor ``name`` of ``shape``, in blocks; values of matrices are slices of ``pool``."""
    count = math.prod(shape)
    if name.endswith("A_log"):
        yield np.broadcast_to(np.log(np.arange(1, shape[-1] + 1)), shape)
    elif name.endswith("dt_bias"):
        step = np.exp(random.uniform(math.log(1e-3), math.log(1e-1), count))
        yield step + np.log(-np.expm1(-step))  # softplus of it is the step
    elif name.endswith(".D") or "norm" in name:
        yield 1 + 0.1 * random.standard_normal(count)
    elif "conv1d" in name:
        yield random.uniform(-0.5, 0.5, count)
    else:
        start = int(random.integers(pool.size))
        while count:
            block = pool[start : start + min(count, BLOCK_ELEMENTS)]
            yield block
            count -= block.size
            start = (start + block.size) % pool.size
