"""Rows that vary one factor of a part that several families share, and rows of several parts together."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from tests.support.tiny_models import EXPERTS

ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}
TIED: dict[str, Any] = {"tie_word_embeddings": True}
UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
HEADS: list[dict[str, Any]] = [
    {"num_key_value_heads": 1},
    {"num_key_value_heads": 6},
    {"num_attention_heads": 3, "num_key_value_heads": 3},
]
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5e3,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES: list[dict[str, Any]] = [
    {"rope_parameters": {"rope_type": "default", "rope_theta": 250.0}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    {"rope_parameters": LLAMA3},
    {"rope_parameters": YARN},
    {"rope_parameters": {**YARN, "beta_fast": 8, "beta_slow": 2, "truncate": False}},
    {"rope_parameters": {**YARN, "attention_factor": 1.3}},
    {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}},
]
EPSILON: dict[str, Any] = {"rms_norm_eps": 0.1}


def together(*parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that each vary one factor of every part."""
    rows = []
    for changes in zip_longest(*parts, fillvalue={}):
        row = {name: value for change in changes for name, value in change.items()}
        assert len(row) == sum(map(len, changes)), f"two parts set one field: {changes}"
        rows.append(row)
    return rows


def with_experts(family: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**EXPERTS[family], **row} for row in rows]
