"""The translation table of an export: every operator that a decoder uses, and its ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from hybridge.exporter.ops.aten import aten_translations
from hybridge.exporter.ops.onnx_nodes import NAMESPACE
from hybridge.trt_plugins import torch_ops

# Each module of this package defines the operator of its name, and to_onnx.
_OPERATORS = (
    "at_start",
    "grouped_rms_norm",
    "last_token",
    "mark",
    "packed_rotary_tables",
    "rms_norm",
    "rotary_embedding",
    "rotary_tables",
    "selected_tokens",
    "sigmoid_top_k",
    "softmax_or_skip",
    "softmax_top_k",
    "top_k_softmax",
)


def translation_table() -> dict[Any, Callable[..., Any]]:
    """torch.onnx.export's custom translation table."""
    namespace = getattr(torch.ops, NAMESPACE)
    to_onnx = {name: import_module(f"{__package__}.{name}").to_onnx for name in _OPERATORS}
    own = {getattr(namespace, name).default: translation for name, translation in to_onnx.items()}
    return {**aten_translations(), **own, **torch_ops.onnx_translations()}
