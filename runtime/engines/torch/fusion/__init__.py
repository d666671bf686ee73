"""Rewrites of the artifact's graph into operators that this engine runs faster."""

from __future__ import annotations

from enum import Enum

import onnx_ir as ir

from artifact.config import RuntimeConfig
from runtime.engines.torch.device import TorchDevice


class Phase(str, Enum):
    """PREFILL: steps of any number of tokens a row. DECODE: at most one token a row."""

    PREFILL = "prefill"
    DECODE = "decode"


def fuse_graph(model: ir.Model, config: RuntimeConfig, device: TorchDevice, phase: Phase) -> None:
    """Rewrite ``model`` in place for one phase on one device."""
