"""The checkpoint folder behind a loaded model: where it came from, or a copy of a model that is only in memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hybridge.artifact.errors import CheckpointError, HybridgeError
from hybridge.artifact.limits import JSON_BYTES
from hybridge.artifact.temporary_folder import PARTIAL, temporary_folder
from hybridge.artifact.untrusted_file import read_inside
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.shards import tensors_of
from hybridge.exporter.families.parameters import ROOTS

# Elements that are compared and hashed of each tensor: evenly spaced blocks.
_BLOCK, _BLOCKS = 64, 64


def checkpoint_of(model: Any, cache_folder: Path) -> Path:
    """The folder that ``model`` was loaded from, if its weights have not changed; else a new folder with a copy.

    Weights are spot-checked: evenly spaced blocks of every tensor that has the same name in the folder.
    """
    loaded_from = _folder_of(model)
    if loaded_from is not None and _holds(loaded_from, model):
        return loaded_from
    parent = cache_folder / "checkpoints"
    parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(parent / "model", PARTIAL) as folder:
        model.save_pretrained(folder)
        target = parent / fingerprint(folder)
        if not target.exists():
            os.rename(folder, target)
    return target


def fingerprint(checkpoint: Path) -> str:
    """A hash of config.json and of every tensor: name, type, shape and evenly spaced blocks of its elements.

    CheckpointError when the folder is not a complete checkpoint.
    """
    digest = hashlib.sha256(read_inside(checkpoint, "config.json", JSON_BYTES, CheckpointError))
    for name, slot in sorted(tensors_of(open_checkpoint(checkpoint).shards).items()):
        digest.update(f"{name} {slot.dtype.value} {slot.shape}".encode())
        flat = slot.map().reshape(-1)
        digest.update(flat[_sample(flat.size)].tobytes())
    return digest.hexdigest()[:24]


def _folder_of(model: Any) -> Path | None:
    """The folder of ``from_pretrained``: a path, or a downloaded repository in its cache."""
    name = getattr(model.config, "_name_or_path", "")
    if not name:
        return None
    if (Path(name) / "config.json").is_file():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json", revision=getattr(model.config, "_commit_hash", None))
    except ValueError:  # not the name of a repository
        return None
    return Path(found).parent if isinstance(found, str) else None


def _holds(folder: Path, model: Any) -> bool:
    """Whether ``folder`` is a checkpoint with the weights of ``model``; quantised ones are not compared."""
    try:
        checkpoint = open_checkpoint(folder)
    except HybridgeError:
        return False
    unquantized = checkpoint.tensors.keys() - checkpoint.quantized.keys()
    stored = {_without_root(name): checkpoint.tensors[name] for name in unquantized}
    compared = 0
    for name, tensor in model.state_dict().items():
        slot = stored.get(_without_root(name))
        if slot is None:
            continue
        flat, values = slot.map().reshape(-1), tensor.detach().reshape(-1)
        if flat.size != values.numel():
            return False
        chosen = _sample(flat.size)
        expected = torch.from_numpy(flat[chosen].astype(np.float32)).to(tensor.dtype)
        if not torch.equal(values[torch.from_numpy(chosen).to(values.device)].cpu(), expected):
            return False
        compared += 1
    return compared > 0


def _without_root(name: str) -> str:
    return next(name.removeprefix(root) for root in ROOTS if name.startswith(root))


def _sample(size: int) -> np.ndarray:
    if size <= _BLOCK * _BLOCKS:
        return np.arange(size)
    starts = np.linspace(0, size - _BLOCK, _BLOCKS).astype(np.int64)
    return (starts[:, None] + np.arange(_BLOCK)).reshape(-1)
