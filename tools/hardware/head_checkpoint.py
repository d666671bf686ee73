"""A checkpoint with a multi-token prediction head, which the demo checkpoint lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.exporter.checkpoint.shards import SINGLE_FILE, read_shards, tensors_of

_HEAD, _LAYER = "mtp.layers.0.", "backbone.layers."


def write_with_head(checkpoint: Path, out: Path) -> None:
    """Copy the nemotron_h ``checkpoint`` to ``out``, a new folder, with a head of one attention layer.

    The layer is the model's first attention layer, and the projection in front of it adds embedding and hidden state,
    so that only some draft tokens are accepted.
    """
    tensors = tensors_of(read_shards(checkpoint))
    arrays = {name: (slot.dtype, slot.map()) for name, slot in tensors.items()}
    query = next(name for name in arrays if name.startswith(_LAYER) and name.endswith(".mixer.q_proj.weight"))
    like = query.removesuffix("mixer.q_proj.weight")
    arrays |= {_HEAD + name.removeprefix(like): arrays[name] for name in tensors if name.startswith(like)}
    final = arrays["backbone.norm_f.weight"]
    dtype, norm = final
    ones = (dtype, np.ones(norm.shape, norm.dtype))
    identity = np.eye(len(norm), dtype=np.float32)
    arrays[f"{_HEAD}eh_proj.weight"] = dtype, np.concatenate((identity, identity), 1).astype(norm.dtype)
    arrays |= {f"{_HEAD}enorm.weight": ones, f"{_HEAD}hnorm.weight": ones, f"{_HEAD}final_layernorm.weight": final}
    shutil.copytree(checkpoint, out, ignore=shutil.ignore_patterns(SINGLE_FILE))
    with (out / SINGLE_FILE).open("xb") as file:
        file.write(safetensors_header({name: (kind, array.shape) for name, (kind, array) in arrays.items()}))
        for _, array in arrays.values():
            file.write(array.tobytes())
