"""The artifacts that a check runs: found in a folder, or exported from the demo checkpoint."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hybridge
from hardware.forms import BFLOAT16, DENSE, EXPORTS, MTP, PAGED
from hardware.head_checkpoint import write_with_head
from hybridge.artifact.config import MTP_CONFIG_FILE, read_config
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.path_kind import ARTIFACT_MARKS, is_marked

CHECKPOINT = Path(__file__).resolve().parents[2] / "examples" / "checkpoints" / "tiny-nemotron-h"
MAX_BATCH, MAX_SEQ_LEN = 8, 4096


def find_artifacts(folder: Path) -> dict[str, Path]:
    """Artifacts by name: ``folder`` itself, or its folders that ``export_artifacts`` wrote; ArtifactError without."""
    if is_marked(folder, ARTIFACT_MARKS):
        config = read_config(folder)
        name = DENSE if config.layout == DENSE else BFLOAT16 if config.dtype is DType.BFLOAT16 else PAGED
        return {name: folder, **({MTP: folder} if (folder / MTP_CONFIG_FILE).is_file() else {})}
    found = {name: folder / name for name in EXPORTS if is_marked(folder / name, ARTIFACT_MARKS)}
    if not found:
        raise ArtifactError(
            f"{folder}: expected an artifact, or a folder with {', '.join(EXPORTS)}, found neither: export one"
        )
    return found


def export_artifacts(out: Path, checkpoint: Path = CHECKPOINT) -> dict[str, Path]:
    """Export every artifact of ``forms.EXPORTS`` to a folder of its name in ``out``; needs torch.

    The weights are copied, so that ``out`` can go to another machine.
    """
    with tempfile.TemporaryDirectory() as scratch:
        with_head = Path(scratch) / "checkpoint"
        write_with_head(checkpoint, with_head)
        for name, options in EXPORTS.items():
            _export(with_head if name == MTP else checkpoint, out / name, options)
    return {name: out / name for name in EXPORTS}


def _export(checkpoint: Path, out: Path, options: Mapping[str, Any]) -> None:
    chosen: dict[str, Any] = {"max_batch_size": MAX_BATCH, "max_seq_len": MAX_SEQ_LEN, "weights": "copy", **options}
    hybridge.export(checkpoint, out, overwrite=True, **chosen)


def artifact_document(folder: Path) -> Mapping[str, Any]:
    """The record of an artifact in a report."""
    config = read_config(folder)
    return {
        "folder": str(folder),
        "model_type": config.model_type,
        "dtype": config.dtype.value,
        "layout": config.layout,
        "max_batch_size": config.max_batch_size,
        "max_seq_len": config.max_seq_len,
        "model_sha256": hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest(),
    }
