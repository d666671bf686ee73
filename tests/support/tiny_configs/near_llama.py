"""Families near Llama's layout: tests make everything from the fields that their configs declare."""

from __future__ import annotations

from typing import Any

from hybridge.exporter.families.registry import declared_kinds
from tests.support.tiny_configs.parts import ATTENTION, COMMON

NEAR_LLAMA = ("gemma", "glm", "helium", "iquestcoder")

# Those whose heads fill the hidden size, although the size of a head is a field.
FILLED = ("helium",)


def tiny_config(family: str) -> dict[str, Any]:
    """Sizes of a tiny model."""
    kinds = declared_kinds(family)
    sizes = {"num_hidden_layers": 2, "intermediate_size": 88, "max_position_embeddings": 512}
    if "head_dim" in kinds:
        sizes["head_dim"] = COMMON["hidden_size"] // ATTENTION["num_attention_heads"] if family in FILLED else 20
    if {"sliding_window", "layer_types"} <= set(kinds):
        sizes["sliding_window"] = 7
    return {**COMMON, **ATTENTION, **sizes}


def switches(family: str) -> tuple[str, ...]:
    """The fields that give products a bias."""
    return tuple(name for name, kind in declared_kinds(family).items() if kind == "bool" and name.endswith("bias"))


NEAR_LLAMA_CONFIGS = {family: tiny_config(family) for family in NEAR_LLAMA}
