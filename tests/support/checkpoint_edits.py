"""Ways in which the same checkpoint may be written: other config styles, other tensor names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint."""
    return json.loads((folder / "config.json").read_text())


def edit_config(folder: Path, remove: tuple[str, ...] = (), **fields: Any) -> Path:
    """Set ``fields`` in config.json and drop the fields ``remove``."""
    config = {k: v for k, v in read_config(folder).items() if k not in remove}
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


def copy_checkpoint(source: Path, target: Path) -> Path:
    """A second checkpoint with the same content."""
    return Path(shutil.copytree(source, target))


def rename_tensors(folder: Path, rename: Callable[[str], str]) -> Path:
    """Save the single shard again under other tensor names."""
    path = folder / "model.safetensors"
    tensors = {rename(name): value for name, value in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def edit_tensors(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Save the single shard again after ``edit`` changed the tensors by name in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata={"format": "pt"})
    return folder
