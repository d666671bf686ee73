"""A checkpoint folder, opened: raw config, tensors by name, and the files to carry along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifact.dtypes import DType
from artifact.errors import CheckpointError, UnsupportedError
from artifact.json_fields import load_json_object
from artifact.safetensors_file import SafetensorsFile, TensorSlot
from exporter.checkpoint.shards import read_shards, tensors_of

# Carried into the artifact when present. Remote code (*.py) never is.
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; weights are mapped only when used."""

    path: Path
    config: Mapping[str, Any]
    shards: tuple[SafetensorsFile, ...]
    tensors: Mapping[str, TensorSlot]
    side_files: tuple[Path, ...]
    dtype: DType
    eos_token_ids: tuple[int, ...]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the checkpoint folder ``path``.

    CheckpointError: missing, unreadable, corrupt or unsafe parts; UnsupportedError: quantised weights.
    """
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise CheckpointError(f"{path}: expected a checkpoint folder, found {found}")
    config = load_json_object(path / "config.json", CheckpointError)
    if config.get("quantization_config"):
        method = config["quantization_config"]
        name = method.get("quant_method") if isinstance(method, dict) else method
        raise UnsupportedError(f"config.json: quantization_config ({name}): expected unquantised weights")
    shards = read_shards(path)
    tensors = tensors_of(shards)
    if not tensors:
        raise CheckpointError(f"{path}: the checkpoint holds no tensors")
    side_files = tuple(path / name for name in SIDE_FILES if (path / name).is_file())
    return Checkpoint(path, config, shards, tensors, side_files, _dtype(config, tensors), _eos_ids(path, config))


def _dtype(config: Mapping[str, Any], tensors: Mapping[str, TensorSlot]) -> DType:
    """The type that the config names, else the type of most bytes."""
    named = config.get("dtype") or config.get("torch_dtype")
    if named is not None:
        if not isinstance(named, str):
            raise CheckpointError(f"config.json: dtype: expected a string, found {named!r}")
        return DType.parse(named.removeprefix("torch."))
    counts: Counter[DType] = Counter()
    for slot in tensors.values():
        counts[slot.dtype] += slot.nbytes
    return counts.most_common(1)[0][0]


def _eos_ids(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json wins over config.json; one id or a list."""
    generation = path / "generation_config.json"
    sources = [load_json_object(generation, CheckpointError)] if generation.is_file() else []
    for source in (*sources, config):
        value = source.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise CheckpointError(f"eos_token_id: expected token ids, found {value!r}")
        return tuple(ids)
    return ()
