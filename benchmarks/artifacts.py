"""The checkpoints and artifacts that benchmarks run on, and what one token costs them in memory traffic."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from benchmarks.random_checkpoint import Config, write_random_checkpoint
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.safetensors_file import read_safetensors

CHECKPOINTS = ROOT / "examples" / "checkpoints"
DEMO_CHECKPOINT = CHECKPOINTS / "tiny-nemotron-h"
DELTA_CHECKPOINT = CHECKPOINTS / "tiny-qwen3-next"
HELD_OUT_TEXT = ROOT / "examples" / "text" / "heldout.txt"
WEIGHTS = "model.safetensors"
_EMBEDDINGS = ("embeddings.weight", "embedding.weight", "embed_tokens.weight")
# Engines on the CPU hold weights and states in float32.
_ELEMENT_BYTES = 4


@contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[Path]:
    """A new folder in ``parent`` (None: that of temporary files) that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-", dir=parent) as name:
        yield Path(name)


@contextmanager
def work_folder(kept: str | None) -> Iterator[Path]:
    """The folder ``kept``, for checkpoints and artifacts that stay from run to run; None: a scratch folder."""
    with scratch_folder() as folder:
        yield folder if kept is None else Path(kept)


def exported(checkpoint: Path, out: Path, **options: Any) -> Path:
    """Export ``checkpoint`` into the new folder ``out``, which is returned. options: of ExportOptions."""
    from hybridge.exporter.export import export_checkpoint
    from hybridge.exporter.options import ExportOptions

    export_checkpoint(checkpoint, out, ExportOptions(scan=False, **options))
    return out


def linked_artifact(work: Path, name: str, config: Config, **options: Any) -> Path:
    """The artifact ``name`` of the random checkpoint in the folder ``work``, both made where they are missing.

    Its folder is named after ``options`` too, so that benchmarks with other limits can share ``work``. An artifact may
    lack its large weight file, which is then linked from the checkpoint.
    """
    checkpoint = work / "checkpoint"
    folder = work / "-".join([name, *(str(options[key]) for key in sorted(options))])
    if not (checkpoint / WEIGHTS).exists():
        write_random_checkpoint(checkpoint, config)
    if not folder.exists():
        exported(checkpoint, folder, **options)
    if not (folder / "weights" / WEIGHTS).exists():
        os.link(checkpoint / WEIGHTS, folder / "weights" / WEIGHTS)
    return folder


def weight_bytes(folder: Path) -> int:
    """Bytes of the weight files of the artifact ``folder``."""
    return sum(file.stat().st_size for file in (folder / "weights").iterdir())


def touched_bytes_per_token(checkpoint: Path, config: RuntimeConfig) -> float:
    """Bytes that decoding one token has to read or write in float32: all weights, and recurrent states both ways.

    Of the embedding table one row is read, which is left out unless it is the head too, as are KV caches (the contexts
    here are short).
    """
    tensors = read_safetensors(checkpoint / WEIGHTS).tensors
    tied = not any(name.startswith("lm_head.") for name in tensors)
    read = (slot for slot in tensors.values() if tied or not slot.name.endswith(_EMBEDDINGS))
    weights = sum(math.prod(slot.shape) for slot in read)
    states = sum(
        layer.num_heads * layer.head_dim * layer.state_size + layer.conv_dim * layer.conv_kernel
        for layer in config.recurrent_layers
    )
    return float(_ELEMENT_BYTES * (weights + 2 * states))
