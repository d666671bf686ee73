"""Artifacts of one checkpoint with weights of 4, 8 and 16 bits, none of them larger than the peer's file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.agreement import random_prompt
from benchmarks.artifacts import exported, weight_bytes
from hybridge.quantization.options import GPTQ, QuantizeOptions
from hybridge.quantization.quantizer import REPORT_FILE, quantize_checkpoint

BF16, INT4, INT8 = "bf16", "int4", "int8"
# Columns that share a scale, and the format of the embedding, which a tied head shares: the first that fits is used.
_RECIPES = {
    INT8: tuple((group, INT8) for group in (32, 64, 128)),
    INT4: ((32, INT8), (32, INT4), (64, INT4), (128, INT4)),
}
_MOST_BITS = 12.0
# Bytes of bf16. Larger models are rounded to 8 bits without calibration: gptq would take minutes, and gain little.
_MOST_CALIBRATED = 1 << 30
# The seed is none of the windows' that KL divergences are measured over.
_CALIBRATION_TOKENS, _CALIBRATION_SEED = 4096, 10


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

    most_bytes: of a format's weights; without it the smallest groups are used. Where 4 bits have a limit, the
    sensitivity of matrices is measured, and they get the bits that fit. 8 bits are rounded by gptq, but not in models
    of more than _MOST_CALIBRATED bytes. trained: calibrated on samples of the model, else on random tokens.
    """
    models = {BF16: _exported(work, checkpoint, BF16, "as stored")}
    text = None if trained else str(_random_text(checkpoint))
    for name in formats:
        if name == BF16:
            continue
        options = QuantizeOptions(format=name)
        if name == INT8 and models[BF16].weight_bytes <= _MOST_CALIBRATED:
            options = replace(options, method=GPTQ, text=text)
        most = most_bytes.get(name, math.inf)
        models[name], source, embedding = _equal_groups(work, checkpoint, name, most, options)
        if name == INT4 and name in most_bytes:
            more = most_bytes[name] - models[name].weight_bytes
            models[name] = _mixed(work, checkpoint, more, source, embedding, text)
    return models


def _equal_groups(
    work: Path, checkpoint: Path, name: str, most_bytes: float, options: QuantizeOptions
) -> tuple[QuantizedModel, Path, str]:
    """The most precise model of equal groups that fits, or the smallest one; its checkpoint; its embedding's format."""
    for group, embedding in _RECIPES[name]:
        source = work / f"{name}-{group}-checkpoint"
        if not source.exists():
            quantize_checkpoint(checkpoint, source, replace(options, group_size=group))
        recipe = f"groups of {group}, embedding {embedding}"
        model = _exported(work, source, f"{name}-{group}-{embedding}", recipe, embedding)
        if model.weight_bytes <= most_bytes:
            break
    return model, source, embedding


def _random_text(checkpoint: Path) -> Path:
    """A text of random tokens beside ``checkpoint``, which gets a tokenizer that has a number for each token.

    A model with random weights predicts all tokens alike, and sampling from it would take most of the time.
    """
    vocab_size = int(json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    model = {"type": "WordLevel", "vocab": {str(token): token for token in range(vocab_size)}, "unk_token": "0"}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    text = checkpoint.with_name("calibration.txt")
    tokens = random_prompt(vocab_size, _CALIBRATION_TOKENS, _CALIBRATION_SEED)
    text.write_text(" ".join(map(str, tokens)), encoding="utf-8")
    return text


def _mixed(
    work: Path, checkpoint: Path, more_bytes: int, equal: Path, embedding: str, text: str | None
) -> QuantizedModel:
    """The model whose matrices take at most ``more_bytes`` more than those of the checkpoint ``equal``."""
    matrices = json.loads((equal / REPORT_FILE).read_text(encoding="utf-8"))["matrices"]
    weights, nbytes = (sum(each[key] for each in matrices) for key in ("weights", "nbytes"))
    bits = min(math.floor(800 * (nbytes + more_bytes) / weights) / 100, _MOST_BITS)
    source = work / f"{INT4}-{bits}-bits-checkpoint"
    if not source.exists():
        options = QuantizeOptions(format=INT4, bits=bits, method=GPTQ, text=text, zero_points=True)
        quantize_checkpoint(checkpoint, source, options)
    recipe = f"{bits} bits per weight, zero points, embedding {embedding}"
    return _exported(work, source, f"{INT4}-{bits}-bits", recipe, embedding)


def _exported(work: Path, checkpoint: Path, name: str, recipe: str, embedding: str | None = None) -> QuantizedModel:
    folders = work / name, work / f"{name}-all-logits"
    for folder, all_logits in zip(folders, (False, True), strict=True):
        if not folder.exists():
            exported(checkpoint, folder, max_batch_size=1, all_logits=all_logits, quantize_embedding=embedding)
    return QuantizedModel(*folders, weight_bytes(folders[0]), recipe)
