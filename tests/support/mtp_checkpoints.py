"""Tiny random checkpoints with a multi-token prediction head, which transformers neither saves nor loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.checkpoint_edits import edit_tensors
from tests.support.tiny_models import save_tiny_model


def save_with_mtp_head(folder: Path, model_type: str, dtype: str = "float32", **overrides: Any) -> Path:
    """A checkpoint of ``model_type``, whose head's layer has the sizes of the model's attention layers."""
    import torch

    save_tiny_model(folder, model_type, dtype=dtype, **overrides)

    def add_head(tensors: dict[str, Any]) -> None:
        torch.manual_seed(7)
        layer = next(name.split("self_attn")[0] for name in sorted(tensors) if ".self_attn." in name)
        hidden = tensors[f"{layer}input_layernorm.weight"].shape[0]
        own = {name.removeprefix(layer): tensor for name, tensor in tensors.items() if name.startswith(layer)}
        shapes = {f"mtp.layers.0.{name}": tuple(tensor.shape) for name, tensor in own.items()}
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{name}.weight"] = (hidden,)
        for name, shape in shapes.items():
            values = 0.3 * torch.randn(shape) if len(shape) == 1 else torch.randn(shape) * shape[-1] ** -0.5
            tensors[name] = values.to(getattr(torch, dtype))

    return edit_tensors(folder, add_head)
