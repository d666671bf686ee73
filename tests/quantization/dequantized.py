"""An independent reader of checkpoints in the format of compressed-tensors: what their weights mean, in float32."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the shards in ``folder``."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a dict)
    return found


def weights_of(config: dict[str, Any], module: str) -> dict[str, Any]:
    """The scheme of ``module``: of the first group that names it, else of that for all linear layers."""
    groups = config["config_groups"].values()
    named = [g for g in groups if module in g["targets"]]
    (group,) = named or [g for g in groups if g["targets"] == ["Linear"]]
    assert group["input_activations"] is None and group["weights"]["symmetric"] and module not in config["ignore"]
    return {**group["weights"], "format": group["format"]}


def integers(words: np.ndarray, bits: int, columns: int) -> np.ndarray:
    """Signed integers [rows, columns] from int32 words, bit by bit from the lowest."""
    flat = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    values = flat.reshape(len(words), -1, bits).astype(np.int64) @ (1 << np.arange(bits))
    return values[:, :columns] - (1 << (bits - 1))


def dequantized(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of the checkpoint before it was quantised, each quantised weight as float32."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and config["quantization_status"] == "compressed"
    tensors = stored_tensors(folder)
    found: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        match = re.fullmatch(r"(.+)\.weight_packed", name)
        if match:
            module = match[1]
            scheme = weights_of(config, module)
            rows, columns = tensors[f"{module}.weight_shape"].tolist()
            scales = tensors[f"{module}.weight_scale"].float().numpy()
            group = scheme["group_size"] or columns
            assert (scheme["strategy"] == "channel") == (scheme["group_size"] is None)
            numbers = integers(value.numpy(), scheme["num_bits"], columns).astype(np.float32)
            found[f"{module}.weight"] = torch.from_numpy(numbers * scales.repeat(group, 1))
            assert numbers.shape == (rows, columns)
        elif not re.search(r"\.weight_(scale|shape)$", name):
            found[name] = value
    return found


def write_dequantized(folder: Path, target: Path) -> Path:
    """The plain checkpoint that ``folder`` means."""
    target.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors" and path.name != "model.safetensors.index.json":
            shutil.copy(path, target)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    save_file(
        {k: v.contiguous() for k, v in dequantized(folder).items()}, target / "model.safetensors", {"format": "pt"}
    )
    return target
