"""Tiny random checkpoints with a multi-token prediction head, which transformers neither saves nor loads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.checkpoint_edits import edit_tensors
from tests.support.tiny_models import save_tiny_model

# What a tensor's name has in a layer like each of a head's, by the letter of the family's pattern.
_LIKE = {"": ".self_attn.", "*": ".mixer.q_proj.", "E": ".mixer.gate.", "-": ".mixer.up_proj."}


def layers_like(names: Iterable[str], pattern: str) -> list[str]:
    """What the names of the model's first layers begin with that are like those of a head of ``pattern``; "" is the one
    layer of Qwen's heads."""
    ordered = sorted(name for name in names if not name.startswith("mtp."))
    marks = [_LIKE[letter] for letter in pattern or ("",)]
    return [re.split(r"(?<=layers\.\d\.)", next(name for name in ordered if mark in name))[0] for mark in marks]


def save_with_mtp_head(
    folder: Path, model_type: str, dtype: str = "float32", pattern: str = "", **overrides: Any
) -> Path:
    """A checkpoint of ``model_type`` with a head, whose layers have the sizes of the model's of the same kind.

    ``pattern``: of Nemotron-H, one letter a layer.
    """
    import torch

    save_tiny_model(folder, model_type, dtype=dtype, **overrides)

    def add_head(tensors: dict[str, Any]) -> None:
        torch.manual_seed(7)
        shapes: dict[str, tuple[int, ...]] = {}
        like = layers_like(tensors, pattern)
        for index, layer in enumerate(like):
            own = {n.removeprefix(layer): t for n, t in tensors.items() if n.startswith(layer)}
            shapes |= {f"mtp.layers.{index}.{name}": tuple(tensor.shape) for name, tensor in own.items()}
        names = mtp_names(len(like) if pattern else 0)
        hidden = next(tensor.shape[-1] for name, tensor in tensors.items() if "embed" in name)
        shapes |= {name: (hidden,) for name in names.values()}
        shapes[names["projection"]] = (hidden, 2 * hidden)
        for name, shape in shapes.items():
            values = 0.3 * torch.randn(shape) if len(shape) == 1 else torch.randn(shape) * shape[-1] ** -0.5
            # Norms of Nemotron-H multiply by their weight, those of Qwen by one more.
            offset = 1.0 if pattern and "norm" in name else 0.0
            tensors[name] = (values + offset).to(getattr(torch, dtype))

    return edit_tensors(folder, add_head)


def mtp_names(layers: int) -> dict[str, str]:
    """Tensors around the layers of a Nemotron-H head, or of one of Qwen (0 layers)."""
    if not layers:
        names = {
            "projection": "fc",
            "embedding": "pre_fc_norm_embedding",
            "hidden": "pre_fc_norm_hidden",
            "final": "norm",
        }
    else:
        final = f"layers.{layers - 1}.final_layernorm"
        names = {
            "projection": "layers.0.eh_proj",
            "embedding": "layers.0.enorm",
            "hidden": "layers.0.hnorm",
            "final": final,
        }
    return {key: f"mtp.{name}.weight" for key, name in names.items()}
