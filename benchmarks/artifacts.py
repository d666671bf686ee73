"""The artifacts that benchmarks run on, and what one token costs them in memory traffic."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.machine import ROOT
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions

CHECKPOINTS = ROOT / "examples" / "checkpoints"
DEMO_CHECKPOINT = CHECKPOINTS / "tiny-nemotron-h"
DELTA_CHECKPOINT = CHECKPOINTS / "tiny-qwen3-next"
_EMBEDDINGS = ("embeddings.weight", "embedding.weight", "embed_tokens.weight")
# Engines on the CPU hold weights and states in float32.
_ELEMENT_BYTES = 4


def exported(checkpoint: Path, out: Path, max_seq_len: int | None = None, all_logits: bool = False) -> Path:
    """Export ``checkpoint`` for one row into the new folder ``out`` and return it."""
    options = ExportOptions(max_batch_size=1, max_seq_len=max_seq_len, all_logits=all_logits, scan=False)
    export_checkpoint(checkpoint, out, options)
    return out


def touched_bytes_per_token(checkpoint: Path, config: RuntimeConfig) -> float:
    """Bytes that decoding one token has to read or write in float32: all weights, and recurrent states both ways.

    Of the embedding table one row is read, which is left out unless it is the head too, as are KV caches (the contexts
    here are short).
    """
    tensors = read_safetensors(checkpoint / "model.safetensors").tensors
    tied = not any(name.startswith("lm_head.") for name in tensors)
    read = (slot for slot in tensors.values() if tied or not slot.name.endswith(_EMBEDDINGS))
    weights = sum(math.prod(slot.shape) for slot in read)
    states = sum(
        layer.num_heads * layer.head_dim * layer.state_size + layer.conv_dim * layer.conv_kernel
        for layer in config.recurrent_layers
    )
    return float(_ELEMENT_BYTES * (weights + 2 * states))
