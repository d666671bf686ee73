"""Artifacts without head, exported once and found again by the hash of checkpoint, type, limits and exporter."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import OutputError
from hybridge.artifact.source_digest import source_digest
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import OPTIONAL, ExportOptions
from hybridge.exporter.versions import tool_versions
from hybridge.transformers_host.checkpoint_source import checkpoint_of, fingerprint

# What an export runs: these packages import no other one of Hybridge.
EXPORTER = ("exporter", "trt_plugins", "artifact")
_DTYPES = {torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16, torch.bfloat16: DType.BFLOAT16}


def default_cache_folder() -> Path:
    """The user's cache folder: XDG_CACHE_HOME or ~/.cache, %LOCALAPPDATA% on Windows; its part ``hybridge/models``."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hybridge" / "models"


def cached_artifact(model: Any, cache_folder: Path, max_batch_size: int, max_cache_len: int) -> Path:
    """The artifact of the loaded ``model``, exported now if the cache has none. Weights are links where they can be.

    CheckpointError, UnsupportedError, ExportError, OutputError as in ``hybridge.export``.
    """
    checkpoint = checkpoint_of(model, cache_folder)
    dtype = _DTYPES.get(model.dtype, DType.FLOAT32)
    options = ExportOptions(
        dtype=dtype, kernels=OPTIONAL, head=False, max_batch_size=max_batch_size, max_seq_len=max_cache_len
    )
    exporter = (source_digest(*EXPORTER), *tool_versions().items())
    key = repr((exporter, fingerprint(checkpoint), dtype.value, max_batch_size, max_cache_len))
    out = cache_folder / "artifacts" / f"{model.config.model_type}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            export_checkpoint(checkpoint, out, options)
        except OutputError:
            if not out.exists():  # another process was faster
                raise
    return out
