"""Checkpoint folders of a few hundred bytes, written by the safetensors package: one file, or shards with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from hybridge.artifact.dtypes import DType

BF16 = DType.BFLOAT16.numpy
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
TENSORS = {
    "embedding": np.arange(15, dtype=np.float32).reshape(5, 3).astype(BF16),
    "layers.0.A_log": np.linspace(-1, 1, 3, dtype=np.float32),
    "layers.0.weight": np.ones((3, 3), BF16),
}


def write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data))


def single(folder: Path, tensors: dict[str, np.ndarray] | None = None, **config: Any) -> Path:
    """A checkpoint of one file."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", {"model_type": "llama", "eos_token_id": 2, **config})
    save_file(TENSORS if tensors is None else tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def sharded(folder: Path) -> Path:
    """The same tensors in two shards with an index."""
    single(folder)
    (folder / "model.safetensors").unlink()
    places = {name: "model-00002-of-00002.safetensors" for name in TENSORS} | {
        "embedding": "model-00001-of-00002.safetensors"
    }
    for shard in set(places.values()):
        save_file({n: t for n, t in TENSORS.items() if places[n] == shard}, folder / shard, metadata={"format": "pt"})
    write_index(folder, places)
    return folder


def read_index(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def write_index(folder: Path, places: object) -> None:
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": places})


def hub_cache(folder: Path, source: Path) -> Path:
    """``source`` laid out as a download cache: snapshots/REVISION/NAME are links to blobs/HASH. The snapshot."""
    repository = folder / "models--someone--something"
    snapshot, blobs = repository / "snapshots" / "0a1b", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(source.iterdir())):
        path.rename(blobs / f"{number:040x}")
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", f"{number:040x}"))
    return snapshot
