"""Checkpoints as the mamba_ssm package saves them, made from transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model

FIELDS = BASE_CONFIGS["mamba2"]
# What MambaLMHeadModel.save_pretrained writes for the model of save_mamba_ssm.
CONFIG: dict[str, Any] = {
    "d_model": FIELDS["hidden_size"],
    "d_intermediate": 0,
    "n_layer": FIELDS["num_hidden_layers"],
    "vocab_size": FIELDS["vocab_size"],
    "ssm_cfg": {
        "layer": "Mamba2",
        "headdim": FIELDS["head_dim"],
        "d_state": FIELDS["state_size"],
        "ngroups": FIELDS["n_groups"],
        "chunk_size": FIELDS["chunk_size"],
    },
    "attn_layer_idx": [],
    "attn_cfg": {},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 16,
    "tie_embeddings": True,
}


def save_mamba_ssm(folder: Path, reference: Path, family: str = "mamba2", **overrides: Any) -> Path:
    """Save a tiny random model of mamba_ssm's layout into ``folder``, and as transformers has it into ``reference``.

    The package rounds the vocabulary up, and its file holds the tied head a second time, over the same storage.
    """
    save_tiny_model(reference, family, vocab_size=112, tie_word_embeddings=True, pad_token_id=0)
    tensors = load_file(reference / "model.safetensors")
    tensors = {name.replace("embeddings.weight", "embedding.weight"): value for name, value in tensors.items()}
    tensors["lm_head.weight"] = tensors["backbone.embedding.weight"]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **overrides}))
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder
