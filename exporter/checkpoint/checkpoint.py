"""A checkpoint folder, opened: what export may rely on once it has been validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from artifact.dtypes import DType
from artifact.errors import CheckpointError, UnsupportedError
from artifact.safetensors_file import SafetensorsFile, TensorSlot
from exporter.checkpoint.entries import check_json, checked_file, checkpoint_folder, read_json
from exporter.checkpoint.shards import all_tensors, open_shards

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
# Files that the runtime needs beside the graph; copied when present.
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_CONFIG_FILE,
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
)
TEMPLATE_FOLDER = "additional_chat_templates"


@dataclass(frozen=True)
class Checkpoint:
    """A validated checkpoint.

    ``config`` is config.json as it stands. ``side_files`` maps the name relative to the folder (with "/") to the
    file. ``dtype`` is the config's type, else the type of most bytes of weights. ``eos_token_ids`` prefers
    generation_config.json. ``notes`` are sentences for the user about what was ignored.
    """

    path: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorSlot]
    shards: tuple[SafetensorsFile, ...]
    side_files: Mapping[str, Path]
    dtype: DType
    eos_token_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open and validate the checkpoint folder ``path``; only headers and small JSON files are read.

    CheckpointError: missing, corrupt, incomplete or unsafe folder. UnsupportedError: quantised weights.
    """
    folder = checkpoint_folder(Path(path))
    config = read_json(folder, CONFIG_FILE)
    if config is None:
        raise CheckpointError(
            f"{folder}: expected {CONFIG_FILE}, found none: give the folder of a Hugging Face checkpoint"
        )
    _refuse_quantised_config(config)
    shards = open_shards(folder)
    tensors = all_tensors(shards)
    _refuse_quantised_tensors(tensors)
    generation = read_json(folder, GENERATION_CONFIG_FILE)
    return Checkpoint(
        path=folder,
        config=config,
        tensors=tensors,
        shards=shards,
        side_files=_side_files(folder),
        dtype=_dtype(config, tensors),
        eos_token_ids=_eos_token_ids(config, generation or {}),
        notes=_notes(config),
    )


def _side_files(folder: Path) -> Mapping[str, Path]:
    names = list(SIDE_FILES)
    names += sorted(f"{TEMPLATE_FOLDER}/{path.name}" for path in (folder / TEMPLATE_FOLDER).glob("*.jinja"))
    found = {name: path for name in names if (path := checked_file(folder, name)) is not None}
    for path in found.values():
        if path.suffix == ".json":
            check_json(path)
    return MappingProxyType(found)


def _dtype(config: dict[str, Any], tensors: Mapping[str, TensorSlot]) -> DType:
    name = config.get("dtype", config.get("torch_dtype"))
    if name is not None and name != "auto":
        dtype = DType.parse(name.removeprefix("torch.")) if isinstance(name, str) else None
        if dtype is None or not dtype.is_floating:
            raise UnsupportedError(f"{CONFIG_FILE}: dtype: expected a floating-point type, found {name!r}")
        return dtype
    nbytes: dict[DType, int] = {}
    for slot in tensors.values():
        if slot.dtype.is_floating:
            nbytes[slot.dtype] = nbytes.get(slot.dtype, 0) + slot.nbytes
    if not nbytes:
        raise CheckpointError("expected floating-point weights, found none: download the checkpoint again")
    return max(nbytes, key=lambda d: nbytes[d])


def _eos_token_ids(config: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    for source, data in ((GENERATION_CONFIG_FILE, generation), (CONFIG_FILE, config)):
        value = data.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise CheckpointError(f"{source}: eos_token_id: expected a token id or a list of them, found {value!r}")
        return tuple(dict.fromkeys(ids))
    return ()


def _refuse_quantised_config(config: dict[str, Any]) -> None:
    for key in ("quantization_config", "compression_config"):
        value = config.get(key)
        if value:
            method = value.get("quant_method", "unknown") if isinstance(value, dict) else value
            raise UnsupportedError(
                f"{CONFIG_FILE}: {key} ({method}): quantised checkpoints are not supported: export the original one"
            )


def _refuse_quantised_tensors(tensors: Mapping[str, TensorSlot]) -> None:
    for slot in tensors.values():
        if slot.dtype in (DType.UINT8, DType.INT8):
            raise UnsupportedError(
                f"{slot.path.name}: tensor {slot.name} is {slot.dtype.value}: "
                "quantised checkpoints are not supported: export the original one"
            )


def _notes(config: dict[str, Any]) -> tuple[str, ...]:
    if config.get("auto_map"):
        return (f"{CONFIG_FILE}: auto_map names Python code of the checkpoint: it is not loaded, now or ever",)
    return ()
