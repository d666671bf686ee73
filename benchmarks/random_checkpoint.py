"""Write a checkpoint with random weights for any supported configuration, without building a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.safetensors_header import safetensors_header
from tools.sparse_checkpoint import Tensors, tensors_of_config

# Matrices are cut out of one pool of random numbers. Its odd length keeps rows different from each other.
POOL_LENGTH = 2**22 + 7919
BLOCK_ELEMENTS = 2**20
INITIALIZER_RANGE = 0.02


@dataclass(frozen=True)
class NemotronHShape:
    """Sizes of a Nemotron-H model. ``pattern`` has a letter per layer: M Mamba2, * attention, - MLP; ``mtp_pattern``
    those of its multi-token prediction head, "" for none."""

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
    def config(self) -> dict[str, Any]:
        """config.json, in the style of published checkpoints."""
        sizes = {name: value for name, value in vars(self).items() if not name.endswith("pattern")}
        head = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": self.mtp_pattern}
        return {
            "architectures": ["NemotronHForCausalLM"],
            "model_type": "nemotron_h",
            "torch_dtype": "bfloat16",
            "hybrid_override_pattern": self.pattern,
            "num_hidden_layers": len(self.pattern),
            **sizes,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "mamba_hidden_act": "silu",
            "mamba_proj_bias": False,
            "use_conv_bias": True,
            "use_bias": False,
            "time_step_limit": [0.0, math.inf],
            "attention_bias": False,
            "layer_norm_epsilon": 1e-5,
            "initializer_range": INITIALIZER_RANGE,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            **(head if self.mtp_pattern else {}),
        }

    @property
    def tensors(self) -> Tensors:
        """Type and shape of every tensor, by name."""
        tensors = tensors_of_config(self.config)
        if self.mtp_pattern:
            layers = tensors_of_config(replace(self, pattern=self.mtp_pattern, mtp_pattern="").config)
            norm, last = layers["backbone.norm_f.weight"], len(self.mtp_pattern) - 1
            names = ("layers.0.enorm", "layers.0.hnorm", f"layers.{last}.final_layernorm")
            tensors |= {n.replace("backbone", "mtp"): t for n, t in layers.items() if n.startswith("backbone.layers.")}
            tensors |= {f"mtp.{name}.weight": norm for name in names}
            tensors["mtp.layers.0.eh_proj.weight"] = (norm[0], (self.hidden_size, 2 * self.hidden_size))
        return tensors


# Pattern, hidden size, vocabulary, MLP size, Mamba2 heads, their size, state size, groups, query heads, KV heads, their
# size. 0.85 G parameters, 1.7 GB:
EXPORT_SHAPE = NemotronHShape("M-M-M-M*-M-M-M-M*-MM", 2048, 65536, 8192, 64, 64, 128, 8, 16, 4, 128)
# About 150 M parameters:
DECODE_SHAPE = NemotronHShape("M-M-M*-M-M-M*-M-M-M*-M-M", 768, 32768, 3072, 24, 64, 128, 2, 12, 4, 64)
# Twelve layers of a Nemotron-H of 8 B parameters, at its full width, 2.65 B parameters:
GPU_SHAPE = NemotronHShape("M-M-M*-M-M-M", 4096, 131072, 21504, 128, 64, 128, 8, 32, 8, 128)


def write_random_checkpoint(folder: Path, model: NemotronHShape | Mapping[str, Any], seed: int = 0) -> int:
    """Write config.json and model.safetensors into the new ``folder``; returns the bytes of the weights.

    model: a shape, or the object of a config.json. Matrices are bfloat16; A_log, D and dt_bias are float32, as in
    published checkpoints. The values give activations of ordinary size, so that logits can be compared.
    """
    if isinstance(model, NemotronHShape):
        config, tensors = model.config, model.tensors
    else:
        config, tensors = {"torch_dtype": "bfloat16", **model}, tensors_of_config(model)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    path, random = folder / "model.safetensors", np.random.default_rng(seed)
    pool = random.standard_normal(POOL_LENGTH, np.float32) * INITIALIZER_RANGE
    with path.open("wb") as file:
        file.write(safetensors_header(tensors))
        for name, (dtype, shape) in tensors.items():
            for block in _values(name, math.prod(shape), pool, random):
                file.write(np.ascontiguousarray(block, dtype.numpy).view(np.uint8).data)
    return path.stat().st_size


def _values(name: str, count: int, pool: np.ndarray, random: np.random.Generator) -> Iterator[np.ndarray]:
    """``count`` values of a tensor, in blocks."""
    if name.endswith("A_log"):
        yield np.log(np.arange(1, count + 1))
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
