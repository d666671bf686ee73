"""Artifacts of one checkpoint with weights of 4, 8 and 16 bits, none of them larger than the peer's file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.artifacts import exported, weight_bytes
from hybridge.quantization.options import QuantizeOptions
from hybridge.quantization.quantizer import REPORT_FILE, quantize_checkpoint

BF16, INT4, INT8 = "bf16", "int4", "int8"
# Columns that share a scale: the first number with which an artifact is not too large.
_GROUPS = (32, 64, 128)
_MOST_BITS = 12.0


@dataclass(frozen=True)
class QuantizedModel:
    """An artifact for steps, one that gives logits of all tokens, bytes of its weights, and how they were rounded."""

    steps: Path
    all_logits: Path
    weight_bytes: int
    recipe: str


def quantized_models(
    work: Path, checkpoint: Path, formats: Sequence[str], most_bytes: Mapping[str, int], trained: bool
) -> dict[str, QuantizedModel]:
    """Models of bf16 and of ``formats`` from ``checkpoint``; what the folder ``work`` has already is used again.

    most_bytes: of a format's weights; without it the smallest groups are used. trained: where 4 bits have a limit, the
    sensitivity of matrices is measured, and they get the bits that fit. Embeddings get 8 bits.
    """
    models = {BF16: _exported(work, checkpoint, BF16, "as stored")}
    for name in formats:
        if name == BF16:
            continue
        models[name], source = _smallest_groups(work, checkpoint, name, most_bytes.get(name, math.inf))
        if trained and name == INT4 and name in most_bytes:
            models[name] = _mixed(work, checkpoint, most_bytes[name] - models[name].weight_bytes, source)
    return models


def _smallest_groups(work: Path, checkpoint: Path, name: str, most_bytes: float) -> tuple[QuantizedModel, Path]:
    """The most precise model of equal groups that fits, or the smallest one; and its checkpoint."""
    for group in _GROUPS:
        source = work / f"{name}-{group}-checkpoint"
        if not source.exists():
            quantize_checkpoint(checkpoint, source, QuantizeOptions(format=name, group_size=group))
        model = _exported(work, source, f"{name}-{group}", f"groups of {group}")
        if model.weight_bytes <= most_bytes:
            break
    return model, source


def _mixed(work: Path, checkpoint: Path, more_bytes: int, equal: Path) -> QuantizedModel:
    """The model whose matrices take at most ``more_bytes`` more than those of the checkpoint ``equal``."""
    matrices = json.loads((equal / REPORT_FILE).read_text(encoding="utf-8"))["matrices"]
    weights, nbytes = (sum(each[key] for each in matrices) for key in ("weights", "nbytes"))
    bits = min(math.floor(800 * (nbytes + more_bytes) / weights) / 100, _MOST_BITS)
    source = work / f"{INT4}-{bits}-bits-checkpoint"
    if not source.exists():
        quantize_checkpoint(checkpoint, source, QuantizeOptions(format=INT4, bits=bits))
    return _exported(work, source, f"{INT4}-{bits}-bits", f"{bits} bits per weight")


def _exported(work: Path, checkpoint: Path, name: str, recipe: str) -> QuantizedModel:
    embedding = None if name == BF16 else INT8
    folders = work / name, work / f"{name}-all-logits"
    for folder, all_logits in zip(folders, (False, True), strict=True):
        if not folder.exists():
            exported(checkpoint, folder, max_batch_size=1, all_logits=all_logits, quantize_embedding=embedding)
    return QuantizedModel(*folders, weight_bytes(folders[0]), recipe)
