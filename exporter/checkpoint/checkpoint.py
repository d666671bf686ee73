"""A checkpoint folder, opened: raw config, tensors by name, and the files to carry along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.limits import TEMPLATE_FILES
from hybridge.artifact.path_kind import require_checkpoint
from hybridge.artifact.safetensors_file import SafetensorsFile, TensorSlot
from hybridge.exporter.checkpoint.entries import check_side_file, checked_file, read_json
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheScales
from hybridge.exporter.checkpoint.quantized.reader import MODELOPT_FILE, logical_tensors, without_quantization
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of
from hybridge.exporter.families.mamba_ssm import NOTE, is_mamba_ssm, transformers_config
from hybridge.exporter.families.text_models import text_config_of

CONFIG_FILE, GENERATION_CONFIG_FILE, TOKENIZER_FILE = "config.json", "generation_config.json", "tokenizer.json"
# Carried into the artifact when present. Remote code (*.py) never is.
SIDE_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_CONFIG_FILE,
)
# With it transformers adds the adapter to the weights of another folder, where peft is installed.
ADAPTER_FILE = "adapter_config.json"
# transformers saves here, as NAME.jinja, the named templates of a tokenizer that has more than the default one.
TEMPLATES_FOLDER = "additional_chat_templates"


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; weights are mapped only when used.

    ``config`` is config.json as it stands, or the transformers config of the same model where it is one of mamba_ssm;
    ``dtype`` is its type, else the type of most bytes of weights.
    ``side_files`` are in ``path`` or in a folder of it. ``eos_token_ids`` come from generation_config.json, else from
    the config. ``notes`` say what was ignored.
    ``config`` has no quantization_config; ``tensors`` are the model's, of which ``quantized`` are those of the weights
    that are quantised. ``cache_scales`` are those of keys and values.
    """

    path: Path
    config: Mapping[str, Any]
    shards: tuple[SafetensorsFile, ...]
    tensors: Mapping[str, TensorSlot]
    side_files: tuple[Path, ...]
    dtype: DType
    eos_token_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()
    quantized: Mapping[str, QuantizedTensor] = field(default_factory=dict)
    cache_scales: CacheScales = field(default_factory=CacheScales)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the checkpoint folder ``path``; only headers and small files are read.

    CheckpointError: missing, unreadable, corrupt or unsafe parts; UnsupportedError: weights quantised
    in a way that is not supported.
    """
    require_checkpoint(Path(path))
    folder = Path(path).absolute()
    if checked_file(folder, ADAPTER_FILE) is not None:
        raise UnsupportedError(
            f"{ADAPTER_FILE}: expected no adapter, found one: merge it with peft's merge_and_unload and give the result"
        )
    stored = read_json(folder, CONFIG_FILE)
    if stored is None:
        raise CheckpointError(f"{folder}: expected {CONFIG_FILE}, found none: give the folder of a checkpoint")
    config, quantization = without_quantization(stored, read_json(folder, MODELOPT_FILE))
    notes = _notes(config)
    if original := is_mamba_ssm(config):
        config = transformers_config(config)
        notes = (*notes, NOTE.format(config["model_type"]))
    shards = read_shards(folder, original)
    tensors = tensors_of(shards)
    if not tensors:
        raise CheckpointError(f"{folder}: the checkpoint holds no tensors: fetch it again")
    logical = logical_tensors(quantization, tensors)
    eos_token_ids = _eos_token_ids(config, read_json(folder, GENERATION_CONFIG_FILE) or {})
    return Checkpoint(
        folder,
        config,
        shards,
        logical.tensors,
        _side_files(folder),
        _dtype(config, logical.tensors),
        eos_token_ids,
        (*notes, *logical.notes),
        logical.quantized,
        logical.cache_scales,
    )


def _side_files(folder: Path) -> tuple[Path, ...]:
    templates = sorted(path.name for path in (folder / TEMPLATES_FOLDER).glob("*.jinja"))
    if len(templates) > TEMPLATE_FILES:
        raise CheckpointError(
            f"{folder / TEMPLATES_FOLDER}: expected at most {TEMPLATE_FILES} templates, found {len(templates)}: "
            "remove those that are not needed"
        )
    names = (*SIDE_FILES, *(f"{TEMPLATES_FOLDER}/{name}" for name in templates))
    found = tuple(path for name in names if (path := checked_file(folder, name)) is not None)
    for path in found:
        check_side_file(folder, path.relative_to(folder).as_posix())
    return found


def _dtype(config: Mapping[str, Any], tensors: Mapping[str, TensorSlot]) -> DType:
    name = config.get("dtype") or config.get("torch_dtype")
    if name is not None and name != "auto":
        known = {dtype.value: dtype for dtype in DType if dtype.is_floating}
        dtype = known.get(name.removeprefix("torch.")) if isinstance(name, str) else None
        if dtype is None:
            raise UnsupportedError(f"{CONFIG_FILE}: dtype: expected one of {', '.join(known)}, found {name!r}")
        return dtype
    nbytes: dict[DType, int] = {}
    for slot in tensors.values():
        if slot.dtype.is_floating:
            nbytes[slot.dtype] = nbytes.get(slot.dtype, 0) + slot.nbytes
    if not nbytes:
        raise CheckpointError("expected floating-point weights, found none: download the checkpoint again")
    return max(nbytes, key=lambda d: nbytes[d])


def _eos_token_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    text = text_config_of(config)
    inner = text if isinstance(text, dict) else {}
    for source, data in ((GENERATION_CONFIG_FILE, generation), (CONFIG_FILE, config), (CONFIG_FILE, inner)):
        value = data.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise CheckpointError(f"{source}: eos_token_id: expected a token id or a list of them, found {value!r}")
        return tuple(dict.fromkeys(ids))
    return ()


def _notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    if config.get("auto_map"):
        return (f"{CONFIG_FILE}: auto_map names Python code of the checkpoint: it is never loaded",)
    return ()
