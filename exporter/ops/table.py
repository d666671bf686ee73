"""The translation table of an export: every operator that a decoder uses, and its ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hybridge.exporter.ops import (
    grouped_rms_norm,
    last_token,
    mark,
    packed_rotary_tables,
    rms_norm,
    rotary_embedding,
    rotary_tables,
    selected_tokens,
    sigmoid_top_k,
    softmax_top_k,
    top_k_softmax,
)
from hybridge.exporter.ops.aten import aten_translations
from hybridge.exporter.ops.onnx_nodes import NAMESPACE
from hybridge.trt_plugins import torch_ops

# Each module defines the operator of its name, and to_onnx.
_MODULES: tuple[Any, ...] = (
    grouped_rms_norm,
    last_token,
    mark,
    packed_rotary_tables,
    rms_norm,
    rotary_embedding,
    rotary_tables,
    selected_tokens,
    sigmoid_top_k,
    softmax_top_k,
    top_k_softmax,
)


def translation_table() -> dict[Any, Callable[..., Any]]:
    """torch.onnx.export's custom translation table."""
    namespace = getattr(torch.ops, NAMESPACE)
    own = {getattr(namespace, module.__name__.rpartition(".")[2]).default: module.to_onnx for module in _MODULES}
    return {**aten_translations(), **own, **torch_ops.onnx_translations()}
