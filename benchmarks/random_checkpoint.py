"""Write a Nemotron-H-like checkpoint with random weights, in the original style, without building a model."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridge.artifact.dtypes import DType

# Matrices are cut out of one pool of random numbers: an odd length, so that no two rows are alike.
POOL_LENGTH = 2**22 + 7919
BLOCK_ELEMENTS = 2**20
INITIALIZER_RANGE = 0.02
KINDS = {"M": "mamba", "*": "attention", "-": "mlp"}


@dataclass(frozen=True)
class NemotronHShape:
    """Sizes of one model; ``pattern`` has a letter per layer: M Mamba2, * attention, - MLP. ``mtp_pattern``: those of
    its multi-token prediction head, "" for none."""

    pattern: str
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    mamba_num_heads: int
    mamba_head_dim: int
    ssm_state_size: int
    n_groups: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    conv_kernel: int = 4
    chunk_size: int = 128
    max_position_embeddings: int = 8192
    mtp_pattern: str = ""

    @property
    def mamba_size(self) -> int:
        """Channels inside a Mamba2 layer."""
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution."""
        return self.mamba_size + 2 * self.n_groups * self.ssm_state_size


# 0.85 G parameters, 1.7 GB.
EXPORT_SHAPE = NemotronHShape(
    pattern="M-M-M-M*-M-M-M-M*-MM",
    hidden_size=2048,
    vocab_size=65536,
    intermediate_size=8192,
    mamba_num_heads=64,
    mamba_head_dim=64,
    ssm_state_size=128,
    n_groups=8,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=128,
)
# About 150 M parameters.
DECODE_SHAPE = NemotronHShape(
    pattern="M-M-M*-M-M-M*-M-M-M*-M-M",
    hidden_size=768,
    vocab_size=32768,
    intermediate_size=3072,
    mamba_num_heads=24,
    mamba_head_dim=64,
    ssm_state_size=128,
    n_groups=2,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
)


def write_random_checkpoint(folder: Path, shape: NemotronHShape, dtype: DType = DType.BFLOAT16, seed: int = 0) -> int:
    """Write config.json and model.safetensors into the new ``folder``; returns the bytes of the weights.

    Matrices have ``dtype``; A_log, D and dt_bias are float32, as in published checkpoints. The values give
    activations of ordinary size, so that logits can be compared.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_config(shape, dtype), indent=2) + "\n", encoding="utf-8")
    return _write_weights(folder / "model.safetensors", shape, dtype, np.random.default_rng(seed))


def tensor_shapes(shape: NemotronHShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint by name."""
    hidden = shape.hidden_size
    tensors: dict[str, tuple[int, ...]] = {"backbone.embeddings.weight": (shape.vocab_size, hidden)}
    for root, pattern in (("backbone.", shape.pattern), ("mtp.", shape.mtp_pattern)):
        for index, letter in enumerate(pattern):
            prefix = f"{root}layers.{index}"
            tensors[f"{prefix}.norm.weight"] = (hidden,)
            for name, size in _mixer_shapes(shape, KINDS[letter]):
                tensors[f"{prefix}.mixer.{name}"] = size
    tensors["backbone.norm_f.weight"] = (hidden,)
    tensors["lm_head.weight"] = (shape.vocab_size, hidden)
    if shape.mtp_pattern:
        tensors["mtp.layers.0.eh_proj.weight"] = (hidden, 2 * hidden)
        tensors |= dict.fromkeys(("mtp.layers.0.enorm.weight", "mtp.layers.0.hnorm.weight"), (hidden,))
        tensors[f"mtp.layers.{len(shape.mtp_pattern) - 1}.final_layernorm.weight"] = (hidden,)
    return tensors


def _mixer_shapes(shape: NemotronHShape, kind: str) -> list[tuple[str, tuple[int, ...]]]:
    hidden, heads, inner = shape.hidden_size, shape.mamba_num_heads, shape.mamba_size
    if kind == "mlp":
        return [
            ("up_proj.weight", (shape.intermediate_size, hidden)),
            ("down_proj.weight", (hidden, shape.intermediate_size)),
        ]
    if kind == "attention":
        queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        return [
            ("q_proj.weight", (queries, hidden)),
            ("k_proj.weight", (keys, hidden)),
            ("v_proj.weight", (keys, hidden)),
            ("o_proj.weight", (hidden, queries)),
        ]
    return [
        ("in_proj.weight", (inner + shape.conv_dim + heads, hidden)),
        ("conv1d.weight", (shape.conv_dim, 1, shape.conv_kernel)),
        ("conv1d.bias", (shape.conv_dim,)),
        ("A_log", (heads,)),
        ("D", (heads,)),
        ("dt_bias", (heads,)),
        ("norm.weight", (inner,)),
        ("out_proj.weight", (hidden, inner)),
    ]


def _config(shape: NemotronHShape, dtype: DType) -> dict[str, object]:
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "torch_dtype": dtype.value,
        "hybrid_override_pattern": shape.pattern,
        "num_hidden_layers": len(shape.pattern),
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "intermediate_size": shape.intermediate_size,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "mamba_num_heads": shape.mamba_num_heads,
        "mamba_head_dim": shape.mamba_head_dim,
        "mamba_hidden_act": "silu",
        "mamba_proj_bias": False,
        "ssm_state_size": shape.ssm_state_size,
        "n_groups": shape.n_groups,
        "conv_kernel": shape.conv_kernel,
        "use_conv_bias": True,
        "use_bias": False,
        "chunk_size": shape.chunk_size,
        "time_step_limit": [0.0, math.inf],
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "attention_bias": False,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": INITIALIZER_RANGE,
        "tie_word_embeddings": False,
        "max_position_embeddings": shape.max_position_embeddings,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **({"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": mtp} if (mtp := shape.mtp_pattern) else {}),
    }


def _write_weights(path: Path, shape: NemotronHShape, dtype: DType, random: np.random.Generator) -> int:
    shapes = tensor_shapes(shape)
    types = {name: DType.FLOAT32 if name.endswith(("A_log", "D", "dt_bias")) else dtype for name in shapes}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, size in shapes.items():
        end = position + math.prod(size) * types[name].itemsize
        header[name] = {"dtype": types[name].safetensors, "shape": list(size), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pool = (random.standard_normal(POOL_LENGTH, np.float32) * INITIALIZER_RANGE).astype(dtype.numpy)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in shapes.items():
            for block in _values(name, size, pool, random):
                file.write(np.ascontiguousarray(block, types[name].numpy).view(np.uint8).data)
    return path.stat().st_size


def _values(name: str, size: tuple[int, ...], pool: np.ndarray, random: np.random.Generator) -> Iterator[np.ndarray]:
    count = math.prod(size)
    if name.endswith("A_log"):
        yield np.log(np.arange(1, count + 1))
    elif name.endswith("dt_bias"):
        step = np.exp(random.uniform(math.log(1e-3), math.log(1e-1), count))
        yield step + np.log(-np.expm1(-step))  # softplus of it is the step
    elif name.endswith((".D", "norm.weight", "norm_f.weight")):
        yield 1 + 0.1 * random.standard_normal(count)
    elif "conv1d" in name:
        yield random.uniform(-0.5, 0.5, count)
    else:
        yield from _pool_blocks(pool, count, int(random.integers(pool.size)))


def _pool_blocks(pool: np.ndarray, count: int, start: int) -> Iterator[np.ndarray]:
    while count:
        block = pool[start : start + min(count, BLOCK_ELEMENTS)]
        yield block
        count -= block.size
        start = (start + block.size) % pool.size
