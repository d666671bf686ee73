"""A checkpoint folder that transformers can load."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import SafetensorsFile
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.exporter.checkpoint import Checkpoint, open_checkpoint
from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.exporter.checkpoint.entries import read_json
from hybridge.exporter.checkpoint.quantized.reader import MODELOPT_FILE, without_quantization
from hybridge.exporter.checkpoint.shards import SINGLE_FILE, tensors_of
from hybridge.exporter.families.mamba_ssm import is_mamba_ssm
from hybridge.exporter.weights.conversion import convert_torch_file
from hybridge.verification.dequantized import MeantWeight, meant_weights
from hybridge.verification.expert_tensors import joined_experts


@contextlib.contextmanager
def reference_folder(checkpoint: Path) -> Iterator[Path]:
    """``checkpoint`` itself, or for one that transformers cannot load the same model in a temporary folder.

    That of the mamba_ssm package gets other names, in as much room as its weights take; a quantised one is
    dequantised to float32.
    """
    config = read_json(checkpoint, CONFIG_FILE)
    if config is None:
        yield checkpoint
        return
    plain, quantization = without_quantization(config, read_json(checkpoint, MODELOPT_FILE))
    if quantization is None and not is_mamba_ssm(config):
        yield checkpoint
        return
    source = open_checkpoint(checkpoint)
    with tempfile.TemporaryDirectory(prefix="hybridge-") as name:
        folder = Path(name)
        try:
            if quantization is None:
                convert_torch_file(_renamed(source), folder / SINGLE_FILE)
                plain = _json_numbers(source.config)
            else:
                _write_meant(source, quantization, folder / SINGLE_FILE)
        except OSError as error:
            raise CheckpointError(
                f"{checkpoint}: expected room for a copy of its weights in {folder.parent}, found none: "
                f"{error.strerror or error}: set TMPDIR to another folder"
            ) from error
        (folder / CONFIG_FILE).write_text(json.dumps(plain), encoding="utf-8")
        yield folder


def _write_meant(source: Checkpoint, quantization: Mapping[str, Any], path: Path) -> None:
    """Write the tensors of ``source``, those that are quantised as float32, one in memory at a time."""
    tensors = tensors_of(source.shards)
    is_gpt_oss = source.config.get("model_type") == "gpt_oss"
    weights = meant_weights(quantization, tensors)
    if is_gpt_oss:
        weights = map(_with_columns, joined_experts(weights, tensors))
    meant = {weight.name: weight for weight in weights}
    quantized = {name for weight in meant.values() for name in weight.stored}
    left = {name: slot for name, slot in tensors.items() if name not in quantized}
    header = {name: (slot.dtype, slot.shape) for name, slot in left.items()}
    header |= {name: (DType.FLOAT32, weight.shape) for name, weight in meant.items()}
    with path.open("xb") as file:
        file.write(safetensors_header(header))
        for name in header:
            file.write(meant[name].floats().tobytes() if name in meant else left[name].map().tobytes())


def _with_columns(weight: MeantWeight) -> MeantWeight:
    """``weight`` with its rows on the last axis, those of the gate and of what it gates in turns."""
    if len(weight.shape) != 3:
        return weight
    experts, rows, columns = weight.shape

    def floats() -> np.ndarray:
        found = weight.floats()
        if weight.name.endswith("gate_up_proj"):
            found = found.reshape(experts, 2, rows // 2, columns).swapaxes(1, 2).reshape(weight.shape)
        return np.ascontiguousarray(found.swapaxes(1, 2))

    return replace(weight, shape=(experts, columns, rows), floats=floats)


def _renamed(source: Checkpoint) -> SafetensorsFile:
    """The file of ``source`` with the embedding's name in transformers."""
    if len(source.shards) != 1:
        raise CheckpointError(f"{source.path}: expected one file of weights, found {len(source.shards)}: merge them")
    tensors = {}
    for name, slot in source.shards[0].tensors.items():
        known = name.replace("embedding.weight", "embeddings.weight")
        tensors[known] = replace(slot, name=known)
    return replace(source.shards[0], tensors=tensors)


def _json_numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with infinities as transformers spells them."""
    low, high = config["time_step_limit"]
    infinite = {"__float__": "Infinity"} if math.isinf(high) else high
    return {**config, "time_step_limit": [low, infinite]}
