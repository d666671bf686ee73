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

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import SafetensorsFile
from hybridge.exporter.checkpoint import Checkpoint, open_checkpoint
from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.exporter.checkpoint.entries import read_json
from hybridge.exporter.checkpoint.shards import SINGLE_FILE
from hybridge.exporter.families.mamba_ssm import is_mamba_ssm
from hybridge.exporter.weights.conversion import convert_torch_file


@contextlib.contextmanager
def reference_folder(checkpoint: Path) -> Iterator[Path]:
    """``checkpoint`` itself; for one of the mamba_ssm package the same model as transformers stores it, in a temporary
    folder as large as its weights.
    """
    config = read_json(checkpoint, CONFIG_FILE)
    if config is None or not is_mamba_ssm(config):
        yield checkpoint
        return
    source = open_checkpoint(checkpoint)
    with tempfile.TemporaryDirectory(prefix="hybridge-") as name:
        folder = Path(name)
        try:
            convert_torch_file(_renamed(source), folder / SINGLE_FILE)
        except OSError as error:
            raise CheckpointError(
                f"{checkpoint}: expected room for a copy of its weights in {folder.parent}, found none: "
                f"{error.strerror or error}: set TMPDIR to another folder"
            ) from error
        (folder / CONFIG_FILE).write_text(json.dumps(_json_numbers(source.config)), encoding="utf-8")
        yield folder


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
